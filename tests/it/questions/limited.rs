//! Calls that wait for a person, under limits: a continued call is not charged again, and a waiting
//! one does not block others.

use super::{
    ALL, CALL, Dialog, FORM, check_done, done, receive_responses, retry, send_input_requests,
};
use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO};
use crate::client::{Client, named};
use crate::upstream::{Call, InterceptedCalls, Upstream};
use crate::world::{World, hub, settle};

/// One call in all, and one at a time.
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

/// A call whose input request has reached its client.
struct Waiting<'a> {
    intercepted: InterceptedCalls,
    dialog: Dialog<'a>,
    /// `None` if the input request ended the call, which will then come again.
    call: Option<Call>,
    /// Key of the input request.
    key: String,
}

async fn wait<'a>(client: &'a Client, upstream: &Upstream) -> Waiting<'a> {
    let mut intercepted = upstream.intercept(CALL.0);
    let mut dialog = Dialog::start(client, CALL);
    let call = send_input_requests(upstream, intercepted.next().await, &[("q", FORM)]);
    let key = dialog.wait_for_requests(1).await.remove(0).key;
    Waiting { intercepted, dialog, call, key }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_person_keeps_no_place_and_its_answer_is_not_charged() {
    for side in [MODERN_HTTP, MODERN_STDIO, LEGACY_HTTP, LEGACY_STDIO] {
        let world = World::start(hub(LEGACY_HTTP), ONE).await;
        let (client, upstream) = (world.client_declaring(side, ALL).await, world.upstream("hub"));
        let Waiting { mut intercepted, mut dialog, call, key } = wait(&client, upstream).await;

        // During the wait another call gets the permit.
        let other = client.start(CALL.0, &named("hub__b"));
        let other_call = intercepted.next().await;
        assert_eq!(client.call_tool("hub__b").await.code(), 4290, "{side}");

        // With the answer the first call continues, even though another call has the permit.
        dialog.answer(&[(&key, FORM.answer)]).await;
        let (call, _) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
        other_call.result(done(upstream));
        check_done(&other.reply().await);
        settle().await;
        assert_eq!(client.call_tool("hub__b").await.code(), 4290, "{side}: the first has it");
        dialog.end(call, upstream).await;
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
        let Waiting { mut dialog, key, .. } = wait(&client, upstream).await;
        let state = dialog.state.take().expect("a state");
        let again = client.request(CALL.0, &retry(CALL, &state, &[(&key, FORM.answer)])).await;
        assert_eq!(again.code(), 4290, "{side}");
        assert_eq!(upstream.count(CALL.0), 1, "{side}");
        drop(dialog);
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
        let Waiting { mut intercepted, mut dialog, call, key } = wait(&client, upstream).await;
        let state = dialog.state.clone().expect("a state");
        let answers = [(&*key, FORM.answer)];
        let codes = [
            client.request(CALL.0, &retry(CALL, "\"made up\"", &answers)).await.code(),
            // The state belongs to another request.
            client
                .request(CALL.0, &retry(("", r#""name":"hub__b""#), &state, &answers))
                .await
                .code(),
            client.request(CALL.0, &retry(CALL, "\"made up\"", &answers)).await.code(),
        ];
        assert_eq!(codes, [-32602, -32602, 4290], "{side}");
        // The valid state remains usable.
        dialog.answer(&answers).await;
        let (call, _) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
        dialog.end(call, upstream).await;
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_reaches_its_call_although_its_client_is_over_every_limit() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let world = World::start(hub(LEGACY_HTTP), ONE).await;
        let (client, upstream) = (world.client_declaring(side, ALL).await, world.upstream("hub"));
        let Waiting { mut intercepted, mut dialog, call, key } = wait(&client, upstream).await;
        for _ in 0..150 {
            assert_eq!(client.call_tool("hub__a").await.code(), 4290, "{side}");
        }
        dialog.answer(&[(&key, FORM.answer)]).await;
        let (call, _) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
        dialog.end(call, upstream).await;
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
    let Waiting { mut intercepted, mut dialog, call, key } = wait(&modern, upstream).await;
    let state = dialog.state.clone().expect("a state");
    // In a legacy session a state means nothing: the request is a new call, and the limit is used
    // up.
    for _ in 0..3 {
        let again = legacy.request(CALL.0, &retry(CALL, &state, &[(&key, FORM.answer)])).await;
        assert_eq!(again.code(), 4290);
    }
    assert_eq!(upstream.count(CALL.0), 1);
    dialog.answer(&[(&key, FORM.answer)]).await;
    let (call, _) = receive_responses(upstream, &mut intercepted, call, &["q"], 0).await;
    dialog.end(call, upstream).await;
    drop(modern);
    drop(legacy);
    world.close().await;
}
