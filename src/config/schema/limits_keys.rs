//! Keys of `[[limits]]`.

use serde_json::json;

use super::KeySpec;
use super::shape::{self, ValueShape};
use crate::config::limits::{BURSTS, CONCURRENCIES, SCOPES};

pub(super) fn limits() -> KeySpec {
    let keys = vec![
        KeySpec::new(
            "per",
            ValueShape::choice(&SCOPES),
            "The requests that are counted together: those of each `client`, those of each `user` \
             whichever client they use, those of all clients with one `role`, those to one \
             `upstream`, or all (`global`). With access tokens, `client` is the application that \
             the token was issued to, with all its users: write `user` to count each of them. Each \
             resource that a `subscriptions/listen` names counts as one `resources/subscribe`. \
             Clients without a key are counted by the address of their connection: each IPv4 \
             address by itself, IPv6 addresses by their /64. Behind a reverse proxy all of these \
             have one address, because headers that contain an address can be forged.",
        )
        .required(),
        KeySpec::new(
            "method",
            ValueShape::OneOrList(Box::new(ValueShape::Text(
                "name of a method, or a pattern of names",
                shape::ITEM_PATTERN,
            ))),
            "The methods that are counted, all together: `\"tools/call\"`, `[\"prompts/get\", \
             \"resources/read\"]`, `\"*/list\"`.",
        )
        .default("*"),
        KeySpec::new(
            "match",
            ValueShape::Text("`<upstream>/<original name>`", shape::POLICY_PATTERN),
            "The items that are counted: a pattern as in a role's rules. Requests without an item, \
             and requests for an item that the client may not see, match no pattern.",
        ),
        KeySpec::new(
            "rate",
            ValueShape::Text("`<number>/s`, `/min` or `/h`", shape::RATE),
            "Number of requests per unit of time. Each MCP request counts once, however many HTTP \
             requests it takes, and so does each element of a batch; responses to requests of a \
             server, notifications and cancellations are never refused.",
        )
        .example("rate = \"600/min\""),
        KeySpec::new(
            "burst",
            ValueShape::Count(BURSTS),
            "Number of requests that are accepted at once after a pause.",
        )
        .default_text("the number in `rate`"),
        KeySpec::new(
            "concurrency",
            ValueShape::Count(CONCURRENCIES),
            "Maximum number of requests in progress. A call does not count while it waits for \
             input of its client.",
        ),
    ];
    let rules = json!({ "anyOf": [{ "required": ["rate"] }, { "required": ["concurrency"] }] });
    let limit = ValueShape::Table { keys, rules };
    KeySpec::new(
        "limits",
        ValueShape::List { of: Box::new(limit), count: (0, None) },
        "Rate limits and concurrency limits. A request must be within all limits that count it; a \
         request that is not is refused with error 4290, which says in `data.retryAfterMs` how \
         long to wait (over HTTP: 429 with `Retry-After`), and counts towards none of them. By \
         default there are no limits. All `[[limits]]` must be in one file.",
    )
    .example(
        "[[limits]]\nper = \"client\"\nrate = \"600/min\"\nburst = 60\n\n[[limits]]                \
         # a tool that is expensive\nper = \"client\"\nmethod = \"tools/call\"\nmatch = \
         \"github/*\"\nrate = \"60/min\"\nconcurrency = 4",
    )
}
