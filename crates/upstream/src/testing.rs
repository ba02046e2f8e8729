//! Servers that a test controls itself, over in-memory transports.
//!
//! There are no scripts: a test reads what Weir sent, checks it, and responds as it likes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connect::{
    Child, ChildCommand, Connect, Destination, Egress, ProcessHandle, TraceDirection, TraceLine,
    TraceSink,
};
use super::{
    ConnectionStatus, Error, HttpTransport, RetrySettings, Settings, Sharing, Timeouts, Upstream,
    UpstreamLimits, UpstreamSource,
};
use crate::SuspendedCall;
use crate::call_metrics::CallDurations;
use weir_base::json::Object;
use weir_base::memory::memory_budget::{BufferLimit, MemoryBudget};
use weir_base::net::http_connection::ByteStream;
use weir_base::secrets::secret::Secret;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::CallOutcome;
use weir_mcp::call::{
    CallContext, Method as CallMethod, ResponseOutcome, UpstreamRequest, UpstreamResponse,
};
use weir_mcp::capabilities;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::{Era, Revision};

/// One upstream and its environment.
pub(super) struct World {
    pub(super) upstream: Upstream,
    pub(super) connector: Arc<TestConnector>,
    children: mpsc::Receiver<Peer>,
    requests: mpsc::Receiver<Exchange>,
    /// Memory budget of the upstream's messages.
    pub(super) budget: MemoryBudget,
    pub(super) tracker: TaskTracker,
    pub(super) stop: CancellationToken,
}

/// Transport of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TestTransport {
    Stdio,
    Http,
    /// HTTP+SSE, configured.
    Sse,
}

pub(super) fn settings(over: TestTransport) -> Settings {
    let source = match over {
        TestTransport::Stdio => UpstreamSource::Process(ChildCommand {
            program: "server".into(),
            display_name: "server".into(),
            ..ChildCommand::default()
        }),
        TestTransport::Http => UpstreamSource::Http {
            url: Uri::from_static("http://upstream.test/mcp?x=1"),
            headers: HeaderMap::new(),
            account: None,
            egress: Egress::default(),
            transport: None,
        },
        TestTransport::Sse => UpstreamSource::Http {
            url: Uri::from_static("http://upstream.test/v1/sse?x=1"),
            headers: HeaderMap::new(),
            account: None,
            egress: Egress::default(),
            transport: Some(HttpTransport::Sse),
        },
    };
    Settings {
        instance: None,
        name: "hub".parse().expect("a name"),
        source,
        era: None,
        sharing: Sharing::Shared,
        timeouts: Timeouts {
            connect: Duration::from_secs(2),
            startup: Duration::from_secs(60),
            list: Duration::from_secs(10),
            call: Duration::from_secs(60),
            call_max: Duration::from_secs(600),
            reset_on_progress: true,
            gather: Duration::from_millis(5),
            idle: None,
            stop: Duration::from_secs(2),
            terminate: Duration::from_secs(3),
        },
        retry: RetrySettings {
            backoff: Duration::from_millis(250),
            max_backoff: Duration::from_secs(30),
            jitter: false,
        },
        limits: UpstreamLimits {
            concurrency: 4,
            waiting: 128,
            wait: Duration::from_secs(1),
            max_message: 1024 * 1024,
            max_items: 1_000,
            max_pages: 100,
            max_list: 32 << 20,
        },
        required: false,
        lazy: false,
        breaker: crate::health::breaker::Settings::default(),
        on_down: super::OnDown::Keep,
        list_cache_dir: None,
        reads_list_cache: true,
    }
}

/// No limit.
pub(super) fn unlimited() -> BufferLimit {
    BufferLimit::without_budget(usize::MAX)
}

/// Memory budget of all messages of an upstream.
pub(super) const BUDGET_BYTES: usize = 64 << 20;

/// Settings of an upstream whose only client is this caller.
pub(super) fn sole_client_settings(over: TestTransport, caller: &CallContext) -> Settings {
    Settings { sharing: Sharing::Sole(super::declared_capabilities(caller)), ..settings(over) }
}

/// Sends calls of which the metrics of all upstreams do not matter.
pub(super) trait SendCall {
    async fn send(&self, call: Box<UpstreamRequest>) -> Result<CallOutcome<SuspendedCall>, Error>;
}

impl SendCall for Upstream {
    async fn send(&self, call: Box<UpstreamRequest>) -> Result<CallOutcome<SuspendedCall>, Error> {
        self.call(call, &CallDurations::default()).await
    }
}

