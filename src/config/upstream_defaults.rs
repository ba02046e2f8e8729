//! Keys of both `[defaults]` and an upstream's own table: era, sharing, timeouts, retry, limits.
//!
//! Inheritance is a parameter: each reader gets the values for missing keys.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::config::reader::value;
use crate::upstream::health::breaker::Settings as Breaker;
use crate::upstream::{OnDown, RetrySettings, Timeouts, UpstreamLimits};

/// Era of MCP that an upstream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraChoice {
    /// Detected when connecting.
    Auto,
    /// 2026-07-28 or later.
    Modern,
    /// 2025-11-25 or earlier.
    Legacy,
}

/// Sharing of connections between clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingChoice {
    /// All clients share one.
    Shared,
    /// Each client has its own.
    Client,
}

// === Defaults ===

/// Values that both `[defaults]` and an upstream's own table can set.
#[derive(Clone)]
pub(super) struct UpstreamDefaults {
    pub(super) era: EraChoice,
    pub(super) sharing: SharingChoice,
    pub(super) lazy: bool,
    pub(super) timeouts: Timeouts,
    pub(super) retry: RetrySettings,
    pub(super) breaker: Breaker,
    hides_when_down: bool,
    pub(super) on_down_grace: Duration,
    /// `None` means the default for the kind of upstream.
    concurrency: Option<usize>,
    pub(super) waiting: usize,
    pub(super) wait: Duration,
    pub(super) max_message: usize,
    pub(super) max_items: usize,
    pub(super) max_pages: usize,
    pub(super) max_list: usize,
}

impl Default for UpstreamDefaults {
    fn default() -> Self {
        Self {
            era: EraChoice::Auto,
            sharing: SharingChoice::Shared,
            lazy: false,
            timeouts: Timeouts::default(),
            retry: RetrySettings::default(),
            breaker: Breaker::default(),
            hides_when_down: false,
            on_down_grace: Duration::from_secs(60),
            concurrency: None,
            waiting: 128,
            wait: Duration::from_secs(1),
            max_message: 8 << 20,
            max_items: 10_000,
            max_pages: 100,
            max_list: 32 << 20,
        }
    }
}

impl UpstreamDefaults {
    /// Returns the handling of the lists while the upstream is not connected.
    pub(super) fn on_down(&self) -> OnDown {
        match self.hides_when_down {
            true => OnDown::Hide { after: self.on_down_grace },
            false => OnDown::Keep,
        }
    }

    /// Returns the limits, with the default concurrency of the kind of upstream.
    pub(super) fn limits(&self, over_http: bool) -> UpstreamLimits {
        UpstreamLimits {
            concurrency: self.concurrency.unwrap_or(if over_http {
                DEFAULT_HTTP_CONCURRENCY
            } else {
                DEFAULT_CONCURRENCY
            }),
            waiting: self.waiting,
            wait: self.wait,
            max_message: self.max_message,
            max_items: self.max_items,
            max_pages: self.max_pages,
            max_list: self.max_list,
        }
    }
}

/// Owner of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TableOwner {
    /// `[defaults]`.
    All,
    /// Upstream with a `prompts_dir`.
    Library,
    /// Upstream MCP server.
    Server,
}

/// Reads a table; missing keys are inherited. A prompt library has no connection, so keys about the
/// connection to a server are errors in its own table.
pub(super) fn read_defaults(
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
    let mut defaults = inherited.clone();
    defaults.era = t.read("era", value::choice(&ERAS)).unwrap_or(inherited.era);
    defaults.sharing = t.read("sharing", value::choice(&SHARINGS)).unwrap_or(inherited.sharing);
    defaults.lazy = t.read("lazy", value::boolean).unwrap_or(inherited.lazy);
    defaults.timeouts = t.table("timeouts", |t| {
        without_effect(t, &TIMEOUTS_NOT_FOR_A_LIBRARY);
        if of == TableOwner::Server && !defaults.lazy && t.has("idle") {
            let what = "this upstream is not lazy, so it is never stopped when idle";
            t.error("idle", ValueError::new(what, "set lazy = true beside timeouts, or remove it"));
        }
        timeouts(t, &inherited.timeouts)
    });
    defaults.retry = t.table("retry", |t| retry(t, &inherited.retry));
    defaults.breaker = t.table("breaker", |t| breaker(t, &inherited.breaker));
    defaults.hides_when_down =
        t.read("on_down", value::choice(&ON_DOWN)).unwrap_or(inherited.hides_when_down);
    defaults.on_down_grace =
        t.read("on_down_grace", value::duration).unwrap_or(inherited.on_down_grace);
    t.table("limits", |t| {
        without_effect(t, &LIMITS_NOT_FOR_A_LIBRARY);
        defaults.concurrency = t.read("concurrency", value::count(CALLS)).or(inherited.concurrency);
        defaults.waiting = t.read("waiting", value::count(CALLS)).unwrap_or(inherited.waiting);
        defaults.wait = t.read("wait", value::duration).unwrap_or(inherited.wait);
        defaults.max_message = t.read("max_message", value::size).unwrap_or(inherited.max_message);
        defaults.max_items =
            t.read("max_items", value::count(ITEMS)).unwrap_or(inherited.max_items);
        defaults.max_pages =
            t.read("max_pages", value::count(PAGES)).unwrap_or(inherited.max_pages);
        defaults.max_list = t.read("max_list", value::size).unwrap_or(inherited.max_list);
    });
    defaults
}

