//! Client side of the modern era: each request carries its own context.
//!
//! Mirrors `legacy.rs`: equal functions in the same order. A dialect builds requests and interprets
//! responses; it owns no connection.

mod subscriptions;

use std::collections::HashMap;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::message::request_params::RequestParams;
use crate::message::{
    AcceptedSubscriptions, CancelMode, OutboundRequest, PendingContext, RequestHeaders,
    TransportError, error_code, error_text,
};
use crate::session::handshake::{HandshakeInfo, NegotiationError, revisions, supported_revisions};
use crate::transport::Transport;
use crate::transport::dispatcher::{LISTEN_STABLE_AFTER, REOPEN_BACKOFF};
use weir_base::json::{self, Object, WatchedMember};
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::{CallContext, Method, ResponseOutcome, UpstreamRequest};
use weir_mcp::definition::item::Item;
use weir_mcp::definition::param_headers::{ParamHeaders, header_value};
use weir_mcp::input_request::INPUT_REQUESTS;
use weir_mcp::jsonrpc::{self, ResponsePayload};
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::revision::{Era, Revision};
use weir_mcp::task::TASK_ID;
use weir_mcp::{capabilities, code, meta};

const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

/// Revision of the requests, and its JSON text.
const REVISION: Revision = Revision::V2026_07_28;
const REVISION_JSON: &str = "\"2026-07-28\"";
/// Members of a result that have to be read: input requests are compared with the features that the
/// client declared, and a task that begins gets a handle. `resultType` is matched as well, since it
/// stands before the large members of a task.
const BUFFERED: &[WatchedMember] = &[
    WatchedMember { name: INPUT_REQUESTS, value: None },
    WatchedMember { name: TASK_ID, value: None },
    WatchedMember { name: "resultType", value: Some("task") },
];

/// Protocol state of a connection; this era has no handshake.
#[derive(Debug)]
pub(crate) struct ModernDialect {
    /// Headers that all requests have.
    headers: RequestHeaders,
    /// Arguments of tools that are repeated in headers, as of the last list.
    tool_headers: Mutex<HashMap<Box<str>, ParamHeaders>>,
    /// Whether the server sends log messages, and each names the call that it belongs to.
    sends_logs: bool,
}

/// Builds the `server/discover` request.
pub(crate) fn opening_request(transport: &Transport) -> OutboundRequest {
    request_of_weir("server/discover", &Object::new(), session_headers(transport))
}

/// Parses the response to `server/discover`.
pub(crate) fn parse_handshake(
    response: &ResponsePayload,
) -> Result<HandshakeInfo, NegotiationError> {
    match response {
        ResponsePayload::Result(result) => {
            let result = Object::parse(result.clone()).unwrap_or_default();
            let versions = result.get_bytes("supportedVersions").and_then(revisions);
            let versions = versions.ok_or_else(unknown_method)?;
            check_support(&versions)?;
            let first_era = versions.first().map_or(Era::Modern, |first| first.era());
            Ok(HandshakeInfo { first_era, ..HandshakeInfo::read(REVISION, &result) })
        }
        ResponsePayload::Error(error) => {
            let refused = || format!("it refuses `server/discover`: {}", error_text(error));
            match error_code(error) {
                // spec 2026-07-28, versioning: use one of the versions that it supports.
                Some(code::UNSUPPORTED_PROTOCOL_VERSION) => {
                    check_support(&supported_revisions(error).unwrap_or_default())?;
                    Err(NegotiationError::Retry(refused()))
                }
                Some(code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY) => {
                    Err(NegotiationError::Refused(refused()))
                }
                _ => Err(unknown_method()),
            }
        }
    }
}

fn unknown_method() -> NegotiationError {
    NegotiationError::AnotherEra("it does not know `server/discover`".into())
}

/// Checks that Weir's revision is one of those that a server supports.
fn check_support(supported: &[Revision]) -> Result<(), NegotiationError> {
    if supported.contains(&REVISION) {
        return Ok(());
    }
    Err(match supported {
        [] => NegotiationError::Refused(format!("it is modern but does not speak {REVISION}")),
        // All other revisions have a handshake, so the server expects that.
        _ => unknown_method(),
    })
}

impl ModernDialect {
    /// Creates the dialect from the response to `server/discover`.
    pub(crate) fn new(
        handshake_info: &HandshakeInfo,
        transport: &Transport,
        correlates_messages: bool,
    ) -> Self {
        Self {
            headers: session_headers(transport),
            tool_headers: Mutex::default(),
            sends_logs: handshake_info.capabilities.logging && correlates_messages,
        }
    }

