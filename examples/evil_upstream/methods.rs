//! Responses of the server to each method, in any revision, and the record of received messages.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::output::MessageSink;
use crate::script::{Fault, Script, Walk};

/// State that all threads share.
pub(crate) struct Server {
    pub(crate) folder: PathBuf,
    /// Name of the folder; every response contains it.
    name: String,
    executed: File,
    heard: File,
    /// Ids of legacy HTTP sessions. They end with the process.
    pub(crate) sessions: Mutex<HashSet<String>>,
    next_session: AtomicU64,
    /// Receivers of notifications: GET streams and listen streams.
    pub(crate) listeners: Mutex<Vec<Listener>>,
    /// Number of pages that were served for [`Walk::Endless`] and [`Walk::SameCursor`].
    pages: AtomicUsize,
    refused: AtomicBool,
    /// Ids of the requests of the server that clients have responded to.
    answered: Mutex<HashSet<String>>,
    has_answered: Condvar,
}

/// Open stream, or standard output.
pub(crate) struct Listener {
    pub(crate) sink: MessageSink,
    /// Session id, or for a listen stream the request id as JSON.
    pub(crate) owner: String,
    /// Whether `$SUB` in texts is replaced with `owner`.
    pub(crate) is_listen: bool,
}

/// Reaction to a received message.
pub(crate) enum Action {
    /// Send this response with its fault.
    Respond(Box<Response>),
    /// Open a listen stream with this request id and these notifications.
    OpenStream(String, Value),
    /// Send no response.
    Ignore,
}

pub(crate) struct Response {
    pub(crate) method: String,
    pub(crate) nonce: String,
    pub(crate) text: String,
    pub(crate) fault: Fault,
    /// Messages before and after the response, from the fault.
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
}

/// Longest wait for a client that was asked; it may have ended.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Number of tools per page of a long list.
const PAGE_ITEMS: usize = 10_000;

impl Server {
    pub(crate) fn new(folder: PathBuf) -> Arc<Self> {
        let open = |name| {
            let file = OpenOptions::new().create(true).append(true).open(folder.join(name));
            file.expect("its folder is there")
        };
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (executed, heard) = (open("executed"), open("heard"));
        Arc::new(Self {
            folder,
            name,
            executed,
            heard,
            sessions: Mutex::default(),
            next_session: AtomicU64::new(1),
            listeners: Mutex::default(),
            pages: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            answered: Mutex::default(),
            has_answered: Condvar::new(),
        })
    }

    /// Waits until a client has responded to the request of this id; false if it does not.
    pub(crate) fn wait_for_answer(&self, id: &str) -> bool {
        let answered = self.answered.lock().expect("no thread panics");
        let (mut answered, _) = self
            .has_answered
            .wait_timeout_while(answered, ANSWER_TIME, |answered| !answered.contains(id))
            .expect("no thread panics");
        answered.remove(id)
    }

    /// Waits until the folder contains this file, if one is given.
    pub(crate) fn wait_for_file(&self, file: Option<&str>) {
        while file.is_some_and(|file| !self.folder.join(file).exists()) {
            sleep(Duration::from_millis(2));
        }
    }

    /// Appends a line to a file of the folder with one write.
    pub(crate) fn record(&self, file: &str, text: impl std::fmt::Display) {
        let line = format!("{text}\n");
        let written = match file {
            "executed" => (&self.executed).write_all(line.as_bytes()),
            "heard" => (&self.heard).write_all(line.as_bytes()),
            _ => append(&self.folder.join(file), &line),
        };
        written.expect("its folder can be written to");
    }

    pub(crate) fn new_session(&self) -> String {
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        let session = format!("{}-{}-{number}", self.name, std::process::id());
        self.sessions.lock().expect("no thread panics").insert(session.clone());
        session
    }

