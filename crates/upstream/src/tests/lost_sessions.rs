//! Sessions that a server does not know any more, and the check that tells them from others.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::calls::RunningCall;
use super::links::roots;
use crate::testing::{Exchange, World, call};
use weir_mcp::call::UpstreamRequest;
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::V2025_11_25;

/// Responses of servers that do not know the session of a request.
const LOST: [(u16, &str, &str); 10] = [
    (400, "text/plain", "No valid session ID provided"),
    (400, "application/json", r#"{"error":"unknown session"}"#),
    (
        400,
        "application/json",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"x"}}"#,
    ),
    (
        400,
        "application/json",
        r#"{"jsonrpc":"2.0","id":"server","error":{"code":1,"message":"x"}}"#,
    ),
    (404, "text/plain", "Not Found"),
    (
        404,
        "application/json",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"x"}}"#,
    ),
    (410, "text/html", "<p>Gone</p>"),
    (422, "text/plain", ""),
    // Another Weir.
    (
        404,
        "application/json",
        r#"{"jsonrpc":"2.0","id":REQUEST_ID,"error":{"code":-32600,"message":"x","data":{"weir/session":"unknown"}}}"#,
    ),
    (
        200,
        "application/json",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"x"}}"#,
    ),
];

/// Responses that do not say whether the request was executed.
const IN_TROUBLE: [(u16, &str, &str); 4] = [
    (500, "text/plain", "TypeError: undefined is not a session"),
    (
        503,
        "application/json",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"x"}}"#,
    ),
    (200, "text/html", "<p>Welcome</p>"),
    (202, "text/plain", ""),
];

/// Replies with this body, in which `REQUEST_ID` is that of the request.
fn reply(exchange: Exchange, (status, media_type, body): (u16, &str, &str)) {
    let response = hyper::Response::builder().status(status).header("content-type", media_type);
    let body = body.replace("REQUEST_ID", &exchange.body["id"].to_string());
    exchange.reply(response, body);
}

