//! Performance goals, and whether a run reaches them: ratios of medians within the run, or figures.

use std::fmt::Write as _;

use crate::results::Results;

/// A goal, and the figure of a run.
pub(crate) struct Goal {
    pub(crate) what: String,
    /// Lower or upper bound.
    bound: Bound,
    /// `None` if it was not measured or a response was wrong.
    pub(crate) is: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    /// Percentage by which it is missed; `None` if it is reached or was not measured.
    pub(crate) fn missed_by(&self) -> Option<f64> {
        let is = self.is?;
        let (missed, bound) = match self.bound {
            Bound::AtLeast(bound) => (bound - is, bound),
            Bound::AtMost(bound) => (is - bound, bound),
        };
        (missed > 0.0).then_some(missed / bound * 100.0)
    }
}

/// All goals, against these results.
pub(crate) fn checked(results: &Results) -> Vec<Goal> {
    use Bound::{AtLeast, AtMost};
    let median =
        |workload: &str, subject: &str, figure: &str| results.median(workload, subject, figure);
    let mut goals = Vec::new();
    let mut add = |what: String, bound, is| goals.push(Goal { what, bound, is });
    let ratio = |workload: &str, figure: &str, of: &str, to: &str| {
        Some(median(workload, of, figure)? / median(workload, to, figure)?)
    };
    for ask in ["get-1k", "call-1k"] {
        for era in ["modern", "legacy"] {
            for connections in [32, 256] {
                let name = format!("{ask}-{era}-{connections}");
                let is = |figure, of, to| ratio(&name, figure, of, to);
                add(
                    format!("{name}: throughput to nginx"),
                    AtLeast(0.9),
                    is("per_s", "weir", "nginx"),
                );
                add(format!("{name}: CPU to nginx"), AtMost(1.3), is("cpu_us", "weir", "nginx"));
                add(format!("{name}: p99 to nginx"), AtMost(1.3), is("p99_us", "weir", "nginx"));
                let policy = is("per_s", "weir-policy", "nginx");
                add(format!("{name}: throughput with policy to nginx"), AtLeast(0.8), policy);
                add(
                    format!("{name}: throughput to hyper"),
                    AtLeast(0.95),
                    is("per_s", "weir", "hyper"),
                );
            }
            let name = format!("{ask}-{era}-1");
            let p50 = |subject| median(&name, subject, "p50_us");
            let added = || {
                let direct = p50("direct")?;
                Some((p50("weir")? - direct) / (p50("nginx")? - direct))
            };
            add(format!("{name}: added p50 to what nginx adds"), AtMost(1.3), added());
        }
    }
    for name in ["mixed-legacy-modern", "mixed-modern-legacy"] {
        let is = ratio(name, "per_s", "weir", "nginx");
        add(format!("{name}: throughput to nginx"), AtLeast(0.7), is);
    }
    for ask in ["get", "call"] {
        let (large, small) = (format!("{ask}-1m"), format!("{ask}-256k"));
        let is = ratio(&large, "per_s", "weir", "nginx");
        add(format!("{large}: throughput to nginx"), AtLeast(0.95), is);
        let peak = |name| median(name, "weir", "peak_mib");
        let is = peak(&large).zip(peak(&small)).map(|(large, small)| large / small);
        // Four times the size: a tenth more is allowed for the allocator.
        add(format!("{large}: peak memory to that of {small}"), AtMost(1.1), is);
    }
    for (name, least) in [("list-one", 0.9), ("list-one-legacy", 0.95)] {
        let is = ratio(name, "per_s", "weir", "direct");
        add(format!("{name}: throughput to direct"), AtLeast(least), is);
    }
    for name in ["list-200", "list-200-legacy"] {
        let is = ratio(name, "per_s", "weir", "nginx");
        add(format!("{name}: throughput to nginx"), AtLeast(1.0), is);
    }
    add("stdio-32: CPU µs a call".into(), AtMost(20.0), median("stdio-32", "weir", "cpu_us"));
    add(
        "fanout-200: all streams notified, ms".into(),
        AtMost(4.0),
        median("fanout-200", "weir", "told_ms"),
    );
    let is = ratio("fanout-200", "cpu_ms", "weir", "nginx");
    add("fanout-200: CPU to nginx".into(), AtMost(1.0), is);
    let is = median("fanout-10000", "weir", "told_ms");
    add("fanout-10000: all streams notified, ms".into(), AtMost(1_000.0), is);
    let is = median("fanout-10000", "weir", "kib_each");
    add("fanout-10000: KiB a stream".into(), AtMost(16.0), is);
    add("memory: idle, MiB".into(), AtMost(15.0), median("memory", "weir", "idle_mib"));
    let is = median("start", "weir", "idle_10_mib");
    add("start: idle with ten servers, MiB".into(), AtMost(18.0), is);
    let is = median("memory", "weir", "with_256_mib");
    add("memory: with 256 connections, MiB".into(), AtMost(40.0), is);
    add(
        "start: to the first list, ms".into(),
        AtMost(40.0),
        median("start", "weir", "first_list_ms"),
    );
    for (of, to) in [
        ("100 servers, 100 items", "1 server, 100 items"),
        ("100 servers, 100 000 items", "1 server, 100 items"),
        ("1 server, 1 000 roles", "1 server, 1 role"),
    ] {
        // Flat, except for caches and the order of turns.
        add(format!("growth: CPU, {of} to {to}"), AtMost(1.1), ratio("growth", "cpu_us", of, to));
    }
    let p50 = |subject| median("fleet-hop", subject, "p50_us");
    let hop = || Some((p50("hop")? - p50("owner")?) / (p50("nginx")? - p50("direct")?));
    add("fleet-hop: added p50 to what nginx adds".into(), AtMost(1.4), hop());
    let is = ratio("fleet-1m", "per_s", "hop", "owner");
    add("fleet-1m: throughput through a hop to without".into(), AtLeast(0.8), is);
    let is = ratio("fleet-three", "cpu_us", "three", "one");
    add("fleet-three: CPU of three replicas to one".into(), AtMost(1.6), is);
    for (figure, most) in [("refused_ms", 50.0), ("silent_ms", 1_000.0)] {
        let is = median("fleet-takeover", "replicas", figure);
        add(format!("fleet-takeover: {figure}"), AtMost(most), is);
    }
    goals
}