    /// Records a message and decides how to react.
    pub(crate) fn handle(&self, script: &Script, message: &Value) -> Action {
        let Some(method) = message["method"].as_str() else {
            self.record("heard", format_args!("answer {message}"));
            if let Some(id) = message["id"].as_str() {
                self.answered.lock().expect("no thread panics").insert(id.to_owned());
                self.has_answered.notify_all();
            }
            return Action::Ignore;
        };
        let params = &message["params"];
        let is_call = matches!(method, "tools/call" | "prompts/get" | "resources/read");
        let Some(id) = message.get("id") else {
            self.record("heard", format_args!("{method} {}", params["requestId"]));
            return Action::Ignore;
        };
        if !is_call {
            let cursor = params.get("cursor").map(|cursor| format!(" {cursor}"));
            self.record("heard", format_args!("{method}{}", cursor.unwrap_or_default()));
        }
        let nonce = &params["arguments"]["nonce"];
        let from_argument = params["arguments"]["fault"].as_str().map(Fault::from_argument);
        let mut fault =
            from_argument.or_else(|| script.on.get(method).cloned()).unwrap_or_default();
        if is_call && fault.status.is_none() {
            self.record("executed", nonce.as_str().unwrap_or("-"));
        }
        if method == "subscriptions/listen"
            && script.is_modern()
            && !fault.never
            && fault.flood.is_none()
        {
            return Action::OpenStream(id.to_string(), params["notifications"].clone());
        }
        let fill = |text: &String| {
            let token = params["_meta"]["progressToken"].to_string();
            let nonce = nonce.as_str().unwrap_or_default();
            let text = text.replace("$ID", &id.to_string()).replace("$TOKEN", &token);
            let task = params["taskId"].as_str().unwrap_or_default();
            text.replace("$NONCE", nonce).replace("$NAME", &self.name).replace("$TASK", task)
        };
        fault.flood = fault.flood.as_ref().map(fill);
        let text = match &fault.text {
            Some(text) => fill(text),
            None if fault.result_bytes > 0 => {
                let content = json!({ "type": "text", "text": "x".repeat(fault.result_bytes) });
                let result = json!({ "content": [content] });
                json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()
            }
            None => self.response(script, id, method, params).to_string(),
        };
        let token = &params["_meta"]["progressToken"];
        let progress = (1..=fault.progress).filter(|_| !token.is_null()).map(|at| {
            let params = json!({ "progressToken": token, "progress": at });
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
                .to_string()
        });
        let before = fault.before.iter().map(fill).chain(progress).collect();
        let mut after: Vec<String> = fault.after.iter().map(fill).collect();
        if script.restless && method == "tools/list" {
            after.push(TOOLS_CHANGED.into());
        }
        Action::Respond(Box::new(Response {
            method: method.to_owned(),
            nonce: nonce.as_str().unwrap_or_default().to_owned(),
            text,
            fault,
            before,
            after,
        }))
    }