#[tokio::test(start_paused = true)]
async fn a_session_in_which_a_harmless_request_fails_alike_is_opened_again() {
    for lost in LOST {
        let mut world = World::http(Era::Legacy).await;
        let running = RunningCall::start(&world, call(LEGACY));
        reply(world.post().await, lost);
        let check = world.check().await;
        assert_eq!(check.headers["mcp-session-id"], "s1");
        reply(check, lost);
        world.initialize("s2").await;
        let again = world.post().await;
        assert_eq!(again.headers["mcp-session-id"], "s2");
        again.answer(json!({}));
        assert_eq!(running.end().await.expect("a reply"), "{}", "{lost:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_run_is_not_sent_again_in_the_session_that_is_opened() {
    for trouble in IN_TROUBLE {
        let mut world = World::http(Era::Legacy).await;
        let running = RunningCall::start(&world, call(LEGACY));
        reply(world.post().await, trouble);
        // The client gets an error of the server's, or of Weir's.
        let _ = running.end().await;
        reply(world.check().await, trouble);
        let first = Instant::now();
        reply(world.check().await, trouble);
        assert_eq!(first.elapsed(), Duration::from_secs(2));
        world.initialize("s2").await;
        assert!(world.is_quiet().await, "{trouble:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_in_which_a_harmless_request_succeeds_or_fails_otherwise_is_kept() {
    let other: (u16, &str, &str) = (502, "text/plain", "Bad Gateway");
    for failure in LOST.into_iter().chain(IN_TROUBLE) {
        let mut world = World::http(Era::Legacy).await;
        for is_answered in [true, false] {
            let running = RunningCall::start(&world, call(LEGACY));
            reply(world.post().await, failure);
            match world.check().await {
                check if is_answered => check.answer(json!({})),
                check => reply(check, other),
            }
            // Some errors are passed to the client.
            let _ = running.end().await;
            let running = RunningCall::start(&world, call(LEGACY));
            let request = world.post().await;
            assert_eq!(request.headers["mcp-session-id"], "s1", "{failure:?}");
            request.answer(json!({}));
            running.end().await.expect("a reply");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_because_of_another_failure_does_not_stand_for_this_one() {
    let (trouble, lost) = (IN_TROUBLE[0], LOST[0]);
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    reply(world.post().await, trouble);
    let _ = running.end().await;
    // The server has been replaced meanwhile, and the next one does not know the session.
    reply(world.check().await, lost);
    let (start, running) = (Instant::now(), RunningCall::start(&world, call(LEGACY)));
    reply(world.post().await, lost);
    reply(world.check().await, lost);
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    world.initialize("s2").await;
    world.post().await.answer(json!({}));
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_works_is_not_checked_again_for_a_second() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    reply(world.post().await, (400, "text/plain", ""));
    world.check().await.answer(json!({}));
    running.end().await.expect_err("refused");
    let (start, running) = (Instant::now(), RunningCall::start(&world, call(LEGACY)));
    reply(world.post().await, (422, "text/plain", ""));
    running.end().await.expect_err("refused");
    assert_eq!(start.elapsed(), Duration::ZERO);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn failures_in_many_forms_wait_for_one_check_only() {
    let mut world = World::http(Era::Legacy).await;
    let statuses = [400, 409, 410, 422];
    let start = Instant::now();
    let running = statuses.map(|_| RunningCall::start(&world, call(LEGACY)));
    for status in statuses {
        reply(world.post().await, (status, "text/plain", ""));
    }
    for _ in 0..2 {
        reply(world.check().await, (502, "text/plain", ""));
    }
    for running in running {
        running.end().await.expect_err("refused");
    }
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_about_credentials_a_rate_or_the_call_itself_starts_no_check() {
    let mut world = World::http(Era::Legacy).await;
    for status in [401, 403, 429] {
        let running = RunningCall::start(&world, call(LEGACY));
        world.post().await.status(status);
        running.end().await.expect_err("refused");
    }
    for status in [400, 404, 500] {
        let running = RunningCall::start(&world, call(LEGACY));
        let request = world.post().await;
        let error = json!({ "code": -32001, "message": "Session not found" });
        let id = request.id();
        request.json(status, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        assert!(running.end().await.expect("an error").contains("Session not found"));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!world.has_request());
    world.finish().await;
}

/// Serves until a call has ended: each session works for its handshake only. Returns the times of
/// the handshakes.
async fn serve_handshakes_only(world: &mut World, running: RunningCall) -> Vec<Instant> {
    let (mut times, mut end) = (Vec::new(), pin!(running.end()));
    loop {
        let request = tokio::select! {
            ended = &mut end => {
                ended.expect_err("each session is lost");
                return times;
            }
            request = world.request() => request,
        };
        match request.body["method"].as_str() {
            Some("initialize") => {
                times.push(Instant::now());
                request.accept(&format!("s{}", times.len() + 1));
            }
            Some("notifications/initialized") => request.status(202),
            _ => request.status(404),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_lost_again_and_again_is_opened_again_after_growing_pauses() {
    let mut world = World::http(Era::Legacy).await;
    let (start, mut handshakes) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(8) {
        let running = RunningCall::start(&world, call(LEGACY));
        handshakes.extend(serve_handshakes_only(&mut world, running).await);
        sleep(Duration::from_millis(100)).await;
    }
    let pauses: Vec<_> = handshakes.windows(2).map(|times| times[1] - times[0]).collect();
    assert!(pauses.is_sorted() && (3..=6).contains(&pauses.len()), "{pauses:?}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn requests_of_all_sessions_of_an_upstream_have_different_ids() {
    let mut world = World::http(Era::Legacy).await;
    let mut ids = BTreeSet::new();
    let with_roots = UpstreamRequest { caller: Box::new(roots()), ..*call(LEGACY) };
    let calls = [("s1", call(LEGACY)), ("s2", Box::new(with_roots)), ("s1", call(LEGACY))];
    for (session, call) in calls {
        let running = RunningCall::start(&world, call);
        let mut request = world.post().await;
        while request.body["method"] != "tools/call" {
            match request.body["id"].as_u64() {
                Some(id) => {
                    assert!(ids.insert(id));
                    request.accept(session);
                }
                None => request.status(202),
            }
            request = world.post().await;
        }
        assert_eq!(request.headers["mcp-session-id"], session);
        assert!(ids.insert(request.id()) && request.id() < 1 << 31);
        request.answer(json!({}));
        running.end().await.expect("a reply");
    }
    assert_eq!(ids.len(), 4);
    world.finish().await;
}
