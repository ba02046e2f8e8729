//! Memory for lists of the smallest possible elements from clients and servers: each place that
//! parses one.
//!
//! A list of a few megabytes may have millions of elements. Code that collects them before it
//! checks a bound needs a multiple of the received bytes. Each place is reached through a whole
//! gateway in memory: by a client's request, or by a scripted server's response.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, WriteHalf};
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir_access::pins::Digest;
use weir_base::json::{self, Object};
use weir_config::{Config, Options};
use weir_mcp::capabilities::Capabilities;
use weir_mcp::definition::arguments::PromptArguments;
use weir_mcp::definition::downgrade;
use weir_mcp::definition::param_headers::ParamHeaders;
use weir_mcp::kind::Kind;

use super::{MEMORY, peak_growth};

/// Length of the lists. With its envelope, one fits into a body of `server.max_body`.
const LENGTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { (4 << 20) - (1 << 10) };
/// Memory for a message, in multiples of its length: as it arrives (a growing buffer may be half
/// empty), where it is combined with other data, and as it is sent.
const COPIES: f64 = 4.0;
/// Additional memory: a limited number of elements, and members.
const FIXED_BYTES: usize = 256 << 10;

/// The smallest elements, and small ones of each type.
const ELEMENTS: [&str; 6] = ["0", "\"\"", "{}", "[]", "\"a\"", "{\"a\":0}"];
/// Number of elements that are sent through a whole gateway.
const GATEWAY_ELEMENTS: usize = if cfg!(debug_assertions) { 3 } else { 6 };

fn list_of(element: &str) -> String {
    let mut list = format!("{element},").repeat(LENGTH / (element.len() + 1));
    list.pop();
    format!("[{list}]")
}

/// Largest object that fits, with members of short names.
fn wide_object() -> String {
    let members: Vec<_> = (0..LENGTH / 10).map(|at| format!("\"{at:06}\":0")).collect();
    format!("{{{}}}", members.join(","))
}

/// As many of these messages as fit, each with the maximum number of members, of the shortest
/// names.
fn wide(messages: usize, head: &str, tail: &str) -> String {
    let name = |at: usize| format!("\"{}{}\":0", char::from(b'a' + (at % 26) as u8), at / 26);
    let members: Vec<_> = (0..1_000).map(name).collect();
    let message = format!("{head}{{{}}}{tail}", members.join(","));
    format!("[{}]", vec![message; messages].join(","))
}

// === Parsers by themselves ===

/// A parser, and the text around the list that it parses.
type Reader = (&'static str, [&'static str; 2], fn(&Bytes));

const READERS: [Reader; 7] = [
    ("elements", ["", ""], |text| {
        assert!(json::elements(text).expect("an array").count() > 1_000);
    }),
    ("arguments of a prompt", ["{\"arguments\":", "}"], |text| {
        let _ = PromptArguments::read(&object(text));
    }),
    ("`x-mcp-header` in a schema", ["{\"inputSchema\":{\"x\\u002d\":", "}}"], |text| {
        let _ = ParamHeaders::read(&object(text));
    }),
    (
        "a schema for older clients",
        ["{\"outputSchema\":{\"type\":\"object\",\"required\":", "}}"],
        |it| {
            let _ = downgrade::definition(Kind::Tool, &object(it));
        },
    ),
    ("a result for older clients", ["{\"structuredContent\":[1],\"content\":", "}"], |text| {
        downgrade::result(&mut object(text));
    }),
    ("capabilities", ["{\"extensions\":", "}"], |text| {
        let _ = Capabilities::read(&object(text));
    }),
    ("a digest", ["{\"a\":", "}"], |text| {
        let _ = Digest::of(text);
    }),
];

fn object(text: &Bytes) -> Object {
    Object::parse(text.clone()).expect("an object")
}

// === A server ===

/// Bytes of a line that the server retains, so that its own memory does not count.
const RETAINED_BYTES: usize = 1 << 10;

/// Transport and framing of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Body,
    Events,
    /// HTTP+SSE.
    Pair,
}

