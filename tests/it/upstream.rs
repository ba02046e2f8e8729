//! Scripted upstreams: a server as data, and a handle to play with it while it runs.
//!
//! A [`Script`] says what the server speaks and lists. The [`Upstream`] that it becomes answers lists,
//! gets, calls, reads and completions by itself; a test changes its lists, gives a method another
//! [`Answer`], or takes a method into its own hands with [`Upstream::hold`]. What a careful server
//! would object to in what it is sent (a missing header, an id that comes twice, a method that it never
//! declared) is noted, and [`Upstream::surprises`] tells.
//!
//! Knows nothing of: the house in front of it.

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
use weir::json::{self, Object};
use weir::jsonrpc::{self, Id, Request};
use weir::mcp::kind::{Kind, Topic};
use weir::mcp::meta;

use crate::cell::{Side, Wire};
use crate::judge::Talk;
pub(crate) use call::{Call, Cancelled};
use call::{Out, Sink};
pub(crate) use script::{Cursors, Probe, Replies, Script, definition, own_key};

/// How long, on the paused clock, a condition may take to come true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// How much may wait in a queue: more than any test sends.
pub(crate) const QUEUE: usize = 4_096;

/// What a method is answered with from now on.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// This `result`, byte for byte.
    Result(String),
    /// This `error`, byte for byte.
    Error(String),
    /// Nothing, ever.
    Silence,
    /// The connection ends.
    HangUp,
    /// This HTTP status.
    Status(u16),
    /// This HTTP status, with `Retry-After` in seconds.
    Later(u16, u64),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) params: Bytes,
    pub(crate) headers: hyper::HeaderMap,
}

/// A running script. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Upstream {
    script: Arc<Script>,
    state: Arc<Mutex<State>>,
    /// Counts what has happened, for whoever waits for something.
    moved: watch::Sender<u64>,
    tasks: TaskTracker,
    /// Who judges what comes, if that is Weir's.
    talk: Option<Arc<Talk>>,
}

struct State {
    lists: [Vec<String>; 4],
    answers: HashMap<String, Answer>,
    held: HashMap<String, mpsc::Sender<Call>>,
    seen: Vec<Seen>,
    heads: Vec<hyper::HeaderMap>,
    ears: Vec<Ear>,
    /// Sinks of requests that are never answered.
    hung: Vec<Sink>,
    /// Open requests by conversation and id, to be told when they are cancelled.
    open: HashMap<(u64, Id), CancellationToken>,
    /// Ids by conversation that have been used.
    used: HashSet<(u64, Id)>,
    sessions: HashMap<String, u64>,
    /// The resources that legacy conversations have subscribed to.
    subscriptions: HashMap<u64, BTreeSet<String>>,
    /// The streams of the HTTP+SSE pair, by conversation.
    streams: HashMap<u64, Sink>,
    numbers: u64,
    /// Where a server that remembers is in each list.
    places: [usize; 4],
    /// Whether a cursor has been refused.
    has_refused: bool,
    /// Requests that were cancelled before they came, by conversation and id.
    early: HashSet<(u64, Id)>,
    /// Whether requests may get lost, or be overtaken, on their way.
    is_far: bool,
    /// Processes in which something else than a question for the era has come, and how many ended without.
    talked: HashSet<u64>,
    cut_probes: usize,
    /// Whether each list is followed by the news that it has changed.
    is_restless: bool,
    /// What came back for questions of ours.
    answers_heard: Vec<String>,
    is_down: bool,
    /// Ends the connections and processes of this life.
    life: CancellationToken,
    surprises: Vec<String>,
}

/// A stream on which changes are announced.
struct Ear {
    /// The conversation that it belongs to.
    of: u64,
    sink: Sink,
    /// The listen request's id and filter; `None` in the legacy era.
    listen: Option<(Id, Object)>,
}

// === What a test does with it ===

