//! Notes as resources and in prompts, and the tools of the server.
//!
//! Invariants: `echo` returns its arguments byte for byte; a cancelled count sends nothing more.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::ready;
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::Server;
use crate::messages::{
    Lines, Object, RpcError, member, notification, object, response, single_line, text,
    text_result, tool_error, with_list_changed,
};

// === Prompts, resources, completion ===

impl Server {
    pub(crate) fn prompts(&self) -> BTreeMap<String, Value> {
        let added = self.added_prompts.keys().map(|name| (name.clone(), json!({ "name": name })));
        let ours = [
            json!({
                "name": "summarize-notes",
                "description": "Summarizes all notes on a topic.",
                "arguments": [
                    { "name": "topic", "description": "What to look for", "required": true },
                    { "name": "style", "description": "How to write", "required": false },
                ],
            }),
            json!({ "name": "daily-plan", "description": "Makes a plan for today of all notes." }),
        ];
        ours.into_iter().map(|prompt| entry("name", prompt)).chain(added).collect()
    }

    pub(crate) fn prompt(&self, params: &Object) -> Result<Value, RpcError> {
        let name = text(params, "name")?;
        let arguments = object(params, "arguments");
        let notes = self.notes.join("\n");
        let instruction = match (name.as_str(), self.added_prompts.get(&name)) {
            (_, Some(added)) => added.clone(),
            ("daily-plan", _) => format!("Make a plan for today of these notes:\n{notes}"),
            ("summarize-notes", _) => {
                let topic = text(&arguments, "topic")?;
                let style = text(&arguments, "style").unwrap_or_else(|_| STYLES[0].to_owned());
                format!("Summarize what these notes say about {topic}, style: {style}.\n{notes}")
            }
            _ => return Err(RpcError::invalid_params(format!("Unknown prompt: {name}"))),
        };
        Ok(
            json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": instruction } }] }),
        )
    }

    pub(crate) fn resources(&self) -> BTreeMap<String, Value> {
        let note = |number: usize| {
            // The key is padded, so that note 10 is listed after note 9.
            let listed = json!({ "uri": format!("note:///{number}"), "name": format!("note-{number}"), "mimeType": "text/plain" });
            (format!("{number:010}"), listed)
        };
        (1..=self.notes.len()).map(note).collect()
    }

    pub(crate) fn read(&self, params: &Object) -> Result<Value, RpcError> {
        let uri = text(params, "uri")?;
        let number = uri.strip_prefix("note:///").and_then(|number| number.parse::<usize>().ok());
        let note = number.and_then(|number| self.notes.get(number.checked_sub(1)?));
        let note = note.ok_or_else(|| RpcError {
            data: Some(json!({ "uri": uri })),
            ..RpcError::new(RESOURCE_NOT_FOUND, "Resource not found")
        })?;
        Ok(json!({ "contents": [{ "uri": uri, "mimeType": "text/plain", "text": note }] }))
    }

    pub(crate) fn complete(&self, params: &Object) -> Result<Value, RpcError> {
        let (of, argument) = (member(params, "ref"), object(params, "argument"));
        let (name, typed) = (text(&argument, "name")?, text(&argument, "value")?);
        let of = (of["type"].as_str(), of["name"].as_str().or(of["uri"].as_str()));
        let choices: Vec<String> = match (of, name.as_str()) {
            ((Some("ref/prompt"), Some("summarize-notes")), "style") => {
                STYLES.map(str::to_owned).to_vec()
            }
            ((Some("ref/prompt"), Some(prompt)), _) if self.prompts().contains_key(prompt) => {
                vec![]
            }
            ((Some("ref/resource"), Some(TEMPLATE)), "id") => {
                (1..=self.notes.len()).map(|number| number.to_string()).collect()
            }
            _ => return Err(RpcError::invalid_params("nothing to complete by that reference")),
        };
        let mut values: Vec<_> =
            choices.into_iter().filter(|choice| choice.starts_with(&typed)).collect();
        let total = values.len();
        // spec, completion: at most 100 values in one response.
        values.truncate(100);
        Ok(
            json!({ "completion": { "hasMore": total > values.len(), "total": total, "values": values } }),
        )
    }
}

// === Tools ===

