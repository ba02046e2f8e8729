//! Stdio transport: one client, newline-delimited messages in both directions, both eras at once.
//!
//! Invariants: only protocol messages are written, one per line; each request runs in a task of its
//! own that its client can cancel by id. At the end of the input, requests in progress are answered
//! within a bounded time, and the remaining ones cancelled. The reader waits for the writer for a
//! bounded time: a client that sends without reading is disconnected.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::ServerStateCell;
use super::stream_session::{ImmediateResponse, StreamMessage, StreamRules, StreamSession};
use crate::response::results;
use weir_base::tasks::fairness::Workload;
use weir_base::text::line_codec::{DecodedLine, LineDecoder};
use weir_gateway::ClientContext;
use weir_record::audit::TransportKind;

/// Serves the client on `input` and `output` until it closes its side or the gateway shuts down.
pub async fn serve<R, W>(
    state_cell: Arc<ServerStateCell>,
    client: ClientContext,
    mut input: R,
    output: W,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let state = state_cell.now();
    let stop = state.stop.clone();
    let end = CancellationToken::new();
    let (queue, lines) = mpsc::channel(MAX_QUEUED_LINES);
    let writer = state.tracker.spawn(write(output, lines, end.clone()));
    let client = client.with_audit_event(state.audit.begin_session(TransportKind::Stdio, None));
    let lines = LineDecoder::new(state.settings.max_body);
    let mut lines = lines.with_budget(state.budget());
    let mut session = StreamSession::new(&state_cell, state, client, queue, end.clone(), RULES);
    let mut workload = Workload::default();
    'reading: loop {
        workload.add(0);
        workload.yield_if_due().await;
        while let Some(line) = lines.next_line() {
            workload.add(0);
            workload.yield_if_due().await;
            if !session.apply_new_config() {
                break 'reading;
            }
            handle_line(&mut session, line).await;
            if end.is_cancelled() {
                break 'reading;
            }
        }
        let read = tokio::select! {
            biased;
            () = session.ended() => break,
            read = input.read_buf(lines.buffer()) => read,
        };
        match read {
            Ok(0) => {
                if let Some(line) = lines.last_line() {
                    handle_line(&mut session, line).await;
                }
                session.finish_requests(LISTS_TIMEOUT, CALLS_TIMEOUT).await;
                break;
            }
            Ok(_) => {}
            Err(error) => {
                debug!(%error, "client input failed");
                break;
            }
        }
    }
    let is_over = session.is_over;
    if is_over {
        warn!("client no longer authenticated, session ended");
    }
    let abort_handle = writer.abort_handle();
    let closing = async {
        session.close().await;
        // All senders are dropped, so the writer ends after the last line.
        if let Err(error) = writer.await {
            debug!(%error, "writer task failed");
        }
    };
    if is_over || stop.is_cancelled() {
        // Calls in progress are finished; the shutdown timeout bounds the wait.
        closing.await;
    } else if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
        // The client has closed its side and does not read either.
        abort_handle.abort();
    }
}

async fn handle_line(session: &mut StreamSession, line: DecodedLine) {
    let immediate = match line {
        DecodedLine::Whole(text) => match StreamMessage::parse(text) {
            Ok(message) => session.handle(message),
            Err(invalid) => Some(session.handle_invalid(invalid)),
        },
        DecodedLine::TooLong(head) => {
            let limit = session.state.settings.max_body;
            Some(session.handle_unread(&head, results::too_large("the client", limit)))
        }
        DecodedLine::BudgetExhausted(head) => {
            Some(session.handle_unread(&head, results::memory_scarce()))
        }
    };
    let Some((response, _permit)) = immediate.map(ImmediateResponse::record) else { return };
    // A full queue is waited for, because a client may read more slowly than it sends; the wait is
    // bounded, because a client that sends without reading never frees it.
    let timeout = session.state.settings.timeouts.write;
    if let Some(text) = response.text.into_whole()
        && session.outgoing.queue.send_timeout(text, timeout).await.is_err()
    {
        debug!("client does not read responses, disconnecting it");
        session.end.cancel();
    }
}

/// Writes lines until all senders are dropped. If the client reads none, `end` is cancelled.
async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut lines: mpsc::Receiver<Bytes>,
    end: CancellationToken,
) {
    let _ended = end.drop_guard();
    while let Some(line) = lines.recv().await {
        let written = async {
            output.write_all(&line).await?;
            output.write_all(b"\n").await?;
            output.flush().await
        };
        if let Err(error) = written.await {
            debug!(%error, "client output failed");
            return;
        }
    }
}

/// Time for the lists in progress once the client has closed its side: longer than a list waits for
/// upstreams (`protocol.list_wait`).
const LISTS_TIMEOUT: Duration = Duration::from_secs(35);
/// Time for other requests then: less than the two seconds after which clients send SIGTERM.
const CALLS_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Time to write the last responses once the client has closed its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Lines queued for the writer; senders wait when it is full.
const MAX_QUEUED_LINES: usize = 256;
/// Rules of the transport. Queued responses have no byte limit, because there is one client, on
/// this machine.
const RULES: StreamRules = StreamRules {
    hint: "send `initialize` first, or the `_meta` of revision 2026-07-28",
    max_queued_bytes: usize::MAX,
    has_modern: true,
    can_reinitialize: true,
};
