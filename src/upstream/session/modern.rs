//! The modern dialect, as a client speaks it: each request carries its own context.
//!
//! Mirrors `legacy.rs`: the same functions in the same order. A dialect dresses what goes out and reads
//! what comes back; it holds no connection.
//!
//! Knows nothing of: the house, and how the bytes travel.

mod subscriptions;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::json::{self, Object};
use crate::jsonrpc;
use crate::mcp::call::{Call, Caller, Method, Outcome};
use crate::mcp::definition::item::Item;
use crate::mcp::definition::param_headers::{Mirror, header_value};
use crate::mcp::input_request::INPUT_REQUESTS;
use crate::mcp::kind::{Kind, Topic};
use crate::mcp::revision::{Era, Revision};
use crate::mcp::{capabilities, code, meta};
use crate::upstream::message::{Answer, Cancel, Failure, Outgoing, Wire};
use crate::upstream::session::connection::{Introduction, Opening, error_code, error_text};
use crate::upstream::transport::dispatcher::{self, Ear};

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The revision that is spoken, and as JSON.
const REVISION: Revision = Revision::V2026_07_28;
const QUOTED: &str = "\"2026-07-28\"";
/// Room for the headers of a request.
const USUAL_HEADERS: usize = 4;

/// Nothing has to be agreed on: there is no handshake. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    /// Which arguments of which tools are repeated in headers, as of the last list.
    mirrors: Arc<Mutex<HashMap<Box<str>, Mirror>>>,
    /// Whether the server logs, and a message tells which call it is about.
    logs: bool,
}

/// The request that opens a connection.
pub(crate) fn opening() -> Outgoing {
    dressed("server/discover", Object::new(), None)
}

/// Reads the answer to the opening request.
pub(crate) fn introduce(outcome: &jsonrpc::Outcome) -> Opening {
    match outcome {
        jsonrpc::Outcome::Result(result) => {
            let result = Object::parse(result.clone()).unwrap_or_default();
            let Some(versions) = result.get_bytes("supportedVersions").and_then(revisions) else {
                return Opening::AnotherEra;
            };
            choose(&versions)
                .unwrap_or_else(|| Opening::Introduced(Introduction::read(REVISION, &result)))
        }
        jsonrpc::Outcome::Error(error) => {
            let refused = || format!("it refuses `server/discover`: {}", error_text(error));
            match error_code(error) {
                // spec 2026-07-28, versioning: use one of the versions that it supports.
                Some(code::UNSUPPORTED_PROTOCOL_VERSION) => {
                    let data = Object::parse(error.clone()).ok();
                    let data = data.and_then(|error| error.get_object("data"));
                    let versions =
                        data.and_then(|it| it.get_bytes("supported")).and_then(revisions);
                    let choice = choose(&versions.unwrap_or_default());
                    choice.unwrap_or_else(|| Opening::Retry(refused()))
                }
                Some(code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY) => {
                    Opening::Refused(refused())
                }
                _ => Opening::AnotherEra,
            }
        }
    }
}

/// The revisions known here among those that a server names; `None` if it names none at all.
fn revisions(list: Bytes) -> Option<Vec<Revision>> {
    let known = |version: &Bytes| {
        json::decode_string(std::str::from_utf8(version).ok()?)?.parse::<Revision>().ok()
    };
    Some(json::elements_again(&list)?.filter_map(|version| known(&version)).collect())
}

/// What to do about a server that supports these revisions; `None` if one of them is spoken here.
fn choose(supported: &[Revision]) -> Option<Opening> {
    if supported.contains(&REVISION) {
        return None;
    }
    if supported.is_empty() {
        return Some(Opening::Refused(format!("it is modern but does not speak {REVISION}")));
    }
    // All that is left has a handshake, so that is what it asks for.
    Some(Opening::AnotherEra)
}

impl Dialect {
    /// The dialect after the opening request was answered.
    pub(crate) fn new(
        introduction: &Introduction,
        _headers: &HeaderMap,
        tells_whose: bool,
    ) -> Self {
        Self { mirrors: Arc::default(), logs: introduction.capabilities.logging && tells_whose }
    }

    /// What is left to do before the first request.
    pub(crate) async fn begin(&self, _wire: &Wire, ear: &Ear) -> Result<(), Failure> {
        ear.tune(REVISION);
        Ok(())
    }