/// The measured goals as a table.
pub(crate) fn table(results: &Results) -> String {
    let goals = checked(results);
    let mut text = "| goal | wanted | is | |\n|---|---:|---:|---|\n".to_owned();
    for goal in goals.iter().filter(|goal| goal.is.is_some()) {
        let Goal { what, bound, is } = goal;
        let wanted = match bound {
            Bound::AtLeast(bound) => format!("≥ {bound}"),
            Bound::AtMost(bound) => format!("≤ {bound}"),
        };
        let verdict =
            goal.missed_by().map_or("reached".to_owned(), |by| format!("missed by {by:.0} %"));
        let _ = writeln!(text, "| {what} | {wanted} | {:.2} | {verdict} |", is.unwrap_or(f64::NAN));
    }
    let without = goals.iter().filter(|goal| goal.is.is_none()).count();
    if without > 0 {
        let _ =
            writeln!(text, "\n{without} further goals were not measured in this run, or failed.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio_of(ours: f64, wrong: bool) -> Goal {
        let mut results = Results::default();
        for turn in [0.0, 1.0, 50.0] {
            results.note("call-1m", "weir", "per_s", ours + turn);
            results.note("call-1m", "nginx", "per_s", 100.0 + turn);
        }
        if wrong {
            results.fail("call-1m", "weir", "a reply was wrong");
        }
        let goals = checked(&results);
        goals.into_iter().find(|goal| goal.what == "call-1m: throughput to nginx").expect("a goal")
    }

    #[test]
    fn a_goal_is_judged_by_medians() {
        assert_eq!(ratio_of(100.0, false).is, Some(1.0));
        assert_eq!(ratio_of(100.0, false).missed_by(), None);
        assert!(ratio_of(50.0, false).missed_by().is_some_and(|by| (40.0..60.0).contains(&by)));
    }

    #[test]
    fn what_failed_reaches_no_goal() {
        assert!(ratio_of(100.0, true).is.is_none());
    }
}
