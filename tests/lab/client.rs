//! One client of either era, over HTTP or stdio, that sends one request at a time and checks all
//! that comes back.
//!
//! Every client counts its ids from 1, so those of different clients are equal on purpose.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::PATIENCE;
use super::connection::{Connection, Head};

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
        /// Connection of the last request, which has ended.
        connection: Option<Connection>,
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
        Ok(self.post(message, None).await?.0)
    }

    /// Posts a message or a batch that expects no response, and returns the status.
    pub(crate) async fn post_status(&mut self, message: &Value) -> u16 {
        self.post(message.to_string(), None).await.expect("it is answered").0
    }

    /// Returns the id of the last request.
    pub(crate) fn last_id(&self) -> u64 {
        self.next_id - 1
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
    pub(crate) async fn post(
        &mut self,
        message: String,
        about: Option<(&str, Option<String>)>,
    ) -> Result<(u16, bool, String), String> {
        let (head, mut used) = self.send(message, about).await?;
        let (status, is_stream) = (head.status, head.is_stream());
        let mut bytes = Vec::new();
        loop {
            match used.read_piece().await {
                Ok(Some(piece)) => bytes.extend(piece),
                Ok(None) => break,
                // A truncated response is not a response.
                Err(error) if !is_stream => return Err(format!("{error:?}")),
                Err(_) => return Ok((status, is_stream, text(bytes))),
            }
        }
        if let Transport::Http { connection, .. } = &mut self.transport {
            *connection = Some(used);
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
        let (_, connection) = self.send(message.to_string(), None).await?;
        Ok(CallStream { connection, received: String::new() })
    }

    /// Opens the stream for notifications of a legacy session; the error is the refusal.
    pub(crate) async fn notifications(&self) -> Result<CallStream, String> {
        let mut connection = self.connect().await.map_err(|error| format!("{error:?}"))?;
        let request = format!("{}Accept: text/event-stream\r\n\r\n", self.head("GET", None));
        let head = exchange(&mut connection, &request).await?;
        CallStream::checked(head, connection).await
    }

    /// Opens a listen stream of a modern client; the error is the refusal.
    pub(crate) async fn listen(&mut self, filter: Value) -> Result<CallStream, String> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": self.revision.as_str(),
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let params = json!({ "notifications": filter, "_meta": meta });
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": LISTEN, "params": params });
        let (head, connection) = self.send(message.to_string(), Some((LISTEN, None))).await?;
        CallStream::checked(head, connection).await
    }

    /// Posts a message, and returns the head of the response with its connection.
    async fn send(
        &mut self,
        message: String,
        about: Option<(&str, Option<String>)>,
    ) -> Result<(Head, Connection), String> {
        let head = self.head("POST", about);
        let Transport::Http { connection, .. } = &mut self.transport else {
            unreachable!("only HTTP posts")
        };
        // A connection may end while no request is in flight.
        let usable = connection.take().and_then(|mut it| it.is_usable().then_some(it));
        let mut connection = match usable {
            Some(connection) => connection,
            None => self.connect().await.map_err(|error| format!("{error:?}"))?,
        };
        let request = format!(
            "{head}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{message}",
            message.len()
        );
        let head = exchange(&mut connection, &request).await?;
        if let Some(id) = head.header("mcp-session-id")
            && let Transport::Http { session, .. } = &mut self.transport
        {
            *session = Some(id.to_owned());
        }
        Ok((head, connection))
    }

    async fn connect(&self) -> io::Result<Connection> {
        let Transport::Http { address, .. } = &self.transport else {
            unreachable!("only HTTP has connections")
        };
        Connection::open(address).await
    }

    /// Head of a request, without the headers of its body and without its final empty line.
    fn head(&self, verb: &str, about: Option<(&str, Option<String>)>) -> String {
        let Transport::Http { address, key, session, .. } = &self.transport else {
            unreachable!("only HTTP has heads")
        };
        let mut head = format!("{verb} /mcp HTTP/1.1\r\nHost: {address}\r\n");
        let mut add = |name: &str, value: &str| head += &format!("{name}: {value}\r\n");
        if let Some(key) = key {
            add("Authorization", &format!("Bearer {key}"));
        }
        if let Some(session) = session {
            add("Mcp-Session-Id", session);
        }
        if self.revision.is_modern() || session.is_some() {
            add("MCP-Protocol-Version", self.revision.as_str());
        }
        if let (true, Some((method, name))) = (self.revision.is_modern(), about) {
            add("Mcp-Method", method);
            if let Some(name) = name {
                add("Mcp-Name", &name);
            }
        }
        head
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
        let mut connection = self.connect().await.expect("it accepts");
        let request = format!("{}\r\n", self.head("DELETE", None));
        exchange(&mut connection, &request).await.expect("it answers").status
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
    connection: Connection,
    received: String,
}

impl CallStream {
    /// Checks that the response is a stream.
    async fn checked(head: Head, mut connection: Connection) -> Result<Self, String> {
        if !head.is_success() {
            let mut text = format!("{} ", head.status);
            while let Some(piece) = connection.read_piece().await.map_err(|it| it.to_string())? {
                text += &String::from_utf8_lossy(&piece);
            }
            return Err(text);
        }
        Ok(Self { connection, received: String::new() })
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
            let piece = self.connection.read_piece().await.map_err(|error| format!("{error:?}"))?;
            let Some(data) = piece else {
                let rest = std::mem::take(&mut self.received);
                return serde_json::from_str(&rest).map_err(|_| format!("it ended: {rest}"));
            };
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
        let mut client = Client::http(address, Revision::MODERN, None).await;
        let filter = json!({ "toolsListChanged": true });
        let mut stream = client.listen(filter).await.expect("it is a stream");
        let received = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&received);
        let reading = TaskTracker::new().spawn(async move {
            while let Ok(Some(piece)) = stream.connection.read_piece().await {
                kept.lock()
                    .expect("the lock is not poisoned")
                    .push_str(&String::from_utf8_lossy(&piece));
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

/// Returns the notification that cancels a request.
pub(crate) fn cancellation(id: u64) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })
}

const LISTEN: &str = "subscriptions/listen";

/// Sends a request and returns the head of its response.
async fn exchange(connection: &mut Connection, request: &str) -> Result<Head, String> {
    connection.send(request).await.map_err(|error| format!("{error:?}"))?;
    connection.read_head().await.map_err(|error| format!("{error:?}"))
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
