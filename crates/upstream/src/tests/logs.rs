//! Log of an upstream for operators.

use hyper::http::StatusCode;

use crate::Upstream;
use crate::testing::{TestTransport, World, settings};
use weir_mcp::revision::Era;

/// The log, each entry with the number of its process.
fn log(upstream: &Upstream) -> Vec<String> {
    let text = |line: crate::health::upstream_log::LogLine| match line.process {
        Some(process) => format!("#{process} {}", line.text),
        None => line.text,
    };
    upstream.read_log(0, usize::MAX).lines.into_iter().map(text).collect()
}

const CONNECTED: &str = "connected over stdio, revision 2025-11-25";

#[tokio::test(start_paused = true)]
async fn the_log_tells_a_process_that_was_killed_from_one_that_weir_has_stopped() {
    let (mut world, mut peer) = World::stdio(Era::Legacy).await;
    peer.write_stderr("one").await;
    peer.exit("was killed by signal 9");
    world.down().await;
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    world.up().await;
    let upstream = world.upstream.clone();
    world.stop.cancel();
    assert_eq!(peer.try_read().await, None);
    peer.write_stderr("last words").await;
    peer.exit("exited with code 0");
    world.finish().await;
    assert_eq!(
        log(&upstream),
        [
            "#1 started",
            CONNECTED,
            "#1 one",
            "#1 ended: was killed by signal 9",
            "not connected: the process was killed by signal 9; last line of standard error: \
             \"one\"",
            "#2 started",
            CONNECTED,
            "stopped",
            "#2 last words",
            "#2 ended: it was stopped, and exited with code 0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_log_goes_on_where_an_upstream_is_replaced() {
    let (mut world, mut before) = World::stdio(Era::Legacy).await;
    let (connector, stop) = (world.connector.clone(), world.stop.clone());
    let (budget, tracker) = (world.budget.clone(), world.tracker.clone());
    let settings = settings(TestTransport::Stdio);
    let replaced = Some(&world.upstream);
    let next = Upstream::start_after(replaced, settings, connector, &budget, &tracker, &stop);
    let mut peer = world.child().await;
    peer.open(Era::Legacy).await;
    let mut status = next.status();
    let up = status.wait_for(|status| matches!(status, crate::ConnectionStatus::Up(_)));
    up.await.expect("it lives");
    before.write_stderr("still here").await;
    before.exit("exited with code 0");
    world.down().await;
    let lines = log(&next);
    assert_eq!(
        lines[..6],
        [
            "#1 started",
            CONNECTED,
            "begun again by a reload or a restart",
            "#2 started",
            CONNECTED,
            "#1 still here",
        ]
    );
    assert_eq!(log(&world.upstream), lines);
    drop(next);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_started_and_a_server_that_refuses_are_in_the_log_once() {
    for transport in [TestTransport::Stdio, TestTransport::Http] {
        let mut world = World::start(settings(transport));
        if transport == TestTransport::Stdio {
            world.connector.refuses.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        for _ in 0..3 {
            if transport == TestTransport::Http {
                world.post().await.status(StatusCode::FORBIDDEN.as_u16());
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        let upstream = world.upstream.clone();
        let failed = log(&upstream);
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert!(failed[0].starts_with("not connected: "), "{failed:?}");
        drop(upstream);
        world.finish().await;
    }
}
