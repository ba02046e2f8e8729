//! Large request bodies with as many elements as fit into them, several at once (G11): memory in
//! use while they are read, memory in use afterwards, and the calls of other clients beside them.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::lab::ledger::Ledger;
use crate::lab::load::Plan;
use crate::lab::weir::Weir;
use crate::lab::{Lab, PATIENCE, alone_by_night, by_night};

/// Number of bodies that are sent at the same time. Each is just under `server.max_body` long.
const AT_ONCE: usize = 8;
const BODY_BYTES: usize = 4_000_000;
/// Number of times that each kind of body is sent.
const ROUNDS: usize = 4;

/// Memory that may be in use above the level before: three times the bytes of the bodies while they
/// are read, and twice their bytes afterwards, which the allocator retains.
const MOST_DURING: u64 = 3 * (AT_ONCE * BODY_BYTES) as u64;
const MOST_AFTER: u64 = 2 * (AT_ONCE * BODY_BYTES) as u64;

const GOOD: [&str; 2] = ["good1", "good2"];

/// Bodies of [`BODY_BYTES`] made of the smallest elements: a batch, and the lists of a
/// `subscriptions/listen`.
fn bodies() -> [(&'static str, &'static str, String); 3] {
    let zeros = |head: &str, tail: &str| {
        let count = (BODY_BYTES - head.len() - tail.len()) / 2;
        format!("{head}0{}{tail}", ",0".repeat(count - 1))
    };
    let listen = |member: &str| {
        let head = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"x","version":"1"}},"io.modelcontextprotocol/clientCapabilities":{{}}}},"notifications":{{"{member}":["#
        );
        zeros(&head, "]}}}")
    };
    [
        ("batch", "2025-03-26", zeros("[", "]")),
        ("resourceSubscriptions", "2026-07-28", listen("resourceSubscriptions")),
        ("taskIds", "2026-07-28", listen("taskIds")),
    ]
}

/// Sends one body on a connection of its own and reads the response to its end.
async fn send(address: &str, revision: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("Weir listens");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {revision}\r\n\
         Mcp-Method: subscriptions/listen\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    // A request that is rejected before its end may close the connection.
    let _ = stream.write_all(body.as_bytes()).await;
    let mut response = String::new();
    let _ = stream.take(64 * 1024).read_to_string(&mut response).await;
    response
}

/// Peak memory in use until `stop`, sampled every few milliseconds.
async fn peak(weir: &Weir, stop: CancellationToken) -> u64 {
    let mut most = 0;
    while !stop.is_cancelled() {
        most = most.max(weir.resources().resident_bytes);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    most
}

async fn measure<F: Future>(weir: &Weir, lab: &Lab, work: F) -> ([Duration; 2], F::Output) {
    let mut plan = Plan::plain(4, &GOOD.map(str::to_owned));
    plan.pause = Duration::from_millis(10);
    let load = plan.start(weir);
    let done = work.await;
    let ledger = load.stop().await;
    for (name, account) in ledger.reconcile(lab.evils()) {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    (percentiles(&ledger), done)
}

fn percentiles(ledger: &Ledger) -> [Duration; 2] {
    [50, 99].map(|percent| ledger.percentile(percent, &GOOD))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_large_bodies_at_once_hold_little_and_leave_others_their_share_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let lab = Lab::new().http(GOOD[0], json!({})).await.stdio(GOOD[1], json!({}));
    let weir = lab.serve_all("").await;
    let wait = tokio::time::sleep(Duration::from_secs(2));
    let (alone, ()) = measure(&weir, &lab, wait).await;
    let before = weir.resources().resident_bytes;
    for (what, revision, body) in bodies() {
        let begin = Instant::now();
        let stop = CancellationToken::new();
        let bodies = async {
            for _ in 0..ROUNDS {
                let requests = (0..AT_ONCE).map(|_| send(&weir.address, revision, &body));
                for response in futures::future::join_all(requests).await {
                    assert!(response.contains("\"error\""), "{what}: {response:?}");
                }
            }
            stop.cancel();
        };
        let work = async { tokio::join!(bodies, peak(&weir, stop.clone())).1 };
        let (beside, most) = measure(&weir, &lab, work).await;
        let (during, took) = (most.saturating_sub(before), begin.elapsed());
        let after = weir.resources().resident_bytes.saturating_sub(before);
        eprintln!(
            "{what}: {} bodies of {BODY_BYTES} bytes, {AT_ONCE} at once, in {:.1?}: {} KiB more in use \
             at most, {} KiB afterwards; p50 and p99 of others {alone:?} without, {beside:?} beside",
            ROUNDS * AT_ONCE,
            took,
            during / 1024,
            after / 1024,
        );
        assert!(during <= MOST_DURING, "{what}: {during} bytes more in use");
        let given_back = async {
            // The allocator gives back what was freed before when it is used again.
            while weir.resources().resident_bytes > before + MOST_AFTER {
                send(&weir.address, revision, &body).await;
            }
        };
        timeout(PATIENCE, given_back).await.expect("memory is given back");
        let most = 4 * alone[1] + Duration::from_millis(150);
        assert!(beside[1] <= most, "{what}: {beside:?} beside, {alone:?} without");
    }
}
