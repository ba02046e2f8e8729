//! Form of a response over HTTP: a slow call becomes an event stream, and a client that accepts one
//! form gets that form.

use std::time::Duration;

use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::revision::Revision;

use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, Side, Transport, UPSTREAMS};
use crate::client::{Client, HttpExchange, named, object, set};
use crate::world::{World, hub, pass, settle};

const INTERVAL: Duration = Duration::from_secs(15);
const CONFIG: &str = "[defaults]\ntimeouts = { call = \"100s\", call_max = \"200s\" }\n";
const RESULT: &str = r#"{"resultType":"complete","content":[]}"#;
/// Beginning of the response with this result, to which Weir may add its name.
const GOOD: &str = r#""result":{"resultType":"complete","content":[]"#;
const SIDES: [Side; 2] = [MODERN_HTTP, LEGACY_HTTP];
const BOTH: &str = "application/json, text/event-stream";
const JSON: &str = "application/json";
const STREAM: &str = "text/event-stream";
/// Parameters of a call that asks for progress.
const WITH_PROGRESS: &str = r#"{"name":"hub__a","_meta":{"progressToken":70}}"#;

/// Posts a request under the id 70 with this `Accept`.
fn post(client: &Client, method: &str, params: &str, accept: &str) -> HttpExchange {
    let params = client.with_request_meta(params);
    let message = jsonrpc::write_request(&Id::from(70), method, params.as_bytes());
    let mut headers = client.http().headers(method, &params);
    set(&mut headers, "accept", accept);
    client.http().post(message, &headers)
}

/// Whether the head of the response has arrived.
async fn has_begun(exchange: &mut HttpExchange) -> bool {
    tokio::time::timeout(Duration::from_millis(1), exchange.opened()).await.is_ok()
}

/// The rest of a response as text.
async fn rest(exchange: &mut HttpExchange) -> String {
    let mut text = Vec::new();
    while let Some(piece) = exchange.piece().await {
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).expect("text")
}

