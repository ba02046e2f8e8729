//! Summary of a run: the time of each step, the slowest tests, and the closing line.

use std::time::Duration;

use crate::step::Outcome;

/// Number of slowest tests that are named.
const SLOWEST: usize = 10;

/// One line about a step: its name, its time, its processor time, and its result.
pub(crate) fn line(outcome: &Outcome) -> String {
    let result = match outcome {
        Outcome { remark, .. } if !remark.is_empty() => remark.clone(),
        Outcome { passed: 0, failed: 0, .. } => "ok".to_owned(),
        Outcome { passed: 0, failed: 1, .. } => "FAILED".to_owned(),
        Outcome { passed, failed: 0, .. } => format!("{passed} passed"),
        Outcome { passed, failed, .. } => format!("{passed} passed, {failed} FAILED"),
    };
    let seconds = |time: Duration| format!("{:.0} s", time.as_secs_f64());
    let processor = outcome.processor.map(seconds).unwrap_or_default();
    format!("{:<18}{:>7}{processor:>9}   {result}", outcome.name, seconds(outcome.time))
}

/// Prints the summary; returns whether everything passed.
pub(crate) fn print(outcomes: &[Outcome], time: Duration) -> bool {
    eprintln!(
        "dev: {:.1} minutes in all; time and processor time of each step:",
        time.as_secs_f64() / 60.0
    );
    outcomes.iter().for_each(|outcome| eprintln!("    {}", line(outcome)));
    let mut tests: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.tests.iter().map(move |test| (test.1, &*outcome.name, &test.0)))
        .collect();
    tests.sort_by(|one, other| other.0.total_cmp(&one.0));
    if !tests.is_empty() {
        eprintln!("dev: the slowest tests:");
    }
    for (seconds, suite, test) in tests.iter().take(SLOWEST) {
        eprintln!("    {seconds:>6.1} s  {suite} {test}");
    }
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
    let (passed, failed) = (sum(|it| it.passed), sum(|it| it.failed));
    println!("{passed} passed, {failed} failed");
    failed == 0
}