/// Scripted server that responds to each method with a fixed text.
#[derive(Clone)]
struct Server {
    framing: Framing,
    /// Event stream of HTTP+SSE.
    stream: Arc<tokio::sync::Mutex<Option<WriteHalf<DuplexStream>>>>,
    /// (method, member of the response and the text behind it).
    answers: Arc<Mutex<Vec<(&'static str, Bytes)>>>,
    /// Number of long responses sent.
    given: Arc<AtomicUsize>,
    tasks: TaskTracker,
}

impl Server {
    fn new(framing: Framing) -> Self {
        Self {
            framing,
            stream: Arc::default(),
            answers: Arc::default(),
            given: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    fn answers(&self, method: &'static str, answer: impl Into<Bytes>) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|(known, _)| *known != method);
        answers.push((method, answer.into()));
    }

    /// Checks that the server sent its long response.
    fn assert_sent(&self, what: &str, answer: &str) {
        let given = self.given.swap(0, Ordering::Relaxed);
        assert!(given > 0, "{what}: {answer}");
    }

    /// Response to a request, in three parts; `None` for a message that is no request. A text that
    /// begins with `[` or `{` is sent as it is, except for the first `$ID`.
    fn reply_to(&self, message: &[u8]) -> Option<[Bytes; 3]> {
        #[derive(serde::Deserialize)]
        struct RequestHead {
            method: String,
            id: Value,
        }
        // A client's request may be long: only its beginning is retained.
        let params = message.windows(9).position(|nine| nine == b"\"params\":");
        let message = match params {
            Some(at) => &[message[..at].trim_ascii_end().strip_suffix(b",")?, b"}"].concat()[..],
            None => message,
        };
        let RequestHead { method, id } = serde_json::from_slice(message).ok()?;
        let id = id.to_string();
        let answer = {
            let answers = self.answers.lock().unwrap();
            let found = answers.iter().find(|(known, _)| **known == method);
            found.map(|(_, answer)| answer.clone())
        };
        let answer = answer.unwrap_or_else(|| Bytes::from_static(b"\"result\":{}}"));
        self.given.fetch_add(usize::from(answer.len() > LONG_BYTES), Ordering::Relaxed);
        let place = answer.windows(3).take(1_000).position(|three| three == b"$ID");
        Some(match (answer[0], place) {
            (b'[' | b'{', Some(at)) => [answer.slice(..at), id.into(), answer.slice(at + 3..)],
            (b'[' | b'{', None) => [answer, Bytes::new(), Bytes::new()],
            _ => {
                let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},");
                [head.into(), answer, Bytes::new()]
            }
        })
    }

    async fn serve(self, requests: DuplexStream, mut replies: DuplexStream) -> io::Result<()> {
        let mut requests = BufReader::new(requests);
        loop {
            let mut line = Vec::new();
            let mut is_whole = false;
            while !is_whole {
                let piece = requests.fill_buf().await?;
                if piece.is_empty() {
                    return Ok(());
                }
                let end = piece.iter().position(|byte| *byte == b'\n');
                let (length, free_bytes) =
                    (end.map_or(piece.len(), |end| end + 1), RETAINED_BYTES - line.len());
                line.extend_from_slice(&piece[..length.min(free_bytes)]);
                requests.consume(length);
                is_whole = end.is_some();
            }
            for part in self.reply_to(&line).into_iter().flatten() {
                replies.write_all(&part).await?;
            }
            replies.write_all(b"\n").await?;
        }
    }

    /// Serves one connection over HTTP.
    async fn serve_http(self, connection: DuplexStream) -> io::Result<()> {
        let (requests, mut replies) = tokio::io::split(connection);
        let mut requests = BufReader::new(requests);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                if requests.read_line(&mut head).await? == 0 {
                    return Ok(());
                }
                let line = head[start..].to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
            }
            let mut body = vec![0; length];
            requests.read_exact(&mut body).await?;
            let begins = |with: &str| head.starts_with(with);
            let reply = self.reply_to(&body);
            drop(body);
            if begins("GET /keys") {
                let keys =
                    self.reply_to(br#"{"method":"keys","id":0}"#).expect("a request")[0].clone();
                respond(&mut replies, "application/json", &[keys], "").await?;
            } else if begins("GET") && self.framing == Framing::Pair {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
                replies.write_all(head.as_bytes()).await?;
                replies.write_all(b"event: endpoint\ndata: /messages\n\n").await?;
                *self.stream.lock().await = Some(replies);
                // Until the client closes the connection.
                let _ = requests.read_u8().await;
                return Ok(());
            } else if begins("GET") || begins("POST /mcp") && self.framing == Framing::Pair {
                replies.write_all(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n").await?;
            } else if self.framing == Framing::Pair || reply.is_none() {
                replies.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await?;
                if let (Some(parts), Some(stream)) = (reply, &mut *self.stream.lock().await) {
                    stream.write_all(b"data: ").await?;
                    for part in parts {
                        stream.write_all(&part).await?;
                    }
                    stream.write_all(b"\n\n").await?;
                }
            } else if let Some([first, second, third]) = reply {
                if self.framing == Framing::Events {
                    let parts = [Bytes::from_static(b"data: "), first, second, third];
                    respond(&mut replies, "text/event-stream", &parts, "\n\n").await?;
                } else {
                    respond(&mut replies, "application/json", &[first, second, third], "").await?;
                }
            }
        }
    }
}

/// Responds with a body of these parts.
async fn respond(
    to: &mut WriteHalf<DuplexStream>,
    media: &str,
    parts: &[Bytes],
    end: &str,
) -> io::Result<()> {
    let length: usize = parts.iter().map(Bytes::len).sum::<usize>() + end.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n\r\n");
    to.write_all(head.as_bytes()).await?;
    for part in parts {
        to.write_all(part).await?;
    }
    to.write_all(end.as_bytes()).await
}

impl weir_upstream::connect::Connect for Server {
    fn connect<'a>(
        &'a self,
        _: weir_upstream::connect::Destination<'a>,
    ) -> BoxFuture<'a, io::Result<Box<dyn weir_base::net::http_connection::ByteStream>>> {
        let (ours, theirs) = tokio::io::duplex(16 << 10);
        self.tasks.spawn(self.clone().serve_http(theirs));
        let stream: Box<dyn weir_base::net::http_connection::ByteStream> = Box::new(ours);
        async { Ok(stream) }.boxed()
    }

