//! One client of either era, over HTTP or stdio, that sends one request at a time and checks all
//! that comes back.
//!
//! Every client counts its ids from 1, so those of different clients are equal on purpose.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::PATIENCE;

/// Name that a client states in `initialize`.
pub(crate) const NAME: &str = "client of the lab";

/// Protocol revision of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revision(&'static str);

impl Revision {
    pub(crate) const MODERN: Self = Self("2026-07-28");
    pub(crate) const LEGACY: Self = Self("2025-11-25");
    pub(crate) const ALL: [Self; 5] =
        [Self("2024-11-05"), Self("2025-03-26"), Self("2025-06-18"), Self::LEGACY, Self::MODERN];

    pub(crate) fn is_modern(self) -> bool {
        self == Self::MODERN
    }

    pub(crate) fn as_str(self) -> &'static str {
        self.0
    }
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Result(Value),
    /// A JSON-RPC error.
    Error {
        code: i64,
        message: String,
    },
    /// No response, but the client noticed: its connection ended, or an HTTP status came without a
    /// body.
    Broken(String),
}

impl Outcome {
    pub(crate) fn result(self) -> Value {
        match self {
            Self::Result(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn is_result(&self) -> bool {
        matches!(self, Self::Result(_))
    }

    /// Code of an error; 0 for any other outcome.
    pub(crate) fn code(&self) -> i64 {
        match self {
            Self::Error { code, .. } => *code,
            _ => 0,
        }
    }
}

pub(crate) struct Client {
    pub(crate) revision: Revision,
    transport: Transport,
    /// Capabilities that it declares.
    capabilities: Value,
    next_id: u64,
}

enum Transport {
    Http {
        address: String,
        key: Option<String>,
        session: Option<String>,
        connection: Option<SendRequest<Full<Bytes>>>,
        tasks: TaskTracker,
    },
    Stdio {
        child: Box<Child>,
        input: ChildStdin,
        output: Lines<BufReader<ChildStdout>>,
    },
}

impl Client {
    /// Connects over HTTP; a legacy client initializes a session.
    pub(crate) async fn http(address: &str, revision: Revision, key: Option<&str>) -> Self {
        Self::declaring(json!({}), address, revision, key).await
    }

    /// Connects over HTTP with these capabilities.
    pub(crate) async fn declaring(
        capabilities: Value,
        address: &str,
        revision: Revision,
        key: Option<&str>,
    ) -> Self {
        let transport = Transport::Http {
            address: address.to_owned(),
            key: key.map(str::to_owned),
            session: None,
            connection: None,
            tasks: TaskTracker::new(),
        };
        Self { revision, transport, capabilities, next_id: 1 }.initialized().await
    }

    /// Begins a new session; the error is the outcome of a request that failed.
    pub(crate) async fn begin_anew(&mut self) -> Result<(), Outcome> {
        if let Transport::Http { session, .. } = &mut self.transport {
            *session = None;
        }
        self.initialize().await
    }

    /// Starts `weir stdio` on the configuration of a folder.
    pub(crate) async fn stdio(folder: &Path, revision: Revision) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["stdio", "--config", "weir.toml"]).current_dir(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Box::new(command.kill_on_drop(true).spawn().expect("it starts"));
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let transport = Transport::Stdio { child, input, output };
        Self { revision, transport, capabilities: json!({}), next_id: 1 }.initialized().await
    }

    async fn initialized(mut self) -> Self {
        self.initialize().await.expect("it is initialized");
        self
    }

    async fn initialize(&mut self) -> Result<(), Outcome> {
        if self.revision.is_modern() {
            return Ok(());
        }
        let hello = json!({
            "protocolVersion": self.revision.as_str(),
            "capabilities": self.capabilities,
            "clientInfo": { "name": NAME, "version": "1" },
        });
        let outcome = self.request("initialize", hello).await;
        if !outcome.is_result() {
            return Err(outcome);
        }
        self.notify("notifications/initialized").await.map_err(Outcome::Broken)
    }

    async fn notify(&mut self, method: &str) -> Result<(), String> {
        let message = json!({ "jsonrpc": "2.0", "method": method }).to_string();
        match &mut self.transport {
            Transport::Http { .. } => self.post(message, None).await.map(|_| ()),
            Transport::Stdio { input, .. } => {
                let line = format!("{message}\n");
                input.write_all(line.as_bytes()).await.map_err(|error| error.to_string())
            }
        }
    }

    /// Posts a response to a request of the server, and returns the status.
    pub(crate) async fn respond(&mut self, id: &Value, result: Value) -> u16 {
        self.try_respond(id, result).await.expect("it is answered")
    }

    /// Like [`Self::respond`]; the error is the end of the connection.
    pub(crate) async fn try_respond(&mut self, id: &Value, result: Value) -> Result<u16, String> {
        let message = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        Ok(self.post(message, None).await?.0.as_u16())
    }

    /// Sends a request and waits for its outcome. A response to another request fails the test, and
    /// so does a second response.
    pub(crate) async fn request(&mut self, method: &str, mut params: Value) -> Outcome {
        let id = self.next_id;
        self.next_id += 1;
        if self.revision.is_modern() {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = self.revision.as_str().into();
            meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        let name = ["name", "uri", "taskId"].iter().find_map(|member| params[*member].as_str());
        let name = name.map(str::to_owned);
        let mut message = json!({ "jsonrpc": "2.0", "id": id, "method": method });
        message["params"] = params;
        let text = message.to_string();
        let exchange = async {
            match &self.transport {
                Transport::Http { .. } => self.request_over_http(id, method, name, text).await,
                Transport::Stdio { .. } => self.request_over_stdio(id, text).await,
            }
        };
        let ended = tokio::time::timeout(PATIENCE, exchange).await;
        ended.unwrap_or_else(|_| panic!("{method} {message} has not ended"))
    }

    async fn request_over_http(
        &mut self,
        id: u64,
        method: &str,
        name: Option<String>,
        text: String,
    ) -> Outcome {
        let (status, is_stream, body) = match self.post(text, Some((method, name))).await {
            Ok(response) => response,
            Err(error) => return Outcome::Broken(error),
        };
        let messages: Vec<Value> = if is_stream {
            let data = body.lines().filter_map(|line| line.strip_prefix("data:"));
            let filled = data.map(str::trim).filter(|data| !data.is_empty());
            filled.filter_map(|data| serde_json::from_str(data).ok()).collect()
        } else {
            serde_json::from_str(&body).into_iter().collect()
        };
        let answers: Vec<_> =
            messages.into_iter().filter(|message| message.get("method").is_none()).collect();
        match &answers[..] {
            [] => Outcome::Broken(format!("{status} {body}")),
            [answer] => outcome(id, answer),
            more => panic!("{id} is answered more than once: {more:?}"),
        }
    }

    async fn request_over_stdio(&mut self, id: u64, text: String) -> Outcome {
        let Transport::Stdio { input, output, .. } = &mut self.transport else {
            unreachable!("see request")
        };
        if let Err(error) = input.write_all(format!("{text}\n").as_bytes()).await {
            return Outcome::Broken(error.to_string());
        }
        loop {
            let line = match output.next_line().await {
                Ok(Some(line)) => line,
                end => return Outcome::Broken(format!("{end:?}")),
            };
            let message: Value = serde_json::from_str(&line).expect("a message");
            if message.get("method").is_none() {
                return outcome(id, &message);
            }
        }
    }

    /// Posts a message and returns the status, whether the body is an event stream, and the body as
    /// far as it arrived.
    async fn post(
        &mut self,
        message: String,
        about: Option<(&str, Option<String>)>,
    ) -> Result<(StatusCode, bool, String), String> {
        let (response, sender) = self.send(message, about).await?;
        let status = response.status();
        let content = response.headers().get("content-type").and_then(|it| it.to_str().ok());
        let is_stream = content.is_some_and(|content| content.starts_with("text/event-stream"));
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                // A truncated response is not a response.
                Err(error) if !is_stream => return Err(format!("{error:?}")),
                Err(_) => return Ok((status, is_stream, text(bytes))),
            }
        }
        if let Transport::Http { connection, .. } = &mut self.transport {
            *connection = Some(sender);
        }
        Ok((status, is_stream, text(bytes)))
    }

    /// Sends a request, and returns the messages of its response as they arrive.
    pub(crate) async fn open(&mut self, method: &str, params: Value) -> CallStream {
        self.try_open(method, params).await.expect("it answers")
    }

    /// Like [`Self::open`]; the error is the end of the connection.
    pub(crate) async fn try_open(
        &mut self,
        method: &str,
        params: Value,
    ) -> Result<CallStream, String> {
        let id = self.next_id;
        self.next_id += 1;
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let (response, sender) = self.send(message.to_string(), None).await?;
        Ok(CallStream { body: response.into_body(), received: String::new(), _sender: sender })
    }

    /// Opens the stream for notifications of a legacy session; the error is the refusal.
    pub(crate) async fn notifications(&self) -> Result<CallStream, String> {
        let Transport::Http { address, tasks, .. } = &self.transport else {
            unreachable!("only HTTP has this stream")
        };
        let request = self.of_session(Request::get("/mcp")).header("Accept", "text/event-stream");
        let request = request.body(Full::default()).expect("good headers");
        let (mut sender, driver) = connect(address).await.map_err(|error| format!("{error:?}"))?;
        tasks.spawn(driver);
        let response = sender.send_request(request).await.map_err(|error| format!("{error:?}"))?;
        CallStream::checked(response, sender).await
    }

    /// Opens a listen stream of a modern client; the error is the refusal.
    pub(crate) async fn listen(&mut self, filter: Value) -> Result<CallStream, String> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": self.revision.as_str(),
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let params = json!({ "notifications": filter, "_meta": meta });
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": LISTEN, "params": params });
        let (response, sender) = self.send(message.to_string(), Some((LISTEN, None))).await?;
        CallStream::checked(response, sender).await
    }

