//! Server side of the modern era: revision 2026-07-28. The functions that `legacy` has, too, have
//! the same names.
//!
//! Each request carries its own context, which [`take_context`] parses and compares with the
//! headers; [`serve`] handles it. There is no state between two requests.

mod discover;
pub(crate) mod headers;
mod input;
mod listening;
mod remote_tasks;

use bytes::Bytes;
use futures::FutureExt;
use hyper::{HeaderMap, StatusCode};

use super::ServerState;
use super::era::Versions;
use super::request_meta::{self, RequestMeta};
use super::request_parts::RequestParts;
use super::response::{ClientResponse, ErrorResponse, ResponseFuture, ResponseMode};
use crate::response::call_stream::CallMessages;
use crate::response::results::{self, invalid_params};
pub(super) use listening::{LISTEN, ListenSubscription};
pub(super) use remote_tasks::RemoteTasks;
use weir_base::json::{self, Object};
use weir_base::memory::memory_budget::BufferLimit;
use weir_gateway::{Admission, ClientContext, Error, PendingInput, send_in_rounds};
use weir_mcp as mcp;
use weir_mcp::call::{
    CallContext, CallOutcome, CancelReason, ItemRequest, Method, Payload, ResponseOutcome,
    UpstreamResponse,
};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::jsonrpc::{Id, Request, code};
use weir_mcp::kind::Kind;
use weir_mcp::revision::{Era, Revision};
use weir_upstream as upstream;

/// Response or stream of a request.
#[allow(clippy::large_enum_variant, reason = "created and destructured once per request")]
pub(super) enum ResponseKind {
    Unary(ResponseFuture),
    Stream(ListenSubscription),
}

/// Context of a request, validated.
#[derive(Debug)]
pub(super) struct RequestContext {
    revision: Revision,
    meta: RequestMeta,
    capabilities: Object,
    /// `Mcp-Param-*` headers, over HTTP.
    param_headers: Option<HeaderMap>,
    /// Reason of the client for cancelling the request, over stdio.
    pub(super) cancel_reason: CancelReason,
}

/// Takes the context out of a request and, over HTTP, compares it with the headers. The order
/// follows the specification's dependencies: without a version in the body there is nothing to
/// compare the header with, and in an unsupported version the other headers may have another
/// meaning.
pub(super) fn take_context(
    request: &mut Request,
    headers: Option<&HeaderMap>,
    versions: &Versions,
) -> Result<RequestContext, ErrorResponse> {
    let bad = |text: &str| ErrorResponse::new(StatusCode::BAD_REQUEST, code::INVALID_PARAMS, text);
    let meta = request_meta::take(&mut request.params)
        .map_err(|request_meta::InvalidMeta(text)| bad(&text))?;
    // Spec, `_meta`: a request without a required field MUST be rejected with -32602 and 400.
    let version = meta.version.as_deref().and_then(json::decode_bytes).ok_or_else(|| {
        bad("`_meta` must hold `io.modelcontextprotocol/protocolVersion`, a string")
    })?;
    let capabilities = meta.capabilities.clone().ok_or_else(|| {
        bad("`_meta` must hold `io.modelcontextprotocol/clientCapabilities`, an object")
    })?;
    let capabilities = Object::parse_trusted(capabilities)
        .map_err(|malformed| bad(&malformed.in_member(mcp::meta::CLIENT_CAPABILITIES)))?;
    if let Some(headers) = headers {
        headers::check_version(headers, &version)?;
    }
    let revision = version
        .parse()
        .ok()
        .filter(|revision: &Revision| revision.era() == Era::Modern && versions.has(*revision));
    let revision = revision.ok_or_else(|| unsupported_version(versions, &version))?;
    meta.logs().map_err(|request_meta::InvalidMeta(text)| bad(&text))?;
    if let Some(headers) = headers {
        headers::check_method(headers, &request.method)?;
        let member = Method::of(&request.method).and_then(Method::header_member);
        // A value that is no string fails as a parameter later.
        if let Some(subject) = member.and_then(|member| request.params.get_string(member)) {
            headers::check_name(headers, &subject)?;
        }
    }
    let param_headers = headers.map(headers::params);
    let cancel_reason = CancelReason::default();
    Ok(RequestContext { revision, meta, capabilities, param_headers, cancel_reason })
}