    fn spawn(
        &self,
        _: &weir_upstream::connect::ChildCommand,
    ) -> io::Result<weir_upstream::connect::Child> {
        let (stdin, requests) = tokio::io::duplex(16 << 10);
        let (replies, stdout) = tokio::io::duplex(16 << 10);
        let serving = self.tasks.spawn(self.clone().serve(requests, replies));
        Ok(weir_upstream::connect::Child {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: None,
            process: Box::new(Life(Some(serving))),
        })
    }
}

struct Life(Option<tokio::task::JoinHandle<io::Result<()>>>);

impl weir_upstream::connect::ProcessHandle for Life {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        async {
            match &mut self.0 {
                Some(serving) => {
                    let _ = serving.await;
                    self.0 = None;
                    "it has ended".to_owned()
                }
                None => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn terminate(&mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        if let Some(serving) = &self.0 {
            serving.abort();
        }
    }
}

// === A gateway ===

/// Address of the server in the configuration.
const CHILD: &str = "command = \"hub\"";
const HTTP: &str = "url = \"http://hub.test/mcp\"";

/// Maximum size of an identity provider's document.
const MAX_JWKS_BYTES: usize = 256 << 10;
/// A longer response contains one of the lists.
const LONG_BYTES: usize = MAX_JWKS_BYTES / 2;

const CONFIG: &str = r#"
    [upstreams.hub]
    command = "hub"
    [guard]
    output = "refuse"
    results = ["prompts", "tools", "resources"]
    [defaults.breaker]
    failures = 1000
"#;

/// Sends a request on a connection of its own, and returns the head of the response and its first
/// bytes.
async fn send(app: &App, tasks: &TaskTracker, request: &[&[u8]]) -> String {
    let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
    let (mut ours, theirs) = tokio::io::duplex(16 << 10);
    let door = Arc::clone(app.server_state());
    let serving = tasks.spawn(weir_downstream::http::serve_connection(door, theirs, Some(peer)));
    for part in request {
        // The server may have rejected the request by then.
        let _ = ours.write_all(part).await;
    }
    let (mut first, mut piece) = (Vec::new(), [0; 4096]);
    // Does not wait for streams that stay open.
    let reading = async {
        while let Ok(count @ 1..) = ours.read(&mut piece).await {
            if first.len() < 4096 {
                first.extend_from_slice(&piece[..count]);
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
    drop(ours);
    serving.await.expect("it does not panic");
    String::from_utf8_lossy(&first).into_owned()
}

fn head(more: &str, length: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n"
    )
}

/// Modern, and legacy with batches.
struct Clients<'a> {
    app: &'a App,
    tasks: TaskTracker,
    /// Session header of revision 2025-03-26.
    session: String,
}

impl<'a> Clients<'a> {
    async fn begin(app: &'a App) -> Self {
        let tasks = TaskTracker::new();
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        let output = send(app, &tasks, &[head("", body.len()).as_bytes(), body.as_bytes()]).await;
        let id = output.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.to_owned())
        });
        let session = format!("Mcp-Session-Id: {}\r\n", id.expect(&output));
        Self { app, tasks, session }
    }

