//! Ends of sessions: they last as long as the ids, whatever happens to the replica that answered,
//! to the owner and to the store, and cost other clients nothing.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use crate::lab::client::Client;
use crate::lab::store::TestStore;
use crate::lab::until;
use crate::replicas::{HUB, Replicas};

/// Number of blocks of ended sessions in the store.
fn blocks(replicas: &Replicas) -> usize {
    replicas.store.run(&["HLEN", "{weir}:ended"])
}

/// Checks that a session has ended on all replicas.
async fn check_ended(replicas: &Replicas, client: &mut Client, when: &str) {
    for number in replicas.numbers().collect::<Vec<_>>() {
        client.move_to(&replicas[number].address);
        let outcome = client.request("ping", json!({})).await;
        assert!(!outcome.is_result(), "{when}, {number}: {outcome:?}");
    }
}

#[tokio::test]
async fn many_ends_of_one_client_take_no_claim_and_hold_up_neither_ends_nor_takeovers_of_others() {
    let mut replicas = Replicas::start(2).await;
    let mut other = replicas.legacy(0).await;
    let mut ended = replicas.legacy(0).await;
    for _ in 0..300 {
        let mut client = replicas.legacy(0).await;
        assert_eq!(client.end_session().await, 204);
    }
    assert_eq!(ended.end_session().await, 204);
    // One process has numbered all of them in turn.
    assert_eq!((blocks(&replicas), replicas.claims()), (1, 0));
    replicas.wait_until_known(2).await;
    replicas.kill(0).await;
    check_ended(&replicas, &mut ended, "after the kill").await;
    other.move_to(&replicas[1].address);
    assert!(other.call(HUB, json!({})).await.is_result());
    until("its claim is recorded", || replicas.claims() == 1).await;
}

#[tokio::test]
async fn the_settings_of_a_session_leave_the_store_at_its_end() {
    let mut replicas = Replicas::prepare(TestStore::start().await, "", "").await;
    replicas.script_logging();
    replicas.add_all(2).await;
    let settings = || replicas.store.run::<Vec<String>>(&["KEYS", "{weir}:settings:*"]).len();
    for end_at in [0, 1] {
        let mut client = replicas.legacy(0).await;
        client.request("logging/setLevel", json!({ "level": "error" })).await.result();
        until("they are recorded", || settings() == 1).await;
        client.move_to(&replicas[end_at].address);
        assert_eq!(client.end_session().await, 204);
        until("they are dropped", || settings() == 0).await;
    }
}

#[tokio::test]
async fn an_end_while_the_store_stands_still_is_written_after_the_replica_has_been_killed() {
    let mut replicas = Replicas::start_impatient(2).await;
    let mut client = replicas.legacy(0).await;
    replicas.store.signal(Signal::STOP);
    assert_eq!(client.end_session().await, 204);
    replicas.kill(0).await;
    replicas.store.signal(Signal::CONT);
    // It has the end in its state folder.
    replicas.restart(0).await;
    until("the end is recorded", || blocks(&replicas) == 1).await;
    replicas.wait_until_known(2).await;
    check_ended(&replicas, &mut client, "after the restart").await;
}

#[tokio::test]
async fn the_replica_that_sent_an_end_on_keeps_it_as_well_as_the_owner() {
    let mut replicas = Replicas::start_impatient(2).await;
    let mut client = replicas.legacy(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.request("ping", json!({})).await.is_result());
    replicas.store.signal(Signal::STOP);
    assert_eq!(client.end_session().await, 204);
    // The owner does not come back.
    replicas.kill(0).await;
    replicas.store.signal(Signal::CONT);
    until("the end is recorded", || blocks(&replicas) == 1).await;
    replicas.restart(0).await;
    replicas.wait_until_known(2).await;
    check_ended(&replicas, &mut client, "after the kill").await;
}

