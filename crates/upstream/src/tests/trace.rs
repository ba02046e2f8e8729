//! Trace of messages: of each transport, with a sign-in, and of bodies that do not arrive whole.

use std::time::Duration;

use hyper::Response;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use serde_json::{Value, json};

use super::calls::RunningCall;
use super::pair::Pair;
use super::sign_in::with_account;
use crate::UpstreamSource;
use crate::testing::{
    SendCall, TestTransport, World, call, discovered, expect_response, payload, settings, unlimited,
};
use weir_base::secrets::secret::Secret;
use weir_mcp::call::ResponseOutcome;
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::NEWEST_LEGACY;

/// Lines with only the methods of requests, and `response` in the place of responses.
fn methods(lines: &[String]) -> Vec<String> {
    let shown = lines.iter().map(|line| {
        let (arrow, text) = line.split_once(' ').expect("an arrow");
        let message = serde_json::from_str::<Value>(text).ok();
        match message.map(|message| message["method"].as_str().map(str::to_owned)) {
            Some(method) => format!("{arrow} {}", method.unwrap_or("response".to_owned())),
            None => line.clone(),
        }
    });
    shown.collect()
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_process_are_traced_from_the_first_one_on() {
    let mut settings = settings(TestTransport::Stdio);
    if let UpstreamSource::Process(command) = &mut settings.source {
        command.env = vec![("KEY".to_owned(), Secret::from("canary-1"))];
        command.arg_secrets = vec![Secret::from("canary-2")];
    }
    let (mut world, trace) = World::traced(settings, usize::MAX);
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    world.up().await;
    peer.write("Starting with canary-1 and canary-2\u{1b}[2J").await;
    let upstream = world.upstream.clone();
    let answer = async {
        let request = peer.read().await;
        peer.answer(&request, json!({ "content": [], "x": "canary-1" })).await;
    };
    let (reply, ()) = tokio::join!(upstream.send(call(LEGACY)), answer);
    payload(reply.expect("a reply")).await;
    let lines = trace.take_lines();
    assert_eq!(
        methods(&lines),
        [
            "-> server/discover",
            "<- response",
            "-> initialize",
            "<- response",
            "-> notifications/initialized",
            r"<- Starting with *** and ***\u001b[2J",
            "-> tools/call",
            "<- response",
        ]
    );
    assert!(lines[7].ends_with(r#""result":{"content":[],"x":"***"}}"#), "{lines:?}");
    // The message over the limit is not read to its end.
    let long = "x".repeat(2 << 20);
    let answer = async {
        peer.read().await;
        peer.begin(&long).await;
        peer.write("").await;
    };
    let (reply, ()) = tokio::join!(upstream.send(call(LEGACY)), answer);
    assert!(reply.is_err());
    let lines = trace.take_lines();
    let cut = lines.iter().find(|line| line.starts_with("<- xxx")).expect("a line");
    assert!(cut.ends_with("xxx (the rest was too large to be read)"), "{cut}");
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn requests_over_http_are_traced_with_their_heads_and_no_session() {
    let mut settings = settings(TestTransport::Http);
    if let UpstreamSource::Http { headers, .. } = &mut settings.source {
        headers.insert("x-api-key", HeaderValue::from_static("canary-key"));
    }
    let (mut world, trace) = World::traced(settings, usize::MAX);
    let discover = world.post().await;
    discover.status(400);
    world.initialize("canary-session").await;
    world.up().await;
    let upstream = world.upstream.clone();
    let answer = async {
        let request = world.post().await;
        let id = request.id();
        let events = request.events();
        events.raw(": comment\n\nid: 7\ndata:\n\n");
        let params = json!({ "level": "info", "data": "canary-key" });
        events
            .send(json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }));
        events.raw("event: odd\ndata: what\n\n");
        events.send(json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [] } }));
    };
    let (reply, ()) = tokio::join!(upstream.send(call(LEGACY)), answer);
    payload(reply.expect("a reply")).await;
    let mut lines = trace.take_lines();
    // A stream of the server's own, which this one has not.
    lines.retain(|line| !line.contains(" GET ") && !line.starts_with("<- 405"));
    assert!(!lines.concat().contains("canary"), "{lines:?}");
    let heads: Vec<_> = lines.iter().filter(|line| line.contains(" POST ")).collect();
    let others = "other headers: accept, accept-encoding, host, user-agent, x-api-key";
    assert_eq!(
        *heads[0],
        format!(
            "-> POST /mcp?x=***; content-type: application/json; mcp-method: server/discover; \
             mcp-protocol-version: 2026-07-28; {others}"
        )
    );
    let call = "-> POST /mcp?x=***; content-type: application/json; \
                mcp-protocol-version: 2025-11-25; mcp-session-id: ***;";
    let at = lines.iter().rposition(|line| line.contains(" POST ")).expect("a request");
    assert_eq!(lines[at], format!("{call} {others}"));
    let accepted = lines.iter().find(|line| line.starts_with("<- 200 OK")).expect("a head");
    assert!(accepted.contains("; mcp-session-id: ***; other headers: "), "{accepted}");
    assert_eq!(methods(&lines[at + 1..=at + 1]), ["-> tools/call"]);
    let rest: Vec<_> = methods(&lines[at + 2..]);
    assert!(rest[0].starts_with("<- 200 OK; content-type: text/event-stream"), "{rest:?}");
    // There is no line for the event without data.
    assert_eq!(rest[1..], ["<- notifications/message", "<- event odd: what", "<- response"]);
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn messages_over_http_and_sse_are_traced_without_the_session_in_the_endpoint() {
    let (mut world, trace) = World::traced(settings(TestTransport::Sse), usize::MAX);
    let _pair = Pair::open(&mut world).await;
    world.up().await;
    let lines = methods(&trace.take_lines());
    let messages = lines.iter().filter(|line| !line.contains("; other headers"));
    let messages: Vec<_> = messages.map(String::as_str).collect();
    assert_eq!(
        messages,
        [
            "<- event endpoint: /message?s=***",
            "-> initialize",
            "<- response",
            "-> notifications/initialized",
        ]
    );
    let begins = |line: &String, begin: &str| line.starts_with(begin);
    assert!(begins(&lines[0], "-> GET /v1/sse?x=***; other headers: accept,"), "{lines:?}");
    assert!(lines.iter().any(|line| begins(line, "-> POST /message?s=***; content-type: ")));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_sign_in_are_in_no_line() {
    let (mut world, trace) = World::traced(with_account(Some("/token")), usize::MAX);
    let issue = |number: u32| json!({ "access_token": token(number), "token_type": "Bearer" });
    world.post().await.json(200, issue(1));
    let discover = world.post().await;
    let id = discover.id();
    let result = discovered();
    let body = json!({ "jsonrpc": "2.0", "id": id, "result": result, "x": token(1) }).to_string();
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("mcp-note", token(1))
        .header("x-note", token(1));
    discover.reply(response, body.clone());
    world.up().await;
    let upstream = world.upstream.clone();
    let answer = async {
        let refused = world.post().await;
        let challenge = format!("Bearer error=\"invalid_token\", x=\"{}\"", token(1));
        let response = Response::builder().status(401).header(WWW_AUTHENTICATE, challenge);
        refused.reply(response, format!("not {}", token(1)));
        world.post().await.json(200, issue(2));
        let accepted = world.post().await;
        let result = json!({ "content": [{ "type": "text", "text": token(2) }] });
        accepted.answer(result);
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    payload(reply.expect("a reply")).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lines = trace.take_lines();
    let all = lines.join("\n");
    assert!(!all.contains("canary"), "{all}");
    assert!(!all.contains("hunter2"), "{all}");
    // The call is there twice, the requests for tokens are not.
    assert_eq!(methods(&lines).iter().filter(|line| *line == "-> tools/call").count(), 2);
    assert!(!all.contains("/token") && all.contains("<- 401 Unauthorized"), "{all}");
    assert!(all.contains("mcp-note: ***") && all.contains("<- not ***"), "{all}");
    drop(upstream);
    world.finish().await;
}

fn token(number: u32) -> String {
    format!("canary-token-0123456789-{number}")
}

#[tokio::test(start_paused = true)]
async fn a_body_is_one_line_and_one_that_breaks_off_says_so() {
    let (mut world, trace) = World::traced(settings(TestTransport::Http), 64);
    world.open_http(Era::Modern).await;
    world.up().await;
    trace.take_lines();
    let text = "x".repeat(100_000);
    for breaks_off in [false, true] {
        let upstream = world.upstream.clone();
        let running = world.tracker.spawn(async move {
            let reply = upstream.send(call(Revision::NEWEST)).await.expect("a reply");
            match expect_response(reply).outcome {
                ResponseOutcome::Result(body) => body.collect(&unlimited()).await.is_ok(),
                ResponseOutcome::Error(error) => panic!("{error:?}"),
            }
        });
        let request = world.post().await;
        let id = request.id();
        let pieces = request.pieces();
        let whole =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"x":"{text}"}}}}"#);
        let length = whole.len();
        if breaks_off {
            pieces.raw(whole[..90_000].to_owned());
            tokio::time::sleep(Duration::from_millis(1)).await;
            pieces.cut();
        } else {
            pieces.raw(whole);
            drop(pieces);
        }
        assert_eq!(running.await.expect("no panic"), !breaks_off);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let lines = trace.take_lines();
        let last = lines.last().expect("a line");
        let rest = if breaks_off { 90_000 - 64 } else { length - 64 };
        assert!(last.starts_with(r#"<- {"jsonrpc":"2.0","id":"#), "{last}");
        let remark = if breaks_off { " (the rest was not read)" } else { "" };
        assert!(last.ends_with(&format!(" +{rest}{remark}")), "{last}");
        // The request and two heads are cut as well.
        assert!(lines.iter().all(|line| line.len() < 120), "{lines:?}");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_response_says_why() {
    let (mut world, trace) = World::traced(settings(TestTransport::Http), usize::MAX);
    world.open_http(Era::Modern).await;
    world.up().await;
    let running = RunningCall::start(&world, call(Revision::NEWEST));
    world.post().await.hang_up();
    assert!(running.end().await.is_err());
    let lines = trace.take_lines();
    let has_ended = |line: &String| line.starts_with("<- no response: connection closed");
    assert!(lines.iter().any(has_ended), "{lines:?}");
    world.finish().await;
}
