//! The store is away, does not reply, or has come back empty.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::lab::client::{Client, Outcome, Revision};
use crate::lab::night::bound;
use crate::lab::store::TestStore;
use crate::lab::store_set::DelayingProxy;
use crate::lab::{PATIENCE, by_night, check_times, until};
use crate::replicas::{DEFAULT_STORE_WAIT, HUB, Replicas};
use crate::strangers::clients;

/// Longest duration of a call that has to wait for the store once, at most 50 ms. By day it is less
/// than a connection to the store may take.
pub(crate) fn one_wait() -> Duration {
    bound(1_500, 90)
}

#[tokio::test]
async fn c09_a_store_that_is_away_or_empty_ends_nothing() {
    let mut replicas = Replicas::start_impatient(3).await;
    replicas.alone_by_night().await;
    let mut client = replicas.legacy(0).await;
    let other = replicas.legacy(1).await;
    let id = client.session().expect("a session").to_owned();
    let mut check = async |replicas: &Replicas, when: &str| {
        let mut took = Vec::new();
        for number in 0..3 {
            client.move_to(&replicas[number].address);
            let begin = Instant::now();
            let outcome = client.call(HUB, json!({})).await;
            assert!(outcome.is_result(), "{when}, {number}: {outcome:?}");
            took.push(begin.elapsed());
        }
        check_times(when, took, one_wait());
    };
    check(&replicas, "before").await;
    replicas.store.signal(Signal::STOP);
    check(&replicas, "stopped").await;
    replicas.store.signal(Signal::CONT);
    check(&replicas, "goes on").await;
    replicas.store.kill().await;
    check(&replicas, "killed").await;
    replicas.store.restart().await;
    check(&replicas, "empty").await;
    replicas.wait_until_known(3).await;
    check(&replicas, "filled again").await;
    // No replica has taken it over meanwhile: its claim would be in the store.
    replicas.check_all_live("while the store was away");
    // Without the store, a session of a replica that has ended goes on.
    replicas.store.kill().await;
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result());
    assert_eq!(client.session(), Some(&*id));
    drop(other);
    replicas.store.restart().await;
    until("its claim is recorded", || replicas.claims() == 1).await;
}

#[tokio::test]
async fn c24_a_replica_that_starts_while_the_store_is_away_serves_and_joins_later() {
    let mut replicas = Replicas::start(1).await;
    let mut client = replicas.legacy(0).await;
    replicas.store.kill().await;
    let new = replicas.add().await;
    client.move_to(&replicas[new].address);
    // The new replica cannot know where the session is, and serves it.
    assert!(client.call(HUB, json!({})).await.is_result());
    assert!(replicas[new].client(Revision::MODERN).await.call(HUB, json!({})).await.is_result());
    replicas.store.restart().await;
    replicas.wait_until_known(2).await;
    for number in [0, 1] {
        client.move_to(&replicas[number].address);
        assert!(client.call(HUB, json!({})).await.is_result(), "{number}");
    }
}

#[tokio::test]
async fn a_session_without_a_claim_that_has_left_the_memory_is_not_claimed_later() {
    let config = format!("[server.per_client]\nsessions = 2\n{}", clients());
    let mut replicas = Replicas::start_with(2, &config, "").await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let address = &replicas[0].address;
        clients.push(Client::http(address, Revision::LEGACY, Some("ann-of-sales")).await);
    }
    replicas.store.kill().await;
    replicas.kill(0).await;
    for client in &mut clients {
        client.move_to(&replicas[1].address);
        assert!(client.request("ping", json!({})).await.is_result());
    }
    replicas.store.restart().await;
    replicas.wait_until_known(1).await;
    until("those in memory are claimed", || replicas.claims() >= 2).await;
    replicas.wait_until_known(1).await;
    assert_eq!(replicas.claims(), 2);
}

#[tokio::test]
async fn a_store_that_is_full_of_claims_ends_nothing() {
    let mut replicas = Replicas::start(2).await;
    let mut client = replicas.legacy(0).await;
    let fill = "for i = 1, 100000 do redis.call('HSET', KEYS[1], i, 'x') end return 1";
    assert_eq!(replicas.store.run::<usize>(&["EVAL", fill, "1", "{weir}:claims"]), 1);
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result());
    assert_eq!(replicas.claims(), 100_000);
}

