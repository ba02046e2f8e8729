//! Client side of the legacy era: `initialize`, sessions, and a stream for list changes.
//!
//! Mirrors `modern.rs`: equal functions in the same order. A dialect builds requests and interprets
//! responses; it owns no connection.

mod subscriptions;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tokio::time::Instant;

use crate::input_requests::InputRequests;
use crate::message::request_params::RequestParams;
use crate::message::{
    CancelMode, OutboundRequest, PendingContext, RequestHeaders, TransportError, error_text,
};
use crate::session::handshake::{HandshakeInfo, NegotiationError, supported_revisions};
use crate::session::input_retry::RETRY_MEMBERS;
use crate::session::log_level::SharedLogLevel;
use crate::session::session_check::{SESSION_ENDED, SessionCheck};
use crate::task_owners::TaskClaim;
use crate::transport::Transport;
use crate::transport::dispatcher::{LISTEN_STABLE_AFTER, MIN_REOPEN_PAUSE, REOPEN_BACKOFF};
use weir_base::json::{self, Object};
use weir_mcp::call::{Method, ResponseOutcome, UpstreamRequest};
use weir_mcp::definition::item::Item;
use weir_mcp::jsonrpc::{self, ResponsePayload};
use weir_mcp::kind::Kind;
use weir_mcp::log_level::LogLevel;
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::TaskOwner;

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Longest session id that is accepted.
const MAX_SESSION_BYTES: usize = 4 * 1024;

/// Protocol state negotiated by `initialize`.
pub(crate) struct LegacyDialect {
    /// Headers of every request.
    headers: RequestHeaders,
    has_session: bool,
    check: Arc<SessionCheck>,
    /// Log level of the server; `None` where its log messages could not be attributed to a client.
    pub(crate) log_level: Option<Box<SharedLogLevel>>,
}

/// Builds the `initialize` request in this revision, which declares these capabilities.
pub(crate) fn opening_request(
    transport: &Transport,
    declared: &Bytes,
    revision: Revision,
) -> OutboundRequest {
    let mut params = Object::new();
    params.set("protocolVersion", json::quote(revision.as_str()));
    params.set("capabilities", declared.clone());
    params.set("clientInfo", crate::client_info());
    // spec 2025-11-25, cancellation: `initialize` MUST NOT be cancelled.
    let (params, headers) =
        (RequestParams::new(&params), transport.session_headers(HeaderMap::new()));
    OutboundRequest { resume: true, ..OutboundRequest::new("initialize", params, headers) }
}

/// Parses the response to `initialize`.
pub(crate) fn parse_handshake(
    response: &ResponsePayload,
) -> Result<HandshakeInfo, NegotiationError> {
    let refused = |text: String| Err(NegotiationError::Refused(text));
    let result = match response {
        ResponsePayload::Result(result) => result.clone(),
        ResponsePayload::Error(error) => {
            let text = format!("it refuses `initialize`: {}", error_text(error));
            // spec 2025-11-25, lifecycle, error handling: some servers list the revisions that they
            // support instead of naming one.
            let supported = supported_revisions(error).into_iter().flatten();
            let legacy = supported.filter(|it| *it < Revision::NEWEST_LEGACY);
            return match legacy.max() {
                Some(revision) => Err(NegotiationError::OtherRevision(revision, text)),
                None => refused(text),
            };
        }
    };
    let Ok(result) = Object::parse(result) else {
        return refused("its response to `initialize` is not an object".into());
    };
    let Some(version) = result.get_string("protocolVersion") else {
        let what = match result.has("protocolVersion") {
            true => "with a `protocolVersion` that is no string",
            false => "without `protocolVersion`",
        };
        return Err(NegotiationError::NoRevision(format!("it answers `initialize` {what}")));
    };
    let known = version.parse::<Revision>().ok().filter(|known| known.era() == Era::Legacy);
    let Some(revision) = known else {
        let version = weir_base::text::quote::quote(&version, 40);
        return refused(format!("it answers `initialize` with the unknown revision \"{version}\""));
    };
    Ok(HandshakeInfo::read(revision, &result))
}