#[tokio::test]
async fn an_end_that_nobody_can_keep_is_no_success_until_the_store_is_back() {
    let replicas = Replicas::start_impatient(1).await;
    let mut client = replicas.legacy(0).await;
    // No file can be made where a folder stands.
    let file = replicas.folder(0).join("state/weir/sessions");
    fs::create_dir_all(file.join("x")).expect("made");
    replicas.store.signal(Signal::STOP);
    assert_eq!(client.end_session().await, 503);
    assert_eq!(client.end_session().await, 503, "nor when it is repeated");
    replicas.store.signal(Signal::CONT);
    until("the end is recorded", || blocks(&replicas) == 1).await;
    assert_eq!(client.end_session().await, 404);
}

#[tokio::test]
async fn a_store_that_is_full_of_ends_refuses_none_that_a_replica_can_keep() {
    let mut replicas = Replicas::start(1).await;
    let mut client = replicas.legacy(0).await;
    let fill = "for i = 1, 500000 do redis.call('HSET', KEYS[1], i, 'x') end return 1";
    assert_eq!(replicas.store.run::<usize>(&["EVAL", fill, "1", "{weir}:ended"]), 1);
    assert_eq!(client.end_session().await, 204);
    replicas.kill(0).await;
    replicas.restart(0).await;
    check_ended(&replicas, &mut client, "after the restart").await;
    assert_eq!(blocks(&replicas), 500_000);
    replicas.store.run::<usize>(&["DEL", "{weir}:ended"]);
    until("the end is recorded", || blocks(&replicas) == 1).await;
}

#[tokio::test]
async fn ends_and_takeovers_that_the_store_has_lost_are_written_again_before_the_owner_restarts() {
    let mut replicas = Replicas::start(3).await;
    let (mut ended, mut moved) = (replicas.legacy(0).await, replicas.legacy(1).await);
    assert_eq!(ended.end_session().await, 204);
    replicas.kill(1).await;
    moved.move_to(&replicas[2].address);
    assert!(moved.call(HUB, json!({})).await.is_result());
    until("both are recorded", || (blocks(&replicas), replicas.claims()) == (1, 1)).await;
    // What is recorded is known to all once they have had a heartbeat.
    replicas.wait_until_known(2).await;
    replicas.store.run::<String>(&["FLUSHALL"]);
    until("the end is written again", || blocks(&replicas) == 1).await;
    replicas.kill(0).await;
    replicas.restart(0).await;
    replicas.restart(1).await;
    replicas.wait_until_known(3).await;
    check_ended(&replicas, &mut ended, "after the restart").await;
    for number in 0..3 {
        moved.move_to(&replicas[number].address);
        assert!(moved.call(HUB, json!({})).await.is_result(), "{number}");
    }
}

#[tokio::test]
async fn a_heartbeat_reads_nothing_again_that_has_not_changed() {
    let mut replicas = Replicas::start(3).await;
    let mut clients = Vec::new();
    for _ in 0..CLAIMS {
        clients.push(replicas.legacy(0).await);
    }
    replicas.kill(0).await;
    for client in &mut clients {
        client.move_to(&replicas[1].address);
        assert!(client.request("ping", json!({})).await.is_result());
    }
    until("all are claimed", || replicas.claims() == CLAIMS).await;
    replicas.wait_until_known(2).await;
    // Each claim that is read is one command in the store.
    let read = || {
        let stats: String = replicas.store.run(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hget:calls="));
        let (calls, _) = calls.and_then(|it| it.split_once(',')).expect("they were counted");
        calls.parse::<usize>().expect("a number")
    };
    let before = read();
    // Two heartbeats of each replica at least. Before there were sums, each tenth one read all.
    for _ in 0..6 {
        replicas.wait_until_known(2).await;
    }
    let again = read() - before;
    assert!(again < CLAIMS, "{again} of {CLAIMS} were read again");
}

/// Fewer than a client takes over in a second.
const CLAIMS: usize = 60;