/// Checks that these comments come first, and then one event with the beginning of its outcome.
fn check_events(text: &str, comments: usize, outcome: &str) {
    let comments = ": keep-alive\n\n".repeat(comments);
    let begin =
        format!("{comments}event: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":70,{outcome}");
    assert!(text.starts_with(&begin) && text.ends_with("}\n\n"), "{text}\nnot\n{begin}");
}

#[tokio::test(start_paused = true)]
async fn slow_call_begins_as_a_stream_after_one_interval_and_ends_with_its_response() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), CONFIG).await;
        for side in SIDES {
            let client = world.client(side).await;
            for is_error in [false, true] {
                let mut intercepted = world.upstream("hub").intercept("tools/call");
                let mut exchange = post(&client, "tools/call", &named("hub__a"), BOTH);
                let call = intercepted.next().await;
                pass(INTERVAL - Duration::from_millis(50)).await;
                assert!(!has_begun(&mut exchange).await, "{side}, {upstream}");
                pass(Duration::from_millis(50)).await;
                assert!(has_begun(&mut exchange).await, "{side}, {upstream}");
                assert_eq!(exchange.status(), 200);
                let first = exchange.piece().await.expect("a comment");
                assert_eq!(&first[..], b": keep-alive\n\n");
                pass(2 * INTERVAL).await;
                let expected = match is_error {
                    true => {
                        let error = r#""error":{"code":7,"message":"no"}"#;
                        call.respond_raw(&format!(r#"{{"jsonrpc":"2.0","id":{{id}},{error}}}"#));
                        error
                    }
                    false => {
                        call.result(RESULT);
                        GOOD
                    }
                };
                check_events(&rest(&mut exchange).await, 2, expected);
            }
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_the_gateway_after_an_interval_is_an_event_under_200() {
    let world = World::start(hub(MODERN_HTTP), CONFIG).await;
    for side in SIDES {
        let client = world.client(side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let mut exchange = post(&client, "tools/call", &named("hub__a"), BOTH);
        let _call = intercepted.next().await;
        exchange.opened().await;
        assert_eq!(exchange.status(), 200);
        let text = rest(&mut exchange).await;
        assert!(text.starts_with(": keep-alive\n\n"), "{text}");
        assert!(text.contains(r#""id":70,"error":{"code":5040"#), "{text}");
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn client_of_json_gets_json_however_long_it_takes_and_no_progress() {
    for upstream in UPSTREAMS {
        let world = World::start(hub(upstream), CONFIG).await;
        for side in SIDES {
            let client = world.client(side).await;
            let mut intercepted = world.upstream("hub").intercept("tools/call");
            let mut exchange = post(&client, "tools/call", WITH_PROGRESS, JSON);
            let call = intercepted.next().await;
            assert!(!call.wants_progress(), "{side}, {upstream}");
            call.notify("notifications/message", r#"{"level":"error","data":"x"}"#);
            pass(5 * INTERVAL).await;
            assert!(!has_begun(&mut exchange).await, "{side}, {upstream}");
            call.result(RESULT);
            let reply = exchange.whole().await;
            assert_eq!(
                (reply.status, &reply.headers["content-type"]),
                (200, &JSON.parse().expect("a value"))
            );
            let begin = format!(r#"{{"jsonrpc":"2.0","id":70,{GOOD}"#);
            assert!(reply.body.starts_with(&begin), "{reply:?}");
        }
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn legacy_client_of_json_is_asked_nothing() {
    const ALL: &str = r#"{"sampling":{},"roots":{},"elicitation":{}}"#;
    for upstream in [LEGACY_HTTP, MODERN_HTTP] {
        let world = World::start(hub(upstream), CONFIG).await;
        let client = world.client_declaring(LEGACY_HTTP, ALL).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = post(&client, "tools/call", &named("hub__a"), JSON);
        let call = intercepted.next().await;
        if upstream == LEGACY_HTTP {
            call.send_request(r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
            let answers = world.upstream("hub").received_responses(1).await;
            assert!(answers[0].contains("-32601"), "{answers:?}");
        } else {
            let meta = call.params.get_object("_meta").expect("a context");
            let declared = meta.get("io.modelcontextprotocol/clientCapabilities").expect("some");
            assert!(!declared.contains("roots") && !declared.contains("sampling"), "{declared}");
        }
        call.result(RESULT);
        assert_eq!(exchange.whole().await.status, 200);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn client_of_event_streams_gets_one_for_each_response() {
    let world = World::start(hub(MODERN_HTTP), CONFIG).await;
    for side in SIDES {
        let client = world.client(side).await;
        for (method, params, part) in [
            ("tools/list", "{}", r#""id":70,"result":{"#),
            ("tools/call", r#"{"name":"hub__a"}"#, r#""id":70,"result":{"#),
            ("tools/call", r#"{"name":"unknown"}"#, r#""id":70,"error":{"code":-32602"#),
            ("nonsense", "{}", r#""id":70,"error":{"code":-32601"#),
        ] {
            let reply = post(&client, method, params, STREAM).whole().await;
            assert_eq!(reply.headers["content-type"], STREAM, "{side}, {method}");
            let text = &reply.body;
            assert!(
                text.starts_with("event: message\ndata: {") && text.ends_with("}\n\n"),
                "{text}"
            );
            assert!(text.contains(part), "{side}, {method}: {text}");
        }
        let mut headers = client.http().headers("tools/list", "{}");
        set(&mut headers, "accept", STREAM);
        let reply = client.http().post("nonsense", &headers).whole().await;
        assert_eq!(
            (reply.status, &reply.headers["content-type"]),
            (400, &STREAM.parse().expect("a value"))
        );
    }
    let client = world.uninitialized_client(LEGACY_HTTP, None);
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;
    let reply = post(&client, "initialize", params, STREAM).whole().await;
    assert!(reply.headers.contains_key("mcp-session-id"), "{reply:?}");
    assert!(reply.body.starts_with("event: message\ndata: {"), "{reply:?}");
    let client = world.client(MODERN_HTTP).await;
    let reply = post(&client, "server/discover", "{}", "text/*").whole().await;
    assert_eq!(reply.headers["content-type"], STREAM);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn listen_of_a_client_of_json_is_refused_before_anything_is_sent_up() {
    let world = World::start(hub(MODERN_HTTP), CONFIG).await;
    let client = world.client(MODERN_HTTP).await;
    let before = world.requests();
    let params = r#"{"notifications":{"toolsListChanged":true}}"#;
    let reply = post(&client, "subscriptions/listen", params, JSON).whole().await;
    assert_eq!((reply.status, object(&reply.body).get("id")), (406, Some("70")), "{reply:?}");
    for accept in ["text/html", "application/json;q=0, text/event-stream;q=0"] {
        let reply = post(&client, "tools/call", &named("hub__a"), accept).whole().await;
        assert_eq!(reply.status, 406, "{accept}");
    }
    assert_eq!(world.requests(), before);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn slow_batch_begins_as_a_stream_and_is_one_event() {
    let side = Side::new(Revision::V2025_03_26, Transport::Http);
    let world = World::start(hub(LEGACY_STDIO), CONFIG).await;
    let client = world.client(side).await;
    let mut intercepted = world.upstream("hub").intercept("tools/call");
    let message = jsonrpc::write_request(&Id::from(70), "tools/call", named("hub__a").as_bytes());
    let batch = format!("[{}]", String::from_utf8_lossy(&message));
    let headers = client.http().headers("tools/call", "{}");
    let mut exchange = client.http().post(batch, &headers);
    let call = intercepted.next().await;
    pass(INTERVAL).await;
    assert!(has_begun(&mut exchange).await);
    call.result(RESULT);
    let expected = format!(
        ": keep-alive\n\nevent: message\ndata: [{{\"jsonrpc\":\"2.0\",\"id\":70,\"result\":{RESULT}}}]\n\n"
    );
    assert_eq!(rest(&mut exchange).await, expected);
    drop((exchange, client));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn slow_call_with_a_resumable_stream_begins_in_each_revision() {
    for revision in [Revision::V2025_03_26, Revision::V2025_06_18, Revision::V2025_11_25] {
        let config = format!("{CONFIG}[protocol]\nresumable = true\n");
        let world = World::start(hub(LEGACY_STDIO), &config).await;
        let client = world.client(Side::new(revision, Transport::Http)).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let mut exchange = post(&client, "tools/call", &named("hub__a"), BOTH);
        let call = intercepted.next().await;
        pass(INTERVAL + Duration::from_millis(10)).await;
        assert!(has_begun(&mut exchange).await, "{revision}");
        pass(INTERVAL).await;
        call.result(RESULT);
        let text = rest(&mut exchange).await;
        assert!(text.contains(": keep-alive\n\n") && text.contains("\nid: "), "{revision}: {text}");
        assert!(text.contains(&format!(r#""id":70,"result":{RESULT}"#)), "{revision}: {text}");
        // A client of JSON gets JSON.
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let slow = post(&client, "tools/call", &named("hub__a"), JSON);
        let call = intercepted.next().await;
        pass(2 * INTERVAL).await;
        call.result(RESULT);
        assert_eq!(slow.whole().await.headers["content-type"], JSON);
        drop((exchange, client));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_call_that_has_begun_ends_with_its_client_or_its_cancellation() {
    let world = World::start(hub(LEGACY_HTTP), CONFIG).await;
    for side in SIDES {
        let client = world.client(side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let mut exchange = post(&client, "tools/call", &named("hub__a"), BOTH);
        let call = intercepted.next().await;
        pass(INTERVAL + Duration::from_millis(10)).await;
        assert!(has_begun(&mut exchange).await, "{side}");
        if side.is_modern() {
            drop(exchange);
        } else {
            client.notify("notifications/cancelled", r#"{"requestId":70}"#).await;
            assert_eq!(rest(&mut exchange).await, ": keep-alive\n\n");
        }
        call.cancelled().await;
    }
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn slow_call_is_finished_while_the_gateway_drains() {
    for has_begun_before in [true, false] {
        let world = World::start(hub(LEGACY_STDIO), CONFIG).await;
        let client = world.client(MODERN_HTTP).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let mut exchange = post(&client, "tools/call", &named("hub__a"), BOTH);
        let call = intercepted.next().await;
        if has_begun_before {
            pass(INTERVAL + Duration::from_millis(10)).await;
        }
        world.stop_downstream();
        settle().await;
        pass(INTERVAL + Duration::from_millis(10)).await;
        assert!(has_begun(&mut exchange).await);
        call.result(RESULT);
        check_events(&rest(&mut exchange).await, 1 + usize::from(has_begun_before), GOOD);
        drop((exchange, client));
        world.close().await;
    }
}
