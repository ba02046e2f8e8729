//! How much was found at one upstream, and when it was last told.
//!
//! Knows nothing of: what is done about it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Findings;
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;

/// How often one upstream's replies are spoken of; what was found in between is counted.
const PAUSE: Duration = Duration::from_secs(10);

/// What has been found at one upstream since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were refused for their arguments.
    pub arguments: u64,
    /// Definitions with hidden text, once per list that they are new in.
    pub definitions: u64,
    /// Replies that were malformed.
    pub malformed: u64,
    /// Replies with hidden text.
    pub hidden: u64,
    /// Replies in which something was redacted.
    pub redacted: u64,
    /// Those of the replies that were refused.
    pub refused: u64,
}

impl State {
    /// Whether it is time to speak of a reply; then how many were not spoken of since the last time.
    fn may_tell(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + PAUSE) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// The counts of one upstream.
#[derive(Default)]
pub(super) struct Tally {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: Counts,
    /// When a reply was last spoken of.
    told: Option<Instant>,
    /// How many have not been since.
    untold: u64,
    /// Per kind: what was last found in definitions, in short.
    definitions: [u64; 4],
}

impl Tally {
    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    /// Whether something else was found in definitions of this kind than before.
    pub(super) fn is_news(&self, kind: Kind, found: &[String]) -> bool {
        let mut digest = DefaultHasher::new();
        found.hash(&mut digest);
        let digest = if found.is_empty() { 0 } else { digest.finish() };
        std::mem::replace(&mut self.lock().definitions[kind.index()], digest) != digest
    }

    /// Counts what was found in a reply, and tells the operator unless that was done a moment ago.
    pub(super) fn tell(
        &self,
        upstream: &UpstreamName,
        method: Method,
        item: &str,
        found: &Findings,
        refused: bool,
    ) {
        let more = {
            let state = &mut *self.lock();
            let counts = &mut state.counts;
            counts.malformed += u64::from(found.malformed.is_some());
            counts.hidden += u64::from(found.hidden.is_some());
            counts.redacted += u64::from(found.redacted > 0);
            counts.refused += u64::from(refused);
            let Some(more) = state.may_tell(Instant::now()) else { return };
            more
        };
        let (method, item) = (method.as_str(), format!("{item:?}"));
        tracing::warn!(%upstream, method, item, %found, refused, more, "a reply was found wanting");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_spoken_of_once_in_a_while_and_counted_in_between() {
        let (mut state, start) = (State::default(), Instant::now());
        let told: Vec<_> =
            (0..25).map(|second| state.may_tell(start + Duration::from_secs(second))).collect();
        let spoken: Vec<_> =
            told.iter().enumerate().filter_map(|(at, more)| Some((at, (*more)?))).collect();
        assert_eq!(spoken, [(0, 0), (10, 9), (20, 9)]);
    }
}
