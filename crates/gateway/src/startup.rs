//! Startup barrier: the first list requests wait for upstreams of which no list is known yet, and
//! so does a request for an item that is not there yet. Nothing else waits.
//!
//! Many clients list once and ignore `list_changed`; without the wait, a client that connects right
//! after the start would see empty lists for its whole life. An upstream that takes longer does not
//! delay requests: the wait is limited from the start of the program, not from the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use weir_mcp::name::UpstreamName;

/// Set of upstreams that have neither been listed nor failed yet.
#[derive(Debug)]
pub(super) struct StartupBarrier {
    pending: watch::Sender<Vec<UpstreamName>>,
    started_at: Instant,
    /// True if requests wait without a time limit of their own.
    is_patient: AtomicBool,
}

/// Guard of one pending upstream; when it is dropped, the barrier no longer waits for the upstream.
#[derive(Debug)]
pub(super) struct PendingUpstream {
    name: UpstreamName,
    pending: watch::Sender<Vec<UpstreamName>>,
}

impl StartupBarrier {
    /// Creates a barrier without upstreams.
    pub(super) fn new() -> Self {
        let (pending, started_at) = (watch::Sender::default(), Instant::now());
        Self { pending, started_at, is_patient: AtomicBool::new(false) }
    }

    /// Has requests wait until no upstream is pending, however long that takes.
    pub(super) fn set_patient(&self) {
        self.is_patient.store(true, Ordering::Relaxed);
    }

    /// Adds an upstream until the returned guard is dropped.
    pub(super) fn add(&self, name: &UpstreamName) -> PendingUpstream {
        self.pending.send_modify(|pending| pending.push(name.clone()));
        PendingUpstream { name: name.clone(), pending: self.pending.clone() }
    }

    /// Waits until no upstream is pending, at most until this time after the start.
    pub(super) async fn wait_for_startup(&self, list_wait: Duration) {
        if self.is_patient.load(Ordering::Relaxed) {
            return self.wait_for_all().await;
        }
        if !self.pending.borrow().is_empty() {
            // A timeout is acceptable: the list is then partial and says so.
            let deadline = self.started_at + list_wait;
            let _ = tokio::time::timeout_at(deadline, self.wait_for_all()).await;
        }
    }

    /// Waits until no upstream is pending.
    pub(super) async fn wait_for_all(&self) {
        let mut pending = self.pending.subscribe();
        // Cannot fail because `self` owns a sender.
        let _ = pending.wait_for(Vec::is_empty).await;
    }

    /// The pending upstreams.
    pub(super) fn pending(&self) -> Vec<UpstreamName> {
        self.pending.borrow().clone()
    }
}

impl Drop for PendingUpstream {
    fn drop(&mut self) {
        self.pending.send_modify(|pending| pending.retain(|name| *name != self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(3);

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_for_the_last_upstream_but_no_longer_than_a_moment() {
        let start = Instant::now();
        let startup = StartupBarrier::new();
        let [one, other] = ["one", "other"].map(|name| startup.add(&name.parse().expect(name)));
        drop(one);
        assert_eq!(startup.pending(), ["other".parse().expect("a name")]);
        startup.wait_for_startup(WAIT).await;
        assert_eq!(start.elapsed(), WAIT);
        startup.wait_for_startup(WAIT).await;
        assert_eq!(start.elapsed(), WAIT);
        startup.set_patient();
        let long = tokio::time::timeout(10 * WAIT, startup.wait_for_startup(WAIT));
        assert!(long.await.is_err());
        drop(other);
        startup.wait_for_startup(WAIT).await;
        startup.wait_for_all().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_once_all_have_settled() {
        let start = Instant::now();
        let startup = StartupBarrier::new();
        drop(startup.add(&"one".parse().expect("a name")));
        startup.wait_for_startup(WAIT).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
