//! Servers on the network that are down, slow, break off, or send unexpected data (C1).

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::lab::client::{Outcome, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::night::bound;
use crate::lab::ports::free_port;
use crate::lab::{
    Lab, PATIENCE, alone_by_night, beside_others, by_night, shortest, until, until_served,
};

/// Revisions of a server, one of each era.
const ERAS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// Bound of the shortest of several lists that wait for no upstream; one that does takes two
/// seconds.
fn at_once() -> Duration {
    bound(1_500, 250)
}

#[tokio::test]
async fn f01_who_is_down_at_the_start_is_missing_and_nobody_else() {
    let _turn = beside_others().await;
    let mut lab = Lab::new();
    for number in 0..8 {
        lab = lab.http(&format!("u{number}"), json!({ "revision": ERAS[number % 2] })).await;
    }
    let config = format!(
        "[upstreams.refused]\nurl = \"http://127.0.0.1:{}/mcp\"\n[upstreams.unknown]\nurl = \"http://nowhere.invalid/mcp\"\n",
        free_port()
    );
    let weir = lab.serve(&config).await;
    assert!(weir.took < bound(10_000, 1_000), "ready after {:?}", weir.took);
    let mut client = weir.client(Revision::MODERN).await;
    let begin = Instant::now();
    client.tools().await;
    let first = begin.elapsed();
    // The very first list waits for upstreams that are starting, for four seconds at most.
    for evil in lab.evils() {
        weir.wait_until_listed(&evil.name).await;
    }
    let next = shortest(async || {
        let list = client.request("tools/list", json!({})).await.result();
        assert_eq!(list["tools"].as_array().unwrap().len(), 8);
        assert_eq!(list["_meta"]["weir/partial"], json!(["refused", "unknown"]));
    });
    let next = next.await;
    eprintln!("F-01: ready in {:?}, first list {first:?}, next {next:?}", weir.took);
    assert!(first < bound(20_000, 4_500) && next < at_once(), "{first:?} {next:?}");
    weir.stop().await;
}

#[tokio::test]
async fn f02_with_all_down_lists_are_empty_and_calls_end_at_once() {
    let _turn = beside_others().await;
    let tables = (0..10).map(|number| {
        format!("[upstreams.u{number}]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port())
    });
    let lab = Lab::new();
    let weir = lab.serve(&tables.collect::<String>()).await;
    assert!(weir.took < bound(10_000, 1_000), "ready after {:?}", weir.took);
    let mut client = weir.client(Revision::MODERN).await;
    let list = client.request("tools/list", json!({})).await.result();
    assert_eq!(list["tools"], json!([]));
    assert_eq!(list["_meta"]["weir/partial"].as_array().unwrap().len(), 10);
    // Each call is the first one to its upstream.
    let mut upstreams = 1..10;
    let took = shortest(async || {
        let upstream = format!("u{}", upstreams.next().unwrap());
        let outcome = client.call(&upstream, json!({})).await;
        assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
    });
    let took = took.await;
    assert!(took < bound(1_000, 50), "{took:?}");
    weir.stop().await;
}

#[tokio::test]
async fn f03_a_slow_server_is_waited_for_by_its_own_callers() {
    let _turn = beside_others().await;
    // The slow responses wait for this test, so that whatever waits for them does not end before.
    let script = json!({ "on": { "tools/list": { "waits_for": "first list" } } });
    let lab = Lab::new().http("slow", script).await.http("fine", json!({})).await;
    let weir = lab.serve("[defaults]\ntimeouts.list = \"60s\"\n").await;
    let begin = Instant::now();
    let mut client = weir.client(Revision::LEGACY).await;
    client.tools().await;
    // The slow list has not come by then.
    assert!(begin.elapsed() < bound(30_000, 4_200), "a list: {:?}", begin.elapsed());
    lab.evil("slow").create("first list");
    weir.wait_until_listed("slow").await;
    lab.evil("slow").script(json!({ "on": { "tools/list": { "never": true } } }));
    let ((late, _), slowest) =
        tokio::join!(weir.call("slow", json!({ "waits_for": "others" })), async {
            until("the slow call is there", || !lab.evil("slow").executions().is_empty()).await;
            let others = join_all((0..20).map(|_| weir.call("fine", json!({})))).await;
            assert!(others.iter().all(|(outcome, _)| outcome.is_result()));
            lab.evil("slow").create("others");
            others.iter().map(|(_, took)| *took).max().unwrap()
        });
    assert!(late.is_result(), "{late:?}");
    assert!(slowest < bound(20_000, 500), "{slowest:?}");
    let took = shortest(async || {
        client.tools().await;
    });
    let took = took.await;
    assert!(took < at_once(), "{took:?}");
    weir.stop().await;
}

#[tokio::test]
async fn f04_a_list_that_is_never_answered_is_left_out() {
    let _turn = beside_others().await;
    // Each era by itself, at the same time.
    join_all(ERAS.map(async |revision| {
        let script = json!({ "revision": revision, "on": { "tools/list": { "never": true } } });
        let lab = Lab::new().http("hung", script).await.http("fine", json!({})).await;
        let weir = lab.serve("[defaults]\ntimeouts.list = \"3s\"\n").await;
        let mut client = weir.client(Revision::MODERN).await;
        let begin = Instant::now();
        client.tools().await;
        let first = begin.elapsed();
        // The very first list waits four seconds at most, also for the one that is fine.
        weir.wait_until_listed("fine").await;
        let next = shortest(async || assert_eq!(client.tools().await, ["fine__call"])).await;
        eprintln!("F-04: {revision}: first list {first:?}, next {next:?}");
        assert!(first < bound(20_000, 6_000), "{first:?}");
        assert!(next < at_once(), "{next:?}");
        weir.stop().await;
    }))
    .await;
}

#[tokio::test]
async fn f06_a_stream_that_hangs_after_progress_ends_its_call_in_time() {
    let _turn = beside_others().await;
    join_all(ERAS.map(async |revision| {
        let mut lab = Lab::new().http("a", json!({ "revision": revision })).await;
        lab.evil_mut("a").extra = "timeouts.call = \"1s\"".into();
        let weir = lab.serve_all("").await;
        // SSE comments keep a connection alive, not a call.
        join_all([20, 100_000].map(async |comments| {
            let fault = json!({ "progress": 2, "comments_ms": comments });
            let mut client = weir.client(Revision::MODERN).await;
            let begin = Instant::now();
            let params = json!({
                "name": "a__call",
                "arguments": { "nonce": "1", "fault": fault.to_string() },
                "_meta": { "progressToken": 1 },
            });
            let outcome = client.request("tools/call", params).await;
            let took = begin.elapsed();
            assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
            // The default time limit is 60 s.
            assert!((Duration::from_millis(950)..bound(20_000, 2_000)).contains(&took), "{took:?}");
        }))
        .await;
        until("it was logged", || {
            lab.evil("a").times("hang-up") + lab.evil("a").times("notifications/cancelled") > 0
        })
        .await;
        weir.stop().await;
    }))
    .await;
}

// === F-07, F-08: truncated and refused responses ===

/// Framings that a response may have.
fn framings() -> [(&'static str, Value); 3] {
    [
        ("length", json!({})),
        ("chunks", json!({ "chunked": true })),
        ("events", json!({ "events": true })),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_an_answer_that_is_cut_anywhere_ends_its_call_once() {
    let _turn = alone_by_night().await;
    let mut lab = Lab::new();
    for (era, revision) in ["legacy", "modern"].iter().zip(ERAS) {
        for (framing, _) in framings() {
            for item in ["tool", "prompt"] {
                let name = format!("{era}-{framing}-{item}");
                lab = lab.http(&name, json!({ "revision": revision })).await;
            }
        }
    }
    let weir = lab.serve_all("").await;
    let ledger = Ledger::default();
    let sweeps = join_all(lab.evils().iter().map(|evil| sweep(&weir, &ledger, &evil.name))).await;
    let accounts = ledger.reconcile(lab.evils());
    let cuts: usize = sweeps.iter().map(|(cuts, _)| cuts).sum();
    let slowest = sweeps.iter().map(|(_, took)| *took).max().unwrap();
    let broken: usize = accounts.values().map(|account| account.failures()).sum();
    eprintln!("F-07: {cuts} cuts of 12 exchanges, {broken} errors, slowest {slowest:?}");
    assert!(broken > 1_000, "most of the cuts are seen: {broken} of {cuts}");
    // Far from any time limit; 12 at a time on two cores.
    assert!(slowest < bound(20_000, 1_000), "{slowest:?}");
    weir.stop().await;
}

/// Truncates the responses of one server at every offset until a response arrives complete.
async fn sweep(weir: &crate::lab::weir::Weir, ledger: &Ledger, name: &str) -> (usize, Duration) {
    let words: Vec<_> = name.split('-').collect();
    let framing = framings().into_iter().find(|(framing, _)| *framing == words[1]).unwrap().1;
    let method = if words[2] == "tool" { "tools/call" } else { "prompts/get" };
    let mut clients = [weir.client(Revision::LEGACY).await, weir.client(Revision::MODERN).await];
    let (mut whole, mut cuts, mut slowest) = (0, 0, Duration::ZERO);
    for cut in 0.. {
        let resets: &[bool] = if by_night() { &[true, false] } else { &[cut % 2 == 0] };
        for reset in resets {
            let mut fault = framing.clone();
            fault["cut"] = cut.into();
            fault["reset"] = (*reset).into();
            let client = &mut clients[cut / 2 % 2];
            let begin = Instant::now();
            let outcome = ledger.request(client, method, name, Some(&fault)).await;
            slowest = slowest.max(begin.elapsed());
            cuts += 1;
            if outcome.is_result() {
                whole += 1;
            } else {
                assert!(matches!(outcome, Outcome::Error { .. }), "{name} at {cut}: {outcome:?}");
                whole = 0;
            }
            // A complete response, so that the server counts as healthy again.
            let outcome = ledger.request(client, method, name, Some(&framing)).await;
            assert!(outcome.is_result(), "{name} behind {cut}: {outcome:?}");
        }
        // More bytes than follow the last significant byte.
        if whole > 20 {
            break;
        }
    }
    (cuts, slowest)
}

#[tokio::test]
async fn f08_every_status_with_every_body_is_an_error_of_its_kind() {
    let _turn = beside_others().await;
    let rpc = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32050,"message":"no"}}"#;
    let html = "<html><body>SECRET of a proxy</body></html>";
    let bodies = [("application/json", rpc), ("text/html", html), ("text/html", "")];
    let lab = Lab::new().http("legacy", json!({})).await;
    let lab = lab.http("modern", json!({ "revision": "2026-07-28" })).await;
    let weir =
        lab.serve_all("[defaults]\nretry = { backoff = \"20ms\", max_backoff = \"20ms\" }\n").await;
    let cells = join_all(["legacy", "modern"].map(async |name| {
        let mut entry = Vec::new();
        for status in [500, 502, 503, 429, 401, 403, 404, 400] {
            for (content_type, text) in bodies {
                let fault = json!({ "status": status, "content_type": content_type, "text": text });
                let (outcome, took) = weir.call(name, fault).await;
                let Outcome::Error { code, message } = outcome else {
                    panic!("{name} {status} {text}: {outcome:?}");
                };
                assert!(!message.contains("SECRET"), "{message}");
                assert!(took < bound(20_000, 2_000), "{name} {status}: {took:?}");
                if text == rpc && code != -32050 {
                    entry.push(format!("{name} {status} {code}"));
                }
                if text != rpc {
                    assert!([5030, -32603].contains(&code), "{name} {status}: {code} {message}");
                }
                until_served(&weir, name).await;
            }
        }
        entry
    }));
    let entry = cells.await.concat();
    eprintln!("F-08: 48 cells; an error object is passed on, but for {entry:?}");
    weir.stop().await;
}

#[tokio::test]
async fn f08_who_is_refused_for_credentials_leaves_a_warning_whatever_the_client_is_told() {
    let _turn = beside_others().await;
    let rpc = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32050,"message":"no"}}"#;
    for (status, body, message) in
        [(401, "", "upstream call failed"), (403, rpc, "upstream refused a request")]
    {
        let lab = Lab::new().http("modern", json!({ "revision": "2026-07-28" })).await;
        let weir = lab.serve_all("").await;
        let fault = json!({ "status": status, "content_type": "application/json", "text": body });
        let (outcome, _) = weir.call("modern", fault).await;
        assert!(matches!(outcome, Outcome::Error { .. }), "{status}: {outcome:?}");
        until("it is logged", || weir.logged(message).is_some()).await;
        let entry = weir.logged(message).expect("it is logged");
        assert_eq!(
            (entry["level"].as_str(), entry["upstream"].as_str()),
            (Some("WARN"), Some("modern"))
        );
        assert!(entry.to_string().contains(&status.to_string()), "{entry}");
        weir.stop().await;
    }
}

// === F-09, F-13: servers that come and go ===

#[tokio::test]
async fn f09_who_comes_and_goes_is_not_run_after_and_its_clients_hear_nothing() {
    let _turn = beside_others().await;
    let turns = if by_night() { 60 } else { 2 };
    let mut lab = Lab::new().http("a", json!({})).await.http("fine", json!({})).await;
    let weir = lab.serve_all("").await;
    let listening = weir.listen().await;
    let begin = Instant::now();
    for _ in 0..turns {
        lab.evil_mut("a").kill().await;
        let down = Instant::now();
        while down.elapsed() < Duration::from_secs(1) {
            let (outcome, took) = weir.call("a", json!({})).await;
            assert!(!outcome.is_result() && took < bound(20_000, 2_000), "{outcome:?} in {took:?}");
            assert!(weir.call("fine", json!({})).await.0.is_result());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        lab.evil_mut("a").start().await;
        let up = Instant::now();
        while up.elapsed() < Duration::from_secs(1) {
            weir.call("a", json!({})).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let opened = lab.evil("a").times("initialize");
    eprintln!(
        "F-09: {turns} times down in {:?}, {opened} handshakes, {} notices",
        begin.elapsed(),
        listening.changes()
    );
    // For each time that the server was up: one handshake for the supervisor's connection, and one
    // for the callers' connection.
    assert!(opened <= 2 * (turns + 1), "{opened} handshakes");
    assert_eq!(listening.changes(), 0, "what is listed has not changed");
    weir.stop().await;
}

#[tokio::test]
async fn f13_who_is_back_is_asked_again_within_five_seconds() {
    let _turn = beside_others().await;
    // Each era by itself, at the same time.
    join_all(ERAS.map(async |revision| {
        let name = "a";
        let mut lab = Lab::new().http(name, json!({ "revision": revision })).await;
        let weir = lab.serve_all("").await;
        lab.evil_mut(name).kill().await;
        let down = Instant::now();
        while down.elapsed() < Duration::from_secs(3) {
            assert!(!weir.call(name, json!({})).await.0.is_result());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let connected = lab.evil(name).times("connect");
        lab.evil_mut(name).start().await;
        let begin = Instant::now();
        while !weir.call(name, json!({})).await.0.is_result() {
            assert!(begin.elapsed() < PATIENCE, "it is not back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let took = begin.elapsed();
        let connections = lab.evil(name).times("connect") - connected;
        eprintln!("F-13: {revision} is back after {took:?}, {connections} connections");
        assert!(took < bound(20_000, 5_500), "{took:?}");
        // Connections of the gateway's own requests are not for callers: each thread has its own.
        assert!(connections <= 6, "no herd of them: {connections}");
        weir.stop().await;
    }))
    .await;
}

#[tokio::test]
async fn f15_garbage_upon_the_first_question_leads_to_the_other_era_once() {
    let _turn = beside_others().await;
    let garbage = json!({ "server/discover": { "text": "{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":[1,2]}" } });
    let lab = Lab::new().http("a", json!({ "on": garbage })).await;
    let weir = lab.serve_all("").await;
    assert!(weir.call("a", json!({})).await.0.is_result());
    let evil = lab.evil("a");
    // The second handshake belongs to the call's own session.
    assert_eq!((evil.times("server/discover"), evil.times("initialize")), (1, 2));
    weir.stop().await;
}
