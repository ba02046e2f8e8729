//! Clients that break the protocol: unsolicited responses, and messages for unknown conversations.

use super::{ConcurrentCalls, METHOD, is_own, right};
use crate::client::{Client, named};
use crate::world::{everywhere, hub, settle};

/// Sends a response for which the gateway may have no request.
async fn say(client: &Client, message: String) {
    if !client.side.is_http() {
        return client.send(&message).await;
    }
    let http = client.http();
    let reply = http.post(message.clone(), &http.headers("", "{}")).whole().await;
    // A modern server sends no requests; a legacy one accepts every valid response.
    let statuses: &[u16] = if client.side.is_modern() { &[400] } else { &[202, 400] };
    assert!(statuses.contains(&reply.status), "{message}: {reply:?}");
    // The error must not name any of the client's requests.
    assert!(!reply.body.contains("\"id\""), "{message}: {reply:?}");
}

#[tokio::test(start_paused = true)]
async fn n58_an_answer_to_a_question_never_asked_reaches_nobody() {
    everywhere("", hub, async |world, cell| {
        let (ann, bob) = (world.client(cell.client).await, world.client(cell.client).await);
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(METHOD);
        let concurrent = ConcurrentCalls::start(&ann, &bob, &mut intercepted).await;
        let ours = concurrent.call.id().to_string();
        let theirs = concurrent.others[0].1.id().to_string();
        for id in ["0", "1", "70", "71", "-1", "\"70\"", "\"x\"", "null", &ours, &theirs] {
            for outcome in [
                r#""result":{"content":[],"own":"wrong"}"#,
                r#""error":{"code":-1,"message":"wrong"}"#,
                r#""result":{},"error":{"code":-1,"message":"wrong"}"#,
                r#""error":7"#,
            ] {
                say(&ann, format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#)).await;
            }
        }
        let (exchange, call) = concurrent.others_go_on("answers", upstream).await;
        call.result(&right(upstream, "right"));
        is_own(&exchange.reply().await, "right", "answers");
        assert_eq!(upstream.received_responses(0).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n55_a_state_of_nobodys_is_refused_and_nothing_is_executed() {
    everywhere("", hub, async |world, cell| {
        if !cell.client.is_modern() || cell.upstream.is_modern() {
            return;
        }
        let (ann, bob) = (world.client(cell.client).await, world.client(cell.client).await);
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(METHOD);
        let concurrent = ConcurrentCalls::start(&ann, &bob, &mut intercepted).await;
        let before = world.requests();
        let mut errors = Vec::new();
        for state in ["", "x", &"a".repeat(43), &"a".repeat(4 * 1024), &"a".repeat(4 * 1024 + 1)] {
            for (method, item) in [
                ("tools/call", r#""name":"hub__a""#),
                ("prompts/get", r#""name":"hub__a""#),
                ("resources/read", r#""uri":"file:///a""#),
            ] {
                let answers = r#""inputResponses":{"unknown":{"action":"accept"}}"#;
                let params = format!(r#"{{{item},{answers},"requestState":"{state}"}}"#);
                let reply = ann.request(method, &params).await;
                assert_eq!(reply.code(), -32602, "{method}: {reply:?}");
                errors.push(reply.error().to_owned());
            }
        }
        assert!(errors.iter().all(|text| *text == errors[0]), "in the same words: {errors:?}");
        assert_eq!(world.requests(), before);
        let (exchange, call) = concurrent.others_go_on("states", upstream).await;
        call.result(&right(upstream, "right"));
        is_own(&exchange.reply().await, "right", "states");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n55_what_only_a_retry_has_says_nothing_from_a_client_that_has_none() {
    everywhere("", hub, async |world, cell| {
        if cell.client.is_modern() {
            return;
        }
        let client = world.client(cell.client).await;
        let upstream = world.upstream("hub");
        let params =
            r#"{"name":"hub__a","requestState":"s","inputResponses":{"q":{"action":"accept"}}}"#;
        assert!(client.request(METHOD, params).await.outcome.is_ok());
        let seen = upstream.last(METHOD).params;
        let seen = std::str::from_utf8(&seen).expect("text");
        assert!(!seen.contains("requestState") && !seen.contains("inputResponses"), "{seen}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn n110_a_cancel_of_what_is_not_ones_own_cancels_nothing() {
    everywhere("", hub, async |world, cell| {
        let (ann, bob) = (world.client(cell.client).await, world.client(cell.client).await);
        let upstream = world.upstream("hub");
        let mut intercepted = upstream.intercept(METHOD);
        // Only this client's request has this id.
        let hers = ann.start_as(weir_mcp::jsonrpc::Id::from(90), METHOD, &named("hub__a"));
        let call = intercepted.next().await;
        let inner = call.id().to_string();
        for id in ["90", "91", &inner, "\"90\"", "null", "[90]", "{}"] {
            let params = format!(r#"{{"requestId":{id},"reason":"mine"}}"#);
            bob.notify("notifications/cancelled", &params).await;
        }
        for id in ["91", "\"90\"", "90.0", "null"] {
            let params = format!(r#"{{"requestId":{id}}}"#);
            ann.notify("notifications/cancelled", &params).await;
        }
        settle().await;
        assert!(call.is_wanted());
        call.result(&right(upstream, "hers"));
        is_own(&hers.reply().await, "hers", "cancels");
    })
    .await;
}
