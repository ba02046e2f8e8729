//! A client of either era over lines, which exposes all that it reads.
//!
//! Before two responses are compared, members of only one era are removed: `resultType`, the
//! freshness of a result, and `serverInfo`.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::fleet::{RUN_PATIENCE, log_of, within};
use Era::{Legacy, Modern};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// Client over lines, which reads every response as it was written.
pub(crate) struct Pipe {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    asked: u64,
    /// Whether lines that are no JSON are skipped.
    skips: bool,
}

impl Pipe {
    /// Starts the program and, in the legacy era, initializes.
    pub(crate) async fn open(command: Command, era: Era) -> Self {
        Self::start(command, era, false).await
    }

    /// Starts a server, some of which write other text to stdout as well.
    pub(crate) async fn open_server(command: Command, era: Era) -> Self {
        Self::start(command, era, true).await
    }

    async fn start(mut command: Command, era: Era, skips: bool) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut pipe = Self { child, stdin, lines, asked: 0, skips };
        if era == Legacy {
            pipe.shake_hands().await;
        }
        pipe
    }

    /// Log of the program, where its stderr is a pipe.
    pub(crate) fn log(&mut self) -> crate::lab::lines::Lines {
        log_of(self.child.stderr.take())
    }

    pub(crate) async fn shake_hands(&mut self) {
        let us = json!({ "name": "test", "version": "0" });
        let hello =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": us });
        let answer = self.request(Legacy, "initialize", hello).await;
        assert!(answer["result"]["capabilities"].is_object(), "{answer}");
        self.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    }

    async fn write(&mut self, message: &Value) {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Response without its envelope: `{"result": …}` or `{"error": …}`.
    pub(crate) async fn request(&mut self, era: Era, method: &str, mut params: Value) -> Value {
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
            // The first response comes after the start of the program, beside many others.
            let line = within(RUN_PATIENCE, self.lines.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("no answer to {ask}"));
            if self.skips && !line.starts_with('{') {
                continue;
            }
            let answer = serde_json::from_str(&line);
            let mut answer: Value = answer.unwrap_or_else(|bad| panic!("{bad}: {line} to {ask}"));
            // Notifications of the server come between the responses.
            if answer["id"] == id && answer.get("method").is_none() {
                answer.as_object_mut().unwrap().retain(|key, _| key != "jsonrpc" && key != "id");
                return plain(answer);
            }
        }
    }

    /// All items of a list, from all pages.
    pub(crate) async fn list(&mut self, era: Era, method: &str, member: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut params = json!({});
        loop {
            let mut page = self.request(era, method, params).await;
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

/// Response without the members that only one of the eras has.
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
