//! Sample of `weir top`: the difference between two statuses of a running Weir, as text.
//!
//! Problems come first, then rates and latencies.
//!
//! Invariants: no line is wider and no text longer than requested, and omitted rows are counted;
//! counters of a restarted process count from zero; colors change no word.

use std::collections::BTreeMap;

use crate::admin::status::{Latency, Status};
use crate::cli::instance::status::format_duration;
use crate::cli::output::render::sanitize_line;
use weir_base::metrics::BOUNDS;

/// Difference between two statuses.
pub(super) struct Sample {
    head: Vec<SampleLine>,
    /// Problems that an operator should look at.
    problems: Vec<SampleLine>,
    upstreams: Vec<SampleRow>,
    methods: Vec<SampleRow>,
}

/// Size and colors of the output.
#[derive(Debug, Clone, Copy)]
pub(super) struct RenderOptions {
    /// Largest width of a line.
    pub(super) columns: usize,
    /// Largest number of lines.
    pub(super) rows: usize,
    /// Use of colors.
    pub(super) colored: bool,
}

/// Line with at most one colored word: its start and end in characters, and its color code.
#[derive(Debug, Clone, Default)]
struct SampleLine {
    text: String,
    word: Option<(usize, usize, u8)>,
}

struct SampleRow {
    name: String,
    per_second: f64,
    errors: f64,
    took: Latency,
    in_flight: Option<(usize, usize)>,
    state: String,
}

impl Sample {
    pub(super) fn between(before: &Status, after: &Status) -> Self {
        let is_another =
            before.process != after.process || after.uptime_seconds < before.uptime_seconds;
        let nothing = Status::default();
        let before = if is_another { &nothing } else { before };
        let seconds = (after.uptime_seconds - before.uptime_seconds).max(0.1);
        let rate = |before: u64, after: u64| increase(before, after) as f64 / seconds;
        let old_upstreams: BTreeMap<_, _> =
            before.upstreams.iter().map(|it| (&*it.name, it)).collect();
        let old_methods: BTreeMap<_, _> = before.methods.iter().map(|it| (&*it.name, it)).collect();
        let (no_upstream, no_method) = (Default::default(), Default::default());
        let row = |name: &str, old: (u64, u64, &Latency), new: (u64, u64, &Latency)| SampleRow {
            name: name.to_owned(),
            per_second: rate(old.0, new.0),
            errors: rate(old.1, new.1),
            took: latency_increase(old.2, new.2),
            in_flight: None,
            state: String::new(),
        };
        let upstreams = after.upstreams.iter().map(|it| {
            let old = old_upstreams.get(&*it.name).copied().unwrap_or(&no_upstream);
            let old = (old.calls, old.errors, &old.took);
            let (in_flight, state) = (Some((it.in_flight, it.waiting)), it.state.clone());
            SampleRow { in_flight, state, ..row(&it.name, old, (it.calls, it.errors, &it.took)) }
        });
        let methods = after.methods.iter().map(|it| {
            let old = old_methods.get(&*it.name).copied().unwrap_or(&no_method);
            let old = (old.count, old.errors, &old.took);
            row(&it.name, old, (it.count, it.errors, &it.took))
        });
        let (upstreams, methods) = (Vec::from_iter(upstreams), Vec::from_iter(methods));
        // `sum()` of nothing would be -0.
        let request_rate = methods.iter().fold(0.0, |sum, row| sum + row.per_second);
        let sum = |status: &Status| status.refusals.values().sum::<u64>();
        let refused = rate(sum(before), sum(after));
        let (state, color) = match (after.draining, after.ready) {
            (true, _) => ("stopping", YELLOW),
            (false, true) => ("ready", GREEN),
            (false, false) => ("not ready", RED),
        };
        let mut head = vec![
            SampleLine::from(format!("weir {}  ", after.version))
                .with_word(state, color)
                .with_text(&format!("  {}  q ends", format_duration(after.uptime_seconds))),
            SampleLine::from(format!(
                "{} connections  {} sessions  {} streams  {request_rate:.1} requests/s  \
                 {refused:.1} refused/s",
                after.connections, after.sessions, after.streams
            )),
        ];
        if let Some(new) = &after.usage {
            let old = before.usage.as_ref().map_or(0.0, |old| old.cpu_seconds);
            let cpu = (new.cpu_seconds - old).max(0.0) / seconds * 100.0;
            let usage = format!("{} MiB  {cpu:.0} % cpu  {} files", new.memory >> 20, new.files);
            head.push(usage.into());
        }
        Self { head, problems: problems(after), upstreams, methods }
    }

