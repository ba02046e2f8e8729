//! Replicas are replaced one after the other, under clients of both eras.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::sync::RwLock;

use crate::lab::by_night;
use crate::lab::client::{Client, Revision};
use crate::lab::nginx::Nginx;
use crate::replicas::{HUB, Replicas};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_replicas_that_are_restarted_one_after_the_other_fail_no_request() {
    replace_all(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_behind_nginx_they_fail_none_either() {
    replace_all(true).await;
}

/// Replaces three replicas, one after the other, under clients in front of a balancer that takes
/// those out that are not ready, or of nginx, which knows nothing of that.
async fn replace_all(behind_nginx: bool) {
    let clients = if by_night() { 200 } else { 20 };
    let config = "[auth]\nmode = \"anonymous\"\n";
    let mut replicas = Replicas::start_with(3, config, "").await;
    // Addresses of the replicas that take new requests, as a balancer knows them.
    let addresses: Vec<_> = (0..3).map(|number| replicas[number].address.clone()).collect();
    let nginx = behind_nginx.then(|| Nginx::start(&addresses));
    let through = nginx.as_ref().map(|nginx| nginx.address.clone());
    let ready = Arc::new(RwLock::new(addresses));
    let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut running = tokio::task::JoinSet::new();
    for number in 0..clients {
        let revision = if number % 2 == 0 { Revision::LEGACY } else { Revision::MODERN };
        let through = through.clone();
        let first = through.clone().unwrap_or(ready.read().await[number % 3].clone());
        let mut client = Client::http(&first, revision, None).await;
        let (ready, over, calls) = (Arc::clone(&ready), Arc::clone(&over), Arc::clone(&calls));
        running.spawn(async move {
            let mut turn = number;
            while !over.load(Ordering::Relaxed) {
                turn += 1;
                let to = match &through {
                    Some(nginx) => nginx.clone(),
                    None => {
                        let ready = ready.read().await;
                        ready[turn % ready.len()].clone()
                    }
                };
                client.move_to(&to);
                let nonce = format!("{number}-{turn}");
                let outcome = client.call(HUB, json!({ "nonce": nonce })).await;
                assert!(outcome.is_result(), "{nonce} at {to}: {outcome:?}");
                calls.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    for number in 0..3 {
        let mut weir = replicas.take(number);
        weir.signal(Signal::TERM);
        // A balancer notices it in its readiness.
        ready.write().await.retain(|address| *address != weir.address);
        assert_eq!(weir.ended().await, Some(0), "{}", weir.log().join("\n"));
        replicas.restart(number).await;
        ready.write().await.push(replicas[number].address.clone());
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended.expect("no request failed");
    }
    let calls = calls.load(Ordering::Relaxed);
    let executions = replicas.lab.evil(HUB).executions();
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
    assert_eq!(executions.len(), calls);
    eprintln!("case 6, nginx {behind_nginx}: {calls} calls of {clients} clients, none failed");
}
