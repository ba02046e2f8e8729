//! Log of one upstream for operators: standard error of its processes, their starts and ends, and
//! changes of its connection.
//!
//! It outlives processes, and also the upstream if a reload or a restart replaces it. Lines are
//! stored as they were written; secrets and control characters are replaced when they are read.
//!
//! Invariants: entries and bytes are bounded, and the oldest entry is dropped first. Numbers follow
//! each other, so a reader of two pages sees how many entries were dropped between them. A line
//! that was read has no secret that its process was given, and only visible characters.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use strum::IntoStaticStr;

use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::tasks::sync::Mutex;
use weir_base::text::invisible_chars::{is_invisible, is_mark_of_direction, visible_form};
use weir_base::text::terminal_styles::without_styles;

/// Log of one upstream, for entries about its connection or about one of its processes. Cheap to
/// clone.
#[derive(Clone, Default)]
pub(crate) struct UpstreamLog {
    ring: Arc<Mutex<LogRing>>,
    origin: Arc<LogOrigin>,
}

/// Origin of entries.
#[derive(Default)]
struct LogOrigin {
    /// Number of the process; `None` for the connection.
    process: Option<u64>,
    /// Values that the server was given, and may repeat.
    secrets: Arc<SecretPatterns>,
}

/// Last entries.
struct LogRing {
    /// Time at which it was begun, in microseconds since 1970: another log of the name has another.
    id: u64,
    entries: VecDeque<LogEntry>,
    bytes: usize,
    /// Number of the last entry; that of the first one is 1.
    last: u64,
    /// Number of processes that were started.
    processes: u64,
}

#[derive(Clone)]
struct LogEntry {
    time: SystemTime,
    origin: Arc<LogOrigin>,
    kind: LogKind,
    text: Arc<str>,
    /// Whether the end of the text is missing.
    is_cut: bool,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum LogKind {
    /// Line of standard error.
    Stderr,
    /// Start of a process.
    Started,
    /// End of a process.
    Ended,
    /// Change of the connection.
    Connection,
}

/// Entries that were read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// Id of the log: that of an upstream that was removed and added again is another one.
    pub id: u64,
    /// Number of the last entry of the log; 0 if there was none yet.
    pub last: u64,
    /// Entries, the oldest first.
    pub lines: Vec<LogLine>,
}

/// Entry as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Number within the log.
    pub number: u64,
    /// Time at which it was written.
    pub time: SystemTime,
    /// Number of the process of the upstream that it is about; `None` for the connection.
    pub process: Option<u64>,
    /// Kind of the entry.
    pub kind: LogKind,
    /// One line without secrets and control characters.
    pub text: String,
}

impl UpstreamLog {
    /// Creates the log of an upstream that was given these secrets, or goes on with that of the
    /// upstream `before`, which it replaces.
    pub(crate) fn begin(secrets: Arc<SecretPatterns>, before: Option<&Self>) -> Self {
        let ring = before.map(|before| Arc::clone(&before.ring)).unwrap_or_default();
        let log = Self { ring, origin: Arc::new(LogOrigin { process: None, secrets }) };
        if before.is_some() {
            log.record(LogKind::Connection, "begun again by a reload or a restart");
        }
        log
    }

    /// Values that the server was given, and may repeat.
    pub(crate) fn secrets(&self) -> &Arc<SecretPatterns> {
        &self.origin.secrets
    }

    /// Records the start of a process, and returns the log for its entries.
    pub(crate) fn begin_process(&self) -> Self {
        let process = {
            let mut ring = self.ring.lock();
            ring.processes += 1;
            Some(ring.processes)
        };
        let secrets = Arc::clone(&self.origin.secrets);
        let origin = Arc::new(LogOrigin { process, secrets });
        let log = Self { ring: Arc::clone(&self.ring), origin };
        log.record(LogKind::Started, "started");
        log
    }

    /// Records an event.
    pub(crate) fn record(&self, kind: LogKind, text: &str) {
        let end = text.floor_char_boundary(MAX_EVENT_BYTES);
        self.push(SystemTime::now(), kind, text[..end].into(), end < text.len());
    }

    /// Adds a line of standard error, whose end may have been cut.
    pub(crate) fn push_stderr(&self, time: SystemTime, line: Arc<str>, is_cut: bool) {
        self.push(time, LogKind::Stderr, line, is_cut);
    }

