//! What `[defaults]` and an upstream's own table can both say: era, timeouts, retry, limits.
//!
//! Inheritance is an argument: each reader takes what holds unless the table says otherwise.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::{Parsed, Table, Value};
use crate::config::reader::value;
use crate::upstream::health::breaker::Settings as Breaker;
use crate::upstream::{Limits, OnDown, Retry, Timeouts};

/// Which era an upstream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraChoice {
    /// Found out by asking.
    Auto,
    /// 2026-07-28 or later.
    Modern,
    /// 2025-11-25 or earlier.
    Legacy,
}

/// Which clients share a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingChoice {
    /// All of them.
    Shared,
    /// None: each has its own.
    Client,
}

// === Tuning ===

/// What `[defaults]` and an upstream's own table can both say.
#[derive(Clone)]
pub(super) struct Tuning {
    pub(super) era: EraChoice,
    pub(super) sharing: SharingChoice,
    pub(super) lazy: bool,
    pub(super) timeouts: Timeouts,
    pub(super) retry: Retry,
    pub(super) breaker: Breaker,
    hides: bool,
    pub(super) on_down_grace: Duration,
    /// Depends on the kind of upstream unless it is written.
    concurrency: Option<usize>,
    pub(super) waiting: usize,
    pub(super) wait: Duration,
    pub(super) max_message: usize,
    pub(super) max_items: usize,
    pub(super) max_pages: usize,
    pub(super) max_list: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            era: EraChoice::Auto,
            sharing: SharingChoice::Shared,
            lazy: false,
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            breaker: Breaker::default(),
            hides: false,
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

impl Tuning {
    /// What becomes of the lists while it is not connected.
    pub(super) fn on_down(&self) -> OnDown {
        match self.hides {
            true => OnDown::Hide { after: self.on_down_grace },
            false => OnDown::Keep,
        }
    }

