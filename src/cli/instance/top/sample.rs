//! What happened between two looks at a running Weir: what is wrong first, then rates, and how long things took.
//!
//! Promises: no line is wider and no text longer than asked for, and what does not fit is counted; numbers that began
//! anew, since the process did, are taken from zero; whoever reads without colors reads the same words.
//!
//! Knows nothing of: terminals.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::admin::status::{Status, Took};
use crate::cli::instance::status::lasted;
use crate::cli::query::render::plain;
use crate::metrics::BOUNDS;

/// What happened between two looks.
pub(super) struct Sample {
    head: Vec<Line>,
    /// What somebody should look at.
    troubles: Vec<Line>,
    upstreams: Vec<Row>,
    methods: Vec<Row>,
}

/// What a sample is written on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paper {
    /// The width of the longest line.
    pub(super) columns: usize,
    /// The most lines.
    pub(super) rows: usize,
    /// Whether words may have colors.
    pub(super) colored: bool,
}

/// A line, and perhaps one word of it that has a color: where it stands, and its number.
#[derive(Debug, Clone, Default)]
struct Line {
    text: String,
    word: Option<(usize, usize, u8)>,
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
        let is_another =
            before.process != after.process || after.uptime_seconds < before.uptime_seconds;
        let nothing = Status::default();
        let before = if is_another { &nothing } else { before };
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
        let (upstreams, methods) = (Vec::from_iter(upstreams), Vec::from_iter(methods));
        // A sum of nothing would be -0.
        let asked = methods.iter().fold(0.0, |sum, row| sum + row.per_second);
        let sum = |status: &Status| status.refusals.values().sum::<u64>();
        let refused = rate(sum(before), sum(after));
        let (state, color) = match (after.draining, after.ready) {
            (true, _) => ("stopping", YELLOW),
            (false, true) => ("ready", GREEN),
            (false, false) => ("not ready", RED),
        };
        let mut head = vec![
            Line::from(format!("weir {}  ", after.version)).with(state, color),
            Line::from(format!(
                "{} connections  {} sessions  {} streams  {asked:.1} requests/s  {refused:.1} refused/s",
                after.connections, after.sessions, after.streams
            )),
        ];
        let _ = write!(head[0].text, "  {}  q ends", lasted(after.uptime_seconds));
        if let Some(new) = &after.usage {
            let old = before.usage.as_ref().map_or(0.0, |old| old.cpu_seconds);
            let cpu = (new.cpu_seconds - old).max(0.0) / seconds * 100.0;
            let usage = format!("{} MiB  {cpu:.0} % cpu  {} files", new.memory >> 20, new.files);
            head.push(usage.into());
        }
        Self { head, troubles: troubles(after), upstreams, methods }
    }

    /// The same, told to be old, and why; nothing is different where there is no reason.
    pub(super) fn without(mut self, why: Option<&str>) -> Self {
        if let Some(why) = why {
            // A report of mistakes has many lines.
            let why = why.lines().next().unwrap_or_default();
            let mut line = Line::default().with("no answer", RED);
            let _ = write!(line.text, ", and this is what was seen last: {}", plain(why));
            self.troubles = vec![line];
        }
        self
    }

    /// All of it that there is room for.
    pub(super) fn to_text(&self, paper: Paper) -> String {
        let mut lines = self.head.clone();
        if !self.troubles.is_empty() {
            lines.push(Line::default());
            lines.extend(cut(self.troubles.clone(), (paper.rows / 4).max(2)));
        }
        let room = paper.rows.saturating_sub(lines.len());
        let [upstreams, methods] = [&self.upstreams, &self.methods].map(Vec::len);
        // Each table has a title, and a line above it.
        let least = methods.min(MIN_METHODS);
        let for_upstreams = room.saturating_sub(if least > 0 { least + 2 } else { 0 } + 2);
        let for_methods = room.saturating_sub(upstreams.min(for_upstreams) + 2 + 2);
        for (title, rows, most) in
            [("upstream", &self.upstreams, for_upstreams), ("method", &self.methods, for_methods)]
        {
            if !rows.is_empty() && most > 0 {
                lines.push(Line::default());
                lines.extend(table(title, rows, most, paper.columns));
            }
        }
        let lines = lines.iter().take(paper.rows);
        lines.fold(String::new(), |text, line| text + &line.on(paper) + "\n")
    }
}