impl Upstream {
    pub(crate) fn start(script: Script, tasks: &TaskTracker) -> Self {
        let state = State {
            lists: script.lists.clone(),
            answers: HashMap::new(),
            held: HashMap::new(),
            seen: Vec::new(),
            heads: Vec::new(),
            ears: Vec::new(),
            hung: Vec::new(),
            open: HashMap::new(),
            used: HashSet::new(),
            sessions: HashMap::new(),
            subscriptions: HashMap::new(),
            streams: HashMap::new(),
            numbers: 0,
            places: [0; 4],
            has_refused: false,
            early: HashSet::new(),
            is_far: false,
            talked: HashSet::new(),
            cut_probes: 0,
            is_restless: false,
            answers_heard: Vec::new(),
            is_down: script.starts_down,
            life: CancellationToken::new(),
            surprises: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let (script, moved, tasks) = (script.into(), watch::Sender::new(0), tasks.clone());
        Self { script, state, moved, tasks, talk: None }
    }

    /// The same, and what comes is judged.
    pub(crate) fn judged(self, talk: Arc<Talk>) -> Self {
        Self { talk: Some(talk), ..self }
    }

    pub(crate) fn side(&self) -> Side {
        self.script.side
    }

    /// Lists one more item and announces it.
    pub(crate) async fn add(&self, kind: Kind, name: &str) {
        self.change(kind, |list| list.push(definition(kind, name))).await;
    }

    pub(crate) async fn add_prompt(&self, name: &str) {
        self.add(Kind::Prompt, name).await;
    }

    /// Lists an item no longer and announces it.
    pub(crate) async fn remove(&self, kind: Kind, name: &str) {
        let gone = definition(kind, name);
        self.change(kind, |list| list.retain(|item| *item != gone)).await;
    }

    /// Changes a list and announces it, once somebody listens.
    pub(crate) async fn change(&self, kind: Kind, change: impl FnOnce(&mut Vec<String>)) {
        self.until_heard(kind.topic()).await;
        self.change_quietly(kind, change);
        self.announce(kind.topic());
    }

    /// Changes a list and tells nobody.
    pub(crate) fn change_quietly(&self, kind: Kind, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.lock().lists[kind.index()]);
    }

    /// Says that a list has changed, whether or not it has.
    pub(crate) fn announce(&self, topic: Topic) {
        let mut state = self.lock();
        state.ears.retain(|ear| !ear.sink.is_closed());
        for ear in state.ears.iter().filter(|ear| ear.hears(topic)) {
            ear.sink.send(Out::Note(ear.notification(topic)));
        }
    }

    /// Waits until a change of this topic would reach somebody.
    pub(crate) async fn until_heard(&self, topic: Topic) {
        let what = format!("somebody listens for {topic:?}");
        let heard =
            |state: &State| state.ears.iter().any(|ear| !ear.sink.is_closed() && ear.hears(topic));
        self.until(&what, heard).await;
    }

    /// Gives a method another answer, from now on.
    pub(crate) fn answer(&self, method: &str, answer: Answer) {
        self.lock().answers.insert(method.into(), answer);
    }

    /// Answers a method with this result, from now on.
    pub(crate) fn result(&self, method: &str, result: &str) {
        self.answer(method, Answer::Result(result.into()));
    }

    /// Lets a method be answered as at the start.
    pub(crate) fn behave(&self, method: &str) {
        let mut state = self.lock();
        state.answers.remove(method);
        state.held.remove(method);
    }

    /// Takes a method into the test's own hands.
    pub(crate) fn hold(&self, method: &str) -> Held {
        let (sender, calls) = mpsc::channel(QUEUE);
        self.lock().held.insert(method.into(), sender);
        Held { calls }
    }

