//! The modern dialect, as a server: 2026-07-28. Its sibling is `legacy`, function by function.
//!
//! A request carries its own context, which [`open`] reads and checks against the headers; [`serve`]
//! answers it. There is no state between two requests.
//!
//! Knows nothing of: connections, and which wire it is on.

use bytes::Bytes;
use futures::FutureExt;
use hyper::{HeaderMap, StatusCode};

use super::answer::{Answer, Call, Progress, Refused};
use super::encode;
use super::era::Versions;
use super::meta::{self, Owned};
use super::modern_headers;
use super::streams::{Slot, Streams};
use crate::gateway::{Fault, Guest, Listen};
use crate::json::{self, Object};
use crate::mcp::call::{Ask, Body, Caller, Method, Outcome, Reply};
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::revision::{Era, Revision};
use crate::mcp::{self};
use crate::rpc::{self, Id, Request, code};

/// What a request becomes.
pub(super) enum Exchange {
    /// An answer on its way.
    Call(Call),
    /// A stream of changes.
    Listening(Listening),
}

/// A request whose context has been read and found good.
#[derive(Debug)]
pub(super) struct Opened {
    request: Request,
    revision: Revision,
    owned: Owned,
    capabilities: Object,
}

impl Opened {
    /// The request's id.
    pub(super) fn id(&self) -> &Id {
        &self.request.id
    }
}

/// Reads a request's context and compares it with the headers, where the wire has any.
pub(super) fn open(
    mut request: Request,
    headers: Option<&HeaderMap>,
    versions: &Versions,
) -> Result<Opened, (Id, Refused)> {
    let opened = read_context(&mut request, headers, versions);
    match opened {
        Ok((revision, owned, capabilities)) => {
            Ok(Opened { request, revision, owned, capabilities })
        }
        Err(refused) => Err((request.id, refused)),
    }
}

/// The order is that of the specification's own dependence: without a version in the body there is
/// nothing to compare the header with, and in a version that we do not know the other headers may
/// mean something else.
fn read_context(
    request: &mut Request,
    headers: Option<&HeaderMap>,
    versions: &Versions,
) -> Result<(Revision, Owned, Object), Refused> {
    let bad = |text: &str| Refused::new(StatusCode::BAD_REQUEST, code::INVALID_PARAMS, text);
    let owned = meta::take(&mut request.params).map_err(|meta::BadMeta(text)| bad(text))?;
    // Spec, `_meta`: a request without a required field MUST be rejected with -32602 and 400.
    let version = owned.version.as_ref().and_then(|raw| string(raw)).ok_or_else(|| {
        bad("`_meta` must hold `io.modelcontextprotocol/protocolVersion`, a string")
    })?;
    let capabilities = owned.capabilities.clone();
    let capabilities = capabilities.and_then(|raw| Object::parse_within(raw, usize::MAX).ok());
    let capabilities = capabilities.ok_or_else(|| {
        bad("`_meta` must hold `io.modelcontextprotocol/clientCapabilities`, an object")
    })?;
    if let Some(headers) = headers {
        modern_headers::check_version(headers, &version)?;
    }
    let revision = version
        .parse()
        .ok()
        .filter(|revision: &Revision| revision.era() == Era::Modern && versions.has(*revision));
    let revision = revision.ok_or_else(|| unsupported_version(versions, &version))?;
    if let Some(headers) = headers {
        modern_headers::check_method(headers, &request.method)?;
        let member = Method::of(&request.method).and_then(Method::header_member);
        // What is no string fails as a parameter, below.
        if let Some(subject) = member.and_then(|member| request.params.get_string(member)) {
            modern_headers::check_name(headers, &subject)?;
        }
    }
    Ok((revision, owned, capabilities))
}

/// Tells who Weir is and what can be asked, for who wants to know before asking.
fn discover(guest: &Guest, id: &Id, versions: &Versions) -> Answer {
    let mut result = Object::new();
    result.set("resultType", COMPLETE);
    result.set("supportedVersions", versions.to_json());
    result.set("capabilities", encode::capabilities(&guest.view(), true).to_bytes());
    // What can be asked changes with what the client may see and which upstreams are there.
    result.set("ttlMs", "0");
    result.set("cacheScope", PRIVATE);
    result.set("_meta", own_meta().to_bytes());
    Answer::result(id, &result.to_bytes())
}