    /// Posts a message, and returns the head of the response with its connection.
    async fn send(
        &mut self,
        message: String,
        about: Option<(&str, Option<String>)>,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), String> {
        let Transport::Http { address, key, session, connection, tasks } = &mut self.transport
        else {
            unreachable!("only HTTP posts")
        };
        let mut request = Request::post("/mcp")
            .header("Host", &*address)
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream");
        if let Some(key) = key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        if let Some(session) = session {
            request = request.header("Mcp-Session-Id", &*session);
        }
        let is_first = !self.revision.is_modern() && session.is_none();
        if !is_first {
            request = request.header("MCP-Protocol-Version", self.revision.as_str());
        }
        if let (true, Some((method, name))) = (self.revision.is_modern(), about) {
            request = request.header("Mcp-Method", method);
            if let Some(name) = name {
                request = request.header("Mcp-Name", name);
            }
        }
        let request = request.body(Full::new(Bytes::from(message))).expect("good headers");
        // A connection may end while no request is in flight.
        let mut usable = connection.take();
        if let Some(sender) = &mut usable
            && sender.ready().await.is_err()
        {
            usable = None;
        }
        let mut sender = match usable {
            Some(sender) => sender,
            None => {
                let (sender, driver) = connect(address).await.map_err(|e| format!("{e:?}"))?;
                tasks.spawn(driver);
                sender
            }
        };
        let response = sender.send_request(request).await.map_err(|error| format!("{error:?}"))?;
        if let Some(id) = response.headers().get("mcp-session-id") {
            *session = Some(id.to_str().expect("text").to_owned());
        }
        Ok((response, sender))
    }