    /// Marks the sample as outdated, with the reason; without a reason nothing changes.
    pub(super) fn with_failure(mut self, why: Option<&str>) -> Self {
        if let Some(why) = why {
            // A configuration report has many lines.
            let why = why.lines().next().unwrap_or_default();
            let text = format!(", showing the last known state: {}", sanitize_line(why));
            self.problems =
                vec![SampleLine::default().with_word("no response", RED).with_text(&text)];
        }
        self
    }

    /// Formats as much of the sample as fits.
    pub(super) fn to_text(&self, options: RenderOptions) -> String {
        let mut lines = self.head.clone();
        if !self.problems.is_empty() {
            lines.push(SampleLine::default());
            lines.extend(limit_lines(self.problems.clone(), (options.rows / 4).max(2)));
        }
        let rows_left = options.rows.saturating_sub(lines.len());
        let [upstreams, methods] = [&self.upstreams, &self.methods].map(Vec::len);
        // Each table has a title and an empty line above it.
        let least = methods.min(MIN_METHODS);
        let for_upstreams = rows_left.saturating_sub(if least > 0 { least + 2 } else { 0 } + 2);
        let for_methods = rows_left.saturating_sub(upstreams.min(for_upstreams) + 2 + 2);
        for (title, rows, max_rows) in
            [("upstream", &self.upstreams, for_upstreams), ("method", &self.methods, for_methods)]
        {
            if !rows.is_empty() && max_rows > 0 {
                lines.push(SampleLine::default());
                lines.extend(table(title, rows, max_rows, options.columns));
            }
        }
        let lines = lines.iter().take(options.rows);
        lines.fold(String::new(), |text, line| text + &line.render(options) + "\n")
    }
}

/// Lists problems of the audit log, the configuration, and each unusable upstream with its reason.
fn problems(status: &Status) -> Vec<SampleLine> {
    let mut problems = Vec::new();
    if status.audit.as_ref().is_some_and(|audit| audit.failing) {
        problems.push(SampleLine::default().with_word("the audit log cannot be written", RED));
    }
    if let Some(refused) = &status.refused {
        let line = SampleLine::default().with_word(&refused.describe(), RED);
        problems.push(line.with_text(&format!(": {}", sanitize_line(&refused.why))));
    }
    for it in status.upstreams.iter().filter(|it| !it.is_well()) {
        let color = if it.state == "starting" { YELLOW } else { RED };
        let line = SampleLine::from(format!("{}  ", it.name)).with_word(&it.state, color);
        let mut text = format!(" for {}", format_duration(it.since_seconds as f64));
        if let Some(reason) = &it.reason {
            text += &format!(": {}", sanitize_line(reason));
        }
        if let Some(seconds) = it.next_try_seconds {
            text += &format!("; again in {}", format_duration(seconds as f64));
        }
        problems.push(line.with_text(&text));
    }
    problems
}

/// Rows below their title. If not all rows fit, those with the most errors and requests are shown.
fn table(title: &str, rows: &[SampleRow], max_rows: usize, columns: usize) -> Vec<SampleLine> {
    let mut shown: Vec<&SampleRow> = rows.iter().collect();
    if rows.len() > max_rows {
        let weight = |row: &SampleRow| row.errors * 1e6 + row.per_second;
        shown.sort_by(|one, other| weight(other).total_cmp(&weight(one)));
    }
    let widest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(title.len());
    // The numbers matter more than the end of a long name.
    let width = widest.min(columns.saturating_sub(NUMBERS).max(MIN_NAME));
    let title = format!("{title:width$}      /s   err/s    p50    p99  now").into();
    let lines = shown.iter().map(|row| row.to_line(width)).collect();
    std::iter::once(title).chain(limit_lines(lines, max_rows)).collect()
}

/// Limits the number of lines; the last one then counts the omitted ones.
fn limit_lines(mut lines: Vec<SampleLine>, max_rows: usize) -> Vec<SampleLine> {
    if lines.len() > max_rows {
        let more = lines.len() - max_rows.saturating_sub(1);
        lines.truncate(max_rows.saturating_sub(1));
        lines.push(format!("… {more} more").into());
    }
    lines
}

