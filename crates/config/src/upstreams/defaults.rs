//! Keys of both `[defaults]` and an upstream's own table: era, sharing, timeouts, retry, limits.
//!
//! Inheritance is a parameter: each reader gets the values for missing keys.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::keys::{
    Described, boolean, choice, count, duration, duration_of, settings, size, table,
};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_mcp::revision::Era;
use weir_upstream::health::breaker::Settings as Breaker;
use weir_upstream::{OnDown, RetrySettings, Sharing, Timeouts, UpstreamLimits};

settings! {
    /// Values that every upstream inherits. An upstream's own table can override each key but
    /// `login_path`; its `pass_env` adds to this one.
    ///
    /// A `prompts_dir` has no connection: of the following keys its own table may contain only
    /// `timeouts.call`, `timeouts.call_max`, `timeouts.reset_on_progress`, `retry`,
    /// `limits.concurrency`, `limits.waiting` and `limits.wait`.
    pub(crate) struct UpstreamDefaults {
        /// The revisions of MCP that the server speaks: `modern` is 2026-07-28 or later, `legacy`
        /// everything before. `auto` detects it, which takes a request or two when connecting.
        era: Option<Era> = None, choice(&ERAS);
        /// The clients that share a connection, and with it a process. `shared`: all clients share
        /// one; a server over stdio or HTTP+SSE that has a handshake can then send no requests to
        /// clients, because it could not say which client it means. `client`: each client has its
        /// own, which is opened at its first call and ends with its session: for servers that keep
        /// state, and for input requests over stdio. Clients of 2026-07-28 over HTTP have no
        /// sessions: all with the same name are one client, and all without a key are one client
        /// together. With `weir stdio` there is one client, so nothing is shared.
        sharing: Sharing = Sharing::Shared, choice(&SHARINGS);
        /// With `true` the server is started, or connected to, at its first use: by a call, a
        /// completion, a subscription or a request about a task, which waits for it. Its lists come
        /// from the list cache on disk (`[state] catalog`); without cached lists it is started once
        /// to be listed. While it is stopped it cannot announce that its lists have changed: Weir
        /// detects that at the next start, and notifies clients then. After `timeouts.idle` it is
        /// stopped again. Not allowed with `required = true`, nor for a `prompts_dir`, which is
        /// always available.
        lazy: bool = false, boolean();
        /// Time limits.
        ///
        /// ```toml
        /// timeouts = { call = "2m", call_max = "1h" }
        /// ```
        timeouts: Timeouts = Timeouts::default(), table();
        /// Pauses between attempts to reconnect.
        retry: RetrySettings = RetrySettings::default(), table();
        /// The circuit breaker, which stops calls to a server that fails call after call.
        breaker: Breaker = Breaker::default(), table();
        /// Handling of the lists of an upstream that is not connected: `keep` serves its last
        /// lists; `hide` leaves its items out after `on_down_grace`, names the upstream in `_meta`
        /// as `weir/partial`, and serves its items again as soon as it is back. Calls to it fail at
        /// once either way.
        hides_when_down ("on_down"): bool = false, choice(&[("keep", false), ("hide", true)]);
        /// Time that an upstream must be disconnected before `on_down = "hide"` hides it: one that
        /// is back sooner changes no list.
        on_down_grace: Duration = Duration::from_secs(60), duration();
        /// Limits on what a server may send and on the calls that it gets.
        ///
        /// ```toml
        /// limits.max_message = "32MiB"
        /// ```
        limits: UpstreamLimits = UpstreamLimits::default(), table();
        =>
        /// True if `limits.concurrency` is set here, or where it is inherited from.
        sets_concurrency: bool = false;
    }
}

