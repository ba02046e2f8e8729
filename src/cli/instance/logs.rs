//! `weir logs`: shows the standard error of an upstream, its starts and its ends, as the running
//! Weirs of a configuration have recorded them.
//!
//! A followed log is asked for at short intervals, so a restart of the upstream changes nothing.
//!
//! Invariants: a gap in a log is shown, with the number of lines that are missing. A line of the
//! upstream begins with `|`, so that none looks like an event. The exit code is 2 if there is no
//! such upstream, 3 if the token is rejected, and 4 if no Weir is running, or none any more.

use std::time::Duration;

use crate::admin::logs::{LogHead, LogQuery, LogRecord};
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::RunningInstance;
use crate::cli::instance::status::connect_to_all;
use crate::cli::loading::ConfigArgs;
use crate::cli::output;
use crate::cli::output::render::{counted, sanitize_line};

/// Arguments of `weir logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Upstream whose log is shown.
    #[arg(value_name = "UPSTREAM", value_hint = clap::ValueHint::Other)]
    upstream: String,
    /// Continues with lines that are written from now on.
    #[arg(long, short)]
    follow: bool,
    /// Number of lines to show first.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 100)]
    lines: usize,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Shows the log of each running process, merged by time.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let found = connect_to_all(&args.config, &args.upstream).await?;
    let names_weir = found.len() > 1;
    let mut logs: Vec<_> = found.into_iter().map(|it| FollowedLog::new(it, names_weir)).collect();
    let mut page = read_all(&mut logs, &args.upstream, args.lines).await?;
    page.drain(..page.len().saturating_sub(args.lines));
    logs.iter().for_each(|log| log.explain_source(&args.upstream));
    let is_empty = args.lines > 0 && page.is_empty();
    if let Some(log) = logs.first().filter(|_| is_empty) {
        output::print_message(&format!("weir: nothing yet: {}", log.state(&args.upstream)));
    }
    while print(&page)? && args.follow {
        tokio::time::sleep(POLL_INTERVAL).await;
        page = read_all(&mut logs, &args.upstream, usize::MAX).await?;
    }
    Ok(())
}

/// Reads the new lines of each log, the oldest first. A process that has ended is taken from the
/// list; fails if it was the last one.
async fn read_all(
    logs: &mut Vec<FollowedLog>,
    upstream: &str,
    count: usize,
) -> Result<Vec<ShownLine>, Failure> {
    let mut lines = Vec::new();
    let mut ended = None;
    let mut at = 0;
    while let Some(log) = logs.get_mut(at) {
        match log.read(upstream, count).await {
            Ok(new) => {
                lines.extend(new);
                at += 1;
            }
            Err(failure) if log.is_over(&failure) => {
                let failure = logs.remove(at).describe_end(failure);
                if !logs.is_empty() {
                    let text = sanitize_line(&failure.to_string());
                    output::print_message(&format!("weir: {text}"));
                }
                ended = Some(failure);
            }
            Err(_) => at += 1,
        }
    }
    match ended {
        Some(failure) if logs.is_empty() => {
            // What it wrote last was read before its end was noticed.
            print(&lines)?;
            Err(failure)
        }
        _ => {
            lines.sort_by(|one, other| one.time.cmp(&other.time));
            Ok(lines)
        }
    }
}

/// Prints lines, and returns whether there is a reader for more.
fn print(lines: &[ShownLine]) -> Result<bool, Failure> {
    output::print_while_read(|out| lines.iter().try_for_each(|line| writeln!(out, "{}", line.text)))
}

/// Line of the output.
struct ShownLine {
    /// Time in UTC; of a gap, that of the line behind it.
    time: String,
    text: String,
}

/// Log of the upstream in one process of Weir.
struct FollowedLog {
    running: RunningInstance,
    /// Id of the process of Weir.
    weir: u32,
    /// Whether lines name that process.
    names_weir: bool,
    /// Number of the last entry that was read; `None` before the first response.
    after: Option<u64>,
    /// Id of the log, once it is known.
    log: Option<u64>,
    /// Kind of the upstream, once it is known.
    source: String,
    /// Whether the process has no such upstream at present.
    is_missing: bool,
    /// Failed requests in a row.
    failures: u32,
}

impl FollowedLog {
    fn new(running: RunningInstance, names_weir: bool) -> Self {
        let weir = running.status.process;
        let (after, log, source) = (None, None, String::new());
        Self { running, weir, names_weir, after, log, source, is_missing: false, failures: 0 }
    }

    /// Reads the entries that are new, at most `count`.
    async fn read(&mut self, upstream: &str, count: usize) -> Result<Vec<ShownLine>, Failure> {
        let after = self.after.unwrap_or_default();
        let query = LogQuery { upstream: upstream.to_owned(), after, lines: count };
        let mut answer = self.running.logs(&query).await?;
        if let Some((head, _)) = &answer
            && (head.weir != self.weir || self.log.is_some_and(|log| log != head.log))
        {
            let (before, now) = (self.weir, head.weir);
            output::print_message(&match before == now {
                true => format!("weir: `{upstream}` was replaced, and its log begins again"),
                false => format!("weir: process {now} of Weir has replaced {before}"),
            });
            self.weir = now;
            self.after = self.after.map(|_| 0);
            answer = self.running.logs(&LogQuery { after: 0, ..query }).await?;
        }
        self.failures = 0;
        let Some((head, records)) = answer else {
            if !self.is_missing {
                let text =
                    format!("process {} of Weir has no upstream `{upstream}` now", self.weir);
                output::print_message(&format!("weir: {text}; its log goes on if it comes back"));
            }
            // It comes back with another log.
            (self.is_missing, self.after) = (true, Some(0));
            return Ok(Vec::new());
        };
        self.is_missing = false;
        Ok(self.show(head, &records))
    }

