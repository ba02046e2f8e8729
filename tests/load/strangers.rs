//! Clients that are slow, silent, or invalid, on real connections.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::client::{Call, Client, Outcome};
use crate::gateway::Gateway;
use crate::lab::night::bound;
use crate::lab::process::kib_of;
use crate::lab::{by_night, check_times};
use crate::server::Server;
use crate::{ONE_AT_A_TIME, often};

/// All timeouts at a fraction of their defaults.
const QUICK: &str = "timeouts = { head = \"1s\", body = \"1s\", write = \"1s\", idle = \"2s\" }\n\
     max_connections = 10000";

/// Reads until the peer closes, and returns the text and the time that it took.
async fn rest(mut client: Client, begin: Instant) -> (String, Duration) {
    let mut output = Vec::new();
    // A reset ends the connection as well.
    let _ = client.stream.read_to_end(&mut output).await;
    (String::from_utf8_lossy(&output).into_owned(), begin.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_f66_crowds_that_trickle_or_say_nothing_are_sent_away_and_hold_nobody_up() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    // By day the crowd stays longer than the machine may stall.
    let longer = "timeouts = { head = \"3s\", body = \"3s\", write = \"3s\", idle = \"4s\" }\n\
         max_connections = 10000";
    let gateway = Gateway::start(server.address, if by_night() { QUICK } else { longer }).await;
    let crowd = often(500, 5_000);
    let before = kib_of(gateway.pid(), "VmRSS");
    let mut strangers = JoinSet::new();
    for at in 0..crowd {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let begin = Instant::now();
        strangers.spawn(async move {
            if at % 2 == 0 {
                return rest(client, begin).await;
            }
            let mut ticks = tokio::time::interval(Duration::from_millis(200));
            for letter in "POST /mcp HTTP/1.1\r\nHost: x".chars() {
                ticks.tick().await;
                if client.send(&letter.to_string()).await.is_err() {
                    break;
                }
            }
            rest(client, begin).await
        });
    }
    let grown = kib_of(gateway.pid(), "VmRSS").saturating_sub(before);
    let mut times = Vec::new();
    let mut client = Client::connect(&gateway.address).await.expect("it listens");
    for nonce in 0..50 {
        let begin = Instant::now();
        assert_eq!(client.call(Call { nonce, ..Call::default() }).await, Outcome::Answered);
        times.push(begin.elapsed());
    }
    for (output, after) in strangers.join_all().await {
        assert!(output.is_empty() || output.starts_with("HTTP/1.1 408"), "{output}");
        // Longer than the timeout, for the test to notice it.
        assert!(after < bound(40_000, 6_000), "{after:?}");
    }
    eprintln!("{} KiB each, others at most {:?}", grown / crowd as u64, times.iter().max());
    let most = if cfg!(debug_assertions) { 40 } else { 16 };
    assert!(grown / crowd as u64 <= most, "{grown} KiB for {crowd}");
    check_times("a call beside the crowd", times, bound(2_500, 1_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_bodies_that_trickle_or_are_not_what_was_said_end_their_connection_only() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    let gateway = Gateway::start(server.address, QUICK).await;
    for (length, body, status) in [
        ("Content-Length: 100", "{", "408"),
        ("Content-Length: 1", "{}{}", "400"),
        ("Content-Length: 2\r\nContent-Length: 3", "{}", "400"),
        ("Content-Length: -1", "{}", "400"),
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", "0\r\n\r\n", "400"),
        ("Transfer-Encoding: chunked", "2\r\n{}\r\n", "408"),
        ("Transfer-Encoding: chunked", "zz\r\n{}\r\n0\r\n\r\n", "400"),
        ("Transfer-Encoding: chunked", "fffffffffffffffff\r\n{}\r\n0\r\n\r\n", "400"),
        ("Transfer-Encoding: gzip, chunked", "0\r\n\r\n", "501"),
        ("Transfer-Encoding: chunked, chunked", "0\r\n\r\n", "400"),
    ] {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let head = client.head("ping", "");
        let begin = Instant::now();
        client.send(&format!("{head}{length}\r\n\r\n{body}")).await.expect("sent");
        let (output, after) = rest(client, begin).await;
        assert!(output.starts_with(&format!("HTTP/1.1 {status}")), "{length}, {body}: {output}");
        // Bytes behind a response are never parsed as a further request that is answered with
        // success.
        assert!(!output.contains("HTTP/1.1 200"), "{length}, {body}: {output}");
        // The timeout is one second.
        assert!(after < bound(20_000, 4_000), "{length}, {body}: {after:?}");
    }
    let mut client = Client::connect(&gateway.address).await.expect("it listens");
    assert_eq!(client.call(Call::default()).await, Outcome::Answered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f71_f72_what_is_too_large_is_refused_in_words_and_at_once() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(8).await;
    let gateway = Gateway::start(server.address, QUICK).await;
    let fields = |count: usize| (0..count).map(|at| format!("X-{at}: y\r\n")).collect::<String>();
    let long = |bytes: usize| format!("X-Long: {}\r\n", "y".repeat(bytes));
    let heads =
        [(fields(101), 431), (fields(10_000), 431), (long(17 << 10), 431), (long(10 << 20), 431)];
    let mut slowest = Duration::ZERO;
    let before = kib_of(gateway.pid(), "VmRSS");
    for (more, status) in heads {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let head = client.head("ping", &more);
        let begin = Instant::now();
        let (mut reading, mut writing) = tokio::io::split(&mut client.stream);
        let text = format!("{head}\r\n");
        let mut output = Vec::new();
        let write = async {
            use tokio::io::AsyncWriteExt;
            let _ = writing.write_all(text.as_bytes()).await;
        };
        let read = async {
            let _ = reading.read_to_end(&mut output).await;
        };
        tokio::join!(write, read);
        let output = String::from_utf8_lossy(&output);
        assert!(
            output.starts_with(&format!("HTTP/1.1 {status}")),
            "{} bytes: {output}",
            more.len()
        );
        slowest = slowest.max(begin.elapsed());
    }
    assert!(slowest < bound(20_000, 2_000), "{slowest:?}");
    let grown = kib_of(gateway.pid(), "VmRSS").saturating_sub(before);
    assert!(grown < 4 << 10, "{grown} KiB");

    for (more, length, status) in
        [("", (4 << 20) + 1, 413), ("", 100 << 20, 413), ("Content-Encoding: gzip\r\n", 10, 415)]
    {
        let mut client = Client::connect(&gateway.address).await.expect("it listens");
        let head = client.head("ping", more);
        client.send(&format!("{head}Content-Length: {length}\r\n\r\n")).await.expect("sent");
        let reply = client.read_response().await.expect("a reply");
        assert_eq!(reply.status, status, "{reply:?}");
    }
    let mut client = Client::connect(&gateway.address).await.expect("it listens");
    let head = client.head("ping", "");
    client.send(&format!("{head}Transfer-Encoding: chunked\r\n\r\n")).await.expect("sent");
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    for _ in 0..66 {
        let _ = client.send(&chunk).await;
    }
    assert_eq!(client.read_response().await.expect("it can be read").status, 413);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f75_pipelined_requests_are_answered_in_their_order_and_who_closes_half_has_left() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = Server::start(200).await;
    let gateway = Gateway::start(server.address, QUICK).await;
    let mut client = Client::connect(&gateway.address).await.expect("it listens");
    let wait = |nonce| (nonce * 7) % 20;
    let all =
        (0..100).map(|nonce| client.request(Call { nonce, wait: wait(nonce), ..Call::default() }));
    let all: String = all.collect();
    client.send(&all).await.expect("sent");
    for nonce in 0..100 {
        let reply = client.read_response().await.expect("a reply");
        assert!(reply.body.contains(&format!("\"text\":\"{nonce}.\"")), "{nonce}: {reply:?}");
    }
    // In the modern era losing the stream means cancellation, and a half-close is all that Weir can
    // see of it.
    let request = client.request(Call { nonce: 1_000, wait: 60_000, ..Call::default() });
    client.send(&request).await.expect("sent");
    server.has_under_way(1).await;
    let begin = Instant::now();
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.expect("half closed");
    while server.under_way() > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        // It would take a minute.
        assert!(begin.elapsed() < Duration::from_secs(30), "the call goes on");
    }
    assert!(client.is_closed().await || begin.elapsed() < Duration::from_secs(30));
}
