//! A small MCP server of the legacy era: notes, over stdin and stdout.
//!
//! It supports the revisions 2024-11-05 to 2025-11-25: a client sends `initialize`, the server
//! responds with a revision and its capabilities, and both apply to the whole session. Each message
//! is one line of JSON.
//!
//! Invariants: every request gets one response or, if the client cancels it, none; the end of input
//! ends the program with success, also if calls are in flight.
//!
//! The server has one task and no locks: the output for each message is a stream of lines, and the
//! loop in `main` writes the lines. Messages are parsed one level deep, because `echo` returns its
//! arguments unchanged (`1.10`, `1e400`), which is impossible with parsed numbers.
//!
//! `messages` reads and writes messages, `notes` contains the data and the tools.

#![allow(clippy::disallowed_types, reason = "a server reads its own arguments as values")]

mod messages;
mod notes;

use std::collections::{BTreeMap, HashMap};

use futures::future::FutureExt;
use futures::stream::{SelectAll, StreamExt};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;

use messages::{
    INVALID_REQUEST, Lines, METHOD_NOT_FOUND, Object, PARSE_ERROR, RpcError, batch, member,
    no_lines, notification, object, page, response, single_line,
};
use notes::{templates, tools};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    eprintln!("legacy_stdio: notes for MCP revisions 2024-11-05 to 2025-11-25, on stdio");
    let mut incoming = BufReader::new(tokio::io::stdin()).split(b'\n');
    let mut outgoing = SelectAll::new();
    let mut server = Server::default();
    loop {
        tokio::select! {
            Some(line) = outgoing.next() => write(line).await,
            line = incoming.next_segment() => match line? {
                Some(line) if line.trim_ascii().is_empty() => {}
                Some(line) => outgoing.push(server.receive(&line)),
                None => break,
            },
        }
    }
    // Responses that are ready are written; a count in progress does not delay the exit.
    while let Some(Some(line)) = outgoing.next().now_or_never() {
        write(line).await;
    }
    Ok(())
}

async fn write(mut line: String) {
    line.push('\n');
    let mut stdout = tokio::io::stdout();
    if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err() {
        // The client has closed stdout. Returning would wait for stdin, which may stay open.
        std::process::exit(1);
    }
}

/// Session of the one client, and the notes.
struct Server {
    /// Negotiated revision; before, only `initialize` and `ping` are allowed.
    revision: Option<&'static str>,
    notes: Vec<String>,
    /// Prompts that were added with `add_prompt`, by name; without the two built-in prompts.
    added_prompts: BTreeMap<String, String>,
    /// Cancellation senders of the counts in progress, by the JSON of their request id.
    running_counts: HashMap<String, oneshot::Sender<()>>,
    cancelled: u64,
    /// Log level of the client, as an index into [`LEVELS`].
    level: usize,
}

impl Default for Server {
    fn default() -> Self {
        let notes =
            ["Buy oat milk", "Water the ferns", "Call Ada about the gauge", "Read RFC 6570"];
        Self {
            revision: None,
            notes: notes.map(str::to_owned).to_vec(),
            added_prompts: BTreeMap::new(),
            running_counts: HashMap::new(),
            cancelled: 0,
            level: LEVELS.iter().position(|level| *level == "info").unwrap_or_default(),
        }
    }
}

// === Messages ===

impl Server {
    fn receive(&mut self, line: &[u8]) -> Lines {
        if line.trim_ascii_start().first() != Some(&b'[') {
            return self.message(line);
        }
        // Revision 2025-03-26 added batches, and 2025-06-18 removed them.
        if self.revision != Some("2025-03-26") {
            return single_line(
                RpcError::new(INVALID_REQUEST, "batches are part of 2025-03-26 only")
                    .to_line(&Value::Null),
            );
        }
        match serde_json::from_slice::<Vec<Box<RawValue>>>(line) {
            Err(error) => {
                single_line(RpcError::new(PARSE_ERROR, error.to_string()).to_line(&Value::Null))
            }
            Ok(members) if members.is_empty() => {
                single_line(RpcError::new(INVALID_REQUEST, "an empty batch").to_line(&Value::Null))
            }
            Ok(members) => {
                batch(members.iter().map(|member| self.message(member.get().as_bytes())).collect())
            }
        }
    }