    /// Builds the request of a call.
    pub(crate) fn build_request(
        &self,
        call: &UpstreamRequest,
        transport: &Transport,
    ) -> OutboundRequest {
        let caller = &call.caller;
        let info = caller.info.clone().unwrap_or_else(crate::client_info);
        let method = call.method.as_str();
        let mut request =
            request_declaring(method, &call.params, &info, &declared(caller), self.headers.clone());
        // Spec 2026-07-28, logging: without a level there MUST NOT be messages.
        if let Some(level) = caller.notifications.logs().minimum().filter(|_| self.sends_logs) {
            request.params.add_meta(meta::LOG_LEVEL, &json::quote(level.as_str()));
        }
        let member = call.method.header_member();
        if let Some(subject) = member.and_then(|member| call.params.get_string(member)) {
            request.headers.set(NAME_HEADER, header_value(&subject));
        }
        // spec 2026-07-28, Streamable HTTP, custom headers: an intermediary that does not recognize
        // one MUST forward it.
        if let Some(headers) = &caller.param_headers {
            request.headers.add_all(headers);
        }
        if call.method == Method::CallTool
            && let Some(param_headers) = self.tool_headers.lock().get(&call.subject)
        {
            set_param_headers(param_headers, &call.params, &mut request.headers);
        }
        let notifications = caller.notifications.with_logs_enabled(self.sends_logs);
        OutboundRequest {
            context: PendingContext { notifications, ..PendingContext::default() },
            cancel: cancel_mode(transport),
            // A response that Weir has to read is not streamed.
            stream: !reads_input_requests(call) && !call.method.is_task_method(),
            buffer_if_member: BUFFERED,
            ..request
        }
    }

    /// Builds the request for a page of a list.
    pub(crate) fn build_list_request(
        &self,
        kind: Kind,
        params: Object,
        transport: &Transport,
    ) -> OutboundRequest {
        OutboundRequest {
            cancel: cancel_mode(transport),
            ..request_of_weir(kind.list_method(), &params, self.headers.clone())
        }
    }

    /// Reads from a list of tools which arguments are repeated in headers. A tool with an invalid
    /// annotation cannot be called as it requires, so it is marked and no client sees it. Other
    /// transports have no headers, and need not look (spec 2026-07-28, Streamable HTTP, schema
    /// extension).
    pub(crate) fn index_tools(&self, tools: &mut [Item], transport: &Transport) {
        if !matches!(transport, Transport::Http(_)) {
            return;
        }
        let mut tool_headers = HashMap::new();
        for tool in tools {
            match ParamHeaders::read(&tool.definition) {
                Ok(None) => {}
                Ok(Some(param_headers)) => _ = tool_headers.insert(tool.key.clone(), param_headers),
                Err(bad) => tool.defect = Some(bad.into()),
            }
        }
        *self.tool_headers.lock() = tool_headers;
    }

    /// Interprets the result of a request.
    pub(crate) fn interpret(
        &self,
        result: Result<ResponseOutcome, TransportError>,
    ) -> Result<ResponseOutcome, TransportError> {
        let outcome = match result {
            Err(TransportError::Http(failure)) => match failure.error {
                Some(error) => ResponseOutcome::Error(error),
                None => return Err(TransportError::Http(failure)),
            },
            result => result?,
        };
        // spec 2026-07-28, versioning: the server does not implement the revision of this request,
        // so it has not executed it.
        let unsupported = Some(code::UNSUPPORTED_PROTOCOL_VERSION);
        match &outcome {
            ResponseOutcome::Error(error) if error_code(error) == unsupported => {
                Err(TransportError::SessionLost(format!("it does not speak {REVISION} any more")))
            }
            _ => Ok(outcome),
        }
    }

