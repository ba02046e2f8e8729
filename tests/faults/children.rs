//! Children over stdio that crash, write too much, do not exit, or leave processes behind (C2).

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;

use crate::lab::client::{Outcome, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::night::bound;
use crate::lab::process::state_of;
use crate::lab::weir::Weir;
use crate::lab::{
    Lab, alone_by_night, beside_others, by_night, runs, shortest, until, until_served,
};

/// Short retry pauses, so that a test does not wait for a server that is back.
const QUICK: &str = "[defaults]\nretry = { backoff = \"20ms\", max_backoff = \"50ms\" }\n";

/// Processes of all servers that still run.
fn survivors(lab: &Lab) -> Vec<u32> {
    let processes = lab.evils().iter().flat_map(|evil| evil.processes());
    processes.filter(|process| runs(*process)).collect()
}

// === F-20: crashes ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_crash_ends_its_calls_at_once_and_leaves_nothing_behind() {
    let _turn = alone_by_night().await;
    // Four ends per server: a server that crashes more often in a minute is paused for longer.
    let (weirs, upstreams) = (if by_night() { 20 } else { 1 }, 13);
    let mut slowest = Duration::ZERO;
    for _ in 0..weirs {
        let mut lab = Lab::new();
        for number in 0..upstreams {
            lab = lab.stdio(&format!("u{number}"), json!({}));
        }
        let weir = lab.serve_all(QUICK).await;
        let calm = weir.resources();
        for cycle in 0..3 {
            let crashes = lab.evils().iter().map(|evil| crash(&weir, evil, cycle));
            slowest = join_all(crashes).await.into_iter().max().max(Some(slowest)).unwrap();
        }
        until("all children run, none is a zombie, and no descriptor is left over", || {
            let now = weir.resources();
            // The first count may have included a client's connection.
            now.children == calm.children && now.zombies == 0 && now.descriptors <= calm.descriptors
        })
        .await;
        weir.stop().await;
        assert_eq!(survivors(&lab), [0; 0]);
    }
    let cycles = weirs * upstreams * 4;
    eprintln!("F-20: {cycles} crashes, slowest error {slowest:?} after the crash");
    // Alone it takes a few milliseconds; the time limit of the calls is 60 s.
    assert!(slowest < bound(20_000, 100), "{slowest:?}");
}

/// Runs one cycle: the server crashes while eight calls wait, while it is idle, or in the handshake
/// after its restart. Returns the time from the crash until the slowest call ended.
async fn crash(weir: &Weir, evil: &crate::lab::evil::Evil, cycle: usize) -> Duration {
    let code = [0, 139, -11][cycle];
    let lives = evil.processes().len();
    let last = *evil.processes().last().unwrap();
    if cycle == 1 {
        // The next process ends in the handshake, and the one after that works.
        evil.script(json!({ "on": { "initialize": { "exit": 1 } } }));
    }
    let requested: Vec<_> = join_all((0..8).map(|_| weir.client(Revision::LEGACY))).await;
    let waiting = requested.into_iter().map(async |mut client| {
        let nonce = json!({ "nonce": "1", "fault": json!({ "never": true }).to_string() });
        let outcome = client.call(&evil.name, nonce).await;
        (outcome, Instant::now())
    });
    let crashing = async {
        until("all calls are there", || {
            evil.executions().get("1").copied().unwrap_or_default() >= 8 * (cycle + 1)
        })
        .await;
        let mut client = weir.client(Revision::MODERN).await;
        let fault = json!({ "exit": code }).to_string();
        client.call(&evil.name, json!({ "nonce": "2", "fault": fault })).await
    };
    let watched = async {
        until("it has ended", || !runs(last)).await;
        Instant::now()
    };
    let (outcomes, crashed, ended) = tokio::join!(join_all(waiting), crashing, watched);
    assert!(!crashed.is_result(), "{crashed:?}");
    let mut slowest = Duration::ZERO;
    for (outcome, at) in outcomes {
        assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
        slowest = slowest.max(at.saturating_duration_since(ended));
    }
    if cycle == 1 {
        until("the next life has ended, too", || {
            let lives_now = evil.processes();
            lives_now.len() > lives && !runs(lives_now[lives])
        })
        .await;
        evil.script(json!({}));
    }
    until("it is back", || evil.processes().last().is_some_and(|now| *now != last && runs(*now)))
        .await;
    weir.wait_until_listed(&evil.name).await;
    // A listed upstream need not be connected: its previous list stays.
    until_served(weir, &evil.name).await;
    slowest
}