    /// Sends the next requests to another replica, on a new connection.
    pub(crate) fn move_to(&mut self, to: &str) {
        if let Transport::Http { address, connection, .. } = &mut self.transport {
            *address = to.to_owned();
            *connection = None;
        }
    }

    /// Ends the session, and returns the status.
    pub(crate) async fn end_session(&mut self) -> u16 {
        let Transport::Http { address, tasks, .. } = &self.transport else {
            unreachable!("only HTTP has sessions")
        };
        let request = self.of_session(Request::delete("/mcp"));
        let request = request.body(Full::default()).expect("good headers");
        let (mut sender, driver) = connect(address).await.expect("it accepts");
        tasks.spawn(driver);
        sender.send_request(request).await.expect("it answers").status().as_u16()
    }

    /// Adds the headers of a request without a message.
    fn of_session(&self, mut request: Builder) -> Builder {
        let Transport::Http { address, key, session, .. } = &self.transport else {
            unreachable!("only HTTP has sessions")
        };
        if let Some(key) = key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        request
            .header("Host", address)
            .header("MCP-Protocol-Version", self.revision.as_str())
            .header("Mcp-Session-Id", session.as_deref().expect("a session"))
    }

    /// Returns the id of the session, if there is one.
    pub(crate) fn session(&self) -> Option<&str> {
        match &self.transport {
            Transport::Http { session, .. } => session.as_deref(),
            Transport::Stdio { .. } => None,
        }
    }