impl World {
    pub(super) fn start(settings: Settings) -> Self {
        let (child_sender, children) = mpsc::channel(1_000);
        let (request_sender, requests) = mpsc::channel(1_000);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let connector = Arc::new(TestConnector {
            children: child_sender,
            requests: request_sender,
            refuses: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            servers: TaskTracker::new(),
            trace: OnceLock::new(),
        });
        let budget = MemoryBudget::new(BUDGET_BYTES);
        let upstream = Upstream::start(settings, connector.clone(), &budget, &tasks, stop.clone());
        Self { upstream, connector, children, requests, budget, tracker: tasks, stop }
    }

    /// Starts a world whose messages are traced from the first one on: nothing runs before the
    /// test waits.
    pub(super) fn traced(settings: Settings, limit: usize) -> (Self, Arc<TraceRecorder>) {
        let world = Self::start(settings);
        let recorder = Arc::new(TraceRecorder { limit, ..TraceRecorder::default() });
        assert!(world.connector.trace.set(Arc::clone(&recorder)).is_ok());
        (world, recorder)
    }

    /// Waits for the next child process.
    pub(super) async fn child(&mut self) -> Peer {
        self.children.recv().await.expect("the connector lives")
    }

    /// Waits for the next HTTP request.
    pub(super) async fn request(&mut self) -> Exchange {
        self.requests.recv().await.expect("the connector lives")
    }

    /// Waits for the next HTTP request that is no GET and no check of a session; each GET gets
    /// status 405, and each check finds that the session works.
    pub(super) async fn post(&mut self) -> Exchange {
        loop {
            if let Some(request) = answer_routine(self.request().await) {
                return request;
            }
        }
    }

    /// Waits for the check of a session.
    pub(super) async fn check(&mut self) -> Exchange {
        loop {
            let request = self.request().await;
            if request.method == Method::GET {
                request.status(405);
                continue;
            }
            let method = request.body["method"].as_str();
            assert!(matches!(method, Some("ping" | "server/discover")), "{method:?}");
            return request;
        }
    }

    /// Whether any HTTP request has arrived.
    pub(super) fn has_request(&mut self) -> bool {
        self.requests.try_recv().is_ok()
    }

    /// Whether nothing that [`World::post`] waits for arrives once everything has settled.
    pub(super) async fn is_quiet(&mut self) -> bool {
        tokio::time::sleep(Duration::from_millis(1)).await;
        loop {
            match self.requests.try_recv() {
                Ok(request) => {
                    if answer_routine(request).is_some() {
                        return false;
                    }
                }
                Err(_) => return true,
            }
        }
    }

    pub(super) async fn up(&self) {
        let mut status = self.upstream.status();
        let up = status.wait_for(|status| matches!(status, ConnectionStatus::Up(_)));
        up.await.expect("the upstream lives");
    }

    /// Waits until the upstream is down and returns the reason.
    pub(super) async fn down(&self) -> String {
        let mut status = self.upstream.status();
        let down = status.wait_for(|status| matches!(status, ConnectionStatus::Down { .. }));
        match &*down.await.expect("the upstream lives") {
            ConnectionStatus::Down { reason, .. } => reason.clone(),
            _ => unreachable!(),
        }
    }

    /// Stops everything and checks that nothing is left.
    pub(super) async fn finish(self) {
        drop(self.upstream);
        self.stop.cancel();
        self.tracker.close();
        let done = tokio::time::timeout(Duration::from_secs(30), self.tracker.wait()).await;
        assert!(done.is_ok(), "tasks are left over");
        assert_eq!(self.budget.reserved_bytes(), 0, "all memory reservations are returned");
    }

    /// Starts a world whose stdio server has connected in this era.
    pub(super) async fn stdio(era: Era) -> (Self, Peer) {
        Self::opened(settings(TestTransport::Stdio), era).await
    }

    /// Starts a world with these settings whose stdio server has connected in this era.
    pub(super) async fn opened(settings: Settings, era: Era) -> (Self, Peer) {
        let mut world = Self::start(settings);
        let mut peer = world.child().await;
        peer.open(era).await;
        world.up().await;
        (world, peer)
    }

    /// Starts a world whose HTTP server has connected in this era, with session `s1` and no streams
    /// of its own.
    pub(super) async fn http(era: Era) -> Self {
        Self::opened_http(settings(TestTransport::Http), era).await
    }

    /// Starts a world with these settings whose HTTP server has connected in this era.
    pub(super) async fn opened_http(settings: Settings, era: Era) -> Self {
        let mut world = Self::start(settings);
        world.open_http(era).await;
        world.up().await;
        world
    }