    fn push(&self, time: SystemTime, kind: LogKind, text: Arc<str>, is_cut: bool) {
        let origin = Arc::clone(&self.origin);
        let mut ring = self.ring.lock();
        ring.last += 1;
        ring.bytes += text.len();
        ring.entries.push_back(LogEntry { time, origin, kind, text, is_cut });
        while ring.bytes > MAX_LOG_BYTES || ring.entries.len() > MAX_LOG_LINES {
            let Some(oldest) = ring.entries.pop_front() else { break };
            ring.bytes -= oldest.text.len();
        }
    }

    /// Reads the last entries after the one of this number, at most `count`. A number that no entry
    /// has yet is of another log: then those of the whole log are read. Takes long for many
    /// secrets.
    pub(crate) fn read(&self, after: u64, count: usize) -> LogPage {
        let (id, last, entries): (_, _, Vec<_>) = {
            let ring = self.ring.lock();
            let after = if after > ring.last { 0 } else { after };
            let new = usize::try_from(ring.last - after).unwrap_or(usize::MAX);
            let length = ring.entries.len();
            let skipped = length - new.min(count).min(length);
            (ring.id, ring.last, ring.entries.range(skipped..).cloned().collect())
        };
        let first = last - entries.len() as u64 + 1;
        let numbered = (first..).zip(entries);
        let lines = numbered.map(|(number, entry)| LogLine {
            number,
            time: entry.time,
            process: entry.origin.process,
            kind: entry.kind,
            text: entry.visible_text(),
        });
        LogPage { id, last, lines: lines.collect() }
    }
}

impl Default for LogRing {
    fn default() -> Self {
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let id = u64::try_from(begun.unwrap_or_default().as_micros()).unwrap_or_default();
        Self { id, entries: VecDeque::new(), bytes: 0, last: 0, processes: 0 }
    }
}

impl fmt::Debug for UpstreamLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpstreamLog")
    }
}

impl LogEntry {
    /// Returns the text without secrets, with each invisible character in its visible form.
    fn visible_text(&self) -> String {
        // Colors first: one within a secret must not hide it.
        let text = without_styles(&self.text);
        let text = match self.is_cut {
            true => self.origin.secrets.redact_cut(&text),
            false => self.origin.secrets.redact(&text),
        };
        let mut visible = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '\t' => visible.push_str(TAB),
                _ if is_invisible(letter) || is_mark_of_direction(letter) => {
                    visible.push_str(&visible_form(letter));
                }
                _ => visible.push(letter),
            }
        }
        if self.is_cut {
            visible.push('…');
        }
        visible
    }
}

/// Bytes and entries of the log of one upstream.
const MAX_LOG_BYTES: usize = 64 * 1024;
const MAX_LOG_LINES: usize = 1_000;
/// Longest text of an event.
const MAX_EVENT_BYTES: usize = 4 * 1024;

