//! Subscriptions of a client to single resources and tasks, in both eras.

use weir_base::json::{self, Object};
use weir_mcp::jsonrpc::Id;
use weir_mcp::kind::{RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED};
use weir_mcp::meta;
use weir_mcp::task::{TASK_IDS, TASK_NOTIFICATION, TASK_STATUS_NOTIFICATION};

use super::{ChangeStream, Client, Reply, Source, object, string};
use crate::upstream::PATIENCE;

impl Client {
    /// Subscribes in the legacy way.
    pub(crate) async fn subscribe(&self, uri: &str) -> Reply {
        self.request("resources/subscribe", &uri_params(uri)).await
    }

    /// Ends a subscription in the legacy way.
    pub(crate) async fn unsubscribe(&self, uri: &str) -> Reply {
        self.request("resources/unsubscribe", &uri_params(uri)).await
    }

    /// Subscribes to these resources in the client's era's way. Returns the honored ones.
    pub(crate) async fn follow(&self, uris: &[&str]) -> (ChangeStream<'_>, Vec<String>) {
        if self.side.is_modern() {
            return self.listen_to(RESOURCE_SUBSCRIPTIONS, uris).await;
        }
        let changes = self.listen().await;
        let mut honored = Vec::new();
        for uri in uris {
            let reply = self.subscribe(uri).await;
            match &reply.outcome {
                Ok(result) => {
                    assert_eq!(result, "{}");
                    honored.push((*uri).to_owned());
                }
                Err(_) => assert_eq!(reply.code(), -32002, "{reply:?}"),
            }
        }
        (changes, honored)
    }

    /// Subscribes to the status of these tasks in the client's era's way. Returns the honored ones;
    /// the owner of a legacy task is notified without a subscription.
    pub(crate) async fn follow_tasks(&self, handles: &[&str]) -> (ChangeStream<'_>, Vec<String>) {
        if self.side.is_modern() {
            return self.listen_to(TASK_IDS, handles).await;
        }
        (self.listen().await, handles.iter().map(|handle| (*handle).to_owned()).collect())
    }

    async fn listen_to(&self, member: &str, names: &[&str]) -> (ChangeStream<'_>, Vec<String>) {
        let list: Vec<_> = names.iter().map(|name| string(json::quote(name))).collect();
        let list = list.join(",");
        let params = format!(r#"{{"notifications":{{"{member}":[{list}]}}}}"#);
        let mut exchange = self.start("subscriptions/listen", &params);
        let acknowledged = object(&exchange.next().await.expect("an acknowledgment"));
        let method = acknowledged.get_string("method").expect("a method").into_owned();
        assert_eq!(method, "notifications/subscriptions/acknowledged");
        let honored =
            acknowledged.get_object("params").and_then(|it| it.get_object("notifications"));
        let honored = honored.expect("a filter");
        assert!(honored.keys().all(|key| key == member), "{honored:?}");
        let honored = honored.get_bytes(member);
        let honored = honored.map(|list| json::elements(&list).expect("an array"));
        let text = |raw| json::decode_string(&string(raw)).expect("a string").into_owned();
        let honored = honored.unwrap_or_default().map(text).collect();
        (
            ChangeStream { id: Some(exchange.id.clone()), source: Source::Exchange(exchange) },
            honored,
        )
    }
}

impl ChangeStream<'_> {
    /// URI of the next updated resource.
    pub(crate) async fn next_update(&mut self) -> String {
        let params = self.next_of(RESOURCE_UPDATED).await;
        params.get_string("uri").expect("a URI").into_owned()
    }

    /// Next task with a new status.
    pub(crate) async fn next_task(&mut self) -> Object {
        let is_modern = self.id.is_some();
        self.next_of(if is_modern { TASK_NOTIFICATION } else { TASK_STATUS_NOTIFICATION }).await
    }

    /// Parameters of the next message, which must have this method and belong to this listen.
    async fn next_of(&mut self, method: &str) -> Object {
        let next = tokio::time::timeout(PATIENCE, self.next()).await;
        let message = object(&next.expect("an update in time").expect("the stream is open"));
        assert_eq!(message.get_string("method").as_deref(), Some(method), "{message:?}");
        let params = message.get_object("params").expect("params");
        let meta = params.get_object("_meta");
        let subscription = meta.and_then(|meta| meta.get_bytes(meta::SUBSCRIPTION_ID));
        assert_eq!(subscription.as_ref(), self.id.as_ref().map(Id::as_bytes));
        params
    }
}

fn uri_params(uri: &str) -> String {
    format!(r#"{{"uri":{}}}"#, string(json::quote(uri)))
}