    pub(super) async fn open_http(&mut self, era: Era) {
        let discover = self.post().await;
        assert_eq!(discover.body["method"], "server/discover");
        match era {
            Era::Modern => {
                discover.answer(discovered());
            }
            Era::Legacy => {
                discover.status(400);
                self.initialize("s1").await;
            }
        }
    }

    /// Responds to the handshake with a session.
    pub(super) async fn initialize(&mut self, session: &str) {
        let initialize = self.post().await;
        assert_eq!(initialize.body["method"], "initialize");
        assert!(!initialize.headers.contains_key("mcp-session-id"));
        initialize.accept(session);
        let done = self.post().await;
        assert_eq!(done.body["method"], "notifications/initialized");
        assert_eq!(done.headers["mcp-session-id"], session);
        done.status(202);
    }
}

/// Answers a GET with status 405, and the check of a session with success; returns other requests.
fn answer_routine(request: Exchange) -> Option<Exchange> {
    match request.method {
        Method::GET => request.status(405),
        _ if request.body["method"] == "ping" => request.answer(json!({})),
        _ => return Some(request),
    }
    None
}

/// Result of `initialize`; without `listChanged`, so nothing waits for a stream.
pub(super) fn initialized(revision: &str) -> Value {
    json!({
        "protocolVersion": revision,
        "capabilities": { "prompts": {}, "tools": {}, "completions": {} },
        "serverInfo": { "name": "peer", "version": "1" },
    })
}

/// Result of `server/discover`.
pub(super) fn discovered() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": { "prompts": {}, "tools": {}, "completions": {} },
        "ttlMs": 0,
        "cacheScope": "public",
    })
}

/// Call of the tool `t` by a client of this revision.
pub(super) fn call(revision: Revision) -> Box<UpstreamRequest> {
    Box::new(UpstreamRequest {
        method: CallMethod::CallTool,
        subject: "t".into(),
        params: Object::parse(r#"{"name":"t","arguments":{"n":1.0},"_meta":{"x":1}}"#)
            .expect("params"),
        scope: None,
        // The capabilities of the main connection, so that the call uses that one.
        caller: Box::new(CallContext {
            features: ClientFeatures::ALL,
            capabilities: capabilities::OWN.into(),
            ..CallContext::without_features(revision)
        }),
    })
}

/// Response of a call.
pub(super) fn expect_response(outcome: CallOutcome<SuspendedCall>) -> UpstreamResponse {
    match outcome {
        CallOutcome::Response(reply) => reply,
        CallOutcome::InputRequired(suspended) => panic!("unexpected input requests: {suspended:?}"),
    }
}

/// Payload of a response: its result or its error.
pub(super) async fn payload(outcome: CallOutcome<SuspendedCall>) -> String {
    let bytes = match expect_response(outcome).outcome {
        ResponseOutcome::Result(body) => body.collect(&unlimited()).await.expect("a whole body"),
        ResponseOutcome::Error(error) => error,
    };
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

// === TestConnector ===

pub(super) struct TestConnector {
    children: mpsc::Sender<Peer>,
    requests: mpsc::Sender<Exchange>,
    /// Whether connections are refused and programs missing.
    pub(super) refuses: AtomicBool,
    /// Whether connections are never made.
    pub(super) stalls: AtomicBool,
    pub(super) connections: AtomicUsize,
    servers: TaskTracker,
    trace: OnceLock<Arc<TraceRecorder>>,
}

impl Connect for TestConnector {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        async {
            if self.refuses.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "refused"));
            }
            if self.stalls.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            self.connections.fetch_add(1, Ordering::Relaxed);
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let requests = self.requests.clone();
            self.servers.spawn(async move {
                let service = service_fn(move |request| receive(requests.clone(), request));
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(theirs), service).await;
            });
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        }
        .boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such program"));
        }
        let (stdin, reads) = tokio::io::duplex(64 * 1024);
        let (writes, stdout) = tokio::io::duplex(64 * 1024);
        let (complains, stderr) = tokio::io::duplex(64 * 1024);
        let (exit, exited) = watch::channel(None);
        let signals = Arc::new(Mutex::new(Vec::new()));
        let peer = Peer {
            reads: Some(BufReader::new(reads).lines()),
            writes: Some(writes),
            stderr: Some(complains),
            exit: exit.clone(),
            signals: Arc::clone(&signals),
        };
        let process = Box::new(TestProcess { exit, exited, signals });
        let _ = self.children.try_send(peer);
        let (stdin, stdout) = (Box::new(stdin), Box::new(stdout));
        Ok(Child { stdin, stdout, stderr: Some(Box::new(stderr)), process })
    }

    fn trace_sink(&self) -> Option<Arc<dyn TraceSink>> {
        let recorder = self.trace.get()?;
        Some(Arc::clone(recorder) as Arc<dyn TraceSink>)
    }
}