    async fn legacy(&self, body: &str) -> String {
        let head = head(&self.session, body.len());
        send(self.app, &self.tasks, &[head.as_bytes(), body.as_bytes()]).await
    }

    /// `params` ends with a comma, or is empty.
    async fn modern(&self, method: &str, name: Option<&str>, params: &str) -> String {
        self.modern_with(method, name, params, "").await
    }

    /// `meta` begins with a comma, or is empty.
    async fn modern_with(
        &self,
        method: &str,
        name: Option<&str>,
        params: &str,
        meta: &str,
    ) -> String {
        let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        let more = format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}");
        let before = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"#);
        let context = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
        let head = head(&more, before.len() + params.len() + context.len() + meta.len() + 3);
        let parts = [&head, &before, params, context, meta, "}}}"].map(str::as_bytes);
        send(self.app, &self.tasks, &parts).await
    }
}

/// Peak memory during an operation that sends this number of bytes.
async fn measured<T>(
    worst: &mut Worst,
    what: &str,
    bytes: usize,
    work: impl Future<Output = T>,
) -> T {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let done = work.await;
    worst.note(what, MEMORY.peak_usage().saturating_sub(before), bytes);
    done
}

#[derive(Default)]
struct Worst {
    rows: Vec<(String, f64, usize)>,
}

impl Worst {
    fn note(&mut self, what: &str, peak: usize, bytes: usize) {
        let ratio = peak.saturating_sub(FIXED_BYTES) as f64 / bytes as f64;
        self.rows.push((what.to_owned(), ratio, peak));
    }

    fn judge(self) {
        for (what, ratio, peak) in &self.rows {
            eprintln!("lists: {what}: {peak} bytes held, {ratio:.2} of its length beside 256 KiB");
        }
        let bad: Vec<_> = self.rows.iter().filter(|(_, ratio, _)| *ratio > COPIES).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }
}

#[test]
fn g11_no_list_costs_more_than_a_few_times_its_length_wherever_it_is_read() {
    let _turn = super::turn();
    let mut worst = Worst::default();
    // Parsing all elements shows as memory, so the measurement works.
    let zeros = Bytes::from(list_of("0"));
    let collected =
        peak_growth(|| drop(json::elements(&zeros).expect("an array").collect::<Vec<_>>()));
    assert!(collected > 10 * zeros.len(), "{collected}");
    drop(zeros);
    for (what, [before, behind], read) in READERS {
        for element in ELEMENTS {
            let text = Bytes::from(format!("{before}{}{behind}", list_of(element)));
            let peak = peak_growth(|| read(&text));
            worst.note(&format!("{what}, of {element}"), peak, text.len());
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        in_a_gateway(&mut worst).await;
        for framing in [Framing::Body, Framing::Events, Framing::Pair] {
            over_http(&mut worst, framing).await;
        }
        acknowledged(&mut worst).await;
        keys(&mut worst).await;
    });
    worst.judge();
}

