//! Whether what Weir sends is what the specification's own schema allows.
//!
//! A [`Judge`] belongs to a world, a [`Talk`] to one partner of Weir's: it hears what the partner says, to
//! know what an answer answers, and checks what Weir says. The envelope is judged by the revision that is
//! spoken there, and so is everything that Weir makes; what it only carries, by the revision of the server
//! that made it. The world fails at its end with every frame that was not as it should be.
//!
//! Knows nothing of: wires, and how messages are cut from them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weir::mcp::meta;
use weir::mcp::revision::{Era, Revision};

use crate::cell::{Side, Wire};
use crate::schema::{Schema, Sender, assert_prepared};

/// The judge of one world. Dropped, it speaks.
pub(crate) struct Judge {
    /// What the servers speak, by the name of their upstream.
    servers: BTreeMap<String, Revision>,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    violations: Vec<String>,
    /// What the clients speak.
    clients: BTreeSet<Revision>,
    /// Each text that excuses a frame, and whether it had to.
    excuses: BTreeMap<String, bool>,
}

/// What is said between Weir and one partner.
pub(crate) struct Talk {
    judge: Arc<Judge>,
    side: Side,
    /// What Weir is towards this partner.
    weir: Sender,
    state: Mutex<State>,
}

struct State {
    /// What the partner has asked, by id.
    asked: HashMap<String, Asked>,
    /// The revision that a handshake has settled.
    settled: Revision,
    /// Every revision that the partner has spoken.
    spoken: BTreeSet<Revision>,
}

#[derive(Debug, Clone)]
struct Asked {
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

    /// What will be said between Weir and a client.
    pub(crate) fn client(self: &Arc<Self>, side: Side) -> Arc<Talk> {
        self.lock().clients.insert(side.revision);
        self.talk(side, Sender::Server)
    }

    /// What will be said between Weir and an upstream.
    pub(crate) fn upstream(self: &Arc<Self>, side: Side) -> Arc<Talk> {
        self.talk(side, Sender::Client)
    }

    fn talk(self: &Arc<Self>, side: Side, weir: Sender) -> Arc<Talk> {
        let settled = if side.is_modern() { Revision::NEWEST_LEGACY } else { side.revision };
        let state = State { asked: HashMap::new(), settled, spoken: BTreeSet::new() };
        Arc::new(Talk { judge: Arc::clone(self), side, weir, state: Mutex::new(state) })
    }

    /// Lets a frame pass that carries this text, which a partner wrote against its own schema and which has
    /// to go on unread. An excuse that no frame needs is a violation itself.
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

    /// What was not as it should be.
    fn verdict(&self) -> Vec<String> {
        let record = self.lock();
        let unused = record.excuses.iter().filter(|(_, used)| !**used);
        let unused = unused.map(|(text, _)| format!("no frame had to be excused for {text}"));
        record.violations.iter().cloned().chain(unused).collect()
    }
}

/// Fails the test with what its judge found, at the end of the world.
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

impl Talk {
    /// The partner says something. What is no message asks nothing. Whatever it says of itself, a client
    /// of the HTTP+SSE pair is served as its handshake has settled: that wire has one era.
    pub(crate) fn said(&self, bytes: &[u8], wire: Wire) {
        let Ok(message) = parse(&String::from_utf8_lossy(bytes)) else { return };
        for message in messages(&message) {
            let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else {
                continue;
            };
            let params = &message["params"];
            let mut state = self.lock();
            let revision = match wire {
                Wire::Sse => state.settled,
                Wire::Http | Wire::Stdio => self.revision_of(method, params, &state),
            };
            state.spoken.insert(revision);
            let asked = Asked {
                method: method.to_owned(),
                revision,
                server: self.judge.server_of(params),
                as_task: params.get("task").is_some(),
            };
            state.asked.insert(id.to_string(), asked);
        }
    }

    /// Weir says something.
    pub(crate) fn heard(&self, bytes: &[u8]) {
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
            // Only the legacy era knows requests to a client.
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
            // A question's parameters are its asker's.
            Sender::Server => fits_one(&self.makers(None), revision, definition, message),
            // Each request is dressed for this upstream.
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
        let asked =
            message.get("id").and_then(|id| self.lock().asked.get(&id.to_string()).cloned());
        let revisions = match &asked {
            Some(asked) => BTreeSet::from([asked.revision]),
            None => self.spoken(),
        };
        if let Some(error) = message.get("error") {
            return any(revisions.iter().map(|revision| check_error(*revision, error, message)));
        }
        match asked {
            Some(asked) => self.check_result(&asked, message),
            None => Err(Complaint::Envelope("it answers what nobody asked".into())),
        }
    }