/// One request while it is handled.
struct ModernRequest {
    parts: RequestParts,
    capabilities: Object,
}

/// Starts a request.
pub(super) fn serve(
    client: &ClientContext,
    request: Request,
    context: RequestContext,
    state: &ServerState,
    mode: ResponseMode,
) -> ResponseKind {
    let RequestContext { revision, meta, capabilities, param_headers, cancel_reason } = context;
    let (versions, buffer_limit) = (&state.settings.versions, &state.buffer_limit());
    let parts = RequestParts::begin(client, revision, request, buffer_limit);
    let admit = || Admission::try_acquire(client, &parts.method).map_err(refuse);
    match &*parts.method {
        DISCOVER => {
            let admitted = admit();
            let versions = versions.clone();
            return ResponseKind::Unary(discover::discover(
                parts,
                admitted,
                versions,
                state.serves_replicas,
            ));
        }
        LISTEN => {
            let listening = admit().and_then(|permit| {
                listening::listen(&parts, permit.into_permit(), revision, &capabilities, state)
            });
            return match listening {
                Ok(listening) => {
                    parts.finish_as_stream();
                    ResponseKind::Stream(listening)
                }
                Err(refused) => ResponseKind::Unary(parts.refuse(refused)),
            };
        }
        "initialize" => {
            // Spec, versioning: an error to `initialize` SHOULD name the versions; it may be all
            // that a legacy client can show to its user.
            let mut refused = results::unknown_method(StatusCode::NOT_FOUND, &parts.method);
            refused.error.message = format!(
                "`initialize` does not exist in revision {revision}; versions served: {}",
                versions.to_text()
            );
            let refused = admit().err().unwrap_or(refused);
            return ResponseKind::Unary(parts.refuse(refused));
        }
        _ => {}
    }
    // Validated when the request was parsed.
    let logs = meta.logs().unwrap_or_default();
    let (token, logs) = match mode.has_messages() {
        true => (meta.progress_token, logs),
        false => Default::default(),
    };
    let (notifications, messages) = CallMessages::open(token, logs, None, &buffer_limit.budget);
    let context = Box::new(CallContext {
        revision,
        info: meta.info.filter(|info| info.starts_with(b"{")),
        features: ClientFeatures::read(&capabilities),
        capabilities: capabilities.to_bytes(),
        client: client.client_handle(),
        notifications,
        param_headers,
        cancel_reason,
    });
    let request = ModernRequest { parts, capabilities };
    let response = request.respond(context, mode).boxed();
    ResponseKind::Unary(ResponseFuture { response, messages })
}

impl ModernRequest {
    async fn respond(
        mut self,
        context: Box<CallContext>,
        mode: ResponseMode,
    ) -> Option<ClientResponse> {
        let RequestParts { client, method, params, .. } = &self.parts;
        let response = match Admission::acquire(client, context.revision, method, params).await {
            Ok(mut admission) => {
                let response = self.handle(&mut admission, context).await;
                response.map(|response| response.with_permit(admission.into_permit()))
            }
            Err(error) => Err(refuse(error)),
        };
        let response = match response {
            Ok(response) if !mode.is_streamed() => {
                Ok(response.collect(&self.parts.id, &self.parts.buffer_limit).await)
            }
            response => response,
        };
        Some(self.parts.finish(response))
    }