/// Starts to answer a request.
pub(super) fn serve(
    guest: &Guest,
    opened: Opened,
    versions: &Versions,
    streams: &Streams,
    max_reply: usize,
) -> Exchange {
    let Opened { request: Request { id, method, params }, revision, owned, capabilities } = opened;
    if &*method == "server/discover" {
        return Exchange::Call(Call::answered(discover(guest, &id, versions)));
    }
    if &*method == "subscriptions/listen" {
        return match listen(guest, &id, &params, streams) {
            Ok(listening) => Exchange::Listening(listening),
            Err(refused) => Exchange::Call(Call::answered(Answer::refused(Some(&id), &refused))),
        };
    }
    if &*method == "initialize" {
        // Spec, versioning: an error to `initialize` SHOULD name the versions; it may be all that a
        // legacy client can show to its user.
        let mut refused = encode::unknown_method(StatusCode::NOT_FOUND, &method);
        refused.error.message = format!(
            "`initialize` does not exist in revision {revision}; versions served: {}",
            versions.to_text()
        );
        return Exchange::Call(Call::answered(Answer::refused(Some(&id), &refused)));
    }
    let (notes, progress) = Progress::channel(owned.progress_token);
    let caller = Caller {
        revision,
        info: owned.info.filter(|info| info.starts_with(b"{")),
        capabilities: capabilities.to_bytes(),
        log_level: owned.log_level,
        notes,
    };
    let guest = guest.clone();
    let work = async move {
        let answer = answer(&guest, caller, &capabilities, &id, &method, params, max_reply).await;
        Some(answer.unwrap_or_else(|refused| Answer::refused(Some(&id), &refused)))
    };
    Exchange::Call(Call { answer: work.boxed(), progress })
}

async fn answer(
    guest: &Guest,
    caller: Caller,
    capabilities: &Object,
    id: &Id,
    method: &str,
    params: Object,
    max_reply: usize,
) -> Result<Answer, Refused> {
    if let Some(kind) = Kind::of_list_method(method) {
        return list(guest, id, kind, &params).await;
    }
    match Method::of(method) {
        // What is not declared is not there.
        Some(Method::Complete) if !guest.view().completions() => {}
        Some(method) => {
            return ask(guest, caller, capabilities, id, method, params, max_reply).await;
        }
        None => {}
    }
    Err(encode::unknown_method(StatusCode::NOT_FOUND, method))
}

async fn list(guest: &Guest, id: &Id, kind: Kind, params: &Object) -> Result<Answer, Refused> {
    let cursor = encode::cursor(params)?;
    let page = guest.list(kind, cursor.as_deref()).await.map_err(|fault| refuse(&fault))?;
    let mut result = encode::page(kind, &page);
    result.set("resultType", COMPLETE);
    result.set("ttlMs", page.ttl.as_millis().to_string());
    result.set("cacheScope", if page.public { "\"public\"" } else { PRIVATE });
    let mut meta = own_meta();
    encode::set_partial(&mut meta, &page.partial);
    result.set("_meta", meta.to_bytes());
    Ok(Answer::result(id, &result.to_bytes()))
}

async fn ask(
    guest: &Guest,
    caller: Caller,
    capabilities: &Object,
    id: &Id,
    method: Method,
    params: Object,
    max_reply: usize,
) -> Result<Answer, Refused> {
    let ask = Ask::parse(method, params).map_err(|bad| invalid_params(&bad.0))?;
    let reply = guest.ask(ask, caller).await.map_err(|fault| refuse(&fault))?;
    self::reply(id, method, capabilities, reply, max_reply).await
}

