//! The first list waits a moment for upstreams that are still starting.
//!
//! Many clients list once and ignore `list_changed`; without the wait, one that comes right after the
//! start would see nothing for as long as it lives. An upstream that takes longer delays nobody: the
//! moment is counted from the start of the program, not from the request.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long after the start lists wait for upstreams.
const PATIENCE: Duration = Duration::from_secs(2);

/// Knows how many upstreams have neither been listed nor failed yet.
#[derive(Debug)]
pub(super) struct FirstList {
    unsettled: watch::Sender<usize>,
    until: Instant,
}

/// One upstream's part in it; dropped or settled, it is not waited for any more.
#[derive(Debug)]
pub(super) struct Unsettled {
    unsettled: watch::Sender<usize>,
}

impl FirstList {
    /// Waits for `upstreams` of them.
    pub(super) fn new(upstreams: usize) -> Self {
        Self { unsettled: watch::Sender::new(upstreams), until: Instant::now() + PATIENCE }
    }

    /// The part of one upstream; to be taken once for each.
    pub(super) fn one_of_them(&self) -> Unsettled {
        Unsettled { unsettled: self.unsettled.clone() }
    }

    /// Waits until every upstream has settled, but not past the first moment.
    pub(super) async fn soon(&self) {
        if *self.unsettled.borrow() > 0 {
            // Too late is fine: then the list is partial and says so.
            let _ = tokio::time::timeout_at(self.until, self.all()).await;
        }
    }

    /// Waits until every upstream has settled.
    pub(super) async fn all(&self) {
        let mut unsettled = self.unsettled.subscribe();
        // Cannot fail: `self` holds a sender.
        let _ = unsettled.wait_for(|count| *count == 0).await;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.unsettled.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_for_the_last_upstream_but_no_longer_than_a_moment() {
        let start = Instant::now();
        let first_list = FirstList::new(2);
        let (one, other) = (first_list.one_of_them(), first_list.one_of_them());
        drop(one);
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
        let first_list = FirstList::new(1);
        drop(first_list.one_of_them());
        first_list.soon().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
