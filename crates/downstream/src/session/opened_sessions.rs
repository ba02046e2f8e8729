//! Sessions that this process opens: their places, and how many a client may open.
//!
//! Each takes a bit in the records for as long as its id is good, so their number is bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::SessionLimit;
use weir_access::policy::Principal;
use weir_base::tasks::sync::Mutex;
use weir_base::time::rate_limit::RateLimiter;

/// Counts the sessions that this process opens.
#[derive(Default)]
pub(super) struct OpenedSessions {
    /// Sessions that principals have opened of late.
    limiters: Mutex<HashMap<Principal, RateLimiter>>,
    /// Place of the next session.
    next: AtomicU64,
}

impl OpenedSessions {
    /// Returns the place of a session that a principal opens now.
    pub(super) fn open(&self, principal: &Principal) -> Result<u64, SessionLimit> {
        let now = Instant::now();
        let mut limiters = self.limiters.lock();
        if limiters.len() >= MAX_COUNTED {
            limiters.retain(|client, limiter| limiter.remaining(now) < at_once(client));
        }
        let limiter = limiters.entry(principal.clone()).or_insert_with(|| {
            let per_second = principal.share(OPENED_PER_SECOND) as u32;
            RateLimiter::new(per_second, at_once(principal), now)
        });
        limiter.admit(now).then_some(()).ok_or(SessionLimit)?;
        Ok(self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// Most sessions that a principal opens at once.
fn at_once(principal: &Principal) -> u32 {
    principal.share(OPENED_AT_ONCE) as u32
}

/// Most sessions that a client opens at once, and per second after that: the installation keeps
/// three megabits for it in 30 days. A thousand users of one key open fewer.
const OPENED_AT_ONCE: usize = 10_000;
const OPENED_PER_SECOND: usize = 1;
/// Number of clients from which on those are forgotten that may open as many as ever.
const MAX_COUNTED: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_opens_so_many_sessions_at_once_and_one_per_second_after_that() {
        let sessions = OpenedSessions::default();
        let [ann, bob] = ["ann", "bob"].map(|name| Principal::new(name, "staff"));
        let opened =
            |principal, count| (0..count).filter(|_| sessions.open(principal).is_ok()).count();
        assert_eq!(opened(&ann, 10_100), 10_000);
        assert_eq!(opened(&bob, 100), 100, "another client");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(opened(&ann, 100), 3);
        assert_eq!(sessions.open(&bob), Ok(10_103), "places of all clients follow each other");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_may_open_as_many_sessions_as_ever_take_no_memory() {
        let sessions = OpenedSessions::default();
        for number in 0..3 * MAX_COUNTED {
            let client = Principal::new(number.to_string(), "staff");
            assert!(sessions.open(&client).is_ok());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(sessions.limiters.lock().len() <= MAX_COUNTED);
    }
}
