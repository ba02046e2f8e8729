//! Bound on the sessions that a client takes over from other replicas.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use weir_access::policy::Principal;
use weir_base::tasks::sync::Mutex;

/// Number of sessions that each principal has taken over from other replicas in this second.
pub(super) struct TakeoverLimit(Mutex<(Instant, HashMap<Principal, usize>)>);

impl Default for TakeoverLimit {
    fn default() -> Self {
        Self(Mutex::new((Instant::now(), HashMap::new())))
    }
}

impl TakeoverLimit {
    /// Counts a session that a principal takes over; false if these are too many in this second.
    pub(super) fn may_take_over(&self, principal: &Principal) -> bool {
        let mut taken_over = self.0.lock();
        if taken_over.0.elapsed() >= Duration::from_secs(1) {
            *taken_over = (Instant::now(), HashMap::new());
        }
        let count = taken_over.1.entry(principal.clone()).or_default();
        *count += 1;
        *count <= principal.share(MAX_TAKEN_OVER_PER_SECOND)
    }
}

/// Most sessions that a client takes over from other replicas per second.
const MAX_TAKEN_OVER_PER_SECOND: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_takes_over_so_many_sessions_per_second() {
        let sessions = TakeoverLimit::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Principal::new(name, "staff"));
        let took = |principal| (0..100).filter(|_| sessions.may_take_over(principal)).count();
        assert_eq!((took(&ann), took(&ann), took(&bob)), (64, 0, 64));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(took(&ann), 64);
    }
}
