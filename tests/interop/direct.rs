//! What a real server lists and answers by itself, and what Weir makes of it: the same, under other names.
//!
//! Each server is spoken to in raw lines, once directly and once through Weir, by clients of both eras.
//! Their facts stand in `tests/interop/parts/README.md`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::fleet::{Fleet, Log, soon};
use crate::parts::{everything, page, part, script};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Era {
    Legacy,
    Modern,
}

use Era::{Legacy, Modern};

/// A client over lines, which reads every answer as it was written.
struct Pipe {
    _child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    asked: u64,
}

impl Pipe {
    /// Starts the program and, in the legacy era, shakes hands.
    async fn open(mut command: Command, era: Era) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut pipe = Self { _child: child, stdin, lines, asked: 0 };
        if era == Legacy {
            pipe.shake_hands().await;
        }
        pipe
    }

    async fn shake_hands(&mut self) {
        let us = json!({ "name": "test", "version": "0" });
        let hello =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": us });
        let answer = self.ask(Legacy, "initialize", hello).await;
        assert!(answer["result"]["capabilities"].is_object(), "{answer}");
        self.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    }

    async fn write(&mut self, message: &Value) {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// The answer without what frames it: `{"result": …}` or `{"error": …}`.
    async fn ask(&mut self, era: Era, method: &str, mut params: Value) -> Value {
        self.asked += 1;
        if era == Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let id = json!(self.asked);
        let ask = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(&ask).await;
        loop {
            let line = soon(self.lines.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("no answer to {ask}"));
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            // What a server tells without being asked stands between the answers.
            if answer["id"] == id && answer.get("method").is_none() {
                answer.as_object_mut().unwrap().retain(|key, _| key != "jsonrpc" && key != "id");
                return plain(answer);
            }
        }
    }

    /// All that is listed, through all pages.
    async fn list(&mut self, era: Era, method: &str, member: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut params = json!({});
        loop {
            let mut page = self.ask(era, method, params).await;
            if page["error"]["code"] == -32601 {
                return all;
            }
            let Value::Array(items) = page["result"][member].take() else {
                panic!("{method} without {member}: {page}");
            };
            all.extend(items);
            match page["result"]["nextCursor"].take() {
                Value::Null => return all,
                cursor => params = json!({ "cursor": cursor }),
            }
        }
    }
}

/// An answer without the members that only one of the eras has.
fn plain(mut answer: Value) -> Value {
    if let Some(result) = answer["result"].as_object_mut() {
        result.retain(|key, _| !matches!(key.as_str(), "resultType" | "ttlMs" | "cacheScope"));
        if let Some(meta) = result.get_mut("_meta").and_then(Value::as_object_mut) {
            meta.remove("io.modelcontextprotocol/serverInfo");
            if meta.is_empty() {
                result.remove("_meta");
            }
        }
    } else {
        answer.as_object_mut().unwrap().remove("result");
    }
    answer
}

/// A real server over stdio.
struct Server {
    /// Its upstream's name.
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    path: Option<&'static str>,
    /// The newest era that it speaks, which Weir is to find.
    era: Era,
    /// Requests that it answers alike each time, with its own names.
    asks: Vec<(&'static str, Value)>,
}

impl Server {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stderr(Stdio::null());
        if let Some(path) = self.path {
            command.env("PATH", path);
        }
        command
    }

    fn configuration(&self) -> String {
        let Self { name, program, arguments, .. } = self;
        let path = self.path.map(|path| format!("env = {{ PATH = {path:?} }}\n"));
        let path = path.unwrap_or_default();
        format!("[upstreams.{name}]\ncommand = {program:?}\nargs = {arguments:?}\n{path}")
    }

    /// The name that Weir gives to one of its prompts or tools.
    fn public(&self, own: &Value) -> Value {
        json!(format!("{}__{}", self.name, own.as_str().unwrap()))
    }
}