impl Server {
    pub(crate) fn call(&mut self, id: &Value, params: &Object) -> Result<Lines, RpcError> {
        let name = text(params, "name")?;
        let raw_arguments = params.get("arguments").map_or("{}", |raw| raw.get());
        if !raw_arguments.starts_with('{') {
            return Err(RpcError::invalid_params("`arguments` must be an object"));
        }
        let arguments = object(params, "arguments");
        Ok(match name.as_str() {
            "echo" => single_line(self.echo(id, raw_arguments)),
            "slow_count" => return self.slow_count(id, params, &arguments),
            "cancelled_count" => {
                single_line(response(id, text_result(&self.cancelled.to_string())))
            }
            "add_note" => {
                self.notes.push(text(&arguments, "text")?);
                let uri = format!("note:///{}", self.notes.len());
                with_list_changed(response(id, text_result(&uri)), "resources")
            }
            "add_prompt" => {
                let (prompt, body) = (text(&arguments, "name")?, text(&arguments, "text")?);
                if self.prompts().contains_key(&prompt) {
                    return Ok(single_line(response(
                        id,
                        tool_error("there is a prompt of that name"),
                    )));
                }
                let made = response(id, text_result(&prompt));
                self.added_prompts.insert(prompt, body);
                with_list_changed(made, "prompts")
            }
            _ => return Err(RpcError::invalid_params(format!("Unknown tool: {name}"))),
        })
    }

    /// Returns the arguments byte for byte. The response is built as text, because a `Value` would
    /// change the notation of numbers.
    fn echo(&self, id: &Value, arguments: &str) -> String {
        let content = json!([{ "type": "text", "text": arguments }]);
        // Revision 2025-06-18 added `structuredContent`.
        let structured = match self.is_at_least("2025-06-18") {
            true => format!(r#","structuredContent":{arguments}"#),
            false => String::new(),
        };
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":{content}{structured}}}}}"#)
    }

    fn slow_count(
        &mut self,
        id: &Value,
        params: &Object,
        arguments: &Object,
    ) -> Result<Lines, RpcError> {
        let (to, delay_ms) = (member(arguments, "to"), member(arguments, "delay_ms"));
        let to =
            to.as_u64().ok_or_else(|| RpcError::invalid_params("`to` must be a whole number"))?;
        let delay = Duration::from_millis(delay_ms.as_u64().unwrap_or(100));
        let meta = object(params, "_meta");
        let token = meta.contains_key("progressToken").then(|| member(&meta, "progressToken"));

        let (cancel, cancelled) = oneshot::channel();
        self.running_counts.retain(|_, count| !count.is_closed());
        self.running_counts.insert(id.to_string(), cancel);

        let step = move |n| async move {
            tokio::time::sleep(delay).await;
            n
        };
        let progress = move |n| {
            let token = token.as_ref()?;
            let params = json!({ "progressToken": token, "progress": n, "total": to });
            Some(notification("notifications/progress", &params))
        };
        let last = response(id, text_result(&format!("counted to {to}")));
        // spec, cancellation: a cancelled request gets no response, so its stream just ends.
        Ok(stream::iter(1..=to)
            .then(step)
            .filter_map(move |n| ready(progress(n)))
            .chain(stream::once(ready(last)))
            .take_until(cancelled)
            .boxed())
    }
}

pub(crate) fn tools() -> BTreeMap<String, Value> {
    let tool = |name: &str, description: &str, properties: Value, required: Value| {
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        (
            name.to_owned(),
            json!({ "name": name, "description": description, "inputSchema": schema }),
        )
    };
    let string = json!({ "type": "string" });
    let number = json!({ "type": "integer", "minimum": 0 });
    BTreeMap::from([
        tool(
            "add_note",
            "Adds a note, and with it a resource.",
            json!({ "text": string }),
            json!(["text"]),
        ),
        tool(
            "add_prompt",
            "Adds a prompt.",
            json!({ "name": string, "text": string }),
            json!(["name", "text"]),
        ),
        tool(
            "cancelled_count",
            "Tells how many counts were cancelled so far.",
            json!({}),
            json!([]),
        ),
        tool("echo", "Returns its arguments as they were written.", json!({}), json!([])),
        tool(
            "slow_count",
            "Counts, reporting each step.",
            json!({ "to": number, "delay_ms": number }),
            json!(["to"]),
        ),
    ])
}

pub(crate) fn templates() -> BTreeMap<String, Value> {
    let note = json!({ "uriTemplate": TEMPLATE, "name": "note", "mimeType": "text/plain" });
    BTreeMap::from([entry("uriTemplate", note)])
}

fn entry(key: &str, item: Value) -> (String, Value) {
    (item[key].as_str().unwrap_or_default().to_owned(), item)
}

const STYLES: [&str; 3] = ["brief", "bullets", "narrative"];
const TEMPLATE: &str = "note:///{id}";
/// Legacy error code; the modern era uses -32602.
const RESOURCE_NOT_FOUND: i32 = -32002;
