//! The keys of `[defaults]`, which an upstream's own table can say, too.

use super::keys::word;
use super::shape::{Shape, duration, size};
use super::{Fallback, Key};
use crate::config::upstream_defaults::{
    CALLS, ERAS, FAILURES, ITEMS, ON_DOWN, PAGES, SHARINGS, Tuning,
};

pub(super) fn defaults() -> Key {
    Key::new(
        "defaults",
        Shape::table(tuning()),
        "What every upstream inherits. Its own table may say otherwise, key by key.",
    )
}

/// The same keys in an upstream's own table.
pub(super) fn inherited() -> Vec<Key> {
    tuning().into_iter().map(|key| inherit(key, "defaults", "as in `[defaults]`")).collect()
}

fn tuning() -> Vec<Key> {
    let default = Tuning::default();
    let (times, retry) = (default.timeouts, default.retry);
    let timeouts = vec![
        Key::new(
            "connect",
            Shape::Duration,
            "How long connecting to one address of a `url` may take; its name's other addresses come after it. Raise it for \
             servers that are far away.",
        )
        .or(duration(times.connect)),
        Key::new(
            "startup",
            Shape::Duration,
            "How long a server may take from its start, or from connecting, until it is ready. Raise it for programs \
             that are downloaded when they are first started.",
        )
        .or(duration(times.startup)),
        Key::new("list", Shape::Duration, "How long one list may take, through all of its pages.")
            .or(duration(times.list)),
        Key::new(
            "call",
            Shape::Duration,
            "How long one call may take; if its client asked for progress, how long it may be silent. Not longer than \
             `call_max`.",
        )
        .or(duration(times.call)),
        Key::new("call_max", Shape::Duration, "How long one call may take in all, whatever its progress and however long its client takes to answer what the \
             server asks in the middle of it.")
            .or(duration(times.call_max)),
        Key::new(
            "reset_on_progress",
            Shape::Boolean,
            "Whether progress begins `call` anew. With `false` a call ends after `call`.",
        )
        .or(times.reset_on_progress),
        Key::new(
            "gather",
            Shape::Duration,
            "How long the first question that a server asks in the middle of a call waits for further ones, so that \
             those that come together reach the client together.",
        )
        .or(duration(times.gather)),
        Key::new(
            "idle",
            Shape::Duration,
            "How long nobody has used a server that is `lazy` until it is stopped: no call, no subscription, no task that it is \
             known to work on. At least a second; longer than its clients wait before they ask again how a task is doing. \
             Without it a server that was started once stays up.",
        )
        .or_else("never"),
        Key::new(
            "stop",
            Shape::Duration,
            "How long the process of a `command` may take to end once its standard input is closed; then it, and all that \
             it has started, get SIGTERM. Raise it for servers that have something to save. Should be less than \
             `server.shutdown_grace`.",
        )
        .or(duration(times.stop)),
        Key::new(
            "terminate",
            Shape::Duration,
            "How long it may take from then on; then it gets SIGKILL.",
        )
        .or(duration(times.terminate)),
    ];
    let pauses = vec![
        Key::new(
            "backoff",
            Shape::Duration,
            "The first pause before connecting again to a server that was lost; it doubles each time. Not longer than \
             `max_backoff`.",
        )
        .or(duration(retry.backoff)),
        Key::new("max_backoff", Shape::Duration, "The longest pause.").or(duration(retry.max_backoff)),
        Key::new(
            "jitter",
            Shape::Boolean,
            "Varies the pauses at random, so that many gateways do not come back at the same moment.",
        )
        .or(retry.jitter),
    ];
    let breaker = vec![
        Key::new(
            "failures",
            Shape::Count(FAILURES),
            "After so many failures in a row the server is left alone. What counts is about the server: no answer in time, \
             a connection that breaks, HTTP 429 and 5xx. Errors in its own words, and the end of a child, do not count.",
        )
        .or(default.breaker.failures),
        Key::new(
            "cool_down",
            Shape::Duration,
            "For how long: calls fail at once with error 5030, and lists stay as they are. Then one call, or one list, \
             finds out whether the server is back; if it is not, the time doubles. `Retry-After` is passed on to the \
             client of the call that it answers, and changes nothing here. Not longer than `max_cool_down`.",
        )
        .or(duration(default.breaker.cool_down)),
        Key::new("max_cool_down", Shape::Duration, "The longest that it is left alone.")
            .or(duration(default.breaker.max_cool_down)),
    ];
    let limits = vec![
        Key::new(
            "concurrency",
            Shape::Count(CALLS),
            "The most calls in flight at a time. A call whose large reply passes while it arrives is in flight until it has \
             passed, or until its reader has kept it waiting for 30 s.",
        )
        .or_else("64; 256 for an upstream with a `url`"),
        Key::new(
            "waiting",
            Shape::Count(CALLS),
            "The most calls that wait for that; further ones are refused at once, with error 4290.",
        )
        .or(default.waiting),
        Key::new("wait", Shape::Duration, "How long they wait; then they are refused.")
            .or(duration(default.wait)),
        Key::new(
            "max_message",
            Shape::Size,
            "The largest message from the server; a call that is answered with a larger one fails.",
        )
        .or(size(default.max_message)),
        Key::new("max_items", Shape::Count(ITEMS), "The most items that are taken from one list; the rest is left out.")
            .or(default.max_items),
        Key::new("max_pages", Shape::Count(PAGES), "The most pages that are read of one list; the rest is left out.")
            .or(default.max_pages),
        Key::new("max_list", Shape::Size, "The most bytes of one list, all pages together; the page that exceeds it is its last.")
            .or(size(default.max_list)),
    ];
    vec![
        Key::new(
            "era",
            Shape::choice(&ERAS),
            "Which MCP the server speaks: `modern` is 2026-07-28 or later, `legacy` everything before. `auto` finds out \
             by asking, which costs a request or two when connecting.",
        )
        .or(word(&ERAS, &default.era)),
        Key::new(
            "sharing",
            Shape::choice(&SHARINGS),
            "Which clients share a connection, and with it a process. `shared`: all of them; a server over stdio or \
             HTTP+SSE that has a handshake can then ask its clients nothing, since it could not say whom it asks. \
             `client`: each client has its own, which is opened when it first calls and ends with its session: for servers \
             that remember, and for questions over stdio. Of the clients of 2026-07-28 over HTTP, which have no sessions, all \
             with one name are one client, and all without a key are one together. With `weir stdio` there is one client, so nothing is shared.",
        )
        .or(word(&SHARINGS, &default.sharing)),
        Key::new(
            "lazy",
            Shape::Boolean,
            "With `true` the server is started, or connected to, when it is first used: by a call, a completion, a \
             subscription or a question about a task, which waits for it. Its lists are those of the last time, kept on disk \
             (`[state] catalog`); where none are kept it is started once to be listed. While it sleeps it cannot say that its lists \
             have changed: that is found out when it wakes, and clients are told then. After `timeouts.idle` it is stopped \
             again. Not with `required = true`, and not for a `prompts_dir`, which is always open.",
        )
        .or(default.lazy),
        Key::new("timeouts", Shape::table(timeouts), "How long things may take.")
            .example("timeouts = { call = \"2m\", call_max = \"1h\" }"),
        Key::new("retry", Shape::table(pauses), "When to connect again."),
        Key::new("breaker", Shape::table(breaker), "When a server that fails call after call is left alone."),
        Key::new(
            "on_down",
            Shape::choice(&ON_DOWN),
            "What becomes of the lists of an upstream that is not connected: `keep` goes on showing what it listed last; \
             `hide` leaves it out after `on_down_grace`, names it in `_meta` as `weir/partial`, and shows it again at once \
             when it is back. Calls of it fail at once either way.",
        )
        .or("keep"),
        Key::new(
            "on_down_grace",
            Shape::Duration,
            "How long an upstream has to be away before `on_down = \"hide\"` hides it: one that comes back sooner changes \
             no list.",
        )
        .or(duration(default.on_down_grace)),
        Key::new("limits", Shape::table(limits), "How much a server may send, and how many calls it gets.")
            .example("limits.max_message = \"32MiB\""),
    ]
}

/// A key in an upstream's own table that is told at the table `from`.
pub(super) fn inherit(key: Key, from: &'static str, told: &'static str) -> Key {
    let none = |keys: Vec<Key>| keys.into_iter().map(|key| inherit(key, from, told)).collect();
    let shape = match key.shape {
        Shape::Table { keys, rules } => Shape::Table { keys: none(keys), rules },
        plain => plain,
    };
    let fallback = match key.fallback {
        Fallback::Nothing => Fallback::Nothing,
        _ => Fallback::Told(told),
    };
    Key { shape, fallback, ..key }.told_at(from)
}
