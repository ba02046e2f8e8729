//! What the shop does when told to.
//!
//! Promises that a count stops when its client has gone, and is then counted itself.
//! Knows nothing of: headers, the loop that accepts connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::ready;
use futures::stream::{self, StreamExt};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::catalog::{Shop, keyed};
use crate::reply::{Refusal, Reply, complete, dressed, event, event_stream, json_reply};
use crate::{MISSING_CAPABILITY, text};

pub(crate) async fn call(shop: &Arc<Shop>, id: &Value, params: &Value) -> Result<Reply, Refusal> {
    let (name, arguments) = (text(params, "name")?, &params["arguments"]);
    let result = match name {
        "search_products" => {
            let wanted = text(arguments, "query")?.to_lowercase();
            let products = shop.products.borrow();
            let found = products
                .iter()
                .filter(|(id, about)| format!("{id} {about}").to_lowercase().contains(&wanted));
            let found = json!({ "products": found.map(|(id, _)| id).collect::<Vec<_>>() });
            json!({ "content": [{ "type": "text", "text": found.to_string() }], "structuredContent": found })
        }
        "add_product" => {
            let (product, about) =
                (text(arguments, "id")?.to_owned(), text(arguments, "description")?.to_owned());
            if shop.products.borrow().contains_key(&product) {
                return Ok(complete(id, failed("there is a product of that id")));
            }
            let uri = format!("product:///{product}");
            shop.products.send_modify(|products| _ = products.insert(product, about));
            said(uri)
        }
        "add_prompt" => {
            let (prompt, body) =
                (text(arguments, "name")?.to_owned(), text(arguments, "text")?.to_owned());
            if shop.prompts().contains_key(&prompt) {
                return Ok(complete(id, failed("there is a prompt of that name")));
            }
            shop.added_prompts.send_modify(|prompts| _ = prompts.insert(prompt, body));
            said("added")
        }
        "remove_prompt" => {
            let prompt = text(arguments, "name")?;
            match shop.added_prompts.send_if_modified(|prompts| prompts.remove(prompt).is_some()) {
                true => said("removed"),
                false => failed("no such prompt was added"),
            }
        }
        "cancelled_count" => said(shop.cancelled.load(Ordering::Relaxed).to_string()),
        "large" => match arguments["bytes"].as_u64() {
            Some(bytes) if bytes <= MAX_LARGE_BYTES => said("x".repeat(bytes as usize)),
            _ => {
                return Err(Refusal::params("`bytes` must be a whole number, at most 64 MiB"));
            }
        },
        "ask_name" => ask_name(params)?,
        "slow_count" => return slow_count(shop, id, params).await,
        _ => return Err(Refusal::params(format!("Unknown tool: {name}"))),
    };
    Ok(complete(id, result))
}

/// Asks for a name in one round and greets in the next. All it needs stands in the second request.
fn ask_name(params: &Value) -> Result<Value, Refusal> {
    let elicitation = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["elicitation"];
    // spec, elicitation: an empty object stands for form mode.
    let form =
        elicitation.as_object().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"));
    if !form {
        let data = json!({ "requiredCapabilities": { "elicitation": { "form": {} } } });
        return Err(
            Refusal::bad(MISSING_CAPABILITY, "this tool asks its user for a name").with(data)
        );
    }
    // The state is for everybody to read: forging it gains nothing but the greeting.
    let asked = match params.get("requestState") {
        None => false,
        Some(state) if *state == NAME_ASKED => true,
        Some(_) => return Err(Refusal::params("unknown requestState")),
    };
    let response = &params["inputResponses"]["name"];
    Ok(match (asked, response["action"].as_str(), response["content"]["name"].as_str()) {
        (true, Some("accept"), Some(name)) => said(format!("Hello, {name}!")),
        (true, Some("decline" | "cancel"), _) => said("Hello, whoever you are!"),
        // spec, multi round-trip requests: what is missing is asked for again.
        _ => json!({
            "resultType": "input_required",
            "inputRequests": { "name": {
                "method": "elicitation/create",
                "params": {
                    "mode": "form",
                    "message": "What is your name?",
                    "requestedSchema": {
                        "type": "object",
                        "properties": { "name": { "type": "string" } },
                        "required": ["name"],
                    },
                },
            } },
            "requestState": NAME_ASKED,
        }),
    })
}

/// With a progress token the answer is a stream of the steps, without one it is the last line alone.
async fn slow_count(shop: &Arc<Shop>, id: &Value, params: &Value) -> Result<Reply, Refusal> {
    let arguments = &params["arguments"];
    let Some(to) = arguments["to"].as_u64() else {
        return Err(Refusal::params("`to` must be a whole number"));
    };
    let delay = Duration::from_millis(arguments["delay_ms"].as_u64().unwrap_or(100));
    let counted = dressed(id, said(format!("counted to {to}")));
    let counting = Counting { shop: shop.clone(), finished: false };
    let steps = stream::iter(1..=to).then(move |n| async move {
        sleep(delay).await;
        n
    });
    let Some(token) = params["_meta"].get("progressToken").cloned() else {
        steps.for_each(|_| ready(())).await;
        counting.finish();
        return Ok(json_reply(StatusCode::OK, &counted));
    };
    let progress = move |n| {
        let params = json!({ "progressToken": token, "progress": n, "total": to });
        event(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }))
    };
    let last = async move {
        counting.finish();
        event(&counted)
    };
    Ok(event_stream(steps.map(progress).chain(stream::once(last))))
}

/// Travels with a count. Whoever drops it early was a client that closed its stream.
struct Counting {
    shop: Arc<Shop>,
    finished: bool,
}

impl Counting {
    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if !self.finished {
            self.shop.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(crate) fn tools() -> BTreeMap<String, Value> {
    let tool = |name: &str, description: &str, properties: Value, required: &[&str]| {
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        keyed("name", json!({ "name": name, "description": description, "inputSchema": schema }))
    };
    let string = json!({ "type": "string" });
    let number = json!({ "type": "integer", "minimum": 0 });
    let product = json!({ "id": string, "description": string });
    let prompt = json!({ "name": string, "text": string });
    let count = json!({ "to": number, "delay_ms": number });
    BTreeMap::from([
        tool(
            "add_product",
            "Adds a product, and with it a resource.",
            product,
            &["id", "description"],
        ),
        tool("add_prompt", "Adds a prompt.", prompt, &["name", "text"]),
        tool("ask_name", "Asks its user for a name and greets.", json!({}), &[]),
        tool("cancelled_count", "Tells how many counts were given up so far.", json!({}), &[]),
        tool("large", "Returns a text of that many bytes.", json!({ "bytes": number }), &["bytes"]),
        tool("remove_prompt", "Removes an added prompt.", json!({ "name": string }), &["name"]),
        tool(
            "search_products",
            "Finds products by a word.",
            json!({ "query": string }),
            &["query"],
        ),
        tool("slow_count", "Counts, reporting each step.", count, &["to"]),
    ])
}

/// A tool's result: one text.
fn said(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

/// A tool's own failure: a result, so that the model reads it and can do better.
fn failed(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

const NAME_ASKED: &str = "name-asked";
const MAX_LARGE_BYTES: u64 = 64 * 1024 * 1024;
