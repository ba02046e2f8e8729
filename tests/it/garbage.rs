//! Garbage from an upstream: it fails the call that it belongs to, and no other.

use std::time::Duration;

use crate::cell::{LEGACY_HTTP, SIDES, UPSTREAMS};
use crate::client::named;
use crate::world::{World, everywhere, hub, pass};

const SHORT: &str = "[defaults]\ntimeouts = { call = \"5s\", call_max = \"20s\" }";

#[tokio::test(start_paused = true)]
async fn f37f_an_answer_that_is_none_is_an_error_and_the_next_call_works() {
    everywhere(SHORT, hub, async |world, cell| {
        let client = world.client(cell.client).await;
        for garbage in [
            r#"{"jsonrpc":"2.0","id":{id},"result":{},"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":{id}}"#,
            r#"{"jsonrpc":"2.0","id":{id},"error":"text"}"#,
            r#"{"jsonrpc":"2.0","id":{id},"result":{},"result":{}}"#,
            r#"{"jsonrpc":"1.0","id":{id},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"what?"}}"#,
            r#"{"jsonrpc":"2.0","id":"{id}","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":987654,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":{id},"result":{"#,
            "nonsense",
            "7",
            "",
        ] {
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let exchange = client.start("tools/call", &named("hub__a"));
            intercepted.next().await.respond_raw(garbage);
            let reply = exchange.reply().await;
            assert!(reply.outcome.is_err(), "{garbage}: {reply:?}");
            // Over HTTP an error without an id still belongs to the request that it answers.
            let codes: &[i64] =
                if cell.upstream.is_http() { &[-32603, 5030, -32600] } else { &[-32603, 5040] };
            assert!(codes.contains(&reply.code()), "{garbage}: {reply:?}");
            world.upstream("hub").reset_answer("tools/call");
            // If Weir has closed the connection, it is connected again soon.
            pass(Duration::from_secs(5)).await;
            let reply = client.call_tool("hub__a").await;
            assert!(reply.outcome.is_ok(), "after {garbage}: {reply:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37b_a_second_answer_is_dropped() {
    for upstream in SIDES.into_iter().filter(|side| !side.is_http()) {
        let world = World::start(hub(upstream), "").await;
        for side in SIDES {
            let client = world.client(side).await;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            call.piece("{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{\"n\":1,\"content\":[]}}\n");
            call.piece("{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{\"n\":2}}\n");
            let reply = exchange.reply().await;
            assert!(reply.result().contains("\"n\":1"), "{side}: {reply:?}");
            world.upstream("hub").reset_answer("tools/call");
            assert!(!client.call_tool("hub__a").await.result().contains("\"n\":2"), "{side}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_servers_ping_is_answered_and_its_questions_are_declined() {
    for upstream in UPSTREAMS.into_iter().filter(|side| !side.is_modern()) {
        let world = World::start(hub(upstream), "").await;
        let client = world.client(LEGACY_HTTP).await;
        let hub = world.upstream("hub");
        hub.until_listener(weir_mcp::kind::ListTopic::Prompts).await;
        hub.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
        let answers = hub.received_responses(1).await;
        assert_eq!(answers, [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#], "{upstream}");
        let question = r#"{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"messages":[]}}"#;
        hub.say(question);
        let answers = hub.received_responses(2).await;
        assert!(answers[1].contains(r#""id":7"#) && answers[1].contains("-32601"), "{answers:?}");

        let mut intercepted = hub.intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        call.send_request(question);
        let answers = hub.received_responses(3).await;
        assert!(answers[2].contains("error"), "{answers:?}");
        call.result(r#"{"content":[]}"#);
        let reply = exchange.reply().await;
        assert!(reply.outcome.is_ok() && reply.notifications.is_empty(), "{reply:?}");
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f37h_a_modern_servers_question_is_not_answered_and_reaches_nobody() {
    for upstream in SIDES.into_iter().filter(|side| side.is_modern()) {
        let world = World::start(hub(upstream), "").await;
        for side in SIDES {
            let client = world.client(side).await;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let exchange = client.start("tools/call", &named("hub__a"));
            let call = intercepted.next().await;
            call.send_request(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
            call.send_request(r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
            call.notify("notifications/message", r#"{"level":"info","data":"x"}"#);
            call.notify("notifications/nonsense", "{}");
            call.result(r#"{"resultType":"complete","content":[]}"#);
            let reply = exchange.reply().await;
            assert!(reply.outcome.is_ok() && reply.notifications.is_empty(), "{side}: {reply:?}");
        }
        world.close().await;
    }
}
