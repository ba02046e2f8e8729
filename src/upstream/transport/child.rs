//! The life of a child process: how it ends, and what it said last.
//!
//! Promises: standard error is always drained, so that a talkative child never blocks; a child that
//! is no longer needed gets time to leave, and then none; whatever it has started goes with it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fairness::Workload;
use crate::line_codec::{Line, Lines};
use crate::mcp::name::UpstreamName;
use crate::upstream::connect::Process;
use crate::upstream::rate_counter::Rate;
use crate::upstream::transport::dispatcher::Ear;

/// How long the last words of a child that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How much of standard error is kept.
const STDERR_KEPT_BYTES: usize = 64 * 1024;
/// The longest line of standard error that is logged whole.
const STDERR_LINE_BYTES: usize = 4 * 1024;
/// How many of its lines are logged in a second; the others are counted.
const STDERR_LINES: u32 = 50;
/// How much of the last line stands in a reason.
const MAX_QUOTED_CHARS: usize = 200;

/// Waits for a child's end and sees to it.
pub(crate) struct Keeper {
    pub(crate) process: Box<dyn Process>,
    pub(crate) stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pub(crate) ear: Arc<Ear>,
    /// We want it to end.
    pub(crate) closing: CancellationToken,
    /// It closed its standard output, or reads its standard input no more.
    pub(crate) broken: CancellationToken,
    /// Why it is ended although it would go on, if it is.
    pub(crate) unhealthy: Arc<OnceLock<String>>,
    pub(crate) ended: watch::Sender<Option<String>>,
    pub(crate) gone: CancellationToken,
    /// How long it may take to leave once its standard input is closed, and once it was asked by signal.
    pub(crate) patience: [Duration; 2],
}

impl Keeper {
    /// Starts the keeper and the task that drains standard error, the last of which is returned.
    pub(crate) fn start(mut self, tasks: &TaskTracker) -> Tail {
        let tail = Tail::default();
        let silent = CancellationToken::new();
        if let Some(stderr) = self.stderr.take() {
            let drain = drain(stderr, tail.clone(), self.ear.name.clone());
            let (silent, gone) = (silent.clone().drop_guard(), self.gone.clone());
            tasks.spawn(async move {
                let _guard = silent;
                gone.run_until_cancelled(drain).await;
            });
        } else {
            silent.cancel();
        }
        tasks.spawn(self.run(tail.clone(), silent));
        tail
    }

    /// Waits until the child ends or is to end, ends all open requests with the reason, and leaves
    /// nothing of it behind.
    async fn run(mut self, tail: Tail, silent: CancellationToken) {
        let gone = self.gone.clone().drop_guard();
        let mut running = true;
        let reason = tokio::select! {
            biased;
            () = self.closing.cancelled() => "it was stopped".to_owned(),
            how = self.process.wait() => {
                running = false;
                // What it has started may hold its pipes open for ever, and goes first. What it wrote before
                // it ended is still in them; somebody who has left its group may hold them, too.
                self.process.kill();
                let _ = timeout(LAST_WORDS, self.broken.cancelled()).await;
                format!("the process {how}")
            }
            () = self.broken.cancelled() => {
                let life = match self.unhealthy.get() {
                    Some(_) => Duration::ZERO,
                    None => LAST_WORDS,
                };
                match (timeout(life, self.process.wait()).await, self.unhealthy.get()) {
                    (Ok(how), _) => {
                        running = false;
                        self.process.kill();
                        format!("the process {how}")
                    }
                    (Err(_), Some(reason)) => reason.clone(),
                    (Err(_), None) => "the process closed its end of the pipe".to_owned(),
                }
            }
        };
        if !running {
            let _ = timeout(LAST_WORDS, silent.cancelled()).await;
        }
        let reason = match tail.last_line() {
            Some(line) if !self.closing.is_cancelled() => {
                format!("{reason}; its last words: \"{line}\"")
            }
            _ => reason,
        };
        self.ended.send_replace(Some(reason));
        self.ear.pending.close();
        // From here on the writer closes standard input, which asks the child to leave.
        self.closing.cancel();
        if running {
            self.stop().await;
        }
        // Whatever it has started and left behind.
        self.process.kill();
        drop(gone);
    }