fn servers(repository: &Path, page: &str) -> Vec<Server> {
    // Nothing here is to find a `kubectl`, or a `node` to start npm with.
    let nowhere = Some("/nonexistent");
    let repository = repository.to_str().unwrap();
    let at = |program: &str| part(program);
    let server = |name, program, arguments: &[&str], path, era, asks| {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Server { name, program, arguments, path, era, asks }
    };
    let call = |name: &str, with: Value| ("tools/call", json!({ "name": name, "arguments": with }));
    let get = |name: &str, with: Value| ("prompts/get", json!({ "name": name, "arguments": with }));
    let read = |uri: &str| ("resources/read", json!({ "uri": uri }));
    let complete = |of: Value, name: &str, typed: &str| {
        let argument = json!({ "name": name, "value": typed });
        ("completion/complete", json!({ "ref": of, "argument": argument }))
    };
    let prompt = |name: &str| json!({ "type": "ref/prompt", "name": name });

    let fetched = || {
        let page = json!({ "url": page, "raw": true });
        vec![get("fetch", json!({ "url": page["url"] })), call("fetch", page)]
    };
    let status = || vec![call("git_status", json!({ "repo_path": repository }))];
    // What it tells of a real zone depends on the day.
    let zone = || vec![call("get_current_time", json!({ "timezone": "Weir/Nowhere" }))];
    let tides = script("sdk2_server.mjs");
    let kubernetes = part("kubernetes/node_modules/mcp-server-kubernetes/dist/index.js");
    vec![
        server(
            "everything",
            at("bin/node"),
            &[everything().to_str().unwrap(), "stdio"],
            None,
            Legacy,
            vec![
                get("args-prompt", json!({ "city": "Delft", "state": "Zuid-Holland" })),
                get("args-prompt", json!({})),
                get("simple-prompt", json!({})),
                complete(prompt("completable-prompt"), "department", "E"),
                call("echo", json!({ "message": "ä" })),
                call("get-structured-content", json!({ "location": "Chicago" })),
                call("get-tiny-image", json!({})),
                read("demo://resource/static/document/features.md"),
            ],
        ),
        server(
            "fetch",
            at("mcp2/bin/mcp-server-fetch"),
            &["--allow-private-ips"],
            nowhere,
            Modern,
            fetched(),
        ),
        server(
            "fetch-old",
            at("mcp1/bin/mcp-server-fetch"),
            &["--allow-private-ips"],
            nowhere,
            Legacy,
            fetched(),
        ),
        server(
            "git",
            at("mcp2/bin/mcp-server-git"),
            &["--repository", repository],
            None,
            Modern,
            status(),
        ),
        server(
            "git-old",
            at("mcp1/bin/mcp-server-git"),
            &["--repository", repository],
            None,
            Legacy,
            status(),
        ),
        server(
            "time",
            at("mcp2/bin/mcp-server-time"),
            &["--local-timezone", "UTC"],
            None,
            Modern,
            zone(),
        ),
        server(
            "time-old",
            at("mcp1/bin/mcp-server-time"),
            &["--local-timezone", "UTC"],
            None,
            Legacy,
            zone(),
        ),
        server(
            "kubernetes",
            at("bin/node"),
            &[kubernetes.to_str().unwrap()],
            nowhere,
            Legacy,
            vec![
                get("k8s-diagnose", json!({ "keyword": "web" })),
                get("k8s-diagnose", json!({ "keyword": "web", "namespace": "shop" })),
                call("ping", json!({})),
                // There is no cluster.
                read("k8s://nodes"),
            ],
        ),
        server(
            "tides",
            at("bin/node"),
            &[tides.to_str().unwrap(), "stdio"],
            None,
            Modern,
            vec![
                get("tide-table", json!({ "port": "Harlingen" })),
                get("tide-table", json!({})),
                complete(prompt("tide-table"), "port", "den"),
                complete(
                    json!({ "type": "ref/resource", "uri": "tides://{port}/now" }),
                    "port",
                    "h",
                ),
                call("depth", json!({ "port": "Delfzijl", "metres": 7.25 })),
                call("depth", json!({ "port": "Delfzijl" })),
                read("tides://ports"),
                read("tides://Den%20Oever/now"),
            ],
        ),
    ]
}

