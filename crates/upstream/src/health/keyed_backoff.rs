//! Retry back-off per key.
//!
//! During a pause an attempt is rejected at once with the reason of the last failure: an attempt
//! may mean starting a process.
//!
//! Invariants: the pauses of a key double up to a maximum, and start anew after a success or after
//! a period without attempts. At most [`MAX_KEYS`] keys are remembered; beyond that the one whose
//! pause ends first is forgotten.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use crate::RetrySettings;
use weir_base::tasks::sync::Mutex;
use weir_base::time::backoff::Backoff;

/// Maximum remembered keys.
const MAX_KEYS: usize = 256;
/// Time without attempts after which a key's back-off starts anew: the lifetime after which a
/// connection counts as stable.
const RESET_AFTER: Duration = Duration::from_secs(30);

/// Back-off state of failed keys.
pub(crate) struct KeyedBackoff<K> {
    retry: RetrySettings,
    table: Mutex<HashMap<K, Pause>>,
}

struct Pause {
    backoff: Backoff,
    until: Instant,
    reason: String,
}

impl<K: Eq + Hash + Clone> KeyedBackoff<K> {
    /// Creates an empty table.
    pub(crate) fn new(retry: RetrySettings) -> Self {
        Self { retry, table: Mutex::default() }
    }

    /// Returns an error with the reason if the key is in a pause.
    pub(crate) fn check(&self, key: &K) -> Result<(), String> {
        let table = self.table.lock();
        let pause = table.get(key).filter(|pause| pause.until > Instant::now());
        pause.map_or(Ok(()), |pause| Err(pause.reason.clone()))
    }

    /// Records a failure and begins the next pause.
    pub(crate) fn failed(&self, key: &K, reason: &str) {
        let (mut table, now) = (self.table.lock(), Instant::now());
        if !table.contains_key(key) && table.len() >= MAX_KEYS {
            let first = table.iter().min_by_key(|(_, pause)| pause.until);
            let first = first.map(|(key, _)| key.clone());
            first.map(|first| table.remove(&first));
        }
        let new = || Pause { backoff: self.retry.start(), until: now, reason: String::new() };
        let pause = table.entry(key.clone()).or_insert_with(new);
        if pause.until + RESET_AFTER <= now {
            pause.backoff.reset();
        }
        pause.until = now + pause.backoff.next_pause();
        pause.reason = reason.to_owned();
    }

    /// Records a success.
    pub(crate) fn succeeded(&self, key: &K) {
        self.table.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use crate::health::keyed_backoff::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn what_failed_rests_ever_longer_until_it_works() {
        let retry = RetrySettings { jitter: false, ..RetrySettings::default() };
        let pauses = KeyedBackoff::new(retry);
        let rest = async |key: u32| {
            pauses.failed(&key, "why");
            let since = Instant::now();
            while let Err(reason) = pauses.check(&key) {
                assert_eq!(reason, "why");
                advance(Duration::from_millis(125)).await;
            }
            since.elapsed().as_millis()
        };
        assert_eq!([rest(1).await, rest(1).await, rest(1).await], [250, 500, 1_000]);
        assert_eq!(rest(2).await, 250, "each by itself");
        pauses.succeeded(&1);
        assert_eq!([rest(1).await, rest(1).await], [250, 500]);
        advance(RESET_AFTER).await;
        assert_eq!(rest(1).await, 250);
        (0..2_000).for_each(|key| pauses.failed(&key, ""));
        assert_eq!(pauses.table.lock().len(), MAX_KEYS);
    }
}
