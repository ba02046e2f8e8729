//! Tests of refused requests, and of connections from start to end.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::http::*;
use super::*;
use crate::http::accept_loop;

#[tokio::test(start_paused = true)]
async fn an_unauthenticated_client_is_refused_on_every_route() {
    let world = TestGateway::start().await;
    for target in ["/mcp", "/", "/sse", "/.well-known/oauth-protected-resource"] {
        for method in ["POST", "GET", "DELETE", "OPTIONS", "PUT"] {
            for headers in [
                "Host: evil.com\r\n",
                "",
                "Host: localhost\r\nOrigin: http://evil.com\r\n",
                "Host: localhost\r\nOrigin: null\r\n",
            ] {
                let request = format!("{method} {target} HTTP/1.1\r\n{headers}\r\n");
                let response = world.connect().ask(request).await;
                assert_eq!(response.status, 403, "{method} {target} {headers:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_has_as_many_header_fields_as_the_configuration_says() {
    let few = Settings { max_headers: 16, ..Settings::default() };
    let many = Settings { max_headers: 1_000, ..Settings::default() };
    for (settings, limit) in [(few, 16), (Settings::default(), 100), (many, 1_000)] {
        let world = TestGateway::with(settings).await;
        // One of them is `Host`.
        for (fields, status) in [(limit - 1, 404), (limit, 431)] {
            let head = format!(
                "GET /other HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
                "X: 1\r\n".repeat(fields)
            );
            assert_eq!(world.connect().ask(&head).await.status, status, "{fields} of {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_head_has_its_own_status() {
    let world = TestGateway::start().await;
    let host = "Host: localhost\r\n";
    let json = "Content-Type: application/json\r\nContent-Length: 2\r\n";
    let many = "X: 1\r\n".repeat(101);
    let wide = format!("X: {}\r\n", "x".repeat(17_000));
    for (request, status) in [
        (format!("POST /other HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("PUT /mcp HTTP/1.1\r\n{host}\r\n"), 405),
        (format!("POST /mcp HTTP/1.1\r\n{host}{json}Authorization: Bearer x\r\n\r\n{{}}"), 401),
        (format!("POST /mcp HTTP/1.1\r\n{host}{json}Authorization: Basic x\r\n\r\n{{}}"), 401),
        (format!("POST /mcp HTTP/1.1\r\n{host}Content-Length: 2\r\n\r\n{{}}"), 415),
        (format!("POST /mcp HTTP/1.1\r\n{host}{json}Content-Encoding: gzip\r\n\r\n{{}}"), 415),
        (format!("POST /mcp HTTP/1.1\r\n{host}{json}Accept: text/html\r\n\r\n{{}}"), 406),
        (format!("GET /mcp HTTP/1.1\r\n{host}Accept: text/html\r\n\r\n"), 406),
        (format!("GET /mcp HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /mcp HTTP/1.1\r\n{host}MCP-Protocol-Version: 2026-07-28\r\n\r\n"), 405),
        (format!("DELETE /mcp HTTP/1.1\r\n{host}MCP-Protocol-Version: 2026-07-28\r\n\r\n"), 405),
        (format!("GET /mcp HTTP/1.1\r\n{host}Mcp-Session-Id: x\r\n\r\n"), 404),
        (format!("DELETE /mcp HTTP/1.1\r\n{host}Mcp-Session-Id: x\r\n\r\n"), 404),
        (format!("GET /mcp HTTP/1.1\r\n{host}{many}\r\n"), 431),
        (format!("GET /mcp HTTP/1.1\n{host}\r\n"), 400),
        (format!("GET /mcp HTTP/1.1\r\n{host}X: y\n\r\n"), 400),
        (format!("GET /other HTTP/1.1\r\n{host}\n\r\n\r\n"), 400),
        (format!("\nGET /mcp HTTP/1.1\r\n{host}\r\n"), 400),
        (
            format!(
                "POST /mcp HTTP/1.1\r\n{host}Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"
            ),
            501,
        ),
        (
            format!(
                "POST /mcp HTTP/1.1\r\n{host}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"
            ),
            400,
        ),
        (format!("GET /mcp HTTP/1.1\r\n{host}{wide}\r\n"), 431),
    ] {
        let response = world.connect().ask(&request).await;
        assert_eq!(response.status, status, "{request}");
        if status == 401 {
            let challenge = Some("Bearer error=\"invalid_token\"");
            assert_eq!(response.header("www-authenticate"), challenge);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_bounded_in_space_and_time() {
    let world = TestGateway::with(Settings { max_body: 1_000, ..Settings::default() }).await;
    let large = world.connect().ask(post("", &" ".repeat(1_001))).await;
    assert_eq!(large.refusal(), (413, 5130));
    let chunked = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                   Transfer-Encoding: chunked\r\n\r\n";
    let mut client = world.connect();
    client.write(format!("{chunked}3e9\r\n{}\r\n0\r\n\r\n", " ".repeat(1_001))).await;
    assert_eq!(client.response().await.status, 413);

    let start = Instant::now();
    let slow = world.connect().ask(format!("{chunked}5\r\n")).await;
    assert_eq!((slow.status, start.elapsed()), (408, Duration::from_secs(30)));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed() {
    let world = TestGateway::start().await;
    let start = Instant::now();
    assert!(world.connect().is_closed().await);
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    let mut client = world.connect();
    assert_eq!(client.ask(modern("tools/list", "")).await.status, 200);
    let start = Instant::now();
    assert!(client.is_closed().await);
    assert_eq!(start.elapsed(), Duration::from_secs(75));
}

// === Bad input, and what comes behind it ===

#[tokio::test(start_paused = true)]
async fn after_a_bad_message_the_connection_serves_the_next() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}{}}}}}"#,
        "[".repeat(70),
        "]".repeat(70)
    );
    for (body, expected) in [
        ("{", (400, -32700)),
        ("", (400, -32700)),
        ("\u{feff}{}", (400, -32700)),
        ("7", (400, -32600)),
        (deep.as_str(), (400, -32600)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, (400, -32600)),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, (400, -32600)),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, (400, -32600)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, (400, -32600)),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, (400, -32600)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#, (200, -32602)),
        ("[]", (400, -32600)),
    ] {
        assert_eq!(client.ask(post("", body)).await.refusal(), expected, "{body}");
    }
    let request = modern("tools/call", r#""name":"old__echo""#);
    assert_eq!(text_of(&client.ask(request).await.json()), "echo");
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order() {
    let world = TestGateway::start().await;
    let mut client = world.connect();
    let tools = ["old__echo", "new__progress", "old__secret"];
    let requests = tools.map(|name| modern("tools/call", &format!(r#""name":"{name}""#)));
    client.write(requests.concat()).await;
    for expected in ["echo", "progress", "secret"] {
        assert_eq!(text_of(&client.response().await.json()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bare_line_feed_behind_any_request_is_refused() {
    let world = TestGateway::start().await;
    let good = modern("tools/list", "");
    let (head, body) = good.split_once("\r\n\r\n").expect("a head");
    let head: Vec<_> = head.lines().filter(|line| !line.starts_with("Content-Length")).collect();
    let chunked = format!(
        "{}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        head.join("\r\n"),
        body.len()
    );
    let bad = good.replacen("\r\n", "\n", 1);
    for first in [&good, &chunked] {
        let mut client = world.connect();
        client.write(format!("{first}{chunked}{bad}{good}")).await;
        assert_eq!(client.response().await.status, 200);
        assert_eq!(client.response().await.status, 200);
        assert_eq!(client.response().await.status, 400);
        assert!(client.is_closed().await);
    }
}

#[tokio::test(start_paused = true)]
async fn running_requests_are_finished_at_a_shutdown() {
    let world = TestGateway::start().await;
    let mut waiting = world.script.waiting.subscribe();
    let mut client = world.connect();
    client.write(modern("tools/call", r#""name":"old__wait""#)).await;
    waiting.wait_for(|waiting| *waiting == 1).await.expect("open");
    let (mut idle, mut begun) = (world.connect(), world.connect());
    assert_eq!(idle.ask(modern("tools/list", "")).await.status, 200);
    begun.write("POST /mcp HTTP/1.1\r\nHost: local").await;
    // One more round trip through the gateway ensures that the bytes have been read.
    assert_eq!(idle.ask(modern("tools/list", "")).await.status, 200);

    world.stop.cancel();
    assert!(idle.is_closed().await);
    let refused = begun.ask("host\r\n\r\n").await;
    assert_eq!((refused.status, refused.header("connection")), (503, Some("close")));
    world.script.go.send(()).expect("a call waits");
    assert_eq!(text_of(&client.response().await.json()), "went");
    assert!(client.is_closed().await);
    world.state_cell.now().tracker.close();
}

/// The only test with real sockets, and so with a real clock.
#[tokio::test]
async fn a_connection_that_nothing_is_asked_on_makes_room_for_one_that_waits_and_a_stream_does_not()
{
    let world = TestGateway::with(Settings::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let state_cell = Arc::clone(&world.state_cell);
    let accepting = world.state_cell.now().tracker.spawn(accept_loop(
        listener,
        None,
        3,
        state_cell,
        Arc::default(),
    ));
    let connect = || async {
        let io = TcpStream::connect(address).await.expect("the kernel takes it");
        TestClient { io: Box::new(io), read: Vec::new() }
    };
    let mut stream = connect().await;
    let notifications = r#""notifications":{"toolsListChanged":true}"#;
    stream.write(modern("subscriptions/listen", notifications)).await;
    assert_eq!(stream.head().await.status, 200);
    assert_eq!(stream.event().await["method"], "notifications/subscriptions/acknowledged");
    let (mut silent, mut idle) = (connect().await, connect().await);
    assert_eq!(idle.ask(modern("tools/list", "")).await.status, 200);

    // The longest idle connection is evicted first: it has never sent a request.
    let mut third = connect().await;
    assert_eq!(third.ask(modern("tools/list", "")).await.status, 200);
    assert!(silent.is_closed().await);
    let mut fourth = connect().await;
    assert_eq!(fourth.ask(modern("tools/list", "")).await.status, 200);
    assert!(idle.is_closed().await);

    world.stop.cancel();
    accepting.await.expect("no panic");
    assert_eq!(stream.event().await["result"]["resultType"], "complete");
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_and_none_is_accepted_at_a_shutdown() {
    let world = TestGateway::with(Settings::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let state_cell = Arc::clone(&world.state_cell);
    let accepting = world.state_cell.now().tracker.spawn(accept_loop(
        listener,
        None,
        1,
        state_cell,
        Arc::default(),
    ));
    let connect = || async {
        let io = TcpStream::connect(address).await.expect("the kernel takes it");
        TestClient { io: Box::new(io), read: Vec::new() }
    };
    let (mut first, mut second) = (connect().await, connect().await);
    assert_eq!(first.ask(modern("tools/list", "")).await.status, 200);
    second.write(modern("tools/list", "")).await;
    assert_eq!(first.ask(modern("tools/list", "")).await.status, 200);
    drop(first);
    assert_eq!(second.response().await.status, 200);

    world.stop.cancel();
    accepting.await.expect("no panic");
    assert!(second.is_closed().await);
    assert!(TcpStream::connect(address).await.is_err());
}