    async fn handle(
        &mut self,
        admission: &mut Admission,
        context: Box<CallContext>,
    ) -> Result<ClientResponse, ErrorResponse> {
        let RequestParts { client, method, .. } = &self.parts;
        if let Some(kind) = Kind::of_list_method(method) {
            return self.list(admission, kind).await;
        }
        match Method::of(method) {
            // Methods of undeclared capabilities do not exist.
            Some(Method::Complete) if !client.capabilities().completions => {}
            Some(method) if method.is_task_method() && !client.capabilities().has_tasks() => {}
            Some(Method::TaskResult) => {}
            // SEP-2663, protocol errors: a MUST.
            Some(method)
                if method.is_task_method()
                    && !Capabilities::read(&self.capabilities).has_tasks() =>
            {
                return Err(input::undeclared_tasks());
            }
            Some(method) => return self.call(admission, context, method).await,
            None => {}
        }
        Err(results::unknown_method(StatusCode::NOT_FOUND, method))
    }

    async fn list(
        &self,
        admission: &Admission,
        kind: Kind,
    ) -> Result<ClientResponse, ErrorResponse> {
        let page = self.parts.page(admission, kind, DefinitionForm::Newest, refuse).await?;
        let mut result = results::page(kind, &page);
        result.set("resultType", COMPLETE);
        result.set("ttlMs", page.ttl.as_millis().to_string());
        result.set("cacheScope", if page.public { "\"public\"" } else { PRIVATE });
        let mut meta = own_meta();
        results::set_partial(&mut meta, &page.partial);
        result.set("_meta", meta.to_bytes());
        Ok(ClientResponse::list(&self.parts.id, &result))
    }

    async fn call(
        &mut self,
        admission: &mut Admission,
        mut context: Box<CallContext>,
        method: Method,
    ) -> Result<ClientResponse, ErrorResponse> {
        let params = std::mem::take(&mut self.parts.params);
        let RequestParts { client, id, buffer_limit, .. } = &self.parts;
        let request = ItemRequest::parse(method, params).map_err(|bad| invalid_params(&bad.0))?;
        let item = admission.resolve(client, &request, context.revision).await;
        let item = item.map_err(refuse)?;
        let declared = item.param_headers.as_ref().filter(|_| method == Method::CallTool);
        if let (Some(headers), Some(declared)) = (&mut context.param_headers, declared) {
            headers::check_params(headers, declared, &request.params)?;
        }
        let key = request.key.clone();
        let outcome = send_in_rounds(client, admission, item, request, context).await;
        let upstream_response = match outcome.map_err(refuse)? {
            CallOutcome::Response(upstream_response) => upstream_response,
            CallOutcome::InputRequired(PendingInput { input_requests, state }) => {
                return Ok(ClientResponse::result(
                    id,
                    &input::required(&input_requests, Some(&state)),
                ));
            }
        };
        if results::says_no_such_resource(client, method, &key, &upstream_response) {
            return Err(refuse(Error::NoSuchItem { kind: Kind::Resource, key }));
        }
        // Spec, caching: a client-dependent result is private, whatever the upstream declares.
        let is_private = method == Method::ReadResource && !client.is_public();
        from_upstream(id, method, &self.capabilities, upstream_response, buffer_limit, is_private)
            .await
    }
}

