//! HTTP+SSE transport: detection, its one stream, and its POST requests.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::calls::RunningCall;
use crate::Settings;
use crate::testing::{
    Events, Exchange, SendCall, TestTransport, World, call, initialized, settings,
};
use crate::{ConnectionStatus, Error, HttpTransport, UpstreamSource};
use weir_mcp::capabilities;
use weir_mcp::revision::Revision;

const LEGACY: Revision = Revision::V2025_11_25;

/// Stream of an HTTP+SSE server.
pub(super) struct Pair {
    pub(super) events: Events,
}

/// Starts a world whose server has connected, with the endpoint `/message?s=1`.
pub(super) async fn pair() -> (World, Pair) {
    opened(settings(TestTransport::Sse)).await
}

/// Starts such a world with these settings.
pub(super) async fn opened(settings: Settings) -> (World, Pair) {
    let mut world = World::start(settings);
    let pair = Pair::open(&mut world).await;
    world.up().await;
    (world, pair)
}

impl Pair {
    /// Opens the stream and responds to the handshake.
    pub(super) async fn open(world: &mut World) -> Self {
        let pair = Self::begin(world, "/message?s=1").await;
        pair.initialize(world, "2025-11-25").await;
        pair
    }

    /// Opens the stream and sends the endpoint.
    async fn begin(world: &mut World, endpoint: &str) -> Self {
        let get = world.request().await;
        assert_eq!((get.method.as_str(), &get.body), ("GET", &Value::Null));
        assert_eq!(get.headers["accept"], "text/event-stream");
        let pair = Self { events: get.events() };
        pair.events.raw(format!("event: endpoint\ndata: {endpoint}\n\n"));
        pair
    }

    async fn initialize(&self, world: &mut World, revision: &str) {
        let initialize = self.read(world).await;
        assert_eq!(initialize["method"], "initialize");
        self.answer(&initialize, initialized(revision));
        assert_eq!(self.read(world).await["method"], "notifications/initialized");
    }

    /// Reads the next message and accepts it.
    pub(super) async fn read(&self, world: &mut World) -> Value {
        let post = Self::post(world).await;
        let body = post.body.clone();
        post.status(202);
        body
    }

    /// Reads the next message.
    async fn post(world: &mut World) -> Exchange {
        let post = world.request().await;
        assert_eq!((post.method.as_str(), &*post.uri.to_string()), ("POST", "/message?s=1"));
        assert_eq!(post.headers["content-type"], "application/json");
        post
    }

    pub(super) fn answer(&self, request: &Value, result: Value) {
        self.events.send(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }
}

fn transport_label(world: &World) -> &'static str {
    match &*world.upstream.status().borrow() {
        ConnectionStatus::Up(about) => about.transport,
        other => panic!("{other:?}"),
    }
}

// === Detection ===

