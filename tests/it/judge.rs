//! Judge of Weir's messages by the official JSON schemas of the specification.
//!
//! A [`Judge`] belongs to a world, a [`JudgedConversation`] to one partner of Weir: it records the
//! partner's requests, to know which one a response answers, and checks Weir's messages. The
//! revision that is spoken on the connection applies to the envelope and to everything that Weir
//! creates; to forwarded payloads the revision of the server that created them applies. The world
//! fails at its end with every violation.
//!

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weir_mcp::meta;
use weir_mcp::revision::{Era, Revision};

use crate::cell::{Side, Transport};
use crate::schema::{Schema, Sender, assert_prepared};

/// Judge of one world; it reports the violations when it is dropped.
pub(crate) struct Judge {
    /// Revision of each server, by the name of its upstream.
    servers: BTreeMap<String, Revision>,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    violations: Vec<String>,
    /// Revisions of the clients.
    clients: BTreeSet<Revision>,
    /// Each text that excuses a frame, and whether a frame needed it.
    excuses: BTreeMap<String, bool>,
}

/// Conversation between Weir and one partner.
pub(crate) struct JudgedConversation {
    judge: Arc<Judge>,
    side: Side,
    /// Weir's part in this conversation.
    weir: Sender,
    state: Mutex<State>,
}

struct State {
    /// Requests of the partner, by id.
    requested: HashMap<String, PartnerRequest>,
    /// The revision that a handshake has negotiated.
    settled: Revision,
    /// All revisions that the partner has used.
    spoken: BTreeSet<Revision>,
}

#[derive(Debug, Clone)]
struct PartnerRequest {
    method: String,
    revision: Revision,
    /// The server that the named item belongs to, where its name says so.
    server: Option<String>,
    as_task: bool,
}

impl Judge {
    pub(crate) fn new(servers: BTreeMap<String, Revision>) -> Arc<Self> {
        assert_prepared();
        Arc::new(Self { servers, record: Mutex::default() })
    }

    /// Starts the conversation with a client.
    pub(crate) fn client(self: &Arc<Self>, side: Side) -> Arc<JudgedConversation> {
        self.lock().clients.insert(side.revision);
        self.conversation(side, Sender::Server)
    }

    /// Starts the conversation with an upstream.
    pub(crate) fn upstream(self: &Arc<Self>, side: Side) -> Arc<JudgedConversation> {
        self.conversation(side, Sender::Client)
    }

    fn conversation(self: &Arc<Self>, side: Side, weir: Sender) -> Arc<JudgedConversation> {
        let settled = if side.is_modern() { Revision::NEWEST_LEGACY } else { side.revision };
        let state = State { requested: HashMap::new(), settled, spoken: BTreeSet::new() };
        Arc::new(JudgedConversation {
            judge: Arc::clone(self),
            side,
            weir,
            state: Mutex::new(state),
        })
    }

    /// Excuses the frames with this text, which a partner wrote against its own schema and which
    /// Weir has to forward unread. An excuse that no frame needs is a violation itself.
    pub(crate) fn excuse(&self, text: &str) {
        self.lock().excuses.entry(text.to_owned()).or_insert(false);
    }

    fn is_excused(&self, frame: &str) -> bool {
        let mut record = self.lock();
        let excuses = record.excuses.iter_mut().filter(|(text, _)| frame.contains(*text));
        excuses.map(|(_, used)| *used = true).count() > 0
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All violations.
    fn verdict(&self) -> Vec<String> {
        let record = self.lock();
        let unused = record.excuses.iter().filter(|(_, used)| !**used);
        let unused = unused.map(|(text, _)| format!("no frame had to be excused for {text}"));
        record.violations.iter().cloned().chain(unused).collect()
    }
}

/// Fails the test with the judge's violations, at the end of the world.
pub(crate) struct Verdict(pub(crate) Arc<Judge>);

impl Drop for Verdict {
    fn drop(&mut self) {
        let violations = self.0.verdict();
        if std::thread::panicking() {
            for violation in violations {
                eprintln!("besides: {violation}");
            }
        } else {
            assert!(violations.is_empty(), "against the schema:\n{}", violations.join("\n\n"));
        }
    }
}

impl JudgedConversation {
    /// Records a message of the partner; bytes that are no message are ignored. On HTTP+SSE the
    /// negotiated revision applies whatever the message declares: that transport has one era.
    pub(crate) fn record_sent(&self, bytes: &[u8], transport: Transport) {
        let Ok(message) = parse(&String::from_utf8_lossy(bytes)) else { return };
        for message in messages(&message) {
            let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else {
                continue;
            };
            let params = &message["params"];
            let mut state = self.lock();
            let revision = match transport {
                Transport::Sse => state.settled,
                Transport::Http | Transport::Stdio => self.revision_of(method, params, &state),
            };
            state.spoken.insert(revision);
            let requested = PartnerRequest {
                method: method.to_owned(),
                revision,
                server: self.judge.server_of(params),
                as_task: params.get("task").is_some(),
            };
            state.requested.insert(id.to_string(), requested);
        }
    }

