//! Scripted upstreams: a server as data, and a handle to control it while it runs.
//!
//! A [`Script`] defines the server's revision and lists. The running [`Upstream`] answers lists,
//! gets, calls, reads and completions by itself; a test changes its lists, gives a method another
//! [`Answer`], or intercepts a method with [`Upstream::intercept`]. Violations of the protocol by
//! the client (a missing header, a duplicate id, an undeclared method) are recorded;
//! [`Upstream::violations`] returns them.
//!

mod call;
mod http;
mod script;
mod sse;
mod stdio;
mod updates;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_base::json::{self, Object};
use weir_mcp::jsonrpc::{self, Id, Request};
use weir_mcp::kind::{Kind, ListTopic};
use weir_mcp::meta;

use crate::cell::{Side, Transport};
use crate::judge::JudgedConversation;
pub(crate) use call::{Call, Cancelled};
use call::{Output, OutputSink};
pub(crate) use script::{Cursors, Probe, Replies, Script, definition, own_key};

/// Time on the paused clock in which a condition must become true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// Capacity of a queue: more than any test sends.
pub(crate) const QUEUE: usize = 4_096;

/// Answer to all further requests of a method.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// This `result`, byte for byte.
    Result(String),
    /// This `error`, byte for byte.
    Error(String),
    /// No answer at all.
    Silence,
    /// The connection ends.
    HangUp,
    /// This HTTP status.
    Status(u16),
    /// This HTTP status, with `Retry-After` in seconds.
    Later(u16, u64),
}

/// A request as received.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) params: Bytes,
    pub(crate) headers: hyper::HeaderMap,
}

/// A running script. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Upstream {
    script: Arc<Script>,
    state: Arc<Mutex<State>>,
    /// Event counter, which waiting tests watch.
    events: watch::Sender<u64>,
    tasks: TaskTracker,
    /// Judge of the received messages, if they are Weir's.
    conversation: Option<Arc<JudgedConversation>>,
}

struct State {
    lists: [Vec<String>; 4],
    answers: HashMap<String, Answer>,
    intercepted: HashMap<String, mpsc::Sender<Call>>,
    seen: Vec<ReceivedRequest>,
    request_headers: Vec<hyper::HeaderMap>,
    listeners: Vec<Listener>,
    /// Sinks of requests that are never answered.
    unanswered: Vec<OutputSink>,
    /// Intercepted requests by conversation and id, with the token that reports their cancellation.
    open: HashMap<(u64, Id), CancellationToken>,
    /// Used ids, by conversation.
    used: HashSet<(u64, Id)>,
    sessions: HashMap<String, u64>,
    /// Resources that legacy conversations have subscribed to.
    subscriptions: HashMap<u64, BTreeSet<String>>,
    /// The streams of the HTTP+SSE pair, by conversation.
    streams: HashMap<u64, OutputSink>,
    numbers: u64,
    /// Position in each list, of a server that keeps it itself.
    places: [usize; 4],
    /// Whether a cursor has been refused.
    has_refused: bool,
    /// Requests that were cancelled before they arrived, by conversation and id.
    early: HashSet<(u64, Id)>,
    /// Whether requests may get lost, or be overtaken, on their way.
    is_unreliable: bool,
    /// Processes that have received anything but an era probe, and the number of those that ended
    /// before.
    spoken_processes: HashSet<u64>,
    aborted_probes: usize,
    /// Whether the server announces a change after each list request.
    announces_after_lists: bool,
    /// Reasons of the cancellations.
    cancel_reasons: Vec<String>,
    /// Responses to the server's own requests.
    received_responses: Vec<String>,
    is_down: bool,
    /// Token that ends the connections and processes until a restart.
    lifetime: CancellationToken,
    violations: Vec<String>,
}

/// A stream for change notifications.
struct Listener {
    /// Conversation of the stream.
    of: u64,
    sink: OutputSink,
    /// Id and filter of the listen request; `None` in the legacy era.
    listen: Option<(Id, Object)>,
}

// === Control by a test ===