impl LegacyDialect {
    /// Creates the dialect from the response to `initialize`. Fails if the session id is too long:
    /// without it the server would refuse every request.
    pub(crate) fn new(
        handshake_info: &HandshakeInfo,
        received: &HeaderMap,
        transport: &Transport,
        correlates_messages: bool,
        check: Arc<SessionCheck>,
    ) -> Result<Self, TransportError> {
        let mut headers = HeaderMap::new();
        let session = received.get(SESSION_HEADER);
        if let Some(mut id) = session.cloned() {
            if id.len() > MAX_SESSION_BYTES {
                let text = format!("its session id has more than {MAX_SESSION_BYTES} bytes");
                return Err(TransportError::Protocol(text));
            }
            id.set_sensitive(true);
            headers.insert(SESSION_HEADER, id);
        }
        // The header was introduced in 2025-06-18; its absence means 2025-03-26.
        if handshake_info.revision >= Revision::V2025_06_18 {
            let revision = HeaderValue::from_static(handshake_info.revision.as_str());
            headers.insert(VERSION_HEADER, revision);
        }
        let sends_logs = handshake_info.capabilities.logging && correlates_messages;
        let log_level = sends_logs.then(Box::default);
        let (headers, has_session) = (transport.session_headers(headers), session.is_some());
        Ok(Self { headers, has_session, check, log_level })
    }

    /// Whether the server has a session, which ends with the connection.
    pub(crate) fn has_session(&self) -> bool {
        self.has_session
    }

    /// Completes the handshake: sends `notifications/initialized`.
    pub(crate) async fn complete_handshake(
        &self,
        transport: &Transport,
    ) -> Result<(), TransportError> {
        if let Transport::Sse(transport) = transport {
            transport.set_reply_headers(self.headers.clone());
        }
        let message = jsonrpc::write_notification("notifications/initialized", b"{}");
        transport.notify(message, &self.headers).await
    }

    /// Builds the request of a call.
    pub(crate) fn build_request(
        &self,
        call: &UpstreamRequest,
        input_requests: &InputRequests,
    ) -> OutboundRequest {
        let caller = &call.caller;
        // Only 2025-11-25 knows `task`; under other revisions it is to be ignored (spec 2025-11-25,
        // tasks, behavior requirements; SEP-2663, backward compatibility).
        let task = (caller.revision != Revision::V2025_11_25).then_some("task");
        let mut params = Cow::Borrowed(&call.params);
        for member in RETRY_MEMBERS.into_iter().chain(task) {
            if params.has(member) {
                params.to_mut().take(member);
            }
        }
        // Spec 2025-11-25, tasks: the requests whose responses name a task.
        let begins_task = call.method == Method::CallTool && params.has("task");
        let about_task = matches!(call.method, Method::GetTask | Method::CancelTask);
        let task_ids = caller.notifications.task_ids().filter(|_| begins_task || about_task);
        let claim = |task_ids| TaskClaim {
            owner: TaskOwner::new(Arc::clone(task_ids), &caller.client.tasks),
            task_id: about_task.then(|| call.subject.clone()),
        };
        let context = PendingContext {
            notifications: caller.notifications.with_logs_enabled(self.log_level.is_some()),
            input_requests: Some(input_requests.clone()),
            task_claim: task_ids.map(claim),
            ..PendingContext::default()
        };
        OutboundRequest {
            context,
            // A response that names a task has to be read: the response about a task, one that
            // begins a task, or one that is related to the task that the call names. Any other task
            // that a result names gives access to nothing.
            stream: caller.revision.era() == Era::Legacy && call.scope.is_none() && !begins_task,
            ..self.request(call.method.as_str(), &params)
        }
    }

    /// Builds the request for a page of a list.
    pub(crate) fn build_list_request(&self, kind: Kind, params: Object) -> OutboundRequest {
        self.request(kind.list_method(), &params)
    }

    /// Marks the tools of a list that can be called as tasks only.
    pub(crate) fn index_tools(&self, tools: &mut [Item]) {
        for tool in tools {
            let execution = tool.definition.get_object("execution");
            let support = execution.as_ref().and_then(|it| it.get_string("taskSupport"));
            tool.needs_task = support.as_deref() == Some("required");
        }
    }

    /// Builds the request for log messages from `level` on.
    pub(crate) fn build_level_request(&self, level: LogLevel) -> OutboundRequest {
        let mut params = Object::new();
        params.set("level", json::quote(level.as_str()));
        OutboundRequest { resume: false, ..self.request("logging/setLevel", &params) }
    }