const LISTS: [(&str, &str); 4] = [
    ("prompts/list", "prompts"),
    ("tools/list", "tools"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

/// What a server says by itself in one era: its lists as Weir is to show them, and its answers.
async fn said_directly(server: &Server, era: Era) -> (Vec<Vec<Value>>, Vec<Value>) {
    let mut pipe = Pipe::open(server.command(), era).await;
    let mut lists = Vec::new();
    for (method, member) in LISTS {
        let mut items = pipe.list(era, method, member).await;
        for item in items.iter_mut().filter(|_| matches!(member, "prompts" | "tools")) {
            item["name"] = server.public(&item["name"]);
        }
        lists.push(items);
    }
    let mut answers = Vec::new();
    for (method, params) in &server.asks {
        answers.push(pipe.ask(era, method, params.clone()).await);
    }
    (lists, answers)
}

/// Compares what Weir says with what each of its servers said by itself.
async fn compare(
    weir: &mut Pipe,
    era: Era,
    servers: &[Server],
    said: &[(Vec<Vec<Value>>, Vec<Value>)],
) {
    for (kind, (method, member)) in LISTS.into_iter().enumerate() {
        let mut expected: Vec<_> =
            said.iter().flat_map(|(lists, _)| lists[kind].iter().map(Value::to_string)).collect();
        let listed = weir.list(era, method, member).await;
        let mut listed: Vec<_> = listed.iter().map(Value::to_string).collect();
        assert!(!expected.is_empty(), "nobody answers {method}");
        // The order is Weir's own.
        expected.sort();
        listed.sort();
        assert_eq!(listed, expected, "{method}, {era:?}");
    }
    for (server, (_, answers)) in servers.iter().zip(said) {
        for ((method, params), expected) in server.asks.iter().zip(answers) {
            let mut params = params.clone();
            if let Some(own) = params.get("name") {
                params["name"] = server.public(own);
            } else if let Some(own) = params.pointer("/ref/name") {
                params["ref"]["name"] = server.public(own);
            }
            let answer = weir.ask(era, method, params.clone()).await;
            assert_eq!(answer, *expected, "{}, {method}, {params}, {era:?}", server.name);
        }
    }
}

/// Puts Weir before the servers, each spoken to in the era that it says.
async fn compare_all(servers: &[Server], rest: &str) {
    let configuration: Vec<_> =
        servers.iter().map(|server| server.configuration() + rest).collect();
    let fleet = Fleet::new(&configuration.concat());
    let mut command = fleet.command(&["stdio"]);
    command.stderr(Stdio::piped());
    let mut weir = Pipe::open(command, Modern).await;
    let mut log = Log::of(weir._child.stderr.take().unwrap());
    // Meanwhile Weir starts its own.
    let said = join_all(servers.iter().map(|server| said_directly(server, server.era)));
    let said = said.await;
    for server in servers {
        let up = log.logged("up", server.name).await;
        let revision = match server.era {
            Legacy => "2025-11-25",
            Modern => "2026-07-28",
        };
        assert_eq!(up["revision"], revision, "{}", server.name);
        log.logged("listed", server.name).await;
    }
    compare(&mut weir, Modern, servers, &said).await;
    weir.shake_hands().await;
    compare(&mut weir, Legacy, servers, &said).await;
}

#[tokio::test]
async fn a_real_server_lists_and_answers_through_weir_what_it_does_directly() {
    let everyone = async {
        let repository = tempfile::TempDir::new().unwrap();
        let git = Command::new("git").arg("init").arg("--quiet").arg(repository.path()).status();
        assert!(soon(git).await.unwrap().success());
        let mut servers = servers(repository.path(), &page().await);
        compare_all(&servers, "").await;

        // Those of both eras once more in the older one, where they are asked to.
        servers.retain(|server| server.era == Modern);
        for server in &mut servers {
            server.era = Legacy;
        }
        compare_all(&servers, "era = \"legacy\"\n").await;
    };
    tokio::task::LocalSet::new().run_until(everyone).await;
}
