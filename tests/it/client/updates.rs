//! Hearing of single resources, in both eras.

use weir::json;
use weir::mcp::kind::{RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED};
use weir::mcp::meta;
use weir::rpc::Id;

use super::{Client, Ears, Reply, Source, object, string};
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

    /// Listens to these resources in its era's way. Returns which of them are honored.
    pub(crate) async fn follow(&self, uris: &[&str]) -> (Ears<'_>, Vec<String>) {
        if self.side.is_modern() {
            return self.listen_to(uris).await;
        }
        let ears = self.listen().await;
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
        (ears, honored)
    }

    async fn listen_to(&self, uris: &[&str]) -> (Ears<'_>, Vec<String>) {
        let list: Vec<_> = uris.iter().map(|uri| string(json::quote(uri))).collect();
        let list = list.join(",");
        let params = format!(r#"{{"notifications":{{"{RESOURCE_SUBSCRIPTIONS}":[{list}]}}}}"#);
        let mut exchange = self.start("subscriptions/listen", &params);
        let acknowledged = object(&exchange.next().await.expect("an acknowledgment"));
        let method = acknowledged.get_string("method").expect("a method").into_owned();
        assert_eq!(method, "notifications/subscriptions/acknowledged");
        let honored =
            acknowledged.get_object("params").and_then(|it| it.get_object("notifications"));
        let honored = honored.expect("a filter");
        assert!(honored.keys().all(|key| key == RESOURCE_SUBSCRIPTIONS), "{honored:?}");
        let honored = honored.get_bytes(RESOURCE_SUBSCRIPTIONS);
        let honored = honored.map(|list| json::elements(&list).expect("an array"));
        let text = |raw| json::decode_string(&string(raw)).expect("a string").into_owned();
        let honored = honored.unwrap_or_default().into_iter().map(text).collect();
        (Ears { id: Some(exchange.id.clone()), source: Source::Exchange(exchange) }, honored)
    }
}

impl Ears<'_> {
    /// The URI of the next resource that is told of.
    pub(crate) async fn next_update(&mut self) -> String {
        let next = tokio::time::timeout(PATIENCE, self.next()).await;
        let message = object(&next.expect("an update in time").expect("the stream is open"));
        assert_eq!(message.get_string("method").as_deref(), Some(RESOURCE_UPDATED));
        let params = message.get_object("params").expect("params");
        let meta = params.get_object("_meta");
        let subscription = meta.and_then(|meta| meta.get_bytes(meta::SUBSCRIPTION_ID));
        assert_eq!(subscription.as_ref(), self.id.as_ref().map(Id::as_bytes));
        params.get_string("uri").expect("a URI").into_owned()
    }
}

fn uri_params(uri: &str) -> String {
    format!(r#"{{"uri":{}}}"#, string(json::quote(uri)))
}
