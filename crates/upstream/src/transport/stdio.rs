//! stdio transport: newline-delimited messages to and from a child process.
//!
//! Invariants: the reader and the writer are separate tasks and neither waits for a client, so one
//! slow client cannot stall the calls of the others. Lines on standard output that are no messages
//! are skipped and counted; a child that writes too many of them, or sends responses that were not
//! requested, is ended. When the child ends, every request in flight ends at once, with the reason.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::{Child, ChildCommand};
use crate::health::author_notes::NoteKind;
use crate::input_requests::MAX_SUSPENDED;
use crate::message::message_trace::MessageTrace;
use crate::message::{CancelMode, OutboundRequest, TransportError};
use crate::transport::RequestInFlight;
use crate::transport::child::ChildMonitor;
use crate::transport::child::crash_report::CrashReport;
use crate::transport::dispatcher::Dispatcher;
use crate::transport::invalid_lines::InvalidLines;
use crate::transport::junk_limits::JunkLimits;
use crate::transport::lifetime::ConnectionLifetime;
use crate::{Error, Settings, UpstreamLimits, UpstreamSource};
use weir_base::memory::memory_budget::{BufferError, MemoryBudget};
use weir_base::tasks::fairness::Workload;
use weir_base::text::line_codec::{DecodedLine, LineDecoder};
use weir_mcp::call::ResponseOutcome;

/// Capacity of the write queue beyond the calls: lists, the subscription, responses to pings.
const EXTRA_QUEUE_SLOTS: usize = 64;
/// Maximum number of requests that wait to be written to a child that does not read its standard
/// input, and the time for which a further request waits for one of these slots.
const MAX_UNWRITTEN: usize = 64;
const WRITE_WAIT: Duration = Duration::from_secs(1);

/// Maximum size of the output before the first message, in bytes: a banner is shorter.
const MAX_PREFACE_BYTES: usize = 64 * 1024;

/// Size up to which waiting lines are written together: what a pipe holds. The line that reaches it
/// is written whole.
const MAX_WRITE_BYTES: usize = 64 * 1024;

/// Connection to a running child process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StdioTransport {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Lines for the writer. When the queue is full the child does not read its input, and further
    /// responses to its requests are dropped.
    outbox: mpsc::Sender<OutboundLine>,
    /// Permits of requests that are not written yet. When all are taken the child does not read its
    /// input: a further request fails after [`WRITE_WAIT`].
    write_permits: Arc<Semaphore>,
    /// Lifetime of the child; its [`ChildMonitor`] ends it.
    pub(crate) lifetime: Arc<ConnectionLifetime>,
    invalid_lines: Arc<InvalidLines>,
    report: Arc<CrashReport>,
}

/// Line for the child, with the permit of a request, which is released once the line is written.
struct OutboundLine {
    line: Bytes,
    permit: Option<OwnedSemaphorePermit>,
}

impl From<Bytes> for OutboundLine {
    fn from(line: Bytes) -> Self {
        Self { line, permit: None }
    }
}

impl StdioTransport {
    /// Starts the tasks that serve a child: reader, writer and monitor. They end with the child.
    pub(crate) fn start(
        child: Child,
        dispatcher: Arc<Dispatcher>,
        settings: &Settings,
        budget: &MemoryBudget,
        tasks: &TaskTracker,
        trace: Option<Arc<MessageTrace>>,
    ) -> Self {
        let UpstreamLimits { concurrency, max_message, .. } = settings.limits;
        // Each call reserves a slot for its cancellation beside the one for its request (see
        // `exchange`), and keeps it while it waits for its client without a concurrency permit.
        let (outbox, lines) = mpsc::channel(2 * concurrency + MAX_SUSPENDED + EXTRA_QUEUE_SLOTS);
        let (lifetime, end) = ConnectionLifetime::begin(
            &dispatcher,
            "the process is ending",
            "the process is ending",
        );
        let broken = CancellationToken::new();
        let invalid_lines = Arc::new(InvalidLines::default());
        let kill_reason = Arc::new(OnceLock::new());
        let command = match &settings.source {
            UpstreamSource::Process(command) => command.clone(),
            _ => ChildCommand::default(),
        };
        let report = Arc::new(CrashReport::new(&settings.name, command));

        let (closing, writer_trace) = (end.closing.clone(), trace.clone());
        tasks.spawn(write(child.stdin, lines, closing, broken.clone(), writer_trace));
        let reader = StdoutReader {
            stdout: child.stdout,
            lines: LineDecoder::new(max_message).with_budget(budget),
            max_message,
            dispatcher: Arc::clone(&dispatcher),
            outbox: outbox.downgrade(),
            invalid_lines: Arc::clone(&invalid_lines),
            preface_bytes: 0,
            has_message: false,
            limits: JunkLimits::default(),
            workload: Workload::default(),
            trace,
        };
        let until_gone = end.gone.clone();
        let monitor = ChildMonitor {
            process: child.process,
            stderr: child.stderr,
            end,
            broken: broken.clone(),
            kill_reason: Arc::clone(&kill_reason),
            stop_timeouts: [settings.timeouts.stop, settings.timeouts.terminate],
            report: Arc::clone(&report),
            invalid_lines: Arc::clone(&invalid_lines),
            log: dispatcher.health.log.begin_process(),
        };
        monitor.start(tasks);
        tasks.spawn(async move {
            // The guard notifies the monitor also if the reader panics.
            let _guard = broken.drop_guard();
            if let Some(Err(reason)) = reader.run().with_cancellation_token(&until_gone).await {
                let _ = kill_reason.set(reason);
            }
        });
        Self {
            dispatcher,
            outbox,
            write_permits: Arc::new(Semaphore::new(MAX_UNWRITTEN)),
            lifetime: Arc::new(lifetime),
            invalid_lines,
            report,
        }
    }

