//! Upstreams that write without a pause, as fast as the kernel accepts it (F-37): a call's time
//! limits hold, an upstream that sends useless messages is disconnected, and the calls to other
//! upstreams continue. Their times are measured by night, see also `blast.rs`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::load::Plan;
use crate::lab::night::bound;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone_by_night, beside_others, by_night, until};

/// Time limits of calls to an upstream that floods them with legal messages.
const LIMITS: &str = "timeouts = { call = \"2s\", call_max = \"4s\" }";

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// Messages that a response can be flooded with. The flag says whether the message is progress of
/// the call itself, which is legal.
fn floods() -> Vec<(&'static str, String, bool)> {
    let event = |text: &str| format!("data: {text}\n\n");
    let progress = |token: &str| {
        let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
        event(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#
        ))
    };
    let answer = event(r#"{"jsonrpc":"2.0","id":987654321,"result":{}}"#);
    vec![
        ("events that are no messages", event("x"), false),
        ("comments", ": x\n\n".into(), false),
        ("empty lines", "\n".into(), false),
        ("unknown fields", "field: x\n".into(), false),
        ("event names without an event", "event: message\n".into(), false),
        ("events without data", "data:\n\n".into(), false),
        ("progress of unknown calls", progress("987654321"), false),
        ("answers to unknown requests", answer, false),
        ("changes of lists", event(CHANGED), false),
        ("informational responses", "HTTP/1.1 103 Early Hints\r\n\r\n".into(), false),
        ("its own progress", progress("$TOKEN"), true),
    ]
}

/// Two good upstreams and three over HTTP that flood on request.
async fn three_that_flood(quiet: fn(&str) -> Value) -> Lab {
    let mut lab = Lab::new();
    for name in BAD {
        lab = lab.http(name, quiet(name)).await;
    }
    lab.http("good1", json!({})).await.stdio("good2", json!({}))
}

/// Streamable HTTP upstreams, one of them of the modern era.
fn streamable(bad: &str) -> Value {
    json!({ "revision": revision(bad) })
}

/// HTTP+SSE.
fn pair(_: &str) -> Value {
    json!({ "revision": "2024-11-05", "pair": true })
}

fn revision(bad: &str) -> &'static str {
    if bad == MODERN { "2026-07-28" } else { "2025-11-25" }
}

const BAD: [&str; 3] = ["bad1", "bad2", MODERN];
const MODERN: &str = "bad3";
const GOOD: [&str; 2] = ["good1", "good2"];

/// Calls a flooding upstream as a client that subscribes to progress.
async fn call(address: &str, upstream: &str, flood: &str) -> Outcome {
    let mut client = Client::http(address, Revision::MODERN, None).await;
    let fault = json!({ "flood": flood }).to_string();
    let params = json!({
        "name": format!("{upstream}__call"),
        "arguments": { "nonce": "flood", "fault": fault },
        "_meta": { "progressToken": 7 },
    });
    client.request("tools/call", params).await
}

