//! Server side of the legacy era: revisions 2024-11-05 to 2025-11-25. The functions that `modern`
//! has, too, have the same names.
//!
//! [`initialize`] opens a session and returns a [`LegacyClient`]; [`serve`] handles its requests.
//! JSON-RPC errors are sent with HTTP 200: to these clients 404 means that the session has ended.

mod handshake;
pub(crate) mod session_facts;
pub(crate) mod stdio_handshake;

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use hyper::StatusCode;

use super::client_requests::{ClientRequester, ClientRequests};
use super::in_flight::InFlightRequests;
use super::request_meta;
use super::request_parts::RequestParts;
use super::response::{ClientResponse, ErrorResponse, ResponseFuture, ResponseMode};
use crate::legacy::session_facts::{SessionFacts, SessionSettings};
use crate::response::call_stream::CallMessages;
use crate::response::results::{self, invalid_params};
pub(super) use handshake::{handle_uninitialized, initialize};
use weir_base::json::Object;
use weir_base::memory::memory_budget::BufferLimit;
use weir_gateway::{
    Admission, ClientContext, ClientNotifications, Error, PreparedRequest, SubscribeOutcome,
    Subscriptions,
};
use weir_mcp as mcp;
use weir_mcp::call::{
    CallContext, CallOutcome, CancelReason, ClientHandle, ItemRequest, Method, ResponseOutcome,
    UpstreamResponse,
};
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::definition::downgrade::{self, DefinitionForm};
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::jsonrpc::{Id, Message, Request, code};
use weir_mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use weir_mcp::log_level::{LogLevel, LogLevelSetting};
use weir_mcp::revision::{Era, Revision};

/// Method that opens a session.
pub(super) const INITIALIZE: &str = "initialize";
/// Method that sets the log level of a session.
const SET_LEVEL: &str = "logging/setLevel";

/// Client of an initialized session.
#[derive(Clone)]
pub(super) struct LegacyClient {
    /// Context of its calls, without notifications.
    pub(super) context: CallContext,
    /// Log level that the client has set.
    logs: LogLevelSetting,
    /// Requests in progress.
    pub(super) in_flight: Arc<InFlightRequests>,
    /// Open server-to-client requests.
    pub(super) client_requests: ClientRequests,
    /// Resource subscriptions of the session.
    pub(super) subscriptions: Arc<Subscriptions>,
}

impl LegacyClient {
    /// Rebuilds the client of a session from the facts in its id and the settings that were
    /// recorded.
    pub(super) fn rebuild(
        client: &ClientContext,
        facts: &SessionFacts,
        settings: &SessionSettings,
        connection: LegacyConnection,
    ) -> Self {
        let SessionFacts { revision, capabilities, info, .. } = facts.clone();
        let declared = Declared { features: facts.features(), capabilities, info };
        let peer = Self::new(client, revision, declared, connection);
        settings.log_level.into_iter().for_each(|level| peer.logs.set(level));
        peer
    }

    fn new(
        client: &ClientContext,
        revision: Revision,
        Declared { features, capabilities, info }: Declared,
        LegacyConnection { handle, in_flight, client_requests }: LegacyConnection,
    ) -> Self {
        let handle = handle.owned_by(client.quota_owner());
        let subscriptions = Subscriptions::new(client, handle.clone());
        let context = CallContext {
            revision,
            info,
            features,
            capabilities,
            client: handle,
            notifications: NotificationSink::disabled(),
            param_headers: None,
            cancel_reason: CancelReason::default(),
        };
        let logs = LogLevelSetting::unset();
        Self { context, logs, in_flight, client_requests, subscriptions }
    }

    /// Returns what the client has set in its session.
    pub(super) fn settings(&self) -> SessionSettings {
        let log_level = self.logs.minimum().filter(|_| self.logs.is_explicit());
        SessionSettings { log_level, subscriptions: self.subscriptions.uris() }
    }