    /// Checks a message of Weir.
    pub(crate) fn check_received(&self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let found = match parse(&text) {
            Ok(Value::Array(batch)) if self.takes_batches() && !batch.is_empty() => {
                batch.iter().try_for_each(|message| self.check(message))
            }
            Ok(Value::Array(_)) => {
                Err(Complaint::Envelope("this revision has no such batch".into()))
            }
            Ok(message) => self.check(&message),
            Err(error) => Err(Complaint::Payload(format!("not JSON: {error}"))),
        };
        let complaint = match found {
            Ok(()) => return,
            Err(Complaint::Payload(_)) if self.judge.is_excused(&text) => return,
            Err(Complaint::Payload(complaint) | Complaint::Envelope(complaint)) => complaint,
        };
        let to = match self.weir {
            Sender::Server => "a client",
            Sender::Client => "an upstream",
        };
        let shown: String = text.chars().take(2_000).collect();
        let violation = format!("to {to} of {}: {complaint}\n  {shown}", self.side);
        self.judge.lock().violations.push(violation);
    }

    fn check(&self, message: &Value) -> Result<(), Complaint> {
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(_)) => self.check_request(method, message),
            (Some(method), None) => self.check_notification(method, message),
            (None, _) => self.check_answer(message),
        }
    }

    fn check_request(&self, method: &str, message: &Value) -> Result<(), Complaint> {
        let revision = match self.weir {
            // Only the legacy era has requests to a client.
            Sender::Server => self.legacy().unwrap_or(self.side.revision),
            Sender::Client => self.revision_of(method, &message["params"], &self.lock()),
        };
        let schema = Schema::of(revision);
        envelope(schema.complaint("JSONRPCRequest", message))?;
        if is_of_an_extension(revision, method) {
            return Ok(());
        }
        let definition = schema.request(self.weir, method).ok_or_else(|| {
            Complaint::Envelope(format!("{revision} has no such request in this direction"))
        })?;
        match self.weir {
            // The parameters of an input request are written by the upstream.
            Sender::Server => fits_one(&self.makers(None), revision, definition, message),
            // Weir writes each request for this upstream.
            Sender::Client => payload(schema.complaint(definition, message)),
        }
    }

    fn check_notification(&self, method: &str, message: &Value) -> Result<(), Complaint> {
        let fits = |revision: &Revision| {
            let schema = Schema::of(*revision);
            envelope(schema.complaint("JSONRPCNotification", message))?;
            if is_of_an_extension(*revision, method) {
                return Ok(());
            }
            let Some(definition) = schema.notification(self.weir, method) else {
                let complaint = format!("{revision} has no such notification here");
                return Err(Complaint::Envelope(complaint));
            };
            payload(schema.complaint(definition, message))
        };
        // One stream may carry both eras.
        any(self.spoken().iter().map(fits))
    }

    fn check_answer(&self, message: &Value) -> Result<(), Complaint> {
        let requested =
            message.get("id").and_then(|id| self.lock().requested.get(&id.to_string()).cloned());
        let revisions = match &requested {
            Some(requested) => BTreeSet::from([requested.revision]),
            None => self.spoken(),
        };
        if let Some(error) = message.get("error") {
            return any(revisions.iter().map(|revision| check_error(*revision, error, message)));
        }
        match requested {
            Some(requested) => self.check_result(&requested, message),
            None => Err(Complaint::Envelope("it answers what nobody asked".into())),
        }
    }

    fn check_result(&self, requested: &PartnerRequest, message: &Value) -> Result<(), Complaint> {
        let PartnerRequest { method, .. } = requested;
        let result = &message["result"];
        let revision = match result["protocolVersion"].as_str() {
            Some(negotiated) if method == "initialize" => {
                let revision = negotiated.parse::<Revision>().map_err(|_| {
                    Complaint::Envelope(format!("{negotiated} is no revision of the protocol"))
                })?;
                let mut state = self.lock();
                state.settled = revision;
                state.spoken =
                    state.spoken.iter().copied().filter(|is| is.era() == Era::Modern).collect();
                state.spoken.insert(revision);
                revision
            }
            _ => requested.revision,
        };
        let schema = Schema::of(revision);
        check_envelope(revision, message)?;
        if revision.era() == Era::Modern {
            match result["resultType"].as_str() {
                Some("complete") => {}
                Some("input_required") => {
                    return payload(schema.complaint("InputRequiredResult", result));
                }
                // The result type belongs to an extension, which has another schema.
                _ => return Ok(()),
            }
            if method == "resources/read" {
                envelope(schema.complaint("CacheableResult", result))?;
            }
        }
        let partner = match self.weir {
            Sender::Server => Sender::Client,
            Sender::Client => Sender::Server,
        };
        let Some(mut definition) = schema.result(partner, method) else {
            return match is_of_an_extension(revision, method) {
                true => Ok(()),
                false => Err(Complaint::Envelope(format!("{revision} has no {method} to answer"))),
            };
        };
        // A partner without the tasks capability ignores a request for a task (spec 2025-11-25,
        // tasks).
        if requested.as_task && result.get("task").is_some() {
            definition = "CreateTaskResult".into();
        }
        let makers = match is_carried(method) || self.weir == Sender::Client {
            true => self.makers(requested.server.as_deref()),
            false => BTreeSet::from([revision]),
        };
        fits_one(&makers, revision, &definition, result)
    }

    /// Revisions of those that may have written a payload that Weir forwards.
    fn makers(&self, server: Option<&str>) -> BTreeSet<Revision> {
        if self.weir == Sender::Client {
            let mut clients = self.judge.lock().clients.clone();
            clients.insert(self.side.revision);
            return clients;
        }
        let servers = &self.judge.servers;
        match server.and_then(|name| servers.get(name)) {
            Some(revision) => BTreeSet::from([*revision]),
            None => servers.values().copied().chain(self.spoken()).collect(),
        }
    }

    /// Revision of a request: the declared one, or the negotiated one.
    fn revision_of(&self, method: &str, params: &Value, state: &State) -> Revision {
        let inner = &params["_meta"];
        let says_so = inner.get(meta::PROTOCOL_VERSION).is_some()
            || inner.get(meta::CLIENT_CAPABILITIES).is_some()
            || matches!(method, "server/discover" | "subscriptions/listen");
        match method {
            "initialize" => {
                let requested =
                    params["protocolVersion"].as_str().and_then(|requested| requested.parse().ok());
                let legacy =
                    requested.filter(|requested: &Revision| requested.era() == Era::Legacy);
                legacy.unwrap_or(state.settled)
            }
            _ if says_so => Revision::NEWEST,
            _ if self.weir == Sender::Client => self.side.revision,
            _ => state.settled,
        }
    }

    fn spoken(&self) -> BTreeSet<Revision> {
        let spoken = self.lock().spoken.clone();
        match self.weir == Sender::Client || spoken.is_empty() {
            true => BTreeSet::from([self.side.revision]),
            false => spoken,
        }
    }

    /// The legacy revision in use, if there is one.
    fn legacy(&self) -> Option<Revision> {
        self.spoken().into_iter().rfind(|revision| revision.era() == Era::Legacy)
    }

    fn takes_batches(&self) -> bool {
        self.spoken().contains(&Revision::V2025_03_26)
            || self.spoken().contains(&Revision::V2024_11_05)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Judge {
    /// The server whose prefix an item's name has.
    fn server_of(&self, params: &Value) -> Option<String> {
        let name = params["name"].as_str().or(params["ref"]["name"].as_str())?;
        let prefix = name.split_once("__")?.0;
        self.servers.contains_key(prefix).then(|| prefix.to_owned())
    }
}

/// Part of a message that is at fault: Weir's own envelope, or a payload that Weir may only
/// forward.
#[derive(Debug)]
enum Complaint {
    Envelope(String),
    Payload(String),
}

fn envelope(complaint: Option<String>) -> Result<(), Complaint> {
    complaint.map_or(Ok(()), |complaint| Err(Complaint::Envelope(complaint)))
}

fn payload(complaint: Option<String>) -> Result<(), Complaint> {
    complaint.map_or(Ok(()), |complaint| Err(Complaint::Payload(complaint)))
}

/// Whether a value is valid for one of its possible makers.
///
/// A maker whose revision lacks the definition is skipped; if all lack it, the connection's
/// revision applies.
fn fits_one(
    makers: &BTreeSet<Revision>,
    spoken: Revision,
    definition: &str,
    value: &Value,
) -> Result<(), Complaint> {
    let check = |revision: &Revision| {
        let schema = Schema::of(*revision);
        match (spoken.era(), revision.era()) {
            (Era::Legacy, Era::Modern) => payload(schema.complaint(definition, &as_it_came(value))),
            _ => payload(schema.complaint(definition, value)),
        }
    };
    let mut able = makers.iter().filter(|maker| Schema::of(**maker).has(definition)).peekable();
    match able.peek() {
        Some(_) => any(able.map(check)),
        None => check(&spoken),
    }
}

/// Checks that a response with a result is a valid envelope.
fn check_envelope(revision: Revision, message: &Value) -> Result<(), Complaint> {
    let schema = Schema::of(revision);
    let definition = schema.first(&["JSONRPCResultResponse", "JSONRPCResponse"]);
    envelope(schema.complaint(definition, message))
}

/// Returns `Ok` if one of the checks passes, else the last complaint.
fn any(checks: impl Iterator<Item = Result<(), Complaint>>) -> Result<(), Complaint> {
    let mut last = Ok(());
    for check in checks {
        last = check;
        if last.is_ok() {
            break;
        }
    }
    last
}

fn check_error(revision: Revision, error: &Value, message: &Value) -> Result<(), Complaint> {
    let schema = Schema::of(revision);
    let definition = schema.first(&["JSONRPCErrorResponse", "JSONRPCError"]);
    let mut answer = message.clone();
    if let (None, "JSONRPCError", Some(answer)) =
        (message.get("id"), definition, answer.as_object_mut())
    {
        // The older schemas have no error without an id, but their text on transports has.
        answer.insert("id".into(), 0.into());
    }
    envelope(schema.complaint(definition, &answer))?;
    let own = match error["code"].as_i64() {
        Some(-32_020) => "HeaderMismatchError",
        Some(-32_021) => "MissingRequiredClientCapabilityError",
        Some(-32_022) => "UnsupportedProtocolVersionError",
        Some(-32_042) => "URLElicitationRequiredError",
        _ => return Ok(()),
    };
    match schema.has(own) {
        true => payload(schema.complaint(own, message)),
        false => Ok(()),
    }
}

/// The result without the members that the modern era adds to every result and other clients lack.
fn as_it_came(result: &Value) -> Value {
    let mut result = result.clone();
    if let Some(members) = result.as_object_mut() {
        members.entry("resultType").or_insert("complete".into());
        members.entry("ttlMs").or_insert(0.into());
        members.entry("cacheScope").or_insert("private".into());
    }
    result
}

/// Whether the server wrote the result and Weir only forwards it.
fn is_carried(method: &str) -> bool {
    matches!(method, "prompts/get" | "tools/call" | "resources/read" | "completion/complete")
        || method.starts_with("tasks/") && method != "tasks/list"
}

/// The modern tasks are an extension with a schema of its own, apart from the revision's.
fn is_of_an_extension(revision: Revision, method: &str) -> bool {
    let methods = ["tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"];
    revision.era() == Era::Modern && methods.contains(&method)
}

/// Parses JSON in which tests write 1e400: valid JSON, but out of this parser's range.
fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&text.replace("1e400", "1e40"))
}

