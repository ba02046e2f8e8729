//! The modern dialect, as a server: 2026-07-28. Its sibling is `legacy`, function by function.
//!
//! A request carries its own context, which [`open`] reads and checks against the headers; [`serve`]
//! answers it. There is no state between two requests.
//!
//! Knows nothing of: connections, and which wire it is on.

pub(crate) mod headers;
mod input;
mod listening;

use bytes::Bytes;
use futures::FutureExt;
use hyper::{HeaderMap, StatusCode};

use super::era::Versions;
use super::request_meta::{self, Owned};
use super::response::{Answer, Call, Refused, Way};
use crate::downstream::limits::stream_limit::Streams;
use crate::downstream::response::audit_events::concluded;
use crate::downstream::response::call_stream::Beside;
use crate::downstream::response::results;
use crate::gateway::{End, Fault, Guest, Round};
use crate::json::{self, Object};
use crate::jsonrpc::{Id, Request, code};
use crate::mcp;
use crate::mcp::call::{Ask, Body, Caller, Method, Outcome, Reply};
use crate::mcp::capabilities::{Capabilities, Tasks};
use crate::mcp::definition::downgrade::Form;
use crate::mcp::input_request::Abilities;
use crate::mcp::kind::Kind;
use crate::mcp::revision::{Era, Revision};
use crate::memory_budget::Allowance;
use crate::policy::limits::Permit;
use crate::upstream;
pub(super) use listening::Listening;

/// What a request becomes.
#[allow(clippy::large_enum_variant, reason = "it is made and taken apart once a request")]
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
    /// The `Mcp-Param-*` headers, where the wire has any headers.
    param_headers: Option<HeaderMap>,
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
            let param_headers = headers.map(headers::params);
            Ok(Opened { request, revision, owned, capabilities, param_headers })
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
    let owned = request_meta::take(&mut request.params)
        .map_err(|request_meta::BadMeta(text)| bad(&text))?;
    // Spec, `_meta`: a request without a required field MUST be rejected with -32602 and 400.
    let version = owned.version.as_ref().and_then(string).ok_or_else(|| {
        bad("`_meta` must hold `io.modelcontextprotocol/protocolVersion`, a string")
    })?;
    let capabilities = owned.capabilities.clone().ok_or_else(|| {
        bad("`_meta` must hold `io.modelcontextprotocol/clientCapabilities`, an object")
    })?;
    let capabilities = Object::parse_again(capabilities)
        .map_err(|malformed| bad(&malformed.in_member(mcp::meta::CLIENT_CAPABILITIES)))?;
    if let Some(headers) = headers {
        headers::check_version(headers, &version)?;
    }
    let revision = version
        .parse()
        .ok()
        .filter(|revision: &Revision| revision.era() == Era::Modern && versions.has(*revision));
    let revision = revision.ok_or_else(|| unsupported_version(versions, &version))?;
    owned.logs().map_err(|request_meta::BadMeta(text)| bad(&text))?;
    if let Some(headers) = headers {
        headers::check_method(headers, &request.method)?;
        let member = Method::of(&request.method).and_then(Method::header_member);
        // What is no string fails as a parameter, below.
        if let Some(subject) = member.and_then(|member| request.params.get_string(member)) {
            headers::check_name(headers, &subject)?;
        }
    }
    Ok((revision, owned, capabilities))
}

/// Tells who Weir is and what can be asked, for who wants to know before asking.
fn discover(guest: &Guest, id: &Id, versions: &Versions) -> Answer {
    let mut result = Object::new();
    result.set("resultType", COMPLETE);
    result.set("supportedVersions", versions.to_json());
    let view = guest.view();
    // This revision has tasks as an extension only.
    let capabilities = Capabilities { tasks: Tasks::default(), ..view.capabilities().clone() };
    result.set("capabilities", results::capabilities(&capabilities).to_bytes());
    results::set_instructions(&mut result, &view);
    // What can be asked changes with what the client may see and which upstreams are there.
    result.set("ttlMs", "0");
    result.set("cacheScope", PRIVATE);
    result.set("_meta", own_meta().to_bytes());
    Answer::object(id, &result)
}

