//! Shutdown: requests in flight are finished, streams end in their era's way, nothing new begins.

use std::time::Duration;

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, MODERN_STDIO};
use crate::client::{named, object};
use crate::world::{World, everywhere, hub, pass};

#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_answered() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        world.stop_downstream();
        pass(Duration::from_secs(1)).await;
        assert!(call.is_wanted());
        call.result(r#"{"resultType":"complete","content":[{"type":"text","text":"at last"}]}"#);
        let reply = exchange.reply().await;
        assert!(reply.result().contains("at last"), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n61_a_modern_listen_over_http_ends_with_its_result() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(MODERN_HTTP).await;
    let mut changes = client.listen().await;
    world.stop_downstream();
    let last = object(&changes.next().await.expect("a result"));
    let id = last.get("id").expect("an id").to_owned();
    let result = last.get_object("result").expect("a result");
    let inner = result.get_object("_meta").expect("_meta");
    assert_eq!(inner.get("io.modelcontextprotocol/subscriptionId"), Some(&*id));
    assert_eq!(result.get("resultType"), Some("\"complete\""));
    assert_eq!(changes.next().await, None);
    drop(changes);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn n61_a_modern_listen_over_stdio_is_cancelled() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(MODERN_STDIO).await;
    let changes = client.listen().await;
    world.stop_downstream();
    let last = client.stdio().next_unrouted().await.expect("a notification");
    let last = object(&String::from_utf8_lossy(&last));
    assert_eq!(last.get("method"), Some("\"notifications/cancelled\""));
    let params = last.get_object("params").expect("params");
    assert_eq!(params.get("requestId"), Some("1"));
    drop(changes);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_stream_ends() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = world.client(LEGACY_HTTP).await;
    let mut changes = client.listen().await;
    world.stop_downstream();
    assert_eq!(changes.next().await, None);
    drop(changes);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_unused_gateway_shuts_down_at_once() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        client.prompts().await;
        drop(client);
        let start = tokio::time::Instant::now();
        world.stop_downstream();
        world.drained().await;
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    })
    .await;
}
