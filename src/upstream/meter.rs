//! How the calls of one upstream went, counted.
//!
//! Knows nothing of: who asks for the numbers, and what a call is about.

use tokio::time::Instant;

use super::{Called, Error};
use crate::mcp::call::{Method, Outcome, Reply};
use crate::meter::{Counter, Durations, Histogram};

/// What the calls of one upstream came to, since it was started.
#[derive(Debug, Default)]
pub struct Meter {
    /// How long they took until there was a reply, or a question.
    durations: Histogram,
    ends: [[Counter; Fate::ALL.len()]; Method::ALL.len()],
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// With a result, or with a question to its client.
    Good,
    /// With an error object of the upstream's own.
    Refused,
    /// The upstream was not there.
    Unavailable,
    /// Too many calls were under way.
    Busy,
    /// The connection broke.
    Broke,
    /// There was no reply in time.
    TimedOut,
    /// The reply was too large.
    TooLarge,
    /// The upstream asked for what its client cannot be asked for.
    Undeclared,
    /// The upstream broke the protocol.
    Protocol,
    /// Nobody waited any more.
    Cancelled,
}

impl Fate {
    /// All there are.
    pub const ALL: [Self; 10] = [
        Self::Good,
        Self::Refused,
        Self::Unavailable,
        Self::Busy,
        Self::Broke,
        Self::TimedOut,
        Self::TooLarge,
        Self::Undeclared,
        Self::Protocol,
        Self::Cancelled,
    ];

    /// What kind of failure it is, in one word; `None` if it is none.
    pub fn error_type(self) -> Option<&'static str> {
        match self {
            Self::Good => None,
            Self::Refused => Some("jsonrpc_error"),
            Self::Unavailable => Some("unavailable"),
            Self::Busy => Some("busy"),
            Self::Broke => Some("connection_broke"),
            Self::TimedOut => Some("timeout"),
            Self::TooLarge => Some("too_large"),
            Self::Undeclared => Some("undeclared"),
            Self::Protocol => Some("protocol_error"),
            Self::Cancelled => Some("cancelled"),
        }
    }

    /// How this went.
    pub fn of(called: &Result<Called, Error>) -> Self {
        match called {
            Ok(Called::Replied(Reply { outcome: Outcome::Error(_), .. })) => Self::Refused,
            Ok(Called::Replied(_) | Called::Asks(_)) => Self::Good,
            Err(Error::Unavailable(_)) => Self::Unavailable,
            Err(Error::Busy { .. }) => Self::Busy,
            Err(Error::Broke(_)) => Self::Broke,
            Err(Error::TimedOut(_)) => Self::TimedOut,
            Err(Error::TooLarge(_)) => Self::TooLarge,
            Err(Error::Undeclared(_)) => Self::Undeclared,
            Err(Error::Protocol(_)) => Self::Protocol,
        }
    }
}

impl Meter {
    /// A call ended so, which began then.
    pub fn count(&self, method: Method, end: Fate, began: Instant) {
        self.durations.observe(began.elapsed());
        self.ends[method as usize][end as usize].count();
    }

    /// How long calls took.
    pub fn durations(&self) -> Durations {
        self.durations.read()
    }

    /// How often calls ended in which way; only what has happened.
    pub fn ends(&self) -> impl Iterator<Item = (Method, Fate, u64)> {
        let each = Method::ALL
            .into_iter()
            .flat_map(|method| Fate::ALL.into_iter().map(move |end| (method, end)));
        let counted = each
            .map(|(method, end)| (method, end, self.ends[method as usize][end as usize].read()));
        counted.filter(|(.., count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_and_each_end_has_its_own_place() {
        assert!(Method::ALL.into_iter().enumerate().all(|(at, method)| method as usize == at));
        assert!(Fate::ALL.into_iter().enumerate().all(|(at, end)| end as usize == at));
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_happened_is_not_told() {
        let meter = Meter::default();
        let began = Instant::now();
        tokio::time::advance(std::time::Duration::from_millis(3)).await;
        meter.count(Method::CallTool, Fate::Busy, began);
        meter.count(Method::CallTool, Fate::Busy, began);
        assert_eq!(meter.ends().collect::<Vec<_>>(), [(Method::CallTool, Fate::Busy, 2)]);
        assert_eq!((meter.durations().count(), meter.durations().micros), (2, 6_000));
    }
}