    /// How many requests for this method have come.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.lock().seen.iter().filter(|seen| seen.method == method).count()
    }

    /// The headers of everything that has come over HTTP: streams, notifications and goodbyes, too.
    pub(crate) fn heads(&self) -> Vec<hyper::HeaderMap> {
        self.lock().heads.clone()
    }

    /// The parameters of every request that has come.
    pub(crate) fn parameters(&self) -> Vec<Bytes> {
        self.lock().seen.iter().map(|seen| seen.params.clone()).collect()
    }

    /// How many requests have come in all.
    pub(crate) fn requests(&self) -> usize {
        self.lock().seen.len()
    }

    /// The latest request for this method.
    pub(crate) fn last(&self, method: &str) -> Seen {
        let state = self.lock();
        let seen = state.seen.iter().rev().find(|seen| seen.method == method);
        seen.unwrap_or_else(|| panic!("no {method} has come")).clone()
    }

    /// Waits until so many requests for this method have come.
    pub(crate) async fn until_count(&self, method: &str, count: usize) {
        let what = format!("{count} times {method}");
        let come =
            |state: &State| state.seen.iter().filter(|seen| seen.method == method).count() >= count;
        self.until(&what, come).await;
    }

    /// Ends every connection and takes no new one.
    pub(crate) fn go_down(&self) {
        let mut state = self.lock();
        state.is_down = true;
        state.end_life();
    }

    /// Takes connections again.
    pub(crate) fn come_up(&self) {
        self.lock().is_down = false;
    }

    /// Ends every connection; new ones are welcome.
    pub(crate) fn restart(&self) {
        self.lock().end_life();
    }

    /// Forgets every session: whoever uses one gets 404, and its streams end.
    pub(crate) fn forget_sessions(&self) {
        let mut state = self.lock();
        state.sessions.clear();
        state.subscriptions.clear();
        state.ears.clear();
    }

    /// From now on each list is followed by the news that it has changed.
    pub(crate) fn be_restless(&self) {
        self.lock().is_restless = true;
    }

    /// Sends a message to everybody who listens.
    pub(crate) fn say(&self, message: &str) {
        if let Some(talk) = &self.talk {
            talk.said(message.as_bytes(), self.side().wire);
        }
        for ear in &self.lock().ears {
            ear.sink.send(Out::Note(message.to_owned().into()));
        }
    }

    /// What came back for questions of ours, once there are so many answers.
    pub(crate) async fn answers_heard(&self, count: usize) -> Vec<String> {
        self.until("answers", |state| state.answers_heard.len() >= count).await;
        self.lock().answers_heard.clone()
    }

    /// What comes back for this question of ours, however long it takes.
    pub(crate) async fn answer_to(&self, id: &str) -> String {
        let mut moved = self.moved.subscribe();
        let is_to = |answer: &&String| {
            let answer = Object::parse((*answer).clone()).ok();
            answer.is_some_and(|answer| answer.get_string("id").as_deref() == Some(id))
        };
        loop {
            if let Some(answer) = self.lock().answers_heard.iter().find(is_to) {
                return answer.clone();
            }
            moved.changed().await.expect("the sender is ours");
        }
    }

    /// All that came back for questions of ours.
    pub(crate) fn all_answers(&self) -> Vec<String> {
        self.lock().answers_heard.clone()
    }

    /// From now on requests may get lost on their way to it, or be overtaken.
    pub(crate) fn be_far(&self) {
        self.lock().is_far = true;
    }

    /// What a careful server would have objected to.
    pub(crate) fn surprises(&self) -> Vec<String> {
        let state = self.lock();
        let lost = state.early.iter().filter(|_| !state.is_far);
        let lost = lost.map(|(_, id)| format!("the unknown request {id} was cancelled"));
        state.surprises.iter().cloned().chain(lost).collect()
    }

    async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut moved = self.moved.subscribe();
        let come_true = async {
            while !condition(&self.lock()) {
                moved.changed().await.expect("the sender is ours");
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, come_true).await;
        in_time.unwrap_or_else(|_| panic!("waited in vain until {what}; {:#?}", self.lock().seen));
    }
}