    fn response(&self, script: &Script, id: &Value, method: &str, params: &Value) -> Value {
        match self.result(script, method, params) {
            Err((code, text)) => {
                let error = json!({ "code": code, "message": text });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
            Ok(mut result) => {
                if script.is_modern() {
                    result["resultType"] = "complete".into();
                    if method.ends_with("/list") || method == "server/discover" {
                        // Long, so that clients list again only after a notification.
                        result["ttlMs"] = 3_600_000.into();
                        result["cacheScope"] = "public".into();
                    }
                }
                json!({ "jsonrpc": "2.0", "id": id, "result": result })
            }
        }
    }

    fn result(&self, script: &Script, method: &str, params: &Value) -> Result<Value, RpcError> {
        let changes = json!({ "listChanged": true });
        let capabilities = json!({ "tools": changes, "prompts": changes, "resources": changes });
        let nonce = params["arguments"]["nonce"].as_str().unwrap_or_default();
        let text_content = json!({ "type": "text", "text": format!("{}:{nonce}", self.name) });
        Ok(match method {
            "initialize" if !script.is_modern() => json!({
                "protocolVersion": script.revision(),
                "capabilities": capabilities,
                "serverInfo": { "name": "evil", "version": "1" },
            }),
            "server/discover" if script.is_modern() => json!({
                "supportedVersions": [script.revision()],
                "capabilities": capabilities,
            }),
            "ping" => json!({}),
            "tools/list" => self.tools(script, params.get("cursor"))?,
            "prompts/list" => json!({ "prompts": [{ "name": "say" }] }),
            "resources/list" => {
                json!({ "resources": [{ "uri": self.uri(), "name": "thing" }] })
            }
            "resources/templates/list" => json!({ "resourceTemplates": [] }),
            "tools/call" => json!({ "content": [text_content] }),
            "prompts/get" => json!({ "messages": [{ "role": "user", "content": text_content }] }),
            "resources/read" => json!({ "contents": [{ "uri": self.uri(), "text": self.name }] }),
            _ => return Err((-32601, "unknown method".into())),
        })
    }

    fn uri(&self) -> String {
        format!("evil://{}/thing", self.name)
    }

    /// Page of the list of tools.
    fn tools(&self, script: &Script, cursor: Option<&Value>) -> Result<Value, RpcError> {
        let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
        let plain = |count: usize| {
            let more = (1..=count).map(|at| tool(&format!("t{at}")));
            [tool("call")].into_iter().chain(more).collect::<Vec<_>>()
        };
        let next_page = || self.pages.fetch_add(1, Ordering::Relaxed);
        let at = cursor.and_then(Value::as_str);
        let (tools, next): (Vec<Value>, Option<String>) = match script.walk {
            Walk::Whole => (plain(script.more_tools), None),
            Walk::Pages => {
                let start = at.and_then(|at| at.parse().ok()).unwrap_or(0);
                let end = script.more_tools.min(start + PAGE_ITEMS);
                let tools = (start..end).map(|at| tool(&format!("t{at}")));
                let first = (start == 0).then(|| tool("call"));
                let next = (end < script.more_tools).then(|| end.to_string());
                (first.into_iter().chain(tools).collect(), next)
            }
            Walk::Odd => {
                let odd = odd_cursors();
                let place = match at {
                    None => 0,
                    Some(at) => match odd.iter().position(|odd| odd == at) {
                        Some(place) => place + 1,
                        None => return Err((-32602, "a cursor that is not ours".into())),
                    },
                };
                let name = if place == 0 { "call".into() } else { format!("t{place}") };
                (vec![tool(&name)], odd.get(place).cloned())
            }
            Walk::Loop => (plain(2), Some("again".into())),
            Walk::EmptyForEver => (plain(2), Some(String::new())),
            Walk::Endless => {
                let page = next_page();
                let more = (0..100).map(|at| tool(&format!("p{page}-{at}")));
                (more.chain([tool("call")]).collect(), Some(format!("page {page}")))
            }
            Walk::SameCursor => {
                let page = at.map_or(0, |_| next_page() % 10 + 1);
                let name = if page == 0 { "call".into() } else { format!("t{page}") };
                (vec![tool(&name)], (page < 10).then(|| "on".into()))
            }
            Walk::RefusedOnce | Walk::Refused => match at {
                None => (plain(0), Some("second".into())),
                Some(_) => {
                    let was_refused = self.refused.swap(true, Ordering::Relaxed);
                    if script.walk == Walk::Refused || !was_refused {
                        return Err((-32602, "a cursor that is too old".into()));
                    }
                    (vec![tool("t1")], None)
                }
            },
            Walk::Twice => {
                let mut tools = plain(3);
                for tool in &mut tools {
                    tool["title"] = "first".into();
                }
                let again = tools.iter().cloned().map(|mut tool| {
                    tool["title"] = "second".into();
                    tool
                });
                (tools.iter().cloned().chain(again).collect(), None)
            }
            Walk::NoArray => return Ok(json!({ "tools": { "call": 1 } })),
        };
        let mut page = Map::from_iter([("tools".to_owned(), Value::Array(tools))]);
        page.extend(next.map(|next| ("nextCursor".to_owned(), Value::String(next))));
        Ok(Value::Object(page))
    }
}

type RpcError = (i32, String);

/// Unusual cursors that a client has to send back unchanged.
fn odd_cursors() -> Vec<String> {
    let long = "c".repeat(4096);
    ["", &long, "a\0b", "🦀", "%00", r#"{"at":1}"#, " "].map(str::to_owned).to_vec()
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

pub(crate) const TOOLS_CHANGED: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