// === TraceRecorder ===

/// Receiver of messages that keeps their lines.
#[derive(Default)]
pub(super) struct TraceRecorder {
    pub(super) limit: usize,
    /// Secrets of each upstream.
    pub(super) secrets: Vec<Secret>,
    pub(super) lines: Mutex<Vec<String>>,
}

impl TraceRecorder {
    /// Takes the lines so far: an arrow, the text, and what is said of the rest.
    pub(super) fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock())
    }
}

impl TraceSink for TraceRecorder {
    fn limit(&self) -> usize {
        self.limit
    }

    fn secrets(&self, _: &UpstreamName) -> Vec<Secret> {
        self.secrets.clone()
    }

    fn write(&self, line: &TraceLine<'_>) {
        let arrow = match line.direction {
            TraceDirection::ToServer => "->",
            TraceDirection::FromServer => "<-",
        };
        let left_out = match line.left_out {
            0 => String::new(),
            count => format!(" +{count}"),
        };
        let remark = line.remark.map(|remark| format!(" ({remark})")).unwrap_or_default();
        self.lines.lock().push(format!("{arrow} {}{left_out}{remark}", line.text));
    }
}

// === Peer ===

/// Child process that the test controls.
pub(super) struct Peer {
    reads: Option<Lines<BufReader<DuplexStream>>>,
    writes: Option<DuplexStream>,
    pub(super) stderr: Option<DuplexStream>,
    exit: watch::Sender<Option<String>>,
    pub(super) signals: Arc<Mutex<Vec<&'static str>>>,
}

impl Peer {
    /// Reads the next message; `None` when standard input was closed.
    pub(super) async fn try_read(&mut self) -> Option<Value> {
        let line = self.read_line().await?;
        Some(serde_json::from_str(&line).expect("a message is JSON"))
    }

    /// Reads the next message as it was sent.
    pub(super) async fn read_line(&mut self) -> Option<String> {
        self.reads.as_mut()?.next_line().await.expect("a pipe")
    }

    pub(super) async fn read(&mut self) -> Value {
        self.try_read().await.expect("standard input is open")
    }

    /// Writes a line.
    pub(super) async fn write(&mut self, line: &str) {
        let writes = self.writes.as_mut().expect("standard output is open");
        writes.write_all(format!("{line}\n").as_bytes()).await.expect("a pipe");
    }

    /// Writes the beginning of a line.
    pub(super) async fn begin(&mut self, text: &str) {
        let writes = self.writes.as_mut().expect("standard output is open");
        writes.write_all(text.as_bytes()).await.expect("a pipe");
    }

    pub(super) async fn send(&mut self, message: Value) {
        self.write(&message.to_string()).await;
    }

    pub(super) async fn answer(&mut self, request: &Value, result: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    }

    pub(super) async fn refuse(&mut self, request: &Value, code: i64) {
        let error = json!({ "code": code, "message": "no", "data": { "supported": [] } });
        self.send(json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })).await;
    }

    /// Writes a line on standard error.
    pub(super) async fn write_stderr(&mut self, line: &str) {
        let stderr = self.stderr.as_mut().expect("standard error is open");
        stderr.write_all(format!("{line}\n").as_bytes()).await.expect("a pipe");
    }

    /// Ends the process.
    pub(super) fn exit(&mut self, how: &str) {
        self.exit.send_replace(Some(how.into()));
        (self.reads, self.writes, self.stderr) = (None, None, None);
    }

    /// Completes the handshake in this era.
    pub(super) async fn open(&mut self, era: Era) {
        let discover = self.read().await;
        assert_eq!(discover["method"], "server/discover");
        match era {
            Era::Modern => self.answer(&discover, discovered()).await,
            Era::Legacy => {
                self.refuse(&discover, -32601).await;
                self.initialize("2025-11-25").await;
            }
        }
    }

    /// Responds to the handshake.
    pub(super) async fn initialize(&mut self, revision: &str) {
        let initialize = self.read().await;
        assert_eq!(initialize["method"], "initialize");
        self.answer(&initialize, initialized(revision)).await;
        assert_eq!(self.read().await["method"], "notifications/initialized");
    }
}

struct TestProcess {
    exit: watch::Sender<Option<String>>,
    exited: watch::Receiver<Option<String>>,
    signals: Arc<Mutex<Vec<&'static str>>>,
}

