//! Lists with cursor cycles, lists without an end, and lists that are announced as changed all the
//! time (C4).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lab::client::Revision;
use crate::lab::night::bound;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone_by_night, beside_others, by_night, until};

const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

/// One server of each era over each transport.
async fn fleet(script: &Value) -> Lab {
    let with = |more: Value| {
        let mut script = script.clone();
        script.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        script
    };
    let lab = Lab::new().stdio("lines", with(json!({})));
    let lab = lab.stdio("modern-lines", with(json!({ "revision": "2026-07-28" })));
    let lab = lab.http("legacy", with(json!({}))).await;
    let lab = lab.http("modern", with(json!({ "revision": "2026-07-28" }))).await;
    lab.http("pair", with(json!({ "pair": true, "revision": "2024-11-05" }))).await
}

/// Tools of one upstream under their own names.
async fn tools_of(weir: &Weir, upstream: &str) -> Vec<String> {
    let tools = weir.client(Revision::MODERN).await.tools().await;
    let own = tools.iter().filter_map(|name| name.strip_prefix(&format!("{upstream}__")));
    own.map(str::to_owned).collect()
}

/// Greatest number of lists of a server that announces no change. The acknowledgment of a listen
/// request counts as a change if it comes late, which by day it may: the machine may stall.
fn most_lists(upstream: &str) -> usize {
    if upstream.contains("modern") && !by_night() { 2 } else { 1 }
}

