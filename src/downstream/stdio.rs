//! Stdio transport: one client, newline-delimited messages in both directions, both eras at once.
//!
//! Invariants: only protocol messages are written, one per line; each request runs in a task of its
//! own that its client can cancel by id; the end of the input cancels the remaining requests. The
//! reader waits for the writer for a bounded time: a client that sends without reading is
//! disconnected.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::in_flight::InFlightGuard;
use super::modern::{ListenSubscription, ResponseKind};
use super::response::{ClientResponse, ResponseFuture, ResponseMode};
use super::stream_session::StreamSession;
use super::{ServerStateCell, batch, era, legacy, modern};
use crate::audit::TransportKind;
use crate::downstream::limits::concurrency::ConcurrencyPermit;
use crate::downstream::response::audit_events::finish_event;
use crate::downstream::response::results;
use crate::fairness::Workload;
use crate::gateway::ClientContext;
use crate::jsonrpc::{Message, Request};
use crate::line_codec::{DecodedLine, LineDecoder};
use crate::mcp::revision::Era;

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
    // The client has just started this process and fetches the lists only once.
    client.wait_for_startup().await;
    let state = state_cell.now();
    let stop = state.stop.clone();
    let end = CancellationToken::new();
    let (queue, lines) = mpsc::channel(MAX_QUEUED_LINES);
    let writer = state.tracker.spawn(write(output, lines, end.clone()));
    let client =
        client.with_audit_event(state.settings.audit.begin_session(TransportKind::Stdio, None));
    let session =
        StreamSession::new(&state_cell, state, client, queue, end.clone(), HINT, MAX_QUEUED_BYTES);
    let mut connection = StdioConnection { session, end: end.clone() };
    let lines = LineDecoder::new(connection.session.state.settings.max_body);
    let mut lines = lines.with_budget(connection.session.state.budget());
    let mut workload = Workload::default();
    'reading: loop {
        workload.add(0);
        workload.yield_if_due().await;
        while let Some(line) = lines.next_line() {
            workload.add(0);
            workload.yield_if_due().await;
            if !connection.session.apply_new_config() {
                break 'reading;
            }
            connection.handle_line(line).await;
            if end.is_cancelled() {
                break 'reading;
            }
        }
        let read = tokio::select! {
            biased;
            () = end.cancelled() => break,
            () = stop.cancelled() => break,
            () = connection.session.config_changed() => {
                match connection.session.apply_new_config() {
                    true => continue,
                    false => break,
                }
            }
            read = input.read_buf(lines.buffer()) => read,
        };
        match read {
            Ok(0) => {
                if let Some(line) = lines.last_line() {
                    connection.handle_line(line).await;
                }
                break;
            }
            Ok(_) => {}
            Err(error) => {
                debug!(%error, "client input failed");
                break;
            }
        }
    }
    let is_over = connection.session.is_over;
    if is_over {
        warn!("client no longer authenticated, session ended");
    }
    let abort_handle = writer.abort_handle();
    let closing = async {
        connection.session.close().await;
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

/// One stdio connection.
struct StdioConnection {
    /// The legacy session. Requests of both eras share its ids, its queue and its tasks.
    session: StreamSession,
    end: CancellationToken,
}

impl StdioConnection {
    async fn handle_line(&mut self, line: DecodedLine) {
        let text = match line {
            DecodedLine::Whole(text) => text,
            DecodedLine::TooLong(_) => {
                let limit = self.session.state.settings.max_body;
                let refused = results::too_large("the client", limit);
                return self
                    .send(self.session.record_invalid(ClientResponse::refused(None, &refused)))
                    .await;
            }
            DecodedLine::BudgetExhausted(_) => {
                let refused = results::memory_scarce();
                return self
                    .send(self.session.record_invalid(ClientResponse::refused(None, &refused)))
                    .await;
            }
        };
        if batch::is_batch(&text) {
            return self.handle_batch(&text).await;
        }
        match Message::parse(text) {
            Ok(Message::Request(request)) => self.handle_request(request).await,
            Ok(Message::Notification(notification)) => {
                self.session.handle_notification(&notification)
            }
            Ok(Message::Response(response)) => self.session.handle_response(response),
            Err(invalid) => {
                if let Some(response) = invalid.as_error_response() {
                    self.session.handle_response(response);
                }
                self.send(self.session.record_invalid(ClientResponse::from(invalid))).await;
            }
        }
    }

    async fn handle_request(&mut self, request: Request) {
        let permit = match self.session.request_permit() {
            Ok(permit) => permit,
            Err(refused) => {
                let response = self.session.overloaded_response(&request, &refused);
                return self.send(self.session.record_response(&request, response)).await;
            }
        };
        let versions = &self.session.state.settings.versions;
        match era::of_request(versions, &request.method, &request.params, None) {
            Era::Modern => self.handle_modern(request, permit).await,
            Era::Legacy => {
                if let Some((response, _)) = self.session.handle_request(request, permit) {
                    self.send(response).await;
                }
            }
        }
    }

    async fn handle_modern(&mut self, request: Request, permit: ConcurrencyPermit) {
        let StreamSession { state, in_flight, outgoing, .. } = &self.session;
        let settings = &state.settings;
        let client = self.session.client_for_message();
        let audit_event = client.audit_event();
        audit_event.set_method(&request.method);
        let refuse =
            |id, refused| finish_event(audit_event, ClientResponse::refused(Some(id), refused));
        let validated = match modern::validate(request, None, &settings.versions) {
            Ok(validated) => validated,
            Err((id, refused)) => return self.send(refuse(&id, &refused)).await,
        };
        let id = validated.id().clone();
        let Some(guard) = in_flight.open(&id) else {
            return self.send(refuse(&id, &legacy::id_in_use())).await;
        };
        let (versions, allowed) = (&settings.versions, &settings.buffer_limit);
        // Buffered: streaming one response piece by piece would block all other lines.
        let mode = ResponseMode::SharedStream;
        match modern::serve(&client, validated, versions, &state.streams, allowed, mode) {
            ResponseKind::Unary(ResponseFuture { response, messages }) => {
                let response = async move { guard.run(response).await.flatten() };
                let call = ResponseFuture { response: Box::pin(response), messages };
                outgoing.spawn_call(id, call, audit_event.clone(), permit);
            }
            // The stream limiter bounds these, not the concurrency limit.
            ResponseKind::Stream(listening) => {
                let listening =
                    listen(listening, guard, outgoing.queue.clone(), state.stop.clone());
                outgoing.tracker.spawn(listening);
            }
        }
    }

    async fn handle_batch(&mut self, text: &Bytes) {
        if let Err(refused) = self.session.handle_batch(text) {
            self.send(self.session.record_invalid(ClientResponse::refused(None, &refused))).await;
        }
    }

    /// Writes a response immediately. A full queue is waited for, because a client may read more
    /// slowly than it sends; the wait is bounded, because a client that sends without reading never
    /// frees it.
    async fn send(&self, response: ClientResponse) {
        let (queue, timeout) =
            (&self.session.outgoing.queue, self.session.state.settings.timeouts.write);
        if let Some(text) = response.text.into_whole()
            && queue.send_timeout(text, timeout).await.is_err()
        {
            debug!("client does not read responses, disconnecting it");
            self.end.cancel();
        }
    }
}

/// Sends a modern client the notifications it subscribed to, until it cancels or the gateway shuts
/// down.
async fn listen(
    mut listening: ListenSubscription,
    guard: InFlightGuard,
    queue: mpsc::Sender<Bytes>,
    stop: CancellationToken,
) {
    loop {
        let line = tokio::select! {
            biased;
            () = guard.cancelled().cancelled() => return,
            () = stop.cancelled() => {
                let _ = queue.send(listening.cancel_notification()).await;
                return;
            }
            change = listening.next() => match change {
                Some(change) => change,
                // The client's credentials are no longer valid.
                None => {
                    let _ = queue.send(listening.cancel_notification()).await;
                    return;
                }
            },
        };
        if queue.send(line).await.is_err() {
            return;
        }
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

/// Time to write the last responses once the client has closed its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Lines queued for the writer; senders wait when it is full.
const MAX_QUEUED_LINES: usize = 256;
/// Byte limit of queued responses: unlimited, because there is one client, on this machine.
const MAX_QUEUED_BYTES: usize = usize::MAX;
/// Hint for a client that sends a request before it has initialized.
const HINT: &str = "send `initialize` first, or the `_meta` of revision 2026-07-28";