/// Server with one item of each kind.
fn with_items(framing: Framing) -> Server {
    let server = Server::new(framing);
    let introduction = r#""result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{},"prompts":{},"resources":{},"completions":{}},"serverInfo":{"name":"s","version":"1"}}}"#;
    server.answers("initialize", introduction);
    server.answers("server/discover", r#""error":{"code":-32601,"message":"no"}}"#);
    server.answers("tools/list", r#""result":{"tools":[{"name":"t","inputSchema":{}}]}}"#);
    server.answers("prompts/list", r#""result":{"prompts":[{"name":"p"}]}}"#);
    server.answers("resources/list", r#""result":{"resources":[{"uri":"a:b","name":"b"}]}}"#);
    server.answers("resources/templates/list", r#""result":{"resourceTemplates":[]}}"#);
    server
}

/// Gateway in front of this server, which has been listed.
async fn opened(config: &str, server: &Server) -> (App, String) {
    let config = Config::parse(config, Path::new("weir.toml"), &Options::default());
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    let app = App::open(&config, Arc::new(server.clone()));
    let tools = Clients::begin(&app).await.modern("tools/list", None, "").await;
    (app, tools)
}

async fn close(app: App) {
    app.stop_downstream();
    app.wait_until_drained().await;
    app.close().await;
}

/// Responses of a server over HTTP: each element and each parser of responses once.
async fn over_http(worst: &mut Worst, framing: Framing) {
    let server = with_items(framing);
    let (app, tools) = opened(&CONFIG.replace(CHILD, HTTP), &server).await;
    assert!(tools.contains("hub__t"), "{framing:?}: {tools}");
    let clients = Clients::begin(&app).await;
    for element in &ELEMENTS[..GATEWAY_ELEMENTS] {
        let list = list_of(element);
        for (method, params, result) in [
            ("prompts/get", r#""name":"hub__p","#, format!(r#"{{"messages":{list}}}"#)),
            ("tools/call", r#""name":"hub__t","#, format!(r#"{{"content":{list}}}"#)),
        ] {
            server.answers(method, format!("\"result\":{result}}}"));
            let name = params.split('"').nth(3);
            let what = format!("the answer to {method} over {framing:?}, of {element}");
            let request_future = clients.modern(method, name, params);
            let answer = measured(worst, &what, list.len(), request_future).await;
            server.assert_sent(&what, &answer);
        }
        server.answers("tools/call", list.clone());
        let what = format!("an array of messages over {framing:?}, of {element}");
        let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
        let answer = measured(worst, &what, list.len(), calling).await;
        server.assert_sent(&what, &answer);
    }
    drop(clients);
    close(app).await;
}

/// Acknowledgment of a `subscriptions/listen` with more entries than were requested.
async fn acknowledged(worst: &mut Worst) {
    let server = with_items(Framing::Body);
    let discovered = r#""result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}}"#;
    server.answers("server/discover", discovered);
    let (app, tools) = opened(CONFIG, &server).await;
    assert!(tools.contains("hub__t"), "{tools}");
    let clients = Clients::begin(&app).await;
    for element in ELEMENTS {
        for member in ["resourceSubscriptions", "taskIds"] {
            let list = list_of(element);
            let length = list.len();
            let note = r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":$ID},"notifications":"#;
            server.answers("subscriptions/listen", format!(r#"{note}{{"{member}":{list}}}}}}}"#));
            drop(list);
            let params = r#""notifications":{"resourceSubscriptions":["a:b"]},"#;
            let what = format!("an acknowledgment with `{member}`, of {element}");
            let listening = clients.modern("subscriptions/listen", None, params);
            let answer = measured(worst, &what, length, listening).await;
            server.assert_sent(&what, &answer);
        }
    }
    drop(clients);
    close(app).await;
}

/// Keys of an identity provider, which are fetched when the gateway starts.
async fn keys(worst: &mut Worst) {
    let provider = r#"
        [server]
        public_url = "http://127.0.0.1:8642"
        [auth.oidc.corp]
        issuer = "https://id.test/a"
        audience = ["http://127.0.0.1:8642/mcp"]
        jwks_uri = "https://id.test/keys"
        default_role = "guest"
        [roles.guest]
        tools.allow = ["*"]
    "#;
    let config = format!("{CONFIG}{provider}");
    let config = Config::parse(&config, Path::new("weir.toml"), &Options::default());
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    for element in ELEMENTS {
        let mut list = list_of(element);
        // Weir reads no more of a document.
        let most = MAX_JWKS_BYTES - 1_000;
        if list.len() > most {
            list.truncate(list[..most].rfind(',').expect("an element"));
            list.push(']');
        }
        for (what, text) in [
            ("keys", format!(r#"{{"keys":{list}}}"#)),
            ("key_ops", format!(r#"{{"keys":[{{"kty":"RSA","key_ops":{list}}}]}}"#)),
        ] {
            let server = with_items(Framing::Body);
            let length = text.len();
            server.answers("keys", text);
            let opening = async {
                let app = App::open(&config, Arc::new(server.clone()));
                app.spawn_jwks_refreshers();
                // The paused clock advances only when all tasks are idle.
                tokio::time::sleep(Duration::from_millis(1)).await;
                close(app).await;
            };
            let what = format!("`{what}` of a provider, of {element}");
            measured(worst, &what, length, opening).await;
            server.assert_sent(&what, "nothing was fetched");
        }
    }
}

async fn in_a_gateway(worst: &mut Worst) {
    let server = with_items(Framing::Body);
    let config = Config::parse(CONFIG, Path::new("weir.toml"), &Options::default());
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    let app = App::open(&config, Arc::new(server.clone()));
    let clients = Clients::begin(&app).await;
    // The upstream has been listed, and later responses do not replace its lists.
    let tools = clients.modern("tools/list", None, "").await;
    assert!(tools.contains("hub__t"), "{tools}");

    for element in &ELEMENTS[..GATEWAY_ELEMENTS] {
        let list = list_of(element);
        let length = list.len();
        let of = |what: &str| format!("{what}, of {element}");
        // Requests of a client.
        let answer = measured(worst, &of("a batch"), length, clients.legacy(&list)).await;
        assert!(answer.contains("a batch holds 1 to"), "{answer}");
        for member in ["resourceSubscriptions", "taskIds"] {
            let params = format!(r#""notifications":{{"{member}":{list}}},"#);
            let listening = clients.modern("subscriptions/listen", None, &params);
            let answer = measured(worst, &of(member), length, listening).await;
            assert!(answer.contains("-32602"), "{answer}");
        }
        let params = format!(r#""name":"hub__p","arguments":{list},"#);
        let getting = clients.modern("prompts/get", Some("hub__p"), &params);
        measured(worst, &of("arguments"), length, getting).await;
        let params = format!(r#""name":"hub__t","arguments":{{}},"inputResponses":{list},"#);
        let calling = clients.modern("tools/call", Some("hub__t"), &params);
        measured(worst, &of("`inputResponses`"), length, calling).await;

        // Responses of a server.
        for (method, params, result) in [
            ("prompts/get", r#""name":"hub__p","#, format!(r#"{{"messages":{list}}}"#)),
            (
                "tools/call",
                r#""name":"hub__t","arguments":{},"#,
                format!(r#"{{"content":{list}}}"#),
            ),
            (
                "completion/complete",
                r#""ref":{"type":"ref/prompt","name":"hub__p"},"argument":{"name":"a","value":""},"#,
                format!(r#"{{"completion":{{"values":{list}}}}}"#),
            ),
            ("resources/read", r#""uri":"a:b","#, format!(r#"{{"contents":{list}}}"#)),
        ] {
            server.answers(method, format!("\"result\":{result}}}"));
            let name = params.split('"').nth(3).filter(|_| !params.starts_with("\"ref"));
            let request_future = clients.modern(method, name, params);
            let what = of(&format!("the answer to {method}"));
            let answer = measured(worst, &what, length, request_future).await;
            server.assert_sent(&what, &answer);
        }
        let error = r#""error":{"code":-32042,"message":"m","data":{"elicitations":"#;
        server.answers("tools/call", format!("{error}{list}}}}}}}"));
        let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
        let answer = measured(worst, &of("the visits of an error"), length, calling).await;
        server.assert_sent("a long answer", &answer);
        let structured = format!(r#""result":{{"structuredContent":[1],"content":{list}}}}}"#);
        server.answers("tools/call", structured);
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub__t"}}"#;
        let calling = clients.legacy(body);
        let answer = measured(worst, &of("a result for a legacy client"), length, calling).await;
        server.assert_sent("a long answer", &answer);
        server.answers("tools/call", list.clone());
        let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
        let what = of("an array of messages from a server");
        let answer = measured(worst, &what, length, calling).await;
        server.assert_sent("a long answer", &answer);
    }

    // Objects in place of the values that a request is parsed for, with more members than allowed.
    let object = wide_object();
    let length = object.len();
    for (what, method, params) in [
        ("arguments", "prompts/get", format!(r#""name":"hub__p","arguments":{object},"#)),
        ("arguments", "tools/call", format!(r#""name":"hub__t","arguments":{object},"#)),
        (
            "inputResponses",
            "tools/call",
            format!(r#""name":"hub__t","arguments":{{}},"inputResponses":{object},"#),
        ),
    ] {
        let name = params.split('"').nth(3).map(str::to_owned);
        let request_future = clients.modern(method, name.as_deref(), &params);
        measured(worst, &format!("a wide `{what}` of {method}"), length, request_future).await;
        let body = params.trim_end_matches(',');
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{body}}}}}"#);
        let what = format!("a wide `{what}` of a legacy {method}");
        measured(worst, &what, length, clients.legacy(&body)).await;
    }
    let meta = format!(",{}", &object[1..object.len() - 1]);
    let params = r#""name":"hub__t","#;
    let calling = clients.modern_with("tools/call", Some("hub__t"), params, &meta);
    measured(worst, "a wide `_meta`", length, calling).await;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"hub__t","_meta":{object}}}}}"#
    );
    measured(worst, "a wide `_meta` of a legacy call", length, clients.legacy(&body)).await;
    drop((object, meta, body));

    // Messages with the maximum number of members.
    let batch = wide(50, r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"#, "}");
    measured(worst, "a batch of wide messages", batch.len(), clients.legacy(&batch)).await;
    let messages = LENGTH / 8_000;
    let batch = wide(messages, r#"{"jsonrpc":"2.0","id":1,"result":"#, "}");
    let length = batch.len();
    server.answers("tools/call", batch);
    let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
    let answer = measured(worst, "an array of wide answers", length, calling).await;
    server.assert_sent("a long answer", &answer);
    app.stop_downstream();
    app.wait_until_drained().await;
    app.close().await;

    // A server's list is fetched when its upstream starts.
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let small = if method == "tools/list" { "{\"name\":\"a\"}" } else { "0" };
        let wide = |head: &str, tail: &str| wide(LENGTH / 8_000, head, tail);
        let lists = [
            (small.to_owned(), list_of(small)),
            ("wide objects".into(), wide("", "")),
            (
                "definitions with a wide `_meta`".into(),
                wide(
                    r#"{"name":"a","uri":"a:b","uriTemplate":"a:{b}","inputSchema":{},"_meta":"#,
                    "}",
                ),
            ),
            (
                "tools with a wide schema".into(),
                wide(
                    r#"{"name":"a","uri":"a:b","uriTemplate":"a:{b}","inputSchema":{"type":"object","properties":"#,
                    "}}",
                ),
            ),
        ];
        for (element, list) in lists {
            let length = list.len();
            server.answers(method, format!(r#""result":{{"{member}":{list}}}}}"#));
            drop(list);
            let listing = async {
                let app = App::open(&config, Arc::new(server.clone()));
                let clients = Clients::begin(&app).await;
                clients.modern(method, None, "").await;
                app.stop_downstream();
                app.wait_until_drained().await;
                app.close().await;
            };
            measured(worst, &format!("{method}, of {element}"), length, listing).await;
            server.answers(method, format!(r#""result":{{"{member}":[]}}}}"#));
        }
    }
}
