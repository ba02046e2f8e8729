//! The stdio wire: one message a line, to and from a child process.
//!
//! Promises: the reader and the writer are tasks of their own and neither ever waits for a client,
//! so one slow client cannot stall the calls of the others. What stands on standard output and is no
//! message is skipped and counted; a child that writes too much of that, or answers what nobody asked, is ended. When the child ends, every open request ends at once, with the
//! reason.
//!
//! Knows nothing of: protocol eras.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fairness::Workload;
use crate::line_codec::{Line, Lines};
use crate::memory_budget::{Budget, Unheld};
use crate::upstream::call::active_call::MAX_ASKING;
use crate::upstream::connect::{Child, Number};
use crate::upstream::message::{Answer, Cancel, Failure, Outgoing, cancelled};
use crate::upstream::transport::child::{self, Tail};
use crate::upstream::transport::demux::{self, Inbox, Taken};
use crate::upstream::transport::dispatcher::{Claim, Ear};
use crate::upstream::transport::junk_limits::NonsenseLimits;
use crate::upstream::transport::lifetime::Life;
use crate::upstream::{Limits, Settings};

/// Places in the write queue beyond those of the calls: lists, the subscription, answers to pings.
const SPARE_PLACES: usize = 64;
/// How many requests may wait to be written to a child that does not read; and how long a further one waits for that.
const MAX_UNREAD: usize = 64;
const UNREAD_WAIT: Duration = Duration::from_secs(1);

/// How much may stand on standard output before the first message, in bytes: a banner is shorter.
const MAX_PREFACE_BYTES: usize = 64 * 1024;

/// As much as a pipe holds is written together, and the rest of a line.
const TOGETHER_BYTES: usize = 64 * 1024;

/// How much of a line that is no message is quoted.
const MAX_QUOTED_CHARS: usize = 200;

/// A running child and the requests that are open on it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
}

struct Shared {
    ear: Arc<Ear>,
    /// Lines for the writer. When it is full the child does not read: what is owed to it is dropped.
    outbox: mpsc::Sender<Outbound>,
    /// The places of requests that are not written yet. When all are taken the child does not read: a further
    /// request is refused after [`UNREAD_WAIT`].
    unread: Arc<Semaphore>,
    /// The child's, which its keeper ends.
    life: Life,
    junk: Arc<JunkLines>,
    /// The child's number.
    process: Option<Number>,
    /// What it said last on standard error.
    tail: Tail,
}

/// A line for the child, and the place of a request, which is free once the line is written.
struct Outbound {
    line: Bytes,
    place: Option<OwnedSemaphorePermit>,
}

impl From<Bytes> for Outbound {
    fn from(line: Bytes) -> Self {
        Self { line, place: None }
    }
}

/// Lines on standard output that were no message.
#[derive(Debug, Default)]
struct JunkLines {
    count: AtomicUsize,
    first: OnceLock<String>,
}

impl Wire {
    /// Starts the tasks that serve a child: reader, writer and keeper. They end with it.
    pub(crate) fn start(
        child: Child,
        ear: Arc<Ear>,
        settings: &Settings,
        budget: &Budget,
        tasks: &TaskTracker,
    ) -> Self {
        let Limits { concurrency, max_message, .. } = settings.limits;
        // Each call holds a place for its cancellation beside the one for itself (see `exchange`), and keeps
        // it while it waits for its client without having a turn.
        let (outbox, lines) = mpsc::channel(2 * concurrency + MAX_ASKING + SPARE_PLACES);
        let (ended_sender, ended) = watch::channel(None);
        let closing = CancellationToken::new();
        let (gone, broken) = (CancellationToken::new(), CancellationToken::new());
        let junk = Arc::new(JunkLines::default());
        let unhealthy = Arc::new(OnceLock::new());

        let process = child.process.id();
        tasks.spawn(write(child.stdin, lines, closing.clone(), broken.clone()));
        let reader = Reader {
            stdout: child.stdout,
            lines: Lines::new(max_message).counted(budget),
            max_message,
            inbox: Inbox { ear: Arc::clone(&ear) },
            outbox: outbox.downgrade(),
            junk: Arc::clone(&junk),
            preface: 0,
            has_spoken: false,
            limits: NonsenseLimits::default(),
            workload: Workload::default(),
        };
        let keeper = child::Keeper {
            process: child.process,
            stderr: child.stderr,
            ear: Arc::clone(&ear),
            closing: closing.clone(),
            broken: broken.clone(),
            unhealthy: Arc::clone(&unhealthy),
            ended: ended_sender,
            gone: gone.clone(),
            patience: [settings.timeouts.stop, settings.timeouts.terminate],
        };
        let read = gone.clone();
        tasks.spawn(async move {
            // The guard tells the keeper also if the reader panics.
            let _guard = broken.drop_guard();
            if let Some(Err(reason)) = read.run_until_cancelled(reader.run()).await {
                let _ = unhealthy.set(reason);
            }
        });
        let tail = keeper.start(tasks);
        let life = Life { ended, closing, gone, unexplained: "the process is ending" };
        let unread = Arc::new(Semaphore::new(MAX_UNREAD));
        Self { shared: Arc::new(Shared { ear, outbox, unread, life, junk, process, tail }) }
    }