    /// Subscribes again to the resources that the client had subscribed to, until the session ends.
    pub(super) fn restore_subscriptions(
        &self,
        client: &ClientContext,
        uris: Vec<Box<str>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (client, subscriptions) = (client.clone(), Arc::clone(&self.subscriptions));
        let end = self.context.client.gone.clone();
        async move {
            let restoring = uris.iter().map(|uri| subscriptions.restore(&client, uri));
            let _: Option<Vec<()>> = end.run_until_cancelled(join_all(restoring)).await;
        }
    }

    /// Delivers a response to the request that it answers, or a cancellation to the request that it
    /// names, and returns whether that is in progress. Other messages have no effect.
    pub(super) fn deliver(&self, message: &Message) -> bool {
        match message {
            Message::Request(_) => false,
            Message::Notification(notification) => self.in_flight.handle_notification(notification),
            Message::Response(response) => self.client_requests.complete(response.clone()),
        }
    }

    /// Returns the notifications for the session, as the client may receive them.
    pub(super) fn notifications(&self, client: &ClientContext) -> ClientNotifications {
        ClientNotifications::new(client, &self.subscriptions, self.context.revision)
    }
}

/// Declarations of a client about itself.
struct Declared {
    features: ClientFeatures,
    capabilities: Bytes,
    info: Option<Bytes>,
}

/// Returns whether a request with this method changes [`LegacyClient::settings`].
pub(super) fn changes_settings(method: &str) -> bool {
    matches!(method, SUBSCRIBE | UNSUBSCRIBE | SET_LEVEL)
}

/// Parts of a session that exist before its client has initialized it.
pub(super) struct LegacyConnection {
    pub(super) handle: ClientHandle,
    pub(super) in_flight: Arc<InFlightRequests>,
    pub(super) client_requests: ClientRequests,
}

/// One request while it is handled.
struct LegacyRequest {
    parts: RequestParts,
    context: CallContext,
    logs: LogLevelSetting,
    /// `None` if no requests can be sent to the client.
    requester: Option<ClientRequester>,
    subscriptions: Arc<Subscriptions>,
}

/// Starts a request; its client can cancel it.
pub(super) fn serve(
    client: &ClientContext,
    peer: &LegacyClient,
    request: Request,
    buffer_limit: &BufferLimit,
    mode: ResponseMode,
) -> ResponseFuture {
    let LegacyClient { context, logs, .. } = peer;
    let mut parts = RequestParts::begin(client, context.revision, request, buffer_limit);
    let request_meta = match request_meta::take(&mut parts.params) {
        Ok(request_meta) => request_meta,
        Err(request_meta::InvalidMeta(text)) => return parts.refuse(invalid_params(&text)),
    };
    let Some(open) = peer.in_flight.open(&parts.id) else { return parts.refuse(id_in_use()) };
    let (features, token, message_logs) = match mode.has_messages() {
        true => (context.features, request_meta.progress_token, logs.clone()),
        false => Default::default(),
    };
    // `elicitation/complete` came in the same revision as URL elicitations.
    let completions = features.url.then_some(&context.client.elicitation_completions);
    let (notifications, messages) =
        CallMessages::open(token, message_logs, completions, &buffer_limit.budget);
    let (requester, messages) =
        ClientRequester::for_call(&peer.client_requests, context.revision, features, messages);
    let cancel_reason = open.reason().clone();
    let context = CallContext { features, notifications, cancel_reason, ..context.clone() };
    let (subscriptions, logs) = (Arc::clone(&peer.subscriptions), logs.clone());
    let mut request = LegacyRequest { parts, context, logs, requester, subscriptions };
    let response = async move {
        // Pinned here, because a future that is passed on by value takes its space twice.
        let done = {
            let work = pin!(request.respond(mode));
            open.run(work).await
        };
        done.map(|response| request.parts.finish(response))
    };
    ResponseFuture { response: response.boxed(), messages }
}

impl LegacyRequest {
    async fn respond(&mut self, mode: ResponseMode) -> Result<ClientResponse, ErrorResponse> {
        let RequestParts { client, method, params, .. } = &self.parts;
        let admitted = Admission::acquire(client, self.context.revision, method, params).await;
        let mut admission = admitted.map_err(refuse)?;
        let response = self.handle(&mut admission).await?;
        Ok(match mode.is_streamed() {
            true => response.with_permit(admission.into_permit()),
            // On a shared stream the response may stay queued for long, so the permit is not kept
            // for it.
            false => response.collect(&self.parts.id, &self.parts.buffer_limit).await,
        })
    }

