//! Pings: answered at once on either side, even if everything else stalls.

use tokio::time::Instant;

use crate::cell::{CLIENTS, UPSTREAMS};
use crate::client::named;
use crate::world::{World, everywhere, hub, settle, with_pair};

#[tokio::test(start_paused = true)]
async fn a_clients_ping_is_answered_at_once_while_its_calls_stall() {
    everywhere("", hub, async |world, cell| {
        if cell.client.is_modern() {
            return;
        }
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        // HTTP+SSE allows this many requests in flight beside the change notifications.
        let calls: Vec<_> = (0..63).map(|_| client.start("tools/call", &named("hub__a"))).collect();
        let call = intercepted.next().await;
        let began = Instant::now();
        assert_eq!(client.request("ping", "{}").await.result(), "{}");
        assert_eq!(began.elapsed().as_millis(), 0);
        // Over HTTP a cancellation may overtake a request that is still on its way.
        world.upstream("hub").until_count("tools/call", calls.len()).await;
        drop((call, calls));
        drop(client);
        // The gateway notices the client's disconnect before it closes.
        settle().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_upstreams_ping_in_the_middle_of_a_call_is_answered() {
    for upstream in UPSTREAMS.into_iter().filter(|side| !side.is_modern()) {
        let world = World::start(hub(upstream), &with_pair("")).await;
        let hub = world.upstream("hub");
        for (count, side) in CLIENTS.into_iter().enumerate() {
            let client = world.client(side).await;
            let mut intercepted = hub.intercept("tools/call");
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            call.send_request(r#"{"jsonrpc":"2.0","id":"p","method":"ping","params":{"x":1}}"#);
            let answers = hub.received_responses(count + 1).await;
            let expected = r#"{"jsonrpc":"2.0","id":"p","result":{}}"#;
            assert_eq!(answers[count], expected, "{side}, {upstream}");
            call.result(r#"{"content":[]}"#);
            let reply = exchange.reply().await;
            assert!(reply.outcome.is_ok() && reply.notifications.is_empty(), "{side}: {reply:?}");
        }
        world.close().await;
    }
}