/// What somebody should look at: the log of requests, and each upstream that clients cannot use, with its reason.
fn troubles(status: &Status) -> Vec<Line> {
    let mut troubles = Vec::new();
    if status.audit.as_ref().is_some_and(|audit| audit.failing) {
        troubles.push(Line::default().with("the audit log cannot be written", RED));
    }
    if let Some(refused) = &status.refused {
        let mut line = Line::default().with("the configuration is refused", RED);
        let _ = write!(line.text, ", and the former one holds: {}", plain(&refused.why));
        troubles.push(line);
    }
    for it in status.upstreams.iter().filter(|it| !is_well(&it.state)) {
        let color = if it.state == "starting" { YELLOW } else { RED };
        let mut line = Line::from(format!("{}  ", it.name)).with(&it.state, color);
        let _ = write!(line.text, " for {}", lasted(it.since_seconds as f64));
        if let Some(reason) = &it.reason {
            let _ = write!(line.text, ": {}", plain(reason));
        }
        if let Some(seconds) = it.next_try_seconds {
            let _ = write!(line.text, "; again in {}", lasted(seconds as f64));
        }
        troubles.push(line);
    }
    troubles
}

/// Whether whoever calls an upstream in this state gets an answer, after a start if need be.
fn is_well(state: &str) -> bool {
    matches!(state, "up" | "half-open" | "asleep")
}

/// The rows under their title. Where there are more than there is room for, those that do most are shown.
fn table(title: &str, rows: &[Row], most: usize, columns: usize) -> Vec<Line> {
    let mut shown: Vec<&Row> = rows.iter().collect();
    if rows.len() > most {
        let does = |row: &Row| row.errors * 1e6 + row.per_second;
        shown.sort_by(|one, other| does(other).total_cmp(&does(one)));
    }
    let widest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(title.len());
    // What is told of it counts more than the end of a long name.
    let width = widest.min(columns.saturating_sub(NUMBERS).max(MIN_NAME));
    let title = format!("{title:width$}      /s   err/s    p50    p99  now").into();
    let lines = shown.iter().map(|row| row.to_line(width)).collect();
    std::iter::once(title).chain(cut(lines, most)).collect()
}

/// So many lines; the last one says how many more there are.
fn cut(mut lines: Vec<Line>, most: usize) -> Vec<Line> {
    if lines.len() > most {
        let more = lines.len() - most.saturating_sub(1);
        lines.truncate(most.saturating_sub(1));
        lines.push(format!("… {more} more").into());
    }
    lines
}

impl Row {
    fn to_line(&self, width: usize) -> Line {
        let quantile = |part| quantile(&self.took, part).unwrap_or("-".to_owned());
        let now = match self.in_flight {
            Some((running, 0)) => running.to_string(),
            Some((running, waiting)) => format!("{running}+{waiting}"),
            None => String::new(),
        };
        let name = fitted(&self.name, width);
        let line = Line::from(format!(
            "{name:width$} {:7.1} {:7.1} {:>6} {:>6}  {now:<5} ",
            self.per_second,
            self.errors,
            quantile(0.5),
            quantile(0.99)
        ));
        match &*self.state {
            "up" => line,
            state @ ("starting" | "half-open") => line.with(state, YELLOW),
            "asleep" => line.with("asleep", PLAIN),
            state => line.with(state, RED),
        }
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self { text, word: None }
    }
}

impl Line {
    /// Adds the word that has a color.
    fn with(mut self, word: &str, color: u8) -> Self {
        let at = self.text.chars().count();
        self.word = Some((at, at + word.chars().count(), color));
        self.text.push_str(word);
        self
    }

    /// The line as it is written.
    fn on(&self, paper: Paper) -> String {
        let text = fitted(self.text.trim_end(), paper.columns);
        let (Some((from, to, color)), true) = (self.word, paper.colored) else { return text };
        let part = |from: usize, to: usize| text.chars().skip(from).take(to - from);
        if color == PLAIN || part(from, to).next().is_none() {
            return text;
        }
        let (before, word) =
            (part(0, from).collect::<String>(), part(from, to).collect::<String>());
        let behind: String = text.chars().skip(to).collect();
        format!("{before}\u{1b}[{color}m{word}\u{1b}[0m{behind}")
    }
}