    async fn handle(&mut self, admission: &mut Admission) -> Result<ClientResponse, ErrorResponse> {
        let RequestParts { client, id, method, params, .. } = &self.parts;
        let method = &**method;
        if matches!(method, SUBSCRIBE | UNSUBSCRIBE) {
            return self.subscribe(admission).await;
        }
        if method == "ping" {
            return Ok(ClientResponse::result(id, b"{}"));
        }
        if let Some(kind) = Kind::of_list_method(method) {
            return self.list(admission, kind).await;
        }
        if method == SET_LEVEL && client.capabilities().logging {
            let level = params.get("level").and_then(LogLevel::parse);
            let level =
                level.ok_or_else(|| invalid_params("`level` must be a level, such as \"info\""))?;
            self.logs.set(level);
            return Ok(ClientResponse::result(id, b"{}"));
        }
        match Method::of(method) {
            // Methods of undeclared capabilities do not exist.
            Some(Method::Complete) if !client.capabilities().completions => {}
            // Tasks came with 2025-11-25.
            Some(method)
                if method.is_task_method()
                    && (self.context.revision < Revision::V2025_11_25
                        || !client.capabilities().tasks.tools_call) => {}
            Some(Method::CancelTask) if !client.capabilities().tasks.cancel => {}
            Some(Method::UpdateTask) => {}
            Some(method) => return self.call(admission, method).await,
            None => {}
        }
        Err(results::unknown_method(StatusCode::OK, method))
    }

    async fn list(
        &self,
        admission: &Admission,
        kind: Kind,
    ) -> Result<ClientResponse, ErrorResponse> {
        let form = DefinitionForm::of(self.context.revision);
        let page = self.parts.page(admission, kind, form, refuse).await?;
        let mut result = results::page(kind, &page);
        let mut meta = Object::new();
        results::set_partial(&mut meta, &page.partial);
        if !meta.is_empty() {
            result.set("_meta", meta.to_bytes());
        }
        Ok(ClientResponse::list(&self.parts.id, &result))
    }

    async fn call(
        &mut self,
        admission: &mut Admission,
        method: Method,
    ) -> Result<ClientResponse, ErrorResponse> {
        let params = std::mem::take(&mut self.parts.params);
        let RequestParts { client, id, buffer_limit, .. } = &self.parts;
        let request = ItemRequest::parse(method, params).map_err(|bad| invalid_params(&bad.0))?;
        let key = request.key.clone();
        let item = admission.resolve(client, &request, self.context.revision).await;
        let prepared = PreparedRequest::check(client, item.map_err(refuse)?, request);
        let prepared = prepared.map_err(refuse)?;
        let mut outcome = prepared.send(admission, Box::new(self.context.clone())).await;
        let upstream_response = loop {
            match outcome.map_err(refuse)? {
                CallOutcome::Response(upstream_response) => break upstream_response,
                CallOutcome::InputRequired(mut suspended) => {
                    let requester = self.requester.as_ref().ok_or_else(unexpected_input_request)?;
                    // A person may take minutes, so the permit is released meanwhile.
                    admission.release_while(requester.send_all(&mut suspended)).await?;
                    outcome = suspended.resume(Vec::new(), self.context.clone()).await;
                }
            }
        };
        if results::says_no_such_resource(client, method, &key, &upstream_response) {
            return Err(refuse(Error::NoSuchItem { kind: Kind::Resource, key }));
        }
        from_upstream(id, method, upstream_response, buffer_limit).await
    }