    /// Sends a request and waits for its answer.
    ///
    /// The place of its cancellation in the write queue is taken before the request is sent, so that
    /// dropping the future can always tell the child, without waiting.
    pub(crate) async fn exchange(&self, mut request: Outgoing) -> Result<Answer, Failure> {
        let shared = &*self.shared;
        let unsent = || Failure::Unsent(self.shared.life.reason());
        let farewell = match request.cancel {
            Cancel::Never => None,
            Cancel::Notify | Cancel::HangUp => {
                Some(shared.outbox.clone().reserve_owned().await.map_err(|_| unsent())?)
            }
        };
        let unread = Arc::clone(&shared.unread).acquire_owned();
        let unread = timeout(UNREAD_WAIT, unread).await.map_err(|_| Failure::Deaf)?;
        let place = shared.outbox.reserve().await.map_err(|_| unsent())?;
        let claim = shared.ear.enter(&request).ok_or_else(unsent)?;
        request.sent.begin();
        place.send(Outbound { line: request.write(claim.id()), place: unread.ok() });
        let mut open = Open { claim, farewell };
        let answer = demux::answer(&mut open.claim).await;
        answer.unwrap_or_else(|| Err(Failure::Broke(self.shared.life.reason())))
    }

    pub(crate) async fn notify(&self, message: Bytes) -> Result<(), Failure> {
        let sent = self.shared.outbox.send(message.into()).await;
        sent.map_err(|_| Failure::Unsent(self.shared.life.reason()))
    }

    /// Sends what the child is owed, as far as it reads.
    pub(crate) fn send_back(&self, replies: Vec<Bytes>) {
        for reply in replies {
            if self.shared.outbox.try_send(reply.into()).is_err() {
                self.shared.ear.vitals.dropped();
            }
        }
    }

    /// Waits until the child has ended and tells why. Cancel-safe.
    pub(crate) async fn ended(&self) -> String {
        self.shared.life.ended().await
    }

    /// Ends the child, step by step, and returns when it is gone.
    pub(crate) async fn close(&self) {
        self.shared.life.close().await;
    }

    /// The child's number, if it has one, and the last of its standard error.
    pub(crate) fn child(&self) -> (Option<Number>, Tail) {
        (self.shared.process, self.shared.tail.clone())
    }

    /// Whether the child has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.life.has_ended()
    }

    /// What stood on standard output and was no message, for whoever wonders why nothing works.
    pub(crate) fn junk(&self) -> Option<String> {
        let first = self.shared.junk.first.get()?;
        let count = self.shared.junk.count.load(Ordering::Relaxed);
        let lines = if count == 1 { "line".to_owned() } else { format!("{count} lines, first") };
        Some(format!("its standard output held what is no message ({lines}: \"{first}\")"))
    }
}

/// An open request. Dropping it while it is open tells the child.
struct Open {
    claim: Claim,
    farewell: Option<mpsc::OwnedPermit<Outbound>>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let Some(place) = self.farewell.take() else { return };
        if self.claim.is_open() {
            place.send(cancelled(self.claim.id()).into());
        }
    }
}

// === Reader ===

struct Reader {
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    lines: Lines,
    max_message: usize,
    inbox: Inbox,
    /// Weak: the writer ends when nobody else sends any more.
    outbox: mpsc::WeakSender<Outbound>,
    junk: Arc<JunkLines>,
    /// How many bytes came before the first message.
    preface: usize,
    has_spoken: bool,
    limits: NonsenseLimits,
    workload: Workload,
}

impl Reader {
    /// Reads lines until standard output ends. Never waits for anything else. An error is why nobody can make sense of
    /// the child any more.
    async fn run(mut self) -> Result<(), String> {
        while let Ok(1..) = self.stdout.read_buf(self.lines.buffer()).await {
            loop {
                let line = self.lines.next_line();
                let padding = self.limits.padding(self.lines.take_empty());
                let skipped = self.limits.skipped(self.lines.take_skipped());
                padding.and(skipped).map_err(|much| much.to_string())?;
                self.workload.add(match &line {
                    Some(Line::Whole(line)) => line.len(),
                    _ => 0,
                });
                self.workload.yield_if_due().await;
                let Some(line) = line else { break };
                self.take(line)?;
            }
        }
        // A process may end without ending its last line.
        self.lines.last_line().map_or(Ok(()), |line| self.take(line))
    }

