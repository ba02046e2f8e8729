//! `subscriptions/listen`: a stream of change notifications that either side can end.
//!
//! Invariants: the acknowledgment is the first message; the stream contains only requested
//! notifications; a shutdown of the server ends each stream with a result.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{pending, ready};
use futures::stream::{self, StreamExt};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::catalog::{Entries, Shop};
use crate::response::{HttpResponse, RpcError, event, event_stream, result_message};

pub(crate) fn listen(
    shop: &Arc<Shop>,
    id: &Value,
    params: &Value,
) -> Result<HttpResponse, RpcError> {
    let requested = params["notifications"].as_object();
    let requested =
        requested.ok_or_else(|| RpcError::invalid_params("`notifications` must be an object"))?;
    let is_requested = |kind: &str| requested.get(kind) == Some(&Value::Bool(true));
    // Neither the tools nor the content of a resource changes, so both are not acknowledged.
    let mut agreed = json!({});
    for kind in
        ["promptsListChanged", "resourcesListChanged"].into_iter().filter(|kind| is_requested(kind))
    {
        agreed[kind] = true.into();
    }
    let subscription = Subscription {
        id: id.clone(),
        prompts: is_requested("promptsListChanged").then(|| shop.added_prompts.subscribe()),
        products: is_requested("resourcesListChanged").then(|| shop.products.subscribe()),
        stopped: shop.stopped.clone(),
    };
    // spec, subscriptions: the acknowledgment comes first.
    let acknowledged =
        subscription.notification("subscriptions/acknowledged", json!({ "notifications": agreed }));
    let rest = stream::unfold(Some(subscription), |subscription| async {
        Some(subscription?.next().await)
    });
    Ok(event_stream(stream::once(ready(acknowledged)).chain(rest)))
}

struct Subscription {
    /// The request's id with its JSON type; every message of the stream contains it.
    id: Value,
    prompts: Option<watch::Receiver<Entries>>,
    products: Option<watch::Receiver<Entries>>,
    stopped: watch::Receiver<bool>,
}

impl Subscription {
    /// Waits for the next event; returns the subscription unless the event is the last one.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        let event_kind = tokio::select! {
            biased;
            () = until_stopped(&mut self.stopped) => StreamEvent::Stop,
            () = changed(&mut self.prompts) => StreamEvent::Prompts,
            () = changed(&mut self.products) => StreamEvent::Products,
            () = sleep(KEEP_ALIVE) => StreamEvent::KeepAlive,
        };
        let event = match event_kind {
            StreamEvent::Prompts => self.notification("prompts/list_changed", json!({})),
            StreamEvent::Products => self.notification("resources/list_changed", json!({})),
            StreamEvent::KeepAlive => Bytes::from_static(b": keep-alive\n\n"),
            StreamEvent::Stop => {
                let result =
                    json!({ "_meta": { "io.modelcontextprotocol/subscriptionId": self.id } });
                return (event(&result_message(&self.id, result)), None);
            }
        };
        (event, Some(self))
    }

    fn notification(&self, method: &str, mut params: Value) -> Bytes {
        params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": self.id });
        event(
            &json!({ "jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params }),
        )
    }
}

enum StreamEvent {
    Prompts,
    Products,
    KeepAlive,
    Stop,
}

/// Resolves when the server shuts down.
pub(crate) async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // An error means that `main` has ended, which is a shutdown as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Resolves at the next change, and never if the client did not request the notification.
async fn changed(table: &mut Option<watch::Receiver<Entries>>) {
    match table {
        // The shop owns the sender and outlives every subscription.
        Some(table) => _ = table.changed().await,
        None => pending().await,
    }
}

/// Shorter than the idle timeout of proxies, which is often 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