fn messages(message: &Value) -> &[Value] {
    match message {
        Value::Array(batch) => batch,
        one => std::slice::from_ref(one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{LEGACY_HTTP, MODERN_HTTP, Side};

    const OLDEST: Side = Side::new(Revision::V2024_11_05, Transport::Stdio);
    const MODERN_META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    fn answer(result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
    }

    /// Violations of one message of Weir, after one message of its partner.
    fn judged(weir: Sender, side: Side, sent: &str, received: &str) -> Vec<String> {
        let judge = Judge::new(BTreeMap::from([
            ("old".to_owned(), Revision::V2024_11_05),
            ("new".to_owned(), Revision::NEWEST),
        ]));
        let conversation = judge.conversation(side, weir);
        conversation.record_sent(sent.as_bytes(), side.transport);
        conversation.check_received(received.as_bytes());
        judge.verdict()
    }

    #[test]
    fn what_a_client_must_not_get_is_told() {
        let ask = |method: &str, params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#)
        };
        let modern = |method: &str, params: &str| ask(method, &format!("{params}{MODERN_META}"));
        let (list, call) = (ask("prompts/list", ""), ask("tools/call", r#""name":"old__x""#));
        let (audio, call_new) = (
            answer(r#"{"content":[{"type":"audio","data":"","mimeType":"a/b"}]}"#),
            ask("tools/call", r#""name":"new__x""#),
        );
        for (side, sent, received, expected) in [
            (LEGACY_HTTP, list.clone(), answer(r#"{"prompts":[]}"#), ""),
            (LEGACY_HTTP, list.clone(), answer("{}"), "\"prompts\" is a required property"),
            (LEGACY_HTTP, list.clone(), answer(r#"{"prompts":[{}]}"#), "at '/prompts/0'"),
            (MODERN_HTTP, modern("prompts/list", ""), answer(r#"{"prompts":[]}"#), "resultType"),
            (
                MODERN_HTTP,
                modern("prompts/list", ""),
                answer(r#"{"prompts":[],"resultType":"complete"}"#),
                "cacheScope",
            ),
            // The revision of an older server, which has no audio, applies to its result.
            (LEGACY_HTTP, call_new, audio.clone(), ""),
            (LEGACY_HTTP, call.clone(), audio, "CallToolResult of 2024-11-05"),
            (LEGACY_HTTP, call, answer(r#"{"content":7}"#), "at '/content'"),
            (LEGACY_HTTP, list.clone(), r#"{"id":1,"result":{}}"#.into(), "\"jsonrpc\""),
            (LEGACY_HTTP, String::new(), answer("{}"), "nobody asked"),
            (LEGACY_HTTP, list.clone(), "nonsense".into(), "not JSON"),
            (
                LEGACY_HTTP,
                list.clone(),
                format!("[{}]", answer(r#"{"prompts":[]}"#)),
                "no such batch",
            ),
            (OLDEST, list.clone(), format!("[{}]", answer(r#"{"prompts":[]}"#)), ""),
            (
                LEGACY_HTTP,
                list.clone(),
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}"#.into(),
                "null is not of types",
            ),
            (OLDEST, list, r#"{"jsonrpc":"2.0","error":{"code":1,"message":""}}"#.into(), ""),
            (
                MODERN_HTTP,
                modern("tools/call", r#""name":"new__x","#),
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32021,"message":""}}"#.into(),
                "MissingRequiredClientCapabilityError",
            ),
            (LEGACY_HTTP, String::new(), ask("elicitation/create", ""), "ElicitRequest of"),
            (OLDEST, String::new(), ask("elicitation/create", ""), "no such request"),
            (MODERN_HTTP, String::new(), ask("ping", ""), "no such request"),
            (
                OLDEST,
                String::new(),
                r#"{"jsonrpc":"2.0","method":"notifications/tasks/status"}"#.into(),
                "no such notification",
            ),
        ] {
            let found = judged(Sender::Server, side, &sent, &received);
            match expected {
                "" => assert_eq!(found, Vec::<String>::new(), "{side}: {received}"),
                _ => assert!(
                    found.len() == 1 && found[0].contains(expected),
                    "{received}: {found:?}"
                ),
            }
        }
    }

    #[test]
    fn what_an_upstream_must_not_get_is_told() {
        let call = |params: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x"{params}}}}}"#
            )
        };
        let roots = r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#;
        for (side, sent, received, expected) in [
            (LEGACY_HTTP, "", call(""), ""),
            (MODERN_HTTP, "", call(&format!(",{MODERN_META}")), ""),
            (MODERN_HTTP, "", call(""), "_meta"),
            (LEGACY_HTTP, "", call(r#","arguments":[]"#), "at '/params/arguments'"),
            (LEGACY_HTTP, roots, answer(r#"{"roots":[]}"#), ""),
            (LEGACY_HTTP, roots, answer("{}"), "\"roots\" is a required property"),
            (LEGACY_HTTP, "", call("").replace("tools/call", "x/y"), "no such request"),
            (
                MODERN_HTTP,
                "",
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.into(),
                "no such notification",
            ),
        ] {
            let found = judged(Sender::Client, side, sent, &received);
            match expected {
                "" => assert_eq!(found, Vec::<String>::new(), "{side}: {received}"),
                _ => assert!(
                    found.len() == 1 && found[0].contains(expected),
                    "{received}: {found:?}"
                ),
            }
        }
    }

    #[test]
    fn an_excuse_covers_a_payload_that_carries_its_text_and_has_to_be_needed() {
        let judge = Judge::new(BTreeMap::new());
        let conversation = judge.client(LEGACY_HTTP);
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;
        conversation.record_sent(list.as_bytes(), Transport::Http);
        judge.excuse(r#""odd":7"#);
        judge.excuse("never");
        conversation.check_received(answer(r#"{"prompts":[{"odd":7}]}"#).as_bytes());
        assert_eq!(judge.verdict(), ["no frame had to be excused for never"]);
        // The excuse does not cover Weir's own envelope.
        conversation.check_received(br#"{"id":1,"result":{"odd":7}}"#);
        assert_eq!(judge.verdict().len(), 2);
    }
}