/// Builds the response from an upstream's response, in the form of this era.
async fn from_upstream(
    id: &Id,
    method: Method,
    capabilities: &Object,
    upstream_response: UpstreamResponse,
    buffer_limit: &BufferLimit,
    is_private: bool,
) -> Result<ClientResponse, ErrorResponse> {
    let body = match upstream_response.outcome {
        ResponseOutcome::Error(object) => return Ok(error(id, method, capabilities, object)),
        ResponseOutcome::Result(body) => body,
    };
    // A large result of the same era is passed on without being parsed.
    if let (Era::Modern, Payload::Streaming(_), false) = (upstream_response.era, &body, is_private)
    {
        return Ok(ClientResponse::passed_through(id, body));
    }
    let result = body.read(buffer_limit).await.map_err(|why| results::collect_error(&why))?;
    let mut object =
        result.map_err(|_| results::internal_error("the upstream's result is invalid"))?;
    if method == Method::GetTask {
        // SEP-2663: input that a task waits for is requested as in any other response.
        input::check(&object, ClientFeatures::read(capabilities))?;
    }
    match object.get("resultType") {
        // Spec, caching: the hints are a MUST.
        Some(COMPLETE) if method == Method::ReadResource && !has_hints(&object, is_private) => {
            if !object.has("ttlMs") {
                object.set("ttlMs", "0");
            }
            if is_private || !object.has("cacheScope") {
                object.set("cacheScope", PRIVATE);
            }
            return Ok(ClientResponse::object(id, &object));
        }
        Some(COMPLETE) if upstream_response.era == Era::Modern => {
            return Ok(ClientResponse::object(id, &object));
        }
        Some(INPUT_REQUIRED) if upstream_response.era == Era::Modern => {
            input::check(&object, ClientFeatures::read(capabilities))?;
            return Ok(ClientResponse::object(id, &object));
        }
        Some(COMPLETE) | None => {}
        // Spec, result type: a type is valid if both sides know its extension; the extension cannot
        // be derived from the type here.
        Some(_) if declares_extensions(capabilities) => {
            return Ok(ClientResponse::object(id, &object));
        }
        Some(_) => {
            return Err(results::internal_error(
                "the upstream's result has an unknown `resultType`",
            ));
        }
    }
    object.set("resultType", COMPLETE);
    if upstream_response.era == Era::Legacy {
        if method == Method::ReadResource {
            object.set("ttlMs", "0");
            object.set("cacheScope", PRIVATE);
        }
        if let Some(meta) = with_own_info(&object) {
            object.set("_meta", meta.to_bytes());
        }
    }
    Ok(ClientResponse::object(id, &object))
}

/// Passes an upstream's error on, except for codes that this revision must not see.
///
/// -32601 does not become 404: that status means that Weir does not implement the method (spec,
/// Streamable HTTP, protocol version header), and this request was forwarded.
fn error(id: &Id, method: Method, capabilities: &Object, error: Bytes) -> ClientResponse {
    let Ok(mut object) = Object::parse_within(error.clone(), usize::MAX) else {
        return ClientResponse::error(Some(id), StatusCode::OK, &error);
    };
    let changed = |object: &mut Object, code: i64| {
        object.set("code", code.to_string());
        object.to_bytes()
    };
    let (status, error) = match results::code_of(&object) {
        Some(mcp::code::MISSING_CLIENT_CAPABILITY) => (StatusCode::BAD_REQUEST, error),
        Some(mcp::code::RESOURCE_NOT_FOUND) => {
            (StatusCode::OK, changed(&mut object, code::INVALID_PARAMS))
        }
        // These errors are about Weir's own headers and version, not the client's.
        Some(mcp::code::HEADER_MISMATCH | mcp::code::UNSUPPORTED_PROTOCOL_VERSION) => {
            object.take("data");
            (StatusCode::OK, changed(&mut object, code::INTERNAL_ERROR))
        }
        // This revision has an error about capabilities instead.
        Some(mcp::code::URL_ELICITATION_REQUIRED) if !ClientFeatures::read(capabilities).url => {
            object.set("data", input::required_capabilities(ClientFeatures::URL));
            (StatusCode::BAD_REQUEST, changed(&mut object, mcp::code::MISSING_CLIENT_CAPABILITY))
        }
        Some(mcp::code::URL_ELICITATION_REQUIRED) => match input::url_elicitations(&object) {
            // Without `requestState`: after visiting the URLs the client sends the request again.
            Some(elicitations) if method != Method::Complete => {
                return ClientResponse::result(id, &input::required(&elicitations, None));
            }
            _ => (StatusCode::OK, changed(&mut object, code::INTERNAL_ERROR)),
        },
        _ => (StatusCode::OK, error),
    };
    ClientResponse::error(Some(id), status, &error)
}