/// Puts an upstream's reply as a modern server would have.
async fn reply(
    id: &Id,
    method: Method,
    capabilities: &Object,
    reply: Reply,
    max_reply: usize,
) -> Result<Answer, Refused> {
    let body = match reply.outcome {
        Outcome::Error(object) => return Ok(error(id, capabilities, object)),
        Outcome::Result(body) => body,
    };
    // A large result of the same era passes unread.
    if let (Era::Modern, Body::Arriving(_)) = (reply.era, &body) {
        return Ok(Answer::passing(id, body));
    }
    let result = body.collect(max_reply).await;
    let result = result.map_err(|broken| encode::broken(&broken.to_string()))?;
    let mut object = Object::parse_within(result.clone(), usize::MAX)
        .map_err(|_| encode::broken("the upstream's result cannot be read"))?;
    match object.get("resultType") {
        Some(COMPLETE | "\"input_required\"") if reply.era == Era::Modern => {
            return Ok(Answer::result(id, &result));
        }
        Some(COMPLETE) | None => {}
        // Spec, result type: a type is valid by an extension that both sides know; which one it is
        // from cannot be told from here.
        Some(_) if declares_extensions(capabilities) => return Ok(Answer::result(id, &result)),
        Some(_) => {
            return Err(encode::broken(
                "the upstream's result is of a type that is not known here",
            ));
        }
    }
    object.set("resultType", COMPLETE);
    if reply.era == Era::Legacy {
        if method == Method::ReadResource {
            object.set("ttlMs", "0");
            object.set("cacheScope", PRIVATE);
        }
        if let Some(meta) = with_own_info(&object) {
            object.set("_meta", meta.to_bytes());
        }
    }
    Ok(Answer::result(id, &object.to_bytes()))
}

/// Passes an upstream's error on, but for codes that this revision must not see.
fn error(id: &Id, capabilities: &Object, error: Bytes) -> Answer {
    let Ok(mut object) = Object::parse_within(error.clone(), usize::MAX) else {
        return Answer::error(Some(id), StatusCode::OK, &error);
    };
    let changed = |object: &mut Object, code: i64| {
        object.set("code", code.to_string());
        object.to_bytes()
    };
    let (status, error) = match encode::code_of(&object) {
        Some(code::METHOD_NOT_FOUND) => (StatusCode::NOT_FOUND, error),
        Some(mcp::code::MISSING_CLIENT_CAPABILITY) => (StatusCode::BAD_REQUEST, error),
        Some(mcp::code::RESOURCE_NOT_FOUND) => {
            (StatusCode::OK, changed(&mut object, code::INVALID_PARAMS))
        }
        // About headers and a version that were Weir's own, not this client's.
        Some(mcp::code::HEADER_MISMATCH | mcp::code::UNSUPPORTED_PROTOCOL_VERSION) => {
            object.take("data");
            (StatusCode::OK, changed(&mut object, code::INTERNAL_ERROR))
        }
        Some(mcp::code::URL_ELICITATION_REQUIRED) if !declares_url_elicitation(capabilities) => {
            let data = r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#;
            object.set("data", data);
            (StatusCode::BAD_REQUEST, changed(&mut object, mcp::code::MISSING_CLIENT_CAPABILITY))
        }
        Some(mcp::code::URL_ELICITATION_REQUIRED) => {
            (StatusCode::OK, changed(&mut object, code::INTERNAL_ERROR))
        }
        _ => (StatusCode::OK, error),
    };
    Answer::error(Some(id), status, &error)
}

/// Puts a fault of the gateway's.
pub(super) fn refuse(fault: &Fault) -> Refused {
    match fault {
        Fault::Request(text) => invalid_params(text),
        Fault::NoSuchItem { kind: Kind::Resource, key } => {
            encode::no_such_resource(code::INVALID_PARAMS, key)
        }
        Fault::NoSuchItem { kind: kind @ (Kind::Prompt | Kind::Tool | Kind::Template), key } => {
            invalid_params(&format!("Unknown {kind}: {key}"))
        }
        Fault::TooBusy { retry_after } => encode::too_busy(*retry_after),
        Fault::Upstream { upstream, cause } => encode::upstream_failed(upstream, cause),
    }
}

// === Listening ===

/// An open `subscriptions/listen`.
pub(super) struct Listening {
    id: Id,
    wanted: [bool; 3],
    listen: Listen,
    _slot: Slot,
}