    /// Uses the session of another client.
    pub(crate) fn set_session(&mut self, id: &str) {
        if let Transport::Http { session, .. } = &mut self.transport {
            *session = Some(id.to_owned());
        }
    }

    /// Calls the tool `call` of an upstream.
    pub(crate) async fn call(&mut self, upstream: &str, arguments: Value) -> Outcome {
        let params = json!({ "name": format!("{upstream}__call"), "arguments": arguments });
        self.request("tools/call", params).await
    }

    /// Names of all tools, from all pages.
    pub(crate) async fn tools(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let params = cursor.take().map_or(json!({}), |cursor| json!({ "cursor": cursor }));
            let page = self.request("tools/list", params).await.result();
            let tools = page["tools"].as_array().expect("a list");
            names.extend(tools.iter().map(|tool| tool["name"].as_str().expect("text").to_owned()));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return names,
            }
        }
    }

    /// Ends the program of a client over stdio by closing its input, and returns the time that it
    /// took.
    pub(crate) async fn close(self) -> Duration {
        let begin = std::time::Instant::now();
        if let Transport::Stdio { mut child, input, .. } = self.transport {
            drop(input);
            let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
            assert!(ended.expect("it ends").expect("it can be waited for").success());
        }
        begin.elapsed()
    }
}

/// Messages of a call, as they arrive. Dropping it closes the connection.
pub(crate) struct CallStream {
    body: Incoming,
    received: String,
    _sender: SendRequest<Full<Bytes>>,
}

impl CallStream {
    /// Checks that the response is a stream.
    async fn checked(
        response: Response<Incoming>,
        sender: SendRequest<Full<Bytes>>,
    ) -> Result<Self, String> {
        let (status, body) = (response.status(), response.into_body());
        if !status.is_success() {
            let text = body.collect().await.map_err(|error| format!("{status} {error:?}"))?;
            return Err(format!("{status} {}", String::from_utf8_lossy(&text.to_bytes())));
        }
        Ok(Self { body, received: String::new(), _sender: sender })
    }

    /// Waits for the next message.
    pub(crate) async fn next(&mut self) -> Value {
        let next = tokio::time::timeout(PATIENCE, self.try_next()).await;
        next.expect("in time").expect("unbroken")
    }

