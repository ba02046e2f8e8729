//! Data of the example server: products as resources, prompts about them, completion.
//!
//! Invariant: a page resumes after the last key that was sent, also if items were added or removed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::response::RpcError;
use crate::text;

pub(crate) type Entries = BTreeMap<String, String>;

pub(crate) struct Shop {
    /// Descriptions of the products by product id. Each product is a resource.
    pub(crate) products: watch::Sender<Entries>,
    /// Prompts that were added with `add_prompt`; the two built-in prompts are not in it.
    pub(crate) added_prompts: watch::Sender<Entries>,
    /// Number of `slow_count` calls whose client closed the stream.
    pub(crate) cancelled: AtomicU64,
    pub(crate) stopped: watch::Receiver<bool>,
}

impl Shop {
    pub(crate) fn new(stopped: watch::Receiver<bool>) -> Self {
        let products = [
            ("anemometer", "Measures the wind in eight directions."),
            ("barometer", "Tells the weather of tomorrow, mostly."),
            ("gauge", "A brass water gauge for weirs and mill ponds."),
            ("sluice", "An oak sluice gate, one meter wide."),
        ];
        let products = products.map(|(id, about)| (id.to_owned(), about.to_owned()));
        Self {
            products: watch::Sender::new(Entries::from(products)),
            added_prompts: watch::Sender::new(Entries::new()),
            cancelled: AtomicU64::new(0),
            stopped,
        }
    }
}

impl Shop {
    pub(crate) fn prompts(&self) -> BTreeMap<String, Value> {
        let argument = |name: &str, required: bool| json!({ "name": name, "required": required });
        let ours = [
            json!({
                "name": "compare-products",
                "description": "Compares two products.",
                "arguments": [argument("first", true), argument("second", true)],
            }),
            json!({
                "name": "describe-product",
                "description": "Describes a product for the catalog.",
                "arguments": [argument("product", true), argument("tone", false)],
            }),
        ];
        let added = self.added_prompts.borrow();
        let added = added.keys().map(|name| (name.clone(), json!({ "name": name })));
        ours.into_iter().map(|prompt| entry("name", prompt)).chain(added).collect()
    }

    pub(crate) fn prompt(&self, params: &Value) -> Result<Value, RpcError> {
        let (name, arguments) = (text(params, "name")?, &params["arguments"]);
        let product =
            |argument: &str| self.read(&format!("product:///{}", text(arguments, argument)?));
        let user = |content: Value| json!({ "role": "user", "content": content });
        let text_message = |text: String| user(json!({ "type": "text", "text": text }));
        let resource_message =
            |resource: Value| user(json!({ "type": "resource", "resource": resource }));
        let messages = match (name, self.added_prompts.borrow().get(name)) {
            (_, Some(added)) => json!([text_message(added.clone())]),
            ("compare-products", _) => {
                let (first, second) = (product("first")?, product("second")?);
                json!([
                    text_message("Compare these two.".to_owned()),
                    resource_message(first),
                    resource_message(second)
                ])
            }
            ("describe-product", _) => {
                let tone = arguments["tone"].as_str().unwrap_or(TONES[0]);
                json!([
                    text_message(format!("Describe this product in a {tone} tone.")),
                    resource_message(product("product")?)
                ])
            }
            _ => return Err(RpcError::invalid_params(format!("Unknown prompt: {name}"))),
        };
        Ok(json!({ "messages": messages }))
    }

    pub(crate) fn resources(&self) -> BTreeMap<String, Value> {
        let listed = |id: &String| {
            let uri = format!("product:///{id}");
            entry("uri", json!({ "uri": uri, "name": id, "mimeType": "text/plain" }))
        };
        self.products.borrow().keys().map(listed).collect()
    }

    pub(crate) fn read(&self, uri: &str) -> Result<Value, RpcError> {
        let products = self.products.borrow();
        let about = uri.strip_prefix("product:///").and_then(|id| products.get(id));
        let unknown =
            || RpcError::invalid_params("Resource not found").with_data(json!({ "uri": uri }));
        Ok(json!({ "uri": uri, "mimeType": "text/plain", "text": about.ok_or_else(unknown)? }))
    }

    pub(crate) fn complete(&self, params: &Value) -> Result<Value, RpcError> {
        let of = &params["ref"];
        let (argument, typed) =
            (text(&params["argument"], "name")?, text(&params["argument"], "value")?);
        let products = || self.products.borrow().keys().cloned().collect();
        let choices: Vec<String> =
            match (of["type"].as_str(), of["name"].as_str(), of["uri"].as_str()) {
                (Some("ref/prompt"), Some("describe-product"), _) if argument == "tone" => {
                    TONES.map(str::to_owned).to_vec()
                }
                (Some("ref/prompt"), Some("describe-product"), _) if argument == "product" => {
                    products()
                }
                (Some("ref/prompt"), Some("compare-products"), _) => products(),
                (Some("ref/prompt"), Some(prompt), _) if self.prompts().contains_key(prompt) => {
                    vec![]
                }
                (Some("ref/resource"), _, Some(TEMPLATE)) if argument == "id" => products(),
                _ => return Err(RpcError::invalid_params("nothing to complete by that reference")),
            };
        let mut values: Vec<_> =
            choices.into_iter().filter(|choice| choice.starts_with(typed)).collect();
        let total = values.len();
        // spec, completion: at most 100 values in one response.
        values.truncate(100);
        Ok(
            json!({ "completion": { "hasMore": total > values.len(), "total": total, "values": values } }),
        )
    }
}

pub(crate) fn templates() -> BTreeMap<String, Value> {
    let product = json!({ "uriTemplate": TEMPLATE, "name": "product", "mimeType": "text/plain" });
    BTreeMap::from([entry("uriTemplate", product)])
}

/// Returns one page of [`PAGE_ITEMS`] items. The cursor contains the last key that was sent, so it
/// stays valid if items are added or removed.
pub(crate) fn page(
    kind: &str,
    items: &BTreeMap<String, Value>,
    cursor: Option<&Value>,
) -> Result<Value, RpcError> {
    let after = match cursor {
        None => Bound::Unbounded,
        Some(cursor) => {
            let key = cursor.as_str().and_then(|cursor| read_cursor(kind, cursor));
            Bound::Excluded(key.ok_or_else(|| RpcError::invalid_params("invalid cursor"))?)
        }
    };
    let mut rest = items.range((after, Bound::Unbounded));
    let (keys, shown): (Vec<_>, Vec<_>) = rest.by_ref().take(PAGE_ITEMS).unzip();
    let mut page = json!({ kind: shown });
    if let (Some(_), Some(last)) = (rest.next(), keys.last()) {
        page["nextCursor"] = write_cursor(kind, last).into();
    }
    Ok(page)
}

fn write_cursor(kind: &str, key: &str) -> String {
    format!("{kind}:{key}").bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn read_cursor(kind: &str, cursor: &str) -> Option<String> {
    let pairs = cursor.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    let text = String::from_utf8(bytes?).ok()?;
    Some(text.strip_prefix(kind)?.strip_prefix(':')?.to_owned())
}

pub(crate) fn entry(key: &str, item: Value) -> (String, Value) {
    (item[key].as_str().unwrap_or_default().to_owned(), item)
}

const TEMPLATE: &str = "product:///{id}";
const TONES: [&str; 3] = ["plain", "warm", "bold"];
const PAGE_ITEMS: usize = 3;