#[tokio::test]
async fn f40_f43_a_list_that_goes_round_in_circles_ends_after_three_pages_without_news() {
    let _turn = beside_others().await;
    for walk in ["loop", "empty_for_ever"] {
        let lab = fleet(&json!({ "walk": walk })).await;
        let weir = lab.serve_all("").await;
        for evil in lab.evils() {
            assert_eq!(tools_of(&weir, &evil.name).await, ["call", "t1", "t2"], "{walk}");
            let walks = evil.walks();
            assert!(walks.iter().all(|pages| *pages <= 4), "{walk}, {}: {walks:?}", evil.name);
            assert!(walks.len() <= most_lists(&evil.name), "{walk}, {}: {walks:?}", evil.name);
        }
        weir.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_a_list_without_an_end_ends_by_its_bounds() {
    let _turn = alone_by_night().await;
    let lab = Lab::new().stdio("endless", json!({ "walk": "endless" })).stdio("fine", json!({}));
    // The time for a list is no bound here, however slow the machine is.
    let weir = lab.serve("[defaults]\ntimeouts.list = \"10m\"\n").await;
    weir.wait_until_listed("fine").await;
    let took = weir.wait_until_listed("endless").await;
    let tools = tools_of(&weir, "endless").await;
    let (pages, resident) =
        (lab.evil("endless").times("tools/list"), weir.resources().resident_bytes);
    eprintln!(
        "F-41: {} items of {pages} pages in {took:?}, {resident} bytes resident",
        tools.len()
    );
    assert_eq!((tools.len(), pages), (10_000, 100));
    assert!(took < bound(60_000, 11_000), "{took:?}");
    assert!(resident < 128 << 20, "{resident}");
    weir.stop().await;
}

/// Durations of the calls to `fine` until the first page of the list has a next page.
async fn calls_until_list(weir: &Weir) -> Vec<Duration> {
    let (mut client, mut list) =
        (weir.client(Revision::MODERN).await, weir.client(Revision::MODERN).await);
    let (mut times, mut next_look) = (Vec::new(), Instant::now());
    loop {
        let begin = Instant::now();
        let arguments = json!({ "nonce": "one", "fault": "{}" });
        assert!(client.call("fine", arguments).await.is_result());
        times.push(begin.elapsed());
        if next_look <= Instant::now() {
            let page = list.request("tools/list", json!({})).await.result();
            if page.get("nextCursor").is_some() {
                return times;
            }
            next_look = Instant::now() + Duration::from_millis(100);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_a_list_as_long_as_any_may_be_holds_up_nobody_else_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let items = 1_000_000;
    let lab = Lab::new().stdio("many", json!({ "walk": "pages" })).http("fine", json!({})).await;
    let limits = "[defaults.limits]\nmax_items = 1000000\nmax_pages = 200\nmax_list = \"1GiB\"\n\
                  [defaults.timeouts]\nlist = \"5m\"\n";
    let weir = lab.serve_all(limits).await;
    let storm = json!({ "text": CHANGED, "per_second": 1 });
    lab.evil("many").script(json!({ "walk": "pages", "more_tools": items, "storm": storm }));
    let begin = Instant::now();
    let mut times = calls_until_list(&weir).await;
    times.sort();
    let [median, p99, longest] =
        [times.len() / 2, times.len() * 99 / 100, times.len() - 1].map(|at| times[at]);
    eprintln!(
        "F-41: {items} items listed in {:?}; {} calls meanwhile: median {median:?}, p99 {p99:?}, longest {longest:?}",
        begin.elapsed(),
        times.len()
    );
    // Weir would process such a list in one go in a few microseconds per item.
    assert!(longest < Duration::from_millis(250), "{longest:?}");
    weir.stop().await;
}

#[tokio::test]
async fn f42_f43_f44_a_cursor_is_nobodys_business_but_its_servers() {
    let _turn = beside_others().await;
    let lab = fleet(&json!({ "walk": "odd" })).await;
    let weir = lab.serve_all("").await;
    for evil in lab.evils() {
        let expected = ["call", "t1", "t2", "t3", "t4", "t5", "t6", "t7"];
        assert_eq!(tools_of(&weir, &evil.name).await, expected, "{}", evil.name);
    }
    weir.stop().await;

    let lab = fleet(&json!({ "walk": "same_cursor" })).await;
    let weir = lab.serve_all("").await;
    for evil in lab.evils() {
        assert_eq!(tools_of(&weir, &evil.name).await.len(), 11, "{}", evil.name);
    }
    weir.stop().await;
}

#[tokio::test]
async fn f45_a_cursor_that_is_refused_begins_the_walk_again_once() {
    let _turn = beside_others().await;
    let lab = fleet(&json!({ "walk": "refused_once" })).await;
    let weir = lab.serve_all("").await;
    for evil in lab.evils() {
        assert_eq!(tools_of(&weir, &evil.name).await, ["call", "t1"], "{}", evil.name);
        // The refused walk, the one that begins again, and no third one for the same list.
        let walks = evil.walks();
        assert!(walks.starts_with(&[2, 2]), "{}: {walks:?}", evil.name);
        assert!(walks.iter().all(|pages| *pages <= 2), "{}: {walks:?}", evil.name);
        assert!(walks.len() <= 1 + most_lists(&evil.name), "{}: {walks:?}", evil.name);
    }
    weir.stop().await;

    // When every cursor is rejected, the previous list stays.
    let lab = fleet(&json!({})).await;
    let weir = lab.serve_all("").await;
    for evil in lab.evils() {
        let script = std::fs::read(lab.folder().join(&evil.name).join("script.json")).unwrap();
        let mut script: Value = serde_json::from_slice(&script).unwrap();
        script["walk"] = "refused".into();
        script["storm"] = json!({ "text": CHANGED, "per_second": 100 });
        evil.script(script);
    }
    for evil in lab.evils().iter().filter(|evil| !evil.name.contains("modern")) {
        until("it is walked twice", || evil.times("tools/list") >= 5).await;
        assert_eq!(tools_of(&weir, &evil.name).await, ["call"], "{}", evil.name);
    }
    weir.stop().await;
}

#[tokio::test]
async fn f47_of_a_name_that_comes_twice_the_first_counts() {
    let _turn = beside_others().await;
    let lab = fleet(&json!({ "walk": "twice" })).await;
    let weir = lab.serve_all("").await;
    let list = weir.client(Revision::MODERN).await.request("tools/list", json!({})).await.result();
    let tools = list["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 4 * lab.evils().len());
    assert!(tools.iter().all(|tool| tool["title"] == "first"), "{list}");
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f48_f49_a_storm_of_notices_costs_a_list_a_second_and_its_last_change_is_seen_soon() {
    let _turn = alone_by_night().await;
    let seconds = if by_night() { 60 } else { 4 };
    let lab = fleet(&json!({})).await;
    let weir = lab.serve_all("").await;
    let storming: Vec<_> =
        lab.evils().iter().filter(|evil| !evil.name.contains("modern")).collect();
    let script = |evil: &crate::lab::evil::Evil, more: Value| {
        let mut script = json!({});
        if evil.name == "pair" {
            script = json!({ "pair": true, "revision": "2024-11-05" });
        }
        script.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        evil.script(script);
    };
    let storm = json!({ "text": CHANGED, "per_second": 10_000 });
    // Nothing changes, so no client is notified.
    let listening = weir.listen().await;
    let before: Vec<_> = storming.iter().map(|evil| evil.times("tools/list")).collect();
    storming.iter().for_each(|evil| script(evil, json!({ "storm": storm })));
    let (begin, cpu_time) = (Instant::now(), weir.cpu_time());
    while begin.elapsed() < Duration::from_secs(seconds) {
        assert!(weir.call("modern", json!({})).await.0.is_result());
    }
    let cpu_time = (weir.cpu_time() - cpu_time).as_secs_f64() / begin.elapsed().as_secs_f64();
    let mut read = Vec::new();
    for (evil, before) in storming.iter().zip(before) {
        read.push(evil.times("tools/list") - before);
    }
    // The time until the lists have been counted, because the storm goes on.
    let seconds = begin.elapsed().as_secs_f64().round() as usize;
    assert_eq!(listening.changes(), 0, "nothing has changed");
    assert!(read.iter().all(|read| *read <= 2 + seconds), "{read:?} in {seconds} s");
    // A change comes in the middle of the storm, followed by silence.
    storming.iter().for_each(|evil| script(evil, json!({ "more_tools": 3 })));
    let begin = Instant::now();
    for evil in &storming {
        while tools_of(&weir, &evil.name).await.len() != 4 {
            assert!(begin.elapsed() < Duration::from_secs(60), "the last change of {}", evil.name);
            script(evil, json!({ "more_tools": 3, "storm": storm }));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let seen = begin.elapsed();
    until("they are notified", || listening.changes() > 0).await;
    let changes = listening.changes();
    eprintln!(
        "F-48: {read:?} lists in {seconds} s, {cpu_time:.2} of a processor, the change seen after {seen:?}, notified {changes} times"
    );
    assert!(changes <= 2 + usize::try_from(begin.elapsed().as_secs()).unwrap(), "{changes}");
    weir.stop().await;
}

#[tokio::test]
async fn f50_a_server_that_announces_a_change_with_every_list_is_not_listed_for_ever() {
    let _turn = beside_others().await;
    let lab = fleet(&json!({ "restless": true })).await;
    let weir = lab.serve_all("").await;
    let begin = Instant::now();
    // By night the test lasts until the pause between two lists has reached its maximum.
    let seconds = if by_night() { 150 } else { 5 };
    let mut client = weir.client(Revision::MODERN).await;
    while begin.elapsed() < Duration::from_secs(seconds) {
        client.tools().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let listed: Vec<_> = lab.evils().iter().map(|evil| evil.times("tools/list")).collect();
    let seconds = begin.elapsed().as_secs() as usize;
    eprintln!("F-50: {listed:?} lists in {seconds} s");
    let most = if by_night() { 12 } else { 3 + seconds };
    assert!(listed.iter().all(|listed| *listed <= most), "{listed:?}");
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_all_who_listen_are_told_of_a_change() {
    let _turn = alone_by_night().await;
    let listeners = if by_night() { 100 } else { 30 };
    let lab = Lab::new().stdio("a", json!({}));
    let weir = lab.serve_all("").await;
    let mut listening = Vec::new();
    for _ in 0..listeners {
        listening.push(weir.listen().await);
    }
    lab.evil("a")
        .script(json!({ "more_tools": 1, "storm": { "text": CHANGED, "per_second": 100 } }));
    let took = until("all are notified", || listening.iter().all(|it| it.changes() > 0)).await;
    eprintln!("F-51: {listeners} listeners notified within {took:?}");
    assert!(took < bound(20_000, 2_000), "{took:?}");
    weir.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_long_lists_of_many_upstreams_are_walked_quickly() {
    let _turn = alone_by_night().await;
    let each = if by_night() { 10_000 } else { 1_000 };
    let mut lab = Lab::new();
    for number in 0..10 {
        lab = lab.stdio(&format!("u{number}"), json!({ "more_tools": each - 1 }));
    }
    let calm = weir_without_upstreams().await;
    let weir = lab.serve_all("[protocol]\npage_size = 1000\n").await;
    let mut client = weir.client(Revision::MODERN).await;
    let begin = Instant::now();
    let tools = client.tools().await;
    let took = begin.elapsed();
    let bytes = tools.len() as u64 * 70;
    let more = weir.resources().resident_bytes.saturating_sub(calm);
    eprintln!("F-52: {} tools in {took:?}, {more} bytes for {bytes} bytes of JSON", tools.len());
    assert_eq!(tools.len(), 10 * each);
    assert!(took < bound(30_000, 2_000), "{took:?}");
    weir.stop().await;
}

/// Memory of the program without upstreams.
async fn weir_without_upstreams() -> u64 {
    let lab = Lab::new().stdio("only", json!({}));
    let weir = lab.serve_all("").await;
    let resident = weir.resources().resident_bytes;
    weir.stop().await;
    resident
}

// === F-89: cursors and states of another version ===

#[tokio::test]
async fn f89_what_another_version_has_written_is_refused_in_words_and_the_walk_begins_again() {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;

    let _turn = beside_others().await;
    let lab = Lab::new().stdio("a", json!({ "more_tools": 9 }));
    let weir = lab.serve_all("[protocol]\npage_size = 3\n").await;
    for revision in [Revision::LEGACY, Revision::MODERN] {
        let mut client = weir.client(revision).await;
        let page = client.request("tools/list", json!({})).await.result();
        let cursor = BASE64_URL_SAFE_NO_PAD.decode(page["nextCursor"].as_str().unwrap()).unwrap();
        for version in 0..=u8::MAX {
            // The only certain property of such a cursor is that its first byte is the format
            // version.
            let other = [&[version], &cursor[1..]].concat();
            let params = json!({ "cursor": BASE64_URL_SAFE_NO_PAD.encode(&other) });
            let outcome = client.request("tools/list", params).await;
            match version == cursor[0] {
                true => assert!(outcome.is_result(), "{outcome:?}"),
                false => assert_eq!(outcome.code(), -32602, "{version}: {outcome:?}"),
            }
        }
        assert_eq!(client.tools().await.len(), 10);
    }
    // A suspended call is stored under a random number that another process does not know.
    let mut client = weir.client(Revision::MODERN).await;
    let params = json!({
        "name": "a__call", "arguments": { "nonce": "1" },
        "requestState": "x".repeat(43), "inputResponses": {},
    });
    let outcome = client.request("tools/call", params).await;
    assert_eq!(outcome.code(), -32602, "{outcome:?}");
    assert!(lab.evil("a").executions().is_empty());
    weir.stop().await;
}