    /// Dresses a call.
    pub(crate) fn dress(&self, call: &Call, wire: &Wire) -> Outgoing {
        let caller = &call.caller;
        let mut params = call.params.clone();
        // Spec 2026-07-28, logging: without a level there MUST NOT be messages.
        if let Some(level) = caller.notes.logs().least().filter(|_| self.logs) {
            let mut context = params.get_object("_meta").unwrap_or_default();
            context.set(meta::LOG_LEVEL, json::quote(level.as_str()));
            params.set("_meta", context.to_bytes());
        }
        let mut request =
            named(dressed(call.method.as_str(), params, Some(caller)), call.method.header_member());
        // spec 2026-07-28, Streamable HTTP, custom headers: who does not recognize one MUST forward it.
        if let Some(headers) = &caller.param_headers {
            request.headers.extend(headers.clone());
        }
        if call.method == Method::CallTool
            && let Some(mirror) = self.mirrors().get(&call.subject)
        {
            repeat(mirror, &call.params, &mut request.headers);
        }
        Outgoing {
            notes: caller.notes.given_to(self.logs),
            cancel: cancel_on(wire),
            // What Weir has to read is not handed on while it arrives.
            stream: !reads(call) && !call.method.is_about_a_task(),
            // What is asked for has to be compared with what the client declared.
            unless: Some(INPUT_REQUESTS),
            ..request
        }
    }

    /// Dresses the request for a page of a list. `cursor` is JSON text.
    pub(crate) fn dress_list(&self, kind: Kind, cursor: Option<&Bytes>, wire: &Wire) -> Outgoing {
        let mut params = Object::new();
        if let Some(cursor) = cursor {
            params.set("cursor", cursor.clone());
        }
        Outgoing { cancel: cancel_on(wire), ..dressed(kind.list_method(), params, None) }
    }

    /// Learns from a list of tools which arguments go into headers. A tool that asks for it in a way that
    /// is not allowed cannot be called as it wants: no client is to see it. Other wires have no headers,
    /// and need not look (spec 2026-07-28, Streamable HTTP, schema extension).
    pub(crate) fn learn(&self, tools: &mut [Item], wire: &Wire) {
        if !matches!(wire, Wire::Http(_)) {
            return;
        }
        let mut mirrors = HashMap::new();
        for tool in tools {
            match Mirror::read(&tool.definition) {
                Ok(None) => {}
                Ok(Some(mirror)) => _ = mirrors.insert(tool.key.clone(), mirror),
                Err(bad) => tool.flaw = Some(bad.into()),
            }
        }
        *self.mirrors() = mirrors;
    }

    fn mirrors(&self) -> MutexGuard<'_, HashMap<Box<str>, Mirror>> {
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what came of a request.
    pub(crate) fn read(&self, came: Result<Answer, Failure>) -> Result<Answer, Failure> {
        let answer = match came {
            Err(Failure::Refused { error: Some(error), .. }) => {
                Answer { outcome: Outcome::Error(error), headers: HeaderMap::new() }
            }
            came => came?,
        };
        // spec 2026-07-28, versioning: the server does not implement the revision of this request, so
        // it has not executed it.
        let unsupported = Some(code::UNSUPPORTED_PROTOCOL_VERSION);
        match &answer.outcome {
            Outcome::Error(error) if error_code(error) == unsupported => {
                Err(Failure::Stale(format!("it does not speak {REVISION} any more")))
            }
            _ => Ok(answer),
        }
    }