    /// Subscribes to a resource, or unsubscribes.
    async fn subscribe(&self, admission: &mut Admission) -> Result<ClientResponse, ErrorResponse> {
        let RequestParts { client, id, method, params, .. } = &self.parts;
        let uri = params.get_string("uri");
        // Unsubscribing always succeeds, whatever the view contains by now.
        if let (UNSUBSCRIBE, Some(uri)) = (&**method, &uri) {
            self.subscriptions.unsubscribe(uri);
        }
        // Methods of undeclared capabilities do not exist.
        if !client.capabilities().subscribe {
            return Err(results::unknown_method(StatusCode::OK, method));
        }
        let uri = uri.ok_or_else(|| invalid_params("`uri` must be a string"))?;
        if &**method == UNSUBSCRIBE {
            return Ok(ClientResponse::result(id, b"{}"));
        }
        let subscribed = self.subscriptions.subscribe(client, admission, &uri).await;
        match subscribed.map_err(refuse)? {
            SubscribeOutcome::Accepted => Ok(ClientResponse::result(id, b"{}")),
            // The existence of an unlisted resource must not be revealed.
            SubscribeOutcome::Refused(_)
                if client.view().resolve(Kind::Resource, &uri).is_none() =>
            {
                Err(refuse(Error::NoSuchItem { kind: Kind::Resource, key: (&*uri).into() }))
            }
            SubscribeOutcome::Refused(Some(object)) => Ok(error(id, object)),
            SubscribeOutcome::Refused(None) => {
                Err(results::internal_error("the upstream sends no updates for this resource"))
            }
        }
    }
}

/// Builds the response from an upstream's response, in the form of this era.
async fn from_upstream(
    id: &Id,
    method: Method,
    upstream_response: UpstreamResponse,
    buffer_limit: &BufferLimit,
) -> Result<ClientResponse, ErrorResponse> {
    let body = match upstream_response.outcome {
        ResponseOutcome::Error(object) => return Ok(error(id, object)),
        ResponseOutcome::Result(body) => body,
    };
    if upstream_response.era == Era::Legacy {
        return Ok(ClientResponse::passed_through(id, body));
    }
    // A modern result may be incomplete (`resultType`), which these clients would not understand.
    let result = body.read(buffer_limit).await.map_err(|why| results::collect_error(&why))?;
    let mut object =
        result.map_err(|_| results::internal_error("the upstream's result is invalid"))?;
    let is_complete = matches!(object.get("resultType"), None | Some("\"complete\""));
    if is_complete && method == Method::CallTool && downgrade::result(&mut object) {
        return Ok(ClientResponse::object(id, &object));
    }
    match object.get("resultType") {
        None | Some("\"complete\"") => Ok(ClientResponse::object(id, &object)),
        // Input requests were handled before this point.
        Some("\"input_required\"") => Err(unexpected_input_request()),
        Some(_) => {
            Err(results::internal_error("the upstream's result has an unknown `resultType`"))
        }
    }
}

/// Passes an upstream's error on; codes of the modern era are replaced because legacy clients do
/// not know them.
fn error(id: &Id, error: Bytes) -> ClientResponse {
    let is_modern = |code: i64| {
        matches!(
            code,
            mcp::code::HEADER_MISMATCH
                | mcp::code::MISSING_CLIENT_CAPABILITY
                | mcp::code::UNSUPPORTED_PROTOCOL_VERSION
        )
    };
    match Object::parse_within(error.clone(), usize::MAX) {
        Ok(mut object) if results::code_of(&object).is_some_and(is_modern) => {
            object.set("code", code::INTERNAL_ERROR.to_string());
            object.take("data");
            ClientResponse::error(Some(id), StatusCode::OK, &object.to_bytes())
        }
        _ => ClientResponse::error(Some(id), StatusCode::OK, &error),
    }
}

/// Builds the error response for an error of the gateway.
fn refuse(error: Error) -> ErrorResponse {
    results::gateway_error(error, mcp::code::RESOURCE_NOT_FOUND)
}

/// Error: an upstream sent an input request where the client accepts none.
fn unexpected_input_request() -> ErrorResponse {
    results::internal_error("the upstream requested client input where none is possible")
}

