//! Crowds of clients: many that stop reading, and one that sends requests without a pause (F-61,
//! F-70). Both are measured by night.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::task::TaskTracker;

use crate::lab::client::{Client, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::weir::Weir;
use crate::lab::{Lab, alone_by_night, by_night, until};

// === F-61: clients that stop reading ===

/// Client that opens a `subscriptions/listen` stream, reads the acknowledgment, and then stops
/// reading.
async fn stalled(weir: &Weir) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    // The smallest buffer that the system allows, so that unread bytes stay on Weir's side.
    socket.set_recv_buffer_size(1).unwrap();
    let mut stream = socket.connect(weir.address.parse().unwrap()).await.unwrap();
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
        "params": {
            "notifications": { "toolsListChanged": true },
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    });
    let body = body.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: subscriptions/listen\r\nContent-Length: {}\r\n\r\n",
        weir.address,
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut received = Vec::new();
    while !received.windows(12).any(|part| part == b"acknowledged") {
        assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "it is not opened");
    }
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f61_a_thousand_listeners_that_stop_reading_cost_little_and_delay_nobody_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let (crowd, time) = (1_000, 60);
    let lab = Lab::new().stdio("a", json!({})).stdio("b", json!({}));
    let weir = lab.serve_all("[server.per_client]\nstreams = 10000\n").await;
    let reading = weir.listen().await;
    let mut silent = Vec::new();
    for _ in 0..crowd {
        silent.push(stalled(&weir).await);
    }
    let before = weir.resources().resident_bytes;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let (begin, ledger) = (Instant::now(), Ledger::default());
    let mut client = weir.client(Revision::MODERN).await;
    let (mut more_tools, mut most) = (0, 0);
    while begin.elapsed() < Duration::from_secs(time) {
        more_tools = (more_tools + 1) % 7;
        let storm = json!({ "text": changed, "per_second": 1_000 });
        lab.evil("a").script(json!({ "more_tools": more_tools, "storm": storm }));
        for _ in 0..10 {
            assert!(ledger.call(&mut client, "b", None).await.is_result());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        most = most.max(weir.resources().resident_bytes);
    }
    lab.evil("a").script(json!({}));
    let more = most.saturating_sub(before);
    let calls = &ledger.reconcile(lab.evils())["b"];
    eprintln!(
        "F-61: {crowd} silent listeners, {} notifications to one that reads: {} KiB more; calls beside them {calls:?}",
        reading.changes(),
        more >> 10
    );
    assert!(reading.changes() as u64 >= time / 3, "{} changes", reading.changes());
    assert!(more <= 64 << 20, "{more} bytes more");
    assert!(calls.p99 < Duration::from_secs(1), "{calls:?}");
    // Weir keeps nothing for them once they disconnect.
    let descriptors = weir.resources().descriptors;
    drop(silent);
    until("their connections are closed", || weir.resources().descriptors + crowd <= descriptors)
        .await;
    weir.stop().await;
}

// === F-70: one client without a pause ===

fn key_of(client: usize) -> String {
    format!("a-key-of-forty-three-characters-or-more-{client:04}")
}

/// Configuration of clients with their own keys, with the largest limits that an operator may set.
fn clients(count: usize) -> String {
    let client = |number: usize| {
        let hash: String =
            Sha256::digest(key_of(number)).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("[clients.c{number}]\nrole = \"local\"\nkey_sha256 = [\"{hash}\"]\n")
    };
    let limit = "[[limits]]\nper = \"client\"\nmethod = \"*\"\nrate = \"20/s\"\nburst = 20\n";
    (0..count).map(client).chain([limit.to_owned()]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_while_one_client_asks_without_a_pause_all_calls_of_the_others_succeed_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let (others, time) = (199, 30);
    let lab = Lab::new().stdio("a", json!({}));
    let weir = lab.serve(&clients(others + 1)).await;
    let measured = async |time: Duration| {
        let (ledger, tasks) = (Arc::new(Ledger::default()), TaskTracker::new());
        let begun = Instant::now();
        for number in 1..=others {
            let (address, ledger) = (weir.address.clone(), Arc::clone(&ledger));
            tasks.spawn(async move {
                let mut client =
                    Client::http(&address, Revision::MODERN, Some(&key_of(number))).await;
                // All clients together send about as much as a machine handles that does other
                // work, too.
                let pause = Duration::from_millis(50 * others as u64);
                tokio::time::sleep(pause * number as u32 / others as u32).await;
                while begun.elapsed() < time {
                    ledger.call(&mut client, "a", None).await;
                    tokio::time::sleep(pause).await;
                }
            });
        }
        tasks.close();
        tasks.wait().await;
        ledger.reconcile(lab.evils())["a"].clone()
    };
    let time = Duration::from_secs(time);
    let mut first = Client::http(&weir.address, Revision::MODERN, Some(&key_of(1))).await;
    until_listed(&mut first).await;
    // The first requests are slower.
    measured(time / 4).await;
    let before = measured(time).await;
    let (is_over, done, refused) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
        Arc::<AtomicUsize>::default(),
    );
    let flood = TaskTracker::new();
    for _ in 0..16 {
        let (address, is_over) = (weir.address.clone(), Arc::clone(&is_over));
        let (done, refused) = (Arc::clone(&done), Arc::clone(&refused));
        flood.spawn(async move {
            let mut client = Client::http(&address, Revision::MODERN, Some(&key_of(0))).await;
            while !is_over.load(Ordering::Relaxed) {
                match client.call("a", json!({ "nonce": "flood" })).await.is_result() {
                    true => done.fetch_add(1, Ordering::Relaxed),
                    false => refused.fetch_add(1, Ordering::Relaxed),
                };
            }
        });
    }
    let during = measured(time).await;
    is_over.store(true, Ordering::Relaxed);
    flood.close();
    flood.wait().await;
    let after = measured(time).await;
    let (done, refused) = (done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    eprintln!(
        "F-70: {others} others: {} of {} calls failed; {:?}, {:?}, {:?}; the flood: {done} done, {refused} refused",
        during.failures(),
        during.calls,
        before.p99,
        during.p99,
        after.p99
    );
    assert!(refused > done, "it was no flood");
    assert_eq!((before.failures(), during.failures(), after.failures()), (0, 0, 0));
    // The flood uses its part of the machine.
    let baseline = before.p99.max(after.p99);
    let allowed = baseline.mul_f64(1.2) + Duration::from_millis(20);
    assert!(during.p99 <= allowed, "{:?} instead of {baseline:?}", during.p99);
    weir.stop().await;
}

async fn until_listed(client: &mut Client) {
    let begin = Instant::now();
    while client.tools().await.is_empty() {
        assert!(begin.elapsed() < crate::lab::PATIENCE, "nothing is listed");
        // Stays within its rate limit.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