impl Upstream {
    pub(crate) fn start(script: Script, tasks: &TaskTracker) -> Self {
        let state = State {
            lists: script.lists.clone(),
            answers: HashMap::new(),
            intercepted: HashMap::new(),
            seen: Vec::new(),
            request_headers: Vec::new(),
            listeners: Vec::new(),
            unanswered: Vec::new(),
            open: HashMap::new(),
            used: HashSet::new(),
            sessions: HashMap::new(),
            subscriptions: HashMap::new(),
            streams: HashMap::new(),
            numbers: 0,
            places: [0; 4],
            has_refused: false,
            early: HashSet::new(),
            is_unreliable: false,
            spoken_processes: HashSet::new(),
            aborted_probes: 0,
            announces_after_lists: false,
            cancel_reasons: Vec::new(),
            received_responses: Vec::new(),
            is_down: script.starts_down,
            lifetime: CancellationToken::new(),
            violations: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let (script, events, tasks) = (script.into(), watch::Sender::new(0), tasks.clone());
        Self { script, state, events, tasks, conversation: None }
    }

    /// Adds a judge of the received messages.
    pub(crate) fn judged(self, conversation: Arc<JudgedConversation>) -> Self {
        Self { conversation: Some(conversation), ..self }
    }

    pub(crate) fn side(&self) -> Side {
        self.script.side
    }

    /// Adds an item to a list and announces the change.
    pub(crate) async fn add(&self, kind: Kind, name: &str) {
        self.change(kind, |list| list.push(definition(kind, name))).await;
    }

    pub(crate) async fn add_prompt(&self, name: &str) {
        self.add(Kind::Prompt, name).await;
    }

    /// Removes an item from a list and announces the change.
    pub(crate) async fn remove(&self, kind: Kind, name: &str) {
        let gone = definition(kind, name);
        self.change(kind, |list| list.retain(|item| *item != gone)).await;
    }

    /// Changes a list and announces it, once a client listens.
    pub(crate) async fn change(&self, kind: Kind, change: impl FnOnce(&mut Vec<String>)) {
        self.until_listener(kind.topic()).await;
        self.change_quietly(kind, change);
        self.announce(kind.topic());
    }

    /// Changes a list without a notification.
    pub(crate) fn change_quietly(&self, kind: Kind, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.lock().lists[kind.index()]);
    }

    /// Announces a change of a list, whether or not it has changed.
    pub(crate) fn announce(&self, topic: ListTopic) {
        let mut state = self.lock();
        state.listeners.retain(|listener| !listener.sink.is_closed());
        for listener in state.listeners.iter().filter(|listener| listener.covers(topic)) {
            listener.sink.send(Output::Note(listener.notification(topic)));
        }
    }

    /// Waits until a change of this topic would reach a subscriber.
    pub(crate) async fn until_listener(&self, topic: ListTopic) {
        let what = format!("somebody listens for {topic:?}");
        let received = |state: &State| {
            state
                .listeners
                .iter()
                .any(|listener| !listener.sink.is_closed() && listener.covers(topic))
        };
        self.until(&what, received).await;
    }

    /// Sets the answer of a method from now on.
    pub(crate) fn answer(&self, method: &str, answer: Answer) {
        self.lock().answers.insert(method.into(), answer);
    }

    /// Sets the result of a method from now on.
    pub(crate) fn result(&self, method: &str, result: &str) {
        self.answer(method, Answer::Result(result.into()));
    }

    /// Restores the usual answer of a method.
    pub(crate) fn reset_answer(&self, method: &str) {
        let mut state = self.lock();
        state.answers.remove(method);
        state.intercepted.remove(method);
    }

    /// Intercepts the requests of a method.
    pub(crate) fn intercept(&self, method: &str) -> InterceptedCalls {
        let (sender, calls) = mpsc::channel(QUEUE);
        self.lock().intercepted.insert(method.into(), sender);
        InterceptedCalls { calls }
    }

