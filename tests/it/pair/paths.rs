//! The two paths: their refusals, and the principal of a session.

use std::collections::BTreeSet;

use hyper::{HeaderMap, Method};
use tokio::io::AsyncWriteExt;

use super::{LIST, ROLES, Stream, plain, post, start, status_of};
use crate::cell::{LEGACY_HTTP, MODERN_HTTP};
use crate::client::{AUTHORITY, object, set};
use crate::world::{World, hub, settle};

#[tokio::test(start_paused = true)]
async fn by_default_there_is_nothing_at_its_paths() {
    let world = World::start(hub(MODERN_HTTP), "").await;
    let client = plain(&world, None);
    let http = client.http();
    let headers = http.headers("", "{}");
    for method in [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS, Method::PUT] {
        let unknown = http.send(method.clone(), "/elsewhere", LIST, &headers).whole().await;
        assert_eq!(unknown.status, 404);
        for path in ["/sse", "/messages", "/messages?sessionId=x"] {
            let reply = http.send(method.clone(), path, LIST, &headers).whole().await;
            assert_eq!((reply.status, &reply.body), (404, &unknown.body), "{method} {path}");
            let names = |headers: &HeaderMap| headers.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&reply.headers), names(&unknown.headers), "{method} {path}");
        }
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn each_path_has_one_method() {
    let world = start("").await;
    let client = plain(&world, None);
    let http = client.http();
    let headers = http.headers("", "{}");
    for (path, good) in [("/sse", Method::GET), ("/messages?sessionId=x", Method::POST)] {
        for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD] {
            if method == good {
                continue;
            }
            let reply = http.send(method.clone(), path, "", &headers).whole().await;
            assert_eq!(reply.status, 405, "{method} {path}");
            assert_eq!(reply.headers.get("allow").expect("allow"), good.as_str(), "{path}");
        }
    }
    for path in ["/sse/", "/messages/", "/sse2", "//sse", "/mcp/sse"] {
        let status = http.send(Method::GET, path, "", &headers).whole().await.status;
        assert_eq!(status, 404, "{path}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn who_shows_no_good_key_gets_401_on_both_paths_before_a_byte_of_the_body_is_read() {
    let world = start(&format!("[auth]\nmode = \"required\"\n{ROLES}")).await;
    for key in [None, Some("wrong"), Some("")] {
        let client = plain(&world, key);
        let http = client.http();
        let headers = http.headers("", "{}");
        for (method, path) in [(Method::GET, "/sse"), (Method::POST, "/messages?sessionId=x")] {
            let reply = http.send(method, path, "", &headers).whole().await;
            assert_eq!(reply.status, 401, "{path} with {key:?}");
            let challenge = reply.headers.get("www-authenticate").expect("www-authenticate");
            assert!(challenge.as_bytes().starts_with(b"Bearer"), "{challenge:?}");
        }
    }
    let head = format!(
        "POST /messages?sessionId=x HTTP/1.1\r\nHost: {AUTHORITY}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    );
    let mut raw = world.connect();
    raw.write_all(head.as_bytes()).await.expect("the gateway reads");
    assert_eq!(status_of(&mut raw).await, "401");
    drop(raw);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_post_that_is_no_message_is_refused_and_the_session_lives_on() {
    let world = start("[server]\nmax_body = \"64KiB\"").await;
    let client = plain(&world, None);
    let mut stream = Stream::open(client.http()).await;
    stream.initialize("2025-11-25").await;
    for (body, expected) in [
        ("{", (400, -32700)),
        ("7", (400, -32600)),
        ("{}", (400, -32600)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, (400, -32600)),
        ("[]", (400, -32600)),
        (&format!("[{LIST}]"), (400, -32600)),
        (&" ".repeat(70_000), (413, 5130)),
    ] {
        let reply = stream.post(body.to_owned()).await;
        assert_eq!((reply.status, reply.code()), expected, "{body:.30}");
    }
    let http = client.http();
    for (name, value, expected) in [
        ("content-type", "text/plain", 415),
        ("content-encoding", "gzip", 415),
        // The `Accept` header of a POST does not matter: its response is empty.
        ("accept", "text/html", 202),
    ] {
        let mut headers = http.headers("", "{}");
        set(&mut headers, name, value);
        let note = r#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
        let reply = http.send(Method::POST, &stream.address, note, &headers).whole().await;
        assert_eq!(reply.status, expected, "{name}: {value}");
    }
    assert_eq!(object(&stream.ask("ping", "{}").await).get("result"), Some("{}"));
    drop(stream);
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_for_who_can_read_events() {
    let world = start("").await;
    let client = plain(&world, None);
    let http = client.http();
    for (accept, expected) in
        [("application/json", 406), ("text/event-stream", 200), ("*/*", 200), ("text/*", 200)]
    {
        let mut headers = http.plain_headers();
        set(&mut headers, "accept", accept);
        let mut events = http.send(Method::GET, "/sse", "", &headers);
        events.opened().await;
        assert_eq!(events.status(), expected, "{accept}");
    }
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_unknown_ended_or_somebody_elses_is_not_found() {
    let world = start(ROLES).await;
    let (ann, bob) = (plain(&world, Some("key-of-ann")), plain(&world, Some("key-of-bob")));
    let mut anns = Stream::open(ann.http()).await;
    anns.initialize("2025-11-25").await;
    let ended = Stream::open(bob.http()).await.address;
    settle().await;

    let unknown = post(bob.http(), "/messages?sessionId=nonsense", LIST).await;
    assert_eq!(unknown.status, 404);
    let cut = &anns.address[..anns.address.len() - 1];
    let long = format!("/messages?sessionId={}", "x".repeat(5_000));
    for address in [&*anns.address, cut, &ended, &long, "/messages?sessionId="] {
        let reply = post(bob.http(), address, LIST).await;
        assert_eq!((reply.status, &reply.body), (404, &unknown.body), "{address:.60}");
        // The session is checked before the body.
        assert_eq!(post(bob.http(), address, "{").await.status, 404, "{address:.60}");
    }
    for address in ["/messages", "/messages?session_id=x", &format!("{}&sessionId=x", anns.address)]
    {
        let reply = post(ann.http(), address, LIST).await;
        assert_eq!((reply.status, reply.code()), (400, -32600), "{address}");
    }
    let listed = anns.ask("prompts/list", "{}").await;
    assert!(object(&listed).has("result"), "{listed}");
    drop(anns);
    drop((ann, bob));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_of_the_two_transports_are_not_each_others() {
    let world = start("").await;
    let streamable = world.client(LEGACY_HTTP).await;
    let http = streamable.http();
    let address = format!("/messages?sessionId={}", http.session().expect("a session"));
    assert_eq!(post(http, &address, LIST).await.status, 404);

    let client = plain(&world, None);
    let stream = Stream::open(client.http()).await;
    let mut headers = client.http().headers("", "{}");
    let (_, id) = stream.address.split_once('=').expect("an id");
    set(&mut headers, "mcp-session-id", id);
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let reply = client.http().send(method.clone(), "/mcp", LIST, &headers).whole().await;
        assert_eq!(reply.status, 404, "{method}");
    }
    drop(stream);
    drop((client, streamable));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn session_ids_are_long_and_never_the_same() {
    let world = start("").await;
    let client = plain(&world, None);
    let mut addresses = BTreeSet::new();
    for _ in 0..20 {
        let address = Stream::open(client.http()).await.address;
        let id = address.strip_prefix("/messages?sessionId=").expect("an id");
        assert!(id.len() >= 43 && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        addresses.insert(address);
    }
    assert_eq!(addresses.len(), 20);
    drop(client);
    world.close().await;
}
