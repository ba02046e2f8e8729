//! Notification workload: one change of a list, sent to all open streams.
//!
//! The time runs from when the list was requested (by Weir, which has to know the change before it
//! notifies; the fixture records when) until the last stream has the notification. Where no gateway
//! requests a list in between (direct, nginx), it runs from the change. The load reads all streams
//! in one thread, and its time is in the figure.

use std::io;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use super::Bench;
use super::requests::fixture;
use crate::clock::monotonic_nanos;
use crate::load::connection::Connection;
use crate::load::exchange::{FIRST_ID, Want};
use crate::load::peer::{Era, Peer};
use crate::process;
use crate::subject::{self, Fixture, Setup, Subject};

pub(super) async fn run(bench: &mut Bench) -> io::Result<()> {
    let few = &[Subject::Direct, Subject::Nginx, Subject::Weir][..];
    for (name, streams, subjects) in
        [("fanout-200", 200, few), ("fanout-10000", 10_000, &[Subject::Weir][..])]
    {
        if !bench.wants(name) {
            continue;
        }
        for subject in bench.of(subjects) {
            if let Err(error) = measure(bench, name, subject, streams).await {
                bench.results.fail(name, subject.name(), &error.to_string());
            }
        }
    }
    Ok(())
}

async fn measure(
    bench: &mut Bench,
    name: &str,
    subject: Subject,
    streams: usize,
) -> io::Result<()> {
    let folder = tempfile::tempdir_in(&bench.folder)?;
    let fixture = Fixture::start(&fixture(64), folder.path())?;
    let setup = Setup { streams: streams + 8, ..Setup::of(&fixture.addresses, Era::Modern) };
    let mut running = subject::start(subject, &bench.programs, &setup, folder.path()).await?;
    running.lists("prompts/list", 100, Era::Modern).await?;
    let peer = running.peer(0, Era::Modern);
    let processes = running.processes();
    let control = Peer::new(fixture.addresses[0], "/mcp", None, Era::Modern);

    bench.report_progress(&format!("{name}: {subject}: opening {streams} streams"));
    let idle = process::memory_kib(&processes, "VmRSS");
    let mut open = Vec::with_capacity(streams);
    for _ in 0..streams {
        open.push(listen(&peer).await?);
    }
    if !processes.is_empty() {
        let each = (process::memory_kib(&processes, "VmRSS") - idle) / streams as f64;
        bench.results.note(name, subject.name(), "kib_each", each);
    }
    for turn in 0..bench.turns {
        bench.report_progress(&format!(
            "{name}: {subject}: change {} of {}",
            turn + 1,
            bench.turns
        ));
        // A client is notified of a kind at most once a second.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let cpu = process::cpu_of_threads(&processes);
        let mut waiting = JoinSet::new();
        for mut stream in open.drain(..) {
            waiting.spawn(async move {
                let notified = stream.until("notifications/prompts/list_changed");
                let notified = tokio::time::timeout(Duration::from_secs(20), notified).await;
                notified.map_err(io::Error::other)??;
                io::Result::Ok((stream, monotonic_nanos()))
            });
        }
        // All streams wait before the change.
        tokio::task::yield_now().await;
        let begin = monotonic_nanos();
        command(&control, "POST", "add").await?;
        let mut last = 0;
        while let Some(one) = waiting.join_next().await {
            let (stream, at) = one.map_err(io::Error::other)??;
            last = last.max(at);
            open.push(stream);
        }
        let listed = command(&control, "GET", "listed").await?;
        let listed = listed.split(' ').nth(1).and_then(|at| at.parse::<u64>().ok());
        let from = listed.filter(|at| subject == Subject::Weir && *at > begin).unwrap_or(begin);
        let mut note = |figure, value| bench.results.note(name, subject.name(), figure, value);
        note("told_ms", last.saturating_sub(from) as f64 / 1e6);
        note("changed_to_told_ms", last.saturating_sub(begin) as f64 / 1e6);
        if !processes.is_empty() {
            note("cpu_ms", (process::cpu_of_threads(&processes) - cpu) * 1e3);
        }
    }
    Ok(())
}

/// Opens a stream and waits for the acknowledgment.
async fn listen(peer: &Peer) -> io::Result<Connection> {
    let mut stream = Connection::open(peer.address).await?;
    let wanted = json!({ "notifications": { "promptsListChanged": true } });
    let mut request = Vec::new();
    peer.request("subscriptions/listen", wanted, Want::Anything).write(FIRST_ID, &mut request);
    stream.send(&request).await?;
    let acknowledged = stream.until("notifications/subscriptions/acknowledged");
    let acknowledged = tokio::time::timeout(Duration::from_secs(10), acknowledged).await;
    acknowledged.map_err(|_| io::Error::other("a stream was not acknowledged"))??;
    Ok(stream)
}

/// Sends a command to the fixture's control plane.
async fn command(fixture: &Peer, method: &str, path: &str) -> io::Result<String> {
    let mut connection = Connection::open(fixture.address).await?;
    let head =
        format!("{method} /control/{path} HTTP/1.1\r\nhost: fixture\r\ncontent-length: 0\r\n\r\n");
    let response = connection.exchange(head.as_bytes()).await?;
    match response.status {
        200 => Ok(String::from_utf8_lossy(response.body).into_owned()),
        status => Err(io::Error::other(format!("the fixture says {status} to {path}"))),
    }
}