    /// Waits for the next message; the error is the end of the stream. Cancel-safe.
    pub(crate) async fn try_next(&mut self) -> Result<Value, String> {
        loop {
            while let Some((line, rest)) = self.received.split_once('\n') {
                // A response without a stream is one line of JSON.
                let line = line.trim();
                let data = line.strip_prefix("data:").unwrap_or(line);
                let message = serde_json::from_str(data.trim()).ok();
                self.received = rest.to_owned();
                if let Some(message) = message {
                    return Ok(message);
                }
            }
            let Some(frame) = self.body.frame().await else {
                let rest = std::mem::take(&mut self.received);
                return serde_json::from_str(&rest).map_err(|_| format!("it ended: {rest}"));
            };
            let frame = frame.map_err(|error| format!("{error:?}"))?;
            let data = frame.into_data().unwrap_or_default();
            self.received.push_str(std::str::from_utf8(&data).expect("UTF-8"));
        }
    }
}

/// Open `subscriptions/listen` stream of a modern client for changed tools. Dropping it closes the
/// stream.
pub(crate) struct ListenStream {
    received: Arc<Mutex<String>>,
    _reading: AbortOnDropHandle<()>,
}

impl ListenStream {
    /// Opens the stream and waits for the acknowledgment.
    pub(crate) async fn open(address: &str) -> Self {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": Revision::MODERN.as_str(),
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "notifications": { "toolsListChanged": true }, "_meta": meta });
        let message =
            json!({ "jsonrpc": "2.0", "id": 1, "method": LISTEN, "params": params }).to_string();
        let request = Request::post("/mcp")
            .header("Host", address)
            .header("Content-Type", "application/json")
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", Revision::MODERN.as_str())
            .header("Mcp-Method", LISTEN)
            .body(Full::new(Bytes::from(message)))
            .expect("good headers");
        let (mut sender, driver) = connect(address).await.expect("it accepts");
        let tasks = TaskTracker::new();
        tasks.spawn(driver);
        let response = sender.send_request(request).await.expect("it answers");
        assert!(response.status().is_success(), "{}", response.status());
        let received = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&received);
        let reading = tasks.spawn(async move {
            // The sender has to live as long as the stream.
            let _sender = sender;
            let mut body = response.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                let data = frame.into_data().unwrap_or_default();
                kept.lock()
                    .expect("the lock is not poisoned")
                    .push_str(&String::from_utf8_lossy(&data));
            }
        });
        let listening = Self { received, _reading: AbortOnDropHandle::new(reading) };
        super::until("it is acknowledged", || listening.times("acknowledged") == 1).await;
        listening
    }

    /// Number of received messages with this text.
    pub(crate) fn times(&self, what: &str) -> usize {
        self.received.lock().expect("the lock is not poisoned").matches(what).count()
    }

    /// Number of `tools/list_changed` notifications.
    pub(crate) fn changes(&self) -> usize {
        self.times("notifications/tools/list_changed")
    }
}

const LISTEN: &str = "subscriptions/listen";

type Driver = Connection<TokioIo<TcpStream>, Full<Bytes>>;

async fn connect(address: &str) -> hyper::Result<(SendRequest<Full<Bytes>>, Driver)> {
    let stream = TcpStream::connect(address).await.expect("Weir accepts");
    stream.set_nodelay(true).expect("a socket");
    handshake(TokioIo::new(stream)).await
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

fn outcome(id: u64, answer: &Value) -> Outcome {
    match answer.get("error") {
        Some(error) => {
            // An error for a request whose id could not be read has no id.
            let is_ours = answer.get("id").is_none_or(|theirs| *theirs == id);
            assert!(is_ours, "{id} is answered with {answer}");
            let message = error["message"].as_str().expect("text").to_owned();
            Outcome::Error { code: error["code"].as_i64().expect("a code"), message }
        }
        None => {
            assert_eq!(answer["id"], id, "{id} is answered with {answer}");
            Outcome::Result(answer.get("result").expect("a result").clone())
        }
    }
}