settings! {
    for Timeouts {
        /// Time limit for connecting to one address of a `url`; the other addresses of its host
        /// name are tried after it. Raise it for servers that are far away.
        connect: duration();
        /// Time limit for a server from its start, or from connecting, until it is ready. Raise it
        /// for programs that are downloaded at their first start.
        startup: duration();
        /// Time limit for one list, including all of its pages.
        list: duration();
        /// Time limit for one call; if its client has requested progress, time that may pass
        /// without a message. Not longer than `call_max`.
        call: duration();
        /// Time limit for one call in total, whatever its progress and however long its client
        /// takes to answer requests that the server sends during the call.
        call_max: duration();
        /// With `true` each progress notification restarts `call`. With `false` a call ends after
        /// `call`.
        reset_on_progress: boolean();
        /// Time that the first input request of a server during a call waits for further ones, so
        /// that requests that arrive together reach the client together.
        gather: duration();
        /// Idle time after which a `lazy` server is stopped: no call, no subscription and no task
        /// that it is known to work on. At least a second; longer than the interval at which its
        /// clients poll their tasks. Without it a server that was started once stays up.
        ///
        /// ```toml
        /// timeouts.idle = "15m"
        /// ```
        idle: duration_of(idle).optional().default_text("never");
        /// Time that the process of a `command` has to end once its standard input is closed; after
        /// that it, and all processes that it has started, get SIGTERM. Raise it for servers that
        /// have something to save. It should be less than `server.shutdown_grace`.
        stop: duration();
        /// Time that the process has to end after SIGTERM; after that it gets SIGKILL.
        terminate: duration();
    }
}

settings! {
    for RetrySettings {
        /// The first pause before reconnecting to a server after a lost connection; it doubles each
        /// time. Not longer than `max_backoff`.
        backoff: duration();
        /// The longest pause.
        max_backoff: duration();
        /// Varies the pauses at random, so that many gateways do not reconnect at the same moment.
        jitter: boolean();
    }
}

settings! {
    for Breaker {
        /// Number of failures in a row after which the circuit breaker opens. A failure is about
        /// the server: no response in time, a broken connection, HTTP 429 and 5xx. Error responses
        /// of the server itself, and the end of a child process, do not count.
        failures: count(1..=1_000);
        /// Time that the circuit breaker stays open: calls fail at once with error 5030, and lists
        /// stay as they are. Then one call, or one list request, tests whether the server is back;
        /// if it is not, the time doubles. `Retry-After` is passed on to the client of its call,
        /// and does not change this time. Not longer than `max_cool_down`.
        cool_down: duration();
        /// The longest time that the circuit breaker stays open.
        max_cool_down: duration();
    }
}

settings! {
    for UpstreamLimits {
        /// Maximum number of calls in flight. A call whose large response is streamed is in flight
        /// until the response is complete, or until the client has not read for 30 s.
        ///
        /// ```toml
        /// limits.concurrency = 64
        /// ```
        concurrency: count(CALLS).default_text("64; 256 for an upstream with a `url`");
        /// Maximum number of calls that wait because `concurrency` is reached; further ones are
        /// refused at once, with error 4290.
        waiting: count(CALLS);
        /// Time that such a request waits; after that it is refused.
        wait: duration();
        /// The largest message from the server; a call with a larger response fails.
        max_message: size();
        /// Maximum number of items that are taken from one list; the rest is left out.
        max_items: count(1..=1_000_000);
        /// Maximum number of pages that are read of one list; the rest is left out.
        max_pages: count(1..=100_000);
        /// Maximum size of one list, all pages together; the page that exceeds it is the last one
        /// that is read.
        max_list: size();
    }
}

impl UpstreamDefaults {
    /// Returns the handling of the lists while the upstream is not connected.
    pub(crate) fn on_down(&self) -> OnDown {
        match self.hides_when_down {
            true => OnDown::Hide { after: self.on_down_grace },
            false => OnDown::Keep,
        }
    }

    /// Returns the limits, with the default concurrency of the kind of upstream.
    pub(crate) fn limits(&self, over_http: bool) -> UpstreamLimits {
        match over_http && !self.sets_concurrency {
            true => UpstreamLimits { concurrency: DEFAULT_HTTP_CONCURRENCY, ..self.limits },
            false => self.limits,
        }
    }
}

/// Owner of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableOwner {
    /// `[defaults]`.
    All,
    /// Upstream with a `prompts_dir`.
    Library,
    /// Upstream MCP server.
    Server,
}

