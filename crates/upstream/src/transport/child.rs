//! Monitor of a child process: its end, and the last lines of its standard error.
//!
//! Invariants: standard error is always drained, so a talkative child never blocks. A child that is
//! no longer needed gets time to exit, then SIGTERM, then SIGKILL, and its process group goes with
//! it.

pub(crate) mod crash_report;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::ProcessHandle;
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
}

impl ChildMonitor {
    /// Starts the monitor and the task that drains standard error, and returns the tail of standard
    /// error.
    pub(crate) fn start(mut self, tasks: &TaskTracker) -> StderrTail {
        let tail = StderrTail::default();
        let stderr_ended = CancellationToken::new();
        if let Some(stderr) = self.stderr.take() {
            let drain = drain(stderr, tail.clone(), self.end.dispatcher.name.clone());
            let (stderr_ended, gone) = (stderr_ended.clone().drop_guard(), self.end.gone.clone());
            tasks.spawn(async move {
                let _guard = stderr_ended;
                gone.run_until_cancelled(drain).await;
            });
        } else {
            stderr_ended.cancel();
        }
        tasks.spawn(self.run(tail.clone(), stderr_ended));
        tail
    }

    /// Waits until the child ends or is to end, ends all requests in flight with the reason, and
    /// leaves nothing of the child behind.
    async fn run(mut self, tail: StderrTail, stderr_ended: CancellationToken) {
        let mut running = true;
        let reason = tokio::select! {
            biased;
            () = self.end.closing.cancelled() => "it was stopped".to_owned(),
            how = self.process.wait() => {
                running = false;
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
                        running = false;
                        self.process.kill();
                        format!("the process {how}")
                    }
                    (Err(_), Some(reason)) => reason.clone(),
                    (Err(_), None) => "the process closed its standard input or output".to_owned(),
                }
            }
        };
        if !running {
            let _ = timeout(OUTPUT_DRAIN, stderr_ended.cancelled()).await;
        }
        let reason = match self.end.closing.is_cancelled() {
            true => reason,
            false => self.report.describe(reason, &tail.lines(), self.invalid_lines.first()),
        };
        self.end.publish(reason);
        // The writer now closes standard input, which asks the child to exit.
        self.end.closing.cancel();
        if running {
            self.stop().await;
        }
        // Processes that the child has started and left behind.
        self.process.kill();
    }

    async fn stop(&mut self) {
        let [after_stdin_close, after_sigterm] = self.stop_timeouts;
        if timeout(after_stdin_close, self.process.wait()).await.is_ok() {
            return;
        }
        self.process.terminate();
        if timeout(after_sigterm, self.process.wait()).await.is_ok() {
            return;
        }
        self.process.kill();
        self.process.wait().await;
    }
}

/// Reads standard error to its end, logs it, and stores its tail.
async fn drain(
    mut stderr: Box<dyn AsyncRead + Send + Unpin>,
    tail: StderrTail,
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
        let now = Instant::now();
        while let Some(line) = lines.next_line() {
            // Counted like a message, a flood of lines would mostly yield: each time another thread
            // looks for work.
            let (DecodedLine::Whole(line)
            | DecodedLine::TooLong(line)
            | DecodedLine::BudgetExhausted(line)) = line;
            workload.add_small(line.len());
            workload.yield_if_due().await;
            // Several times as fast for text as the function that replaces what is none.
            let line = String::from_utf8(line.to_vec())
                .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned());
            if rate.admit(now) {
                if omitted > 0 {
                    tracing::debug!(upstream = %name, omitted, "child standard error rate-limited");
                    omitted = 0;
                }
                tracing::debug!(upstream = %name, stderr = line, "child standard error");
            } else {
                omitted += 1;
            }
            tail.push(line);
        }
    }
    let rest = String::from_utf8_lossy(lines.buffer()).into_owned();
    if !rest.trim().is_empty() {
        tail.push(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Seek};

    use crate::transport::child::*;
    use tokio::io::AsyncWriteExt;

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
        tokio::join!(drain(Box::new(ours), StderrTail::default(), name), writes);
        (&*logged).rewind().expect("a file");
        let log = io::read_to_string(&*logged).expect("text");
        let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!((count("stderr=\"early "), count("stderr=\"late\"")), (50, 1), "{log}");
        assert_eq!((count("omitted=150"), log.lines().count()), (1, 52), "{log}");
        assert!(log.lines().all(|line| line.contains("DEBUG")), "{log}");
    }
}