/// Starts to answer a request.
pub(super) fn serve(
    guest: &Guest,
    opened: Opened,
    versions: &Versions,
    streams: &Streams,
    allowed: &Allowance,
    way: Way,
) -> Exchange {
    let Opened { request, revision, owned, capabilities, param_headers } = opened;
    let Request { id, method, params, bytes } = request;
    let record = guest.record().clone();
    record.asks(revision, &method, &params);
    record.took(bytes);
    let timing = guest.timing(&method);
    let begin = || guest.admit_at_once(&method).map_err(|fault| refuse(&fault));
    if &*method == "server/discover" {
        let (begun, guest, versions) = (begin(), guest.clone(), versions.clone());
        let answer = async move {
            let answer = match begun {
                Ok(_permit) => {
                    guest.settle().await;
                    discover(&guest, &id, &versions)
                }
                Err(refused) => Answer::refused(Some(&id), &refused),
            };
            Some(concluded(&record, timing, answer))
        };
        return Exchange::Call(Call { answer: answer.boxed(), beside: Beside::default() });
    }
    if &*method == listening::LISTEN {
        let listening = begin().and_then(|permit| {
            listening::listen(guest, permit, &id, &params, revision, &capabilities, streams)
        });
        return match listening {
            Ok(listening) => {
                timing.end(End::Good);
                Exchange::Listening(listening)
            }
            Err(refused) => {
                let answer = concluded(&record, timing, Answer::refused(Some(&id), &refused));
                Exchange::Call(Call::answered(answer))
            }
        };
    }
    if &*method == "initialize" {
        // Spec, versioning: an error to `initialize` SHOULD name the versions; it may be all that a
        // legacy client can show to its user.
        let mut refused = results::unknown_method(StatusCode::NOT_FOUND, &method);
        refused.error.message = format!(
            "`initialize` does not exist in revision {revision}; versions served: {}",
            versions.to_text()
        );
        let refused = begin().err().unwrap_or(refused);
        let answer = concluded(&record, timing, Answer::refused(Some(&id), &refused));
        return Exchange::Call(Call::answered(answer));
    }
    // Read when the request was opened.
    let logs = owned.logs().unwrap_or_default();
    let (notes, beside) = Beside::notes(owned.progress_token, logs, None, &allowed.budget);
    let caller = Caller {
        revision,
        info: owned.info.filter(|info| info.starts_with(b"{")),
        abilities: Abilities::read(&capabilities),
        capabilities: capabilities.to_bytes(),
        client: guest.client(),
        notes,
        param_headers,
    };
    let (guest, allowed) = (guest.clone(), allowed.clone());
    let work = async move {
        let answer = match guest.admit(revision, &method, &params).await {
            Ok(permit) => {
                let capabilities = &capabilities;
                answer(&guest, &permit, caller, capabilities, &id, &method, params, &allowed)
                    .await
                    .map(|answer| answer.holding(permit))
            }
            Err(fault) => Err(refuse(&fault)),
        };
        let answer = answer.unwrap_or_else(|refused| Answer::refused(Some(&id), &refused));
        let answer = match way {
            Way::Alone => answer,
            Way::Shared | Way::Batched => answer.whole(&id, &allowed).await,
        };
        Some(concluded(&record, timing, answer))
    };
    Exchange::Call(Call { answer: work.boxed(), beside })
}

#[expect(
    clippy::too_many_arguments,
    reason = "each is a part of one request, which is told apart here"
)]
async fn answer(
    guest: &Guest,
    permit: &Permit,
    caller: Caller,
    capabilities: &Object,
    id: &Id,
    method: &str,
    params: Object,
    allowed: &Allowance,
) -> Result<Answer, Refused> {
    if let Some(kind) = Kind::of_list_method(method) {
        return list(guest, permit, id, kind, &params).await;
    }
    match Method::of(method) {
        // What is not declared is not there.
        Some(Method::Complete) if !guest.view().capabilities().completions => {}
        Some(method) if method.is_about_a_task() && !guest.view().capabilities().has_tasks() => {}
        Some(Method::TaskResult) => {}
        // SEP-2663, protocol errors: a MUST.
        Some(method)
            if method.is_about_a_task() && !Capabilities::read(capabilities).has_tasks() =>
        {
            return Err(input::undeclared_tasks());
        }
        Some(method) => {
            return ask(guest, permit, caller, capabilities, id, method, params, allowed).await;
        }
        None => {}
    }
    Err(results::unknown_method(StatusCode::NOT_FOUND, method))
}

