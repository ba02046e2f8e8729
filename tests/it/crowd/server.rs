//! A server over HTTP, of either era, with one tool whose calls it answers in random order.
//!
//! Each call gets progress and a log message before its response, and one in ten gets an input
//! request. The server keeps only the number of a call, so that it can do this a million times.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;
use weir_base::json::Object;
use weir_base::text::sse;
use weir_mcp::jsonrpc::{self, Id, Message};

use super::PIPE;
use crate::client::object;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Number of waiting calls from which on a random one gets its turn.
const MAX_WAITING: usize = 50;
/// Time without a new call after which all get their turn: longer than a busy machine needs for a
/// call, or each would come alone.
const IDLE_TIME: Duration = Duration::from_millis(50);

pub(super) struct Server {
    is_modern: bool,
    deck: mpsc::Sender<oneshot::Sender<()>>,
    state: Mutex<State>,
    numbers: AtomicU64,
    turns: Arc<AtomicU64>,
    overtaken: Arc<AtomicU64>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    /// Calls that have arrived, that have been answered, and that have arrived in a further round.
    arrived: HashSet<u64>,
    executed: HashSet<u64>,
    returned: HashSet<u64>,
    /// The call of each input request, by its id.
    pending: HashMap<String, (u64, oneshot::Sender<()>)>,
    wrong: Vec<String>,
}

/// Whether the server sends an input request for this call.
pub(super) fn needs_input(nonce: u64) -> bool {
    (nonce ^ (nonce >> 32)) % 10 == 3
}

