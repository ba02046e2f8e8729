//! Progress notifications: to the client that asked for them, under its own token, during its call.

use weir_mcp::jsonrpc::Id;

use crate::cell::{SIDES, UPSTREAMS};
use crate::client::{named, object, string};
use crate::world::{World, everywhere, hub, settle};

/// Parameters of a call that asks for progress under the token 70.
const WITH_PROGRESS: &str = r#"{"name":"hub__a","_meta":{"progressToken":70}}"#;

/// The token of a progress notification, and its parameters without it.
fn token_and_rest(note: &str) -> (String, String) {
    let mut params = object(note).get_object("params").expect("params");
    let token = params.take("progressToken").expect("a token");
    (string(token), string(params.to_bytes()))
}

#[tokio::test(start_paused = true)]
async fn progress_comes_before_the_answer_and_byte_for_byte() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        let odd = r#""progress":1,"total":1.0,"message":"\u0041","odd":[1e400]"#;
        call.progress(odd);
        settle().await;
        call.progress(r#""progress":2.5"#);
        call.result(r#"{"content":[]}"#);
        let reply = exchange.reply().await;
        assert!(reply.outcome.is_ok(), "{reply:?}");
        let [first, second] = &reply.notifications[..] else { panic!("{reply:?}") };
        assert_eq!(token_and_rest(first), ("70".into(), format!("{{{odd}}}")));
        assert_eq!(token_and_rest(second), ("70".into(), r#"{"progress":2.5}"#.into()));
        assert_eq!(object(first).get("method"), Some("\"notifications/progress\""));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_same_token_from_two_clients_is_not_mixed_up() {
    everywhere("", hub, async |world, cell| {
        let (ann, bob) = (world.client(cell.client).await, world.client(cell.client).await);
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let for_ann = ann.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let anns = intercepted.next().await;
        let for_bob = bob.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let bobs = intercepted.next().await;
        bobs.progress(r#""progress":1,"message":"bob""#);
        anns.progress(r#""progress":1,"message":"ann""#);
        bobs.result(r#"{"content":[]}"#);
        anns.result(r#"{"content":[]}"#);
        for (exchange, name) in [(for_ann, "ann"), (for_bob, "bob")] {
            let reply = exchange.reply().await;
            assert!(
                reply.notifications.len() == 1 && reply.notifications[0].contains(name),
                "{reply:?}"
            );
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_string_token_comes_back_as_a_string() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), "").await;
        for side in SIDES {
            let client = world.client(side).await;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let id = Id::parse(r#""t\u0041""#.into()).expect("an id");
            let params = r#"{"name":"hub__a","_meta":{"progressToken":"t\u0041"}}"#;
            let exchange = client.start_as(id, "tools/call", params);
            let call = intercepted.next().await;
            call.progress(r#""progress":1"#);
            call.result(r#"{"content":[]}"#);
            let reply = exchange.reply().await;
            let (token, rest) = token_and_rest(&reply.notifications[0]);
            assert_eq!(token, r#""t\u0041""#, "{side}, {upstream}");
            assert_eq!(rest, r#"{"progress":1}"#, "{side}, {upstream}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn n63_progress_that_does_not_increase_is_dropped() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        for progress in ["1", "1", "0.5", "-1", "2", "\"3\"", "2"] {
            call.progress(&format!(r#""progress":{progress}"#));
            settle().await;
        }
        call.result(r#"{"content":[]}"#);
        let reply = exchange.reply().await;
        assert_eq!(reply.notifications.len(), 2, "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n63_a_flood_of_progress_is_thinned_and_its_last_comes() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        for number in 1..=40 {
            call.progress(&format!(r#""progress":{number}"#));
            settle().await;
        }
        call.result(r#"{"content":[]}"#);
        let reply = exchange.reply().await;
        assert!(
            (2..=25).contains(&reply.notifications.len()),
            "{} notes",
            reply.notifications.len()
        );
        let last = reply.notifications.last().expect("a last note");
        assert!(last.contains(r#""progress":40"#), "{last}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_no_progress_hears_none() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        if call.wants_progress() {
            call.progress(r#""progress":1"#);
        }
        call.result(r#"{"content":[]}"#);
        assert_eq!(exchange.reply().await.notifications, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n63_progress_for_nobody_reaches_nobody() {
    everywhere("", hub, async |world, cell| {
        let client = world.client(cell.client).await;
        let hub = world.upstream("hub");
        let mut intercepted = hub.intercept("tools/call");
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        let token = call.progress_token();
        // The client's own token means nothing to an upstream, and neither do others that Weir did
        // not issue.
        for odd in ["70", "9999", "\"x\"", "-1", "null", "{}", "1.5"] {
            let params = format!(r#"{{"progressToken":{odd},"progress":1}}"#);
            call.notify("notifications/progress", &params);
        }
        call.notify("notifications/progress", r#"{"progress":1}"#);
        settle().await;
        call.progress(r#""progress":0.5"#);
        call.result(r#"{"resultType":"complete","content":[]}"#);
        let reply = exchange.reply().await;
        let [only] = &reply.notifications[..] else { panic!("{reply:?}") };
        assert_eq!(token_and_rest(only), ("70".into(), r#"{"progress":0.5}"#.into()));

        // The call is over; on a common stream its upstream may still send progress for it.
        let again = client.start_as(Id::from(71), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        assert_ne!(call.progress_token(), token);
        let late = format!(r#"{{"progressToken":{token},"progress":9}}"#);
        call.notify("notifications/progress", &late);
        call.result(r#"{"resultType":"complete","content":[]}"#);
        assert_eq!(again.reply().await.notifications, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f37k_a_torrent_of_progress_costs_no_other_call_anything() {
    everywhere("", hub, async |world, cell| {
        let (client, other) = (world.client(cell.client).await, world.client(cell.client).await);
        let hub = world.upstream("hub");
        let mut intercepted = hub.intercept("tools/call");
        let exchange = client.start_as(Id::from(70), "tools/call", WITH_PROGRESS);
        let call = intercepted.next().await;
        for number in 1..=3_000 {
            call.progress(&format!(r#""progress":{number}"#));
        }
        hub.reset_answer("tools/call");
        let began = tokio::time::Instant::now();
        assert!(other.call_tool("hub__a").await.outcome.is_ok());
        assert!(began.elapsed().as_millis() <= 5, "{:?}", began.elapsed());
        call.result(r#"{"resultType":"complete","content":[]}"#);
        let reply = exchange.reply().await;
        assert!(
            (2..=45).contains(&reply.notifications.len()),
            "{} notes",
            reply.notifications.len()
        );
        assert!(reply.notifications.last().expect("a last one").contains("3000"), "{reply:?}");
    })
    .await;
}
