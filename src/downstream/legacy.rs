//! The legacy dialect, as a server: 2024-11-05 to 2025-11-25. Its sibling is `modern`, function by
//! function.
//!
//! A conversation opens with [`initialize`], which makes a [`Peer`]; from then on [`serve`] answers
//! requests in its name. JSON-RPC errors go out with HTTP 200: to these clients 404 says that the
//! session is gone.
//!
//! Knows nothing of: sessions and their ids, and which wire it is on.

pub(crate) mod stdio_handshake;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use hyper::StatusCode;

use super::client_requests::{Asking, Questions};
use super::era::Versions;
use super::in_flight::Calls;
use super::request_meta;
use super::response::{Answer, Call, Refused, Way};
use crate::catalog::View;
use crate::downstream::response::audit_events::concluded;
use crate::downstream::response::call_stream::Beside;
use crate::downstream::response::results;
use crate::gateway::{End, Fault, Guest, Subscribed, Subscriptions, Went};
use crate::json::Object;
use crate::jsonrpc::{Id, Request, code};
use crate::mcp;
use crate::mcp::call::{Ask, Caller, Client, Method, Outcome, Reply};
use crate::mcp::capabilities::{Capabilities, Tasks};
use crate::mcp::definition::downgrade::{self, Form};
use crate::mcp::input_request::Abilities;
use crate::mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};
use crate::mcp::log_level::{Level, Wanted};
use crate::mcp::revision::{Era, Revision};
use crate::memory_budget::Allowance;
use crate::policy::limits::Permit;

/// The request that opens a conversation.
pub(super) const OPENING: &str = "initialize";

/// The client of a conversation, as it introduced itself.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// What was negotiated.
    pub(super) revision: Revision,
    info: Option<Bytes>,
    capabilities: Bytes,
    /// What it can be asked, in this revision.
    abilities: Abilities,
    pub(super) client: Client,
    /// Which log messages it wants.
    logs: Wanted,
    /// What it has been asked.
    pub(super) questions: Questions,
    /// The resources that it wants to hear of.
    pub(super) subscriptions: Arc<Subscriptions>,
}

/// Opens a conversation: settles its revision and tells what can be asked.
pub(super) fn initialize(
    guest: &Guest,
    versions: &Versions,
    params: &Object,
    client: Client,
    questions: Questions,
) -> Result<(Peer, Bytes), Refused> {
    let timing = guest.timing(OPENING);
    let opened = introduce(guest, versions, params, client, questions);
    timing.end(match &opened {
        Ok(_) => End::Good,
        Err(refused) => End::Error(Some(refused.error.code)),
    });
    opened
}

fn introduce(
    guest: &Guest,
    versions: &Versions,
    params: &Object,
    client: Client,
    questions: Questions,
) -> Result<(Peer, Bytes), Refused> {
    let _permit = guest.admit_at_once(OPENING).map_err(|fault| refuse(&fault))?;
    let requested = params
        .get_string("protocolVersion")
        .ok_or_else(|| invalid_params("`protocolVersion` must be a string"))?;
    // Spec, lifecycle: the same version if we support it, else the latest that we do. A modern one has
    // no handshake, so whoever asks for it here is served as any unknown version.
    let requested = requested
        .parse()
        .ok()
        .filter(|revision: &Revision| revision.era() == Era::Legacy && versions.has(*revision));
    let revision = requested.or(versions.newest_legacy()).ok_or_else(|| {
        invalid_params(&format!("no version with a handshake is served: {}", versions.to_text()))
    })?;
    let kept = |member| stdio_handshake::kept(params, member).map_err(|text| invalid_params(&text));
    let (info, declared) = (kept("clientInfo")?, kept("capabilities")?);
    let capabilities = params.get_object("capabilities").unwrap_or_default();
    let subscriptions = guest.subscriptions(&client.tasks);
    let peer = Peer {
        revision,
        info,
        abilities: Abilities::read(&capabilities).within(revision),
        capabilities: declared.unwrap_or_else(|| capabilities.to_bytes()),
        client: client.owned_by(guest.owner()),
        logs: Wanted::undecided(),
        questions,
        subscriptions,
    };
    let mut result = Object::new();
    result.set("protocolVersion", format!("\"{revision}\""));
    let view = guest.view();
    result.set("capabilities", results::capabilities(&told(&view, revision)).to_bytes());
    result.set("serverInfo", results::server_info());
    results::set_instructions(&mut result, &view);
    Ok((peer, result.to_bytes()))
}

