//! `--trace`: the messages between Weir and its upstreams, as lines on standard error.
//!
//! Invariants: nothing is written to standard output. A write to standard error waits for at most
//! [`WRITE_TIMEOUT`]; then the line is dropped and counted. Lines are never queued.

use std::io::stderr;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cli::output::wrapped_text::{TextColor, WrappedText};
use crate::cli::output::{Color, progress};
use weir_base::secrets::secret::Secret;
use weir_base::tasks::sync::Mutex;
use weir_base::time::timestamp;
use weir_config::Config;
use weir_mcp::name::UpstreamName;
use weir_upstream::connect::{TraceDirection, TraceLine, TraceSink};

/// Option of every command that sends requests to upstreams.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Writes the messages between Weir and the upstreams to standard error, without secrets: the
    /// first 4 KiB of each, or with `full` all of it.
    #[arg(long, value_name = "EXTENT", value_enum, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "short")]
    trace: Option<TraceExtent>,
}

/// Part of each message that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TraceExtent {
    Short,
    Full,
}

impl TraceArgs {
    /// Lets all gateways of this process trace their messages, if the option was given.
    pub(crate) fn apply(&self) {
        if let Some(extent) = self.trace {
            let _ = EXTENT.set(extent);
        }
    }
}

/// Choice for this process; empty without a trace.
static EXTENT: OnceLock<TraceExtent> = OnceLock::new();

/// Returns the receiver of the messages of these upstreams, if they are traced.
pub(crate) fn sink(config: &Config) -> Option<Arc<dyn TraceSink>> {
    let extent = *EXTENT.get()?;
    let secrets = config.upstreams.iter();
    let secrets = secrets.map(|it| (it.settings.name.clone(), it.file_contents.clone()));
    let (secrets, output) = (secrets.collect(), Mutex::new(TraceOutput::default()));
    Some(Arc::new(StderrTrace { extent, colored: Color::on_stderr(), secrets, output }))
}

/// Receiver that writes lines to standard error.
struct StderrTrace {
    extent: TraceExtent,
    colored: bool,
    /// Contents of secret files of each upstream.
    secrets: Vec<(UpstreamName, Vec<Secret>)>,
    output: Mutex<TraceOutput>,
}

impl TraceSink for StderrTrace {
    fn limit(&self) -> usize {
        match self.extent {
            TraceExtent::Short => SHORT_BYTES,
            TraceExtent::Full => usize::MAX,
        }
    }

    fn secrets(&self, upstream: &UpstreamName) -> Vec<Secret> {
        let found = self.secrets.iter().find(|(name, _)| name == upstream);
        found.map(|(_, secrets)| secrets.clone()).unwrap_or_default()
    }

    fn write(&self, line: &TraceLine<'_>) {
        // Both are held while the line is written: no other one begins within it.
        let mut output = self.output.lock();
        let text = format(line, SystemTime::now(), self.colored);
        progress::suspended(|| output.write(&text, stderr().lock()));
    }
}

/// Formats a message as a line.
fn format(line: &TraceLine<'_>, now: SystemTime, colored: bool) -> String {
    let colors = WrappedText::new(usize::MAX, colored);
    let mut time = String::new();
    timestamp::push_millis(&mut time, now);
    let time = time.split_once('T').map_or(&*time, |(_, time)| time);
    let time = colors.colorize(time, TextColor::Dim);
    let arrow = match line.direction {
        TraceDirection::ToServer => colors.colorize("->", TextColor::Green),
        TraceDirection::FromServer => colors.colorize("<-", TextColor::Yellow),
    };
    let mut text = format!("{time} {arrow} {}: {}", line.upstream, line.text);
    if line.left_out > 0 {
        let left_out = format!("… {} bytes left out (--trace=full)", line.left_out);
        text += &format!(" {}", colors.colorize(&left_out, TextColor::Dim));
    }
    if let Some(remark) = line.remark {
        text += &format!(" {}", colors.colorize(&format!("… {remark}"), TextColor::Dim));
    }
    text + "\n"
}

// === TraceOutput ===

/// Standard error, as far as lines may be dropped.
#[derive(Default)]
struct TraceOutput {
    /// Lines that were dropped since the last one that was written.
    dropped: usize,
    /// Whether only the beginning of the last line was written.
    is_within_line: bool,
}

