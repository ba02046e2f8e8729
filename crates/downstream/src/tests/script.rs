//! Two scripted upstreams, one of each era, as simulated processes.

use std::io;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split};
use tokio::sync::{broadcast, watch};
use tokio_util::task::TaskTracker;

use weir_base::net::http_connection::ByteStream;
use weir_upstream::connect::{Child, ChildCommand, Connect, Destination, ProcessHandle};

/// Controls and counters of the upstreams.
pub(super) struct Script {
    /// Releases calls to the tools `wait` and `progress`.
    pub(super) go: broadcast::Sender<()>,
    /// Number of calls to `wait` that have started.
    pub(super) waiting: watch::Sender<usize>,
    /// Number of these calls that were cancelled.
    pub(super) cancelled: watch::Sender<usize>,
    /// Adds a tool to the old upstream, which sends `list_changed`.
    pub(super) more_tools: watch::Sender<usize>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            go: broadcast::Sender::new(4),
            waiting: watch::Sender::default(),
            cancelled: watch::Sender::default(),
            more_tools: watch::Sender::default(),
        }
    }
}

pub(super) fn command(program: &str) -> ChildCommand {
    ChildCommand {
        program: program.into(),
        display_name: program.into(),
        ..ChildCommand::default()
    }
}

impl Connect for Script {
    fn connect<'a>(&'a self, _: Destination<'a>) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        async { Err(io::ErrorKind::Unsupported.into()) }.boxed()
    }

    fn spawn(&self, command: &ChildCommand) -> io::Result<Child> {
        let (ours, theirs) = duplex(1024 * 1024);
        let server = ScriptedServer {
            modern: command.program == "new",
            go: self.go.clone(),
            waiting: self.waiting.clone(),
            cancelled: self.cancelled.clone(),
            more_tools: self.more_tools.subscribe(),
        };
        let run = TaskTracker::new().spawn(server.run(theirs));
        let (stdout, stdin) = split(ours);
        let process = Box::new(ScriptedTask(run));
        Ok(Child { stdin: Box::new(stdin), stdout: Box::new(stdout), stderr: None, process })
    }
}

struct ScriptedTask(tokio::task::JoinHandle<()>);

impl ProcessHandle for ScriptedTask {
    fn wait(&mut self) -> BoxFuture<'_, String> {
        async {
            // A task can be awaited once; afterwards it has ended.
            if !self.0.is_finished() {
                let _ = (&mut self.0).await;
            }
            "ended".to_owned()
        }
        .boxed()
    }
    fn terminate(&mut self) {
        self.0.abort();
    }
    fn kill(&mut self) {
        self.0.abort();
    }
}

/// A call that waits until it is released.
struct BlockedCall {
    id: Value,
    token: Option<Value>,
}

struct ScriptedServer {
    modern: bool,
    go: broadcast::Sender<()>,
    waiting: watch::Sender<usize>,
    cancelled: watch::Sender<usize>,
    more_tools: watch::Receiver<usize>,
}

impl ScriptedServer {
    async fn run(mut self, io: DuplexStream) {
        let (input, mut output) = split(io);
        let mut lines = BufReader::new(input).lines();
        let mut go = self.go.subscribe();
        let mut held: Vec<BlockedCall> = Vec::new();
        loop {
            let answers = tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => {
                        self.answer(&serde_json::from_str(&line).expect("JSON"), &mut held)
                    }
                    _ => return,
                },
                Ok(()) = go.recv() => held.drain(..).flat_map(|held| self.finish(&held)).collect(),
                Ok(()) = self.more_tools.changed(), if !self.modern => {
                    let method = "notifications/tools/list_changed";
                    vec![json!({"jsonrpc":"2.0","method":method})]
                }
            };
            for answer in answers {
                let line = format!("{answer}\n");
                if output.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    fn answer(&self, message: &Value, held: &mut Vec<BlockedCall>) -> Vec<Value> {
        let (id, params) = (&message["id"], &message["params"]);
        let result = match message["method"].as_str().unwrap_or_default() {
            "notifications/cancelled" => {
                let before = held.len();
                held.retain(|held| held.id != params["requestId"]);
                self.cancelled.send_modify(|count| *count += before - held.len());
                return Vec::new();
            }
            "server/discover" if self.modern => json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}, "prompts": {}, "completions": {}},
                "ttlMs": 0, "cacheScope": "private",
            }),
            "initialize" if !self.modern => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": true}, "resources": {}},
                "serverInfo": {"name": "old", "version": "1"},
            }),
            "tools/list" => {
                let extra = (0..*self.more_tools.borrow()).map(|n| tool(&format!("extra{n}")));
                let fixed = ["echo", "secret", "wait", "progress", "ask"].map(tool);
                self.listed("tools", fixed.into_iter().chain(extra).collect())
            }
            "prompts/list" => self.listed("prompts", vec![json!({"name": "hello"})]),
            "resources/list" => self.listed(
                "resources",
                vec![
                    json!({"uri": "file:///a", "name": "a"}),
                    json!({"uri": "file:///secret", "name": "s"}),
                ],
            ),
            "resources/templates/list" => self.listed("resourceTemplates", Vec::new()),
            "resources/read" if params["uri"] == "file:///a" => json!({"contents": []}),
            "completion/complete" => json!({"resultType":"complete","completion":{"values":[]}}),
            "prompts/get" => json!({"resultType": "complete", "messages": []}),
            "tools/call" => match params["name"].as_str().unwrap_or_default() {
                "wait" => {
                    held.push(BlockedCall { id: id.clone(), token: None });
                    self.waiting.send_modify(|count| *count += 1);
                    return Vec::new();
                }
                "progress" if !params["_meta"]["progressToken"].is_null() => {
                    let token = params["_meta"]["progressToken"].clone();
                    held.push(BlockedCall { id: id.clone(), token: Some(token.clone()) });
                    return vec![note(&token, 1)];
                }
                "ask" if self.modern => {
                    json!({"resultType": "input_required", "inputRequests": {}})
                }
                name => return vec![self.done(id, name)],
            },
            _ if id.is_null() => return Vec::new(),
            "resources/read" => return vec![error(id, -32002, "Resource not found")],
            _ => return vec![error(id, -32601, "Method not found")],
        };
        vec![json!({"jsonrpc": "2.0", "id": id, "result": result})]
    }

    fn finish(&self, held: &BlockedCall) -> Vec<Value> {
        let last = held.token.iter().map(|token| note(token, 2));
        last.chain([self.done(&held.id, "went")]).collect()
    }

    fn listed(&self, member: &str, items: Vec<Value>) -> Value {
        if self.modern {
            json!({"resultType":"complete", member: items, "ttlMs": 60000, "cacheScope": "public"})
        } else {
            json!({ member: items })
        }
    }

    fn done(&self, id: &Value, text: &str) -> Value {
        let content = json!([{"type": "text", "text": text}]);
        let result = if self.modern {
            json!({"resultType": "complete", "content": content})
        } else {
            json!({"content": content})
        };
        json!({"jsonrpc": "2.0", "id": id, "result": result})
    }
}

fn note(token: &Value, progress: u32) -> Value {
    let params = json!({"progressToken": token, "progress": progress});
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
}

fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
