//! Outcome of every request of a load test.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Outcome of a request for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered with its own number.
    Answered,
    /// Rejected by an HTTP status or a JSON-RPC error.
    Refused(String),
    /// The connection was refused.
    Unreachable,
    /// The connection broke off.
    Cut(String),
}

/// All requests by number.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<u64, Outcome>>);

/// Number of requests by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) answered: usize,
    pub(crate) refused: usize,
    pub(crate) unreachable: usize,
    pub(crate) cut: usize,
}

impl Ledger {
    pub(crate) fn record(&self, number: u64, outcome: Outcome) {
        let before = self.0.lock().expect("the lock is not poisoned").insert(number, outcome);
        assert_eq!(before, None, "{number} ended twice");
    }

    pub(crate) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for (number, outcome) in &*self.0.lock().expect("the lock is not poisoned") {
            match outcome {
                Outcome::Answered => sum.answered += 1,
                Outcome::Refused(_) => sum.refused += 1,
                Outcome::Unreachable => sum.unreachable += 1,
                Outcome::Cut(how) => {
                    eprintln!("{number} was cut: {how}");
                    sum.cut += 1;
                }
            }
        }
        sum
    }

    /// Compares the outcomes with the executions: an answered request was executed once, a refused
    /// one never, and none twice.
    pub(crate) fn agrees_with(&self, executed: &BTreeMap<u64, usize>) {
        for (number, outcome) in &*self.0.lock().expect("the lock is not poisoned") {
            let times = executed.get(number).copied().unwrap_or_default();
            let most = usize::from(matches!(outcome, Outcome::Answered | Outcome::Cut(_)));
            assert!(times <= most, "{number} was executed {times} times and is {outcome:?}");
            assert!(times == 1 || *outcome != Outcome::Answered, "{number} was never executed");
        }
    }
}
