//! Tests of the harness itself: raw clients against scripted upstreams, without a gateway.
//!
//! Since these tests pass without Weir, a behaviour test that fails points at Weir.

use tokio_util::task::TaskTracker;
use weir_mcp::kind::{Kind, ListTopic};

use crate::cell::{LEGACY_HTTP, MODERN_HTTP, SIDES, Side};
use crate::client::{Client, Connector};
use crate::upstream::{Answer, Cancelled, Probe, Replies, Script, Upstream, own_key};

fn start(script: Script) -> (Upstream, TaskTracker) {
    let tasks = TaskTracker::new();
    (Upstream::start(script, &tasks), tasks)
}

async fn meet(upstream: &Upstream, side: Side, tasks: &TaskTracker) -> Client {
    let server = upstream.clone();
    let open = move || match side.is_http() {
        true => server.connect().expect("the server is up"),
        false => server.pipe().expect("the server is up"),
    };
    Client::open(side, Connector::new(open, None), None, tasks).await
}

#[tokio::test(start_paused = true)]
async fn a_script_lists_and_answers_on_every_side() {
    for side in SIDES {
        for replies in [Replies::Json, Replies::Events] {
            let (upstream, tasks) = start(Script::full(side).paged(1).replies(replies));
            let client = meet(&upstream, side, &tasks).await;
            for kind in Kind::ALL {
                let keys = ["a", "b"].map(|name| own_key(kind, name));
                assert_eq!(client.list_all(kind).await, keys, "{side}");
                assert_eq!(upstream.count(kind.list_method()), 2);
            }
            let raw = r#"{"z":1e400,"a":"\u0041"}"#;
            upstream.result("prompts/get", raw);
            assert_eq!(client.get_prompt("a").await.result(), raw, "{side}");
            upstream.answer("tools/call", Answer::Error(r#"{"code":7,"message":"x"}"#.into()));
            assert_eq!(client.call_tool("a").await.code(), 7, "{side}");
            assert!(client.read("file:///a").await.outcome.is_ok());
            assert!(client.complete("a").await.outcome.is_ok());
            assert_eq!(upstream.violations(), Vec::<String>::new(), "{side}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_announced_on_every_side() {
    for side in SIDES {
        let (upstream, tasks) = start(Script::full(side));
        let client = meet(&upstream, side, &tasks).await;
        let mut changes = client.listen().await;
        upstream.add(Kind::Tool, "c").await;
        assert_eq!(changes.next_change().await, ListTopic::Tools, "{side}");
        changes.stays_silent().await;
        upstream.remove(Kind::Template, "a").await;
        assert_eq!(changes.next_change().await, ListTopic::Resources, "{side}");
        assert_eq!(client.list_all(Kind::Template).await, [own_key(Kind::Template, "b")]);
        changes.cancel().await;
        assert_eq!(upstream.violations(), Vec::<String>::new(), "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_call_sends_progress_and_learns_that_it_is_cancelled() {
    for side in SIDES {
        let (upstream, tasks) = start(Script::full(side));
        let client = meet(&upstream, side, &tasks).await;
        let mut intercepted = upstream.intercept("tools/call");
        let id = weir_mcp::jsonrpc::Id::from(99);
        let params = r#"{"name":"a","_meta":{"progressToken":99}}"#;
        let exchange = client.start_as(id, "tools/call", params);
        let call = intercepted.next().await;
        call.progress(r#""progress":1"#);
        call.result("{}");
        let reply = exchange.reply().await;
        assert_eq!((reply.result(), reply.notifications.len()), ("{}", 1), "{side}");

        let exchange = client.start("tools/call", r#"{"name":"a"}"#);
        let call = intercepted.next().await;
        assert!(call.is_wanted());
        exchange.cancel().await;
        let expected = if side == MODERN_HTTP { Cancelled::Closed } else { Cancelled::Notified };
        assert_eq!(call.cancelled().await, expected, "{side}");
        assert_eq!(upstream.violations(), Vec::<String>::new(), "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_pieces_arrives_in_pieces() {
    for side in [MODERN_HTTP, LEGACY_HTTP] {
        let (upstream, tasks) = start(Script::full(side));
        let client = meet(&upstream, side, &tasks).await;
        let mut intercepted = upstream.intercept("tools/call");
        let mut exchange = client.start("tools/call", r#"{"name":"a"}"#);
        let call = intercepted.next().await;
        call.piece(r#"{"jsonrpc":"2.0","id":{id},"#);
        let first = exchange.piece().await.expect("a piece");
        call.piece(r#""result":{}}"#);
        drop(call);
        let second = exchange.piece().await.expect("a piece");
        assert!(first.starts_with(b"{\"jsonrpc\"") && second.ends_with(b"{}}"), "{side}");
        assert_eq!(exchange.piece().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_goes_down_and_comes_up() {
    for side in SIDES {
        let (upstream, tasks) = start(Script::full(side));
        let client = meet(&upstream, side, &tasks).await;
        let _held = upstream.intercept("tools/call");
        let mut exchange = client.start("tools/call", r#"{"name":"a"}"#);
        upstream.until_count("tools/call", 1).await;
        upstream.go_down();
        assert_eq!(exchange.answer().await, Err(vec![]), "{side}");
        assert!(upstream.connect().is_err() && upstream.spawn(|end| end).is_err());
        upstream.come_up();
        let client = meet(&upstream, side, &tasks).await;
        assert_eq!(client.prompts().await, ["a", "b"], "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_refuses_the_probe_as_its_script_says() {
    for side in [crate::cell::LEGACY_STDIO, LEGACY_HTTP] {
        for probe in [Probe::Error(-32602), Probe::Silent, Probe::Status(404), Probe::Exit] {
            let (upstream, tasks) = start(Script::full(side).probe(probe));
            let client = meet(&upstream, side, &tasks).await;
            let mut exchange = client.start("server/discover", "{}");
            match probe {
                Probe::Error(code) => assert_eq!(exchange.reply().await.code(), code),
                Probe::Silent => exchange.stays_silent().await,
                Probe::Status(_) | Probe::Exit => {
                    assert_eq!(exchange.answer().await, Err(vec![]), "{side} {probe:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_careful_server_would_refuse_is_a_surprise() {
    let (upstream, tasks) = start(Script::full(MODERN_HTTP));
    let client = meet(&upstream, MODERN_HTTP, &tasks).await;
    assert_eq!(client.request("ping", "{}").await.status, 404);
    let http = client.http();
    let params = client.with_request_meta(r#"{"name":"b"}"#);
    let message = weir_mcp::jsonrpc::write_request(&7.into(), "prompts/get", params.as_bytes());
    http.post(message, &http.headers("prompts/get", r#"{"name":"a"}"#)).whole().await;
    let violations = upstream.violations();
    assert_eq!(violations.len(), 2, "{violations:?}");
    assert!(violations[1].contains("mcp-name"), "{violations:?}");
}