    async fn stop(&mut self) {
        let [unasked, asked] = self.patience;
        if timeout(unasked, self.process.wait()).await.is_ok() {
            return;
        }
        self.process.terminate();
        if timeout(asked, self.process.wait()).await.is_ok() {
            return;
        }
        self.process.kill();
        self.process.wait().await;
    }
}

/// Reads standard error to its end, logs it, and keeps the last of it.
async fn drain(mut stderr: Box<dyn AsyncRead + Send + Unpin>, tail: Tail, name: UpstreamName) {
    let mut lines = Lines::new(STDERR_LINE_BYTES);
    let (mut rate, mut left_out) = (Rate::new(STDERR_LINES, Duration::from_secs(1)), 0_usize);
    let mut workload = Workload::default();
    while let Ok(1..) = stderr.read_buf(lines.buffer()).await {
        workload.add(0);
        workload.yield_if_due().await;
        while let Some(line) = lines.next_line() {
            workload.add(0);
            workload.yield_if_due().await;
            let (Line::Whole(line) | Line::TooLong(line) | Line::NoRoom(line)) = line;
            let line = String::from_utf8_lossy(&line).into_owned();
            if rate.exceeds(1) {
                left_out += 1;
            } else {
                if left_out > 0 {
                    tracing::debug!(upstream = %name, left_out, "the child said more than is logged");
                    left_out = 0;
                }
                tracing::debug!(upstream = %name, stderr = line, "the child says");
            }
            tail.push(line);
        }
    }
    let rest = String::from_utf8_lossy(lines.buffer()).into_owned();
    if !rest.trim().is_empty() {
        tail.push(rest);
    }
}

/// The last lines of standard error. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    fn push(&self, line: String) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += line.len();
        kept.lines.push_back(line);
        while kept.bytes > STDERR_KEPT_BYTES {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }

    fn last_line(&self) -> Option<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.lines.back().map(|line| quote(line, MAX_QUOTED_CHARS))
    }

    /// The last lines, the oldest first, each bounded and without control characters.
    pub(crate) fn last_lines(&self, count: usize) -> Vec<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = kept.lines.len().saturating_sub(count);
        kept.lines.iter().skip(left_out).map(|line| quote(line, STDERR_LINE_BYTES)).collect()
    }
}

/// A text from outside, bounded and without control characters.
pub(crate) fn quote(text: &str, max_chars: usize) -> String {
    let mut quoted: String =
        text.trim().chars().take(max_chars).flat_map(char::escape_debug).collect();
    if text.trim().chars().count() > max_chars {
        quoted.push('…');
    }
    quoted
}

#[cfg(test)]
mod tests {
    use std::io::{self, Seek};

    use crate::upstream::transport::child::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test(start_paused = true)]
    async fn of_too_many_lines_on_standard_error_the_rest_is_counted() {
        let logged = Arc::new(tempfile::tempfile().expect("a file"));
        let logger = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
        let logger = logger.with_ansi(false).with_writer(Arc::clone(&logged)).finish();
        let _here = tracing::subscriber::set_default(logger);
        let (mut child, ours) = tokio::io::duplex(64);
        let name = "hub".parse().expect("a name");
        let says = async move {
            for number in 0..200 {
                child.write_all(format!("early {number}\n").as_bytes()).await.expect("read");
            }
            // On a paused clock: all of it is read before the second is over.
            tokio::time::sleep(Duration::from_secs(1)).await;
            child.write_all(b"late\n").await.expect("read");
        };
        tokio::join!(drain(Box::new(ours), Tail::default(), name), says);
        (&*logged).rewind().expect("a file");
        let log = io::read_to_string(&*logged).expect("text");
        let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!((count("stderr=\"early "), count("stderr=\"late\"")), (50, 1), "{log}");
        assert_eq!((count("left_out=150"), log.lines().count()), (1, 52), "{log}");
        assert!(log.lines().all(|line| line.contains("DEBUG")), "{log}");
    }
}
