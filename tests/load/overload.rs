//! Overload: more requests, connections and descriptors than the limits allow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::ONE_AT_A_TIME;
use crate::client::{Call, Client, Outcome};
use crate::gateway::Gateway;
use crate::lab::night::bound;
use crate::lab::{PATIENCE, by_night};
use crate::server::Server;

/// Calls answered per second for this number of clients that call without a pause, and the duration
/// of refusals.
struct Measured {
    rate: f64,
    refusals: Vec<Duration>,
}

async fn measure(gateway: &Gateway, clients: usize, wait: u64, time: Duration) -> Measured {
    let answered = Arc::new(AtomicUsize::new(0));
    let (is_over, nonces) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut crowd = JoinSet::new();
    for _ in 0..clients {
        let (answered, is_over, nonces) =
            (Arc::clone(&answered), Arc::clone(&is_over), Arc::clone(&nonces));
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        crowd.spawn(async move {
            let mut refusals = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let nonce = nonces.fetch_add(1, Ordering::Relaxed);
                let begin = Instant::now();
                match client.call(Call { nonce, wait, ..Call::default() }).await {
                    Outcome::Answered => {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    Outcome::Refused(how) => {
                        assert!(how.starts_with("429 ") && how.contains("4290"), "{how}");
                        refusals.push(begin.elapsed());
                        // Sooner than `Retry-After` says.
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    other => panic!("{other:?}"),
                }
            }
            refusals
        });
    }
    // The load is at its full level before the measurement begins.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (before, begin) = (answered.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(time).await;
    let count = answered.load(Ordering::Relaxed) - before;
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    let refusals = crowd.join_all().await.into_iter().flatten().collect();
    Measured { rate, refusals }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f69_five_times_too_much_leaves_nine_tenths_of_what_is_done_without_it_nightly() {
    if !by_night() {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().await;
    // The server is the bottleneck: 5 at a time, 100 ms each, 50 calls a second.
    let server = Server::start(5).await;
    let gateway = Gateway::start(
        server.address,
        // All sixteen count as one client, because they are anonymous.
        "per_client = { calls = 1, waiting = 1, wait = \"200ms\" }",
    )
    .await;
    let time = Duration::from_secs(60);
    let good = measure(&gateway, 8, 100, time).await;
    let turns_before = server.turns().len();
    let mut flooded = measure(&gateway, 40, 100, time).await;
    let turns = server.turns().split_off(turns_before);
    let full = turns.iter().filter(|others_wait| **others_wait).count();
    flooded.refusals.sort();
    let at_once = flooded.refusals.first().copied().unwrap_or_default();
    let tenth = flooded.refusals.get(flooded.refusals.len() / 10).copied().unwrap_or_default();
    eprintln!(
        "{:.0}/s, flooded {:.0}/s, {full} of {} with others waiting; {} refused, the quickest after {at_once:?}, a tenth within {tenth:?}",
        good.rate,
        flooded.rate,
        turns.len(),
        flooded.refusals.len()
    );
    // The server does all that it can while calls wait for it.
    assert!(full * 10 >= turns.len() * 9, "calls waited at the end of {full} of {}", turns.len());
    assert!(flooded.rate >= 0.9 * good.rate, "{} of {}", flooded.rate, good.rate);
    assert!(!flooded.refusals.is_empty());
    assert!(tenth < Duration::from_millis(50), "{tenth:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f96_without_file_descriptors_nobody_is_harmed_and_it_passes() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    // Connections may take all descriptors that the half for clients leaves to upstreams, because
    // the limit is lowered behind Weir's back.
    let mut gateway = Gateway::start(server.address, "").await;
    let mut friend = Client::connect(&gateway.address).await.expect("it listens");
    assert_eq!(friend.call(Call { nonce: 0, ..Call::default() }).await, Outcome::Answered);
    let pid = rustix::process::Pid::from_raw(gateway.pid() as i32);
    let in_use = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid()));
    let limit = in_use.map_or(40, |files| files.count() as u64 + 12);
    let limit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit)
        .expect("it may be lowered");

    let mut crowd = Vec::new();
    for _ in 0..60 {
        crowd.push(Client::connect(&gateway.address).await.expect("the kernel takes it"));
    }
    gateway.logs("cannot accept connections").await;
    let (before, begin) = (gateway.cpu_time(), Instant::now());
    for nonce in 1..20 {
        assert_eq!(
            friend.call(Call { nonce, wait: 50, ..Call::default() }).await,
            Outcome::Answered
        );
    }
    let busy = gateway.cpu_time().saturating_sub(before).as_secs_f64();
    let share = busy / begin.elapsed().as_secs_f64();
    assert!(share < 0.3, "it spins: {share:.2} of a core");

    drop(crowd);
    let begin = Instant::now();
    let answered = loop {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let nonce = 100 + begin.elapsed().as_millis() as u64;
        if client.call(Call { nonce, ..Call::default() }).await == Outcome::Answered {
            break begin.elapsed();
        }
        assert!(begin.elapsed() < PATIENCE, "it does not recover");
    };
    assert!(answered < bound(30_000, 2_000), "{answered:?}");
    eprintln!("it takes {share:.2} of a core, and {answered:?} to recover");
}
