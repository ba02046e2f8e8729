//! Monitor of a child process: its end, and its standard error.
//!
//! Invariants: standard error is always drained, so a talkative child never blocks. A child that is
//! no longer needed gets time to exit, then SIGTERM, then SIGKILL, and its process group goes with
//! it.

pub(crate) mod crash_report;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::ProcessHandle;
use crate::health::upstream_log::{LogKind, UpstreamLog};
use crate::process::stderr_tail::{STDERR_LINE_BYTES, StderrTail};
use crate::transport::invalid_lines::InvalidLines;
use crate::transport::lifetime::ConnectionEnd;
use crash_report::CrashReport;
use weir_base::tasks::fairness::Workload;
use weir_base::text::line_codec::{DecodedLine, LineDecoder};
use weir_base::time::rate_limit::RateLimiter;
use weir_mcp::name::UpstreamName;

/// Time for which the remaining output of a child that has ended is read.
const OUTPUT_DRAIN: Duration = Duration::from_millis(500);

/// Size of one read: what a pipe holds.
const PIPE_BYTES: usize = 64 * 1024;

/// Pause after each of so many bytes: a child that writes without end gets no whole processor for
/// it, and still more than half a gigabyte per second.
const REST: Duration = Duration::from_millis(1);
const REST_BYTES: usize = 1 << 20;

/// Lines of it that are logged per second; the others are counted.
const MAX_LOGGED_LINES_PER_SECOND: u32 = 50;

/// Waits for the end of a child process, or ends it.
pub(crate) struct ChildMonitor {
    pub(crate) process: Box<dyn ProcessHandle>,
    pub(crate) stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pub(crate) end: ConnectionEnd,
    /// Fires when the child has closed its standard output, or no longer reads its standard input.
    pub(crate) broken: CancellationToken,
    /// Reason why Weir ends a child that still runs, if it does.
    pub(crate) kill_reason: Arc<OnceLock<String>>,
    /// Time to exit after its standard input is closed, and after SIGTERM.
    pub(crate) stop_timeouts: [Duration; 2],
    pub(crate) report: Arc<CrashReport>,
    pub(crate) invalid_lines: Arc<InvalidLines>,
    /// Log of the upstream, for entries about this process.
    pub(crate) log: UpstreamLog,
}

impl ChildMonitor {
    /// Starts the monitor and the task that drains standard error.
    pub(crate) fn start(mut self, tasks: &TaskTracker) {
        let tail = StderrTail::default();
        let stderr_ended = CancellationToken::new();
        if let Some(stderr) = self.stderr.take() {
            let name = self.end.dispatcher.name.clone();
            let drain = drain(stderr, tail.clone(), self.log.clone(), name);
            let (stderr_ended, gone) = (stderr_ended.clone().drop_guard(), self.end.gone.clone());
            tasks.spawn(async move {
                let _guard = stderr_ended;
                gone.run_until_cancelled(drain).await;
            });
        } else {
            stderr_ended.cancel();
        }
        tasks.spawn(self.run(tail, stderr_ended));
    }

    /// Waits until the child ends or is to end, ends all requests in flight with the reason, and
    /// leaves nothing of the child behind.
    async fn run(mut self, tail: StderrTail, stderr_ended: CancellationToken) {
        let mut end = None;
        let cause = tokio::select! {
            biased;
            () = self.end.closing.cancelled() => "it was stopped".to_owned(),
            how = self.process.wait() => {
                end = Some(format!("ended: {how}"));
                // Processes that the child has started may keep its pipes open for ever, so they
                // are killed first. The output that the child wrote before its end is still in the
                // pipes; a process that has left the process group may keep them open, too, so the
                // wait is bounded.
                self.process.kill();
                let _ = timeout(OUTPUT_DRAIN, self.broken.cancelled()).await;
                format!("the process {how}")
            }
            () = self.broken.cancelled() => {
                let exit_wait = match self.kill_reason.get() {
                    Some(_) => Duration::ZERO,
                    None => OUTPUT_DRAIN,
                };
                match (timeout(exit_wait, self.process.wait()).await, self.kill_reason.get()) {
                    (Ok(how), _) => {
                        end = Some(format!("ended: {how}"));
                        self.process.kill();
                        format!("the process {how}")
                    }
                    (Err(_), Some(reason)) => reason.clone(),
                    (Err(_), None) => "the process closed its standard input or output".to_owned(),
                }
            }
        };
        if let Some(end) = &end {
            let _ = timeout(OUTPUT_DRAIN, stderr_ended.cancelled()).await;
            self.log.record(LogKind::Ended, end);
        }
        let reason = match self.end.closing.is_cancelled() {
            true => cause.clone(),
            false => self.report.describe(cause.clone(), &tail.lines(), self.invalid_lines.first()),
        };
        self.end.publish(reason);
        // The writer now closes standard input, which asks the child to exit.
        self.end.closing.cancel();
        let stopped = match end {
            Some(_) => None,
            None => Some(self.stop().await),
        };
        // Processes that the child has started and left behind.
        self.process.kill();
        if let Some((how, has_last_words)) = stopped {
            if has_last_words {
                let _ = timeout(OUTPUT_DRAIN, stderr_ended.cancelled()).await;
            }
            self.log.record(LogKind::Ended, &format!("ended: {cause}, and {how}"));
        }
    }

    /// Ends the process. Returns how it has ended, and whether it could still write then.
    async fn stop(&mut self) -> (String, bool) {
        let [after_stdin_close, after_sigterm] = self.stop_timeouts;
        if let Ok(how) = timeout(after_stdin_close, self.process.wait()).await {
            return (how, true);
        }
        self.process.terminate();
        if let Ok(how) = timeout(after_sigterm, self.process.wait()).await {
            return (how, true);
        }
        self.process.kill();
        (self.process.wait().await, false)
    }
}