    /// Sends a request and waits for its response.
    ///
    /// The slot of its cancellation in the write queue is reserved before the request is sent, so
    /// that dropping the future can always notify the child without waiting.
    pub(crate) async fn exchange(
        &self,
        mut request: Box<OutboundRequest>,
    ) -> Result<ResponseOutcome, TransportError> {
        let unsent = || self.lifetime.not_sent();
        let cancel = match request.cancel {
            CancelMode::Never => None,
            CancelMode::Notify | CancelMode::CloseStream => {
                let slot = self.outbox.clone().reserve_owned().await.map_err(|_| unsent())?;
                Some(move |message: Bytes| _ = slot.send(message.into()))
            }
        };
        let blocked = |_| {
            let reason = "the server does not read its standard input";
            TransportError::Other(Error::Unavailable(reason.into()))
        };
        let write_permit = Arc::clone(&self.write_permits).acquire_owned();
        let write_permit = timeout(WRITE_WAIT, write_permit).await.map_err(blocked)?;
        let slot = self.outbox.reserve().await.map_err(|_| unsent())?;
        let (mut open, line) =
            RequestInFlight::register(&self.dispatcher, &mut request, cancel).ok_or_else(unsent)?;
        request.sent.mark_sent();
        slot.send(OutboundLine { line, permit: write_permit.ok() });
        let response = (&mut open.response).await;
        response.unwrap_or_else(|| Err(self.lifetime.connection_lost()))
    }

    pub(crate) async fn notify(&self, message: Bytes) -> Result<(), TransportError> {
        self.outbox.send(message.into()).await.map_err(|_| self.lifetime.not_sent())
    }

    /// Sends responses to the child's own requests; those that do not fit into the queue are
    /// dropped.
    pub(crate) fn send_responses(&self, responses: Vec<Bytes>) {
        for response in responses {
            if self.outbox.try_send(response.into()).is_err() {
                self.dispatcher.health.dropped.increment();
            }
        }
    }

    /// Records a successful handshake.
    pub(crate) fn mark_open(&self) {
        self.report.mark_open();
    }

    /// Describes the lines on standard output that were no messages, for the reason of a failed
    /// start.
    pub(crate) fn invalid_output(&self) -> Option<String> {
        self.invalid_lines.describe().map(|text| self.report.redact(&text))
    }
}

// === Reader ===

struct StdoutReader {
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    lines: LineDecoder,
    max_message: usize,
    dispatcher: Arc<Dispatcher>,
    /// Weak, so that the writer ends when no other sender is left.
    outbox: mpsc::WeakSender<OutboundLine>,
    invalid_lines: Arc<InvalidLines>,
    /// Bytes received before the first message.
    preface_bytes: usize,
    has_message: bool,
    limits: JunkLimits,
    workload: Workload,
    trace: Option<Arc<MessageTrace>>,
}

impl StdoutReader {
    /// Reads lines until standard output ends, and waits for nothing else. An error is the reason
    /// why the child's output cannot be used any more.
    async fn run(mut self) -> Result<(), String> {
        while let Ok(1..) = self.stdout.read_buf(self.lines.buffer()).await {
            loop {
                let line = self.lines.next_line();
                let padding = self.limits.padding.count(self.lines.take_empty_lines());
                let skipped = self.limits.count_skipped(self.lines.take_skipped_bytes());
                padding.and(skipped)?;
                self.workload.add(match &line {
                    Some(DecodedLine::Whole(line)) => line.len(),
                    _ => 0,
                });
                self.workload.yield_if_due().await;
                let Some(line) = line else { break };
                self.handle_line(line)?;
            }
        }
        // A process may end without terminating its last line.
        self.lines.last_line().map_or(Ok(()), |line| self.handle_line(line))
    }

