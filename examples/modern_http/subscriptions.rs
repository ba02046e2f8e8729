//! `subscriptions/listen`: a stream that tells of changes until either side ends it.
//!
//! Promises that the acknowledgment comes first, that only what was asked for is told, and that
//! stopping the server ends each stream with a result.
//! Knows nothing of: what changed, only which list.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{pending, ready};
use futures::stream::{self, StreamExt};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::catalog::{Shop, Table};
use crate::reply::{Refusal, Reply, dressed, event, event_stream};

pub(crate) fn listen(shop: &Arc<Shop>, id: &Value, params: &Value) -> Result<Reply, Refusal> {
    let wanted = params["notifications"].as_object();
    let wanted = wanted.ok_or_else(|| Refusal::params("`notifications` must be an object"))?;
    let wants = |kind: &str| wanted.get(kind) == Some(&Value::Bool(true));
    // The tools never change and no resource does, so neither is agreed to.
    let mut agreed = json!({});
    for kind in
        ["promptsListChanged", "resourcesListChanged"].into_iter().filter(|kind| wants(kind))
    {
        agreed[kind] = true.into();
    }
    let subscription = Subscription {
        id: id.clone(),
        prompts: wants("promptsListChanged").then(|| shop.added_prompts.subscribe()),
        products: wants("resourcesListChanged").then(|| shop.products.subscribe()),
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
    /// The request's id, in the type it came in: every message of the stream carries it.
    id: Value,
    prompts: Option<watch::Receiver<Table>>,
    products: Option<watch::Receiver<Table>>,
    stopped: watch::Receiver<bool>,
}

impl Subscription {
    /// Waits for the next event; gives itself back unless that was the last.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        let happened = tokio::select! {
            biased;
            () = reached(&mut self.stopped) => Happened::Stop,
            () = changed(&mut self.prompts) => Happened::Prompts,
            () = changed(&mut self.products) => Happened::Products,
            () = sleep(KEEP_ALIVE) => Happened::Nothing,
        };
        let event = match happened {
            Happened::Prompts => self.notification("prompts/list_changed", json!({})),
            Happened::Products => self.notification("resources/list_changed", json!({})),
            Happened::Nothing => Bytes::from_static(b": keep-alive\n\n"),
            Happened::Stop => {
                let result =
                    json!({ "_meta": { "io.modelcontextprotocol/subscriptionId": self.id } });
                return (event(&dressed(&self.id, result)), None);
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

enum Happened {
    Prompts,
    Products,
    Nothing,
    Stop,
}

/// Resolves once the server is to stop.
pub(crate) async fn reached(stopped: &mut watch::Receiver<bool>) {
    // An error means that `main` is gone, which is to stop as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Resolves at the next change, and never for what nobody asked for.
async fn changed(table: &mut Option<watch::Receiver<Table>>) {
    match table {
        // The shop holds the sender and outlives every subscription.
        Some(table) => _ = table.changed().await,
        None => pending().await,
    }
}

/// Often enough for proxies that close what is quiet for half a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
