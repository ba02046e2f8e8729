//! Metrics of calls: of one upstream, and of all of them together.

use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;

use crate::Error;
use weir_base::metrics::{Counter, Histogram, labeled};
use weir_mcp::call::{CallOutcome, Method, ResponseOutcome, UpstreamResponse};

/// Durations and outcomes of one upstream's calls since Weir started.
#[derive(Debug, Default)]
pub struct CallMetrics {
    /// Time until the response or the first input request.
    durations: Histogram,
    ends: [[Counter; CallEnd::ALL.len()]; Method::ALL.len()],
}

/// Durations of the calls to all upstreams since Weir started, also of those that exist no more.
#[derive(Debug, Default)]
pub struct CallDurations(Box<[[Histogram; CallEnd::ALL.len()]; Method::ALL.len()]>);

/// Recorder of one call. Dropped before its end, it counts a cancelled call.
pub(crate) struct CallRecorder<'c> {
    calls: &'c CallMetrics,
    all: &'c CallDurations,
    method: Method,
    began: Instant,
    end: CallEnd,
}

impl CallRecorder<'_> {
    /// Records the outcome: a response, an error or an input request.
    pub(crate) fn end<S>(mut self, outcome: &Result<CallOutcome<S>, Error>) {
        self.end = CallEnd::of(outcome);
    }
}

impl Drop for CallRecorder<'_> {
    fn drop(&mut self) {
        let (took, at) = (self.began.elapsed(), (self.method as usize, self.end as usize));
        self.calls.durations.observe(took);
        self.calls.ends[at.0][at.1].increment();
        self.all.0[at.0][at.1].observe(took);
    }
}

impl CallMetrics {
    /// Starts recording a call, here and in the metrics of all upstreams.
    pub(crate) fn begin<'c>(&'c self, all: &'c CallDurations, method: Method) -> CallRecorder<'c> {
        let (began, end) = (Instant::now(), CallEnd::Cancelled);
        CallRecorder { calls: self, all, method, began, end }
    }

    /// Histogram of call durations.
    pub fn durations(&self) -> &Histogram {
        &self.durations
    }

    /// Number of calls per method and outcome; combinations with a count of zero are left out.
    pub fn ends(&self) -> impl Iterator<Item = (Method, CallEnd, u64)> {
        let cells = labeled(Method::ALL, CallEnd::ALL, &self.ends);
        let counts = cells.map(|(method, end, cell)| (method, end, cell.read()));
        counts.filter(|(.., count)| *count > 0)
    }
}

impl CallDurations {
    /// Durations per method and error type, without empty histograms.
    pub fn series(&self) -> impl Iterator<Item = (Method, Option<&'static str>, &Histogram)> {
        let cells = labeled(Method::ALL, CallEnd::ALL, &*self.0);
        let series = cells.map(|(method, end, cell)| (method, end.error_type(), cell));
        series.filter(|(.., cell)| cell.count() > 0)
    }
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum CallEnd {
    /// The server returned a result.
    Result,
    /// The server returned a JSON-RPC error.
    Error,
    /// Not sent: there is no connection, or the circuit breaker is open.
    Unavailable,
    /// Not sent: too many calls are in flight.
    Busy,
    /// The connection was lost.
    #[strum(serialize = "broke")]
    ConnectionLost,
    /// The server responded with an HTTP error status.
    HttpStatus,
    /// Timed out.
    TimedOut,
    /// The response cannot be forwarded: it is too large, or violates the protocol.
    #[strum(serialize = "unfit")]
    Unusable,
    /// Cancelled by the client.
    Cancelled,
}

impl CallEnd {
    /// Each of them.
    pub(crate) const ALL: [Self; Self::VARIANTS.len()] =
        *Self::VARIANTS.as_array().expect("the length is its own");

    /// Classifies the outcome of a call.
    fn of<S>(outcome: &Result<CallOutcome<S>, Error>) -> Self {
        match outcome {
            Ok(CallOutcome::Response(UpstreamResponse {
                outcome: ResponseOutcome::Error(_),
                ..
            })) => Self::Error,
            Ok(CallOutcome::Response(_) | CallOutcome::InputRequired(_)) => Self::Result,
            Err(error) => match error {
                Error::Unavailable(_) | Error::SignInNeeded(_) | Error::NoSuchTask => {
                    Self::Unavailable
                }
                Error::Busy { .. } => Self::Busy,
                Error::ConnectionLost(_) => Self::ConnectionLost,
                Error::HttpStatus { .. } => Self::HttpStatus,
                Error::TimedOut(_) => Self::TimedOut,
                Error::TooLarge(_)
                | Error::MemoryExhausted
                | Error::UndeclaredFeature(_)
                | Error::TooManyInputRequests
                | Error::Protocol(_) => Self::Unusable,
            },
        }
    }

    /// Label `error_type` of the outcome in metrics; `None` for a result.
    pub fn error_type(self) -> Option<&'static str> {
        (self != Self::Result).then(|| self.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_and_each_end_has_its_own_place() {
        assert!(Method::ALL.into_iter().enumerate().all(|(at, method)| method as usize == at));
        assert!(CallEnd::ALL.into_iter().enumerate().all(|(at, end)| end as usize == at));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_happened_is_not_told() {
        let (meter, all) = (CallMetrics::default(), CallDurations::default());
        for _ in 0..2 {
            let recorder = meter.begin(&all, Method::CallTool);
            tokio::time::advance(std::time::Duration::from_millis(3)).await;
            recorder.end::<()>(&Err(Error::Busy { retry_after: std::time::Duration::ZERO }));
        }
        assert_eq!(meter.ends().collect::<Vec<_>>(), [(Method::CallTool, CallEnd::Busy, 2)]);
        assert_eq!((meter.durations().count(), meter.durations().sum_micros()), (2, 6_000));
        let series = all.series().map(|(method, error, took)| (method, error, took.count()));
        assert_eq!(series.collect::<Vec<_>>(), [(Method::CallTool, Some("busy"), 2)]);
    }
}
