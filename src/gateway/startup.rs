//! The first list waits a moment for upstreams that are still starting.
//!
//! Many clients list once and ignore `list_changed`; without the wait, one that comes right after the
//! start would see nothing for as long as it lives. An upstream that takes longer delays nobody: the
//! moment is counted from the start of the program, not from the request.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::mcp::name::UpstreamName;

/// How long after the start lists wait for upstreams.
const PATIENCE: Duration = Duration::from_secs(2);

/// Knows which upstreams have neither been listed nor failed yet.
#[derive(Debug)]
pub(super) struct FirstList {
    unsettled: watch::Sender<Vec<UpstreamName>>,
    until: Instant,
}

/// One upstream's part in it; dropped or settled, it is not waited for any more.
#[derive(Debug)]
pub(super) struct Unsettled {
    name: UpstreamName,
    unsettled: watch::Sender<Vec<UpstreamName>>,
}

impl FirstList {
    /// Waits for nobody yet.
    pub(super) fn new() -> Self {
        Self { unsettled: watch::Sender::default(), until: Instant::now() + PATIENCE }
    }

    /// Waits for this one, too, as long as its part is held.
    pub(super) fn wait_for(&self, name: &UpstreamName) -> Unsettled {
        self.unsettled.send_modify(|unsettled| unsettled.push(name.clone()));
        Unsettled { name: name.clone(), unsettled: self.unsettled.clone() }
    }

    /// Waits until every upstream has settled, but not past the first moment.
    pub(super) async fn soon(&self) {
        if !self.unsettled.borrow().is_empty() {
            // Too late is fine: then the list is partial and says so.
            let _ = tokio::time::timeout_at(self.until, self.all()).await;
        }
    }

    /// Waits until every upstream has settled.
    pub(super) async fn all(&self) {
        let mut unsettled = self.unsettled.subscribe();
        // Cannot fail: `self` holds a sender.
        let _ = unsettled.wait_for(Vec::is_empty).await;
    }

    /// Who is waited for.
    pub(super) fn unsettled(&self) -> Vec<UpstreamName> {
        self.unsettled.borrow().clone()
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.unsettled.send_modify(|unsettled| unsettled.retain(|name| *name != self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_for_the_last_upstream_but_no_longer_than_a_moment() {
        let start = Instant::now();
        let first_list = FirstList::new();
        let [one, other] =
            ["one", "other"].map(|name| first_list.wait_for(&name.parse().expect(name)));
        drop(one);
        assert_eq!(first_list.unsettled(), ["other".parse().expect("a name")]);
        first_list.soon().await;
        assert_eq!(start.elapsed(), PATIENCE);
        first_list.soon().await;
        assert_eq!(start.elapsed(), PATIENCE);
        drop(other);
        first_list.all().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_once_all_have_settled() {
        let start = Instant::now();
        let first_list = FirstList::new();
        drop(first_list.wait_for(&"one".parse().expect("a name")));
        first_list.soon().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