impl TraceOutput {
    /// Writes a line, or drops it if nothing is read for too long. Behind dropped ones the next
    /// line waits only once the reader has begun to read again.
    fn write(&mut self, line: &str, to: impl AsFd) {
        let notice = match self.dropped {
            0 => String::new(),
            count => format!("{count} lines left out: standard error was not read\n"),
        };
        let begin = if self.is_within_line { "\n" } else { "" };
        let text = format!("{begin}{notice}{line}");
        let timeout = if self.dropped > 0 { Duration::ZERO } else { WRITE_TIMEOUT };
        let written = write_within(to, text.as_bytes(), timeout);
        if written == text.len() {
            *self = Self::default();
            return;
        }
        if written >= begin.len() + notice.len() {
            self.dropped = 0;
        }
        self.dropped += 1;
        if let Some(last) = text.as_bytes()[..written].last() {
            self.is_within_line = *last != b'\n';
        }
    }
}

/// Writes a text while it is read, and returns how much of it was written. It waits for `timeout`
/// for its beginning, and for [`WRITE_TIMEOUT`] for the rest. An error cannot be reported anywhere,
/// and counts as success.
fn write_within(to: impl AsFd, text: &[u8], timeout: Duration) -> usize {
    let (mut written, mut until) = (0, Instant::now() + timeout);
    while written < text.len() {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&to, PollFlags::OUT)];
        let time = Timespec::try_from(left).ok();
        match poll(&mut fds, time.as_ref()) {
            Ok(0) => break,
            Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        let end = text.len().min(written + PIECE_BYTES);
        match rustix::io::write(&to, &text[written..end]) {
            Ok(count) => {
                if written == 0 {
                    until = Instant::now() + WRITE_TIMEOUT;
                }
                written += count;
            }
            Err(Errno::AGAIN) if left.is_zero() => break,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return text.len(),
        }
    }
    written
}

/// Bytes of a message that are shown.
const SHORT_BYTES: usize = 4 * 1024;
/// Time for which a line waits for the reader of standard error.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that a pipe takes at once if it can take any (POSIX, `_POSIX_PIPE_BUF`).
const PIECE_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn a_message_is_a_line_with_time_direction_and_upstream() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_234_812_007);
        let upstream = "notes".parse().expect("a name");
        let line = |direction, text, left_out, remark| {
            let line = TraceLine { upstream: &upstream, direction, text, left_out, remark };
            format(&line, now, false)
        };
        let (to, from) = (TraceDirection::ToServer, TraceDirection::FromServer);
        let lines = [
            line(to, r#"{"id":1}"#, 0, None),
            line(from, r#"{"id":1,"#, 12, None),
            line(from, "{", 0, Some("the rest was not read")),
            line(from, "{", 3, Some("the rest was not read")),
        ];
        assert_snapshot!(lines.concat(), @r#"
        04:20:12.007Z -> notes: {"id":1}
        04:20:12.007Z <- notes: {"id":1, … 12 bytes left out (--trace=full)
        04:20:12.007Z <- notes: { … the rest was not read
        04:20:12.007Z <- notes: { … 3 bytes left out (--trace=full) … the rest was not read
        "#);
        let line =
            TraceLine { upstream: &upstream, direction: to, text: "{}", left_out: 1, remark: None };
        assert_eq!(
            format(&line, now, true).replace('\u{1b}', "ESC"),
            "ESC[2m04:20:12.007ZESC[0m ESC[32m->ESC[0m notes: {} \
             ESC[2m… 1 bytes left out (--trace=full)ESC[0m\n"
        );
    }
    #[test]
    fn lines_that_are_dropped_are_counted_in_a_later_one() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut output = TraceOutput::default();
        let line = "x".repeat(5_000) + "\n";
        let count = 100;
        for _ in 0..count {
            output.write(&line, &writer);
        }
        let mut text = vec![0; count * line.len()];
        let read = reader.read(&mut text).expect("the beginning");
        text.truncate(read);
        output.write("last\n", &writer);
        output.write("more\n", &writer);
        drop(writer);
        reader.read_to_end(&mut text).expect("the rest");
        let text = String::from_utf8(text).expect("text");
        let whole = text.matches(&line).count();
        assert!(whole < count, "a pipe holds no more than that");
        let dropped = count - whole;
        let end = format!("x\n{dropped} lines left out: standard error was not read\nlast\nmore\n");
        assert!(text.ends_with(&end), "{}", &text[text.len() - 200..]);
    }
}