    /// Hears of changes until the connection is over.
    ///
    /// Returns why the connection must be opened again, if it must.
    pub(crate) async fn listen(
        &self,
        wire: Wire,
        ear: Arc<Ear>,
        topics: [bool; 3],
    ) -> Option<String> {
        let wanted: Vec<Topic> = Topic::ALL.into_iter().filter(|it| topics[it.index()]).collect();
        if wanted.is_empty() {
            ear.listening();
            return None;
        }
        let mut filter = Object::new();
        for topic in wanted {
            filter.set(topic.filter_member(), "true");
        }
        let mut params = Object::new();
        params.set("notifications", filter.to_bytes());
        let mut pause = dispatcher::LISTEN_AGAIN;
        loop {
            let since = Instant::now();
            let request = Outgoing {
                cancel: cancel_on(&wire),
                listen: true,
                ..dressed("subscriptions/listen", params.clone(), None)
            };
            // The acknowledgment and the news that follow it are the ear's business.
            match self.read(wire.exchange(request).await) {
                Ok(Answer { outcome: Outcome::Error(error), .. }) => {
                    tracing::debug!(error = error_text(&error), "no news of changes");
                    if error_code(&error) == Some(jsonrpc::code::METHOD_NOT_FOUND) {
                        ear.listening();
                        return None;
                    }
                }
                Ok(_) => tracing::debug!("the subscription has ended"),
                Err(Failure::Stale(reason)) => return Some(reason),
                Err(failure) => tracing::debug!(?failure, "the subscription broke"),
            }
            pause = dispatcher::next_pause(pause, since);
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends the conversation.
    pub(crate) async fn end(&self, _wire: &Wire) {}
}

/// How a request is cancelled on this wire (spec 2026-07-28, cancellation).
fn cancel_on(wire: &Wire) -> Cancel {
    match wire {
        // The pair is of the legacy era; were it not, all requests would share one stream, as here.
        Wire::Stdio(_) | Wire::Sse(_) => Cancel::Notify,
        Wire::Http(_) => Cancel::HangUp,
    }
}

/// A request with its context, in the body and repeated in the headers. `None` is Weir itself.
fn dressed(method: &'static str, params: Object, caller: Option<&Caller>) -> Outgoing {
    let info = caller.and_then(|caller| caller.info.clone());
    let capabilities = caller.map_or(Bytes::from_static(capabilities::OWN.as_bytes()), declared);
    dressed_declaring(method, params, info, capabilities)
}

/// The same for who declares these capabilities.
fn dressed_declaring(
    method: &'static str,
    mut params: Object,
    info: Option<Bytes>,
    capabilities: Bytes,
) -> Outgoing {
    let mut context = params.get_object("_meta").unwrap_or_default();
    context.set(meta::PROTOCOL_VERSION, QUOTED);
    context.set(meta::CLIENT_INFO, info.unwrap_or_else(crate::upstream::client_info));
    context.set(meta::CLIENT_CAPABILITIES, capabilities);
    params.set("_meta", context.to_bytes());

    let mut headers = HeaderMap::with_capacity(USUAL_HEADERS);
    headers.insert(VERSION, HeaderValue::from_static(REVISION.as_str()));
    headers.insert(METHOD, HeaderValue::from_static(method));
    Outgoing::new(method, params, headers)
}

/// Whether Weir looks for questions in the answer to a call: a modern client finds them itself, where they
/// may be.
pub(crate) fn reads(call: &Call) -> bool {
    call.caller.revision.era() == Era::Legacy || call.method == Method::Complete
}

/// What a caller declares in the words of this era: its own, or those for what its session declared.
fn declared(caller: &Caller) -> Bytes {
    match caller.revision.era() {
        Era::Modern => caller.capabilities.clone(),
        Era::Legacy => crate::upstream::declared_in(REVISION, caller),
    }
}

/// Makes the headers repeat these parameters' arguments, and nothing that is not among them.
fn repeat(mirror: &Mirror, params: &Object, headers: &mut HeaderMap) {
    for (name, value) in mirror.values(params) {
        match value.and_then(|value| value.to_header()) {
            Some(header) => _ = headers.insert(name, header),
            None => _ = headers.remove(name),
        }
    }
}

/// Repeats the request's subject in its header, from the message that is sent.
fn named(mut request: Outgoing, member: Option<&str>) -> Outgoing {
    let subject = member.and_then(|member| request.params.get_string(member));
    if let Some(subject) = subject {
        let value = header_value(&subject);
        request.headers.insert(NAME, value);
    }
    request
}

#[cfg(test)]
mod tests {
    use crate::upstream::session::modern::*;

    #[test]
    fn the_revision_is_the_same_as_text_and_as_json() {
        assert_eq!(json::quote(REVISION.as_str()), QUOTED);
    }

    #[test]
    fn the_revisions_that_a_server_names_decide() {
        let opening = |supported: &str| {
            let error =
                format!(r#"{{"code":-32022,"message":"m","data":{{"supported":{supported}}}}}"#);
            introduce(&jsonrpc::Outcome::Error(error.into()))
        };
        for handshake in [r#"["2025-11-25","2025-06-18"]"#, r#"["2025-03-26","2027-01-01"]"#] {
            assert!(matches!(opening(handshake), Opening::AnotherEra), "{handshake}");
        }
        for refused in ["[]", r#"["2027-01-01"]"#, "7"] {
            assert!(matches!(opening(refused), Opening::Refused(_)), "{refused}");
        }
        for mutual in [r#"["2026-07-28"]"#, r#"["2025-11-25","2026-07-28"]"#] {
            assert!(matches!(opening(mutual), Opening::Retry(_)), "{mutual}");
        }
    }
}
