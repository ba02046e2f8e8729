//! What happened between two looks at a running Weir: rates, and how long things took.
//!
//! Promises: no line is wider and no text longer than asked for; numbers that began anew, since the process did, are
//! taken from zero.
//!
//! Knows nothing of: terminals.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::cli::status::lasted;
use crate::meter::BOUNDS;
use crate::ops::status::{Status, Took};

/// What happened between two looks.
pub(super) struct Sample {
    head: Vec<String>,
    upstreams: Vec<Row>,
    methods: Vec<Row>,
}

struct Row {
    name: String,
    per_second: f64,
    errors: f64,
    took: Took,
    in_flight: Option<(usize, usize)>,
    state: String,
}

impl Sample {
    pub(super) fn of(before: &Status, after: &Status) -> Self {
        let seconds = (after.uptime_seconds - before.uptime_seconds).max(0.1);
        let rate = |before: u64, after: u64| grown(before, after) as f64 / seconds;
        let old_upstreams: BTreeMap<_, _> =
            before.upstreams.iter().map(|it| (&*it.name, it)).collect();
        let old_methods: BTreeMap<_, _> = before.methods.iter().map(|it| (&*it.name, it)).collect();
        let (no_upstream, no_method) = (Default::default(), Default::default());
        let upstreams = after.upstreams.iter().map(|it| {
            let old = old_upstreams.get(&*it.name).copied().unwrap_or(&no_upstream);
            Row {
                name: it.name.clone(),
                per_second: rate(old.calls, it.calls),
                errors: rate(old.errors, it.errors),
                took: between(&old.took, &it.took),
                in_flight: Some((it.in_flight, it.waiting)),
                state: it.state.clone(),
            }
        });
        let methods = after.methods.iter().map(|it| {
            let old = old_methods.get(&*it.name).copied().unwrap_or(&no_method);
            Row {
                name: it.name.clone(),
                per_second: rate(old.count, it.count),
                errors: rate(old.errors, it.errors),
                took: between(&old.took, &it.took),
                in_flight: None,
                state: String::new(),
            }
        });
        let sum = |status: &Status| status.refusals.values().sum::<u64>();
        let refused = rate(sum(before), sum(after));
        let state = match (after.draining, after.ready) {
            (true, _) => "stopping",
            (false, true) => "ready",
            (false, false) => "not ready",
        };
        let mut head = vec![
            format!("weir {}  {state}  {}  q ends", after.version, lasted(after.uptime_seconds)),
            format!(
                "{} connections  {} sessions  {} streams  {refused:.1} refused/s",
                after.connections, after.sessions, after.streams
            ),
        ];
        if let (Some(old), Some(new)) = (&before.usage, &after.usage) {
            let cpu = (new.cpu_seconds - old.cpu_seconds).max(0.0) / seconds * 100.0;
            head.push(format!("{} MiB  {cpu:.0} % cpu  {} files", new.memory >> 20, new.files));
        }
        Self { head, upstreams: upstreams.collect(), methods: methods.collect() }
    }

    /// At most so many lines of so many columns.
    pub(super) fn to_text(&self, columns: usize, rows: usize) -> String {
        let mut lines = self.head.clone();
        for (title, rows) in [("upstream", &self.upstreams), ("method", &self.methods)] {
            if rows.is_empty() {
                continue;
            }
            let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(title.len());
            lines.push(String::new());
            lines.push(format!("{title:width$}     /s   err/s    p50    p99  now"));
            lines.extend(rows.iter().map(|row| row.to_line(width)));
        }
        let cut =
            lines.iter().take(rows).map(|line| line.chars().take(columns).collect::<String>());
        cut.fold(String::new(), |mut text, line| {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{}", line.trim_end());
            text
        })
    }
}

