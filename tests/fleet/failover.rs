//! The store fails over: sentinels choose another primary, or the slot of the fleet goes to another
//! node of a cluster.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::access::rights;
use crate::away::one_wait;
use crate::lab::client::Client;
use crate::lab::store::TestStore;
use crate::lab::store_set::{ClusterSet, LONG, PRIMARY, SHORT, SentinelSet, wait_for_nodes};
use crate::lab::{PATIENCE, by_night, check_times, until};
use crate::replicas::{DEFAULT_STORE_WAIT, HUB, Replicas, try_weir};

/// Longest time until all replicas use a server that has become the primary. Each tries once a
/// second.
const SOON: Duration = Duration::from_secs(5);

/// Starts two replicas on a store, and opens a session.
async fn start(store: TestStore) -> (Replicas, Client) {
    let mut replicas = Replicas::prepare(store, "", "").await;
    replicas.store_wait = DEFAULT_STORE_WAIT;
    replicas.add_all(2).await;
    replicas.alone_by_night().await;
    let client = replicas.legacy(0).await;
    (replicas, client)
}

/// Makes calls through all replicas until a condition holds. No call fails, and none waits for the
/// store twice.
async fn call_until(
    replicas: &Replicas,
    client: &mut Client,
    what: &str,
    is_so: impl Fn() -> bool,
) {
    let (begin, mut took) = (Instant::now(), Vec::new());
    while !is_so() {
        for number in 0..2 {
            client.move_to(&replicas[number].address);
            let begin = Instant::now();
            let outcome = client.call(HUB, json!({})).await;
            assert!(outcome.is_result(), "{what}, {number}: {outcome:?}");
            took.push(begin.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
    }
    check_times(what, took, one_wait());
}

/// Checks that all replicas soon write their records into a server that has become the primary, and
/// that none has counted as dead.
async fn check_all_use_it(replicas: &Replicas, client: &mut Client) {
    let failed = || [0, 1].map(|number| replicas.store_errors_of(number));
    let (begin, failed_before) = (Instant::now(), failed());
    let members = || replicas.store.run::<Vec<String>>(&["HGETALL", "{weir}:members"]);
    let before = members();
    let is_new = |now: &[String]| !before.chunks_exact(2).any(|before| before == now);
    call_until(replicas, client, "all use the new primary", || {
        let now = members();
        now.len() == 4 && now.chunks_exact(2).all(is_new)
    })
    .await;
    let took = begin.elapsed();
    let attempts = [0, 1].map(|at| failed()[at] - failed_before[at]);
    eprintln!("{took:?} until all use the new primary, {attempts:?} attempts failed");
    // The counts were read after that time.
    let most = begin.elapsed().as_secs() + 1;
    assert!(attempts.iter().all(|attempts| *attempts <= most), "{attempts:?} of {most}");
    // By day a busy machine may take its time.
    assert!(!by_night() || took < SOON, "{took:?}");
    replicas.check_all_live("after a failover");
}

/// Kills a replica, whose session goes on with a claim in the new primary.
async fn check_claim(mut replicas: Replicas, mut client: Client) {
    replicas.wait_until_known(2).await;
    replicas.kill(0).await;
    client.move_to(&replicas[1].address);
    assert!(client.call(HUB, json!({})).await.is_result());
    until("its claim is recorded", || replicas.claims() == 1).await;
}

#[tokio::test]
async fn c09_a_primary_that_was_killed_is_replaced_by_the_one_that_the_sentinels_name() {
    let (store, mut set) = SentinelSet::start(rights()).await;
    let port = store.port;
    let (mut replicas, mut client) = start(store).await;
    set.wait_for_servers(SHORT);
    replicas.store.kill().await;
    call_until(&replicas, &mut client, "failed over", || set.primary_port() != port).await;
    set.wait_for_servers(LONG);
    let primary = set.take_primary();
    replicas.store.port = primary.port;
    check_all_use_it(&replicas, &mut client).await;
    check_claim(replicas, client).await;
}

#[tokio::test]
async fn a_check_says_what_is_wrong_with_sentinels() {
    let (store, mut set) = SentinelSet::start(rights()).await;
    let mut replicas = Replicas::prepare(store, "", "").await;
    replicas.reserve();
    let check = |replicas: &Replicas| {
        replicas.configure(0, "");
        let (code, out, error) = try_weir(&["check", "--config", &replicas.config(0)]);
        (code, format!("{out}{error}"))
    };
    let (code, text) = check(&replicas);
    assert!(code == 0 && text.contains("append-only"), "{text}");
    let working = replicas.store.table();
    for (table, what) in [
        (set.table("other", "hunter3"), "knows no primary with the name other"),
        (set.table(PRIMARY, "wrong"), "check username and password"),
        (
            set.table(PRIMARY, "hunter3").replace("sentinel =", "ca = \"missing\", sentinel ="),
            "missing",
        ),
        (format!("{{ url = \"redis://127.0.0.1:{}\" }}", set.followers[0].port), "fleet.store.url"),
    ] {
        replicas.store.access = Some(table);
        let (code, text) = check(&replicas);
        assert!(code != 0 && text.contains(what) && text.contains("fleet.store"), "{what}: {text}");
        assert!(!text.contains("hunter"), "{text}");
    }
    replicas.store.access = Some(working);
    set.kill_sentinels(2).await;
    assert_eq!(check(&replicas).0, 0, "one is enough");
    set.kill_sentinels(3).await;
    let (code, text) = check(&replicas);
    assert!(code != 0 && text.contains("fleet.store.sentinel"), "{text}");
}

#[tokio::test]
async fn c09_the_node_of_a_cluster_that_has_the_slot_of_the_fleet_is_followed() {
    let (store, mut set) = ClusterSet::start().await;
    let (mut replicas, mut client) = start(store).await;
    let follower = set.others.pop().expect("it replicates the owner");
    set.others.iter().chain([&follower, &replicas.store]).for_each(|it| wait_for_nodes(it, SHORT));
    replicas.store.kill().await;
    call_until(&replicas, &mut client, "failed over", || {
        follower.run::<String>(&["INFO", "replication"]).contains("role:master")
    })
    .await;
    set.others.iter().chain([&follower]).for_each(|it| wait_for_nodes(it, LONG));
    replicas.store.port = follower.port;
    check_all_use_it(&replicas, &mut client).await;
    // A slot that is moved is followed as well.
    set.move_slot(&follower, &set.others[0]).await;
    replicas.store.port = set.others[0].port;
    check_all_use_it(&replicas, &mut client).await;
    check_claim(replicas, client).await;
}

#[tokio::test]
async fn a_check_says_what_is_wrong_with_a_cluster() {
    let (store, set) = ClusterSet::start().await;
    let mut replicas = Replicas::prepare(store, "", "").await;
    replicas.reserve();
    let check = |replicas: &Replicas| {
        replicas.configure(0, "");
        let (code, out, error) = try_weir(&["check", "--config", &replicas.config(0)]);
        (code, format!("{out}{error}"))
    };
    assert_eq!(check(&replicas).0, 0);
    let [owner, other] = [&replicas.store, &set.others[0]].map(TestStore::url);
    let alone = TestStore::start().await;
    for (table, is_usable, what) in [
        (format!("{{ url = {owner:?} }}"), true, "cluster = true"),
        (format!("{{ url = {other:?} }}"), false, "fleet.store.cluster"),
        (
            format!("{{ url = {:?}, cluster = true }}", alone.url()),
            true,
            "remove fleet.store.cluster",
        ),
    ] {
        replicas.store.access = Some(table);
        let (code, text) = check(&replicas);
        assert!((code == 0) == is_usable && text.contains(what), "{what}: {text}");
    }
    replicas.store.access = Some(format!("{{ url = {other:?}, cluster = true }}"));
    replicas.store.run::<()>(&["CLUSTER", "DELSLOTS", &set.slot]);
    let (code, text) = check(&replicas);
    assert!(code != 0 && text.contains("slot of the fleet"), "{text}");
}

#[tokio::test]
async fn a_server_that_takes_no_writes_any_more_gets_a_new_connection() {
    let mut replicas = Replicas::start(1).await;
    let received = |store: &TestStore| {
        let info: String = store.run(&["INFO", "stats"]);
        let line = info.lines().find_map(|it| it.strip_prefix("total_connections_received:"));
        line.and_then(|it| it.trim().parse::<usize>().ok()).expect("a number")
    };
    let port = replicas.store.port.to_string();
    let before = received(&replicas.store);
    replicas.store.run::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    // Each query of the test is a connection, too.
    let queries = std::cell::Cell::new(2);
    until("it connects anew", || {
        queries.set(queries.get() + 1);
        received(&replicas.store) > before + queries.get()
    })
    .await;
    let (code, text) = replicas.command(0, "check");
    assert!(code != 0 && text.contains("it is a replica"), "{text}");
    replicas.store.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    replicas.wait_until_known(1).await;
    replicas.store.signal(Signal::TERM);
    replicas.take(0).stop().await;
}