/// A method in the test's own hands.
pub(crate) struct Held {
    calls: mpsc::Receiver<Call>,
}

impl Held {
    /// The next call, once it comes.
    pub(crate) async fn next(&mut self) -> Call {
        let call = tokio::time::timeout(PATIENCE, self.calls.recv()).await;
        call.expect("a call in time").expect("the method is held")
    }

    /// The next call, however long it takes; `None` once the method is held no more.
    pub(crate) async fn any(&mut self) -> Option<Call> {
        self.calls.recv().await
    }
}

// === What it does by itself ===

impl Upstream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a life for a connection: its number, and the token that ends it.
    fn connected(&self) -> io::Result<(u64, CancellationToken)> {
        let mut state = self.lock();
        if state.is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok((state.number(), state.life.child_token()))
    }

    fn note_surprise(&self, surprise: impl Into<String>) {
        self.lock().surprises.push(surprise.into());
    }

    /// Somebody says this.
    fn heard(&self, message: &[u8]) {
        if let Some(talk) = &self.talk {
            talk.heard(message);
        }
    }

    /// Something comes over HTTP with these headers.
    fn got(&self, headers: &hyper::HeaderMap) {
        self.lock().heads.push(headers.clone());
    }

    /// Somebody listens from now on.
    fn listened(&self, ear: Ear) {
        self.lock().ears.push(ear);
        self.move_on();
    }

    /// Somebody answers.
    fn answered(&self, answer: String) {
        if self.side().is_modern() {
            // Spec 2026-07-28, stdio: the client MUST NOT write responses.
            self.note_surprise(format!("an answer to nothing: {answer}"));
        }
        self.lock().answers_heard.push(answer);
        self.move_on();
    }

    fn move_on(&self) {
        self.moved.send_modify(|count| *count += 1);
    }

    /// Takes a request of conversation `of` and sends what there is to say to `sink`.
    fn receive(&self, of: u64, request: Request, headers: hyper::HeaderMap, sink: Sink) {
        let Request { id, method, params, .. } = request;
        self.check(of, &id, &method, &params);
        let seen = Seen { method: method.to_string(), params: params.to_bytes(), headers };
        let (answer, held) = {
            let mut state = self.lock();
            state.seen.push(seen);
            (state.answers.get(&*method).cloned(), state.held.get(&*method).cloned())
        };
        self.move_on();
        if let Some(held) = held {
            let cancelled = CancellationToken::new();
            let mut state = self.lock();
            if state.early.remove(&(of, id.clone())) {
                cancelled.cancel();
            }
            state.open.insert((of, id.clone()), cancelled.clone());
            drop(state);
            let call = Call { params, id, sink, cancelled, talk: self.talk.clone() };
            // If the test no longer wants it, dropping the call is the answer.
            let _ = held.try_send(call);
            return;
        }
        match answer.unwrap_or_else(|| self.usual_answer(of, &method, &id, &params, &sink)) {
            Answer::Result(result) => {
                sink.send(Out::Last(jsonrpc::write_result(&id, result.as_bytes())));
            }
            Answer::Error(error) => {
                sink.send(Out::Last(jsonrpc::write_error(Some(&id), error.as_bytes())));
            }
            Answer::Silence => self.lock().hung.push(sink),
            Answer::HangUp => sink.send(Out::HangUp),
            Answer::Status(status) => sink.send(Out::Status(status, None)),
            Answer::Later(status, seconds) => sink.send(Out::Status(status, Some(seconds))),
        }
    }

    /// Notes what a careful server would object to.
    fn check(&self, of: u64, id: &Id, method: &str, params: &Object) {
        if !self.lock().used.insert((of, id.clone())) {
            self.note_surprise(format!("id {id} came twice, the second time with {method}"));
        }
        let meta = params.get_object("_meta").unwrap_or_default();
        let version = meta.get_string(meta::PROTOCOL_VERSION);
        if self.script.side.is_modern() && method != "initialize" {
            if version.as_deref() != Some(self.script.side.revision.as_str()) {
                self.note_surprise(format!("{method} speaks {version:?}"));
            }
            if !meta.has(meta::CLIENT_CAPABILITIES) {
                self.note_surprise(format!("{method} without client capabilities"));
            }
        } else if version.is_some() && method != "server/discover" {
            self.note_surprise(format!("{method} with modern _meta"));
        }
    }

    fn usual_answer(&self, of: u64, method: &str, id: &Id, params: &Object, sink: &Sink) -> Answer {
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
            // Whoever saw a process end upon the question for its era may take it for a legacy one: some of them do
            // that.
            "initialize" if self.lock().forget_a_cut_probe() => {
                error(jsonrpc::code::METHOD_NOT_FOUND, "unknown method")
            }
            "ping" if !modern => Answer::Result("{}".into()),
            "logging/setLevel" if !modern => Answer::Result("{}".into()),
            "subscriptions/listen" if modern => {
                let filter = params.get_object("notifications").unwrap_or_default();
                let ear = Ear { of, sink: sink.clone(), listen: Some((id.clone(), filter)) };
                ear.sink.send(Out::Note(ear.acknowledgment()));
                self.listened(ear);
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
                self.note_surprise(format!("unknown method {method}"));
                error(jsonrpc::code::METHOD_NOT_FOUND, "unknown method")
            }
        }
    }

    /// A result with these members, as the script's era writes it.
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
        let is_restless = state.is_restless;
        drop(state);
        let mut members = format!(r#""{}":[{items}]"#, kind.list_member());
        if let Some(next) = next {
            members += &format!(r#","nextCursor":{}"#, quoted(&next));
        }
        if self.side().is_modern() {
            let Script { ttl_ms, cache_scope, .. } = &*self.script;
            members += &format!(r#","ttlMs":{ttl_ms},"cacheScope":"{cache_scope}""#);
        }
        if is_restless {
            self.announce(kind.topic());
        }
        self.complete(&members)
    }

    /// A request is cancelled by a notification.
    fn cancelled(&self, of: u64, params: &Object) {
        let mut state = self.lock();
        let Some(id) = params.get_bytes("requestId").and_then(Id::parse) else {
            return state.surprises.push("a cancellation without an id".into());
        };
        if !state.used.contains(&(of, id.clone())) {
            match self.side().wire {
                // What comes on one pipe comes in its order.
                Wire::Stdio => {
                    state.surprises.push(format!("the unknown request {id} was cancelled"));
                }
                // On another connection a word may be quicker than what it is about.
                Wire::Http | Wire::Sse => drop(state.early.insert((of, id.clone()))),
            }
        }
        state.ears.retain(|ear| {
            ear.of != of || ear.listen.as_ref().is_none_or(|(listen, _)| *listen != id)
        });
        if let Some(call) = state.open.remove(&(of, id)) {
            call.cancel();
        }
        drop(state);
        self.move_on();
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether a process has ended before anything but a question for its era came; that counts once.
    fn forget_a_cut_probe(&mut self) -> bool {
        let is_cut = self.cut_probes > 0;
        self.cut_probes = self.cut_probes.saturating_sub(1);
        is_cut
    }

    fn end_life(&mut self) {
        std::mem::take(&mut self.life).cancel();
        self.ears.clear();
        self.hung.clear();
        self.sessions.clear();
        self.subscriptions.clear();
        self.streams.clear();
    }
}

impl Ear {
    fn hears(&self, topic: Topic) -> bool {
        let filter = self.listen.as_ref().map(|(_, filter)| filter);
        filter.is_none_or(|filter| filter.get(topic.filter_member()) == Some("true"))
    }

    fn notification(&self, topic: Topic) -> Bytes {
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
