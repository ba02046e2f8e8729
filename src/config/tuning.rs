//! What `[defaults]` and an upstream's own table can both say: era, timeouts, retry, limits.
//!
//! Inheritance is an argument: each reader takes what holds unless the table says otherwise.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::file::Table;
use super::report::Complaint;
use super::value;
use crate::upstream::{Limits, Retry, Timeouts};

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

// === Tuning ===

/// What `[defaults]` and an upstream's own table can both say.
#[derive(Clone)]
pub(super) struct Tuning {
    pub(super) era: EraChoice,
    pub(super) timeouts: Timeouts,
    pub(super) retry: Retry,
    /// Depends on the kind of upstream unless it is written.
    concurrency: Option<usize>,
    pub(super) max_message: usize,
    pub(super) max_items: usize,
    pub(super) max_pages: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            era: EraChoice::Auto,
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            concurrency: None,
            max_message: 8 << 20,
            max_items: 10_000,
            max_pages: 100,
        }
    }
}

impl Tuning {
    /// Fills in the default that depends on the kind of upstream.
    pub(super) fn limits(&self, over_http: bool) -> Limits {
        Limits {
            concurrency: self.concurrency.unwrap_or(if over_http {
                HTTP_CONCURRENCY
            } else {
                CONCURRENCY
            }),
            max_message: self.max_message,
            max_items: self.max_items,
            max_pages: self.max_pages,
        }
    }
}

/// Reads what the table says; the rest is inherited. Nobody speaks to a folder, so what says how a server is
/// spoken to has no place in a library's own table.
pub(super) fn tuning(t: &Table<'_>, inherited: &Tuning, is_library: bool) -> Tuning {
    let without_effect = |t: &Table<'_>, keys: &[&'static str]| {
        for key in keys.iter().filter(|key| is_library && t.has(key)) {
            let what = "has no effect on a prompts_dir, which is not spoken to";
            t.object(key, Complaint::new(what, "remove it"));
        }
    };
    without_effect(t, &NOT_FOR_A_LIBRARY);
    let mut tuning = inherited.clone();
    tuning.era = t.read("era", value::choice(&ERAS)).unwrap_or(inherited.era);
    tuning.timeouts = t.table("timeouts", |t| {
        without_effect(t, &TIMEOUTS_NOT_FOR_A_LIBRARY);
        timeouts(t, &inherited.timeouts)
    });
    tuning.retry = t.table("retry", |t| retry(t, &inherited.retry));
    t.table("limits", |t| {
        without_effect(t, &LIMITS_NOT_FOR_A_LIBRARY);
        tuning.concurrency = t.read("concurrency", value::count(CALLS)).or(inherited.concurrency);
        tuning.max_message = t.read("max_message", value::size).unwrap_or(inherited.max_message);
        tuning.max_items = t.read("max_items", value::count(ITEMS)).unwrap_or(inherited.max_items);
        tuning.max_pages = t.read("max_pages", value::count(PAGES)).unwrap_or(inherited.max_pages);
    });
    tuning
}

fn timeouts(t: &Table<'_>, inherited: &Timeouts) -> Timeouts {
    let timeouts = Timeouts {
        startup: t.read("startup", value::duration).unwrap_or(inherited.startup),
        list: t.read("list", value::duration).unwrap_or(inherited.list),
        call: t.read("call", value::duration).unwrap_or(inherited.call),
        call_max: t.read("call_max", value::duration).unwrap_or(inherited.call_max),
        reset_on_progress: t
            .read("reset_on_progress", value::boolean)
            .unwrap_or(inherited.reset_on_progress),
        gather: t.read("gather", value::duration).unwrap_or(inherited.gather),
    };
    if timeouts.call > timeouts.call_max {
        object_to_order(t, ["call", "call_max"], timeouts.call_max, Timeouts::default().call_max);
    }
    timeouts
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

/// Calls in flight towards a process or a library.
pub(super) const CONCURRENCY: usize = 64;
/// Calls in flight towards a server on the network, which usually is many processes.
pub(super) const HTTP_CONCURRENCY: usize = 256;

pub(super) const ERAS: [(&str, EraChoice); 3] =
    [("auto", EraChoice::Auto), ("modern", EraChoice::Modern), ("legacy", EraChoice::Legacy)];

pub(super) const CALLS: RangeInclusive<usize> = 1..=100_000;
pub(super) const ITEMS: RangeInclusive<usize> = 1..=1_000_000;
pub(super) const PAGES: RangeInclusive<usize> = 1..=100_000;

/// What says how a server is spoken to.
pub(super) const NOT_FOR_A_LIBRARY: [&str; 1] = ["era"];
pub(super) const TIMEOUTS_NOT_FOR_A_LIBRARY: [&str; 3] = ["startup", "list", "gather"];
pub(super) const LIMITS_NOT_FOR_A_LIBRARY: [&str; 3] = ["max_message", "max_items", "max_pages"];