fn timeouts(t: &TableReader<'_>, inherited: &Timeouts) -> Timeouts {
    let timeouts = Timeouts {
        connect: t.read("connect", value::duration).unwrap_or(inherited.connect),
        startup: t.read("startup", value::duration).unwrap_or(inherited.startup),
        list: t.read("list", value::duration).unwrap_or(inherited.list),
        call: t.read("call", value::duration).unwrap_or(inherited.call),
        call_max: t.read("call_max", value::duration).unwrap_or(inherited.call_max),
        reset_on_progress: t
            .read("reset_on_progress", value::boolean)
            .unwrap_or(inherited.reset_on_progress),
        gather: t.read("gather", value::duration).unwrap_or(inherited.gather),
        idle: t.read("idle", idle).or(inherited.idle),
        stop: t.read("stop", value::duration).unwrap_or(inherited.stop),
        terminate: t.read("terminate", value::duration).unwrap_or(inherited.terminate),
    };
    if timeouts.call > timeouts.call_max {
        report_wrong_order(
            t,
            ["call", "call_max"],
            timeouts.call_max,
            Timeouts::default().call_max,
        );
    }
    timeouts
}

/// Parses the idle time. With a shorter one the server would be started for each call.
fn idle(value: &SpannedValue<'_>) -> Parsed<Duration> {
    let idle = value::duration(value)?;
    match idle < MIN_IDLE {
        true => Err(ValueError::new("this is less than a second", "write at least \"1s\"")),
        false => Ok(idle),
    }
}

fn retry(t: &TableReader<'_>, inherited: &RetrySettings) -> RetrySettings {
    let retry = RetrySettings {
        backoff: t.read("backoff", value::duration).unwrap_or(inherited.backoff),
        max_backoff: t.read("max_backoff", value::duration).unwrap_or(inherited.max_backoff),
        jitter: t.read("jitter", value::boolean).unwrap_or(inherited.jitter),
    };
    if retry.backoff > retry.max_backoff {
        let default = RetrySettings::default().max_backoff;
        report_wrong_order(t, ["backoff", "max_backoff"], retry.max_backoff, default);
    }
    retry
}

fn breaker(t: &TableReader<'_>, inherited: &Breaker) -> Breaker {
    let failures = t.read("failures", value::count(FAILURES));
    let breaker = Breaker {
        failures: failures.and_then(|it| it.try_into().ok()).unwrap_or(inherited.failures),
        cool_down: t.read("cool_down", value::duration).unwrap_or(inherited.cool_down),
        max_cool_down: t.read("max_cool_down", value::duration).unwrap_or(inherited.max_cool_down),
    };
    if breaker.cool_down > breaker.max_cool_down {
        let default = Breaker::default().max_cool_down;
        report_wrong_order(t, ["cool_down", "max_cool_down"], breaker.max_cool_down, default);
    }
    breaker
}

/// Reports a wrong order of two durations at the key that this table sets. If it sets neither, both
/// are inherited, and the error was reported there.
fn report_wrong_order(
    t: &TableReader<'_>,
    [less, more]: [&'static str; 2],
    limit: Duration,
    default: Duration,
) {
    if let Some(key) = [less, more].into_iter().find(|key| t.has(key)) {
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

/// Default for calls in flight to a process or a prompt library.
pub(super) const DEFAULT_CONCURRENCY: usize = 64;
/// Default for calls in flight to a server on the network, which usually has many processes.
pub(super) const DEFAULT_HTTP_CONCURRENCY: usize = 256;

pub(super) const ERAS: [(&str, EraChoice); 3] =
    [("auto", EraChoice::Auto), ("modern", EraChoice::Modern), ("legacy", EraChoice::Legacy)];

pub(super) const SHARINGS: [(&str, SharingChoice); 2] =
    [("shared", SharingChoice::Shared), ("client", SharingChoice::Client)];

/// Values of `on_down`, each with whether the lists are hidden.
pub(super) const ON_DOWN: [(&str, bool); 2] = [("keep", false), ("hide", true)];

pub(super) const FAILURES: RangeInclusive<usize> = 1..=1_000;
pub(super) const CALLS: RangeInclusive<usize> = 1..=100_000;
pub(super) const ITEMS: RangeInclusive<usize> = 1..=1_000_000;
pub(super) const PAGES: RangeInclusive<usize> = 1..=100_000;

/// Keys about the connection to a server.
pub(super) const NOT_FOR_A_LIBRARY: [&str; 4] = ["era", "sharing", "lazy", "breaker"];
pub(super) const TIMEOUTS_NOT_FOR_A_LIBRARY: [&str; 7] =
    ["connect", "startup", "list", "gather", "idle", "stop", "terminate"];
pub(super) const LIMITS_NOT_FOR_A_LIBRARY: [&str; 4] =
    ["max_message", "max_items", "max_pages", "max_list"];