    fn take(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Whole(line) => self.hear(line),
            Line::TooLong(head) => {
                self.inbox.refuse(&head, b"", Unheld::TooLarge(self.max_message));
                self.limits.oversized().map_err(|much| much.to_string())
            }
            Line::NoRoom(head) => {
                // Nothing that it could help.
                self.inbox.refuse(&head, b"", Unheld::NoRoom);
                Ok(())
            }
        }
    }

    fn hear(&mut self, line: Bytes) -> Result<(), String> {
        let Taken { replies, useless } = match self.inbox.take(line.clone()) {
            Ok(taken) => taken,
            Err(why) => {
                self.junk.count.fetch_add(1, Ordering::Relaxed);
                self.inbox.ear.vitals.junk();
                let quoted = child::quote(&String::from_utf8_lossy(&line), MAX_QUOTED_CHARS);
                let upstream = &self.inbox.ear.name;
                tracing::debug!(%upstream, line = quoted, %why, "a line on standard output is no message");
                let first = self.junk.first.get_or_init(|| quoted);
                self.preface += line.len() + 1;
                if !self.has_spoken && self.preface > MAX_PREFACE_BYTES {
                    return Err(format!(
                        "its standard output begins with what is no message: \"{first}\""
                    ));
                }
                return self.limits.junk().map_err(|much| much.to_string());
            }
        };
        self.has_spoken = true;
        self.limits.message(&useless).map_err(|much| much.to_string())?;
        for reply in replies {
            // Full means that the child does not read its own answers.
            if self.outbox.upgrade().is_none_or(|outbox| outbox.try_send(reply.into()).is_err()) {
                self.inbox.ear.vitals.dropped();
            }
        }
        Ok(())
    }
}

/// Writes lines until the wire closes or the child reads no more, those together that wait together. Never waits for
/// anything but the child.
async fn write(
    mut stdin: Box<dyn AsyncWrite + Send + Unpin>,
    mut lines: mpsc::Receiver<Outbound>,
    closing: CancellationToken,
    broken: CancellationToken,
) {
    let work = async {
        while let Some(first) = lines.recv().await {
            let mut framed = BytesMut::with_capacity(first.line.len() + 1);
            // Held until they are written.
            let mut places = Vec::new();
            let mut next = Some(first);
            while let Some(Outbound { line, place }) = next {
                framed.extend_from_slice(&line);
                framed.extend_from_slice(b"\n");
                places.extend(place);
                next = if framed.len() < TOGETHER_BYTES { lines.try_recv().ok() } else { None };
            }
            stdin.write_all(&framed).await?;
            stdin.flush().await?;
        }
        std::io::Result::Ok(())
    };
    // Dropping the work closes the child's standard input.
    if let Some(Err(error)) = closing.run_until_cancelled(work).await {
        tracing::debug!(%error, "the child reads no more");
        broken.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use crate::upstream::transport::stdio::*;

    /// Tells of each write by itself.
    struct Stdin(mpsc::UnboundedSender<Bytes>);

    impl AsyncWrite for Stdin {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let _ = self.0.send(Bytes::copy_from_slice(bytes));
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn lines_that_wait_are_written_together_but_not_behind_as_much_as_a_pipe_holds() {
        let ((written, mut writes), (outbox, lines)) =
            (mpsc::unbounded_channel(), mpsc::channel(8));
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).try_acquire_owned().ok();
        let large = Bytes::from("x".repeat(TOGETHER_BYTES));
        let first = Outbound { line: Bytes::from_static(b"a"), place };
        let others = [Bytes::from_static(b"b"), large.clone(), Bytes::from_static(b"c")];
        for line in [first].into_iter().chain(others.map(Outbound::from)) {
            outbox.try_send(line).expect("room");
        }
        drop(outbox);
        let token = CancellationToken::new();
        write(Box::new(Stdin(written)), lines, token.clone(), token).await;
        let expected = [b"a\nb\n".as_slice(), &large, b"\n"].concat();
        assert_eq!(writes.recv().await.expect("a write"), expected);
        assert_eq!(writes.recv().await.expect("another"), "c\n");
        assert!(writes.recv().await.is_none());
        assert_eq!(places.available_permits(), 1);
    }
}