/// What a view's capabilities are in this revision.
fn told(view: &View, revision: Revision) -> Capabilities {
    let mut capabilities = view.capabilities().clone().without_tasks();
    // The capability came with 2025-03-26; the method is older.
    capabilities.completions &= revision >= Revision::V2025_03_26;
    if revision < Revision::V2025_11_25 {
        capabilities.tasks = Tasks::default();
    }
    capabilities
}

/// Answers a request ahead of `initialize`; `hint` says what to do first.
pub(super) fn unopened(guest: &Guest, request: &Request, hint: &str) -> Answer {
    let Request { id, method, .. } = request;
    if let Err(fault) = guest.admit_at_once(method) {
        return Answer::refused(Some(id), &refuse(&fault));
    }
    if &**method == "ping" {
        return Answer::result(id, b"{}");
    }
    // A client that asks first which era is spoken here has to hear that it is not the modern one.
    let known = Kind::of_list_method(method).is_some() || Method::of(method).is_some();
    let refused = match known {
        true => Refused::new(StatusCode::BAD_REQUEST, code::INVALID_REQUEST, hint),
        false => results::unknown_method(StatusCode::OK, method),
    };
    Answer::refused(Some(id), &refused)
}

/// Starts to answer a request; `calls` is where its client can cancel it.
pub(super) fn serve(
    guest: &Guest,
    peer: &Peer,
    calls: &Arc<Calls>,
    request: Request,
    allowed: &Allowance,
    way: Way,
) -> Call {
    let Request { id, method, mut params, bytes } = request;
    let record = guest.record().clone();
    record.asks(peer.revision, &method, &params);
    record.took(bytes);
    let timing = guest.timing(&method);
    let refuse = |timing, refused| {
        let answer = concluded(&record, timing, Answer::refused(Some(&id), &refused));
        Call::answered(answer)
    };
    let owned = match request_meta::take(&mut params) {
        Ok(owned) => owned,
        Err(request_meta::BadMeta(text)) => return refuse(timing, invalid_params(&text)),
    };
    let Some(open) = calls.open(&id) else {
        return refuse(timing, id_in_use());
    };
    // Nothing goes out beside an answer in a batch, so nothing can be asked there.
    let abilities = if way == Way::Batched { Abilities::default() } else { peer.abilities };
    // Who can be sent to a URL wants to know when that is done with: they came in one revision.
    let visits = abilities.url.then_some(&peer.client.visits);
    let budget = &allowed.budget;
    let (notes, beside) = Beside::notes(owned.progress_token, peer.logs.clone(), visits, budget);
    let (asking, beside) = Asking::open(&peer.questions, peer.revision, abilities, beside);
    let caller = Caller {
        revision: peer.revision,
        info: peer.info.clone(),
        capabilities: peer.capabilities.clone(),
        abilities,
        client: peer.client.clone(),
        notes,
        param_headers: None,
    };
    let (guest, subscriptions) = (guest.clone(), Arc::clone(&peer.subscriptions));
    let allowed = allowed.clone();
    let work = async move {
        let answer = match guest.admit(caller.revision, &method, &params).await {
            Ok(mut permit) => {
                let answer = match &*method {
                    SUBSCRIBE | UNSUBSCRIBE => {
                        subscribe(&guest, &permit, &subscriptions, &id, &method, &params).await
                    }
                    method => {
                        let permit = &mut permit;
                        answer(&guest, permit, caller, asking, &id, method, params, &allowed).await
                    }
                };
                match (way, answer) {
                    (Way::Alone, Ok(answer)) => Ok(answer.holding(permit)),
                    // What goes out on a stream of many may be kept there for long.
                    (Way::Shared | Way::Batched, Ok(answer)) => {
                        Ok(answer.whole(&id, &allowed).await)
                    }
                    (_, Err(refused)) => Err(refused),
                }
            }
            Err(fault) => Err(self::refuse(&fault)),
        };
        let answer = answer.unwrap_or_else(|refused| Answer::refused(Some(&id), &refused));
        concluded(&record, timing, answer)
    };
    Call { answer: open.run(work).boxed(), beside }
}