    /// Builds a request that may be cancelled, and whose event stream is resumed.
    fn request(&self, method: &'static str, params: &Object) -> OutboundRequest {
        let params = RequestParams::new(params);
        OutboundRequest {
            cancel: CancelMode::Notify,
            resume: true,
            ..OutboundRequest::new(method, params, self.headers.clone())
        }
    }

    /// Judges the session after a failure: see [`SessionCheck::judge`].
    pub(crate) async fn judge(
        &self,
        failure: &TransportError,
        transport: &Transport,
    ) -> Option<String> {
        let ping = || {
            OutboundRequest::new("ping", RequestParams::new(&Object::new()), self.headers.clone())
        };
        self.check.judge(failure, transport, ping).await
    }

    /// Interprets the result of a request.
    pub(crate) fn interpret(
        &self,
        result: Result<ResponseOutcome, TransportError>,
    ) -> Result<ResponseOutcome, TransportError> {
        match result {
            Err(TransportError::Http(failure)) => match failure.error {
                Some(error) => Ok(ResponseOutcome::Error(error)),
                None => Err(TransportError::Http(failure)),
            },
            result => result,
        }
    }

    /// Receives list changes until the connection is over. stdio and HTTP+SSE need no request for
    /// that: the server's notifications arrive between its responses. The stream also carries
    /// requests, log messages and resource updates of the server, so it is opened even if the
    /// server announces no list changes. Before it was open again, changes may have been missed:
    /// each announced list and each subscribed resource then counts as changed.
    ///
    /// Returns the reason why the connection must be opened again, if it must.
    pub(crate) async fn listen(&self, transport: &Transport) -> Option<String> {
        let dispatcher = transport.dispatcher();
        let Transport::Http(streamable) = transport else {
            dispatcher.on_listen_settled();
            return None;
        };
        let (mut backoff, mut last_id, mut had_stream) = (REOPEN_BACKOFF, None, false);
        // A stream that ended at once is reopened after twice the minimum.
        backoff.next_pause();
        loop {
            let since = Instant::now();
            let mut retry = None;
            match streamable.listen(&self.headers, last_id.as_deref()).await {
                Ok(mut events) => {
                    if std::mem::replace(&mut had_stream, true) {
                        dispatcher.missed_updates();
                    }
                    dispatcher.on_listen_settled();
                    let _open = dispatcher.open_standalone();
                    while let Ok(Some(dispatched)) =
                        streamable.dispatch_next(&mut events, None).await
                    {
                        streamable.http_client.send_responses(dispatched.outgoing, &self.headers);
                    }
                    last_id = events.last_id().or(last_id);
                    retry = events.retry();
                }
                // After a stream was open, 404 means that the session is over. Before that, some
                // servers send it because they have no stream.
                Err(TransportError::Http(failure))
                    if failure.status == StatusCode::NOT_FOUND
                        && had_stream
                        && self.has_session =>
                {
                    return Some(SESSION_ENDED.into());
                }
                Err(failure) => {
                    tracing::debug!(?failure, "stream for list changes failed");
                    if had_stream {
                        let judged = Box::pin(self.judge(&failure, transport)).await;
                        if judged.is_some() {
                            return judged;
                        }
                    }
                    let status = failure.http_status().filter(StatusCode::is_client_error);
                    // The server may not know the last event id (any more), so the stream starts
                    // anew.
                    if let Some(status) = status
                        && last_id.take().is_none()
                        && !matches!(status.as_u16(), 408 | 429)
                    {
                        dispatcher.on_listen_settled();
                        return None;
                    }
                }
            }
            if since.elapsed() >= LISTEN_STABLE_AFTER {
                backoff.reset();
            }
            let pause = backoff.next_pause();
            // spec 2025-11-25, transports: the client MUST respect `retry`. Waiting longer than
            // `retry` is allowed; a stream that ended within a second must not keep Weir busy.
            let min_pause =
                if since.elapsed() < MIN_REOPEN_PAUSE { pause } else { MIN_REOPEN_PAUSE / 4 };
            tokio::time::sleep(retry.unwrap_or(pause).max(min_pause)).await;
        }
    }

    /// Ends the session.
    pub(crate) async fn end(&self, transport: &Transport) {
        if let (Transport::Http(transport), true) = (transport, self.has_session) {
            transport.http_client.delete(&self.headers).await;
        }
    }
}
