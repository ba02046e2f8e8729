//! Calls that wait for a person, under limits: what goes on is not charged again, and holds up nobody else.

use super::{ALL, CALL, FORM, Talk, check_done, done, hear, put, retry};
use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO};
use crate::client::{Client, named};
use crate::upstream::{Call, Held, Upstream};
use crate::world::{World, hub, settle};

/// One call, and one at a time.
const ONE: &str = r#"
    [[limits]]
    per = "client"
    method = "tools/call"
    match = "hub/a"
    rate = "1/h"
    burst = 1
    [[limits]]
    per = "client"
    method = "tools/call"
    concurrency = 1
"#;

/// A call whose upstream has asked, up to where its client has heard it.
struct Waiting<'a> {
    held: Held,
    talk: Talk<'a>,
    /// `None` where the question ended it, and it will come again.
    call: Option<Call>,
    /// Of the question.
    key: String,
}

async fn wait<'a>(client: &'a Client, upstream: &Upstream) -> Waiting<'a> {
    let mut held = upstream.hold(CALL.0);
    let mut talk = Talk::start(client, CALL);
    let call = put(upstream, held.next().await, &[("q", FORM)]);
    let key = talk.asked(1).await.remove(0).key;
    Waiting { held, talk, call, key }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_person_keeps_no_place_and_its_answer_is_not_charged() {
    for side in [MODERN_HTTP, MODERN_STDIO, LEGACY_HTTP, LEGACY_STDIO] {
        let world = World::start(hub(LEGACY_HTTP), ONE).await;
        let (client, upstream) = (world.client_declaring(side, ALL).await, world.upstream("hub"));
        let Waiting { mut held, mut talk, call, key } = wait(&client, upstream).await;

        // While the person thinks there is a place for another call.
        let other = client.start(CALL.0, &named("hub__b"));
        let other_call = held.next().await;
        assert_eq!(client.call_tool("hub__b").await.code(), 4290, "{side}");

        // And when the answer comes the first goes on, whoever has the place.
        talk.answer(&[(&key, FORM.answer)]).await;
        let (call, _) = hear(upstream, &mut held, call, &["q"], 0).await;
        other_call.result(done(upstream));
        check_done(&other.reply().await);
        settle().await;
        assert_eq!(client.call_tool("hub__b").await.code(), 4290, "{side}: the first has it");
        talk.end(call, upstream).await;
        settle().await;
        assert_eq!(
            client.call_tool("hub__a").await.code(),
            4290,
            "{side}: a second is one too many"
        );
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_with_an_upstream_that_keeps_its_calls_itself_is_a_call() {
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(MODERN_HTTP), ONE).await;
        let (client, upstream) = (world.client_declaring(side, ALL).await, world.upstream("hub"));
        let Waiting { mut talk, key, .. } = wait(&client, upstream).await;
        let state = talk.state.take().expect("a state");
        let again = client.request(CALL.0, &retry(CALL, &state, &[(&key, FORM.answer)])).await;
        assert_eq!(again.code(), 4290, "{side}");
        assert_eq!(upstream.count(CALL.0), 1, "{side}");
        drop(talk);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_that_is_not_good_is_charged() {
    let config = "[[limits]]\nper = \"client\"\nmethod = \"tools/call\"\nrate = \"1/h\"\nburst = 3";
    for side in [MODERN_HTTP, MODERN_STDIO] {
        let world = World::start(hub(LEGACY_HTTP), config).await;
        let (client, upstream) = (world.client_declaring(side, ALL).await, world.upstream("hub"));
        let Waiting { mut held, mut talk, call, key } = wait(&client, upstream).await;
        let state = talk.state.clone().expect("a state");
        let answers = [(&*key, FORM.answer)];
        let codes = [
            client.request(CALL.0, &retry(CALL, "\"made up\"", &answers)).await.code(),
            // The state of another request.
            client
                .request(CALL.0, &retry(("", r#""name":"hub__b""#), &state, &answers))
                .await
                .code(),
            client.request(CALL.0, &retry(CALL, "\"made up\"", &answers)).await.code(),
        ];
        assert_eq!(codes, [-32602, -32602, 4290], "{side}");
        // The good one is as good as ever.
        talk.answer(&answers).await;
        let (call, _) = hear(upstream, &mut held, call, &["q"], 0).await;
        talk.end(call, upstream).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_reaches_its_call_although_its_client_is_over_every_limit() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(LEGACY_HTTP), ONE).await;
        let (client, upstream) = (world.client_declaring(side, ALL).await, world.upstream("hub"));
        let Waiting { mut held, mut talk, call, key } = wait(&client, upstream).await;
        for _ in 0..150 {
            assert_eq!(client.call_tool("hub__a").await.code(), 4290, "{side}");
        }
        talk.answer(&[(&key, FORM.answer)]).await;
        let (call, _) = hear(upstream, &mut held, call, &["q"], 0).await;
        talk.end(call, upstream).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn s38_a_state_saves_a_request_of_another_era_nothing() {
    let world = World::start(hub(LEGACY_HTTP), ONE).await;
    let upstream = world.upstream("hub");
    let (modern, legacy) = (
        world.client_declaring(MODERN_HTTP, ALL).await,
        world.client_declaring(LEGACY_HTTP, ALL).await,
    );
    let Waiting { mut held, mut talk, call, key } = wait(&modern, upstream).await;
    let state = talk.state.clone().expect("a state");
    // In a session a state means nothing: it is one more call, and there is none left.
    for _ in 0..3 {
        let again = legacy.request(CALL.0, &retry(CALL, &state, &[(&key, FORM.answer)])).await;
        assert_eq!(again.code(), 4290);
    }
    assert_eq!(upstream.count(CALL.0), 1);
    talk.answer(&[(&key, FORM.answer)]).await;
    let (call, _) = hear(upstream, &mut held, call, &["q"], 0).await;
    talk.end(call, upstream).await;
    drop(modern);
    drop(legacy);
    world.close().await;
}