// === F-21: standard error ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_a_flood_on_standard_error_is_drained_and_kept_short() {
    let _turn = alone_by_night().await;
    let bytes: u64 = if by_night() { 1 << 30 } else { 64 << 20 };
    let lab = Lab::new().stdio("loud", json!({})).stdio("calm", json!({}));
    let weir = lab.serve_all("").await;
    // In the second round the allocator needs no new memory.
    weir.call("loud", json!({ "stderr_bytes": 1 << 20 })).await;
    let (before, cpu_time) = (weir.resources(), weir.cpu_time());
    let (outcome, took) = weir.call("loud", json!({ "stderr_bytes": bytes })).await;
    assert!(outcome.is_result(), "{outcome:?}");
    let (more, cpu_time) = (
        weir.resources().resident_bytes.saturating_sub(before.resident_bytes),
        weir.cpu_time() - cpu_time,
    );
    let lines = weir.log().len();
    eprintln!(
        "F-21: {bytes} bytes in {took:?}, {cpu_time:?} of a processor, {more} bytes more, {lines} lines of log"
    );
    // By day there are a few allocations of others in it; it is far below the bytes that came.
    let most = if by_night() { 1 << 20 } else { 8 << 20 };
    assert!(more <= most, "{more} bytes more");
    assert!(cpu_time <= took + Duration::from_millis(50), "{cpu_time:?} in {took:?}");
    assert!(lines < 1_000, "{lines} lines of log");
    weir.stop().await;
}

// === F-22 to F-26: ends ===

#[tokio::test]
async fn f22_a_child_that_ends_is_noticed_although_another_holds_its_pipes() {
    let _turn = beside_others().await;
    let lab = Lab::new().stdio("a", json!({ "start": { "descendants": ["child"] } }));
    let weir = lab.serve_all(QUICK).await;
    let first = lab.evil("a").processes();
    let (outcome, took) = weir.call("a", json!({ "exit": 3 })).await;
    assert!(!outcome.is_result());
    eprintln!("F-22: noticed in {took:?}");
    // The process group ends with the child, and so do the pipes that the other process holds open.
    assert!(took < bound(20_000, 500), "{took:?}");
    until("no process of its first run is left", || !first.iter().any(|process| runs(*process)))
        .await;
    until("none is a zombie", || weir.resources().zombies == 0).await;
    weir.wait_until_listed("a").await;
    weir.stop().await;
    assert_eq!(survivors(&lab), [0; 0]);
}

#[tokio::test]
async fn f23_a_child_that_ignores_the_end_of_its_input_is_asked_after_two_seconds() {
    let _turn = beside_others().await;
    let lab = Lab::new().stdio("a", json!({ "ignores_eof": true }));
    // Without the request it would be killed a minute later.
    let weir = lab.serve_all("[defaults]\ntimeouts.terminate = \"60s\"\n").await;
    let took = weir.stop().await;
    eprintln!("F-23: {took:?}");
    assert!((Duration::from_secs(2)..bound(30_000, 2_500)).contains(&took), "{took:?}");
    assert_eq!(survivors(&lab), [0; 0]);
}

