//! What lists cost that come from outside, made of the smallest possible elements: each place that reads one.
//!
//! A list of a few megabytes may have millions of elements. Whoever collects them before looking at a bound needs a
//! multiple of what was sent. Each place is reached through a whole gateway in memory: by a client's request, or by a
//! scripted server's answer.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio_util::task::TaskTracker;
use weir::app::App;
use weir::config::{Config, Options};
use weir::json::{self, Object};
use weir::mcp::capabilities::Capabilities;
use weir::mcp::definition::arguments::Declared;
use weir::mcp::definition::downgrade;
use weir::mcp::definition::param_headers::Mirror;
use weir::mcp::kind::Kind;
use weir::pins::Digest;

use super::{MEMORY, held};

/// How long the lists are. With what stands around one, it fits into a body of `server.max_body`.
const LENGTH: usize = if cfg!(debug_assertions) { 256 << 10 } else { (4 << 20) - (1 << 10) };
/// What is held for a message, in its own lengths: as it arrives (a buffer that grows may be half empty), where it has to be
/// put together with something else, and as it goes out.
const COPIES: f64 = 4.0;
/// What is held beside: a limited number of elements, and members.
const FIXED_BYTES: usize = 256 << 10;

/// The smallest elements, and small ones of each type.
const ELEMENTS: [&str; 6] = ["0", "\"\"", "{}", "[]", "\"a\"", "{\"a\":0}"];
/// How many of them a whole gateway is asked about.
const GATEWAY_ELEMENTS: usize = if cfg!(debug_assertions) { 3 } else { 6 };

fn list_of(element: &str) -> String {
    let mut list = format!("{element},").repeat(LENGTH / (element.len() + 1));
    list.pop();
    format!("[{list}]")
}

/// As many of these messages as fit, each with as many members as it may have, of the shortest names.
fn wide(messages: usize, head: &str, tail: &str) -> String {
    let name = |at: usize| format!("\"{}{}\":0", char::from(b'a' + (at % 26) as u8), at / 26);
    let members: Vec<_> = (0..1_000).map(name).collect();
    let message = format!("{head}{{{}}}{tail}", members.join(","));
    format!("[{}]", vec![message; messages].join(","))
}

// === Readers by themselves ===

/// A reader, and what stands around the list that it reads.
type Reader = (&'static str, [&'static str; 2], fn(&Bytes));

const READERS: [Reader; 7] = [
    ("elements", ["", ""], |text| {
        assert!(json::elements(text).expect("an array").count() > 1_000);
    }),
    ("arguments of a prompt", ["{\"arguments\":", "}"], |text| {
        let _ = Declared::read(&object(text));
    }),
    ("`x-mcp-header` in a schema", ["{\"inputSchema\":{\"x\\u002d\":", "}}"], |text| {
        let _ = Mirror::read(&object(text));
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

/// Answers each method with a text, and no other.
#[derive(Clone, Default)]
struct Server {
    /// (method, the answer's member and what stands behind it).
    answers: Arc<Mutex<Vec<(&'static str, Bytes)>>>,
    /// How many it has given that are long.
    given: Arc<AtomicUsize>,
    tasks: TaskTracker,
}

impl Server {
    fn answers(&self, method: &'static str, answer: impl Into<Bytes>) {
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|(known, _)| *known != method);
        answers.push((method, answer.into()));
    }

    /// It has been asked, and gave its long answer.
    fn has_given(&self, what: &str, answer: &str) {
        let given = self.given.swap(0, Ordering::Relaxed);
        assert!(given > 0, "{what}: {answer}");
    }

    async fn serve(self, requests: DuplexStream, mut replies: DuplexStream) -> io::Result<()> {
        let mut lines = BufReader::new(requests).lines();
        while let Some(line) = lines.next_line().await? {
            // What a client asks may be long, and only its beginning tells what it is.
            let request: Value = match serde_json::from_str(&line) {
                Ok(request) => request,
                Err(_) => continue,
            };
            let (method, Some(id)) = (request["method"].as_str(), request.get("id")) else {
                continue;
            };
            let id = id.to_string();
            drop(line);
            let answer = {
                let answers = self.answers.lock().unwrap();
                let found = answers.iter().find(|(known, _)| Some(*known) == method);
                found.map(|(_, answer)| answer.clone())
            };
            let answer = answer.unwrap_or_else(|| Bytes::from_static(b"\"result\":{}}"));
            let head = match answer.starts_with(b"[") {
                true => String::new(),
                false => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},"),
            };
            self.given.fetch_add(usize::from(answer.len() > LENGTH / 2), Ordering::Relaxed);
            replies.write_all(head.as_bytes()).await?;
            replies.write_all(&answer).await?;
            replies.write_all(b"\n").await?;
        }
        Ok(())
    }
}

impl weir::upstream::connect::Dial for Server {
    fn connect<'a>(
        &'a self,
        _: &'a Uri,
        _: Duration,
    ) -> BoxFuture<'a, io::Result<Box<dyn weir::upstream::connect::Stream>>> {
        async { Err(io::ErrorKind::ConnectionRefused.into()) }.boxed()
    }

    fn spawn(
        &self,
        _: &weir::upstream::connect::Command,
    ) -> io::Result<weir::upstream::connect::Child> {
        let (stdin, requests) = tokio::io::duplex(16 << 10);
        let (replies, stdout) = tokio::io::duplex(16 << 10);
        let serving = self.tasks.spawn(self.clone().serve(requests, replies));
        Ok(weir::upstream::connect::Child {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: None,
            process: Box::new(Life(Some(serving))),
        })
    }
}