async fn list(
    guest: &Guest,
    permit: &Permit,
    id: &Id,
    kind: Kind,
    params: &Object,
) -> Result<Answer, Refused> {
    let cursor = results::cursor(params)?;
    let page = guest.list(permit, kind, cursor.as_deref(), Form::Newest).await;
    let page = page.map_err(|fault| refuse(&fault))?;
    let mut result = results::page(kind, &page);
    result.set("resultType", COMPLETE);
    result.set("ttlMs", page.ttl.as_millis().to_string());
    result.set("cacheScope", if page.public { "\"public\"" } else { PRIVATE });
    let mut meta = own_meta();
    results::set_partial(&mut meta, &page.partial);
    result.set("_meta", meta.to_bytes());
    Ok(Answer::list(id, &result))
}

#[expect(clippy::too_many_arguments, reason = "each is a part of one request, which ends here")]
async fn ask(
    guest: &Guest,
    permit: &Permit,
    mut caller: Caller,
    capabilities: &Object,
    id: &Id,
    method: Method,
    params: Object,
    allowed: &Allowance,
) -> Result<Answer, Refused> {
    let ask = Ask::parse(method, params).map_err(|bad| invalid_params(&bad.0))?;
    if let (Method::CallTool, Some(headers)) = (method, &mut caller.param_headers) {
        let target = guest.find(&ask, caller.revision).await.map_err(|fault| refuse(&fault))?;
        if let Some(mirror) = &target.mirror {
            headers::check_params(headers, mirror, &ask.params)?;
        }
    }
    let key = ask.key.clone();
    let round = guest.ask_in_rounds(permit, ask, caller).await.map_err(|fault| refuse(&fault))?;
    let reply = match round {
        Round::Replied(reply) => reply,
        Round::Asks { questions, state } => {
            return Ok(Answer::result(id, &input::required(&questions, Some(&state))));
        }
    };
    if results::says_no_such_resource(guest, method, &key, &reply) {
        return Err(refuse(&Fault::NoSuchItem { kind: Kind::Resource, key }));
    }
    // Spec, caching: what depends on who asks is private, whatever the upstream may think.
    let is_private = method == Method::ReadResource && !guest.is_public();
    self::reply(id, method, capabilities, reply, allowed, is_private).await
}

