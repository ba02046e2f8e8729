//! Whether an upstream that is started on first use is wanted at the moment.
//!
//! Whoever uses it holds a [`Use`], from before it looks for the connection until it needs it no more. The
//! supervisor waits here, for somebody who wants it while it sleeps, and for nobody while it is up.
//!
//! Promises: it falls asleep under the same lock under which uses begin. So a use that has begun keeps its
//! connection, and one that begins later finds none and waits for the next. One that is never stopped costs a use
//! no lock.
//!
//! Knows nothing of: how it is started and stopped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::fairness::promptly;
use crate::upstream::Settings;

/// Who wants an upstream.
#[derive(Debug)]
pub(crate) struct Demand {
    is_lazy: bool,
    /// How long nobody has wanted it until it is stopped, if it is.
    idle: Option<Duration>,
    table: Mutex<Table>,
    /// Wakes the supervisor.
    moved: Notify,
}

#[derive(Debug)]
struct Table {
    /// Those who want it.
    uses: usize,
    /// Those who do not want it, but must not lose it now.
    holds: usize,
    /// It is to be started for another reason.
    is_summoned: bool,
    is_asleep: bool,
    /// When the last of those who wanted it had done.
    idle_since: Instant,
}

/// The right to a connection that is not closed because nobody uses it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Use {
    demand: Arc<Demand>,
    /// Whether the upstream is started for it, and the idle time begins anew with its end.
    counts: bool,
}

impl Demand {
    /// One that is lazy sleeps until it is wanted.
    pub(crate) fn new(settings: &Settings) -> Arc<Self> {
        let table = Table {
            uses: 0,
            holds: 0,
            is_summoned: false,
            is_asleep: settings.lazy,
            idle_since: Instant::now(),
        };
        let idle = settings.timeouts.idle.filter(|_| settings.lazy);
        Arc::new(Self {
            is_lazy: settings.lazy,
            idle,
            table: Mutex::new(table),
            moved: Notify::new(),
        })
    }

    pub(crate) fn is_lazy(&self) -> bool {
        self.is_lazy
    }

    // === Those who use it ===

    /// Begins to use it, and has it started if it sleeps. `None` where it never does.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Use> {
        self.enter(true)
    }

    /// The same for whoever neither starts it nor keeps it up for longer than this takes.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<Use> {
        self.enter(false)
    }

    /// Has it started if it sleeps, for nobody.
    pub(crate) fn summon(&self) {
        self.lock().is_summoned = true;
        self.moved.notify_one();
    }

    fn enter(self: &Arc<Self>, counts: bool) -> Option<Use> {
        if !self.is_lazy {
            return None;
        }
        let mut table = self.lock();
        match counts {
            true => table.uses += 1,
            false => table.holds += 1,
        }
        drop(table);
        self.moved.notify_one();
        Some(Use { demand: Arc::clone(self), counts })
    }

    // === The supervisor ===

    pub(crate) fn is_asleep(&self) -> bool {
        self.lock().is_asleep
    }

    /// Waits until somebody wants it; from then on it does not sleep.
    pub(crate) async fn wanted(&self) {
        loop {
            {
                let mut table = self.lock();
                if table.uses > 0 || table.is_summoned {
                    table.is_asleep = false;
                    return;
                }
            }
            self.moved.notified().await;
        }
    }

    /// It is up: the idle time begins.
    pub(crate) fn met(&self) {
        if self.is_lazy {
            let mut table = self.lock();
            (table.is_summoned, table.idle_since) = (false, Instant::now());
        }
    }

    /// Waits until nobody has used it for its idle time. Never ends where it has none.
    pub(crate) async fn idle(&self) {
        let Some(idle) = self.idle else { return std::future::pending().await };
        loop {
            let end = {
                let table = self.lock();
                table.is_free().then(|| table.idle_since + idle)
            };
            match end {
                Some(end) if end <= Instant::now() => return,
                Some(end) => tokio::select! {
                    biased;
                    () = promptly(sleep_until(end)) => {}
                    () = self.moved.notified() => {}
                },
                None => self.moved.notified().await,
            }
        }
    }

    /// Lets it fall asleep if nobody has used it for its idle time, even now; `take_down` is what hides its
    /// connection, and runs while no use can begin.
    pub(crate) fn fall_asleep(&self, take_down: impl FnOnce()) -> bool {
        let mut table = self.lock();
        let is_over = self.idle.is_some_and(|idle| table.idle_since.elapsed() >= idle);
        if !is_over || !table.is_free() {
            return false;
        }
        table.is_asleep = true;
        take_down();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn is_free(&self) -> bool {
        self.uses == 0 && self.holds == 0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut table = self.demand.lock();
        if self.counts {
            table.uses -= 1;
            table.idle_since = Instant::now();
        } else {
            table.holds -= 1;
        }
        drop(table);
        self.demand.moved.notify_one();
    }
}
