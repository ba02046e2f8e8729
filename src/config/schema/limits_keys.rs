//! The keys of `[[limits]]`.

use serde_json::json;

use super::Key;
use super::shape::{self, Shape};
use crate::config::limits::{BURSTS, CONCURRENCIES, PERS};

pub(super) fn limits() -> Key {
    let keys = vec![
        Key::new(
            "per",
            Shape::choice(&PERS),
            "Who is counted together: each `client` for itself, each `user` whichever client they use, all in one \
             `role`, all that goes to one `upstream`, or all (`global`). Of those who show an access token, `client` is \
             the application that it was issued to, with all who use it: write `user` to count each of them. A resource \
             that a `subscriptions/listen` names counts as a `resources/subscribe` of its own. Who comes without a key is counted by the \
             address of its connection: IPv4 addresses each for itself, those of IPv6 by their /64. Behind a reverse \
             proxy all these have one address, since what a header says of it can be made up.",
        )
        .required(),
        Key::new(
            "method",
            Shape::OneOrList(Box::new(Shape::Text("name of a method, or a pattern of names", shape::ITEM_PATTERN))),
            "The methods that are counted, together: `\"tools/call\"`, `[\"prompts/get\", \"resources/read\"]`, \
             `\"*/list\"`.",
        )
        .or("*"),
        Key::new(
            "match",
            Shape::Text("`<upstream>/<original name>`", shape::POLICY_PATTERN),
            "The items that are counted: a pattern as in a role's rules. Requests that are about no item, and about \
             one that the client may not know of, match none.",
        ),
        Key::new(
            "rate",
            Shape::Text("`<number>/s`, `/min` or `/h`", shape::RATE),
            "How often. Each request of MCP counts once, whatever HTTP is around it, and so does each element of a \
             batch; answers to questions, notifications and cancels are never refused.",
        )
        .example("rate = \"600/min\""),
        Key::new(
            "burst",
            Shape::Count(BURSTS),
            "How many may come at once after a pause.",
        )
        .or_else("the number in `rate`"),
        Key::new(
            "concurrency",
            Shape::Count(CONCURRENCIES),
            "How many may be under way at a time. A call that waits for the answer of a person does not count \
             meanwhile.",
        ),
    ];
    let rules = json!({ "anyOf": [{ "required": ["rate"] }, { "required": ["concurrency"] }] });
    let limit = Shape::Table { keys, rules };
    Key::new(
        "limits",
        Shape::List { of: Box::new(limit), count: (0, None) },
        "How often something may be done, and how much of it at a time. A request has to be within all limits that \
         count it; one that is not is refused with error 4290, which says in `data.retryAfterMs` how long to wait (over \
         HTTP: 429 with `Retry-After`), and is charged to none of them. Without any there are none. They all \
         stand in one file.",
    )
    .example(
        "[[limits]]\nper = \"client\"\nrate = \"600/min\"\nburst = 60\n\n\
         [[limits]]                       # a tool that is expensive\nper = \"client\"\nmethod = \"tools/call\"\n\
         match = \"github/*\"\nrate = \"60/min\"\nconcurrency = 4",
    )
}
