//! Keys of `[defaults]`, which an upstream's own table can also set.

use super::shape::{ValueShape, duration, size, word};
use super::{DefaultValue, KeySpec};
use crate::config::upstream_defaults::{
    CALLS, ERAS, FAILURES, ITEMS, ON_DOWN, PAGES, SHARINGS, UpstreamDefaults,
};

pub(super) fn defaults() -> KeySpec {
    KeySpec::new(
        "defaults",
        ValueShape::table(keys()),
        "Values that every upstream inherits. An upstream's own table can override each key.",
    )
}

/// Returns the inherited keys of an upstream's own table.
pub(super) fn inherited() -> Vec<KeySpec> {
    keys().into_iter().map(|key| inherit(key, "defaults", "as in `[defaults]`")).collect()
}

fn keys() -> Vec<KeySpec> {
    let default = UpstreamDefaults::default();
    let (times, retry) = (default.timeouts, default.retry);
    let timeouts = vec![
        KeySpec::new(
            "connect",
            ValueShape::Duration,
            "Time limit for connecting to one address of a `url`; the other addresses of its host \
             name are tried after it. Raise it for servers that are far away.",
        )
        .default(duration(times.connect)),
        KeySpec::new(
            "startup",
            ValueShape::Duration,
            "Time limit for a server from its start, or from connecting, until it is ready. Raise \
             it for programs that are downloaded at their first start.",
        )
        .default(duration(times.startup)),
        KeySpec::new(
            "list",
            ValueShape::Duration,
            "Time limit for one list, including all of its pages.",
        )
        .default(duration(times.list)),
        KeySpec::new(
            "call",
            ValueShape::Duration,
            "Time limit for one call; if its client has requested progress, time that may pass \
             without a message. Not longer than `call_max`.",
        )
        .default(duration(times.call)),
        KeySpec::new(
            "call_max",
            ValueShape::Duration,
            "Time limit for one call in total, whatever its progress and however long its client \
             takes to answer requests that the server sends during the call.",
        )
        .default(duration(times.call_max)),
        KeySpec::new(
            "reset_on_progress",
            ValueShape::Boolean,
            "With `true` each progress notification restarts `call`. With `false` a call ends \
             after `call`.",
        )
        .default(times.reset_on_progress),
        KeySpec::new(
            "gather",
            ValueShape::Duration,
            "Time that the first input request of a server during a call waits for further ones, \
             so that requests that arrive together reach the client together.",
        )
        .default(duration(times.gather)),
        KeySpec::new(
            "idle",
            ValueShape::Duration,
            "Idle time after which a `lazy` server is stopped: no call, no subscription and no \
             task that it is known to work on. At least a second; longer than the interval at \
             which its clients poll their tasks. Without it a server that was started once stays \
             up.",
        )
        .default_text("never"),
        KeySpec::new(
            "stop",
            ValueShape::Duration,
            "Time that the process of a `command` has to end once its standard input is closed; \
             after that it, and all processes that it has started, get SIGTERM. Raise it for \
             servers that have something to save. It should be less than `server.shutdown_grace`.",
        )
        .default(duration(times.stop)),
        KeySpec::new(
            "terminate",
            ValueShape::Duration,
            "Time that the process has to end after SIGTERM; after that it gets SIGKILL.",
        )
        .default(duration(times.terminate)),
    ];
    let retry_keys = vec![
        KeySpec::new(
            "backoff",
            ValueShape::Duration,
            "The first pause before reconnecting to a server after a lost connection; it doubles \
             each time. Not longer than `max_backoff`.",
        )
        .default(duration(retry.backoff)),
        KeySpec::new("max_backoff", ValueShape::Duration, "The longest pause.")
            .default(duration(retry.max_backoff)),
        KeySpec::new(
            "jitter",
            ValueShape::Boolean,
            "Varies the pauses at random, so that many gateways do not reconnect at the same \
             moment.",
        )
        .default(retry.jitter),
    ];
    let breaker =
        vec![
        KeySpec::new(
            "failures",
            ValueShape::Count(FAILURES),
            "Number of failures in a row after which the circuit breaker opens. A failure is about \
             the server: no response in time, a broken connection, HTTP 429 and 5xx. Error \
             responses of the server itself, and the end of a child process, do not count.",
        )
        .default(default.breaker.failures),
        KeySpec::new(
            "cool_down",
            ValueShape::Duration,
            "Time that the circuit breaker stays open: calls fail at once with error 5030, and \
             lists stay as they are. Then one call, or one list request, tests whether the server \
             is back; if it is not, the time doubles. `Retry-After` is passed on to the client of \
             its call, and does not change this time. Not longer than `max_cool_down`.",
        )
        .default(duration(default.breaker.cool_down)),
        KeySpec::new("max_cool_down", ValueShape::Duration,
            "The longest time that the circuit breaker stays open.")
            .default(duration(default.breaker.max_cool_down)),
    ];
    let limits =
        vec![
        KeySpec::new(
            "concurrency",
            ValueShape::Count(CALLS),
            "Maximum number of calls in flight. A call whose large response is streamed is in \
             flight until the response is complete, or until the client has not read for 30 s.",
        )
        .default_text("64; 256 for an upstream with a `url`"),
        KeySpec::new(
            "waiting",
            ValueShape::Count(CALLS),
            "Maximum number of calls that wait because `concurrency` is reached; further ones are \
             refused at once, with error 4290.",
        )
        .default(default.waiting),
        KeySpec::new("wait", ValueShape::Duration,
            "Time that such a request waits; after that it is refused.")
            .default(duration(default.wait)),
        KeySpec::new(
            "max_message",
            ValueShape::Size,
            "The largest message from the server; a call with a larger response fails.",
        )
        .default(size(default.max_message)),
        KeySpec::new("max_items", ValueShape::Count(ITEMS),
            "Maximum number of items that are taken from one list; the rest is left out.")
            .default(default.max_items),
        KeySpec::new("max_pages", ValueShape::Count(PAGES),
            "Maximum number of pages that are read of one list; the rest is left out.")
            .default(default.max_pages),
        KeySpec::new("max_list", ValueShape::Size,
            "Maximum size of one list, all pages together; the page that exceeds it is the last \
             one that is read.")
            .default(size(default.max_list)),
    ];
    vec![
        KeySpec::new(
            "era",
            ValueShape::choice(&ERAS),
            "The revisions of MCP that the server speaks: `modern` is 2026-07-28 or later, \
             `legacy` everything before. `auto` detects it, which takes a request or two when \
             connecting.",
        )
        .default(word(&ERAS, &default.era)),
        KeySpec::new(
            "sharing",
            ValueShape::choice(&SHARINGS),
            "The clients that share a connection, and with it a process. `shared`: all clients \
             share one; a server over stdio or HTTP+SSE that has a handshake can then send no \
             requests to clients, because it could not say which client it means. `client`: each \
             client has its own, which is opened at its first call and ends with its session: for \
             servers that keep state, and for input requests over stdio. Clients of 2026-07-28 \
             over HTTP have no sessions: all with the same name are one client, and all without a \
             key are one client together. With `weir stdio` there is one client, so nothing is \
             shared.",
        )
        .default(word(&SHARINGS, &default.sharing)),
        KeySpec::new(
            "lazy",
            ValueShape::Boolean,
            "With `true` the server is started, or connected to, at its first use: by a call, a \
             completion, a subscription or a request about a task, which waits for it. Its lists \
             come from the list cache on disk (`[state] catalog`); without cached lists it is \
             started once to be listed. While it is stopped it cannot announce that its lists have \
             changed: Weir detects that at the next start, and notifies clients then. After \
             `timeouts.idle` it is stopped again. Not allowed with `required = true`, nor for a \
             `prompts_dir`, which is always available.",
        )
        .default(default.lazy),
        KeySpec::new("timeouts", ValueShape::table(timeouts), "Time limits.")
            .example("timeouts = { call = \"2m\", call_max = \"1h\" }"),
        KeySpec::new(
            "retry",
            ValueShape::table(retry_keys),
            "Pauses between attempts to reconnect.",
        ),
        KeySpec::new(
            "breaker",
            ValueShape::table(breaker),
            "The circuit breaker, which stops calls to a server that fails call after call.",
        ),
        KeySpec::new(
            "on_down",
            ValueShape::choice(&ON_DOWN),
            "Handling of the lists of an upstream that is not connected: `keep` serves its last \
             lists; `hide` leaves its items out after `on_down_grace`, names the upstream in \
             `_meta` as `weir/partial`, and serves its items again as soon as it is back. Calls to \
             it fail at once either way.",
        )
        .default("keep"),
        KeySpec::new(
            "on_down_grace",
            ValueShape::Duration,
            "Time that an upstream must be disconnected before `on_down = \"hide\"` hides it: one \
             that is back sooner changes no list.",
        )
        .default(duration(default.on_down_grace)),
        KeySpec::new(
            "limits",
            ValueShape::table(limits),
            "Limits on what a server may send and on the calls that it gets.",
        )
        .example("limits.max_message = \"32MiB\""),
    ]
}

/// Makes a key of an upstream's own table that is described at the table `from`.
pub(super) fn inherit(key: KeySpec, from: &'static str, text: &'static str) -> KeySpec {
    let inherit_all =
        |keys: Vec<KeySpec>| keys.into_iter().map(|key| inherit(key, from, text)).collect();
    let shape = match key.shape {
        ValueShape::Table { keys, rules } => ValueShape::Table { keys: inherit_all(keys), rules },
        plain => plain,
    };
    let default = match key.default {
        DefaultValue::None => DefaultValue::None,
        _ => DefaultValue::Described(text),
    };
    KeySpec { shape, default, ..key }.described_at(from)
}