/// Reads standard error to its end, logs it, and stores its last lines.
async fn drain(
    mut stderr: Box<dyn AsyncRead + Send + Unpin>,
    tail: StderrTail,
    log: UpstreamLog,
    name: UpstreamName,
) {
    let mut lines = LineDecoder::new(STDERR_LINE_BYTES).with_read_bytes(PIPE_BYTES);
    let per_second = MAX_LOGGED_LINES_PER_SECOND;
    let (mut rate, mut omitted) =
        (RateLimiter::new(per_second, per_second, Instant::now()), 0_usize);
    let (mut workload, mut since_rest) = (Workload::default(), 0);
    while let Ok(bytes @ 1..) = stderr.read_buf(lines.buffer()).await {
        since_rest += bytes;
        if since_rest >= REST_BYTES {
            since_rest = 0;
            sleep(REST).await;
        }
        workload.add(0);
        workload.yield_if_due().await;
        // One look at the clock for all lines of a piece.
        let (now, time) = (Instant::now(), SystemTime::now());
        while let Some(line) = lines.next_line() {
            // Counted like a message, a flood of lines would mostly yield: each time another thread
            // looks for work.
            let (is_cut, line) = match line {
                DecodedLine::Whole(line) => (false, line),
                DecodedLine::TooLong(line) | DecodedLine::BudgetExhausted(line) => (true, line),
            };
            workload.add_small(line.len());
            workload.yield_if_due().await;
            let line = to_text(&line, is_cut);
            if rate.admit(now) {
                if omitted > 0 {
                    tracing::debug!(upstream = %name, omitted, "child standard error rate-limited");
                    omitted = 0;
                }
                tracing::debug!(upstream = %name, stderr = &*line, "child standard error");
            } else {
                omitted += 1;
            }
            tail.push(Arc::clone(&line));
            log.push_stderr(time, line, is_cut);
        }
    }
    let rest = to_text(lines.buffer(), false);
    if !rest.trim().is_empty() {
        tail.push(Arc::clone(&rest));
        log.push_stderr(SystemTime::now(), rest, false);
    }
}

/// Converts a line; one that was cut ends with a whole character.
fn to_text(line: &[u8], is_cut: bool) -> Arc<str> {
    // Several times as fast for text as the function that replaces what is none.
    match std::str::from_utf8(line) {
        Ok(text) => text.into(),
        Err(bad) if is_cut && bad.error_len().is_none() => {
            String::from_utf8_lossy(&line[..bad.valid_up_to()]).into()
        }
        Err(_) => String::from_utf8_lossy(line).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Seek};

    use crate::transport::child::*;
    use tokio::io::AsyncWriteExt;
    use weir_base::secrets::secret_search::SecretPatterns;

    #[tokio::test(start_paused = true)]
    async fn each_line_is_kept_in_a_form_that_can_be_read_however_it_arrives() {
        let secrets = Arc::new(SecretPatterns::new(["hunter2-canary"]));
        let log = UpstreamLog::begin(secrets, None);
        let long = "x".repeat(STDERR_LINE_BYTES - 6);
        // Of the secret in the longest line six characters are left.
        let cut = format!("{long}hunter2-canary{}", "y".repeat(64 * 1024));
        // One byte of the next character still fits.
        let accents = "a".to_owned() + &"é".repeat(STDERR_LINE_BYTES / 2 - 1);
        let begin: [&[u8]; 3] = [b"token hunter2-", b"canary\n", cut.as_bytes()];
        let end: [&[u8]; 4] =
            [b"\n\xff\xfe \xc3\n", b"\n  \n", accents.as_bytes(), "é\nno end".as_bytes()];
        let (mut child, ours) = tokio::io::duplex(64);
        let writes = async move {
            for piece in begin.into_iter().chain(end) {
                child.write_all(piece).await.expect("read");
            }
        };
        let name = "hub".parse().expect("a name");
        let drain = drain(Box::new(ours), StderrTail::default(), log.clone(), name);
        tokio::join!(drain, writes);
        let lines = log.read(0, 10).lines.into_iter().map(|line| line.text);
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                "token ***",
                &format!("{long}***…"),
                "\u{fffd}\u{fffd} \u{fffd}",
                &format!("{accents}…"),
                "no end"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn of_too_many_lines_on_standard_error_the_rest_is_counted() {
        let logged = Arc::new(tempfile::tempfile().expect("a file"));
        let logger = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        let logger = logger.with_ansi(false).with_writer(Arc::clone(&logged)).finish();
        let _here = tracing::subscriber::set_default(logger);
        let (mut child, ours) = tokio::io::duplex(64);
        let name = "hub".parse().expect("a name");
        let writes = async move {
            for number in 0..200 {
                child.write_all(format!("early {number}\n").as_bytes()).await.expect("read");
            }
            // On a paused clock all of it is read before the second is over.
            tokio::time::sleep(Duration::from_secs(1)).await;
            child.write_all(b"late\n").await.expect("read");
        };
        let (tail, lines) = (StderrTail::default(), UpstreamLog::default());
        tokio::join!(drain(Box::new(ours), tail, lines, name), writes);
        (&*logged).rewind().expect("a file");
        let log = io::read_to_string(&*logged).expect("text");
        let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!((count("stderr=\"early "), count("stderr=\"late\"")), (50, 1), "{log}");
        assert_eq!((count("omitted=150"), log.lines().count()), (1, 52), "{log}");
        assert!(log.lines().all(|line| line.contains("DEBUG")), "{log}");
    }
}
