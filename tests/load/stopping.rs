//! Stopping under load: calls in flight are answered, later requests are refused with an error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinSet;

use crate::client::{Call, Client, Outcome};
use crate::gateway::Gateway;
use crate::lab::ledger::{End, Ledger};
use crate::lab::night::bound;
use crate::server::Server;
use crate::{ONE_AT_A_TIME, often};

/// Number of calls in flight when Weir is stopped.
const CALLS: usize = 200;
const LISTENERS: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_a_signal_under_load_loses_no_call() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let (mut latest, mut soonest) = (Duration::ZERO, Duration::MAX);
    // Number of calls in flight at the signal, at least.
    let there = CALLS * 9 / 10;
    for _ in 0..often(10, 100) {
        let server = Server::start(CALLS).await;
        let mut gateway = Gateway::start(server.address, "").await;
        let ledger = Arc::new(Ledger::default());
        let mut listeners = JoinSet::new();
        for id in 0..LISTENERS {
            let mut client = Client::connect(&gateway.address).await.expect("it listens");
            client.send(&client.listen(id as u64)).await.expect("sent");
            client.until("subscriptions/acknowledged").await.expect("acknowledged");
            listeners.spawn(async move {
                client.until("\"resultType\":\"complete\"").await.expect("the last word");
                client.until("0\r\n\r\n").await.expect("the end");
                assert!(client.is_closed().await);
            });
        }
        let mut clients = JoinSet::new();
        for number in 0..CALLS {
            let ledger = Arc::clone(&ledger);
            let mut client = Client::connect(&gateway.address).await.expect("it listens");
            clients.spawn(async move {
                loop {
                    let nonce = ledger.begin();
                    let wait = 300 + nonce % 200;
                    // Most calls end after the signal only, and some end at any time.
                    let held = number < there;
                    let begin = Instant::now();
                    let outcome = client.call(Call { nonce, wait, held, ..Call::default() }).await;
                    let ended = Instant::now();
                    ledger.record(nonce, "hub", outcome.end(), ended - begin);
                    if outcome != Outcome::Answered || client.is_closing() {
                        return ended;
                    }
                }
            });
        }
        // A client whose request had not arrived yet receives a refusal.
        server.has_under_way(there).await;
        gateway.signal(Signal::TERM);
        let signalled_at = Instant::now();
        server.release();
        let last = clients.join_all().await.into_iter().max().expect("calls");
        let code = gateway.ended().await;
        let late = last.elapsed();
        listeners.join_all().await;
        assert_eq!(code, Some(0));
        // Long before the grace time of 30 s is over.
        assert!(late < bound(20_000, 1_000), "{late:?} after the last call");
        assert!(signalled_at.elapsed() < Duration::from_millis(30_500));
        (latest, soonest) = (latest.max(late), soonest.min(late));

        let calls = server.compare(&ledger);
        let is_told = |end: &End| matches!(end, End::Success | End::Error(_));
        assert!(calls.ends.keys().all(is_told), "{calls:?}");
        assert!(calls.successes >= there, "{calls:?}");
        assert_eq!(server.under_way(), 0);
    }
    eprintln!("it ended at most {latest:?} after the last call");
    // A wait recurs in each round, a stall of the machine does not.
    assert!(soonest < bound(5_000, 1_000), "{soonest:?} after the last call");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_what_is_left_when_the_grace_time_is_over_hears_so() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    let mut gateway = Gateway::start(server.address, "shutdown_grace = \"1s\"").await;
    let mut clients = JoinSet::new();
    for nonce in 0..8 {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        clients.spawn(
            async move { client.call(Call { nonce, wait: 60_000, ..Call::default() }).await },
        );
    }
    server.has_under_way(8).await;
    gateway.signal(Signal::TERM);
    let signalled_at = Instant::now();
    for outcome in clients.join_all().await {
        assert!(matches!(&outcome, Outcome::Refused(how) if how.contains("5030")), "{outcome:?}");
    }
    assert_eq!(gateway.ended().await, Some(0));
    let took = signalled_at.elapsed();
    // The calls would take a minute, and the default grace time is 30 s.
    assert!(took >= Duration::from_secs(1) && took < bound(15_000, 1_500), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_f91_a_second_signal_ends_it_at_once_and_more_of_them_change_nothing() {
    let _turn = ONE_AT_A_TIME.lock().await;
    for signals in [2, 50] {
        let server = Server::start(1).await;
        let mut gateway = Gateway::start(server.address, "").await;
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let calling = tokio::task::JoinSet::from_iter([async move {
            client.call(Call { wait: 60_000, ..Call::default() }).await
        }]);
        server.has_under_way(1).await;
        gateway.signal(Signal::TERM);
        gateway.logs("shutting down").await;
        let signalled_at = Instant::now();
        for round in 1..signals {
            gateway.signal(if round % 2 == 0 { Signal::INT } else { Signal::TERM });
        }
        let code = gateway.ended().await;
        assert_eq!(code, Some(0));
        // The grace time is 30 s.
        assert!(signalled_at.elapsed() < bound(15_000, 1_000), "{:?}", signalled_at.elapsed());
        let outcome = calling.join_all().await.remove(0);
        // With this many signals Weir waits for nothing any more, not even for the last responses.
        let is_refused = matches!(&outcome, Outcome::Refused(how) if how.contains("5030"));
        assert!(is_refused || signals > 2, "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f80_it_goes_on_for_a_moment_if_it_was_told_to() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    let mut gateway = Gateway::start(server.address, "shutdown_delay = \"5s\"").await;
    let begin = Instant::now();
    gateway.signal(Signal::TERM);
    gateway.logs("shutdown announced").await;
    let mut nonce = 0;
    // It ends long before the delay, so that the last call is not late on a stalled machine.
    while begin.elapsed() < Duration::from_millis(400) {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        assert_eq!(client.call(Call { nonce, ..Call::default() }).await, Outcome::Answered);
        nonce += 1;
    }
    assert!(nonce > 0);
    assert_eq!(gateway.ended().await, Some(0));
    assert!(begin.elapsed() >= Duration::from_secs(5));
    assert!(Client::connect(&gateway.address).await.is_err());
}
