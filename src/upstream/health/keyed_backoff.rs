//! Pauses before what has failed is tried again, by what it was.
//!
//! Who comes in a pause is told at once why there is one, instead of trying it again: what fails may be a process
//! that has to be started each time.
//!
//! Promises: the pauses of each double up to a longest one, and begin anew once it has worked, or nobody has
//! tried it for a good while. No more than [`MAX_PAUSES`] are remembered; beyond that the one that is over first
//! is forgotten.
//!
//! Knows nothing of: what is tried.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::upstream::Retry;
use crate::upstream::health::backoff::Backoff;

/// How many are remembered.
const MAX_PAUSES: usize = 256;
/// What nobody has tried for this long begins anew: as long as a connection has to live to be a good one.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// What has failed, and until when it rests.
pub(crate) struct Pauses<K> {
    retry: Retry,
    table: Mutex<HashMap<K, Pause>>,
}

struct Pause {
    backoff: Backoff,
    until: Instant,
    reason: String,
}

impl<K: Eq + Hash + Clone> Pauses<K> {
    /// Nothing has failed yet.
    pub(crate) fn new(retry: Retry) -> Self {
        Self { retry, table: Mutex::default() }
    }

    /// Tells why this must not be tried now; `Ok` if it may.
    pub(crate) fn check(&self, what: &K) -> Result<(), String> {
        let table = self.lock();
        let pause = table.get(what).filter(|pause| pause.until > Instant::now());
        pause.map_or(Ok(()), |pause| Err(pause.reason.clone()))
    }

    /// It failed: the next pause begins.
    pub(crate) fn failed(&self, what: &K, reason: &str) {
        let (mut table, now) = (self.lock(), Instant::now());
        if !table.contains_key(what) && table.len() >= MAX_PAUSES {
            let first = table.iter().min_by_key(|(_, pause)| pause.until);
            let first = first.map(|(what, _)| what.clone());
            first.map(|first| table.remove(&first));
        }
        let new =
            || Pause { backoff: Backoff::new(&self.retry), until: now, reason: String::new() };
        let pause = table.entry(what.clone()).or_insert_with(new);
        if pause.until + FORGOTTEN <= now {
            pause.backoff.reset();
        }
        pause.until = now + pause.backoff.next();
        pause.reason = reason.to_owned();
    }

    /// It works again.
    pub(crate) fn worked(&self, what: &K) {
        self.lock().remove(what);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Pause>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::health::keyed_backoff::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn what_failed_rests_ever_longer_until_it_works() {
        let retry = Retry { jitter: false, ..Retry::default() };
        let pauses = Pauses::new(retry);
        let rest = async |what: u32| {
            pauses.failed(&what, "why");
            let since = Instant::now();
            while let Err(reason) = pauses.check(&what) {
                assert_eq!(reason, "why");
                advance(Duration::from_millis(125)).await;
            }
            since.elapsed().as_millis()
        };
        assert_eq!([rest(1).await, rest(1).await, rest(1).await], [250, 500, 1_000]);
        assert_eq!(rest(2).await, 250, "each by itself");
        pauses.worked(&1);
        assert_eq!([rest(1).await, rest(1).await], [250, 500]);
        advance(FORGOTTEN).await;
        assert_eq!(rest(1).await, 250);
        (0..2_000).for_each(|what| pauses.failed(&what, ""));
        assert_eq!(pauses.lock().len(), MAX_PAUSES);
    }
}
