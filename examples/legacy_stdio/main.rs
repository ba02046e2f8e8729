//! A small MCP server of the legacy era: notes, over stdin and stdout.
//!
//! It speaks revisions 2024-11-05 to 2025-11-25: a client opens with `initialize`, the server
//! answers with a revision and what it can do, and from then on both remember. Each message is one
//! line of JSON. It promises that every request on this pipe gets one answer or, when the client
//! cancels it, none; and that end of input ends the program with success, whatever still runs.
//!
//! It has one task and no locks: whatever is to be said is a stream of lines, and the loop in
//! `main` writes what the streams yield. Messages are parsed one level deep, because `echo` returns
//! its arguments as they were written (`1.10`, `1e400`), which a parsed number could not.
//!
//! `wire` reads and writes messages, `notes` is what the server is about.
//!
//! Knows nothing of: HTTP, the modern era (`server/discover` is an unknown method), Weir.

#![allow(clippy::disallowed_types, reason = "a server reads its own arguments as values")]

mod notes;
mod wire;

use std::collections::{BTreeMap, HashMap};

use futures::future::FutureExt;
use futures::stream::{SelectAll, StreamExt};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;

use notes::{templates, tools};
use wire::{
    INVALID_REQUEST, Lines, METHOD_NOT_FOUND, Object, PARSE_ERROR, Refusal, answer, batch, member,
    notification, object, one, page, silence,
};

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
    // Answers that are ready still go out; a count that is still running does not hold us.
    while let Some(Some(line)) = outgoing.next().now_or_never() {
        write(line).await;
    }
    Ok(())
}

async fn write(mut line: String) {
    line.push('\n');
    let mut stdout = tokio::io::stdout();
    if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err() {
        // Nobody reads us. Returning would wait for stdin, which may stay open for ever.
        std::process::exit(1);
    }
}

/// What the server remembers of its one client, and the notes.
struct Server {
    /// What `initialize` agreed on; nothing but `initialize` and `ping` works before.
    revision: Option<&'static str>,
    notes: Vec<String>,
    /// Prompts that `add_prompt` made, by name, beside the two that are always there.
    added_prompts: BTreeMap<String, String>,
    /// The counts under way, by the JSON of their request's id; sending ends one.
    counting: HashMap<String, oneshot::Sender<()>>,
    cancelled: u64,
    /// The least severe level that the client wants, as an index into [`LEVELS`].
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
            counting: HashMap::new(),
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
        // Batches came with 2025-03-26 and went with 2025-06-18.
        if self.revision != Some("2025-03-26") {
            return one(Refusal::new(INVALID_REQUEST, "batches are part of 2025-03-26 only")
                .line(&Value::Null));
        }
        match serde_json::from_slice::<Vec<Box<RawValue>>>(line) {
            Err(error) => one(Refusal::new(PARSE_ERROR, error.to_string()).line(&Value::Null)),
            Ok(members) if members.is_empty() => {
                one(Refusal::new(INVALID_REQUEST, "an empty batch").line(&Value::Null))
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
                return one(Refusal::new(code, error.to_string()).line(&Value::Null));
            }
        };
        let id = member(&message, "id");
        let params = object(&message, "params");
        let method = member(&message, "method");
        let method = method.as_str().filter(|_| member(&message, "jsonrpc") == "2.0");
        match method {
            // An answer; but this server never asks.
            None if message.contains_key("result") || message.contains_key("error") => silence(),
            Some(method) if !message.contains_key("id") => self.notification(method, &params),
            Some(method) if id.is_string() || id.is_i64() || id.is_u64() => {
                self.request(&id, method, &params).unwrap_or_else(|refusal| one(refusal.line(&id)))
            }
            _ => one(Refusal::new(INVALID_REQUEST, "neither request nor notification")
                .line(&Value::Null)),
        }
    }

    fn notification(&mut self, method: &str, params: &Object) -> Lines {
        if method != "notifications/cancelled" {
            return silence();
        }
        let id = member(params, "requestId").to_string();
        let stopped = self.counting.remove(&id).is_some_and(|count| count.send(()).is_ok());
        if !stopped {
            // Unknown, or over already: the two cross on the wire, and that is no error.
            return silence();
        }
        self.cancelled += 1;
        let info = LEVELS.iter().position(|level| *level == "info");
        if info < Some(self.level) {
            return silence();
        }
        let data =
            json!({ "cancelled": member(params, "requestId"), "reason": member(params, "reason") });
        one(notification(
            "notifications/message",
            &json!({ "level": "info", "logger": "slow_count", "data": data }),
        ))
    }

    fn request(&mut self, id: &Value, method: &str, params: &Object) -> Result<Lines, Refusal> {
        if self.revision.is_none() && !matches!(method, "initialize" | "ping" | "server/discover") {
            return Err(Refusal::new(INVALID_REQUEST, "`initialize` comes first"));
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
                return Err(Refusal::new(METHOD_NOT_FOUND, format!("unknown method: {method}")));
            }
        };
        Ok(one(answer(id, result)))
    }

    fn initialize(&mut self, params: &Object) -> Result<Value, Refusal> {
        let wanted = member(params, "protocolVersion");
        let wanted =
            wanted.as_str().ok_or_else(|| Refusal::params("`protocolVersion` is missing"))?;
        if self.revision.is_some() {
            return Err(Refusal::new(INVALID_REQUEST, "already initialized"));
        }
        // spec, lifecycle: the same version if the server supports it, else another that it does.
        let revision = REVISIONS.iter().find(|known| **known == wanted).unwrap_or(&NEWEST);
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

    fn set_level(&mut self, params: &Object) -> Result<Value, Refusal> {
        let wanted = member(params, "level");
        let level = LEVELS.iter().position(|level| wanted == *level);
        self.level = level.ok_or_else(|| Refusal::params(format!("unknown level: {wanted}")))?;
        Ok(json!({}))
    }
}

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];
const NEWEST: &str = "2025-11-25";
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
