//! Calls: requests, responses and failures.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::pair::{Pair, pair};
use crate::testing::{
    Events, Exchange, Peer, SendCall, TestTransport, World, call, expect_response, payload,
    settings, unlimited,
};
use crate::{Error, Settings, Sharing};
use weir_base::json::Object;
use weir_mcp::call::{Payload, ResponseOutcome, UpstreamRequest};
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::definition::item::ItemDefect;
use weir_mcp::definition::param_headers::InvalidHeaderAnnotation;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::kind::Kind;
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::V2025_11_25;
const MODERN: Revision = Revision::V2026_07_28;

/// Server in one combination of era and transport, and the call that it received.
pub(super) enum Server {
    Stdio(Box<Peer>, Value),
    Http(Events, Value),
    Sse(Pair, Value),
}

impl Server {
    pub(super) fn request(&self) -> &Value {
        match self {
            Self::Stdio(_, request) | Self::Http(_, request) | Self::Sse(_, request) => request,
        }
    }

    /// Reads the next message from Weir and accepts it.
    pub(super) async fn read(&mut self, world: &mut World) -> Value {
        match self {
            Self::Stdio(peer, _) => peer.read().await,
            Self::Sse(pair, _) => pair.read(world).await,
            Self::Http(..) => {
                let post = world.post().await;
                assert_eq!(post.headers["mcp-session-id"], "s1");
                let body = post.body.clone();
                post.status(202);
                body
            }
        }
    }

    pub(super) async fn send(&mut self, message: Value) {
        match self {
            Self::Stdio(peer, _) => peer.send(message).await,
            Self::Http(events, _) => events.send(message),
            Self::Sse(pair, _) => pair.events.send(message),
        }
    }