/// A text that is not longer than so many columns.
fn fitted(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let begin = text.chars().take(columns.saturating_sub(1));
    begin.chain((columns > 0).then_some('…')).collect()
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

/// The bound that this part of all did not pass; `None` where there was nothing.
fn quantile(took: &Took, part: f64) -> Option<String> {
    let all: u64 = took.buckets.iter().sum();
    let wanted = (all as f64 * part).ceil().max(1.0) as u64;
    let mut seen = 0;
    let at = took.buckets.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    Some(match BOUNDS.get(at) {
        Some(bound) => shown(*bound),
        None => format!(">{}", shown(BOUNDS[BOUNDS.len() - 1])),
    })
}

fn shown(seconds: f64) -> String {
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
/// How many methods are shown where upstreams need the room.
const MIN_METHODS: usize = 4;
/// The columns beside a name, with the longest state.
const NUMBERS: usize = 50;
/// The shortest that a name is cut to.
const MIN_NAME: usize = 12;

#[cfg(test)]
mod tests {
    use crate::admin::status::{Method, Upstream};
    use crate::cli::instance::top::sample::*;

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
                    since_seconds: 75,
                    next_try_seconds: Some(3),
                    reason: Some("the process exited with code 1".to_owned()),
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

    fn paper(columns: usize, rows: usize) -> Paper {
        Paper { columns, rows, colored: false }
    }

    #[test]
    fn a_sample_tells_what_is_wrong_and_what_happened_between_two_looks() {
        let sample = Sample::of(&status(10.0, 1_000, 0), &status(12.0, 1_097, 3));
        let text = sample.to_text(paper(80, 20));
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
        let old = sample.without(Some("nobody answers at 127.0.0.1:1\nmore"));
        let text = old.to_text(paper(60, 7));
        let told = "no answer, and this is what was seen last: nobody answers a…";
        assert!(text.contains(told) && !text.contains("more"), "{text}");
    }

    #[test]
    fn no_line_is_too_wide_and_no_text_too_long_and_what_is_left_out_is_counted() {
        let mut after = status(12.0, 1_097, 3);
        let many = (0..40).map(|number| Upstream {
            name: format!("upstream-{number}-with-a-long-name-{number}"),
            state: if number % 2 == 0 { "crash-loop" } else { "up" }.to_owned(),
            reason: Some("it said\u{1b}[2J: no\nidea".to_owned()),
            calls: number,
            ..Upstream::default()
        });
        after.upstreams.extend(many);
        let sample = Sample::of(&status(10.0, 1_000, 0), &after);
        for (columns, rows) in [(80, 24), (200, 50), (40, 10), (20, 5), (1, 1), (80, 0)] {
            let text = sample.to_text(paper(columns, rows));
            assert!(text.lines().count() <= rows, "{columns}x{rows}:\n{text}");
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(widest <= columns && !text.contains('\u{1b}'), "{columns}x{rows}:\n{text}");
        }
        // What is wrong takes a quarter; the methods have their place; the busiest upstream is among those that are shown.
        let text = sample.to_text(paper(80, 24));
        assert_eq!(text.matches("more").count(), 2, "{text}");
        assert!(text.contains("tools/call") && text.contains("github"), "{text}");
    }

    #[test]
    fn colors_change_no_word() {
        let sample = Sample::of(&status(10.0, 1_000, 0), &status(12.0, 1_097, 3));
        let plain = sample.to_text(paper(80, 24));
        let colored = sample.to_text(Paper { colored: true, ..paper(80, 24) });
        let codes = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"];
        assert_ne!(colored, plain);
        assert_eq!(codes.iter().fold(colored, |text, code| text.replace(code, "")), plain);
    }

    #[test]
    fn a_process_that_began_anew_is_counted_from_zero() {
        let before = Status { process: 1, ..status(1_000.0, 5_000, 7) };
        for after in [status(2.0, 10, 0), Status { process: 2, ..status(2_000.0, 4_000, 0) }] {
            let sample = Sample::of(&before, &after);
            let row = &sample.upstreams[0];
            assert!(row.per_second > 0.0 && row.per_second <= 5.0, "{}", row.per_second);
            assert_eq!(row.errors, 0.0);
        }
    }
}
