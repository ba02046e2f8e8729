//! How the calls of one upstream went, counted.
//!
//! Knows nothing of: who asks for the numbers, and what a call is about.

use tokio::time::Instant;

use crate::mcp::call::{Method, Outcome, Reply};
use crate::metrics::{Counter, Durations, Histogram};
use crate::upstream::health::status_report::CallEnd;
use crate::upstream::{Called, Error};

/// What the calls of one upstream came to, since it was started.
#[derive(Debug, Default)]
pub struct Calls {
    /// How long they took until there was a reply, or a question.
    durations: Histogram,
    ends: [[Counter; CallEnd::ALL.len()]; Method::ALL.len()],
}

/// A call that is being counted. Dropped before its end, it was cancelled.
pub(crate) struct Counting<'c> {
    calls: &'c Calls,
    method: Method,
    began: Instant,
    end: CallEnd,
}

impl Counting<'_> {
    /// The call is over, or its upstream asks something.
    pub(crate) fn end(mut self, called: &Result<Called, Error>) {
        self.end = end_of(called);
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.calls.count(self.method, self.end, self.began);
    }
}

/// How a call went.
pub fn end_of(called: &Result<Called, Error>) -> CallEnd {
    match called {
        Ok(Called::Replied(Reply { outcome: Outcome::Error(_), .. })) => CallEnd::Error,
        Ok(Called::Replied(_) | Called::Asks(_)) => CallEnd::Result,
        Err(error) => CallEnd::of_failure(error),
    }
}

/// What kind of failure an end is, in one word; `None` if it is none.
pub fn error_type(end: CallEnd) -> Option<&'static str> {
    (end != CallEnd::Result).then(|| end.as_str())
}

impl Calls {
    /// Begins to count a call.
    pub(crate) fn begin(&self, method: Method) -> Counting<'_> {
        Counting { calls: self, method, began: Instant::now(), end: CallEnd::Cancelled }
    }

    fn count(&self, method: Method, end: CallEnd, began: Instant) {
        self.durations.observe(began.elapsed());
        self.ends[method as usize][end as usize].count();
    }

    /// How long calls took.
    pub fn durations(&self) -> Durations {
        self.durations.read()
    }

    /// How often calls ended in which way; only what has happened.
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
        let meter = Calls::default();
        let began = Instant::now();
        tokio::time::advance(std::time::Duration::from_millis(3)).await;
        meter.count(Method::CallTool, CallEnd::Busy, began);
        meter.count(Method::CallTool, CallEnd::Busy, began);
        assert_eq!(meter.ends().collect::<Vec<_>>(), [(Method::CallTool, CallEnd::Busy, 2)]);
        assert_eq!((meter.durations().count(), meter.durations().micros), (2, 6_000));
    }
}