/// Reads a table; missing keys are inherited. A prompt library has no connection, so keys about the
/// connection to a server are errors in its own table.
pub(crate) fn read_defaults(
    t: &TableReader<'_>,
    inherited: &UpstreamDefaults,
    of: TableOwner,
) -> UpstreamDefaults {
    let without_effect = |t: &TableReader<'_>, keys: &[&'static str]| {
        for key in keys.iter().filter(|key| of == TableOwner::Library && t.has(key)) {
            let what = "has no effect on a prompts_dir, which has no connection";
            t.error(key, ValueError::new(what, "remove it"));
        }
    };
    without_effect(t, &NOT_FOR_A_LIBRARY);
    let is_lazy_known = t.is_resolved("lazy");
    let mut defaults = UpstreamDefaults::read_keys(t, inherited);
    t.check_table("limits", |t| {
        without_effect(t, &LIMITS_NOT_FOR_A_LIBRARY);
        defaults.sets_concurrency |= t.has("concurrency");
    });
    t.check_table("timeouts", |t| {
        without_effect(t, &TIMEOUTS_NOT_FOR_A_LIBRARY);
        if of == TableOwner::Server && !defaults.lazy && is_lazy_known && t.has("idle") {
            let what = "this upstream is not lazy, so it is never stopped when idle";
            t.error("idle", ValueError::new(what, "set lazy = true beside timeouts, or remove it"));
        }
        let (Timeouts { call, call_max, .. }, default) = (defaults.timeouts, Timeouts::default());
        check_order(t, ["call", "call_max"], [call, call_max], default.call_max);
    });
    t.check_table("retry", |t| {
        let RetrySettings { backoff, max_backoff, .. } = defaults.retry;
        let default = RetrySettings::default().max_backoff;
        check_order(t, ["backoff", "max_backoff"], [backoff, max_backoff], default);
    });
    t.check_table("breaker", |t| {
        let Breaker { cool_down, max_cool_down, .. } = defaults.breaker;
        let default = Breaker::default().max_cool_down;
        check_order(t, ["cool_down", "max_cool_down"], [cool_down, max_cool_down], default);
    });
    defaults
}

/// Parses the idle time. With a shorter one the server would be started for each call.
fn idle(value: &SpannedValue<'_>) -> Parsed<Duration> {
    let idle = value::duration(value)?;
    match idle < MIN_IDLE {
        true => Err(ValueError::new("this is less than a second", "write at least \"1s\"")),
        false => Ok(idle),
    }
}

/// Reports a wrong order of two durations at the key that this table sets. If it sets neither, both
/// are inherited, and the error was reported there.
fn check_order(
    t: &TableReader<'_>,
    [less, more]: [&'static str; 2],
    [duration, limit]: [Duration; 2],
    default: Duration,
) {
    let key = [less, more].into_iter().find(|key| t.has(key));
    // One that is missing may be right.
    let are_known = [less, more].into_iter().all(|key| t.is_resolved(key));
    if let Some(key) = key.filter(|_| are_known && duration > limit) {
        let what = match limit == default {
            true => {
                format!("{less} is longer than {more}, which is {default:?} unless it is written")
            }
            // The value is not repeated, because it may come from a variable.
            false => format!("{less} is longer than {more}"),
        };
        t.error(key, ValueError::new(what, format!("shorten {less}, or lengthen {more}")));
    }
}

const MIN_IDLE: Duration = Duration::from_secs(1);

/// Default for calls in flight to a server on the network, which usually has many processes.
pub(crate) const DEFAULT_HTTP_CONCURRENCY: usize = 256;

const ERAS: [(&str, Option<Era>); 3] =
    [("auto", None), ("modern", Some(Era::Modern)), ("legacy", Some(Era::Legacy))];

static SHARINGS: [(&str, Sharing); 2] = [("shared", Sharing::Shared), ("client", Sharing::Client)];

const CALLS: RangeInclusive<usize> = 1..=100_000;

/// Keys about the connection to a server.
pub(crate) const NOT_FOR_A_LIBRARY: [&str; 4] = ["era", "sharing", "lazy", "breaker"];
pub(crate) const TIMEOUTS_NOT_FOR_A_LIBRARY: [&str; 7] =
    ["connect", "startup", "list", "gather", "idle", "stop", "terminate"];
pub(crate) const LIMITS_NOT_FOR_A_LIBRARY: [&str; 4] =
    ["max_message", "max_items", "max_pages", "max_list"];