/// Builds the error response for an error of the gateway.
fn refuse(error: Error) -> ErrorResponse {
    match error {
        Error::Upstream { cause: upstream::Error::UndeclaredFeature(lacking), .. } => {
            input::undeclared(lacking)
        }
        error => results::gateway_error(error, code::INVALID_PARAMS),
    }
}

fn unsupported_version(versions: &Versions, requested: &str) -> ErrorResponse {
    let data = Object::new()
        .with("supported", versions.to_json())
        .with("requested", json::quote(requested));
    let unsupported = mcp::code::UNSUPPORTED_PROTOCOL_VERSION;
    let mut refused =
        ErrorResponse::new(StatusCode::BAD_REQUEST, unsupported, "Unsupported protocol version");
    refused.error.data = Some(data.to_bytes());
    refused
}

fn own_meta() -> Object {
    Object::new().with(mcp::meta::SERVER_INFO, results::server_info())
}

/// Returns a result's `_meta` with Weir's server info; `None` if the existing `_meta` is no object.
fn with_own_info(result: &Object) -> Option<Object> {
    if !result.has("_meta") {
        return Some(own_meta());
    }
    Some(result.get_object("_meta")?.with(mcp::meta::SERVER_INFO, results::server_info()))
}

/// True if a result has caching hints that may be passed on.
fn has_hints(result: &Object, is_private: bool) -> bool {
    let scope = result.get("cacheScope");
    result.has("ttlMs") && scope.is_some_and(|scope| scope == PRIVATE || !is_private)
}

fn declares_extensions(capabilities: &Object) -> bool {
    capabilities.get_object("extensions").is_some_and(|extensions| !extensions.is_empty())
}