    fn handle_line(&mut self, line: DecodedLine) -> Result<(), String> {
        if let Some(trace) = &self.trace {
            match &line {
                DecodedLine::Whole(line) => trace.received(line),
                DecodedLine::TooLong(head) | DecodedLine::BudgetExhausted(head) => {
                    trace.received_beginning(head);
                }
            }
        }
        match line {
            DecodedLine::Whole(line) => self.dispatch(line),
            DecodedLine::TooLong(head) => {
                let refusal =
                    self.dispatcher.skip(&head, b"", BufferError::TooLarge(self.max_message));
                self.send_responses(refusal);
                self.limits.oversized.count(1)
            }
            DecodedLine::BudgetExhausted(head) => {
                // The child is not to blame for Weir's memory budget, so this does not count
                // against it.
                let refusal = self.dispatcher.skip(&head, b"", BufferError::BudgetExhausted);
                self.send_responses(refusal);
                Ok(())
            }
        }
    }

    fn dispatch(&mut self, line: Bytes) -> Result<(), String> {
        let dispatched = match self.dispatcher.demux(line.clone()) {
            Ok(dispatched) => dispatched,
            Err(why) => {
                self.dispatcher.health.junk.increment();
                self.dispatcher.health.notes.add(NoteKind::StdoutLine, &line);
                let (quoted, first) = self.invalid_lines.add(&line);
                let upstream = &self.dispatcher.name;
                tracing::debug!(%upstream, line = quoted, %why, "invalid line on standard output");
                self.preface_bytes += line.len() + 1;
                if !self.has_message && self.preface_bytes > MAX_PREFACE_BYTES {
                    return Err(format!(
                        "its standard output does not begin with a message: \"{first}\""
                    ));
                }
                return self.limits.invalid.count(1);
            }
        };
        self.has_message = true;
        self.send_responses(dispatched.outgoing);
        self.limits.count_message(&dispatched.junk_counts)
    }

    fn send_responses(&self, responses: impl IntoIterator<Item = Bytes>) {
        for response in responses {
            // A full queue means that the child does not read the responses that it requested.
            if self.outbox.upgrade().is_none_or(|outbox| outbox.try_send(response.into()).is_err())
            {
                self.dispatcher.health.dropped.increment();
            }
        }
    }
}

/// Writes lines until the transport closes or the child stops reading. Lines that wait at the same
/// time are written together. Waits for nothing but the child.
async fn write(
    mut stdin: Box<dyn AsyncWrite + Send + Unpin>,
    mut lines: mpsc::Receiver<OutboundLine>,
    closing: CancellationToken,
    broken: CancellationToken,
    trace: Option<Arc<MessageTrace>>,
) {
    let work = async {
        while let Some(first) = lines.recv().await {
            let mut framed = BytesMut::with_capacity(first.line.len() + 1);
            // The permits are released once the lines are written.
            let mut permits = Vec::new();
            let mut next = Some(first);
            while let Some(OutboundLine { line, permit }) = next {
                if let Some(trace) = &trace {
                    trace.sent(&line);
                }
                framed.extend_from_slice(&line);
                framed.extend_from_slice(b"\n");
                permits.extend(permit);
                next = if framed.len() < MAX_WRITE_BYTES { lines.try_recv().ok() } else { None };
            }
            stdin.write_all(&framed).await?;
            stdin.flush().await?;
        }
        std::io::Result::Ok(())
    };
    // Dropping `work` closes the child's standard input.
    if let Some(Err(error)) = closing.run_until_cancelled(work).await {
        tracing::debug!(%error, "child stopped reading standard input");
        broken.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use crate::transport::stdio::*;

    /// Sends each write to a channel.
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
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().ok();
        let large = Bytes::from("x".repeat(MAX_WRITE_BYTES));
        let first = OutboundLine { line: Bytes::from_static(b"a"), permit };
        let others = [Bytes::from_static(b"b"), large.clone(), Bytes::from_static(b"c")];
        for line in [first].into_iter().chain(others.map(OutboundLine::from)) {
            outbox.try_send(line).expect("space");
        }
        drop(outbox);
        let token = CancellationToken::new();
        write(Box::new(Stdin(written)), lines, token.clone(), token, None).await;
        let expected = [b"a\nb\n".as_slice(), &large, b"\n"].concat();
        assert_eq!(writes.recv().await.expect("a write"), expected);
        assert_eq!(writes.recv().await.expect("another"), "c\n");
        assert!(writes.recv().await.is_none());
        assert_eq!(permits.available_permits(), 1);
    }
}