impl ProcessHandle for TestProcess {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        async {
            let how = self.exited.wait_for(Option::is_some).await.expect("we hold a sender");
            how.clone().expect("it is some")
        }
        .boxed()
    }

    fn terminate(&mut self) {
        self.signals.lock().push("terminate");
    }

    fn kill(&mut self) {
        self.signals.lock().push("kill");
        self.exit.send_if_modified(|exit| {
            let runs = exit.is_none();
            exit.get_or_insert_with(|| "was killed".into());
            runs
        });
    }
}

// === Exchange ===

type Answered = Response<BoxBody<Bytes, io::Error>>;

/// An HTTP request that waits for the test's response.
pub(super) struct Exchange {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
    response: oneshot::Sender<io::Result<Answered>>,
}

async fn receive(
    requests: mpsc::Sender<Exchange>,
    request: Request<Incoming>,
) -> io::Result<Answered> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let (response, receiver) = oneshot::channel();
    let exchange = Exchange {
        method: head.method,
        uri: head.uri,
        headers: head.headers,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        response,
    };
    let _ = requests.try_send(exchange);
    match receiver.await {
        Ok(response) => response,
        // The test has dropped the exchange: there is no response.
        Err(_) => std::future::pending().await,
    }
}

impl Exchange {
    pub(super) fn id(&self) -> u64 {
        self.body["id"].as_u64().expect("a number")
    }

    pub(super) fn reply(self, response: hyper::http::response::Builder, body: impl Into<Bytes>) {
        let (sender, response) = streaming(response);
        let _ = sender.try_send(Ok(body.into()));
        drop(sender);
        let _ = self.response.send(Ok(response));
    }

    pub(super) fn status(self, status: u16) {
        self.reply(Response::builder().status(status), "");
    }

    /// Closes the connection instead of responding.
    pub(super) fn hang_up(self) {
        let _ = self.response.send(Err(io::ErrorKind::ConnectionReset.into()));
    }

    pub(super) fn json(self, status: u16, body: Value) {
        let response =
            Response::builder().status(status).header("content-type", "application/json");
        self.reply(response, body.to_string());
    }

    pub(super) fn answer(self, result: Value) {
        let id = self.id();
        self.json(200, json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    /// Accepts a handshake, and names the session.
    pub(super) fn accept(self, session: &str) {
        let body =
            json!({ "jsonrpc": "2.0", "id": self.id(), "result": initialized("2025-11-25") });
        let response = Response::builder()
            .header("content-type", "application/json")
            .header("mcp-session-id", session);
        self.reply(response, body.to_string());
    }

    pub(super) fn refuse(self, status: u16, code: i64) {
        let id = self.id();
        let error = json!({ "code": code, "message": "no", "data": { "supported": [] } });
        self.json(status, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    /// Waits until Weir has closed the connection without waiting for a response.
    pub(super) async fn abandoned(&mut self) {
        self.response.closed().await;
    }

    /// Begins an event stream.
    pub(super) fn events(self) -> Events {
        let response = Response::builder().header("content-type", "text/event-stream");
        let (sender, response) = streaming(response);
        let _ = self.response.send(Ok(response));
        Events { sender }
    }

    /// Begins a JSON body that arrives piece by piece.
    pub(super) fn pieces(self) -> Events {
        let response = Response::builder().header("content-type", "application/json");
        let (sender, response) = streaming(response);
        let _ = self.response.send(Ok(response));
        Events { sender }
    }
}

fn streaming(
    response: hyper::http::response::Builder,
) -> (mpsc::Sender<io::Result<Bytes>>, Answered) {
    let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(1_000);
    let pieces = futures::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let frames = futures::StreamExt::map(pieces, |piece| piece.map(Frame::data));
    let body = BodyExt::boxed(StreamBody::new(frames));
    (sender, response.body(body).expect("a response"))
}

/// Body that the test writes piece by piece. Dropping it ends the body properly.
pub(super) struct Events {
    sender: mpsc::Sender<io::Result<Bytes>>,
}

impl Events {
    pub(super) fn raw(&self, text: impl Into<Bytes>) {
        let _ = self.sender.try_send(Ok(text.into()));
    }

    pub(super) fn send(&self, message: Value) {
        self.raw(format!("data: {message}\n\n"));
    }

    /// Breaks the connection in the middle of the body.
    pub(super) fn cut(self) {
        let _ = self.sender.try_send(Err(io::Error::other("cut")));
    }

    /// Waits until Weir has closed the connection.
    pub(super) async fn closed(&self) {
        self.sender.closed().await;
    }
}