#[expect(
    clippy::too_many_arguments,
    reason = "each is a part of one request, which is told apart here"
)]
async fn answer(
    guest: &Guest,
    permit: &mut Permit,
    caller: Caller,
    asking: Option<Asking>,
    id: &Id,
    method: &str,
    params: Object,
    allowed: &Allowance,
) -> Result<Answer, Refused> {
    if method == "ping" {
        return Ok(Answer::result(id, b"{}"));
    }
    if let Some(kind) = Kind::of_list_method(method) {
        return list(guest, permit, caller.revision, id, kind, &params).await;
    }
    if method == "logging/setLevel" && guest.view().capabilities().logging {
        let level = params.get("level").and_then(Level::parse);
        let level =
            level.ok_or_else(|| invalid_params("`level` must be a level, such as \"info\""))?;
        caller.notes.logs().decide(level);
        return Ok(Answer::result(id, b"{}"));
    }
    match Method::of(method) {
        // What is not declared is not there.
        Some(Method::Complete) if !guest.view().capabilities().completions => {}
        // They came with 2025-11-25.
        Some(method)
            if method.is_about_a_task()
                && (caller.revision < Revision::V2025_11_25
                    || !guest.view().capabilities().tasks.tools_call) => {}
        Some(Method::CancelTask) if !guest.view().capabilities().tasks.cancel => {}
        Some(Method::UpdateTask) => {}
        Some(method) => {
            let asking = asking.as_ref();
            return ask(guest, permit, caller, asking, id, method, params, allowed).await;
        }
        None => {}
    }
    Err(results::unknown_method(StatusCode::OK, method))
}

async fn list(
    guest: &Guest,
    permit: &Permit,
    revision: Revision,
    id: &Id,
    kind: Kind,
    params: &Object,
) -> Result<Answer, Refused> {
    let cursor = results::cursor(params)?;
    let page = guest.list(permit, kind, cursor.as_deref(), Form::of(revision)).await;
    let page = page.map_err(|fault| refuse(&fault))?;
    let mut result = results::page(kind, &page);
    let mut meta = Object::new();
    results::set_partial(&mut meta, &page.partial);
    if !meta.is_empty() {
        result.set("_meta", meta.to_bytes());
    }
    Ok(Answer::list(id, &result))
}

#[expect(clippy::too_many_arguments, reason = "each is a part of one request, which ends here")]
async fn ask(
    guest: &Guest,
    permit: &mut Permit,
    caller: Caller,
    asking: Option<&Asking>,
    id: &Id,
    method: Method,
    params: Object,
    allowed: &Allowance,
) -> Result<Answer, Refused> {
    let ask = Ask::parse(method, params).map_err(|bad| invalid_params(&bad.0))?;
    let key = ask.key.clone();
    let mut went = guest.ask(permit, ask, caller.clone()).await;
    let reply = loop {
        match went.map_err(|fault| refuse(&fault))? {
            Went::Replied(reply) => break reply,
            Went::Asks(mut asked) => {
                let asking = asking.ok_or_else(unasked)?;
                // A person may take minutes.
                permit.aside(asking.ask(&mut asked)).await?;
                went = asked.answer(Vec::new(), caller.clone()).await;
            }
        }
    };
    if results::says_no_such_resource(guest, method, &key, &reply) {
        return Err(refuse(&Fault::NoSuchItem { kind: Kind::Resource, key }));
    }
    self::reply(id, method, reply, allowed).await
}

/// Begins or ends to tell the client of changes of a resource.
async fn subscribe(
    guest: &Guest,
    permit: &Permit,
    subscriptions: &Subscriptions,
    id: &Id,
    method: &str,
    params: &Object,
) -> Result<Answer, Refused> {
    let uri = params.get_string("uri");
    // Whatever else has changed since, this is let go of.
    if let (UNSUBSCRIBE, Some(uri)) = (method, &uri) {
        subscriptions.unsubscribe(uri);
    }
    guest.settle().await;
    // What is not declared is not there.
    if !guest.view().capabilities().subscribe {
        return Err(results::unknown_method(StatusCode::OK, method));
    }
    let uri = uri.ok_or_else(|| invalid_params("`uri` must be a string"))?;
    if method == UNSUBSCRIBE {
        return Ok(Answer::result(id, b"{}"));
    }
    let unknown = || Fault::NoSuchItem { kind: Kind::Resource, key: (&*uri).into() };
    let subscribed = guest.subscribe(permit, subscriptions, &uri).await;
    let subscribed = subscribed.map_err(|fault| refuse(&fault))?;
    match subscribed {
        Subscribed::Agreed => Ok(Answer::result(id, b"{}")),
        // Of what nobody lists it must not be told whether it is there.
        Subscribed::Refused(_) if guest.view().resolve(Kind::Resource, &uri).is_none() => {
            Err(refuse(&unknown()))
        }
        Subscribed::Refused(Some(object)) => Ok(error(id, object)),
        Subscribed::Refused(None) => {
            Err(results::broken("the upstream does not tell of changes of this resource"))
        }
    }
}