    /// Fills in the default that depends on the kind of upstream.
    pub(super) fn limits(&self, over_http: bool) -> Limits {
        Limits {
            concurrency: self.concurrency.unwrap_or(if over_http {
                HTTP_CONCURRENCY
            } else {
                CONCURRENCY
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

/// Whose table it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// `[defaults]`.
    All,
    /// A folder of prompts.
    Library,
    /// A server.
    Server,
}

/// Reads what the table says; the rest is inherited. Nobody speaks to a folder, so what says how a server is
/// spoken to has no place in a library's own table.
pub(super) fn tuning(t: &Table<'_>, inherited: &Tuning, of: Of) -> Tuning {
    let without_effect = |t: &Table<'_>, keys: &[&'static str]| {
        for key in keys.iter().filter(|key| of == Of::Library && t.has(key)) {
            let what = "has no effect on a prompts_dir, which is not spoken to";
            t.object(key, Complaint::new(what, "remove it"));
        }
    };
    without_effect(t, &NOT_FOR_A_LIBRARY);
    let mut tuning = inherited.clone();
    tuning.era = t.read("era", value::choice(&ERAS)).unwrap_or(inherited.era);
    tuning.sharing = t.read("sharing", value::choice(&SHARINGS)).unwrap_or(inherited.sharing);
    tuning.lazy = t.read("lazy", value::boolean).unwrap_or(inherited.lazy);
    tuning.timeouts = t.table("timeouts", |t| {
        without_effect(t, &TIMEOUTS_NOT_FOR_A_LIBRARY);
        if of == Of::Server && !tuning.lazy && t.has("idle") {
            let what = "this upstream is not lazy: one that is kept up is not stopped";
            t.object("idle", Complaint::new(what, "set lazy = true beside timeouts, or remove it"));
        }
        timeouts(t, &inherited.timeouts)
    });
    tuning.retry = t.table("retry", |t| retry(t, &inherited.retry));
    tuning.breaker = t.table("breaker", |t| breaker(t, &inherited.breaker));
    tuning.hides = t.read("on_down", value::choice(&ON_DOWN)).unwrap_or(inherited.hides);
    tuning.on_down_grace =
        t.read("on_down_grace", value::duration).unwrap_or(inherited.on_down_grace);
    t.table("limits", |t| {
        without_effect(t, &LIMITS_NOT_FOR_A_LIBRARY);
        tuning.concurrency = t.read("concurrency", value::count(CALLS)).or(inherited.concurrency);
        tuning.waiting = t.read("waiting", value::count(CALLS)).unwrap_or(inherited.waiting);
        tuning.wait = t.read("wait", value::duration).unwrap_or(inherited.wait);
        tuning.max_message = t.read("max_message", value::size).unwrap_or(inherited.max_message);
        tuning.max_items = t.read("max_items", value::count(ITEMS)).unwrap_or(inherited.max_items);
        tuning.max_pages = t.read("max_pages", value::count(PAGES)).unwrap_or(inherited.max_pages);
        tuning.max_list = t.read("max_list", value::size).unwrap_or(inherited.max_list);
    });
    tuning
}

fn timeouts(t: &Table<'_>, inherited: &Timeouts) -> Timeouts {
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
        object_to_order(t, ["call", "call_max"], timeouts.call_max, Timeouts::default().call_max);
    }
    timeouts
}

/// A server that is stopped at once would be started for each call.
fn idle(value: &Value<'_>) -> Parsed<Duration> {
    let idle = value::duration(value)?;
    match idle < SHORTEST_IDLE {
        true => Err(Complaint::new("this is less than a second", "write at least \"1s\"")),
        false => Ok(idle),
    }
}

fn retry(t: &Table<'_>, inherited: &Retry) -> Retry {
    let retry = Retry {
        backoff: t.read("backoff", value::duration).unwrap_or(inherited.backoff),
        max_backoff: t.read("max_backoff", value::duration).unwrap_or(inherited.max_backoff),
        jitter: t.read("jitter", value::boolean).unwrap_or(inherited.jitter),
    };
    if retry.backoff > retry.max_backoff {
        let default = Retry::default().max_backoff;
        object_to_order(t, ["backoff", "max_backoff"], retry.max_backoff, default);
    }
    retry
}

fn breaker(t: &Table<'_>, inherited: &Breaker) -> Breaker {
    let failures = t.read("failures", value::count(FAILURES));
    let breaker = Breaker {
        failures: failures.and_then(|it| it.try_into().ok()).unwrap_or(inherited.failures),
        cool_down: t.read("cool_down", value::duration).unwrap_or(inherited.cool_down),
        max_cool_down: t.read("max_cool_down", value::duration).unwrap_or(inherited.max_cool_down),
    };
    if breaker.cool_down > breaker.max_cool_down {
        let default = Breaker::default().max_cool_down;
        object_to_order(t, ["cool_down", "max_cool_down"], breaker.max_cool_down, default);
    }
    breaker
}

/// Objects where the mistake is: where neither is written, both are inherited and the objection stands there.
fn object_to_order(
    t: &Table<'_>,
    [less, more]: [&'static str; 2],
    limit: Duration,
    default: Duration,
) {
    if let Some(key) = [less, more].into_iter().find(|key| t.has(key)) {
        let what = match limit == default {
            true => {
                format!("{less} is longer than {more}, which is {default:?} unless it is written")
            }
            // Not repeated: it may have come out of a variable.
            false => format!("{less} is longer than {more}"),
        };
        t.object(key, Complaint::new(what, format!("shorten {less}, or lengthen {more}")));
    }
}

const SHORTEST_IDLE: Duration = Duration::from_secs(1);

/// Calls in flight towards a process or a library.
pub(super) const CONCURRENCY: usize = 64;
/// Calls in flight towards a server on the network, which usually is many processes.
pub(super) const HTTP_CONCURRENCY: usize = 256;

pub(super) const ERAS: [(&str, EraChoice); 3] =
    [("auto", EraChoice::Auto), ("modern", EraChoice::Modern), ("legacy", EraChoice::Legacy)];

pub(super) const SHARINGS: [(&str, SharingChoice); 2] =
    [("shared", SharingChoice::Shared), ("client", SharingChoice::Client)];

/// Whether the lists are hidden.
pub(super) const ON_DOWN: [(&str, bool); 2] = [("keep", false), ("hide", true)];

pub(super) const FAILURES: RangeInclusive<usize> = 1..=1_000;
pub(super) const CALLS: RangeInclusive<usize> = 1..=100_000;
pub(super) const ITEMS: RangeInclusive<usize> = 1..=1_000_000;
pub(super) const PAGES: RangeInclusive<usize> = 1..=100_000;

/// What says how a server is spoken to.
pub(super) const NOT_FOR_A_LIBRARY: [&str; 4] = ["era", "sharing", "lazy", "breaker"];
pub(super) const TIMEOUTS_NOT_FOR_A_LIBRARY: [&str; 7] =
    ["connect", "startup", "list", "gather", "idle", "stop", "terminate"];
pub(super) const LIMITS_NOT_FOR_A_LIBRARY: [&str; 4] =
    ["max_message", "max_items", "max_pages", "max_list"];