    /// Number of received requests of this method.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.lock().seen.iter().filter(|seen| seen.method == method).count()
    }

    /// Headers of all HTTP requests, those for streams, notifications and session ends included.
    pub(crate) fn request_headers(&self) -> Vec<hyper::HeaderMap> {
        self.lock().request_headers.clone()
    }

    /// Parameters of all received requests.
    pub(crate) fn parameters(&self) -> Vec<Bytes> {
        self.lock().seen.iter().map(|seen| seen.params.clone()).collect()
    }

    /// Number of all received requests.
    pub(crate) fn requests(&self) -> usize {
        self.lock().seen.len()
    }

    /// The latest request of this method.
    pub(crate) fn last(&self, method: &str) -> ReceivedRequest {
        let state = self.lock();
        let seen = state.seen.iter().rev().find(|seen| seen.method == method);
        seen.unwrap_or_else(|| panic!("no {method} has come")).clone()
    }

    /// Waits for this many requests of this method.
    pub(crate) async fn until_count(&self, method: &str, count: usize) {
        let what = format!("{count} times {method}");
        let come =
            |state: &State| state.seen.iter().filter(|seen| seen.method == method).count() >= count;
        self.until(&what, come).await;
    }

    /// Ends all connections and refuses new ones.
    pub(crate) fn go_down(&self) {
        let mut state = self.lock();
        state.is_down = true;
        state.end_lifetime();
    }

    /// Accepts connections again.
    pub(crate) fn come_up(&self) {
        self.lock().is_down = false;
    }

    /// Ends all connections and accepts new ones.
    pub(crate) fn restart(&self) {
        self.lock().end_lifetime();
    }

    /// Forgets all sessions: their requests get 404, and their streams end.
    pub(crate) fn forget_sessions(&self) {
        let mut state = self.lock();
        state.sessions.clear();
        state.subscriptions.clear();
        state.listeners.clear();
    }

    /// Announces a change after each list request from now on.
    pub(crate) fn announce_after_lists(&self) {
        self.lock().announces_after_lists = true;
    }

    /// Sends a message to all streams for change notifications.
    pub(crate) fn say(&self, message: &str) {
        if let Some(conversation) = &self.conversation {
            conversation.record_sent(message.as_bytes(), self.side().transport);
        }
        for listener in &self.lock().listeners {
            listener.sink.send(Output::Note(message.to_owned().into()));
        }
    }

    /// Responses to the server's own requests, once there are this many.
    pub(crate) async fn received_responses(&self, count: usize) -> Vec<String> {
        self.until("answers", |state| state.received_responses.len() >= count).await;
        self.lock().received_responses.clone()
    }

    /// Response to this request of the server, without a time limit.
    pub(crate) async fn response_to(&self, id: &str) -> String {
        let mut events = self.events.subscribe();
        let is_to = |answer: &&String| {
            let answer = Object::parse((*answer).clone()).ok();
            answer.is_some_and(|answer| answer.get_string("id").as_deref() == Some(id))
        };
        loop {
            if let Some(answer) = self.lock().received_responses.iter().find(is_to) {
                return answer.clone();
            }
            events.changed().await.expect("the sender is ours");
        }
    }

    /// Reasons of the cancellations so far.
    pub(crate) fn cancel_reasons(&self) -> Vec<String> {
        self.lock().cancel_reasons.clone()
    }

    /// All responses to the server's own requests.
    pub(crate) fn all_responses(&self) -> Vec<String> {
        self.lock().received_responses.clone()
    }

    /// From now on requests to the server may get lost or be overtaken.
    pub(crate) fn become_unreliable(&self) {
        self.lock().is_unreliable = true;
    }

    /// All violations of the protocol by the client.
    pub(crate) fn violations(&self) -> Vec<String> {
        let state = self.lock();
        let lost = state.early.iter().filter(|_| !state.is_unreliable);
        let lost = lost.map(|(_, id)| format!("the unknown request {id} was cancelled"));
        state.violations.iter().cloned().chain(lost).collect()
    }

    async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut events = self.events.subscribe();
        let come_true = async {
            while !condition(&self.lock()) {
                events.changed().await.expect("the sender is ours");
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, come_true).await;
        in_time.unwrap_or_else(|_| panic!("waited in vain until {what}; {:#?}", self.lock().seen));
    }
}

/// The intercepted requests of a method.
pub(crate) struct InterceptedCalls {
    calls: mpsc::Receiver<Call>,
}