/// Median and 99th percentile of the calls to the good upstreams.
async fn measure(weir: &Weir, lab: &Lab, time: Duration) -> [Duration; 2] {
    let mut plan = Plan::plain(4, &GOOD.map(str::to_owned));
    plan.pause = Duration::from_millis(10);
    let load = plan.start(weir);
    tokio::time::sleep(time).await;
    let ledger = load.stop().await;
    for (name, account) in ledger.reconcile(lab.evils()) {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    percentiles(&ledger)
}

fn percentiles(ledger: &Ledger) -> [Duration; 2] {
    [50, 99].map(|percent| ledger.percentile(percent, &GOOD))
}

/// Checks that other calls were not starved: three floods leave them their share of the machine.
fn assert_served(what: &str, before: [Duration; 2], during: [Duration; 2]) {
    eprintln!("{what}: p50 and p99 of the others {before:?}, and {during:?} beside the flood");
    for (at, more) in [20, 100].into_iter().enumerate() {
        let most = 4 * before[at] + Duration::from_millis(more);
        assert!(during[at] <= most, "{what}: {during:?} beside the flood, {before:?} without");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_a_call_ends_in_its_time_whatever_its_event_stream_is_flooded_with() {
    let _turn = beside_others().await;
    let mut lab = Lab::new().http("legal", json!({})).await.http("useless", json!({})).await;
    lab.evil_mut("legal").extra = LIMITS.into();
    // Useless messages end a call long before its time: this test gives it up after a minute.
    lab.evil_mut("useless").extra = "timeouts = { call = \"10m\", call_max = \"10m\" }".into();
    let weir = lab.serve_all("[defaults]\nbreaker = { failures = 100 }\n").await;
    for (what, flood, is_legal) in floods() {
        // Changes of lists are useless only beyond a number that an unoptimized build may be too
        // slow to reach.
        let ends_in_time = is_legal || what == "changes of lists";
        let upstream = lab.evil(if ends_in_time { "legal" } else { "useless" });
        let (begin, hang_ups) = (Instant::now(), upstream.times("hang-up tools/call"));
        let outcome = call(&weir.address, &upstream.name, &flood).await;
        let took = begin.elapsed();
        eprintln!("{what}: {took:.1?}, {outcome:?}");
        assert!(!outcome.is_result(), "{what}: {outcome:?}");
        let text = format!("{outcome:?}");
        if ends_in_time {
            // The default time limit is 60 s.
            assert!(took < bound(30_000, 8_000), "{what}: {took:?}");
        }
        if what != "changes of lists" {
            assert_eq!(text.contains("violated the protocol"), !is_legal, "{what}: {text}");
        }
        until("its stream is closed", || upstream.times("hang-up tools/call") > hang_ups).await;
    }
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_three_calls_that_are_flooded_do_not_starve_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let lab = three_that_flood(streamable).await;
    let weir =
        lab.serve_all("[defaults]\ntimeouts = { call = \"60s\", call_max = \"60s\" }\n").await;
    measure(&weir, &lab, Duration::from_secs(1)).await;
    let before = measure(&weir, &lab, Duration::from_secs(2)).await;
    // The call's own progress may continue for as long as the call; an upstream that sends worse is
    // disconnected.
    let (what, flood, _) = floods().pop().expect("the last");
    let tasks = TaskTracker::new();
    let calls: Vec<_> = BAD
        .into_iter()
        .map(|name| {
            let (address, flood) = (weir.address.clone(), flood.clone());
            tasks.spawn(async move { call(&address, name, &flood).await })
        })
        .collect();
    until("all of them flood", || {
        BAD.iter().all(|name| lab.evil(name).executions().contains_key("flood"))
    })
    .await;
    let during = measure(&weir, &lab, Duration::from_secs(4)).await;
    assert!(calls.iter().all(|call| !call.is_finished()), "they flood to the end");
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    assert_served(what, before, during);
    weir.stop().await;
}

/// Makes all bad upstreams flood in this way while the good ones are measured, until each stream
/// has been ended.
async fn flooded(quiet: fn(&str) -> Value, storm: Value, what: &str) {
    let lab = three_that_flood(quiet).await;
    let weir = lab.serve_all("").await;
    measure(&weir, &lab, Duration::from_secs(1)).await;
    let before = measure(&weir, &lab, Duration::from_secs(1)).await;
    let floods = |name: &str, floods: bool| {
        let mut script = quiet(name);
        if floods {
            script["storm"] = storm.clone();
        }
        lab.evil(name).script(script);
    };
    BAD.iter().for_each(|name| floods(name, true));
    let during = measure(&weir, &lab, Duration::from_secs(3)).await;
    // One at a time: Weir may read too little of three streams at once to reach the limit.
    BAD.iter().for_each(|name| floods(name, false));
    for name in BAD {
        floods(name, true);
        let took = until("its stream is ended", || lab.evil(name).times("stream ended") > 0).await;
        eprintln!("{what}: {name} was ended after another {took:.1?}");
        floods(name, false);
    }
    assert_served(what, before, during);
    weir.stop().await;
}

/// Repeats a text on all open listen streams: more than the kernel accepts between two bursts.
fn storm(text: &str, raw: bool) -> Value {
    json!({ "text": text, "raw": raw, "per_second": 200_000_000 / text.len() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_floods_on_streams_that_nobody_called_on_are_ended_and_do_not_starve_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    flooded(streamable, storm(": x\n\n", true), "comments").await;
    flooded(streamable, storm(CHANGED, false), "changes of lists").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_floods_on_the_stream_of_the_pair_are_ended_and_do_not_starve_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    for (what, text) in [
        ("comments of the pair", ": x\n\n"),
        ("empty lines of the pair", "\n"),
        ("events of the pair that are no messages", "data: x\n\n"),
        ("events of the pair with other names", "event: x\ndata: x\n\n"),
    ] {
        flooded(pair, storm(text, true), what).await;
    }
    flooded(pair, storm(CHANGED, false), "changes of lists of the pair").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_floods_in_place_of_answers_that_weir_asked_for_do_not_starve_others_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    for is_first in [true, false] {
        let method = |name: &str| match is_first {
            // The modern upstream has no session to initialize.
            true if name == MODERN => "subscriptions/listen",
            true => "initialize",
            false => "tools/list",
        };
        let (mut lab, flood) =
            (three_that_flood(streamable).await, json!({ "flood": "data: x\n\n" }));
        let weir = lab.serve_all("").await;
        measure(&weir, &lab, Duration::from_secs(1)).await;
        let before = measure(&weir, &lab, Duration::from_secs(1)).await;
        for name in BAD {
            let on = json!({ method(name): flood });
            lab.evil(name).script(json!({ "revision": revision(name), "on": on }));
            // The session is lost, so every list is requested anew.
            lab.evil_mut(name).kill().await;
            lab.evil_mut(name).start().await;
        }
        let during = measure(&weir, &lab, Duration::from_secs(3)).await;
        let is_hung_up_on =
            |name: &&str| lab.evil(name).times(&format!("hang-up {}", method(name))) > 0;
        until("they are hung up on", || BAD.iter().all(is_hung_up_on)).await;
        assert_served(method(BAD[0]), before, during);
        weir.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_f29_a_child_that_floods_empty_lines_starts_again_and_starves_no_other_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let lab = Lab::new().stdio("bad", json!({})).stdio("good2", json!({}));
    let lab = lab.http("good1", json!({})).await;
    let weir = lab.serve_all("").await;
    measure(&weir, &lab, Duration::from_secs(1)).await;
    let before = measure(&weir, &lab, Duration::from_secs(1)).await;
    let storm = json!({ "text": "\n", "raw": true, "per_second": 200_000_000 });
    lab.evil("bad").script(json!({ "storm": storm }));
    let during = measure(&weir, &lab, Duration::from_secs(2)).await;
    assert_served("empty lines", before, during);
    until("it is started again", || lab.evil("bad").processes().len() > 1).await;
    weir.stop().await;
}