    fn check_result(&self, asked: &Asked, message: &Value) -> Result<(), Complaint> {
        let Asked { method, .. } = asked;
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
            _ => asked.revision,
        };
        let schema = Schema::of(revision);
        check_envelope(revision, message)?;
        if revision.era() == Era::Modern {
            match result["resultType"].as_str() {
                Some("complete") => {}
                Some("input_required") => {
                    return payload(schema.complaint("InputRequiredResult", result));
                }
                // An extension's; its shape stands elsewhere.
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
        // Whoever offers no tasks answers as if none had been asked for (spec 2025-11-25, tasks).
        if asked.as_task && result.get("task").is_some() {
            definition = "CreateTaskResult".into();
        }
        let makers = match is_carried(method) || self.weir == Sender::Client {
            true => self.makers(asked.server.as_deref()),
            false => BTreeSet::from([revision]),
        };
        fits_one(&makers, revision, &definition, result)
    }

    /// Who may have made a payload that Weir carries.
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

    /// The revision of a request: what it says itself, or what was settled.
    fn revision_of(&self, method: &str, params: &Value, state: &State) -> Revision {
        let inner = &params["_meta"];
        let says_so = inner.get(meta::PROTOCOL_VERSION).is_some()
            || inner.get(meta::CLIENT_CAPABILITIES).is_some()
            || matches!(method, "server/discover" | "subscriptions/listen");
        match method {
            "initialize" => {
                let asked = params["protocolVersion"].as_str().and_then(|asked| asked.parse().ok());
                let legacy = asked.filter(|asked: &Revision| asked.era() == Era::Legacy);
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

    /// The legacy revision that is spoken, if one is.
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
    /// The server whose prefix stands before an item's name.
    fn server_of(&self, params: &Value) -> Option<String> {
        let name = params["name"].as_str().or(params["ref"]["name"].as_str())?;
        let prefix = name.split_once("__")?.0;
        self.servers.contains_key(prefix).then(|| prefix.to_owned())
    }
}

/// Whose fault it would be: Weir's own part of a message, or what it may only be carrying.
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

/// Whether a value is what one of its possible makers may have made.
///
/// A maker that has no such thing has not made it; where none has, whoever speaks here did.
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

/// Whether an answer with a result is one at all.
fn check_envelope(revision: Revision, message: &Value) -> Result<(), Complaint> {
    let schema = Schema::of(revision);
    let definition = schema.first(&["JSONRPCResultResponse", "JSONRPCResponse"]);
    envelope(schema.complaint(definition, message))
}

/// Whether one of these is fine; else what the last one says.
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
        // The older schemas know no error without an id, their text on transports does.
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

/// A result with what the modern era writes into every result, which is not for clients of the other one.
fn as_it_came(result: &Value) -> Value {
    let mut result = result.clone();
    if let Some(members) = result.as_object_mut() {
        members.entry("resultType").or_insert("complete".into());
        members.entry("ttlMs").or_insert(0.into());
        members.entry("cacheScope").or_insert("private".into());
    }
    result
}

/// Whether the server made the result, and Weir only hands it on.
fn is_carried(method: &str) -> bool {
    matches!(method, "prompts/get" | "tools/call" | "resources/read" | "completion/complete")
        || method.starts_with("tasks/") && method != "tasks/list"
}

/// The modern tasks are an extension with a schema of its own, which is not the revision's.
fn is_of_an_extension(revision: Revision, method: &str) -> bool {
    let methods = ["tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"];
    revision.era() == Era::Modern && methods.contains(&method)
}

/// Tests like to send 1e400, which is a number in JSON but none to this parser.
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

    const OLDEST: Side = Side::new(Revision::V2024_11_05, Wire::Stdio);
    const MODERN_META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

    fn answer(result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)
    }

    /// What the judge says of one message of Weir's, after one of its partner's.
    fn judged(weir: Sender, side: Side, said: &str, heard: &str) -> Vec<String> {
        let judge = Judge::new(BTreeMap::from([
            ("old".to_owned(), Revision::V2024_11_05),
            ("new".to_owned(), Revision::NEWEST),
        ]));
        let talk = judge.talk(side, weir);
        talk.said(said.as_bytes(), side.wire);
        talk.heard(heard.as_bytes());
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
        for (side, said, heard, expected) in [
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
            // What was made by an older server is judged by its revision, which knows no audio.
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
            let found = judged(Sender::Server, side, &said, &heard);
            match expected {
                "" => assert_eq!(found, Vec::<String>::new(), "{side}: {heard}"),
                _ => assert!(found.len() == 1 && found[0].contains(expected), "{heard}: {found:?}"),
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
        for (side, said, heard, expected) in [
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
            let found = judged(Sender::Client, side, said, &heard);
            match expected {
                "" => assert_eq!(found, Vec::<String>::new(), "{side}: {heard}"),
                _ => assert!(found.len() == 1 && found[0].contains(expected), "{heard}: {found:?}"),
            }
        }
    }

    #[test]
    fn an_excuse_covers_a_payload_that_carries_its_text_and_has_to_be_needed() {
        let judge = Judge::new(BTreeMap::new());
        let talk = judge.client(LEGACY_HTTP);
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#;
        talk.said(list.as_bytes(), Wire::Http);
        judge.excuse(r#""odd":7"#);
        judge.excuse("never");
        talk.heard(answer(r#"{"prompts":[{"odd":7}]}"#).as_bytes());
        assert_eq!(judge.verdict(), ["no frame had to be excused for never"]);
        // Not what Weir itself writes around it.
        talk.heard(br#"{"id":1,"result":{"odd":7}}"#);
        assert_eq!(judge.verdict().len(), 2);
    }
}