struct Life(Option<tokio::task::JoinHandle<io::Result<()>>>);

impl weir::upstream::connect::Process for Life {
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

const CONFIG: &str = r#"
    [upstreams.hub]
    command = "hub"
    [guard]
    output = "refuse"
    results = ["prompts", "tools", "resources"]
    [defaults.breaker]
    failures = 1000
"#;

/// Sends a request on a connection of its own, and returns the head of the answer and its first bytes.
async fn say(app: &App, tasks: &TaskTracker, request: &[&[u8]]) -> String {
    let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
    let (mut ours, theirs) = tokio::io::duplex(16 << 10);
    let door = Arc::clone(app.door());
    let serving = tasks.spawn(weir::downstream::http::serve_connection(door, theirs, Some(peer)));
    for part in request {
        // It may have refused by then.
        let _ = ours.write_all(part).await;
    }
    let (mut first, mut piece) = (Vec::new(), [0; 4096]);
    // Streams that stay open are not waited for.
    let hearing = async {
        while let Ok(count @ 1..) = ours.read(&mut piece).await {
            if first.len() < 4096 {
                first.extend_from_slice(&piece[..count]);
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), hearing).await;
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

/// Modern, legacy with batches.
struct Clients<'a> {
    app: &'a App,
    tasks: TaskTracker,
    /// The header of a session of 2025-03-26.
    session: String,
}

impl<'a> Clients<'a> {
    async fn begin(app: &'a App) -> Self {
        let tasks = TaskTracker::new();
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        let said = say(app, &tasks, &[head("", body.len()).as_bytes(), body.as_bytes()]).await;
        let id = said.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.to_owned())
        });
        let session = format!("Mcp-Session-Id: {}\r\n", id.expect(&said));
        Self { app, tasks, session }
    }

    async fn legacy(&self, body: &str) -> String {
        let head = head(&self.session, body.len());
        say(self.app, &self.tasks, &[head.as_bytes(), body.as_bytes()]).await
    }

    /// `params` ends behind a comma, or is empty.
    async fn modern(&self, method: &str, name: Option<&str>, params: &str) -> String {
        let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
        let more = format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}");
        let before = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"#);
        let behind = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}"#;
        let head = head(&more, before.len() + params.len() + behind.len());
        let parts = [head.as_bytes(), before.as_bytes(), params.as_bytes(), behind.as_bytes()];
        say(self.app, &self.tasks, &parts).await
    }
}