    pub(super) async fn progress(&mut self, progress: u64) {
        let token = self.request()["params"]["_meta"]["progressToken"].clone();
        let params = json!({ "progressToken": token, "progress": progress });
        let method = "notifications/progress";
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(super) async fn answer(&mut self, result: Value) {
        let id = self.request()["id"].clone();
        self.send(json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
    }

    /// Checks that the call was cancelled as transport and era require.
    pub(super) async fn expect_cancelled(self, world: &mut World, era: Era) {
        let id = self.request()["id"].clone();
        let cancelled = match self {
            Self::Stdio(mut peer, _) => peer.read().await,
            Self::Sse(pair, _) => pair.read(world).await,
            Self::Http(events, _) => {
                events.closed().await;
                if era == Era::Modern {
                    assert!(world.is_quiet().await, "closing the stream says it all");
                    return;
                }
                let cancelled = world.post().await;
                assert_eq!(cancelled.headers["mcp-session-id"], "s1");
                let body = cancelled.body.clone();
                cancelled.status(202);
                body
            }
        };
        assert_eq!(cancelled["method"], "notifications/cancelled");
        assert_eq!(cancelled["params"]["requestId"], id);
    }
}

/// Runs `check` in every combination, with a call in flight.
pub(super) async fn in_all_cells(
    wanted: bool,
    check: impl AsyncFn(
        &mut World,
        Server,
        RunningCall,
        weir_mcp::call_notifications::NotificationStream,
        Era,
    ),
) {
    for (era, over) in [
        (Era::Legacy, TestTransport::Stdio),
        (Era::Legacy, TestTransport::Http),
        (Era::Legacy, TestTransport::Sse),
        (Era::Modern, TestTransport::Stdio),
        (Era::Modern, TestTransport::Http),
    ] {
        let (notes, stream) = NotificationSink::channel();
        let mut sent = call(LEGACY);
        if wanted {
            sent.caller.notifications = notes;
        }
        let (mut world, running, server) = match over {
            TestTransport::Stdio => {
                let (world, mut peer) = World::stdio(era).await;
                let running = RunningCall::start(&world, sent);
                let request = peer.read().await;
                (world, running, Server::Stdio(Box::new(peer), request))
            }
            TestTransport::Http => {
                let mut world = World::http(era).await;
                let running = RunningCall::start(&world, sent);
                let request = world.post().await;
                let body = request.body.clone();
                (world, running, Server::Http(request.events(), body))
            }
            TestTransport::Sse => {
                let (mut world, pair) = pair().await;
                let running = RunningCall::start(&world, sent);
                let request = pair.read(&mut world).await;
                (world, running, Server::Sse(pair, request))
            }
        };
        check(&mut world, server, running, stream, era).await;
        world.finish().await;
    }
}

/// Call that runs in a separate task.
pub(super) struct RunningCall(pub(super) tokio::task::JoinHandle<Result<String, Error>>);

impl RunningCall {
    pub(super) fn start(world: &World, call: Box<UpstreamRequest>) -> Self {
        let upstream = world.upstream.clone();
        Self(world.tracker.spawn(async move { Ok(payload(upstream.send(call).await?).await) }))
    }

    pub(super) async fn end(self) -> Result<String, Error> {
        self.0.await.expect("the call was not aborted")
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_comes_back_as_it_was_sent() {
    in_all_cells(false, async |_, mut server, running, _, _| {
        assert!(server.request()["params"]["_meta"].get("progressToken").is_none());
        assert_eq!(server.request()["params"]["_meta"]["x"], 1);
        server.answer(json!({ "content": [], "odd": 1.0 })).await;
        assert_eq!(running.end().await.expect("a reply"), r#"{"content":[],"odd":1.0}"#);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn answers_to_others_are_ignored() {
    in_all_cells(false, async |_, mut server, running, _, _| {
        let id = server.request()["id"].as_u64().expect("a number");
        for other in [json!(id + 1), json!(id.to_string()), json!(-1)] {
            server.send(json!({ "jsonrpc": "2.0", "id": other, "result": { "wrong": 1 } })).await;
        }
        server.answer(json!({ "right": 1 })).await;
        assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_caller_and_keeps_the_call_alive() {
    in_all_cells(true, async |_, mut server, running, mut notes, _| {
        for step in 1..=5 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            server.progress(step).await;
            let note = notes.next().await;
            assert_eq!(note.expect_progress().to_bytes(), format!(r#"{{"progress":{step}}}"#));
        }
        server.answer(json!({})).await;
        assert_eq!(running.end().await.expect("a reply"), "{}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_longest_whatever_its_progress() {
    in_all_cells(true, async |world, mut server, running, _, era| {
        let start = Instant::now();
        for step in 1..=11 {
            server.progress(step).await;
            tokio::time::sleep(Duration::from_secs(50)).await;
        }
        server.progress(12).await;
        let error = running.end().await.expect_err("too late");
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        assert_eq!(start.elapsed().as_secs(), 600);
        server.expect_cancelled(world, era).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_call_times_out_and_is_cancelled() {
    in_all_cells(false, async |world, server, running, _, era| {
        let start = Instant::now();
        let error = running.end().await.expect_err("too late");
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        assert_eq!(start.elapsed().as_secs(), 60);
        server.expect_cancelled(world, era).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_cancelled_at_the_server() {
    in_all_cells(false, async |world, server, running, _, era| {
        running.0.abort();
        server.expect_cancelled(world, era).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_breaks_with_its_connection_is_told_once_more() {
    in_all_cells(false, async |world, server, running, _, era| {
        let is_told_by_post = !matches!(&server, Server::Stdio(..)) && era == Era::Legacy;
        running.0.abort();
        if is_told_by_post {
            world.post().await.hang_up();
        }
        server.expect_cancelled(world, era).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_gets_the_callers_context_in_body_and_headers() {
    let mut world = World::http(Era::Modern).await;
    let mut sent = call(MODERN);
    sent.params.set("name", "\"t\u{e4}\"");
    sent.caller.info = Some(r#"{"name":"ide"}"#.into());
    sent.caller.capabilities = r#"{"sampling":{}}"#.into();
    let running = RunningCall::start(&world, sent);
    let request = world.post().await;
    assert_eq!(request.uri, "/mcp?x=1");
    assert_eq!(request.headers["host"], "upstream.test");
    assert_eq!(request.headers["accept"], "application/json, text/event-stream");
    assert_eq!(request.headers["mcp-protocol-version"], "2026-07-28");
    assert_eq!(request.headers["mcp-method"], "tools/call");
    assert_eq!(request.headers["mcp-name"], "=?base64?dMOk?=");
    let expected = json!({
        "x": 1,
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "ide" },
        "io.modelcontextprotocol/clientCapabilities": { "sampling": {} },
    });
    assert_eq!(request.body["params"]["_meta"], expected);
    request.answer(json!({}));
    running.end().await.expect("a reply");

    // The features of a legacy client are expressed in the terms of this era.
    let mut sent = call(LEGACY);
    sent.caller.features = ClientFeatures { sampling: true, ..ClientFeatures::default() };
    sent.caller.capabilities = "{}".into();
    let running = RunningCall::start(&world, sent);
    let request = world.post().await;
    let declared = "io.modelcontextprotocol/clientCapabilities";
    assert_eq!(request.body["params"]["_meta"][declared], json!({ "sampling": {} }));
    request.answer(json!({}));
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_gets_its_session_and_revision_and_nothing_else() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(MODERN));
    let request = world.post().await;
    assert_eq!(request.headers["mcp-session-id"], "s1");
    assert_eq!(request.headers["mcp-protocol-version"], "2025-11-25");
    assert!(!request.headers.contains_key("mcp-method"));
    assert_eq!(request.body["params"]["_meta"], json!({ "x": 1 }));
    request.answer(json!({}));
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_is_a_reply_under_any_status() {
    for (era, status) in [(Era::Legacy, 200), (Era::Legacy, 400), (Era::Modern, 404)] {
        let mut world = World::http(era).await;
        let running = RunningCall::start(&world, call(LEGACY));
        world.post().await.refuse(status, -32601);
        let text = running.end().await.expect("a reply");
        assert!(text.starts_with(r#"{"code":-32601,"#), "{text}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_without_an_error_says_whether_the_call_may_have_run() {
    let kind = |error: Error| match error {
        Error::HttpStatus { .. } => "may have run",
        Error::Protocol(_) => "nonsense",
        other => panic!("{other:?}"),
    };
    for (status, expected) in [
        (401, "may have run"),
        (403, "may have run"),
        (429, "may have run"),
        (503, "may have run"),
        (500, "may have run"),
        (504, "may have run"),
        (302, "nonsense"),
        (202, "nonsense"),
    ] {
        let mut world = World::http(Era::Modern).await;
        let running = RunningCall::start(&world, call(LEGACY));
        world.post().await.status(status);
        assert_eq!(kind(running.end().await.expect_err("no reply")), expected, "{status}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_which_a_part_was_sent_is_not_said_to_have_been_left_undone() {
    let mut world = World::http(Era::Modern).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = world.post().await;
    // The call was executed up to here and would be sent once more, but the server cannot be
    // reached.
    let result = json!({ "resultType": "input_required", "requestState": "s" });
    let answer = json!({ "jsonrpc": "2.0", "id": request.id(), "result": result });
    world.connector.refuses.store(true, Ordering::Relaxed);
    let response = hyper::Response::builder().header("content-type", "application/json");
    request.reply(response.header("connection", "close"), answer.to_string());
    let error = running.end().await.expect_err("no way");
    assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_opened_again_and_the_call_sent_once_more() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    world.post().await.status(404);
    world.check().await.status(404);
    world.initialize("s2").await;
    let again = world.post().await;
    assert_eq!(again.headers["mcp-session-id"], "s2");
    assert_eq!(again.body["method"], "tools/call");
    again.answer(json!({}));
    assert_eq!(running.end().await.expect("a reply"), "{}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_speaks_of_sessions_is_no_reason_to_call_again() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = world.post().await;
    let error = json!({ "code": -32000, "message": "the browser session crashed" });
    let answer = json!({ "jsonrpc": "2.0", "id": request.id(), "error": error });
    request.json(400, answer);
    let text = running.end().await.expect("a reply");
    assert!(text.contains("the browser session crashed"), "{text}");
    assert!(world.is_quiet().await, "the call may have run");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_is_sent_a_second_time_at_most() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    world.post().await.status(404);
    world.check().await.status(404);
    world.initialize("s2").await;
    // In the back-off the second session is not given up.
    world.post().await.status(404);
    let error = running.end().await.expect_err("no third time");
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_no_longer_speaks_the_revision_is_asked_again() {
    let (mut world, mut peer) = World::stdio(Era::Modern).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = peer.read().await;
    peer.refuse(&request, -32022).await;
    // The child is replaced; the new one speaks the legacy era.
    while peer.try_read().await.is_some() {}
    peer.exit("exited with code 0");
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    let again = peer.read().await;
    peer.answer(&again, json!({})).await;
    assert_eq!(running.end().await.expect("a reply"), "{}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_is_taken_up_where_it_ended() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = world.post().await;
    let id = request.id();
    let events = request.events();
    events.raw("id: e1\nretry: 5000\ndata:\n\n");
    let start = Instant::now();
    drop(events);
    let again = loop {
        let again = world.request().await;
        // The GET stream is refused, as before.
        if again.headers.contains_key("last-event-id") {
            break again;
        }
        again.status(405);
    };
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(again.headers["last-event-id"], "e1");
    assert_eq!(again.headers["mcp-session-id"], "s1");
    let events = again.events();
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    assert_eq!(running.end().await.expect("a reply"), "{}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_event_ids_that_ends_is_broken() {
    for (era, first) in [(Era::Legacy, ""), (Era::Modern, "id: e1\ndata:\n\n")] {
        let mut world = World::http(era).await;
        let running = RunningCall::start(&world, call(LEGACY));
        let events = world.post().await.events();
        events.raw(first);
        drop(events);
        let error = running.end().await.expect_err("no answer");
        assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_servers_own_requests_are_answered_on_its_session() {
    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = world.post().await;
    let id = request.id();
    let events = request.events();
    events.send(json!({ "jsonrpc": "2.0", "id": "q", "method": "ping" }));
    let pong = world.post().await;
    assert_eq!(pong.body, json!({ "jsonrpc": "2.0", "id": "q", "result": {} }));
    assert_eq!(pong.headers["mcp-session-id"], "s1");
    pong.status(202);
    events.send(json!({ "jsonrpc": "2.0", "id": id, "result": {} }));
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_last_line_without_a_line_end_is_read_when_the_process_ends() {
    let (world, mut peer) = World::stdio(Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = peer.read().await;
    peer.begin(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": {} }).to_string()).await;
    peer.exit("exited with code 0");
    assert_eq!(running.end().await.expect("a reply"), "{}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_over_the_limit_ends_its_call_and_no_other() {
    let (world, mut peer) = World::stdio(Era::Legacy).await;
    let large = RunningCall::start(&world, call(LEGACY));
    let first = peer.read().await;
    let small = RunningCall::start(&world, call(LEGACY));
    let second = peer.read().await;
    let result = "x".repeat(2 * 1024 * 1024);
    let (id, other) = (&first["id"], &second["id"]);
    // A notification is no response, whatever it contains.
    peer.write(&format!(
        r#"{{"jsonrpc":"2.0","params":{{"id":{other},"x":"{result}"}},"method":"x"}}"#
    ))
    .await;
    peer.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{result}"}}"#)).await;
    peer.answer(&second, json!({})).await;
    assert!(matches!(large.end().await, Err(Error::TooLarge(_))));
    assert_eq!(small.end().await.expect("a reply"), "{}");
    world.finish().await;

    let mut world = World::http(Era::Legacy).await;
    let running = RunningCall::start(&world, call(MODERN));
    world.post().await.answer(json!(result));
    assert!(matches!(running.end().await, Err(Error::TooLarge(_))));
    world.finish().await;
}

/// Call whose response begins with `head` and is larger than the buffer limit, for a caller of this
/// revision.
async fn arriving(world: &mut World, caller: Revision, head: &str) -> (Payload, Events) {
    let upstream = world.upstream.clone();
    let running = world.tracker.spawn(async move { upstream.send(call(caller)).await });
    let request = world.post().await;
    let head = head.replace("ID", &request.id().to_string());
    let events = request.pieces();
    events.raw(head + &"x".repeat(100_000));
    let reply = running.await.expect("no panic").expect("a reply");
    match expect_response(reply).outcome {
        ResponseOutcome::Result(body) => (body, events),
        ResponseOutcome::Error(error) => panic!("{error:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_result_is_handed_on_while_it_arrives() {
    let mut world = World::http(Era::Modern).await;
    let (body, events) =
        arriving(&mut world, MODERN, r#"{"jsonrpc":"2.0","id":ID,"result":{"text":""#).await;
    assert!(matches!(body, Payload::Streaming(_)));
    events.raw("yy\"},\n\"mo");
    events.raw("re\":1}\n");
    drop(events);
    let text = body.collect(&unlimited()).await.expect("all of it");
    assert_eq!(text, format!(r#"{{"text":"{}yy"}}"#, "x".repeat(100_000)));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_off_or_answers_somebody_else_is_broken() {
    for (head, tail) in [
        (r#"{"jsonrpc":"2.0","id":ID,"result":{"text":""#, None),
        (r#"{"jsonrpc":"2.0","id":ID,"result":{"text":""#, Some("\"}")),
        (r#"{"jsonrpc":"2.0","id":99999,"result":{"text":""#, Some("\"}}")),
        (r#"{"id":ID,"result":{"text":""#, Some("\"}}")),
        (r#"{"jsonrpc":"2.0","id":ID,"error":{},"result":{"text":""#, Some("\"}}")),
        (r#"{"jsonrpc":"2.0","id":ID,"result":{"text":""#, Some("\"}}{}")),
    ] {
        let mut world = World::http(Era::Legacy).await;
        let (body, events) = arriving(&mut world, LEGACY, head).await;
        match tail {
            Some(tail) => events.raw(tail),
            None => events.cut(),
        }
        assert!(body.collect(&unlimited()).await.is_err(), "{head} {tail:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_is_broken() {
    let mut world = World::http(Era::Legacy).await;
    let head = r#"{"jsonrpc":"2.0","id":ID,"result":{"text":""#;
    let (body, events) = arriving(&mut world, LEGACY, head).await;
    let start = Instant::now();
    assert!(body.collect(&unlimited()).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 30);
    events.closed().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f11_a_body_that_drips_ends_its_call_as_a_broken_one() {
    for is_stream in [false, true] {
        let mut world = World::http(Era::Modern).await;
        let running = RunningCall::start(&world, call(MODERN));
        let request = world.post().await;
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"text":""#, request.id());
        let (events, text) = match is_stream {
            true => (request.events(), format!("data: {text}")),
            false => (request.pieces(), text),
        };
        // Ten bytes a second, after half a minute: before the first bytes there is no minimum rate.
        let drip = world.tracker.spawn(async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            events.raw(text);
            let dripping = async {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    events.raw("x".repeat(10));
                }
            };
            tokio::select! {
                () = dripping => {}
                () = events.closed() => {}
            }
        });
        let start = Instant::now();
        let error = running.end().await.expect_err("it is broken");
        assert!(
            matches!(&error, Error::ConnectionLost(reason) if reason.contains("1 KiB")),
            "{error}"
        );
        assert_eq!(start.elapsed().as_secs(), 50);
        drip.await.expect("the connection is closed");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f11_who_thinks_says_how_far_it_is_or_is_slow_but_not_too_slow_is_waited_for() {
    let mut settings = settings(TestTransport::Http);
    settings.timeouts.call = Duration::from_secs(3_600);
    settings.timeouts.call_max = Duration::from_secs(7_200);
    let mut world = World::opened_http(settings, Era::Modern).await;
    // White space, comments, progress in pieces, an event id: minutes apart.
    for before in ["\n", ": still there\n\n", ": half a ", "id: 7\n", PROGRESS] {
        let running = RunningCall::start(&world, call(MODERN));
        let request = world.post().await;
        let id = request.id();
        let events = match before {
            "\n" => request.pieces(),
            _ => request.events(),
        };
        for _ in 0..5 {
            events.raw(before);
            tokio::time::sleep(Duration::from_secs(300)).await;
        }
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        match before {
            "\n" => events.raw(answer),
            _ => events.raw(format!("\n\ndata: {answer}\n\n")),
        }
        drop(events);
        assert_eq!(running.end().await.expect("a reply"), "{}", "{before:?}");
    }
    // 2 KiB a second for ten minutes, streamed or buffered.
    for caller in [MODERN, LEGACY] {
        let running = RunningCall::start(&world, call(caller));
        let request = world.post().await;
        let id = request.id();
        let events = request.pieces();
        events.raw(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":""#));
        world.tracker.spawn(async move {
            for _ in 0..300 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                events.raw("x".repeat(2048));
            }
            events.raw("\"}}");
        });
        assert_eq!(running.end().await.expect("a reply").len(), 300 * 2048 + 8);
    }
    world.finish().await;
}

/// Unrequested progress without content.
const PROGRESS: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n";

#[tokio::test(start_paused = true)]
async fn a_large_reply_to_a_client_of_the_other_era_is_whole() {
    let mut world = World::http(Era::Modern).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let text = "x".repeat(200_000);
    world.post().await.answer(json!({ "x": text }));
    assert_eq!(running.end().await.expect("a reply").len(), 200_008);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn batches_are_read_where_the_revision_has_them() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    let discover = peer.read().await;
    peer.refuse(&discover, -32601).await;
    peer.initialize("2025-03-26").await;
    world.up().await;
    let running = RunningCall::start(&world, call(LEGACY));
    let id = peer.read().await["id"].clone();
    let changed = "notifications/prompts/list_changed";
    peer.send(json!([
        { "jsonrpc": "2.0", "method": changed },
        { "jsonrpc": "2.0", "id": id, "result": {} },
    ]))
    .await;
    assert_eq!(running.end().await.expect("a reply"), "{}");
    assert_eq!(world.upstream.changes().borrow().0, [1, 0, 0]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_wait_a_second_and_no_longer() {
    let (world, mut peer) = World::stdio(Era::Modern).await;
    let first: Vec<_> = (0..4).map(|_| RunningCall::start(&world, call(LEGACY))).collect();
    let request = peer.read().await;
    for _ in 1..4 {
        peer.read().await;
    }
    let start = Instant::now();
    let fifth = RunningCall::start(&world, call(LEGACY));
    let error = fifth.end().await.expect_err("busy");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert_eq!(start.elapsed(), Duration::from_secs(1));

    let sixth = RunningCall::start(&world, call(LEGACY));
    peer.answer(&request, json!({})).await;
    let request = peer.read().await;
    peer.answer(&request, json!({ "its": "turn" })).await;
    assert_eq!(sixth.end().await.expect("a reply"), r#"{"its":"turn"}"#);
    for running in first {
        running.0.abort();
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f28_behind_sixty_four_that_are_not_read_a_call_is_refused_after_a_second() {
    let mut settings = settings(TestTransport::Stdio);
    settings.limits.concurrency = 400;
    let (world, _peer) = World::opened(settings, Era::Modern).await;
    // None of them fits into the pipe.
    let large = || {
        let text = format!(r#"{{"name":"t","arguments":{{"a":"{}"}}}}"#, "x".repeat(100_000));
        let params = Object::parse(bytes::Bytes::from(text)).expect("params");
        Box::new(UpstreamRequest { params, ..*call(LEGACY) })
    };
    let waiting: Vec<_> = (0..64).map(|_| RunningCall::start(&world, large())).collect();
    let start = Instant::now();
    let error =
        RunningCall::start(&world, large()).end().await.expect_err("the child does not read");
    assert_eq!(error.to_string(), "not connected: the server does not read its standard input");
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    for running in waiting {
        running.0.abort();
    }
    world.finish().await;
}

/// Responds with a list of tools; the tool `t` repeats its argument in this header.
fn tools(request: Exchange, header: &str) {
    assert_eq!(request.body["method"], "tools/list");
    let marked = |header: &str| {
        let argument = json!({ "type": "integer", "x-mcp-header": header });
        json!({ "type": "object", "properties": { "n": argument } })
    };
    request.answer(json!({ "tools": [
        { "name": "t", "inputSchema": marked(header) },
        { "name": "bad", "inputSchema": marked("") },
    ] }));
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_gets_marked_arguments_in_headers_of_the_newest_list() {
    let mut world = World::http(Era::Modern).await;
    let upstream = world.upstream.clone();
    let listed = world.tracker.spawn(async move { upstream.list(Kind::Tool).await });
    tools(world.post().await, "Old");
    let listing = listed.await.expect("no panic").expect("a list");
    let flaws: Vec<_> = listing.items.iter().map(|item| item.defect).collect();
    assert_eq!(
        flaws,
        [None, Some(ItemDefect::HeaderAnnotation(InvalidHeaderAnnotation::InvalidName))]
    );

    let running = RunningCall::start(&world, call(LEGACY));
    let request = world.post().await;
    assert_eq!(request.headers["mcp-param-old"], "1");
    // Rejected unexecuted: the tools are listed again, and the call is sent once more as the new
    // list requires.
    request.refuse(400, -32020);
    tools(world.post().await, "New");
    let request = world.post().await;
    assert_eq!(request.headers["mcp-param-new"], "1");
    assert!(!request.headers.contains_key("mcp-param-old"));
    // Rejected again without a changed list: that is the response.
    request.refuse(400, -32020);
    let text = running.end().await.expect("a reply");
    assert!(text.starts_with(r#"{"code":-32020,"#), "{text}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_before_any_response_closes_its_connection() {
    let mut world = World::http(Era::Modern).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let mut request = world.post().await;
    running.0.abort();
    request.abandoned().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_never_sent_is_not_cancelled_and_has_not_run() {
    for over in [TestTransport::Http, TestTransport::Sse] {
        let (mut world, _pair) = match over {
            TestTransport::Sse => {
                let (world, pair) = pair().await;
                (world, Some(pair))
            }
            _ => (World::http(Era::Legacy).await, None),
        };
        // Longer than the idle timeout of a connection.
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.connector.stalls.store(true, Ordering::Relaxed);
        let given_up = RunningCall::start(&world, call(LEGACY));
        tokio::time::sleep(Duration::from_secs(1)).await;
        given_up.0.abort();
        let error =
            RunningCall::start(&world, call(LEGACY)).end().await.expect_err("nothing was sent");
        assert_eq!(error.to_string(), "not connected: the request could not be sent within 60 s");
        world.connector.stalls.store(false, Ordering::Relaxed);
        assert!(world.is_quiet().await, "the server receives nothing");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_own_connection_takes_too_long_was_not_sent() {
    let mut settings = Settings { sharing: Sharing::Client, ..settings(TestTransport::Stdio) };
    settings.timeouts.call = Duration::from_secs(5);
    let (mut world, _main) = World::opened(settings, Era::Legacy).await;
    let running = RunningCall::start(&world, call(LEGACY));
    let mut child = world.child().await;
    assert_eq!(child.read().await["method"], "initialize");
    let error = running.end().await.expect_err("nothing was sent");
    assert_eq!(error.to_string(), "not connected: the request could not be sent within 5 s");
    assert_eq!(child.try_read().await, None, "its input ends");
    child.exit("is done");
    world.finish().await;
}