impl Server {
    pub(super) fn start(is_modern: bool, tasks: &TaskTracker) -> Arc<Self> {
        let (deck, waiting) = mpsc::channel(1_024);
        let (turns, overtaken) = (Arc::default(), Arc::default());
        tasks.spawn(give_turns(waiting, Arc::clone(&turns), Arc::clone(&overtaken)));
        let (state, numbers) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { is_modern, deck, state, numbers, turns, overtaken, tasks: tasks.clone() })
    }

    /// Violations.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }

    /// Number of different calls that have been answered.
    pub(super) fn executed(&self) -> usize {
        self.lock().executed.len()
    }

    /// Share of the turns that went to another call than the one that had waited longest.
    pub(super) fn reordered_share(&self) -> f64 {
        let of = self.turns.load(Ordering::Relaxed).max(1);
        self.overtaken.load(Ordering::Relaxed) as f64 / of as f64
    }

    pub(super) fn connect(self: &Arc<Self>) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let server = Arc::clone(self);
        let service = service_fn(move |request| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.serve(request).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(ours), service);
        self.tasks.spawn(async move {
            // The client closes the connection.
            let _ = serving.await;
        });
        theirs
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return reply(if head.method == Method::DELETE { 200 } else { 405 }, Bytes::new());
        }
        let body = body.collect().await.expect("a whole body").to_bytes();
        match Message::parse(body.clone()).expect("a message") {
            Message::Notification(_) => reply(202, Bytes::new()),
            Message::Response(_) => {
                self.check_answer_body(&body);
                reply(202, Bytes::new())
            }
            Message::Request(request) if &*request.method == "tools/call" => {
                let (events, to_write) = mpsc::channel(16);
                let server = Arc::clone(&self);
                self.tasks.spawn(async move { server.play(request, events).await });
                let next = |mut events: mpsc::Receiver<Bytes>| async {
                    let event = events.recv().await?;
                    Some((Ok(Frame::data(sse::write_message(&event))), events))
                };
                let body = StreamBody::new(stream::unfold(to_write, next)).boxed_unsync();
                respond(200, "text/event-stream", body)
            }
            Message::Request(request) => self.introduce(&request),
        }
    }

    fn introduce(&self, request: &jsonrpc::Request) -> Response<Body> {
        let result = match &*request.method {
            "initialize" if !self.is_modern => {
                r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"s","version":"1"}}"#
            }
            "server/discover" if self.is_modern => {
                r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"logging":{}},"ttlMs":3600000,"cacheScope":"public"}"#
            }
            "tools/list" => {
                r#"{"resultType":"complete","tools":[{"name":"a","inputSchema":{"type":"object"}}],"ttlMs":3600000,"cacheScope":"public"}"#
            }
            "logging/setLevel" | "ping" if !self.is_modern => "{}",
            _ => {
                let error = jsonrpc::write_error(
                    Some(&request.id),
                    br#"{"code":-32601,"message":"Method not found"}"#,
                );
                return reply(if self.is_modern { 404 } else { 200 }, error);
            }
        };
        let mut response = reply(200, jsonrpc::write_result(&request.id, result.as_bytes()));
        if &*request.method == "initialize" {
            response.headers_mut().insert("mcp-session-id", "one".parse().expect("a value"));
        }
        response
    }

    /// Handles a call, from its arrival to its response.
    async fn play(&self, request: jsonrpc::Request, events: mpsc::Sender<Bytes>) {
        let params = &request.params;
        let arguments = params.get_object("arguments").expect("arguments");
        let nonce: u64 = arguments.get("nonce").expect("a nonce").parse().expect("a number");
        let say = async |event: Bytes| {
            if events.send(event).await.is_err() {
                self.object(format!("nobody hears {nonce}"));
            }
        };
        if let Some(responses) = params.get_object("inputResponses") {
            self.check_state(nonce, params);
            self.check_answer(nonce, responses.get_object("q"));
            self.once(|state| &mut state.returned, nonce, "comes again");
            self.turn().await;
            return say(self.finish(nonce, &request.id)).await;
        }
        self.once(|state| &mut state.arrived, nonce, "comes");
        self.turn().await;
        let meta = params.get_object("_meta").expect("_meta");
        let token = meta.get("progressToken").expect("a token");
        let progress = format!(r#"{{"progressToken":{token},"progress":1,"message":"{nonce}"}}"#);
        say(jsonrpc::write_notification("notifications/progress", progress.as_bytes())).await;
        let logged = format!(r#"{{"level":"info","data":"{nonce}"}}"#);
        say(jsonrpc::write_notification("notifications/message", logged.as_bytes())).await;
        if !needs_input(nonce) {
            return say(self.finish(nonce, &request.id)).await;
        }
        let question = format!(
            r#"{{"message":"{nonce}","requestedSchema":{{"type":"object","properties":{{"nonce":{{"type":"string"}}}}}}}}"#
        );
        if self.is_modern {
            let result = format!(
                r#"{{"resultType":"input_required","inputRequests":{{"q":{{"method":"elicitation/create","params":{question}}}}},"requestState":"{nonce}"}}"#
            );
            return say(jsonrpc::write_result(&request.id, result.as_bytes())).await;
        }
        let id = Id::from(self.numbers.fetch_add(1, Ordering::Relaxed));
        let (received, answered) = oneshot::channel();
        self.lock().pending.insert(id.to_string(), (nonce, received));
        say(jsonrpc::write_request(&id, "elicitation/create", question.as_bytes())).await;
        if answered.await.is_err() {
            return self.object(format!("{nonce} hears no answer"));
        }
        self.turn().await;
        say(self.finish(nonce, &request.id)).await;
    }

    fn finish(&self, nonce: u64, id: &Id) -> Bytes {
        self.once(|state| &mut state.executed, nonce, "is executed");
        let kind = if self.is_modern { r#""resultType":"complete","# } else { "" };
        let result = format!(r#"{{{kind}"content":[{{"type":"text","text":"{nonce}"}}]}}"#);
        jsonrpc::write_result(id, result.as_bytes())
    }

    /// Handles a client's response to an input request.
    fn check_answer_body(&self, body: &[u8]) {
        let text = String::from_utf8_lossy(body);
        let answer = object(&text);
        let pending = self.lock().pending.remove(answer.get("id").unwrap_or_default());
        let Some((nonce, received)) = pending else {
            return self.object(format!("an answer to nothing: {text}"));
        };
        self.check_answer(nonce, answer.get_object("result"));
        if received.send(()).is_err() {
            self.object(format!("{nonce} has not waited"));
        }
    }

    fn check_answer(&self, nonce: u64, answer: Option<Object>) {
        let content = answer.and_then(|answer| answer.get_object("content"));
        let content = content.unwrap_or_default();
        if content.get("nonce") != Some(&*format!("\"{nonce}\"")) {
            self.object(format!("{nonce} hears {:?}", content.to_bytes()));
        }
    }

    fn check_state(&self, nonce: u64, params: &Object) {
        let state = params.get("requestState");
        if state != Some(&*format!("\"{nonce}\"")) {
            self.object(format!("{nonce} comes again with {state:?}"));
        }
    }

    fn once(&self, set: impl FnOnce(&mut State) -> &mut HashSet<u64>, nonce: u64, what: &str) {
        let is_new = set(&mut self.lock()).insert(nonce);
        if !is_new {
            self.object(format!("{nonce} {what} twice"));
        }
    }

    fn object(&self, objection: String) {
        let mut state = self.lock();
        // A few violations are enough.
        if state.wrong.len() < 20 {
            state.wrong.push(objection);
        }
    }

    /// Waits until a call has its turn.
    async fn turn(&self) {
        let (go, turn) = oneshot::channel();
        let dealt = self.deck.send(go).await.is_ok() && turn.await.is_ok();
        assert!(dealt, "the dealer outlives the server");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives turns in random order.
async fn give_turns(
    mut waiting: mpsc::Receiver<oneshot::Sender<()>>,
    turns: Arc<AtomicU64>,
    overtaken: Arc<AtomicU64>,
) {
    let mut deck = Vec::new();
    let mut random = 7_u64;
    let mut least;
    loop {
        if deck.is_empty() {
            let Some(first) = waiting.recv().await else { return };
            deck.push(first);
        }
        match tokio::time::timeout(IDLE_TIME, waiting.recv()).await {
            Ok(Some(next)) => {
                deck.push(next);
                least = MAX_WAITING;
            }
            Ok(None) => return,
            Err(_) => least = 0,
        }
        while deck.len() > least {
            // Knuth's MMIX generator: its upper bits are random enough.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let place = (random >> 33) as usize % deck.len();
            turns.fetch_add(1, Ordering::Relaxed);
            overtaken.fetch_add(u64::from(place > 0), Ordering::Relaxed);
            let go = deck.remove(place);
            // A call that has been cancelled does not wait for its turn any more.
            let _ = go.send(());
        }
    }
}

fn reply(status: u16, body: Bytes) -> Response<Body> {
    respond(status, "application/json", Full::new(body).boxed_unsync())
}

fn respond(status: u16, kind: &'static str, body: Body) -> Response<Body> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind).body(body);
    response.expect("a response")
}