/// Puts an upstream's reply as a legacy server would have.
async fn reply(
    id: &Id,
    method: Method,
    reply: Reply,
    allowed: &Allowance,
) -> Result<Answer, Refused> {
    let body = match reply.outcome {
        Outcome::Error(object) => return Ok(error(id, object)),
        Outcome::Result(body) => body,
    };
    if reply.era == Era::Legacy {
        return Ok(Answer::passing(id, body));
    }
    // A modern result may say that it is none, which these clients would not understand.
    let result = body.read(allowed).await.map_err(|why| results::uncollected(&why))?;
    let mut object = result.map_err(|_| results::broken("the upstream's result cannot be read"))?;
    let is_complete = matches!(object.get("resultType"), None | Some("\"complete\""));
    if is_complete && method == Method::CallTool && downgrade::result(&mut object) {
        return Ok(Answer::object(id, &object));
    }
    match object.get("resultType") {
        None | Some("\"complete\"") => Ok(Answer::object(id, &object)),
        // What can be asked has been, on the way here.
        Some("\"input_required\"") => Err(unasked()),
        Some(_) => {
            Err(results::broken("the upstream's result is of a type that is not known here"))
        }
    }
}

/// Passes an upstream's error on; the codes of the modern era mean nothing here.
fn error(id: &Id, error: Bytes) -> Answer {
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
            Answer::error(Some(id), StatusCode::OK, &object.to_bytes())
        }
        _ => Answer::error(Some(id), StatusCode::OK, &error),
    }
}

/// Puts a fault of the gateway's.
pub(super) fn refuse(fault: &Fault) -> Refused {
    match fault {
        Fault::Request(text) => invalid_params(text),
        Fault::NoSuchItem { kind: Kind::Resource, key } => {
            results::no_such_resource(mcp::code::RESOURCE_NOT_FOUND, key)
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
        Fault::Upstream { upstream, cause } => results::upstream_failed(upstream, cause),
        Fault::Refused { upstream, found } => results::refused(upstream, found),
    }
}

/// An upstream asks for what it was not offered.
fn unasked() -> Refused {
    results::broken("the upstream asks for something where nothing can be asked")
}

/// A request's id is that of one that has not been answered.
pub(super) fn id_in_use() -> Refused {
    let text = "a request with this id is still being answered";
    Refused::new(StatusCode::OK, code::INVALID_REQUEST, text)
}

fn invalid_params(text: &str) -> Refused {
    Refused::new(StatusCode::OK, code::INVALID_PARAMS, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Findings;
    use crate::mcp::call::Body;
    use std::time::Duration;

    fn text(answer: Answer) -> String {
        match answer.text.into_whole() {
            Some(text) => String::from_utf8_lossy(&text).into_owned(),
            None => "arriving".to_owned(),
        }
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
            (missing(Kind::Resource), 200, -32002, "Resource not found"),
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
            let answer = error(&Id::from(1), sent.into());
            assert_eq!(answer.status, StatusCode::OK);
            let expected = format!(r#""error":{{"code":{expected},"message":"m"}}}}"#);
            assert!(text(answer).ends_with(&expected), "{code}");
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
            let outcome = Outcome::Result(Body::part(result.into(), None));
            let (upstreams, allowed) =
                (Reply { era, scope: None, outcome }, Allowance::alone(1_000));
            match reply(&Id::from(1), Method::CallTool, upstreams, &allowed).await {
                Ok(answer) => {
                    assert_eq!(expected, Ok(()), "{result}");
                    let whole = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
                    assert_eq!(text(answer), whole);
                }
                Err(refused) => assert_eq!(Err(refused.error.code), expected, "{result}"),
            }
        }
    }
}
