//! Tools of the example server.
//!
//! Invariant: `slow_count` stops when its client disconnects, and increments `cancelled`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::ready;
use futures::stream::{self, StreamExt};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::catalog::{Shop, entry};
use crate::response::{
    HttpResponse, RpcError, event, event_stream, json_response, result_message, result_response,
};
use crate::{MISSING_CAPABILITY, text};

pub(crate) async fn call(
    shop: &Arc<Shop>,
    id: &Value,
    params: &Value,
) -> Result<HttpResponse, RpcError> {
    let (name, arguments) = (text(params, "name")?, &params["arguments"]);
    let result = match name {
        "search_products" => {
            let query = text(arguments, "query")?.to_lowercase();
            let products = shop.products.borrow();
            let found = products
                .iter()
                .filter(|(id, about)| format!("{id} {about}").to_lowercase().contains(&query));
            let found = json!({ "products": found.map(|(id, _)| id).collect::<Vec<_>>() });
            json!({ "content": [{ "type": "text", "text": found.to_string() }], "structuredContent": found })
        }
        "add_product" => {
            let (product, about) =
                (text(arguments, "id")?.to_owned(), text(arguments, "description")?.to_owned());
            if shop.products.borrow().contains_key(&product) {
                return Ok(result_response(id, tool_error("there is a product of that id")));
            }
            let uri = format!("product:///{product}");
            shop.products.send_modify(|products| _ = products.insert(product, about));
            text_result(uri)
        }
        "add_prompt" => {
            let (prompt, body) =
                (text(arguments, "name")?.to_owned(), text(arguments, "text")?.to_owned());
            if shop.prompts().contains_key(&prompt) {
                return Ok(result_response(id, tool_error("there is a prompt of that name")));
            }
            shop.added_prompts.send_modify(|prompts| _ = prompts.insert(prompt, body));
            text_result("added")
        }
        "remove_prompt" => {
            let prompt = text(arguments, "name")?;
            match shop.added_prompts.send_if_modified(|prompts| prompts.remove(prompt).is_some()) {
                true => text_result("removed"),
                false => tool_error("no such prompt was added"),
            }
        }
        "cancelled_count" => text_result(shop.cancelled.load(Ordering::Relaxed).to_string()),
        "large" => match arguments["bytes"].as_u64() {
            Some(bytes) if bytes <= MAX_LARGE_BYTES => text_result("x".repeat(bytes as usize)),
            _ => {
                return Err(RpcError::invalid_params(
                    "`bytes` must be a whole number, at most 64 MiB",
                ));
            }
        },
        "ask_name" => ask_name(params)?,
        "slow_count" => return slow_count(shop, id, params).await,
        _ => return Err(RpcError::invalid_params(format!("Unknown tool: {name}"))),
    };
    Ok(result_response(id, result))
}

/// Requests a name by elicitation, and greets after the retry. The retry contains all that is
/// needed.
fn ask_name(params: &Value) -> Result<Value, RpcError> {
    let elicitation = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["elicitation"];
    // spec, elicitation: an empty object stands for form mode.
    let form =
        elicitation.as_object().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"));
    if !form {
        let data = json!({ "requiredCapabilities": { "elicitation": { "form": {} } } });
        return Err(RpcError::bad_request(
            MISSING_CAPABILITY,
            "this tool asks its user for a name",
        )
        .with_data(data));
    }
    // The state is not protected: a client that forges it only gets the greeting.
    let has_asked = match params.get("requestState") {
        None => false,
        Some(state) if *state == NAME_ASKED => true,
        Some(_) => return Err(RpcError::invalid_params("unknown requestState")),
    };
    let response = &params["inputResponses"]["name"];
    Ok(match (has_asked, response["action"].as_str(), response["content"]["name"].as_str()) {
        (true, Some("accept"), Some(name)) => text_result(format!("Hello, {name}!")),
        (true, Some("decline" | "cancel"), _) => text_result("Hello, whoever you are!"),
        // spec, multi round-trip requests: missing input is requested again.
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

/// Counts with a delay. With a progress token the response is an event stream with each step.
async fn slow_count(
    shop: &Arc<Shop>,
    id: &Value,
    params: &Value,
) -> Result<HttpResponse, RpcError> {
    let arguments = &params["arguments"];
    let Some(to) = arguments["to"].as_u64() else {
        return Err(RpcError::invalid_params("`to` must be a whole number"));
    };
    let delay = Duration::from_millis(arguments["delay_ms"].as_u64().unwrap_or(100));
    let counted = result_message(id, text_result(format!("counted to {to}")));
    let counting = Counting { shop: shop.clone(), finished: false };
    let steps = stream::iter(1..=to).then(move |n| async move {
        sleep(delay).await;
        n
    });
    let Some(token) = params["_meta"].get("progressToken").cloned() else {
        steps.for_each(|_| ready(())).await;
        counting.finish();
        return Ok(json_response(StatusCode::OK, &counted));
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

/// Detects a cancelled count: it is dropped before `finish` if the client closes the stream.
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
        entry("name", json!({ "name": name, "description": description, "inputSchema": schema }))
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

/// Tool result with one text.
fn text_result(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

/// Tool execution error: a result, so that the model can read it and correct the call.
fn tool_error(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": true })
}

const NAME_ASKED: &str = "name-asked";
const MAX_LARGE_BYTES: u64 = 64 * 1024 * 1024;