/// Puts an upstream's reply as a modern server would have.
async fn reply(
    id: &Id,
    method: Method,
    capabilities: &Object,
    reply: Reply,
    allowed: &Allowance,
    is_private: bool,
) -> Result<Answer, Refused> {
    let body = match reply.outcome {
        Outcome::Error(object) => return Ok(error(id, method, capabilities, object)),
        Outcome::Result(body) => body,
    };
    // A large result of the same era passes unread.
    if let (Era::Modern, Body::Arriving(_), false) = (reply.era, &body, is_private) {
        return Ok(Answer::passing(id, body));
    }
    let result = body.read(allowed).await.map_err(|why| results::uncollected(&why))?;
    let mut object = result.map_err(|_| results::broken("the upstream's result cannot be read"))?;
    if method == Method::GetTask {
        // SEP-2663: what a task waits for is asked as in any other reply.
        input::check(&object, Abilities::read(capabilities))?;
    }
    match object.get("resultType") {
        // Spec, caching: the hints are a must.
        Some(COMPLETE) if method == Method::ReadResource && !has_hints(&object, is_private) => {
            if !object.has("ttlMs") {
                object.set("ttlMs", "0");
            }
            if is_private || !object.has("cacheScope") {
                object.set("cacheScope", PRIVATE);
            }
            return Ok(Answer::object(id, &object));
        }
        Some(COMPLETE) if reply.era == Era::Modern => {
            return Ok(Answer::object(id, &object));
        }
        Some(INPUT_REQUIRED) if reply.era == Era::Modern => {
            input::check(&object, Abilities::read(capabilities))?;
            return Ok(Answer::object(id, &object));
        }
        Some(COMPLETE) | None => {}
        // Spec, result type: a type is valid by an extension that both sides know; which one it is
        // from cannot be told from here.
        Some(_) if declares_extensions(capabilities) => {
            return Ok(Answer::object(id, &object));
        }
        Some(_) => {
            return Err(results::broken(
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
    Ok(Answer::object(id, &object))
}

/// Passes an upstream's error on, but for codes that this revision must not see.
///
/// -32601 is no 404 here: that is the answer to a method which Weir does not implement (spec, Streamable
/// HTTP, protocol version header), and to ask an upstream it had to.
fn error(id: &Id, method: Method, capabilities: &Object, error: Bytes) -> Answer {
    let Ok(mut object) = Object::parse_within(error.clone(), usize::MAX) else {
        return Answer::error(Some(id), StatusCode::OK, &error);
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
        // About headers and a version that were Weir's own, not this client's.
        Some(mcp::code::HEADER_MISMATCH | mcp::code::UNSUPPORTED_PROTOCOL_VERSION) => {
            object.take("data");
            (StatusCode::OK, changed(&mut object, code::INTERNAL_ERROR))
        }
        // What this revision has in its place.
        Some(mcp::code::URL_ELICITATION_REQUIRED) if !Abilities::read(capabilities).url => {
            object.set("data", input::required_capabilities(Abilities::URL));
            (StatusCode::BAD_REQUEST, changed(&mut object, mcp::code::MISSING_CLIENT_CAPABILITY))
        }
        Some(mcp::code::URL_ELICITATION_REQUIRED) => match input::visits(&object) {
            // Without a state: whoever has visited them asks anew.
            Some(visits) if method != Method::Complete => {
                return Answer::result(id, &input::required(&visits, None));
            }
            _ => (StatusCode::OK, changed(&mut object, code::INTERNAL_ERROR)),
        },
        _ => (StatusCode::OK, error),
    };
    Answer::error(Some(id), status, &error)
}

/// Puts a fault of the gateway's.
pub(super) fn refuse(fault: &Fault) -> Refused {
    match fault {
        Fault::Request(text) => invalid_params(text),
        Fault::NoSuchItem { kind: Kind::Resource, key } => {
            results::no_such_resource(code::INVALID_PARAMS, key)
        }
        Fault::NoSuchItem { kind: kind @ (Kind::Prompt | Kind::Tool | Kind::Template), key } => {
            invalid_params(&format!("Unknown {kind}: {key}"))
        }
        // Spec 2025-11-25, tasks, error handling; SEP-2663 says the same.
        Fault::NoSuchTask => invalid_params("Task not found"),
        Fault::TaskIdTooLong { upstream } => results::task_id_too_long(upstream),
        Fault::TooBusy { retry_after } => results::too_busy(*retry_after),
        Fault::Unrecorded => results::unrecorded(),
        Fault::TooManyWaiting => results::too_many_waiting(),
        Fault::Upstream { cause: upstream::Error::Undeclared(lacking), .. } => {
            input::undeclared(*lacking)
        }
        Fault::Upstream { upstream, cause } => results::upstream_failed(upstream, cause),
        Fault::Refused { upstream, found } => results::refused(upstream, found),
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
    meta.set(mcp::meta::SERVER_INFO, results::server_info());
    meta
}

/// A result's `_meta` with who answers in it; `None` if there is one that cannot hold it.
fn with_own_info(result: &Object) -> Option<Object> {
    if !result.has("_meta") {
        return Some(own_meta());
    }
    let mut meta = result.get_object("_meta")?;
    meta.set(mcp::meta::SERVER_INFO, results::server_info());
    Some(meta)
}

/// Whether a result says how long, and as what, it may be kept.
fn has_hints(result: &Object, is_private: bool) -> bool {
    let scope = result.get("cacheScope");
    result.has("ttlMs") && scope.is_some_and(|scope| scope == PRIVATE || !is_private)
}

fn declares_extensions(capabilities: &Object) -> bool {
    capabilities.get_object("extensions").is_some_and(|extensions| !extensions.is_empty())
}

fn string(raw: &Bytes) -> Option<String> {
    let text = std::str::from_utf8(raw).ok()?;
    json::decode_string(text).map(|text| text.into_owned())
}

const COMPLETE: &str = "\"complete\"";
const INPUT_REQUIRED: &str = "\"input_required\"";
const PRIVATE: &str = "\"private\"";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::response::Text;
    use crate::guard::Findings;
    use futures::{StreamExt, stream};
    use std::time::Duration;

    fn text(answer: Answer) -> String {
        match answer.text.into_whole() {
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
        let missing = |kind| Fault::NoSuchItem { kind, key: "x".into() };
        let busy = Fault::TooBusy { retry_after: Duration::from_millis(1_200) };
        let down = crate::upstream::Error::Unavailable("why".into());
        for (fault, status, code, message) in [
            (Fault::Request("Invalid cursor".into()), 200, -32602, "Invalid cursor"),
            (missing(Kind::Prompt), 200, -32602, "Unknown prompt: x"),
            (missing(Kind::Tool), 200, -32602, "Unknown tool: x"),
            (missing(Kind::Template), 200, -32602, "Unknown resource template: x"),
            (missing(Kind::Resource), 200, -32602, "Resource not found"),
            (busy, 429, 4290, "too many requests: try again in 1200 ms"),
            (
                Fault::Upstream { upstream: hub(), cause: down },
                200,
                5030,
                "upstream hub is unavailable; the request was not carried out; try again later",
            ),
            (
                Fault::Refused {
                    upstream: hub(),
                    found: Findings { hidden: Some('\u{1b}'), ..Findings::default() },
                },
                200,
                -32603,
                "the reply of upstream hub is refused here: hidden text, <U+001B>",
            ),
        ] {
            let refused = refuse(&fault);
            let found = (refused.status.as_u16(), refused.error.code, &*refused.error.message);
            assert_eq!(found, (status, code, message), "{fault:?}");
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
            let answer = error(&Id::from(1), method, &object(capabilities), sent.into());
            assert_eq!(answer.status.as_u16(), status, "{code}");
            let expected = format!(r#""error":{{"code":{expected},"message":"m""#);
            assert!(text(answer).contains(&expected), "{code}");
        }
    }

    async fn replied(
        era: Era,
        method: Method,
        capabilities: &str,
        body: Body,
    ) -> Result<String, i64> {
        let reply = Reply { era, scope: None, outcome: Outcome::Result(body) };
        let answer = super::reply(
            &Id::from(1),
            method,
            &object(capabilities),
            reply,
            &Allowance::alone(1_000),
            false,
        )
        .await;
        answer.map(text).map_err(|refused| refused.error.code)
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
            let body = Body::Whole(result.into());
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
            let body = Body::Whole(result.into());
            let found = replied(Era::Legacy, method, "{}", body).await;
            assert_eq!(found, Ok(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#)));
        }
    }

    #[tokio::test]
    async fn what_depends_on_who_reads_it_is_private() {
        let text = r#"{"resultType":"complete","ttlMs":9,"cacheScope":"public","contents":[]}"#;
        for is_private in [false, true] {
            let outcome = Outcome::Result(Body::Whole(text.into()));
            let reply = Reply { era: Era::Modern, scope: None, outcome };
            let method = Method::ReadResource;
            let answer = super::reply(
                &Id::from(1),
                method,
                &object("{}"),
                reply,
                &Allowance::alone(1_000),
                is_private,
            )
            .await;
            let Ok(Answer { text: Text::Whole(found), .. }) = answer else { panic!("an answer") };
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
            Body::Arriving(stream::iter(pieces.collect::<Vec<_>>()).boxed())
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
