//! What became of every request.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// How a request ended for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With its own number.
    Answered,
    /// In words: a status or an error that says no.
    Refused(String),
    /// Nobody was there to take it.
    Unreachable,
    /// In the middle, without a word.
    Cut(String),
}

/// All requests.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<u64, Outcome>>);

/// How many ended how.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) answered: usize,
    pub(crate) refused: usize,
    pub(crate) unreachable: usize,
    pub(crate) cut: usize,
}

impl Ledger {
    pub(crate) fn note(&self, number: u64, outcome: Outcome) {
        let before = self.0.lock().expect("nobody panics").insert(number, outcome);
        assert_eq!(before, None, "{number} ended twice");
    }

    pub(crate) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for (number, outcome) in &*self.0.lock().expect("nobody panics") {
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

    /// Checks it against what was executed: what was answered once, what was refused never, and nothing twice.
    pub(crate) fn agrees_with(&self, executed: &BTreeMap<u64, usize>) {
        for (number, outcome) in &*self.0.lock().expect("nobody panics") {
            let times = executed.get(number).copied().unwrap_or_default();
            let most = usize::from(matches!(outcome, Outcome::Answered | Outcome::Cut(_)));
            assert!(times <= most, "{number} was executed {times} times and is {outcome:?}");
            assert!(times == 1 || *outcome != Outcome::Answered, "{number} was never executed");
        }
    }
}