impl SampleRow {
    fn to_line(&self, width: usize) -> SampleLine {
        let quantile = |part| quantile(&self.took, part).unwrap_or("-".to_owned());
        let now = match self.in_flight {
            Some((running, 0)) => running.to_string(),
            Some((running, waiting)) => format!("{running}+{waiting}"),
            None => String::new(),
        };
        let name = truncate(&self.name, width);
        let line = SampleLine::from(format!(
            "{name:width$} {:7.1} {:7.1} {:>6} {:>6}  {now:<5} ",
            self.per_second,
            self.errors,
            quantile(0.5),
            quantile(0.99)
        ));
        match &*self.state {
            "up" => line,
            state @ ("starting" | "half-open") => line.with_word(state, YELLOW),
            "asleep" => line.with_word("asleep", PLAIN),
            state => line.with_word(state, RED),
        }
    }
}

impl From<String> for SampleLine {
    fn from(text: String) -> Self {
        Self { text, word: None }
    }
}

impl SampleLine {
    /// Appends the colored word.
    fn with_word(mut self, word: &str, color: u8) -> Self {
        let at = self.text.chars().count();
        self.word = Some((at, at + word.chars().count(), color));
        self.text.push_str(word);
        self
    }

    /// Appends text without a color.
    fn with_text(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Formats the line.
    fn render(&self, options: RenderOptions) -> String {
        let text = truncate(self.text.trim_end(), options.columns);
        let (Some((from, to, color)), true) = (self.word, options.colored) else { return text };
        let byte_of = |at| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
        let (before, rest) = text.split_at(byte_of(from));
        let (word, behind) = rest.split_at(byte_of(to) - before.len());
        if color == PLAIN || word.is_empty() {
            return text;
        }
        format!("{before}\u{1b}[{color}m{word}\u{1b}[0m{behind}")
    }
}

/// Shortens a text to this number of columns.
fn truncate(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let begin = text.chars().take(columns.saturating_sub(1));
    begin.chain((columns > 0).then_some('…')).collect()
}

/// Increase of a counter; a counter that is smaller than before was reset.
fn increase(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

fn latency_increase(before: &Latency, after: &Latency) -> Latency {
    let old = before.buckets.iter().copied().chain(std::iter::repeat(0));
    let buckets = after.buckets.iter().zip(old).map(|(after, before)| increase(before, *after));
    Latency { buckets: buckets.collect(), micros: increase(before.micros, after.micros) }
}

/// Upper bound of the bucket of a quantile; `None` if there were no requests.
fn quantile(took: &Latency, part: f64) -> Option<String> {
    let all: u64 = took.buckets.iter().sum();
    let wanted = (all as f64 * part).ceil().max(1.0) as u64;
    let mut seen = 0;
    let at = took.buckets.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    Some(match BOUNDS.get(at) {
        Some(bound) => format_seconds(*bound),
        None => format!(">{}", format_seconds(BOUNDS[BOUNDS.len() - 1])),
    })
}

fn format_seconds(seconds: f64) -> String {
    match seconds {
        below if below < 0.001 => format!("{:.1}ms", below * 1e3),
        below if below < 1.0 => format!("{:.0}ms", below * 1e3),
        seconds => format!("{seconds:.0}s"),
    }
}

const PLAIN: u8 = 0;
const RED: u8 = 31;
const GREEN: u8 = 32;
const YELLOW: u8 = 33;
/// Methods that are shown even if upstreams need the rows.
const MIN_METHODS: usize = 4;
/// Columns beside a name, with the longest state.
const NUMBERS: usize = 50;
/// Smallest width of a shortened name.
const MIN_NAME: usize = 12;

#[cfg(test)]
mod tests {
    use crate::admin::status::{MethodStatus, UpstreamStatus};
    use crate::cli::instance::top::sample::*;

    fn took(buckets: &[(usize, u64)]) -> Latency {
        let mut took = Latency { buckets: vec![0; BOUNDS.len() + 1], micros: 0 };
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
                UpstreamStatus {
                    name: "github".to_owned(),
                    state: "up".to_owned(),
                    calls: calls + slow,
                    errors: slow,
                    in_flight: 2,
                    waiting: 1,
                    took: took(&[(1, calls), (17, slow)]),
                    ..UpstreamStatus::default()
                },
                UpstreamStatus {
                    name: "notes".to_owned(),
                    state: "down".to_owned(),
                    since_seconds: 75,
                    next_try_seconds: Some(3),
                    reason: Some("the process exited with code 1".to_owned()),
                    ..UpstreamStatus::default()
                },
            ],
            methods: vec![MethodStatus {
                name: "tools/call".to_owned(),
                count: calls,
                took: took(&[(0, calls)]),
                ..MethodStatus::default()
            }],
            ..Status::default()
        }
    }