#[tokio::test]
async fn f24_a_child_that_ignores_signals_is_gone_after_five_seconds() {
    let _turn = beside_others().await;
    let script = json!({ "ignores_eof": true, "start": { "descendants": ["child", "orphan"] } });
    let lab = Lab::new().stubborn("a", script.clone()).stubborn("b", script);
    let weir = lab.serve_all("").await;
    until("all have begun", || lab.evils().iter().all(|evil| evil.processes().len() == 3)).await;
    let took = weir.stop().await;
    eprintln!("F-24: {took:?}");
    assert!((Duration::from_secs(5)..bound(20_000, 5_500)).contains(&took), "{took:?}");
    assert_eq!(survivors(&lab), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f25_what_a_child_has_started_ends_with_it() {
    let _turn = beside_others().await;
    let (rounds, upstreams) = if by_night() { (5, 100) } else { (2, 25) };
    for _ in 0..rounds {
        // Half of the children end with Weir, half by themselves. The two halves run concurrently.
        tokio::join!(end_of_descendants(upstreams, true), end_of_descendants(upstreams, false));
    }
}

/// Two descendants that have left the process group, one of them without a parent and without the
/// environment, and two that have not.
fn descendants() -> serde_json::Value {
    json!({ "start": { "descendants": ["session", "daemon", "child", "orphan"] } })
}

/// Waits until all servers of the lab have started all of their descendants.
async fn all_have_begun(lab: &Lab) {
    until("all have begun", || lab.evils().iter().all(|evil| evil.processes().len() == 5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_what_has_left_its_process_group_ends_with_its_child_and_nobody_elses_does() {
    let _turn = beside_others().await;
    let mut slowest = Duration::ZERO;
    for _ in 0..if by_night() { 100 } else { 5 } {
        let lab = Lab::new().stdio("a", descendants()).stdio("b", descendants());
        let weir = lab.serve_all(QUICK).await;
        all_have_begun(&lab).await;
        let (first, others) = (lab.evil("a").processes(), lab.evil("b").processes());
        assert!(!weir.call("a", json!({ "exit": 1 })).await.0.is_result());
        let ended = until("it has ended", || !runs(first[0])).await;
        let swept =
            until("nothing of it is left", || !first.iter().any(|process| runs(*process))).await;
        slowest = slowest.max(ended + swept);
        // Descendants of the restarted process and of other servers are not among them.
        weir.wait_until_listed("a").await;
        assert!(others.iter().all(|process| runs(*process)));
        assert_eq!(lab.evil("b").processes(), others);
        until("none is a zombie", || {
            !first.iter().any(|process| state_of(*process).is_some())
                && weir.resources().zombies == 0
        })
        .await;
        weir.stop().await;
        assert_eq!(survivors(&lab), [0; 0]);
    }
    eprintln!("F-26: all gone within {slowest:?} of the error");
    assert!(slowest < bound(20_000, 1_000), "{slowest:?}");
}

#[tokio::test]
async fn f26_what_has_left_its_process_group_ends_with_a_child_that_has_to_be_killed() {
    let _turn = beside_others().await;
    let mut script = descendants();
    script["ignores_eof"] = true.into();
    let lab = Lab::new().stubborn("a", script);
    let weir = lab.serve_all("").await;
    all_have_begun(&lab).await;
    let took = weir.stop().await;
    assert!((Duration::from_secs(5)..bound(20_000, 6_500)).contains(&took), "{took:?}");
    assert_eq!(survivors(&lab), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_f27_what_has_left_its_process_group_ends_with_weir_even_if_it_is_killed() {
    let _turn = beside_others().await;
    let mut slowest = Duration::ZERO;
    for _ in 0..if by_night() { 100 } else { 3 } {
        let mut script = descendants();
        script["ignores_eof"] = true.into();
        let lab = Lab::new().stubborn("a", script.clone()).stdio("b", script);
        let mut weir = lab.serve_all("").await;
        all_have_begun(&lab).await;
        weir.signal(rustix::process::Signal::KILL);
        assert_eq!(weir.ended().await, None);
        slowest = slowest.max(until("all are gone", || survivors(&lab).is_empty()).await);
    }
    eprintln!("F-26: all gone {slowest:?} after Weir");
    assert!(slowest < bound(20_000, 2_000), "{slowest:?}");
}

/// Starts this number of children with two descendants each, ends them, and checks that no process
/// is left.
async fn end_of_descendants(upstreams: usize, with_weir: bool) {
    let mut lab = Lab::new();
    for number in 0..upstreams {
        let script = json!({ "start": { "descendants": ["child", "orphan"] } });
        lab = lab.stdio(&format!("u{number}"), script);
    }
    let weir = lab.serve_all(QUICK).await;
    until("all have begun", || lab.evils().iter().all(|evil| evil.processes().len() == 3)).await;
    let first: Vec<_> = lab.evils().iter().flat_map(|evil| evil.processes()).collect();
    if !with_weir {
        let calls = lab.evils().iter().map(|evil| weir.call(&evil.name, json!({ "exit": 1 })));
        join_all(calls).await;
        until("no process of the first runs is left", || {
            !first.iter().any(|process| runs(*process))
        })
        .await;
    }
    weir.stop().await;
    assert_eq!(survivors(&lab), [0; 0]);
}

// === F-28 to F-34, F-36: pipes ===

#[tokio::test]
async fn f28_a_child_that_never_reads_costs_its_own_calls_only() {
    let _turn = beside_others().await;
    let mut lab = Lab::new().stdio("deaf", json!({})).stdio("fine", json!({}));
    lab.evil_mut("deaf").extra = "limits.concurrency = 4\ntimeouts.call = \"10s\"".into();
    let weir = lab.serve_all("").await;
    let (first, ()) = tokio::join!(weir.call("deaf", json!({ "deaf": true })), async {
        until("it has gone deaf", || !lab.evil("deaf").executions().is_empty()).await;
        // Each text is larger than the pipe, and there are more of them than may be in flight.
        let large = json!({ "text": "x".repeat(100_000) });
        let calls = join_all((0..12).map(|_| weir.call("deaf", large.clone())));
        let others = join_all((0..12).map(|_| weir.call("fine", json!({}))));
        let (calls, others) = tokio::join!(calls, others);
        for (outcome, took) in calls {
            assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
            // A call waits at most one second for its turn, and its time limit is ten seconds.
            assert!(took < bound(30_000, 11_500), "{took:?}");
        }
        let slowest = others.iter().map(|(_, took)| *took).max().unwrap();
        assert!(others.iter().all(|(outcome, _)| outcome.is_result()));
        eprintln!("F-28: slowest call to the other {slowest:?}");
        // Long before the first call to the one that is deaf ends.
        assert!(slowest < bound(8_000, 1_000), "{slowest:?}");
    });
    assert!(!first.0.is_result());
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_what_waits_for_a_child_that_never_reads_is_bounded_and_the_rest_is_told_within_a_second()
 {
    let _turn = beside_others().await;
    let mut lab = Lab::new().stdio("deaf", json!({})).stdio("fine", json!({}));
    lab.evil_mut("deaf").extra = "limits.concurrency = 400\ntimeouts.call = \"12s\"".into();
    let weir = lab.serve_all("[server.per_client]\ncalls = 1000\n").await;
    let (first, ()) = tokio::join!(weir.call("deaf", json!({ "deaf": true })), async {
        until("it has gone deaf", || !lab.evil("deaf").executions().is_empty()).await;
        // The first message does not fit into the pipe, so later ones wait behind it; by then it is
        // partly written.
        let plug = weir.call("deaf", json!({ "text": "x".repeat(100_000) }));
        let behind = async {
            for _ in 0..20 {
                assert!(weir.call("fine", json!({})).await.0.is_result());
            }
            let calls = join_all((0..120).map(|_| weir.call("deaf", json!({})))).await;
            assert!(weir.call("fine", json!({})).await.0.is_result());
            calls
        };
        let (plug, calls) = tokio::join!(plug, behind);
        assert_eq!(plug.0.code(), 5040, "{plug:?}");
        let (refused, waited): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(outcome, _)| outcome.code() == 5030);
        let slowest = refused.iter().map(|(_, took)| *took).max().unwrap();
        eprintln!("F-28: {} refused, the slowest after {slowest:?}", refused.len());
        // An in-memory test in `tests/it` checks the exact number.
        assert!((63..=66).contains(&waited.len()), "{} wait", waited.len());
        // The others wait for twelve.
        assert!(slowest < bound(10_000, 1_250), "{slowest:?}");
        assert!(waited.iter().all(|(outcome, _)| outcome.code() == 5040), "{waited:?}");
    });
    assert!(!first.0.is_result());
    weir.stop().await;
}

#[tokio::test]
async fn f29_lines_that_are_no_messages_are_skipped() {
    let _turn = beside_others().await;
    let lab = Lab::new().stdio("chatty", json!({}));
    let weir = lab.serve_all("").await;
    let banner = vec!["Server listening on stdio", "", "  ", "[info] request", "{}", "[]", "null"];
    for _ in 0..20 {
        let (outcome, _) = weir.call("chatty", json!({ "before": banner, "after": banner })).await;
        assert!(outcome.is_result(), "{outcome:?}");
    }
    weir.stop().await;
}

#[tokio::test]
async fn f30_bytes_that_are_no_text_are_skipped_and_others_untouched() {
    let _turn = beside_others().await;
    let lab = Lab::new().stdio("a", json!({}));
    let weir = lab.serve_all("").await;
    let right = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#;
    // Not UTF-8, a NUL, a byte-order mark, half a surrogate in UTF-8, a lone surrogate in JSON,
    // carriage returns.
    let lone = r#"{"jsonrpc":"2.0","method":"x\ud800"}"#;
    let lone: String = lone.bytes().map(|byte| format!("{byte:02x}")).collect();
    for hex in ["fffe80", "00", "efbbbf7b7d", "eda080", "0d0d", &lone, "7b22ff227d"] {
        let slow = json!({ "delay_ms": 50 });
        let fault = json!({ "hex": hex, "after": [right] });
        let (outcome, other) = tokio::join!(weir.call("a", fault), weir.call("a", slow));
        assert!(outcome.0.is_result(), "{hex}: {:?}", outcome.0);
        assert!(other.0.is_result(), "{hex}: {:?}", other.0);
    }
    assert_eq!(lab.evil("a").processes().len(), 1, "it was not started again");
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_line_without_an_end_is_not_kept() {
    let _turn = alone_by_night().await;
    // Each further 256 MiB of a line count as another message over the limit, and end the process.
    let bytes: u64 = if by_night() { 240 << 20 } else { 128 << 20 };
    let lab = Lab::new().stdio("a", json!({}));
    let weir = lab.serve_all("[defaults]\nlimits.max_message = \"1MiB\"\n").await;
    weir.call("a", json!({ "filler_bytes": 4 << 20 })).await;
    let before = weir.resources().resident_bytes;
    let (outcome, took) = weir.call("a", json!({ "filler_bytes": bytes })).await;
    assert!(outcome.is_result(), "{outcome:?}");
    let more = weir.resources().resident_bytes.saturating_sub(before);
    eprintln!("F-31: {bytes} bytes in {took:?}, {more} bytes more");
    assert!(more <= 16 << 20, "{more} bytes more");
    // A long line whose id can be read ends its call, long before the time limit.
    let long =
        format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"x":"{}"}}}}"#, "x".repeat(1 << 20));
    let (outcome, took) = weir.call("a", json!({ "text": long })).await;
    assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
    assert!(took < bound(20_000, 2_000), "{took:?}");
    // This was the third one within a minute, so the child is restarted.
    until_served(&weir, "a").await;
    weir.stop().await;
}

#[tokio::test]
async fn f32_however_a_line_is_cut_it_is_one_message() {
    let _turn = beside_others().await;
    let lab = Lab::new().stdio("a", json!({}));
    let weir = lab.serve_all("").await;
    for piece in 1..40 {
        let noise = ["\r", "", r#"{"jsonrpc":"2.0","method":"notifications/x"}"#];
        let fault = json!({ "piece": piece, "before": noise, "after": noise });
        let (outcome, _) = weir.call("a", fault).await;
        assert_eq!(outcome.result()["content"][0]["text"], "a:one", "pieces of {piece}");
    }
    // Half a message, and then the end of the stream.
    let (outcome, _) = weir.call("a", json!({ "cut": 20 })).await;
    assert!(matches!(outcome, Outcome::Error { .. }), "{outcome:?}");
    weir.stop().await;
}

#[tokio::test]
async fn f33_what_cannot_be_started_is_told_and_tried_with_pauses() {
    let _turn = beside_others().await;
    let lab = Lab::new().stdio("fine", json!({}));
    std::fs::write(lab.folder().join("text"), "not a program").unwrap();
    let config = "[upstreams.missing]\ncommand = \"/nowhere/at-all\"\n\
        [upstreams.text]\ncommand = \"./text\"\n\
        [upstreams.lost]\ncommand = \"true\"\ncwd = \"nowhere\"\n";
    let weir = lab.serve_all(config).await;
    assert!(weir.took < bound(10_000, 1_000), "ready after {:?}", weir.took);
    let logged = |upstream: &str| {
        let log = weir.log();
        let about = format!("\"upstream\":\"{upstream}\"");
        log.iter().filter(|line| line.contains(&about) && line.contains("WARN")).count()
    };
    for upstream in ["missing", "text", "lost"] {
        until("it is logged", || logged(upstream) > 0).await;
    }
    assert!(weir.call("fine", json!({})).await.0.is_result());
    let log = weir.log();
    weir.stop().await;
    assert!(log.len() < 40, "{}", log.join("\n"));
}

#[tokio::test]
async fn f34_a_slow_start_keeps_nobody_waiting() {
    let _turn = beside_others().await;
    // It starts when this test allows it, so that whatever waits for it does not end before.
    let lab = Lab::new()
        .stdio("slow", json!({ "start": { "waits_for": "go" } }))
        .stdio("fine", json!({}));
    let weir = lab.serve("").await;
    assert!(weir.took < bound(10_000, 1_000), "ready after {:?}", weir.took);
    // The very first list waits four seconds for upstreams that are starting.
    let first = weir.wait_until_listed("fine").await;
    assert!(first < bound(20_000, 4_500), "{first:?}");
    let mut client = weir.client(Revision::MODERN).await;
    let took = shortest(async || assert_eq!(client.tools().await, ["fine__call"])).await;
    // A list that waits for an upstream takes four seconds.
    assert!(took < bound(1_500, 250), "{took:?}");
    lab.evil("slow").create("go");
    weir.wait_until_listed("slow").await;
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_answers_to_what_was_never_asked_are_dropped() {
    let _turn = alone_by_night().await;
    let lab = Lab::new().stdio("mad", json!({})).stdio("fine", json!({}));
    let weir = lab.serve_all("").await;
    let answer = r#"{"jsonrpc":"2.0","id":4000000000,"result":{"content":[]}}"#;
    let before = weir.resources().resident_bytes;
    lab.evil("mad").script(json!({ "storm": { "text": answer, "per_second": 100_000 } }));
    let (begin, cpu_time) = (Instant::now(), weir.cpu_time());
    let ledger = Ledger::default();
    let mut client = weir.client(Revision::MODERN).await;
    while begin.elapsed() < Duration::from_secs(2) {
        assert!(ledger.call(&mut client, "fine", None).await.is_result());
    }
    let cpu_time = (weir.cpu_time() - cpu_time).as_secs_f64() / begin.elapsed().as_secs_f64();
    let more = weir.resources().resident_bytes.saturating_sub(before);
    let fine = &ledger.reconcile(lab.evils())["fine"];
    eprintln!("F-36: {cpu_time:.2} of a processor, {more} bytes more; the other {fine:?}");
    assert!(more <= 4 << 20, "{more} bytes more");
    lab.evil("mad").script(json!({}));
    weir.stop().await;
}
