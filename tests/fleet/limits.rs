//! Limits that all replicas count together, and what holds of them while the store is away.

use std::time::{Duration, Instant};

use futures::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::lab::client::{Outcome, Revision};
use crate::lab::store::TestStore;
use crate::lab::store_set::DelayingProxy;
use crate::lab::{PATIENCE, by_night, until};
use crate::replicas::{DEFAULT_STORE_WAIT, HUB, Replicas};

/// Within the hour that the next one takes, no test ends.
const RATE: &str =
    "[[limits]]\nper = \"global\"\nmethod = \"tools/call\"\nrate = \"1/h\"\nburst = 90\n";
const SLOTS: &str = "[[limits]]\nper = \"role\"\nmethod = \"tools/call\"\nconcurrency = 4\n";

/// Makes `count` calls over all replicas in turn, several at a time, and returns how many were
/// admitted.
async fn admitted(replicas: &Replicas, count: usize) -> usize {
    let one = async |first: usize| {
        let mut client = replicas[first % 3].client(Revision::MODERN).await;
        let mut admitted = 0;
        for number in 0..count / 12 {
            client.move_to(&replicas[(first + number) % 3].address);
            let outcome = client.call(HUB, json!({})).await;
            assert!(outcome.is_result() || outcome.code() == 4290, "{outcome:?}");
            admitted += usize::from(outcome.is_result());
        }
        admitted
    };
    join_all((0..12).map(one)).await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c19_a_rate_is_exact_over_all_replicas() {
    let replicas = Replicas::start_with(3, RATE, "").await;
    let calls = if by_night() { 10_000 } else { 600 };
    assert_eq!(admitted(&replicas, calls).await, 90);
    assert!(!replicas.store.dump().contains("tools"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_is_away_each_replica_admits_its_share_or_nothing() {
    for (key, expected) in [("", 90), ("on_store_down = \"refuse\"", 0)] {
        let mut replicas = Replicas::start_with(3, RATE, key).await;
        replicas.store.kill().await;
        // Each has noticed it after its next heartbeat.
        until("they have noticed", || {
            (0..3).all(|at| replicas[at].log().iter().any(|line| line.contains("cannot be used")))
        })
        .await;
        assert_eq!(admitted(&replicas, 600).await, expected, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_is_exact_although_some_replies_of_the_store_are_late() {
    // With `refuse` a late reply refuses its own request, which is given back. On a busy machine
    // other replies may be late, too: then it takes longer until the limit is used up.
    let store = TestStore::start().await;
    let proxy = DelayingProxy::start(store.port).await;
    let mut replicas = Replicas::prepare(store, RATE, "on_store_down = \"refuse\"").await;
    replicas.store.access = Some(format!("{{ url = \"redis://127.0.0.1:{}\" }}", proxy.port));
    replicas.store_wait = DEFAULT_STORE_WAIT;
    replicas.add_all(3).await;
    proxy.set_some(20, Duration::from_millis(60));
    let (begin, mut all) = (Instant::now(), 0);
    while all < 90 {
        all += admitted(&replicas, 120).await;
        assert!(begin.elapsed() < PATIENCE, "only {all} are admitted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The replies to those that were refused have come by then, too.
    assert_eq!((all, admitted(&replicas, 120).await), (90, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_without_the_store_admit_their_share() {
    for (key, expected) in [("", 90), ("expected_replicas = 9", 30)] {
        let mut store = TestStore::start().await;
        store.kill().await;
        let mut replicas = Replicas::prepare(store, RATE, key).await;
        for _ in 0..3 {
            replicas.add().await;
        }
        assert_eq!(admitted(&replicas, 600).await, expected, "{key}");
    }
}

#[tokio::test]
async fn a_store_that_refuses_commands_is_an_error_and_its_replicas_are_not_ready() {
    let renamed = ["--rename-command", "EVALSHA", ""];
    let few = "-@all +evalsha +script|load +time +info +hset +hget +hmget +hdel +hlen +hgetall \
               +zadd +zrem +zrangebyscore +incr +get +set +pexpire";
    for (arguments, rights, what) in [(&renamed[..], None, "evalsha"), (&[], Some(few), "zscore")] {
        let mut store = TestStore::start_with(arguments).await;
        if let Some(rights) = rights {
            let user = ["ACL", "SETUSER", "weir", "on", ">hunter2", "~*"];
            let user: Vec<_> = user.into_iter().chain(rights.split_whitespace()).collect();
            store.run::<()>(&user);
            let login = "username = \"weir\", password = \"hunter2\"";
            store.access = Some(format!("{{ url = \"{}\", {login} }}", store.url()));
        }
        let mut replicas = Replicas::prepare(store, "", "").await;
        replicas.add().await;
        replicas
            .until_command(0, "health", |code, text| code == 1 && text.contains("commands"))
            .await;
        let (code, text) = replicas.command(0, "check");
        assert!(code != 0 && text.contains(what), "{what}: {text}");
        assert!(replicas.legacy(0).await.call(HUB, json!({})).await.is_result(), "it serves on");
    }
}

/// Starts calls that do not end, one after the other, until one is refused or `most` run.
async fn open_calls(replicas: &Replicas, at: usize, most: usize) -> JoinSet<Outcome> {
    let mut open = JoinSet::new();
    for number in 0..most {
        let mut client = replicas[at].client(Revision::LEGACY).await;
        let nonce = format!("{at}-{number}");
        let arguments = json!({ "nonce": nonce, "fault": json!({ "never": true }).to_string() });
        open.spawn(async move { client.call(HUB, arguments).await });
        tokio::select! {
            ended = open.join_next() => {
                let ended = ended.expect("it was started").expect("it does not panic");
                assert_eq!(ended.code(), 4290);
                return open;
            }
            _ = until("it is executed", || replicas.executions(&nonce) == 1) => {}
        }
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_progress_count_for_all_replicas_and_end_with_theirs() {
    let mut replicas = Replicas::start_with(3, SLOTS, "").await;
    let first = open_calls(&replicas, 0, 3).await;
    let second = open_calls(&replicas, 1, 3).await;
    let opened = (first.len(), second.len(), open_calls(&replicas, 2, 1).await.len());
    assert_eq!(opened, (3, 1, 0));
    // Those of a replica that was killed count until its record has expired.
    replicas.kill(0).await;
    drop(first);
    until("its record has expired", || {
        replicas.store.run::<usize>(&["HLEN", "{weir}:members"]) == 2
    })
    .await;
    let third = open_calls(&replicas, 2, 5).await;
    assert_eq!(third.len(), 3, "four in all");
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_begins_when_another_one_ends_counts() {
    let one = SLOTS.replace('4', "1");
    let replicas = Replicas::start_with(3, &one, "").await;
    let rounds = if by_night() { 200 } else { 20 };
    for round in 0..rounds {
        let place = round % 3;
        let mut client = replicas[place].client(Revision::MODERN).await;
        let begin = Instant::now();
        // The last call of the round before has ended, and its replica reports that soon.
        while !client.call(HUB, json!({})).await.is_result() {
            assert!(begin.elapsed() < PATIENCE, "no call is admitted any more");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let nonce = format!("long-{round}");
        let arguments = json!({ "nonce": nonce, "fault": json!({ "never": true }).to_string() });
        let mut long = Box::pin(client.call(HUB, arguments));
        let is_executed = tokio::select! {
            ended = &mut long => {
                assert_eq!(ended.code(), 4290);
                false
            }
            _ = until("it is executed", || replicas.executions(&nonce) == 1) => true,
        };
        for other in [(place + 1) % 3, (place + 2) % 3] {
            let mut other = replicas[other].client(Revision::MODERN).await;
            let outcome = other.call(HUB, json!({})).await;
            assert!(!is_executed || outcome.code() == 4290, "round {round}: {outcome:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_progress_count_again_in_a_store_that_comes_back_empty() {
    let mut replicas = Replicas::start_with(3, SLOTS, "").await;
    let (first, second) = (open_calls(&replicas, 0, 3).await, open_calls(&replicas, 1, 1).await);
    assert_eq!((first.len(), second.len()), (3, 1));
    for what in ["restarted", "emptied"] {
        match what {
            "restarted" => {
                replicas.store.kill().await;
                replicas.store.restart().await;
            }
            _ => replicas.store.run::<()>(&["FLUSHALL"]),
        }
        replicas.wait_until_known(3).await;
        until("they are reported", || known_slots(&replicas) == 4).await;
        assert_eq!(open_calls(&replicas, 2, 1).await.len(), 0, "{what}");
    }
    // So they do after a time without the store that is longer than records live.
    replicas.store.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(7)).await;
    replicas.store.signal(Signal::CONT);
    replicas.wait_until_known(3).await;
    until("they are reported", || known_slots(&replicas) == 4).await;
    assert_eq!(open_calls(&replicas, 2, 1).await.len(), 0);
}

/// Number of requests in progress on all replicas, as the store knows it.
fn known_slots(replicas: &Replicas) -> usize {
    let keys: Vec<String> = replicas.store.run(&["KEYS", "{weir}:slots:*"]);
    let counts = keys.iter().map(|key| {
        let all: Vec<String> = replicas.store.run(&["HGETALL", key]);
        all.chunks_exact(2).map(|pair| pair[1].parse::<usize>().expect("a number")).sum::<usize>()
    });
    counts.sum()
}

#[tokio::test]
async fn an_address_counts_if_its_proxy_is_trusted() {
    let limit = "[[limits]]\nper = \"client\"\nmethod = \"tools/list\"\nrate = \"1/h\"\n";
    let mut replicas = Replicas::start(1).await;
    replicas.take(0).stop().await;
    replicas.configure(0, limit);
    replicas.start_unlisted(0).await;
    let address = &replicas[0].address;
    let list = async |client: &str| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": Revision::MODERN.as_str(),
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let text = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": meta },
        })
        .to_string();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: \
             application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: tools/list\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{text}",
            text.len()
        );
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("text");
        response.split(' ').nth(1).expect("a status").to_owned()
    };
    // What a client has written itself stands before what the proxy has added.
    for (client, expected) in [
        ("203.0.113.1", "200"),
        ("203.0.113.1", "429"),
        ("198.51.100.9, 203.0.113.1", "429"),
        ("203.0.113.2", "200"),
    ] {
        assert_eq!(list(client).await, expected, "{client}");
    }
}