    fn options(columns: usize, rows: usize) -> RenderOptions {
        RenderOptions { columns, rows, colored: false }
    }

    #[test]
    fn a_sample_tells_what_is_wrong_and_what_happened_between_two_looks() {
        let sample = Sample::between(&status(10.0, 1_000, 0), &status(12.0, 1_097, 3));
        let text = sample.to_text(options(80, 20));
        for line in [
            "weir 0.1.0  ready  12 s  q ends",
            "3 connections  0 sessions  0 streams  48.5 requests/s  0.0 refused/s",
            "notes  down for 1 min 15 s: the process exited with code 1; again in 3 s",
            "upstream      /s   err/s    p50    p99  now",
            "github      50.0     1.5    1ms  >300s  2+1",
            "notes        0.0     0.0      -      -  0     down",
            "tools/call    48.5     0.0  0.1ms  0.1ms",
        ] {
            assert!(
                text.lines().any(|it| it == line),
                "{line} in
{text}"
            );
        }
        let old = sample.with_failure(Some("nothing listens at 127.0.0.1:1\nmore"));
        let text = old.to_text(options(60, 7));
        let expected = "no response, showing the last known state: nothing listens …";
        assert!(text.contains(expected) && !text.contains("more"), "{text}");
    }

    #[test]
    fn no_line_is_too_wide_and_no_text_too_long_and_what_is_left_out_is_counted() {
        let mut after = status(12.0, 1_097, 3);
        let many = (0..40).map(|number| UpstreamStatus {
            name: format!("upstream-{number}-with-a-long-name-{number}"),
            state: if number % 2 == 0 { "crash-loop" } else { "up" }.to_owned(),
            reason: Some("it said\u{1b}[2J: no\nidea".to_owned()),
            calls: number,
            ..UpstreamStatus::default()
        });
        after.upstreams.extend(many);
        let sample = Sample::between(&status(10.0, 1_000, 0), &after);
        for (columns, rows) in [(80, 24), (200, 50), (40, 10), (20, 5), (1, 1), (80, 0)] {
            let text = sample.to_text(options(columns, rows));
            assert!(text.lines().count() <= rows, "{columns}x{rows}:\n{text}");
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(widest <= columns && !text.contains('\u{1b}'), "{columns}x{rows}:\n{text}");
        }
        // Problems take a quarter of the rows; methods keep theirs; the busiest upstream is shown.
        let text = sample.to_text(options(80, 24));
        assert_eq!(text.matches("more").count(), 2, "{text}");
        assert!(text.contains("tools/call") && text.contains("github"), "{text}");
    }

    #[test]
    fn colors_change_no_word() {
        let sample = Sample::between(&status(10.0, 1_000, 0), &status(12.0, 1_097, 3));
        let plain = sample.to_text(options(80, 24));
        let colored = sample.to_text(RenderOptions { colored: true, ..options(80, 24) });
        let codes = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"];
        assert_ne!(colored, plain);
        assert_eq!(codes.iter().fold(colored, |text, code| text.replace(code, "")), plain);
    }

    #[test]
    fn a_process_that_began_anew_is_counted_from_zero() {
        let before = Status { process: 1, ..status(1_000.0, 5_000, 7) };
        for after in [status(2.0, 10, 0), Status { process: 2, ..status(2_000.0, 4_000, 0) }] {
            let sample = Sample::between(&before, &after);
            let row = &sample.upstreams[0];
            assert!(row.per_second > 0.0 && row.per_second <= 5.0, "{}", row.per_second);
            assert_eq!(row.errors, 0.0);
        }
    }
}
