//! Detection of a server's era.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::testing::{SendCall, TestTransport, World, call, discovered, initialized, settings};
use crate::{ConnectionStatus, Error};
use weir_mcp::kind::ListTopic;
use weir_mcp::revision::{Era, Revision};

const LEGACY: Revision = Revision::V2025_11_25;

fn revision(world: &World) -> Revision {
    match &*world.upstream.status().borrow() {
        ConnectionStatus::Up(about) => about.revision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn over_stdio_any_other_error_means_legacy() {
    for code in [-32601, -32602, -32600, -32000] {
        let mut world = World::start(settings(TestTransport::Stdio));
        let mut peer = world.child().await;
        let discover = peer.read().await;
        assert_eq!(
            discover["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        peer.refuse(&discover, code).await;
        peer.initialize("2024-11-05").await;
        world.up().await;
        assert_eq!(revision(&world), Revision::V2024_11_05);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_error_never_leads_to_a_handshake() {
    for code in [-32020, -32021, -32022] {
        let mut world = World::start(settings(TestTransport::Stdio));
        let mut peer = world.child().await;
        let discover = peer.read().await;
        peer.refuse(&discover, code).await;
        let reason = world.down().await;
        assert!(reason.contains("server/discover") || reason.contains("modern"), "{reason}");
        assert_eq!(peer.try_read().await, None);
        peer.exit("exited with code 0");
        world.finish().await;

        let mut world = World::start(settings(TestTransport::Http));
        world.post().await.refuse(400, code);
        world.down().await;
        // The same detection runs again.
        assert_eq!(world.post().await.body["method"], "server/discover");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_what_it_speaks_is_asked_once_more() {
    let error = json!({ "code": -32022, "message": "no", "data": { "supported": ["2026-07-28"] } });
    for relents in [true, false] {
        let start = Instant::now();
        let mut world = World::start(settings(TestTransport::Http));
        for _ in 0..if relents { 1 } else { 2 } {
            let discover = world.post().await;
            assert_eq!(discover.body["method"], "server/discover");
            let id = discover.id();
            discover.json(400, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
        if relents {
            let discover = world.post().await;
            let id = discover.id();
            discover.json(200, json!({ "jsonrpc": "2.0", "id": id, "result": discovered() }));
            world.up().await;
            assert_eq!(revision(&world), Revision::V2026_07_28);
        } else {
            let reason = world.down().await;
            assert!(reason.contains("server/discover"), "{reason}");
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        world.finish().await;

        let mut world = World::start(settings(TestTransport::Stdio));
        let mut peer = world.child().await;
        for _ in 0..if relents { 1 } else { 2 } {
            let id = peer.read().await["id"].clone();
            peer.send(json!({ "jsonrpc": "2.0", "id": id, "error": error })).await;
        }
        if relents {
            let discover = peer.read().await;
            peer.answer(&discover, discovered()).await;
            world.up().await;
            assert_eq!(revision(&world), Revision::V2026_07_28);
        } else {
            let reason = world.down().await;
            assert!(reason.contains("server/discover"), "{reason}");
            assert_eq!(peer.try_read().await, None);
            peer.exit("exited with code 0");
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_with_its_connection_is_asked_for_once_more() {
    let start = Instant::now();
    let mut world = World::start(settings(TestTransport::Http));
    world.post().await.hang_up();
    world.post().await.refuse(400, -32601);
    world.post().await.hang_up();
    world.initialize("s").await;
    world.up().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "there was no wait for the next attempt");
    world.finish().await;

    let mut world = World::start(settings(TestTransport::Http));
    world.post().await.hang_up();
    world.post().await.hang_up();
    world.down().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_with_too_long_an_id_is_refused_with_the_reason() {
    for (bytes, is_taken) in [(4 * 1024, true), (4 * 1024 + 1, false)] {
        let mut world = World::start(settings(TestTransport::Http));
        world.post().await.refuse(400, -32601);
        let session = "s".repeat(bytes);
        if is_taken {
            world.initialize(&session).await;
            world.up().await;
        } else {
            let initialize = world.post().await;
            let body = json!({ "jsonrpc": "2.0", "id": initialize.id(), "result": initialized("2025-11-25") });
            let response = hyper::Response::builder()
                .header("content-type", "application/json")
                .header("mcp-session-id", session);
            initialize.reply(response, body.to_string());
            assert_eq!(world.down().await, "its session id has more than 4096 bytes");
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_supported_versions_have_a_handshake_gets_one() {
    let mut world = World::start(settings(TestTransport::Http));
    let discover = world.post().await;
    let error = json!({ "code": -32022, "message": "no", "data": { "supported": ["2025-06-18"] } });
    let id = discover.id();
    discover.json(400, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    world.initialize("s1").await;
    world.up().await;
    assert_eq!(revision(&world), Revision::V2025_11_25);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_child_gets_the_handshake_after_three_seconds() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    peer.read().await;
    let start = Instant::now();
    peer.initialize("2025-06-18").await;
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    world.up().await;
    assert_eq!(revision(&world), Revision::V2025_06_18);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_discover_result_still_wins() {
    // With the handshake rejected or still pending.
    for refuses in [true, false] {
        let mut world = World::start(settings(TestTransport::Stdio));
        let mut peer = world.child().await;
        let discover = peer.read().await;
        let initialize = peer.read().await;
        if refuses {
            peer.refuse(&initialize, -32601).await;
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        peer.answer(&discover, discovered()).await;
        world.up().await;
        assert_eq!(revision(&world), Revision::V2026_07_28);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_exits_upon_the_question_is_started_again_for_the_handshake() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut first = world.child().await;
    first.read().await;
    first.exit("exited with code 1");
    let mut second = world.child().await;
    second.initialize("2025-03-26").await;
    world.up().await;
    assert_eq!(revision(&world), Revision::V2025_03_26);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_says_nothing_at_all_is_given_up() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    let start = Instant::now();
    peer.write("Welcome to the server!").await;
    peer.write("listening on stdio").await;
    let reason = world.down().await;
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert!(reason.contains("was not ready within 60s"), "{reason}");
    assert!(reason.contains("2 lines, first: \"Welcome to the server!\""), "{reason}");
    // The child ignores closed input, then SIGTERM, until SIGKILL.
    world.child().await;
    assert_eq!(*peer.signals.lock(), ["terminate", "kill", "kill"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn junk_lines_are_skipped() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    for junk in ["starting...", "{\"level\":\"info\"}", "[]", "[1", ""] {
        peer.write(junk).await;
    }
    peer.open(Era::Modern).await;
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_reason_holds_the_last_words() {
    let mut world = World::start(settings(TestTransport::Stdio));
    for _ in 0..2 {
        let mut peer = world.child().await;
        let stderr = peer.stderr.as_mut().expect("open");
        let words = b"loading\nError: no \x1b[2JAPI key\n";
        tokio::io::AsyncWriteExt::write_all(stderr, words).await.expect("a pipe");
        peer.exit("exited with code 2");
    }
    let reason = world.down().await;
    assert_eq!(
        reason,
        r#"the process exited with code 2; last lines of standard error: "loading", "Error: no \u{1b}[2JAPI key""#
    );
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_missing_is_tried_again() {
    let mut world = World::start(settings(TestTransport::Stdio));
    world.connector.refuses.store(true, Ordering::Relaxed);
    let reason = world.down().await;
    assert_eq!(reason, "it cannot be started: no such program");
    world.connector.refuses.store(false, Ordering::Relaxed);
    world.child().await.open(Era::Modern).await;
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn over_http_a_client_error_without_a_modern_body_means_legacy() {
    for status in [400, 404, 405, 406, 415, 422] {
        for with_body in [false, true] {
            let mut world = World::start(settings(TestTransport::Http));
            let discover = world.post().await;
            assert_eq!(discover.headers["mcp-method"], "server/discover");
            if with_body {
                discover.refuse(status, -32601)
            } else {
                discover.status(status)
            }
            world.initialize("s1").await;
            world.up().await;
            assert_eq!(revision(&world).era(), Era::Legacy, "{status}");
            world.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn over_http_an_error_in_a_success_means_legacy() {
    let mut world = World::start(settings(TestTransport::Http));
    world.post().await.refuse(200, -32601);
    world.initialize("s1").await;
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_or_missing_credentials_decide_nothing() {
    for status in [401, 403, 408, 429, 500, 502, 503, 301] {
        let mut world = World::start(settings(TestTransport::Http));
        world.post().await.refuse(status, -32000);
        if status != 301 {
            let initialize = world.post().await;
            assert_eq!(initialize.body["method"], "initialize");
            initialize.refuse(406, -32000);
        }
        let reason = world.down().await;
        let expected = format!("it answers `server/discover` with HTTP {status}");
        assert!(reason.starts_with(&expected), "{reason}");
        let hint = "set its auth, for example auth = { type = \"oauth\" }";
        assert_eq!(reason.contains(hint), status == 401, "{reason}");
        // The next attempt begins with the first request again, and both results are still
        // possible.
        world.open_http(Era::Modern).await;
        world.up().await;
        world.finish().await;
    }
}

/// Accepts the handshake of a server whose first response has shown no era, and checks that the
/// next connection begins with the first request again.
async fn expect_not_remembered(mut world: World) {
    world.initialize("s1").await;
    world.up().await;
    assert_eq!(revision(&world).era(), Era::Legacy);
    let upstream = world.upstream.clone();
    let running = world.tracker.spawn(async move { upstream.send(call(LEGACY)).await });
    world.post().await.status(404);
    world.check().await.status(404);
    world.open_http(Era::Modern).await;
    world.post().await.answer(json!({}));
    assert!(running.await.expect("no panic").is_ok());
    assert_eq!(revision(&world).era(), Era::Modern);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn over_http_a_response_that_shows_no_era_leads_to_a_handshake_that_is_not_remembered() {
    for status in [401, 403, 408, 429, 500, 502, 503] {
        let mut world = World::start(settings(TestTransport::Http));
        world.post().await.status(status);
        expect_not_remembered(world).await;
    }
    let mut world = World::start(settings(TestTransport::Http));
    // It is asked for once more, as any response that is lost.
    for _ in 0..2 {
        world.post().await.events().cut();
    }
    expect_not_remembered(world).await;
}

#[tokio::test(start_paused = true)]
async fn over_http_a_silent_server_gets_the_handshake_after_three_seconds() {
    let mut world = World::start(settings(TestTransport::Http));
    let discover = world.post().await;
    let start = Instant::now();
    let initialize = world.post().await;
    assert_eq!(
        (initialize.body["method"].as_str(), start.elapsed().as_secs()),
        (Some("initialize"), 3)
    );
    // The late response wins.
    discover.answer(discovered());
    world.up().await;
    assert_eq!(revision(&world).era(), Era::Modern);
    drop(initialize);
    world.finish().await;

    let mut world = World::start(settings(TestTransport::Http));
    let _discover = world.post().await;
    expect_not_remembered(world).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_token_or_names_a_time_gets_no_handshake() {
    for (status, name, value) in
        [(401, "www-authenticate", "Bearer"), (429, "retry-after", "7"), (503, "retry-after", "7")]
    {
        let mut world = World::start(settings(TestTransport::Http));
        let response = hyper::Response::builder().status(status).header(name, value);
        world.post().await.reply(response, "");
        let reason = world.down().await;
        assert!(reason.contains(&status.to_string()), "{reason}");
        assert!(!world.has_request());
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lists_an_older_revision_gets_a_handshake_in_that_one() {
    for status in [200, 400] {
        let mut world = World::start(settings(TestTransport::Http));
        world.post().await.status(405);
        let initialize = world.post().await;
        let data = json!({ "supported": ["2024-11-05", "2025-03-26", "1"], "requested": "x" });
        let error =
            json!({ "code": -32602, "message": "Unsupported protocol version", "data": data });
        let id = initialize.id();
        initialize.json(status, json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        let again = world.post().await;
        assert_eq!(again.body["params"]["protocolVersion"], "2025-03-26", "{status}");
        let result =
            json!({ "jsonrpc": "2.0", "id": again.id(), "result": initialized("2025-03-26") });
        again.json(200, result);
        world.post().await.status(202);
        world.up().await;
        assert_eq!(revision(&world), Revision::V2025_03_26);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_reason_contains_the_text_of_a_refusal_and_the_place_of_a_redirection() {
    for (status, (name, value), body, expected) in [
        (
            400,
            ("content-type", "text/plain"),
            "no such\ttenant",
            "HTTP 400 Bad Request (\"no such\\ttenant\")",
        ),
        (404, ("content-type", "text/html"), "<p>no</p>", "HTTP 404 Not Found, and"),
        (
            307,
            ("location", "/mcp/?key=canary#x"),
            "",
            "HTTP 307 Temporary Redirect (to http://upstream.test/mcp/), and redirects are not followed",
        ),
        (
            308,
            ("location", "https://ann:canary@other.test/mcp"),
            "",
            "HTTP 308 Permanent Redirect (to https://other.test/mcp), and redirects are not followed",
        ),
    ] {
        let mut settings = settings(TestTransport::Http);
        settings.era = Some(Era::Legacy);
        let mut world = World::start(settings);
        let response = hyper::Response::builder().status(status).header(name, value);
        world.post().await.reply(response, body);
        if !(300..400).contains(&status) {
            // HTTP+SSE is tried, too.
            world.request().await.status(405);
        }
        let reason = world.down().await;
        assert!(reason.contains(expected) && !reason.contains("canary"), "{reason}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_decides_nothing() {
    let mut world = World::start(settings(TestTransport::Http));
    world.connector.refuses.store(true, Ordering::Relaxed);
    assert_eq!(world.down().await, "refused");
    world.connector.refuses.store(false, Ordering::Relaxed);
    world.open_http(Era::Legacy).await;
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_pinned_era_is_not_asked_for() {
    let pinned = |over, era| {
        let mut settings = settings(over);
        settings.era = Some(era);
        World::start(settings)
    };
    let mut world = pinned(TestTransport::Stdio, Era::Legacy);
    world.child().await.initialize("2025-11-25").await;
    world.up().await;
    world.finish().await;

    let mut world = pinned(TestTransport::Http, Era::Legacy);
    world.initialize("s1").await;
    world.up().await;
    world.finish().await;

    let mut world = pinned(TestTransport::Http, Era::Modern);
    world.post().await.status(404);
    let reason = world.down().await;
    assert!(reason.contains("server/discover"), "{reason}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_era_of_an_http_server_is_remembered_for_a_minute_after_its_session_is_lost() {
    let mut world = World::http(Era::Legacy).await;
    for (pause, era) in [(30, Era::Legacy), (31, Era::Modern)] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let upstream = world.upstream.clone();
        let running = world.tracker.spawn(async move { upstream.send(call(LEGACY)).await });
        world.post().await.status(404);
        world.check().await.status(404);
        match era {
            Era::Legacy => world.initialize("s2").await,
            Era::Modern => world.open_http(era).await,
        }
        world.post().await.answer(json!({}));
        assert!(running.await.expect("no panic").is_ok());
        assert_eq!(revision(&world).era(), era);
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_era_of_an_http_server_is_remembered_until_it_is_contradicted() {
    let mut world = World::http(Era::Legacy).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    world.connector.refuses.store(true, Ordering::Relaxed);
    let unreachable = world.upstream.send(call(LEGACY)).await;
    assert!(matches!(unreachable, Err(Error::Unavailable(_))));
    world.down().await;
    world.connector.refuses.store(false, Ordering::Relaxed);
    // The server is modern now, and the detected era has expired: detection runs again.
    let initialize = world.post().await;
    assert_eq!(initialize.body["method"], "initialize");
    initialize.refuse(400, -32601);
    world.open_http(Era::Modern).await;
    world.up().await;
    assert_eq!(revision(&world), Revision::V2026_07_28);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_server_declares_is_known_once_it_is_up() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut peer = world.child().await;
    let discover = peer.read().await;
    let mut result = discovered();
    result["capabilities"] = json!({ "resources": {}, "prompts": {} });
    peer.answer(&discover, result).await;
    world.up().await;
    let status = world.upstream.status().borrow().clone();
    let ConnectionStatus::Up(about) = status else { panic!("{status:?}") };
    assert_eq!(ListTopic::ALL.map(|topic| about.has(topic)), [true, false, true]);
    assert_eq!((about.epoch, about.transport, about.capabilities.completions), (1, "stdio", false));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_revision_is_refused() {
    for (result, expected) in [
        (initialized("2027-01-01"), "unknown revision \"2027-01-01\""),
        (initialized("2026-07-28"), "unknown revision \"2026-07-28\""),
        (initialized(""), "unknown revision \"\""),
        (json!({ "capabilities": {} }), "it answers `initialize` without `protocolVersion`"),
        (json!({ "protocolVersion": 7 }), "with a `protocolVersion` that is no string"),
        (Value::Null, "its result is not an object"),
    ] {
        let mut settings = settings(TestTransport::Stdio);
        settings.era = Some(Era::Legacy);
        let mut world = World::start(settings);
        let mut peer = world.child().await;
        let initialize = peer.read().await;
        peer.answer(&initialize, result).await;
        let reason = world.down().await;
        assert!(reason.contains(expected), "{reason}");
        peer.exit("exited with code 0");
        world.finish().await;
    }
}
