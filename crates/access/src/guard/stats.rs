//! Statistics of the findings at one upstream, and the rate limit of their log lines.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use super::Findings;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::Method;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// Interval of log lines about one upstream's responses; findings in between are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Counters of the findings at one upstream since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FindingCounts {
    /// Requests refused because of their arguments.
    pub arguments: u64,
    /// Definitions with findings, counted once per list that they are new in.
    pub definitions: u64,
    /// Malformed responses.
    pub malformed: u64,
    /// Responses with invisible text.
    pub hidden: u64,
    /// Responses with redacted text.
    pub redacted: u64,
    /// Responses that were refused.
    pub refused: u64,
}

impl State {
    /// Returns the number of findings that were not logged since the last line, if another line is
    /// due.
    fn may_log(&mut self, now: Instant) -> Option<u64> {
        if self.last_logged.is_some_and(|last_logged| now < last_logged + LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.last_logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Statistics of one upstream.
#[derive(Default)]
pub(super) struct FindingStats {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: FindingCounts,
    /// Time of the last log line about a response.
    last_logged: Option<Instant>,
    /// Number of findings since then.
    unlogged: u64,
    /// Digest of the last findings in definitions, per kind.
    definitions: [u64; 4],
}

impl FindingStats {
    pub(super) fn counts(&self) -> FindingCounts {
        self.state.lock().counts
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut FindingCounts)) {
        count(&mut self.state.lock().counts);
    }

    /// Returns whether the findings in definitions of this kind differ from the previous ones.
    pub(super) fn is_new(&self, kind: Kind, found: &[String]) -> bool {
        let mut digest = DefaultHasher::new();
        found.hash(&mut digest);
        let digest = if found.is_empty() { 0 } else { digest.finish() };
        std::mem::replace(&mut self.state.lock().definitions[kind.index()], digest) != digest
    }

    /// Counts the findings in a response, and logs them if a log line is due.
    pub(super) fn report(
        &self,
        upstream: &UpstreamName,
        method: Method,
        item: &str,
        found: &Findings,
        refused: bool,
    ) {
        let more = {
            let state = &mut *self.state.lock();
            let counts = &mut state.counts;
            counts.malformed += u64::from(found.malformed.is_some());
            counts.hidden += u64::from(found.hidden.is_some());
            counts.redacted += u64::from(found.redacted > 0);
            counts.refused += u64::from(refused);
            let Some(more) = state.may_log(Instant::now()) else { return };
            more
        };
        let (method, item) = (method.as_str(), format!("{item:?}"));
        tracing::warn!(
            %upstream, method, item, %found, refused, more,
            "response failed a content check"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_spoken_of_once_in_a_while_and_counted_in_between() {
        let (mut state, start) = (State::default(), Instant::now());
        let last_logged: Vec<_> =
            (0..25).map(|second| state.may_log(start + Duration::from_secs(second))).collect();
        let spoken: Vec<_> =
            last_logged.iter().enumerate().filter_map(|(at, more)| Some((at, (*more)?))).collect();
        assert_eq!(spoken, [(0, 0), (10, 9), (20, 9)]);
    }
}
