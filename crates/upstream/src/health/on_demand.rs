//! On-demand start and idle stop of an upstream.
//!
//! A user of the upstream holds a [`UsageGuard`] from before it looks for the connection until it
//! no longer needs it. The supervisor waits here: for a use while the upstream is stopped, and for
//! the idle timeout while it runs.
//!
//! Invariants: the idle stop happens under the lock under which uses begin. So a use that has begun
//! keeps its connection, and a later one finds none and waits for the next. For an upstream that is
//! never stopped, a use takes no lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::Settings;
use weir_base::tasks::fairness::promptly;
use weir_base::tasks::sync::Mutex;

/// Users of an on-demand upstream.
#[derive(Debug)]
pub(crate) struct OnDemand {
    pub(crate) is_lazy: bool,
    /// Idle timeout after which the process is stopped; `None` means never.
    idle: Option<Duration>,
    table: Mutex<UsageTable>,
    /// Wakes the supervisor.
    changed: Notify,
}

#[derive(Debug)]
struct UsageTable {
    /// Uses that start the upstream and keep it running.
    uses: usize,
    /// Uses that do not start the upstream, but must not lose the connection.
    passive_uses: usize,
    /// A start was requested without a use.
    is_start_requested: bool,
    is_asleep: bool,
    /// End of the last use.
    idle_since: Instant,
}

/// Guard that prevents an idle stop until it is dropped.
#[derive(Debug)]
pub(crate) struct UsageGuard {
    on_demand: Arc<OnDemand>,
    /// Whether this use starts the upstream and restarts the idle time at its end.
    is_active: bool,
}

impl OnDemand {
    /// Creates the state; an on-demand upstream begins stopped.
    pub(crate) fn new(settings: &Settings) -> Arc<Self> {
        let table = UsageTable {
            uses: 0,
            passive_uses: 0,
            is_start_requested: false,
            is_asleep: settings.lazy,
            idle_since: Instant::now(),
        };
        let idle = settings.timeouts.idle.filter(|_| settings.lazy);
        Arc::new(Self {
            is_lazy: settings.lazy,
            idle,
            table: Mutex::new(table),
            changed: Notify::new(),
        })
    }

    // === Users ===

    /// Begins a use and starts a stopped upstream. `None` for an upstream that is never stopped.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<UsageGuard> {
        self.register(true)
    }

    /// Prevents an idle stop without starting the upstream or restarting its idle time.
    pub(crate) fn begin_passive(self: &Arc<Self>) -> Option<UsageGuard> {
        self.register(false)
    }

    /// Requests a start without a use.
    pub(crate) fn request_start(&self) {
        self.table.lock().is_start_requested = true;
        self.changed.notify_one();
    }

    fn register(self: &Arc<Self>, is_active: bool) -> Option<UsageGuard> {
        if !self.is_lazy {
            return None;
        }
        let mut table = self.table.lock();
        match is_active {
            true => table.uses += 1,
            false => table.passive_uses += 1,
        }
        drop(table);
        self.changed.notify_one();
        Some(UsageGuard { on_demand: Arc::clone(self), is_active })
    }

    // === Supervisor ===

    pub(crate) fn is_asleep(&self) -> bool {
        self.table.lock().is_asleep
    }

    /// Waits until a start is needed; from then on the upstream counts as running.
    pub(crate) async fn wait_until_needed(&self) {
        loop {
            {
                let mut table = self.table.lock();
                if table.uses > 0 || table.is_start_requested {
                    table.is_asleep = false;
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Records that the upstream runs: the idle time begins.
    pub(crate) fn mark_started(&self) {
        if self.is_lazy {
            let mut table = self.table.lock();
            (table.is_start_requested, table.idle_since) = (false, Instant::now());
        }
    }

    /// Waits until the upstream has been idle for its idle timeout; for ever if it has none.
    pub(crate) async fn wait_until_idle(&self) {
        let Some(idle) = self.idle else { return std::future::pending().await };
        loop {
            let end = {
                let table = self.table.lock();
                table.is_unused().then(|| table.idle_since + idle)
            };
            match end {
                Some(end) if end <= Instant::now() => return,
                Some(end) => tokio::select! {
                    biased;
                    () = promptly(sleep_until(end)) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// Stops the upstream if it has been idle for its idle timeout at this moment.
    /// `hide_connection` runs while no use can begin.
    pub(crate) fn stop_if_idle(&self, hide_connection: impl FnOnce()) -> bool {
        let mut table = self.table.lock();
        let is_over = self.idle.is_some_and(|idle| table.idle_since.elapsed() >= idle);
        if !is_over || !table.is_unused() {
            return false;
        }
        table.is_asleep = true;
        hide_connection();
        true
    }
}

impl UsageTable {
    fn is_unused(&self) -> bool {
        self.uses == 0 && self.passive_uses == 0
    }
}

impl Drop for UsageGuard {
    fn drop(&mut self) {
        let mut table = self.on_demand.table.lock();
        if self.is_active {
            table.uses -= 1;
            table.idle_since = Instant::now();
        } else {
            table.passive_uses -= 1;
        }
        drop(table);
        self.on_demand.changed.notify_one();
    }
}
