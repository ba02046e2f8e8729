//! Limits that all replicas count together, and what holds of them while the store is away.

use futures::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::lab::client::{Outcome, Revision};
use crate::lab::{by_night, until};
use crate::replicas::{HUB, Replicas};

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