impl InterceptedCalls {
    /// Waits for the next call.
    pub(crate) async fn next(&mut self) -> Call {
        let call = tokio::time::timeout(PATIENCE, self.calls.recv()).await;
        call.expect("a call in time").expect("the method is held")
    }

    /// Waits for the next call without a time limit; `None` when the interception has ended.
    pub(crate) async fn any(&mut self) -> Option<Call> {
        self.calls.recv().await
    }
}

// === Behaviour of its own ===

impl Upstream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection; returns its number and the token that ends it.
    fn connected(&self) -> io::Result<(u64, CancellationToken)> {
        let mut state = self.lock();
        if state.is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok((state.number(), state.lifetime.child_token()))
    }

    fn record_violation(&self, surprise: impl Into<String>) {
        self.lock().violations.push(surprise.into());
    }

    /// Has the judge check a received message.
    fn check_received(&self, message: &[u8]) {
        if let Some(conversation) = &self.conversation {
            conversation.check_received(message);
        }
    }

    /// Records the headers of an HTTP request.
    fn record_headers(&self, headers: &hyper::HeaderMap) {
        self.lock().request_headers.push(headers.clone());
    }

    /// Registers a stream for change notifications.
    fn add_listener(&self, listener: Listener) {
        self.lock().listeners.push(listener);
        self.record_event();
    }

    /// Records a response of the client.
    fn record_response(&self, answer: String) {
        if self.side().is_modern() {
            // Spec 2026-07-28, stdio: the client MUST NOT write responses.
            self.record_violation(format!("an answer to nothing: {answer}"));
        }
        self.lock().received_responses.push(answer);
        self.record_event();
    }

    fn record_event(&self) {
        self.events.send_modify(|count| *count += 1);
    }

    /// Handles a request of conversation `of` and sends the answer to `sink`.
    fn receive(&self, of: u64, request: Request, headers: hyper::HeaderMap, sink: OutputSink) {
        let Request { id, method, params, .. } = request;
        self.check(of, &id, &method, &params);
        let seen =
            ReceivedRequest { method: method.to_string(), params: params.to_bytes(), headers };
        let (answer, intercepted) = {
            let mut state = self.lock();
            state.seen.push(seen);
            (state.answers.get(&*method).cloned(), state.intercepted.get(&*method).cloned())
        };
        self.record_event();
        if let Some(intercepted) = intercepted {
            let cancelled = CancellationToken::new();
            let mut state = self.lock();
            if state.early.remove(&(of, id.clone())) {
                cancelled.cancel();
            }
            state.open.insert((of, id.clone()), cancelled.clone());
            drop(state);
            let call =
                Call { params, id, sink, cancelled, conversation: self.conversation.clone() };
            // If the test has ended the interception, dropping the call breaks it off.
            let _ = intercepted.try_send(call);
            return;
        }
        match answer.unwrap_or_else(|| self.usual_answer(of, &method, &id, &params, &sink)) {
            Answer::Result(result) => {
                sink.send(Output::Last(jsonrpc::write_result(&id, result.as_bytes())));
            }
            Answer::Error(error) => {
                sink.send(Output::Last(jsonrpc::write_error(Some(&id), error.as_bytes())));
            }
            Answer::Silence => self.lock().unanswered.push(sink),
            Answer::HangUp => sink.send(Output::HangUp),
            Answer::Status(status) => sink.send(Output::Status(status, None)),
            Answer::Later(status, seconds) => sink.send(Output::Status(status, Some(seconds))),
        }
    }

    /// Records violations of the protocol in a request.
    fn check(&self, of: u64, id: &Id, method: &str, params: &Object) {
        if !self.lock().used.insert((of, id.clone())) {
            self.record_violation(format!("id {id} came twice, the second time with {method}"));
        }
        let meta = params.get_object("_meta").unwrap_or_default();
        let version = meta.get_string(meta::PROTOCOL_VERSION);
        if self.script.side.is_modern() && method != "initialize" {
            if version.as_deref() != Some(self.script.side.revision.as_str()) {
                self.record_violation(format!("{method} speaks {version:?}"));
            }
            if !meta.has(meta::CLIENT_CAPABILITIES) {
                self.record_violation(format!("{method} without client capabilities"));
            }
        } else if version.is_some() && method != "server/discover" {
            self.record_violation(format!("{method} with modern _meta"));
        }
    }

    fn usual_answer(
        &self,
        of: u64,
        method: &str,
        id: &Id,
        params: &Object,
        sink: &OutputSink,
    ) -> Answer {
        let script = &self.script;
        let modern = script.side.is_modern();
        if let Some(kind) = Kind::of_list_method(method) {
            return self.page(kind, params);
        }
        match method {
            "server/discover" if modern => Answer::Result(format!(
                r#"{{"resultType":"complete","supportedVersions":["{}"],"capabilities":{},{}"ttlMs":{},"cacheScope":"public"}}"#,
                script.side.revision,
                script.capabilities,
                script.instructions_member(),
                script.ttl_ms
            )),
            "server/discover" => match script.probe {
                Probe::Silent => Answer::Silence,
                Probe::Error(code) => error(code, "what is that?"),
                Probe::Exit => Answer::HangUp,
                Probe::Status(status) => Answer::Status(status),
            },
            "initialize" if !modern => Answer::Result(format!(
                r#"{{"protocolVersion":"{}","capabilities":{},{}"serverInfo":{{"name":"scripted","version":"1"}}}}"#,
                script.side.revision,
                script.capabilities,
                script.instructions_member()
            )),
            // A client that saw a process end on the era probe may take it for a legacy server, and
            // some do.
            "initialize" if self.lock().take_aborted_probe() => {
                error(jsonrpc::code::METHOD_NOT_FOUND, "unknown method")
            }
            "ping" if !modern => Answer::Result("{}".into()),
            "logging/setLevel" if !modern => Answer::Result("{}".into()),
            "subscriptions/listen" if modern => {
                let filter = params.get_object("notifications").unwrap_or_default();
                let listener =
                    Listener { of, sink: sink.clone(), listen: Some((id.clone(), filter)) };
                listener.sink.send(Output::Note(listener.acknowledgment()));
                self.add_listener(listener);
                Answer::Silence
            }
            "resources/subscribe" | "resources/unsubscribe"
                if !modern && script.capabilities.contains("subscribe") =>
            {
                self.change_subscriptions(of, method, params)
            }
            "prompts/get" => self.complete(r#""messages":[]"#),
            "tools/call" => self.complete(r#""content":[]"#),
            "resources/read" if modern => {
                self.complete(r#""contents":[],"ttlMs":0,"cacheScope":"private""#)
            }
            "resources/read" => self.complete(r#""contents":[]"#),
            "completion/complete" => self.complete(r#""completion":{"values":[]}"#),
            _ => {
                self.record_violation(format!("unknown method {method}"));
                error(jsonrpc::code::METHOD_NOT_FOUND, "unknown method")
            }
        }
    }

    /// A result with these members, in the form of the script's era.
    fn complete(&self, members: &str) -> Answer {
        let result_type = if self.side().is_modern() { r#""resultType":"complete","# } else { "" };
        Answer::Result(format!("{{{result_type}{members}}}"))
    }

    fn page(&self, kind: Kind, params: &Object) -> Answer {
        let cursor = params.get_string("cursor");
        let mut state = self.lock();
        let place = match (&self.script.cursors, cursor.as_deref()) {
            (Cursors::Circle, _) | (_, None) => Some(0),
            (Cursors::Same(text), Some(cursor)) => {
                (*text == cursor).then_some(state.places[kind.index()])
            }
            (Cursors::Odd(text), Some(cursor)) => {
                cursor.strip_prefix(text).and_then(|place| place.parse().ok())
            }
            (Cursors::Refused, Some(_)) if !std::mem::replace(&mut state.has_refused, true) => None,
            (Cursors::Refused | Cursors::Offsets | Cursors::Endless, Some(cursor)) => {
                cursor.parse().ok()
            }
        };
        let Some(start) = place else {
            return error(jsonrpc::code::INVALID_PARAMS, "unknown cursor");
        };
        let list = &mut state.lists[kind.index()];
        if self.script.cursors == Cursors::Endless {
            list.push(definition(kind, &format!("n{}", list.len())));
        }
        let end = (start + self.script.page_size).min(list.len());
        let items = list.get(start..end).unwrap_or_default().join(",");
        let goes_on = end < list.len();
        state.places[kind.index()] = end;
        let next = match self.script.cursors {
            Cursors::Circle | Cursors::Endless => Some(end.to_string()),
            Cursors::Same(text) => goes_on.then(|| text.to_owned()),
            Cursors::Odd(text) => goes_on.then(|| format!("{text}{end}")),
            Cursors::Offsets | Cursors::Refused => goes_on.then(|| end.to_string()),
        };
        let announces_after_lists = state.announces_after_lists;
        drop(state);
        let mut members = format!(r#""{}":[{items}]"#, kind.list_member());
        if let Some(next) = next {
            members += &format!(r#","nextCursor":{}"#, quoted(&next));
        }
        if self.side().is_modern() {
            let Script { ttl_ms, cache_scope, .. } = &*self.script;
            members += &format!(r#","ttlMs":{ttl_ms},"cacheScope":"{cache_scope}""#);
        }
        if announces_after_lists {
            self.announce(kind.topic());
        }
        self.complete(&members)
    }

    /// Handles the cancellation of a request by a notification.
    fn cancelled(&self, of: u64, params: &Object) {
        let mut state = self.lock();
        let Some(id) = params.get_bytes("requestId").and_then(Id::parse) else {
            return state.violations.push("a cancellation without an id".into());
        };
        if !state.used.contains(&(of, id.clone())) {
            match self.side().transport {
                // Messages on one pipe arrive in order.
                Transport::Stdio => {
                    state.violations.push(format!("the unknown request {id} was cancelled"));
                }
                // A cancellation on another connection may overtake its request.
                Transport::Http | Transport::Sse => drop(state.early.insert((of, id.clone()))),
            }
        }
        state.listeners.retain(|listener| {
            listener.of != of || listener.listen.as_ref().is_none_or(|(listen, _)| *listen != id)
        });
        if let Some(call) = state.open.remove(&(of, id)) {
            call.cancel();
        }
        state.cancel_reasons.extend(params.get_string("reason").map(Into::into));
        drop(state);
        self.record_event();
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether a process has ended before anything but an era probe arrived; each one counts once.
    fn take_aborted_probe(&mut self) -> bool {
        let is_cut = self.aborted_probes > 0;
        self.aborted_probes = self.aborted_probes.saturating_sub(1);
        is_cut
    }

    fn end_lifetime(&mut self) {
        std::mem::take(&mut self.lifetime).cancel();
        self.listeners.clear();
        self.unanswered.clear();
        self.sessions.clear();
        self.subscriptions.clear();
        self.streams.clear();
    }
}

impl Listener {
    fn covers(&self, topic: ListTopic) -> bool {
        let filter = self.listen.as_ref().map(|(_, filter)| filter);
        filter.is_none_or(|filter| filter.get(topic.filter_member()) == Some("true"))
    }

    fn notification(&self, topic: ListTopic) -> Bytes {
        let mut params = Object::new();
        if let Some((id, _)) = &self.listen {
            params.set("_meta", subscription(id));
        }
        jsonrpc::write_notification(topic.notification(), &params.to_bytes())
    }

    fn acknowledgment(&self) -> Bytes {
        let (id, filter) = self.listen.as_ref().expect("only a listen is acknowledged");
        let mut params = Object::new();
        params.set("_meta", subscription(id));
        params.set("notifications", filter.to_bytes());
        jsonrpc::write_notification("notifications/subscriptions/acknowledged", &params.to_bytes())
    }
}

fn subscription(id: &Id) -> Bytes {
    let mut meta = Object::new();
    meta.set(meta::SUBSCRIPTION_ID, id.as_bytes().clone());
    meta.to_bytes()
}

fn error(code: i64, message: &str) -> Answer {
    Answer::Error(format!(r#"{{"code":{code},"message":{}}}"#, quoted(message)))
}

fn quoted(text: &str) -> String {
    String::from_utf8_lossy(&json::quote(text)).into_owned()
}