/// Method that describes the server.
const DISCOVER: &str = "server/discover";
const COMPLETE: &str = "\"complete\"";
const INPUT_REQUIRED: &str = "\"input_required\"";
const PRIVATE: &str = "\"private\"";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::ResponseBody;
    use futures::{StreamExt, stream};
    use std::time::Duration;
    use weir_access::guard::Findings;

    fn text(response: ClientResponse) -> String {
        match response.text.into_whole() {
            Some(text) => String::from_utf8_lossy(&text).into_owned(),
            None => "arriving".to_owned(),
        }
    }

    fn object(text: &str) -> Object {
        Object::parse(text.to_owned()).expect("an object")
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
            (missing(Kind::Resource), 200, -32602, "Resource not found"),
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
    fn codes_of_other_revisions_and_about_weirs_own_request_are_changed() {
        for (code, capabilities, status, expected) in [
            ("-32002", "{}", 200, "-32602"),
            ("-32020", "{}", 200, "-32603"),
            ("-32021", "{}", 400, "-32021"),
            ("-32022", "{}", 200, "-32603"),
            ("-32042", "{}", 400, "-32021"),
            ("-32042", r#"{"elicitation":{}}"#, 400, "-32021"),
            ("-32042", r#"{"elicitation":{"url":{}}}"#, 200, "-32603"),
            ("-32601", "{}", 200, "-32601"),
            ("-32603", "{}", 200, "-32603"),
            ("7", "{}", 200, "7"),
        ] {
            let sent = format!(r#"{{"code":{code},"message":"m"}}"#);
            let method = Method::CallTool;
            let response = error(&Id::from(1), method, &object(capabilities), sent.into());
            assert_eq!(response.status.as_u16(), status, "{code}");
            let expected = format!(r#""error":{{"code":{expected},"message":"m""#);
            assert!(text(response).contains(&expected), "{code}");
        }
    }

    async fn replied(
        era: Era,
        method: Method,
        capabilities: &str,
        body: Payload,
    ) -> Result<String, i64> {
        let upstream_response =
            UpstreamResponse { era, scope: None, outcome: ResponseOutcome::Result(body) };
        let response = super::from_upstream(
            &Id::from(1),
            method,
            &object(capabilities),
            upstream_response,
            &BufferLimit::without_budget(1_000),
            false,
        )
        .await;
        response.map(text).map_err(|refused| refused.error.code)
    }

    #[tokio::test]
    async fn a_modern_result_passes_byte_for_byte_if_its_type_is_known() {
        let extensions = r#"{"extensions":{"com.example/x":{}}}"#;
        for (result, capabilities, passes) in [
            (r#"{ "resultType" : "complete" , "x":1e400 }"#, "{}", true),
            (r#"{"resultType":"input_required","requestState":"s"}"#, "{}", true),
            (r#"{"resultType":"task"}"#, "{}", false),
            (r#"{"resultType":"task"}"#, r#"{"extensions":{}}"#, false),
            (r#"{"resultType":"task"}"#, extensions, true),
            (r#"{"resultType":7}"#, "{}", false),
            ("7", "{}", false),
        ] {
            let body = Payload::Complete(result.into());
            let found = replied(Era::Modern, Method::CallTool, capabilities, body).await;
            let whole = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            assert_eq!(found, if passes { Ok(whole) } else { Err(-32603) }, "{result}");
        }
    }

    #[tokio::test]
    async fn a_legacy_result_gains_what_this_revision_requires() {
        let info = String::from_utf8_lossy(&results::server_info()).into_owned();
        let info = format!(r#""io.modelcontextprotocol/serverInfo":{info}"#);
        for (method, result, expected) in [
            (
                Method::CallTool,
                r#"{"content":[1e400]}"#,
                format!(r#"{{"content":[1e400],"resultType":"complete","_meta":{{{info}}}}}"#),
            ),
            (
                Method::ReadResource,
                r#"{"_meta":{"a":1},"contents":[]}"#,
                format!(
                    r#"{{"_meta":{{"a":1,{info}}},"contents":[],"resultType":"complete","ttlMs":0,"cacheScope":"private"}}"#
                ),
            ),
        ] {
            let body = Payload::Complete(result.into());
            let found = replied(Era::Legacy, method, "{}", body).await;
            assert_eq!(found, Ok(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#)));
        }
    }

    #[tokio::test]
    async fn what_depends_on_who_reads_it_is_private() {
        let text = r#"{"resultType":"complete","ttlMs":9,"cacheScope":"public","contents":[]}"#;
        for is_private in [false, true] {
            let outcome = ResponseOutcome::Result(Payload::Complete(text.into()));
            let upstream_response = UpstreamResponse { era: Era::Modern, scope: None, outcome };
            let method = Method::ReadResource;
            let response = super::from_upstream(
                &Id::from(1),
                method,
                &object("{}"),
                upstream_response,
                &BufferLimit::without_budget(1_000),
                is_private,
            )
            .await;
            let Ok(ClientResponse { text: ResponseBody::Whole(found), .. }) = response else {
                panic!("an answer")
            };
            let scope = if is_private { "private" } else { "public" };
            let expected = text.replace("public", scope);
            assert_eq!(found, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#));
        }
    }

    #[tokio::test]
    async fn a_large_result_passes_unread_in_its_own_era_and_is_held_in_bounds_in_the_other() {
        let arriving = |pieces: usize| {
            let pieces =
                std::iter::once("{\"a\":\"").chain(std::iter::repeat_n("xxxxxxxxxx", pieces));
            let pieces = pieces.chain(["\"}"]).map(|piece| Ok(Bytes::from(piece)));
            Payload::Streaming(stream::iter(pieces.collect::<Vec<_>>()).boxed())
        };
        let passed = replied(Era::Modern, Method::CallTool, "{}", arriving(1_000)).await;
        assert_eq!(passed.as_deref(), Ok("arriving"));
        let held = replied(Era::Legacy, Method::CallTool, "{}", arriving(1)).await;
        assert!(
            held.is_ok_and(|text| text.contains(r#"{"a":"xxxxxxxxxx","resultType":"complete""#))
        );
        assert_eq!(replied(Era::Legacy, Method::CallTool, "{}", arriving(1_000)).await, Err(5130));
    }
}