    /// Returns the lines of a response, and records that they were read.
    fn show(&mut self, head: LogHead, records: &[LogRecord]) -> Vec<ShownLine> {
        let known = self.after.filter(|after| *after <= head.last);
        let mut lines = Vec::new();
        if let (Some(known), Some(first)) = (known, records.first()) {
            let missing = first.number.saturating_sub(known + 1);
            if missing > 0 {
                let text = format!(
                    "{}  … {} missing: more came than Weir keeps",
                    self.begin(first),
                    counted(missing, "line")
                );
                lines.push(ShownLine { time: first.time.clone(), text });
            }
        }
        lines.extend(records.iter().map(|record| {
            let separator = if record.is_output() { "  | " } else { "  " };
            let process = record.process.map(|number| format!("  #{number}")).unwrap_or_default();
            let text = sanitize_line(&record.text);
            let text = [&*self.begin(record), &process, separator, &text].concat();
            ShownLine { time: record.time.clone(), text }
        }));
        (self.after, self.log, self.source) = (Some(head.last), Some(head.log), head.source);
        lines
    }

    /// Returns the beginning of a line: its time, and the process of Weir if there are several.
    fn begin(&self, record: &LogRecord) -> String {
        let time = sanitize_line(&record.time);
        match self.names_weir {
            true => format!("{time}  weir {}", self.weir),
            false => time,
        }
    }

    /// Says why there are no lines of standard error, if there cannot be any.
    fn explain_source(&self, upstream: &str) {
        let why = match &*self.source {
            "http" => "is reached over HTTP, and has no standard error here",
            "library" => "is a folder of prompts, and has no standard error",
            "one-replica" => {
                "runs on one replica at a time, in whose own log its standard error is"
            }
            _ => return,
        };
        output::print_message(&format!("weir: `{upstream}` {why}: these are its connections"));
    }

    /// Returns the state that the upstream had at the beginning.
    fn state(&self, upstream: &str) -> String {
        let status = self.running.status.upstreams.iter().find(|it| it.name == upstream);
        let state = status.map_or("not there", |status| &*status.state);
        format!("`{upstream}` is {}", sanitize_line(state))
    }

    /// Records a failed request, and returns whether the log is given up: its process has ended, or
    /// has never sent anything.
    fn is_over(&mut self, failure: &Failure) -> bool {
        self.failures += 1;
        let has_ended = matches!(failure, Failure::NotRunning(_));
        has_ended || self.after.is_none() || self.failures >= MAX_FAILURES
    }

    /// Returns the failure that is reported for a log that was given up.
    fn describe_end(&self, failure: Failure) -> Failure {
        match failure {
            Failure::NotRunning(_) if self.after.is_some() => Failure::NotRunning(format!(
                "Weir has ended (process {}); start it again with `weir serve`, or its client",
                self.weir
            )),
            failure => failure,
        }
    }
}

/// Interval between two requests.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Failed requests in a row after which a process counts as ended.
const MAX_FAILURES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::instance::admin_client::tests::instance;

    fn record(number: u64, process: Option<u64>, event: &str, text: &str) -> LogRecord {
        let (event, text) = (event.to_owned(), text.to_owned());
        LogRecord { number, time: "T".to_owned(), process, event, text }
    }

    fn texts(log: &mut FollowedLog, last: u64, records: &[LogRecord]) -> Vec<String> {
        let head = LogHead { last, ..LogHead::default() };
        log.show(head, records).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_line_of_the_upstream_looks_like_no_event() {
        let mut log = FollowedLog::new(instance(7), false);
        let records = [
            record(4, Some(2), "started", "started"),
            record(5, Some(2), "stderr", "ended: \u{1b}[2J\u{202e}"),
            record(6, None, "connection", "not connected: x"),
        ];
        assert_eq!(
            texts(&mut log, 6, &records),
            ["T  #2  started", "T  #2  | ended: \u{fffd}[2J\u{fffd}", "T  not connected: x"]
        );
    }

    #[test]
    fn a_gap_is_shown_with_its_length_and_another_log_is_none() {
        let mut log = FollowedLog::new(instance(7), true);
        let line = |number| [record(number, Some(1), "stderr", "x")];
        // Of the lines before the first page more may have been there.
        assert_eq!(texts(&mut log, 10, &line(10)), ["T  weir 7  #1  | x"]);
        assert_eq!(
            texts(&mut log, 15, &line(15)),
            ["T  weir 7  … 4 lines missing: more came than Weir keeps", "T  weir 7  #1  | x"]
        );
        assert_eq!(texts(&mut log, 15, &[]), [""; 0]);
        assert_eq!(texts(&mut log, 2, &line(2)), ["T  weir 7  #1  | x"]);
        assert_eq!(texts(&mut log, 3, &line(3)), ["T  weir 7  #1  | x"]);
    }
}