fn listen(
    guest: &Guest,
    id: &Id,
    params: &Object,
    streams: &Streams,
) -> Result<Listening, Refused> {
    let filter = params
        .get_object("notifications")
        .ok_or_else(|| invalid_params("`notifications` must be an object"))?;
    let slot = streams.open(guest.principal()).ok_or_else(|| encode::too_busy(STREAM_RETRY))?;
    let wanted = Topic::ALL.map(|topic| filter.get(topic.filter_member()) == Some("true"));
    Ok(Listening { id: id.clone(), wanted, listen: guest.listen(), _slot: slot })
}

impl Listening {
    /// What goes out first: the kinds that will be told (spec, subscriptions, acknowledgment). Others
    /// that were asked for are left out.
    pub(super) fn acknowledged(&self) -> Bytes {
        let mut honored = Object::new();
        for topic in Topic::ALL.into_iter().filter(|topic| self.wanted[topic.index()]) {
            honored.set(topic.filter_member(), "true");
        }
        let mut params = self.params();
        params.set("notifications", honored.to_bytes());
        rpc::write_notification("notifications/subscriptions/acknowledged", &params.to_bytes())
    }

    /// The next change that was asked for. Never ends. Cancel-safe.
    pub(super) async fn changed(&mut self) -> Bytes {
        loop {
            let topic = self.listen.next().await;
            if self.wanted[topic.index()] {
                return rpc::write_notification(topic.notification(), &self.params().to_bytes());
            }
        }
    }

    /// The end, where the wire has a stream of its own for it (spec, subscriptions, graceful closure).
    pub(super) fn ended(&self) -> Bytes {
        let mut result = self.params();
        result.set("resultType", COMPLETE);
        rpc::write_result(&self.id, &result.to_bytes())
    }

    /// The end on a shared wire (spec, cancellation: `notifications/cancelled` with the listen's id).
    pub(super) fn cancelled(&self) -> Bytes {
        let mut params = Object::new();
        params.set("requestId", self.id.as_bytes().clone());
        rpc::write_notification("notifications/cancelled", &params.to_bytes())
    }

    /// `_meta` with the subscription's id, which keeps the JSON type of the request's.
    fn params(&self) -> Object {
        let mut meta = Object::new();
        meta.set(mcp::meta::SUBSCRIPTION_ID, self.id.as_bytes().clone());
        let mut params = Object::new();
        params.set("_meta", meta.to_bytes());
        params
    }
}

fn invalid_params(text: &str) -> Refused {
    Refused::new(StatusCode::OK, code::INVALID_PARAMS, text)
}

fn unsupported_version(versions: &Versions, requested: &str) -> Refused {
    let mut data = Object::new();
    data.set("supported", versions.to_json());
    data.set("requested", json::quote(requested));
    let unsupported = mcp::code::UNSUPPORTED_PROTOCOL_VERSION;
    let mut refused =
        Refused::new(StatusCode::BAD_REQUEST, unsupported, "Unsupported protocol version");
    refused.error.data = Some(data.to_bytes());
    refused
}

fn own_meta() -> Object {
    let mut meta = Object::new();
    meta.set(mcp::meta::SERVER_INFO, encode::server_info());
    meta
}

/// A result's `_meta` with who answers in it; `None` if there is one that cannot hold it.
fn with_own_info(result: &Object) -> Option<Object> {
    if !result.has("_meta") {
        return Some(own_meta());
    }
    let mut meta = result.get_object("_meta")?;
    meta.set(mcp::meta::SERVER_INFO, encode::server_info());
    Some(meta)
}

fn declares_extensions(capabilities: &Object) -> bool {
    capabilities.get_object("extensions").is_some_and(|extensions| !extensions.is_empty())
}

fn declares_url_elicitation(capabilities: &Object) -> bool {
    capabilities.get_object("elicitation").is_some_and(|elicitation| elicitation.has("url"))
}

fn string(raw: &Bytes) -> Option<String> {
    let text = std::str::from_utf8(raw).ok()?;
    json::decode_string(text).map(|text| text.into_owned())
}

const COMPLETE: &str = "\"complete\"";
const PRIVATE: &str = "\"private\"";
/// When a client with too many streams may try again.
const STREAM_RETRY: std::time::Duration = std::time::Duration::from_secs(1);