/// Blanks in the place of a tab, which is a control character.
const TAB: &str = "    ";

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(secrets: &[&str]) -> UpstreamLog {
        UpstreamLog::begin(Arc::new(SecretPatterns::new(secrets.iter().copied())), None)
    }

    fn push(log: &UpstreamLog, line: &str) {
        log.push_stderr(SystemTime::now(), line.into(), false);
    }

    fn texts(page: &LogPage) -> Vec<&str> {
        page.lines.iter().map(|line| &*line.text).collect()
    }

    /// The visible form of a line of a process that was given the secret `hunter2-canary`.
    fn visible(line: &str, is_cut: bool) -> String {
        let log = log_of(&["hunter2-canary"]);
        log.push_stderr(SystemTime::now(), line.into(), is_cut);
        log.read(0, 1).lines.remove(0).text
    }

    #[test]
    fn a_page_has_the_last_entries_after_a_number() {
        let log = log_of(&[]);
        let empty = log.read(0, 10);
        assert_eq!((empty.last, empty.lines), (0, Vec::new()));
        let process = log.begin_process();
        push(&process, "one");
        push(&process, "two");
        process.record(LogKind::Ended, "exited with code 1");
        log.record(LogKind::Connection, "not connected");
        let page = log.read(0, 10);
        let about = |line: &LogLine| (line.number, line.process, line.kind);
        assert_eq!(
            page.lines.iter().map(about).collect::<Vec<_>>(),
            [
                (1, Some(1), LogKind::Started),
                (2, Some(1), LogKind::Stderr),
                (3, Some(1), LogKind::Stderr),
                (4, Some(1), LogKind::Ended),
                (5, None, LogKind::Connection),
            ]
        );
        assert_eq!(texts(&page)[1..], ["one", "two", "exited with code 1", "not connected"]);
        assert_eq!(texts(&log.read(3, 10)), ["exited with code 1", "not connected"]);
        assert_eq!(texts(&log.read(1, 1)), ["not connected"]);
        for (after, count) in [(5, 10), (0, 0)] {
            let page = log.read(after, count);
            assert_eq!((page.id, page.last, page.lines), (empty.id, 5, Vec::new()));
        }
        // A number of an earlier log of this name.
        assert_eq!(log.read(6, 10), page);
    }

    #[test]
    fn entries_and_bytes_are_bounded_and_a_gap_shows_how_many_were_dropped() {
        let log = log_of(&[]);
        (0..5_000).for_each(|number| push(&log, &number.to_string()));
        let page = log.read(100, usize::MAX);
        assert_eq!((page.last, page.lines.len()), (5_000, MAX_LOG_LINES));
        assert_eq!((page.lines[0].number, &*page.lines[0].text), (4_001, "4000"));

        let line = "x".repeat(4_096);
        (0..100).for_each(|_| push(&log, &line));
        let page = log.read(0, usize::MAX);
        assert_eq!((page.last, page.lines.len()), (5_100, MAX_LOG_BYTES / 4_096));
        assert_eq!(page.lines[0].number, 5_085);
        assert!(log.ring.lock().bytes <= MAX_LOG_BYTES);

        log.record(LogKind::Connection, &"é".repeat(10_000));
        let text = log.read(5_100, 1).lines.remove(0).text;
        assert!(text.len() < MAX_EVENT_BYTES + 4 && text.ends_with("é…"), "{}", text.len());
        // One that alone is too long leaves nothing, and its number shows that.
        push(&log, &"x".repeat(MAX_LOG_BYTES + 1));
        let page = log.read(0, 9);
        assert_eq!((page.last, page.lines), (5_102, Vec::new()));
    }

    #[test]
    fn it_goes_on_where_the_upstream_is_replaced_and_keeps_the_secrets_of_each() {
        let before = log_of(&["first-canary"]);
        push(&before.begin_process(), "given first-canary");
        let after =
            UpstreamLog::begin(Arc::new(SecretPatterns::new(["second-canary"])), Some(&before));
        push(&after.begin_process(), "given second-canary");
        // The former process still runs.
        let page = after.read(0, 10);
        assert_eq!(
            texts(&page),
            [
                "started",
                "given ***",
                "begun again by a reload or a restart",
                "started",
                "given ***"
            ]
        );
        assert_eq!(page.lines[4].process, Some(2));
        assert_eq!(before.read(0, 10), page);
    }

    #[test]
    fn secrets_are_replaced_in_each_spelling_and_behind_colors() {
        for line in [
            "token hunter2-canary!",
            "token hunter2%2Dcanary!",
            r"token hunter2\u002dcanary!",
            "token \u{1b}[31mhunter2\u{1b}[0m-canary!",
        ] {
            assert_eq!(visible(line, false), "token ***!", "{line:?}");
        }
        // The beginning of one at the place where a line was cut.
        assert_eq!(visible("token hunter2-c", true), "token ***…");
        assert_eq!(visible("token h", true), "token ***…");
        assert_eq!(visible("token hunter2-c", false), "token hunter2-c");
    }

    #[test]
    fn control_characters_are_visible_and_colors_are_removed() {
        for (line, expected) in [
            ("  at \tmain \u{1b}[1;31mred\u{1b}[0m \u{1b}[m", "  at     main red "),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", "<U+001B>[2J<U+001B>]0;x<U+0007>"),
            ("\u{1b}[\u{1b}[0m1m", "<U+001B>[1m"),
            ("\u{1b}[12", "<U+001B>[12"),
            ("10%\r20%", "10%<U+000D>20%"),
            ("a\u{202e}b\u{200f}c\u{2028}\u{9b}", "a<U+202E>b<U+200F>c<U+2028><U+009B>"),
            ("it's \"é\" \\", "it's \"é\" \\"),
        ] {
            assert_eq!(visible(line, false), expected);
        }
    }
}
