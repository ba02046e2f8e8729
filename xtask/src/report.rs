//! Summary of a run: the time of each step, the slowest tests, and the closing line.

use std::time::Duration;

use crate::step::Outcome;

/// Number of slowest tests that are named.
const SLOWEST: usize = 10;

/// One line about a step.
pub(crate) fn line(outcome: &Outcome) -> String {
    let seconds = |time: Duration| format!("{:.0} s", time.as_secs_f64());
    let result = match outcome {
        Outcome { remark, .. } if !remark.is_empty() => remark.clone(),
        Outcome { passed: 0, failed: 0, .. } => "ok".to_owned(),
        Outcome { passed: 0, failed: 1, .. } => "FAILED".to_owned(),
        Outcome { passed, failed: 0, .. } => format!("{passed} passed"),
        Outcome { passed, failed, .. } => format!("{passed} passed, {failed} FAILED"),
    };
    let processor = outcome.processor.map(|time| format!(", {} of processors", seconds(time)));
    let (name, time) = (&outcome.name, seconds(outcome.time));
    format!("{name:<16} {time:>6}{}  {result}", processor.unwrap_or_default())
}

/// Prints the summary; returns whether everything passed.
pub(crate) fn print(outcomes: &[Outcome], time: Duration) -> bool {
    eprintln!("dev: time of each step, {:.1} minutes in all:", time.as_secs_f64() / 60.0);
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