/// Error: the id of the request is in use.
pub(super) fn id_in_use() -> ErrorResponse {
    let text = "a request with this id is still in progress";
    ErrorResponse::new(StatusCode::OK, code::INVALID_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_access::guard::Findings;
    use weir_mcp::call::Payload;

    fn text(response: ClientResponse) -> String {
        match response.text.into_whole() {
            Some(text) => String::from_utf8_lossy(&text).into_owned(),
            None => "arriving".to_owned(),
        }
    }

    #[test]
    fn every_fault_has_its_code() {
        let hub = || "hub".parse().expect("a name");
        let missing = |kind| Error::NoSuchItem { kind, key: "x".into() };
        let busy = Error::TooBusy { retry_after: Duration::from_millis(1_200) };
        let down = weir_upstream::Error::Unavailable("why".into());
        for (error, status, code, message) in [
            (Error::Request("Invalid cursor".into()), 200, -32602, "Invalid cursor"),
            (missing(Kind::Prompt), 200, -32602, "Unknown prompt: x"),
            (missing(Kind::Tool), 200, -32602, "Unknown tool: x"),
            (missing(Kind::Template), 200, -32602, "Unknown resource template: x"),
            (missing(Kind::Resource), 200, -32002, "Resource not found"),
            (busy, 429, 4290, "too many requests: try again in 1200 ms"),
            (
                Error::Upstream { upstream: hub(), cause: down },
                200,
                5030,
                "upstream hub is unavailable; the request was not carried out; try again later",
            ),
            (
                Error::Refused {
                    upstream: hub(),
                    found: Findings { hidden: Some('\u{1b}'), ..Findings::default() },
                },
                200,
                -32603,
                "the response of upstream hub was refused by the guard: hidden text, <U+001B>",
            ),
        ] {
            let shown = format!("{error:?}");
            let refused = refuse(error);
            let found = (refused.status.as_u16(), refused.error.code, &*refused.error.message);
            assert_eq!(found, (status, code, message), "{shown}");
        }
    }

    #[test]
    fn modern_codes_never_reach_a_legacy_client() {
        for (code, expected) in [
            ("-32020", "-32603"),
            ("-32021", "-32603"),
            ("-32022", "-32603"),
            ("-32002", "-32002"),
            ("-32042", "-32042"),
            ("-32603", "-32603"),
            ("7", "7"),
        ] {
            let sent = format!(r#"{{"code":{code},"message":"m"}}"#);
            let response = error(&Id::from(1), sent.into());
            assert_eq!(response.status, StatusCode::OK);
            let expected = format!(r#""error":{{"code":{expected},"message":"m"}}}}"#);
            assert!(text(response).ends_with(&expected), "{code}");
        }
        let with_data = r#"{"code":-32021,"message":"m","data":{"requiredCapabilities":{}}}"#;
        assert!(!text(error(&Id::from(1), with_data.into())).contains("data"));
        let odd = r#"{"code":-32000,"message":"m", "data":1e400}"#;
        assert!(text(error(&Id::from(1), odd.into())).contains(odd), "byte for byte");
    }

    #[tokio::test]
    async fn a_result_passes_unless_it_says_that_it_is_none() {
        for (era, result, expected) in [
            (Era::Legacy, r#"{ "content" : [1e400]}"#, Ok(())),
            (Era::Legacy, r#"{"resultType":"mine"}"#, Ok(())),
            (Era::Modern, r#"{ "resultType":"complete", "x":1.0}"#, Ok(())),
            (Era::Modern, r#"{"content":[]}"#, Ok(())),
            (Era::Modern, r#"{"resultType":"input_required"}"#, Err(-32603)),
            (Era::Modern, r#"{"resultType":"task"}"#, Err(-32603)),
            (Era::Modern, "[]", Err(-32603)),
        ] {
            let outcome = ResponseOutcome::Result(Payload::from_part(result.into(), None));
            let (upstreams, buffer_limit) = (
                UpstreamResponse { era, scope: None, outcome },
                BufferLimit::without_budget(1_000),
            );
            match from_upstream(&Id::from(1), Method::CallTool, upstreams, &buffer_limit).await {
                Ok(response) => {
                    assert_eq!(expected, Ok(()), "{result}");
                    let whole = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
                    assert_eq!(text(response), whole);
                }
                Err(refused) => assert_eq!(Err(refused.error.code), expected, "{result}"),
            }
        }
    }
}