impl Row {
    fn to_line(&self, width: usize) -> String {
        let quantile = |part| quantile(&self.took, part).map_or("-".to_owned(), shown);
        let now = match self.in_flight {
            Some((running, 0)) => running.to_string(),
            Some((running, waiting)) => format!("{running}+{waiting}"),
            None => String::new(),
        };
        let (name, state) = (&self.name, if self.state == "up" { "" } else { &self.state });
        format!(
            "{name:width$} {:6.1} {:7.1} {:>6} {:>6}  {now:<4} {state}",
            self.per_second,
            self.errors,
            quantile(0.5),
            quantile(0.99)
        )
    }
}

/// How much something has grown; what is smaller than before began anew.
fn grown(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

fn between(before: &Took, after: &Took) -> Took {
    let old = before.buckets.iter().copied().chain(std::iter::repeat(0));
    let buckets = after.buckets.iter().zip(old).map(|(after, before)| grown(before, *after));
    Took { buckets: buckets.collect(), micros: grown(before.micros, after.micros) }
}

/// The bound, in seconds, that this part of all did not pass; `None` where there was nothing. What passed the last
/// bound counts as that.
fn quantile(took: &Took, part: f64) -> Option<f64> {
    let all: u64 = took.buckets.iter().sum();
    let wanted = (all as f64 * part).ceil().max(1.0) as u64;
    let mut seen = 0;
    let at = took.buckets.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    Some(BOUNDS.get(at).copied().unwrap_or(BOUNDS[BOUNDS.len() - 1]))
}

fn shown(seconds: f64) -> String {
    match seconds {
        below if below < 0.001 => format!("{:.1}ms", below * 1e3),
        below if below < 1.0 => format!("{:.0}ms", below * 1e3),
        seconds => format!("{seconds:.0}s"),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::ops::status::{Method, Upstream};

    fn took(buckets: &[(usize, u64)]) -> Took {
        let mut took = Took { buckets: vec![0; BOUNDS.len() + 1], micros: 0 };
        buckets.iter().for_each(|(at, count)| took.buckets[*at] = *count);
        took
    }

    fn status(uptime: f64, calls: u64, slow: u64) -> Status {
        Status {
            version: "0.1.0".to_owned(),
            ready: true,
            uptime_seconds: uptime,
            connections: 3,
            upstreams: vec![
                Upstream {
                    name: "github".to_owned(),
                    state: "up".to_owned(),
                    calls: calls + slow,
                    errors: slow,
                    in_flight: 2,
                    waiting: 1,
                    took: took(&[(1, calls), (17, slow)]),
                    ..Upstream::default()
                },
                Upstream {
                    name: "notes".to_owned(),
                    state: "down".to_owned(),
                    ..Upstream::default()
                },
            ],
            methods: vec![Method {
                name: "tools/call".to_owned(),
                count: calls,
                took: took(&[(0, calls)]),
                ..Method::default()
            }],
            ..Status::default()
        }
    }

    #[test]
    fn a_sample_tells_what_happened_between_two_looks() {
        let sample = Sample::of(&status(10.0, 1_000, 0), &status(12.0, 1_097, 3));
        assert_snapshot!(sample.to_text(80, 20), @r"
        weir 0.1.0  ready  12 s  q ends
        3 connections  0 sessions  0 streams  0.0 refused/s

        upstream     /s   err/s    p50    p99  now
        github     50.0     1.5    1ms   300s  2+1
        notes       0.0     0.0      -      -  0    down

        method         /s   err/s    p50    p99  now
        tools/call   48.5     0.0  0.1ms  0.1ms
        ");
        let narrow = sample.to_text(30, 4);
        assert!(narrow.lines().count() == 4 && narrow.lines().all(|line| line.len() <= 30));
    }

    #[test]
    fn a_process_that_began_anew_is_counted_from_zero() {
        let sample = Sample::of(&status(1_000.0, 5_000, 7), &status(2.0, 10, 0));
        assert!(sample.upstreams[0].per_second > 0.0 && sample.upstreams[0].errors == 0.0);
    }
}