/// How much is held at the most while something is done, which sends so many bytes.
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
    // What is measured is memory, and collecting shows.
    let zeros = Bytes::from(list_of("0"));
    let collected = held(|| drop(json::elements(&zeros).expect("an array").collect::<Vec<_>>()));
    assert!(collected > 10 * zeros.len(), "{collected}");
    drop(zeros);
    for (what, [before, behind], read) in READERS {
        for element in ELEMENTS {
            let text = Bytes::from(format!("{before}{}{behind}", list_of(element)));
            let peak = held(|| read(&text));
            worst.note(&format!("{what}, of {element}"), peak, text.len());
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(in_a_gateway(&mut worst));
    worst.judge();
}

async fn in_a_gateway(worst: &mut Worst) {
    let server = Server::default();
    let introduction = r#""result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{},"prompts":{},"resources":{},"completions":{}},"serverInfo":{"name":"s","version":"1"}}}"#;
    server.answers("initialize", introduction);
    server.answers("server/discover", r#""error":{"code":-32601,"message":"no"}}"#);
    server.answers("tools/list", r#""result":{"tools":[{"name":"t","inputSchema":{}}]}}"#);
    server.answers("prompts/list", r#""result":{"prompts":[{"name":"p"}]}}"#);
    server.answers("resources/list", r#""result":{"resources":[{"uri":"a:b","name":"b"}]}}"#);
    server.answers("resources/templates/list", r#""result":{"resourceTemplates":[]}}"#);
    let config = Config::parse(CONFIG, Path::new("weir.toml"), &Options::default());
    let config = config.unwrap_or_else(|report| panic!("{report}"));
    let app = App::open(&config, Arc::new(server.clone()));
    let clients = Clients::begin(&app).await;
    // It has been listed, and what is kept from then on is nobody's list.
    let tools = clients.modern("tools/list", None, "").await;
    assert!(tools.contains("hub__t"), "{tools}");

    for element in &ELEMENTS[..GATEWAY_ELEMENTS] {
        let list = list_of(element);
        let length = list.len();
        let of = |what: &str| format!("{what}, of {element}");
        // What a client sends.
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

        // What a server answers.
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
            let asking = clients.modern(method, name, params);
            let what = of(&format!("the answer to {method}"));
            let answer = measured(worst, &what, length, asking).await;
            server.has_given(&what, &answer);
        }
        let error = r#""error":{"code":-32042,"message":"m","data":{"elicitations":"#;
        server.answers("tools/call", format!("{error}{list}}}}}}}"));
        let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
        let answer = measured(worst, &of("the visits of an error"), length, calling).await;
        server.has_given("a long answer", &answer);
        let structured = format!(r#""result":{{"structuredContent":[1],"content":{list}}}}}"#);
        server.answers("tools/call", structured);
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub__t"}}"#;
        let calling = clients.legacy(body);
        let answer = measured(worst, &of("a result for a legacy client"), length, calling).await;
        server.has_given("a long answer", &answer);
        server.answers("tools/call", list.clone());
        let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
        let what = of("an array of messages from a server");
        let answer = measured(worst, &what, length, calling).await;
        server.has_given("a long answer", &answer);
    }

    // Messages that have as many members as they may.
    let batch = wide(50, r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"#, "}");
    measured(worst, "a batch of wide messages", batch.len(), clients.legacy(&batch)).await;
    let messages = LENGTH / 8_000;
    let batch = wide(messages, r#"{"jsonrpc":"2.0","id":1,"result":"#, "}");
    let length = batch.len();
    server.answers("tools/call", batch);
    let calling = clients.modern("tools/call", Some("hub__t"), r#""name":"hub__t","#);
    let answer = measured(worst, "an array of wide answers", length, calling).await;
    server.has_given("a long answer", &answer);
    app.stop_doors();
    app.drained().await;
    app.close().await;

    // A server's list is read when its upstream starts.
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let element = if method == "tools/list" { "{\"name\":\"a\"}" } else { "0" };
        let list = list_of(element);
        let length = list.len();
        server.answers(method, format!(r#""result":{{"{member}":{list}}}}}"#));
        drop(list);
        let listing = async {
            let app = App::open(&config, Arc::new(server.clone()));
            let clients = Clients::begin(&app).await;
            clients.modern(method, None, "").await;
            app.stop_doors();
            app.drained().await;
            app.close().await;
        };
        measured(worst, &format!("{method}, of {element}"), length, listing).await;
        server.answers(method, format!(r#""result":{{"{member}":[]}}}}"#));
    }
}