    /// Receives list changes until the connection is over.
    ///
    /// Returns the reason why the connection must be opened again, if it must.
    pub(crate) async fn listen(&self, transport: &Transport, topics: [bool; 3]) -> Option<String> {
        let dispatcher = transport.dispatcher();
        let mut filter = Object::new();
        for topic in ListTopic::ALL.into_iter().filter(|it| topics[it.index()]) {
            filter.set(topic.filter_member(), "true");
        }
        if filter.is_empty() {
            dispatcher.on_listen_settled();
            return None;
        }
        let mut backoff = REOPEN_BACKOFF;
        // A stream that ended at once is reopened after twice the minimum.
        backoff.next_pause();
        loop {
            let since = Instant::now();
            let request = self.listen_request(transport, &filter, None, capabilities::OWN);
            // The dispatcher handles the acknowledgment and the notifications that follow it.
            match self.interpret(transport.exchange(Box::new(request)).await) {
                Ok(ResponseOutcome::Error(error)) => {
                    tracing::debug!(
                        error = error_text(&error),
                        "subscription to list changes refused"
                    );
                    if error_code(&error) == Some(jsonrpc::code::METHOD_NOT_FOUND) {
                        dispatcher.on_listen_settled();
                        return None;
                    }
                }
                Ok(_) => tracing::debug!("subscription to list changes ended"),
                Err(TransportError::SessionLost(reason)) => return Some(reason),
                Err(failure) => tracing::debug!(?failure, "subscription to list changes failed"),
            }
            if since.elapsed() >= LISTEN_STABLE_AFTER {
                backoff.reset();
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    /// Builds a `subscriptions/listen` request, which declares these capabilities. The names that
    /// the server accepts are sent to `accepted_tx`.
    fn listen_request(
        &self,
        transport: &Transport,
        filter: &Object,
        accepted_tx: Option<mpsc::Sender<AcceptedSubscriptions>>,
        capabilities: &'static str,
    ) -> OutboundRequest {
        let params = Object::new().with("notifications", filter.to_bytes());
        let (info, capabilities) = (crate::client_info(), capabilities.as_bytes());
        let (method, headers) = ("subscriptions/listen", self.headers.clone());
        OutboundRequest {
            context: PendingContext { listen: true, accepted_tx, ..PendingContext::default() },
            cancel: cancel_mode(transport),
            ..request_declaring(method, &params, &info, capabilities, headers)
        }
    }
}

/// Returns how a request is cancelled on this transport (spec 2026-07-28, cancellation).
fn cancel_mode(transport: &Transport) -> CancelMode {
    match transport {
        // HTTP+SSE belongs to the legacy era; otherwise its requests would share one stream, as
        // over stdio.
        Transport::Stdio(_) | Transport::Sse(_) => CancelMode::Notify,
        Transport::Http(_) => CancelMode::CloseStream,
    }
}

/// Returns the headers that all requests over this transport have.
fn session_headers(transport: &Transport) -> RequestHeaders {
    let revision = HeaderValue::from_static(REVISION.as_str());
    transport.session_headers(HeaderMap::from_iter([(VERSION_HEADER, revision)]))
}

/// Builds a request of Weir itself.
fn request_of_weir(
    method: &'static str,
    params: &Object,
    headers: RequestHeaders,
) -> OutboundRequest {
    let (info, capabilities) = (crate::client_info(), capabilities::OWN.as_bytes());
    request_declaring(method, params, &info, capabilities, headers)
}

/// Builds a request with its context: the client and its capabilities in the body, the method
/// repeated in the headers.
fn request_declaring(
    method: &'static str,
    params: &Object,
    info: &[u8],
    capabilities: &[u8],
    mut headers: RequestHeaders,
) -> OutboundRequest {
    let mut params = RequestParams::new(params);
    params.add_meta(meta::PROTOCOL_VERSION, REVISION_JSON.as_bytes());
    params.add_meta(meta::CLIENT_INFO, info);
    params.add_meta(meta::CLIENT_CAPABILITIES, capabilities);
    headers.set(METHOD_HEADER, HeaderValue::from_static(method));
    OutboundRequest::new(method, params, headers)
}

/// Whether Weir looks for input requests in the response to a call: a modern client reads them
/// itself, on the methods that may have them.
pub(crate) fn reads_input_requests(call: &UpstreamRequest) -> bool {
    call.caller.revision.era() == Era::Legacy || call.method == Method::Complete
}

/// Returns the capabilities of a caller in the form of this era: its own, or the equivalent of
/// those that its session declared.
fn declared(caller: &CallContext) -> Bytes {
    match caller.revision.era() {
        Era::Modern => caller.capabilities.clone(),
        Era::Legacy => crate::declared_in(REVISION, caller),
    }
}

/// Sets the headers to the arguments of these parameters, and removes those without an argument.
fn set_param_headers(param_headers: &ParamHeaders, params: &Object, headers: &mut RequestHeaders) {
    for (name, value) in param_headers.values(params) {
        match value.and_then(|value| value.to_header()) {
            Some(header) => headers.set(name.clone(), header),
            None => headers.remove(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::session::modern::*;

    #[test]
    fn the_revision_is_the_same_as_text_and_as_json() {
        assert_eq!(json::quote(REVISION.as_str()), REVISION_JSON);
    }

    #[test]
    fn the_revision_that_a_server_names_first_tells_its_era() {
        for (supported, era) in [
            (r#"["2026-07-28","2025-11-25"]"#, Era::Modern),
            (r#"["2025-11-25","2024-11-05","2026-07-28"]"#, Era::Legacy),
        ] {
            let result = format!(r#"{{"supportedVersions":{supported},"capabilities":{{}}}}"#);
            let handshake = parse_handshake(&ResponsePayload::Result(result.into()));
            let Ok(handshake) = handshake else { panic!("{supported}") };
            assert_eq!((handshake.revision, handshake.first_era), (REVISION, era), "{supported}");
        }
    }

    #[test]
    fn the_revisions_that_a_server_names_decide() {
        let parse = |supported: &str| {
            let error =
                format!(r#"{{"code":-32022,"message":"m","data":{{"supported":{supported}}}}}"#);
            parse_handshake(&ResponsePayload::Error(error.into()))
        };
        for handshake in [r#"["2025-11-25","2025-06-18"]"#, r#"["2025-03-26","2027-01-01"]"#] {
            assert!(
                matches!(parse(handshake), Err(NegotiationError::AnotherEra(_))),
                "{handshake}"
            );
        }
        for refused in ["[]", r#"["2027-01-01"]"#, "7"] {
            assert!(matches!(parse(refused), Err(NegotiationError::Refused(_))), "{refused}");
        }
        for mutual in [r#"["2026-07-28"]"#, r#"["2025-11-25","2026-07-28"]"#] {
            assert!(matches!(parse(mutual), Err(NegotiationError::Retry(_))), "{mutual}");
        }
    }
}