    fn message(&mut self, text: &[u8]) -> Lines {
        let message: Object = match serde_json::from_slice(text) {
            Ok(message) => message,
            Err(error) => {
                let code = if error.is_data() { INVALID_REQUEST } else { PARSE_ERROR };
                return single_line(RpcError::new(code, error.to_string()).to_line(&Value::Null));
            }
        };
        let id = member(&message, "id");
        let params = object(&message, "params");
        let method = member(&message, "method");
        let method = method.as_str().filter(|_| member(&message, "jsonrpc") == "2.0");
        match method {
            // A response, although this server sends no requests.
            None if message.contains_key("result") || message.contains_key("error") => no_lines(),
            Some(method) if !message.contains_key("id") => self.notification(method, &params),
            Some(method) if id.is_string() || id.is_i64() || id.is_u64() => self
                .request(&id, method, &params)
                .unwrap_or_else(|refusal| single_line(refusal.to_line(&id))),
            _ => single_line(
                RpcError::new(INVALID_REQUEST, "neither request nor notification")
                    .to_line(&Value::Null),
            ),
        }
    }

    fn notification(&mut self, method: &str, params: &Object) -> Lines {
        if method != "notifications/cancelled" {
            return no_lines();
        }
        let id = member(params, "requestId").to_string();
        let stopped = self.running_counts.remove(&id).is_some_and(|count| count.send(()).is_ok());
        if !stopped {
            // The request is unknown or has ended: both messages can cross, which is no error.
            return no_lines();
        }
        self.cancelled += 1;
        let info = LEVELS.iter().position(|level| *level == "info");
        if info < Some(self.level) {
            return no_lines();
        }
        let data =
            json!({ "cancelled": member(params, "requestId"), "reason": member(params, "reason") });
        single_line(notification(
            "notifications/message",
            &json!({ "level": "info", "logger": "slow_count", "data": data }),
        ))
    }

    fn request(&mut self, id: &Value, method: &str, params: &Object) -> Result<Lines, RpcError> {
        if self.revision.is_none() && !matches!(method, "initialize" | "ping" | "server/discover") {
            return Err(RpcError::new(INVALID_REQUEST, "`initialize` comes first"));
        }
        let cursor = params.contains_key("cursor").then(|| member(params, "cursor"));
        let result = match method {
            "initialize" => self.initialize(params)?,
            "ping" => json!({}),
            "logging/setLevel" => self.set_level(params)?,
            "completion/complete" => self.complete(params)?,
            "prompts/list" => page("prompts", &self.prompts(), cursor)?,
            "prompts/get" => self.prompt(params)?,
            "resources/list" => page("resources", &self.resources(), cursor)?,
            "resources/templates/list" => page("resourceTemplates", &templates(), cursor)?,
            "resources/read" => self.read(params)?,
            "tools/list" => page("tools", &tools(), cursor)?,
            "tools/call" => return self.call(id, params),
            _ => {
                return Err(RpcError::new(METHOD_NOT_FOUND, format!("unknown method: {method}")));
            }
        };
        Ok(single_line(response(id, result)))
    }

    fn initialize(&mut self, params: &Object) -> Result<Value, RpcError> {
        let requested = member(params, "protocolVersion");
        let requested = requested
            .as_str()
            .ok_or_else(|| RpcError::invalid_params("`protocolVersion` is missing"))?;
        if self.revision.is_some() {
            return Err(RpcError::new(INVALID_REQUEST, "already initialized"));
        }
        // spec, lifecycle: the same version if the server supports it, otherwise another one.
        let revision = REVISIONS.iter().find(|known| **known == requested).unwrap_or(&NEWEST);
        self.revision = Some(revision);
        let mut capabilities = json!({
            "logging": {},
            "prompts": { "listChanged": true },
            "resources": { "listChanged": true },
            "tools": {},
        });
        if self.is_at_least("2025-03-26") {
            capabilities["completions"] = json!({});
        }
        Ok(json!({
            "protocolVersion": revision,
            "capabilities": capabilities,
            "serverInfo": { "name": "legacy-notes", "version": env!("CARGO_PKG_VERSION") },
            "instructions": "Notes live at note:///1 and up; add_note makes another.",
        }))
    }

    /// Revisions are dates, so they compare as text.
    fn is_at_least(&self, revision: &str) -> bool {
        self.revision.is_some_and(|agreed| agreed >= revision)
    }

    fn set_level(&mut self, params: &Object) -> Result<Value, RpcError> {
        let requested = member(params, "level");
        let level = LEVELS.iter().position(|level| requested == *level);
        self.level =
            level.ok_or_else(|| RpcError::invalid_params(format!("unknown level: {requested}")))?;
        Ok(json!({}))
    }
}

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];
const NEWEST: &str = "2025-11-25";
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
