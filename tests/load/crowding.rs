//! Many clients that each use little, and some that use much memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use crate::client::{Call, Client, Outcome};
use crate::gateway::Gateway;
use crate::lab::process::kib_of;
use crate::lab::{PATIENCE, by_night};
use crate::server::Server;
use crate::{ONE_AT_A_TIME, often};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f68_idle_streams_take_little_memory_and_hardly_any_time_nightly() {
    if !by_night() {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().await;
    let streams = 10_000;
    raise_descriptors(streams as u64 + 100);
    let server = Server::start(8).await;
    let gateway = Gateway::start(server.address, "per_client = { streams = 10000 }").await;
    let mut warm = Client::connect(&gateway.address).await.expect("it listens");
    assert_eq!(warm.call(Call::default()).await, Outcome::Answered);
    // Each permit is used by a stream.
    drop(warm);
    let before = kib_of(gateway.pid(), "VmRSS");
    let begin = Instant::now();
    let mut open = Vec::with_capacity(streams);
    for id in 0..streams {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        client.send(&client.listen(id as u64)).await.expect("sent");
        client.until("subscriptions/acknowledged").await.expect("acknowledged");
        open.push(client);
    }
    let opened = streams as f64 / begin.elapsed().as_secs_f64();
    let each = kib_of(gateway.pid(), "VmRSS").saturating_sub(before) as f64 / streams as f64;
    let (then, begin) = (gateway.cpu_time(), Instant::now());
    // Several keep-alive comments reach each of them.
    for _ in 0..4 {
        for client in &mut open {
            client.until(": keep-alive").await.expect("a comment");
        }
    }
    let busy = gateway.cpu_time().saturating_sub(then).as_secs_f64();
    let share = busy / begin.elapsed().as_secs_f64();
    eprintln!("{streams} streams: {opened:.0}/s, {each:.1} KiB each, {share:.3} of a core");
    assert!(each <= 16.0, "{each} KiB");
    assert!(share <= 0.05, "{share} of a core");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f68_f97_who_stays_holds_nothing_of_the_request_that_began_it() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    let gateway = Gateway::start(server.address, "max_buffered = \"8MiB\"").await;
    let mut open = Vec::new();
    for id in 0..8 {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        // Together three times the memory budget.
        let large = format!("\"ballast\":\"{}\",\"_meta\"", "x".repeat(3 << 20));
        let request = client.listen(id).replace("\"_meta\"", &large);
        let (head, body) = request.split_once("\r\n\r\n").expect("a body");
        let head = head.rsplit_once("\r\n").expect("its length comes last").0;
        client
            .send(&format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
            .await
            .expect("sent");
        client.until("subscriptions/acknowledged").await.expect("acknowledged");
        open.push(client);
    }
    for _ in 0..8 {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"x","version":"1"}},"ballast":"{}"}}}}"#,
            "x".repeat(3 << 20)
        );
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            gateway.address,
            body.len()
        );
        client.send(&(head + &body)).await.expect("sent");
        assert_eq!(client.read_response().await.expect("a reply").status, 200);
    }
    let mut client = Client::connect(&gateway.address).await.expect("it listens");
    let call = Call { ballast: 1 << 20, ..Call::default() };
    assert_eq!(client.call(call).await, Outcome::Answered);
}

/// Raises this process's limit of descriptors; the program raises its own.
fn raise_descriptors(wanted: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum };
        setrlimit(Resource::Nofile, raised).expect("the hard limit of descriptors is high enough");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f60_f97_who_reads_slowly_gets_no_more_memory_than_there_is_for_all_and_others_are_served()
{
    let _turn = ONE_AT_A_TIME.lock().await;
    let readers = often(20, 500);
    let server = Server::start(1_000).await;
    let gateway = Gateway::start(server.address, "max_buffered = \"32MiB\"").await;
    let before = kib_of(gateway.pid(), "VmRSS");
    // Unread responses of 4 MiB: without bounds they would take 80 MiB by day, and 2 GiB by night.
    let mut slow = Vec::new();
    for nonce in 0..readers as u64 {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let request = client.request(Call { nonce, bytes: 4 << 20, ..Call::default() });
        client.send(&request).await.expect("sent");
        slow.push(client);
    }
    let mut most = 0;
    let mut friend = Client::connect(&gateway.address).await.expect("it listens");
    let mut nonce = 1_000_000;
    while nonce < 1_000_010 {
        assert_eq!(friend.call(Call { nonce, ..Call::default() }).await, Outcome::Answered);
        nonce += 1;
        most = most.max(kib_of(gateway.pid(), "VmRSS"));
    }
    let grown = most.saturating_sub(before) >> 10;
    eprintln!("{readers} slow readers: {grown} MiB, {} calls beside them", nonce - 1_000_000);
    // Streamed bodies are not counted in the memory budget: they take the buffers of a call, on
    // both sides.
    let most = 16 + readers as u64 * 320 / 1024;
    assert!(grown < most, "{grown} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f72_f97_bodies_beyond_the_budget_get_503_and_small_ones_are_served() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(1_000).await;
    let gateway = Gateway::start(server.address, "max_buffered = \"8MiB\"").await;
    let (mut crowd, ended) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for nonce in 0..40 {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let ended = Arc::clone(&ended);
        crowd.spawn(async move {
            let call = Call { nonce, ballast: 1 << 20, held: true, ..Call::default() };
            let outcome = client.call(call).await;
            ended.fetch_add(1, Ordering::Relaxed);
            outcome
        });
    }
    // The calls at the server end only when they are released, so all others have been refused.
    let begin = Instant::now();
    while server.under_way() + ended.load(Ordering::Relaxed) < 40 {
        assert!(begin.elapsed() < PATIENCE, "neither answered nor refused");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let held = server.under_way();
    for nonce in 100..110 {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let call = Call { nonce, ballast: 8 << 10, ..Call::default() };
        assert_eq!(client.call(call).await, Outcome::Answered);
    }
    assert_eq!(server.under_way(), held, "the budget is still in use");
    server.release();
    let (mut answered, mut refused) = (0, 0);
    for outcome in crowd.join_all().await {
        match outcome {
            Outcome::Answered => answered += 1,
            Outcome::Refused(how) => {
                assert!(how.starts_with("503 ") && how.contains("try again"), "{how}");
                assert!(how.ends_with(", with Retry-After"), "{how}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    eprintln!("{answered} large ones answered, {refused} refused");
    assert!((4..=9).contains(&answered), "{answered}");
    assert_eq!((answered, answered + refused), (held, 40));
    // All of the budget has been released.
    let mut client = Client::connect(&gateway.address).await.expect("it listens");
    let call = Call { nonce: 1_000, ballast: 3 << 20, ..Call::default() };
    assert_eq!(client.call(call).await, Outcome::Answered);
}
