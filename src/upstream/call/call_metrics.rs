//! Metrics of the calls of one upstream.

use tokio::time::Instant;

use crate::mcp::call::CallOutcome;
use crate::mcp::call::{Method, ResponseOutcome, UpstreamResponse};
use crate::metrics::{Counter, Histogram, HistogramSnapshot};
use crate::upstream::Error;
use crate::upstream::SuspendedCall;
use crate::upstream::health::status_report::CallEnd;

/// Durations and outcomes of one upstream's calls since Weir started.
#[derive(Debug, Default)]
pub struct CallMetrics {
    /// Time until the response or the first input request.
    durations: Histogram,
    ends: [[Counter; CallEnd::ALL.len()]; Method::ALL.len()],
}

/// Recorder of one call. Dropped before its end, it counts a cancelled call.
pub(crate) struct CallRecorder<'c> {
    calls: &'c CallMetrics,
    method: Method,
    began: Instant,
    end: CallEnd,
}

impl CallRecorder<'_> {
    /// Records the outcome: a response, an error or an input request.
    pub(crate) fn end(mut self, outcome: &Result<CallOutcome<SuspendedCall>, Error>) {
        self.end = end_of(outcome);
    }
}

impl Drop for CallRecorder<'_> {
    fn drop(&mut self) {
        self.calls.count(self.method, self.end, self.began);
    }
}

/// Classifies the outcome of a call.
pub fn end_of(outcome: &Result<CallOutcome<SuspendedCall>, Error>) -> CallEnd {
    match outcome {
        Ok(CallOutcome::Response(UpstreamResponse {
            outcome: ResponseOutcome::Error(_), ..
        })) => CallEnd::Error,
        Ok(CallOutcome::Response(_) | CallOutcome::InputRequired(_)) => CallEnd::Result,
        Err(error) => CallEnd::of_failure(error),
    }
}

/// Label of a failure; `None` for a result.
pub fn error_type(end: CallEnd) -> Option<&'static str> {
    (end != CallEnd::Result).then(|| end.as_str())
}

impl CallMetrics {
    /// Starts recording a call.
    pub(crate) fn begin(&self, method: Method) -> CallRecorder<'_> {
        CallRecorder { calls: self, method, began: Instant::now(), end: CallEnd::Cancelled }
    }

    fn count(&self, method: Method, end: CallEnd, began: Instant) {
        self.durations.observe(began.elapsed());
        self.ends[method as usize][end as usize].increment();
    }

    /// Histogram of call durations.
    pub fn durations(&self) -> HistogramSnapshot {
        self.durations.read()
    }

    /// Number of calls per method and outcome; combinations with a count of zero are left out.
    pub fn ends(&self) -> impl Iterator<Item = (Method, CallEnd, u64)> {
        let each = Method::ALL
            .into_iter()
            .flat_map(|method| CallEnd::ALL.into_iter().map(move |end| (method, end)));
        let counted = each
            .map(|(method, end)| (method, end, self.ends[method as usize][end as usize].read()));
        counted.filter(|(.., count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use crate::upstream::call::call_metrics::*;

    #[test]
    fn each_method_and_each_end_has_its_own_place() {
        assert!(Method::ALL.into_iter().enumerate().all(|(at, method)| method as usize == at));
        assert!(CallEnd::ALL.into_iter().enumerate().all(|(at, end)| end as usize == at));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_happened_is_not_told() {
        let meter = CallMetrics::default();
        let began = Instant::now();
        tokio::time::advance(std::time::Duration::from_millis(3)).await;
        meter.count(Method::CallTool, CallEnd::Busy, began);
        meter.count(Method::CallTool, CallEnd::Busy, began);
        assert_eq!(meter.ends().collect::<Vec<_>>(), [(Method::CallTool, CallEnd::Busy, 2)]);
        assert_eq!((meter.durations().count(), meter.durations().sum_micros), (2, 6_000));
    }
}