/// Responds to the two detection requests over streamable HTTP: `initialize` gets this status.
async fn refuse(world: &mut World, initialize: impl FnOnce(Exchange)) {
    let discover = world.request().await;
    assert_eq!(discover.body["method"], "server/discover");
    discover.status(404);
    let second = world.request().await;
    assert_eq!(second.body["method"], "initialize");
    initialize(second);
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_is_refused_leads_to_the_pair_and_the_pair_is_remembered() {
    for status in [400, 404, 405] {
        for with_body in [false, true] {
            let mut world = World::start(settings(TestTransport::Http));
            refuse(&mut world, |initialize| match with_body {
                true => initialize.refuse(status, -32600),
                false => initialize.status(status),
            })
            .await;
            let pair = Pair::open(&mut world).await;
            world.up().await;
            assert_eq!(transport_label(&world), "http+sse");

            drop(pair);
            assert_eq!(world.down().await, "its event stream ended");
            // No other request comes first.
            let _pair = Pair::open(&mut world).await;
            world.up().await;
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_else_leads_to_the_pair() {
    for status in [301, 401, 403, 406, 408, 415, 422, 429, 500, 502, 503] {
        let mut world = World::start(settings(TestTransport::Http));
        refuse(&mut world, |initialize| initialize.status(status)).await;
        let reason = world.down().await;
        assert!(reason.contains(&status.to_string()) && !reason.contains("GET"), "{reason}");
        assert!(world.is_quiet().await, "{status}");
        world.finish().await;
    }
    // Only a modern server returns this error, with any status.
    for code in [-32020, -32021, -32022] {
        let mut world = World::start(settings(TestTransport::Http));
        refuse(&mut world, |initialize| initialize.refuse(400, code)).await;
        world.down().await;
        assert!(world.is_quiet().await, "{code}");
        world.finish().await;
    }
    // An invalid response was still given over streamable HTTP.
    let mut world = World::start(settings(TestTransport::Http));
    refuse(&mut world, |initialize| initialize.json(200, json!("what?"))).await;
    world.down().await;
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_tried_in_vain_is_said_in_one_line() {
    let tried = "it answers `initialize` with HTTP 404 Not Found, and";
    for (status, said) in [
        (
            405,
            "it answers GET with HTTP 405 Method Not Allowed: neither Streamable HTTP nor HTTP+SSE is served here",
        ),
        (
            200,
            "upon GET its response is not an event stream: neither Streamable HTTP nor HTTP+SSE is served here",
        ),
        (401, "it answers GET with HTTP 401 Unauthorized"),
        (503, "it answers GET with HTTP 503 Service Unavailable"),
        (307, "it answers GET with HTTP 307 Temporary Redirect, which is not followed"),
    ] {
        let mut world = World::start(settings(TestTransport::Http));
        refuse(&mut world, |initialize| initialize.status(404)).await;
        let get = world.request().await;
        assert_eq!((get.method.as_str(), &*get.uri.to_string()), ("GET", "/mcp?x=1"));
        get.status(status);
        assert_eq!(world.down().await, format!("{tried} {said}"));
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pinned_transport_is_the_only_one_that_is_tried() {
    let mut world = World::start(settings(TestTransport::Sse));
    let get = world.request().await;
    assert_eq!((get.method.as_str(), &*get.uri.to_string()), ("GET", "/v1/sse?x=1"));
    get.status(404);
    let reason = world.down().await;
    assert_eq!(reason, "it answers GET with HTTP 404 Not Found: no HTTP+SSE is served here");
    assert!(world.is_quiet().await);
    world.finish().await;

    let mut settings = settings(TestTransport::Http);
    if let UpstreamSource::Http { transport, .. } = &mut settings.source {
        *transport = Some(HttpTransport::Http);
    }
    let mut world = World::start(settings);
    refuse(&mut world, |initialize| initialize.status(405)).await;
    let reason = world.down().await;
    let expected = "it answers `initialize` with HTTP 405 Method Not Allowed: no Streamable HTTP is served here";
    assert_eq!(reason, expected);
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_remembered_is_forgotten_once_it_is_contradicted() {
    let mut world = World::start(settings(TestTransport::Http));
    refuse(&mut world, |initialize| initialize.status(404)).await;
    let pair = Pair::open(&mut world).await;
    world.up().await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    // The server has become a modern one.
    drop(pair);
    world.down().await;
    let get = world.request().await;
    assert_eq!(get.method, Method::GET);
    get.status(405);
    world.open_http(weir_mcp::revision::Era::Modern).await;
    world.up().await;
    assert_eq!(transport_label(&world), "http");
    world.finish().await;
}

// === Handshake ===

#[tokio::test(start_paused = true)]
async fn messages_go_to_the_endpoint_as_it_resolves_against_the_url() {
    for (endpoint, uri) in [
        ("/message?s=1", "/message?s=1"),
        ("message?s=1", "/v1/message?s=1"),
        ("../m/", "/m/"),
        ("?s=1", "/v1/sse?s=1"),
        ("http://upstream.test/m?s=1#x", "/m?s=1"),
        ("HTTP://UPSTREAM.TEST:80/m", "/m"),
        ("//upstream.test/m", "/m"),
        ("/m\ndata:", "/m"),
    ] {
        let mut world = World::start(settings(TestTransport::Sse));
        let _pair = Pair::begin(&mut world, endpoint).await;
        let initialize = world.request().await;
        assert_eq!(initialize.uri.to_string(), uri, "{endpoint:?}");
        assert_eq!(initialize.headers["host"], "upstream.test", "{endpoint:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_opening_without_a_good_endpoint_is_refused_with_the_reason() {
    let long = format!("event: endpoint\ndata: /{}\n\n", "x".repeat(5_000));
    let too_large = format!("event: endpoint\ndata: /{}\n\n", "x".repeat(2 * 1024 * 1024));
    for (stream, expected) in [
        (
            "event: endpoint\ndata: https://upstream.test/m\n\n",
            "its endpoint is on another origin, https://upstream.test:443, and is not used",
        ),
        (
            "event: endpoint\ndata: http://upstream.test:81/m\n\n",
            "its endpoint is on another origin, http://upstream.test:81, and is not used",
        ),
        (
            "event: endpoint\ndata: http://evil.test/m\n\n",
            "its endpoint is on another origin, http://evil.test:80, and is not used",
        ),
        (
            "event: endpoint\ndata: http://upstream.test@evil.test/m\n\n",
            "its endpoint is on another origin, http://evil.test:80, and is not used",
        ),
        (
            "event: endpoint\ndata: //evil.test/m\n\n",
            "its endpoint is on another origin, http://evil.test:80, and is not used",
        ),
        ("event: endpoint\ndata: file:///m\n\n", "its endpoint is not a URL"),
        ("event: endpoint\ndata: /a b\n\n", "its endpoint is not a URL"),
        ("event: endpoint\ndata:  \n\n", "its endpoint is not a URL"),
        (
            "event: message\ndata: {}\n\nevent: endpoint\ndata: /m\n\n",
            "its first event is `message`, not `endpoint`",
        ),
        ("data: /m\n\n", "its first event is `message`, not `endpoint`"),
        (&long, "its endpoint has more than 4096 bytes"),
        (&too_large, "its endpoint has more than 4096 bytes"),
    ] {
        let mut world = World::start(settings(TestTransport::Sse));
        let events = world.request().await.events();
        events.raw(stream.to_owned());
        let reason = world.down().await;
        assert_eq!(reason, format!("upon GET {expected}: no HTTP+SSE is served here"));
        events.closed().await;
        assert!(world.is_quiet().await, "nothing was sent anywhere");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_not_come_is_waited_for_ten_seconds() {
    let start = Instant::now();
    let mut world = World::start(settings(TestTransport::Sse));
    let events = world.request().await.events();
    events.raw(": hello\n\nretry: 5\n\n");
    let reason = world.down().await;
    assert!(reason.contains("no `endpoint` event within 10s"), "{reason}");
    assert_eq!(start.elapsed().as_secs(), 10);
    events.closed().await;

    let ended = world.request().await.events();
    drop(ended);
    let mut status = world.upstream.status();
    let said = |status: &ConnectionStatus| matches!(status, ConnectionStatus::Down { reason, .. } if reason.contains("ended before the `endpoint`"));
    status.wait_for(said).await.expect("the upstream lives");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_is_not_answered_is_given_up_with_its_stream() {
    let start = Instant::now();
    let mut world = World::start(settings(TestTransport::Sse));
    let pair = Pair::begin(&mut world, "/message?s=1").await;
    pair.read(&mut world).await;
    assert_eq!(world.down().await, "it was not ready within 60s");
    assert_eq!(start.elapsed().as_secs(), 60);
    pair.events.closed().await;
    world.finish().await;

    // A rejected POST fails at once; a server with configured HTTP+SSE gets no other request.
    for (status, expected) in [(400, "HTTP 400"), (404, "HTTP 404"), (405, "HTTP 405")] {
        let mut world = World::start(settings(TestTransport::Sse));
        let pair = Pair::begin(&mut world, "/message?s=1").await;
        Pair::post(&mut world).await.status(status);
        let reason = world.down().await;
        assert!(reason.contains(expected), "{reason}");
        pair.events.closed().await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stopping_in_the_middle_of_the_opening_leaves_no_stream() {
    let mut world = World::start(settings(TestTransport::Sse));
    let events = world.request().await.events();
    world.finish().await;
    events.closed().await;

    let mut world = World::start(settings(TestTransport::Sse));
    let pair = Pair::begin(&mut world, "/message?s=1").await;
    let _unanswered = Pair::post(&mut world).await;
    world.finish().await;
    pair.events.closed().await;
}

#[tokio::test(start_paused = true)]
async fn configured_headers_and_the_agreed_revision_go_along() {
    let mut settings = settings(TestTransport::Sse);
    if let UpstreamSource::Http { headers, .. } = &mut settings.source {
        headers.insert("authorization", "Bearer t".parse().expect("a value"));
    }
    for (revision, version) in [("2024-11-05", None), ("2025-11-25", Some("2025-11-25"))] {
        let mut world = World::start(settings.clone());
        let get = world.request().await;
        assert_eq!(get.headers["authorization"], "Bearer t");
        let pair = Pair { events: get.events() };
        pair.events.raw("event: endpoint\ndata: /message?s=1\n\n");
        let initialize = Pair::post(&mut world).await;
        assert_eq!(initialize.headers["authorization"], "Bearer t");
        let own: Value = serde_json::from_str(capabilities::OWN).expect("JSON");
        assert_eq!(initialize.body["params"]["capabilities"], own);
        let body = initialize.body.clone();
        initialize.status(202);
        pair.answer(&body, initialized(revision));
        pair.events.send(json!({ "jsonrpc": "2.0", "id": "early", "method": "ping" }));

        let agreed = |post: Exchange| {
            assert_eq!(post.headers["authorization"], "Bearer t");
            let found = post.headers.get("mcp-protocol-version");
            assert_eq!(found.map(|value| value.to_str().expect("text")), version);
            post.status(202);
        };
        for _ in ["initialized", "pong"] {
            let post = Pair::post(&mut world).await;
            // The ping came before the handshake.
            if post.body["id"] == "early" { post.status(202) } else { agreed(post) }
        }
        world.up().await;
        pair.events.send(json!({ "jsonrpc": "2.0", "id": "q", "method": "ping" }));
        agreed(Pair::post(&mut world).await);
        let running = RunningCall::start(&world, call(LEGACY));
        let post = Pair::post(&mut world).await;
        let request = post.body.clone();
        agreed(post);
        pair.answer(&request, json!({}));
        running.end().await.expect("a reply");
        world.finish().await;
    }
}

// === Messages ===

#[tokio::test(start_paused = true)]
async fn answers_come_in_any_order_and_before_the_responses_to_their_requests() {
    let (mut world, pair) = pair().await;
    let running: Vec<_> = (0..3).map(|_| RunningCall::start(&world, call(LEGACY))).collect();
    let mut posts = Vec::new();
    for _ in 0..3 {
        posts.push(Pair::post(&mut world).await);
    }
    for (n, post) in posts.iter().enumerate().rev() {
        pair.answer(&post.body, json!({ "n": n }));
    }
    // The requests are not attributed to calls; each gets one response.
    let mut replies = Vec::new();
    for running in running {
        replies.push(running.end().await.expect("a reply"));
    }
    replies.sort();
    assert_eq!(replies, ["0", "1", "2"].map(|n| format!(r#"{{"n":{n}}}"#)));
    // The responses still arrive, so the connections can be reused.
    for post in posts {
        post.status(202);
    }
    assert!(world.is_quiet().await);
    let before = world.connector.connections.load(Ordering::Relaxed);
    let running = RunningCall::start(&world, call(LEGACY));
    let request = pair.read(&mut world).await;
    pair.answer(&request, json!({}));
    running.end().await.expect("a reply");
    assert_eq!(world.connector.connections.load(Ordering::Relaxed), before);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_lost_ends_its_calls_at_once_and_comes_again() {
    for is_cut in [false, true] {
        let (mut world, pair) = pair().await;
        let accepted = RunningCall::start(&world, call(LEGACY));
        pair.read(&mut world).await;
        let unaccepted = RunningCall::start(&world, call(LEGACY));
        let _post = Pair::post(&mut world).await;
        let start = Instant::now();
        if is_cut {
            pair.events.cut()
        } else {
            drop(pair)
        }
        for running in [accepted, unaccepted] {
            let error = running.end().await.expect_err("no answer");
            assert!(
                matches!(&error, Error::ConnectionLost(why) if why.contains("its event stream")),
                "{error}"
            );
        }
        let reason = world.down().await;
        assert!(reason.starts_with("its event stream "), "{reason}");
        assert_eq!(start.elapsed(), Duration::ZERO);
        let error = world.upstream.send(call(LEGACY)).await.expect_err("down");
        assert!(matches!(error, Error::Unavailable(_)), "{error}");

        // No cancellations are sent in the new session: the calls ended with the old one.
        let pair = Pair::open(&mut world).await;
        assert_eq!(start.elapsed(), Duration::from_millis(250));
        world.up().await;
        let running = RunningCall::start(&world, call(LEGACY));
        let request = pair.read(&mut world).await;
        assert_eq!(request["method"], "tools/call");
        pair.answer(&request, json!({}));
        running.end().await.expect("a reply");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_ends_by_itself() {
    let (mut world, pair) = pair().await;
    for status in [302, 400, 403, 413, 429, 500, 503] {
        let [refused, other] = [(); 2].map(|()| RunningCall::start(&world, call(LEGACY)));
        let post = Pair::post(&mut world).await;
        let request = pair.read(&mut world).await;
        post.status(status);
        let answer = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pair.answer(&request, json!({}));
        };
        let (one, two, ()) = tokio::join!(refused.end(), other.end(), answer);
        let failed: Vec<_> = [one, two].into_iter().filter_map(Result::err).collect();
        assert!(
            failed.len() == 1 && failed[0].to_string().contains(&status.to_string()),
            "{failed:?}"
        );
        assert!(world.is_quiet().await, "what was refused is not cancelled");
    }
    // An error object with the request's id is a response, whatever the status.
    for status in [400, 404] {
        let running = RunningCall::start(&world, call(LEGACY));
        Pair::post(&mut world).await.refuse(status, -32601);
        let text = running.end().await.expect("a reply");
        assert!(text.starts_with(r#"{"code":-32601,"#), "{text}");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_session_is_opened_again_and_the_call_sent_once_more() {
    let (mut world, pair) = pair().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let running = RunningCall::start(&world, call(LEGACY));
    for expected in ["tools/call", "ping"] {
        let request = Pair::post(&mut world).await;
        assert_eq!(request.body["method"], expected);
        request.status(404);
    }
    let again = Pair::open(&mut world).await;
    pair.events.closed().await;
    let request = again.read(&mut world).await;
    assert_eq!(request["method"], "tools/call");
    again.answer(&request, json!({}));
    assert_eq!(running.end().await.expect("a reply"), "{}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_written_is_unsent_and_takes_the_upstream_down() {
    let (mut world, pair) = pair().await;
    // The pooled connections of the handshake have been idle for too long.
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.connector.refuses.store(true, Ordering::Relaxed);
    let error = world.upstream.send(call(LEGACY)).await.expect_err("no way");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(world.down().await, "refused");
    pair.events.closed().await;
    world.connector.refuses.store(false, Ordering::Relaxed);
    let _pair = Pair::open(&mut world).await;
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_servers_requests_are_answered_and_a_flood_of_them_is_not() {
    let (mut world, pair) = pair().await;
    pair.events.send(json!({ "jsonrpc": "2.0", "id": "q", "method": "ping" }));
    let pong = pair.read(&mut world).await;
    assert_eq!(pong, json!({ "jsonrpc": "2.0", "id": "q", "result": {} }));
    for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
        pair.events.send(json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": {} }));
        let answer = pair.read(&mut world).await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32601)));
    }

    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    pair.events.raw(format!("data: {ping}\n\n").repeat(1_000));
    let mut unanswered = Vec::new();
    for _ in 0..64 {
        unanswered.push(Pair::post(&mut world).await);
    }
    assert!(world.is_quiet().await, "no more than 64 answers are on their way");
    // No other call is affected.
    let running = RunningCall::start(&world, call(LEGACY));
    let request = pair.read(&mut world).await;
    pair.answer(&request, json!({}));
    running.end().await.expect("a reply");
    drop(unanswered);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn comments_and_events_of_other_kinds_mean_nothing() {
    let (mut world, pair) = pair().await;
    let running = RunningCall::start(&world, call(LEGACY));
    let request = pair.read(&mut world).await;
    let id = request["id"].as_u64().expect("a number");
    let wrong = json!({ "jsonrpc": "2.0", "id": id, "result": { "wrong": 1 } });
    for noise in [
        ": keep-alive\n\n".to_owned(),
        format!("event: ping\ndata: {wrong}\n\n"),
        "event: endpoint\ndata: http://evil.test/m\n\n".to_owned(),
        "id: 7\nretry: 1\n\n".to_owned(),
        "data: nonsense\n\n".to_owned(),
        "data\n\n".to_owned(),
        "data: [7]\n\n".to_owned(),
    ] {
        pair.events.raw(noise);
    }
    // Split at any byte, with any line ends.
    let right = json!({ "jsonrpc": "2.0", "id": id, "result": { "right": 1 } });
    for byte in format!("event: message\r\ndata: {right}\r\n\r\n").bytes() {
        pair.events.raw(vec![byte]);
    }
    assert_eq!(running.end().await.expect("a reply"), r#"{"right":1}"#);
    let running = RunningCall::start(&world, call(LEGACY));
    let request = pair.read(&mut world).await;
    pair.answer(&request, json!({}));
    running.end().await.expect("a reply");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_over_the_limit_ends_its_call_and_no_other() {
    let (mut world, pair) = pair().await;
    let large = "x".repeat(2 * 1024 * 1024);
    for envelope in [
        r#"{"jsonrpc":"2.0","id":ID,"result":{"id":3,"text":"LARGE"}}"#,
        r#"{"result":{"id":3,"text":"LARGE"},"jsonrpc":"2.0","id":ID}"#,
    ] {
        let [first, second] = [(); 2].map(|()| RunningCall::start(&world, call(LEGACY)));
        let request = pair.read(&mut world).await;
        let other = pair.read(&mut world).await;
        let text = envelope.replace("ID", &request["id"].to_string()).replace("LARGE", &large);
        // A request is no response, whatever it contains.
        let noise = format!(
            r#"{{"jsonrpc":"2.0","method":"x","params":{{"x":"{large}"}},"id":{}}}"#,
            other["id"]
        );
        pair.events
            .raw(format!("event: message\ndata: {noise}\n\nevent: message\ndata: {text}\n\n"));
        // But it is a request, which gets its error.
        assert_eq!(pair.read(&mut world).await["error"]["code"], -32600);
        let answer = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pair.answer(&other, json!({}));
        };
        let (one, two, ()) = tokio::join!(first.end(), second.end(), answer);
        let failed: Vec<_> = [one, two].into_iter().filter_map(Result::err).collect();
        assert!(matches!(failed[..], [Error::TooLarge(_)]), "{envelope}: {failed:?}");
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn news_of_a_change_come_in_on_the_stream() {
    let (world, pair) = pair().await;
    pair.events.send(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    let mut changes = world.upstream.changes();
    changes.wait_for(|changes| changes.0 == [0, 1, 0]).await.expect("the upstream lives");
    world.finish().await;
}