#[tokio::test]
async fn c09_a_store_without_memory_ends_nothing_and_is_still_told_who_lives() {
    let mut replicas = Replicas::start(2).await;
    replicas.alone_by_night().await;
    let mut client = replicas.legacy(0).await;
    let id = client.session().expect("a session").to_owned();
    let now = |replicas: &Replicas| replicas.store.run::<Vec<String>>(&["TIME"])[0].clone();
    let number = |text: String| text.parse::<u64>().expect("seconds");
    replicas.store.run::<String>(&["CONFIG", "SET", "maxmemory", "1"]);
    let (begin, mut took) = (number(now(&replicas)), Vec::new());
    // Longer than the records live.
    while number(now(&replicas)) < begin + 7 {
        for number in [0, 1] {
            client.move_to(&replicas[number].address);
            let begin = Instant::now();
            assert!(client.call(HUB, json!({})).await.is_result(), "{number}");
            took.push(begin.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    check_times("without memory", took, one_wait());
    assert_eq!(replicas.store.run::<usize>(&["HLEN", "{weir}:members"]), 2);
    // What has no space is served nevertheless, and written when there is some.
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result());
    assert_eq!(client.session(), Some(&*id));
    assert_eq!(replicas.claims(), 0);
    replicas.store.run::<String>(&["CONFIG", "SET", "maxmemory", "0"]);
    until("its claim is recorded", || replicas.claims() == 1).await;
}

#[tokio::test]
async fn c09_a_store_that_replies_late_keeps_no_request_twice_and_ends_nothing() {
    let store = TestStore::start().await;
    let delay = DelayingProxy::start(store.port).await;
    let limit = "[[limits]]\nrate = \"100000/s\"\nper = \"client\"\n";
    let mut replicas = Replicas::prepare(store, limit, "").await;
    replicas.store.access = Some(format!("{{ url = \"redis://127.0.0.1:{}\" }}", delay.port));
    replicas.store_wait = DEFAULT_STORE_WAIT;
    replicas.add_all(2).await;
    replicas.alone_by_night().await;
    let mut client = replicas.legacy(0).await;
    // In time, and never in time; by night longer than the records live.
    let long = if by_night() { 7 } else { 2 };
    for (millis, time) in [(20, 2), (60, long), (400, long)] {
        delay.set(Duration::from_millis(millis));
        let (begin, mut took) = (Instant::now(), Vec::new());
        while begin.elapsed() < Duration::from_secs(time) {
            for number in [0, 1] {
                client.move_to(&replicas[number].address);
                let begin = Instant::now();
                assert!(client.call(HUB, json!({})).await.is_result(), "{millis} ms, {number}");
                took.push(begin.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        check_times(&format!("{millis} ms"), took, one_wait());
        replicas.check_all_live(&format!("{millis} ms"));
    }
    delay.set(Duration::ZERO);
    replicas.wait_until_known(2).await;
    let (_, text) = replicas.command(0, "status");
    assert!(text.contains("2 replicas, store connected"), "{text}");
}

#[tokio::test]
async fn c09_a_store_that_stands_still_almost_as_long_as_records_live_ends_nobody() {
    let mut replicas = Replicas::start_impatient(3).await;
    let mut clients = Vec::new();
    for number in 0..3 {
        clients.push(replicas.legacy(number).await);
    }
    replicas.store.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    replicas.store.signal(Signal::CONT);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        for (number, client) in clients.iter_mut().enumerate() {
            client.move_to(&replicas[(number + 1) % 3].address);
            assert!(client.call(HUB, json!({})).await.is_result(), "{number}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    replicas.check_all_live("after the store stood still");
    replicas.take(0).stop().await;
}

#[tokio::test]
async fn c05_a_replica_that_stands_still_keeps_no_request_for_long_and_learns_of_its_loss() {
    let mut replicas = Replicas::start(2).await;
    replicas.alone_by_night().await;
    let mut client = replicas.through(1, async || replicas.legacy(0).await).await;
    let before = replicas.claims();
    replicas[0].signal(Signal::STOP);
    // This one is sent over a connection that stands, and nobody can know whether it is executed.
    let begin = Instant::now();
    let outcome = client.call(HUB, json!({ "nonce": "unknown" })).await;
    let took = begin.elapsed();
    let Outcome::Error { message, .. } = &outcome else { panic!("{outcome:?} after {took:?}") };
    assert!(message.contains("may have been executed"), "{message}");
    let begin = Instant::now();
    assert!(client.call(HUB, json!({})).await.is_result());
    eprintln!("case 5: {took:?} until it counts as gone, then {:?}", begin.elapsed());
    // By day a busy machine may keep a replica from its store, and then nothing counts as gone for
    // some seconds. It ends nevertheless, while the replica stands still.
    let (soon, at_once) = (Duration::from_secs(8), Duration::from_secs(2));
    assert!(!by_night() || took < soon && begin.elapsed() < at_once, "{took:?}");
    // Without a claim it would go back to the one that comes back.
    until("its claim is recorded", || replicas.claims() == before + 1).await;
    replicas[0].signal(Signal::CONT);
    replicas.wait_until_known(2).await;
    client.move_to(&replicas[0].address);
    assert!(client.call(HUB, json!({ "nonce": "after" })).await.is_result());
    assert_eq!((replicas.executions("after"), replicas.claims()), (1, before + 1));
    replicas.take(1).stop().await;
}

#[tokio::test]
async fn what_a_client_has_set_is_restored_once_the_store_can_be_read() {
    let mut replicas = Replicas::prepare(TestStore::start().await, "", "").await;
    replicas.store_wait = DEFAULT_STORE_WAIT;
    replicas.script_logging();
    replicas.add_all(2).await;
    let mut client = replicas.legacy(0).await;
    client.request("logging/setLevel", json!({ "level": "error" })).await.result();
    until("the settings are written", || replicas.store.dump().contains("settings:")).await;
    replicas.store.signal(Signal::STOP);
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result(), "without a claim");
    let mut stream = client.notifications().await.expect("it opens");
    replicas.store.signal(Signal::CONT);
    replicas.store.run::<usize>(&["HSET", "{weir}:steady", "since", "0"]);
    // Its stream ends, so that the client opens it again.
    let ended = async { while stream.try_next().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("in time");
    assert_eq!(replicas.claims(), 1);
    let log = |level: &str| {
        let params = json!({ "level": level, "data": level });
        json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }).to_string()
    };
    let fault = json!({ "before": [log("warning"), log("error")] }).to_string();
    let params = json!({ "name": format!("{HUB}__call"), "arguments": { "fault": fault } });
    let mut messages = client.open("tools/call", params).await;
    assert_eq!(messages.next().await["params"]["level"], "error", "no warning");
}
