//! Health of an upstream: status reports, the circuit breaker and crash loops.

use std::path::PathBuf;
use std::time::Duration;

use hyper::header::HeaderValue;
use serde_json::json;
use tokio::time::Instant;

use super::calls::RunningCall;
use crate::call_metrics::CallEnd;
use crate::connect::ChildCommand;
use crate::health::status_report::State;
use crate::testing::{Peer, SendCall, TestTransport, World, call, discovered, settings};
use crate::{Error, Settings, Sharing, UpstreamReport, UpstreamSource};
use weir_mcp::kind::Kind;
use weir_mcp::revision::{Era, Revision};

const MODERN: Revision = Revision::V2026_07_28;

/// Sends a call over HTTP whose server responds with this status.
async fn call_with_status(world: &mut World, status: u16) -> Error {
    let running = RunningCall::start(world, call(MODERN));
    world.post().await.status(status);
    running.end().await.expect_err("no reply")
}

/// Waits until the report matches.
async fn wait_for_report(world: &World, is_so: impl Fn(&UpstreamReport) -> bool) -> UpstreamReport {
    loop {
        let report = world.upstream.report();
        if is_so(&report) {
            return report;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Number of calls with this outcome.
fn outcome_count(world: &World, how: CallEnd) -> u64 {
    let ends = world.upstream.call_metrics().ends().filter(|(_, end, _)| *end == how);
    ends.map(|(.., count)| count).sum()
}

#[tokio::test(start_paused = true)]
async fn a_report_tells_what_an_operator_wants_to_know() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let report = world.upstream.report();
    assert_eq!((report.state, report.about.is_none()), (State::Starting, true));
    let mut peer = world.child().await;
    peer.write_stderr("ready\u{1b}[0m").await;
    peer.open(Era::Modern).await;
    world.up().await;
    let report = world.upstream.report();
    assert_eq!((report.name.as_str(), report.state, report.reason), ("hub", State::Up, None));
    assert_eq!(report.about.expect("it is up").transport, "stdio");

    let list = world.tracker.spawn({
        let upstream = world.upstream.clone();
        async move { upstream.list(Kind::Tool).await }
    });
    let request = peer.read().await;
    peer.answer(&request, json!({ "tools": [{ "name": "t" }] })).await;
    let listed = list.await.expect("no panic").expect("a list");
    assert_eq!(listed.items.len(), 1);

    let running = RunningCall::start(&world, call(MODERN));
    let request = peer.read().await;
    assert_eq!(world.upstream.report().in_flight, 1);
    peer.answer(&request, json!({ "content": [] })).await;
    running.end().await.expect("a reply");
    let running = RunningCall::start(&world, call(MODERN));
    let request = peer.read().await;
    peer.refuse(&request, -32602).await;
    running.end().await.expect("an error is a reply");
    let running = RunningCall::start(&world, call(MODERN));
    peer.read().await;
    running.0.abort();
    peer.write("no message").await;
    peer.send(json!({ "jsonrpc": "2.0", "id": 9_999, "result": {} })).await;
    let report = wait_for_report(&world, |report| report.counts.dropped > 0).await;
    let counts = report.counts;
    let ends =
        [CallEnd::Result, CallEnd::Error, CallEnd::Cancelled].map(|end| outcome_count(&world, end));
    assert_eq!((ends, counts.junk, report.in_flight), ([1, 1, 1], 1, 0));

    let log = world.upstream.read_log(0, 10);
    let log: Vec<_> = log.lines.iter().map(|line| (line.process, &*line.text)).collect();
    let connected = "connected over stdio, revision 2026-07-28";
    assert_eq!(log, [(Some(1), "started"), (Some(1), "ready"), (None, connected)]);
    peer.exit("exited with code 3");
    world.down().await;
    let report = world.upstream.report();
    assert_eq!((report.state, report.failures), (State::Down, 1));
    assert!(report.reason.expect("a reason").starts_with("the process exited with code 3"));
    assert!(report.next_try.expect("it is tried again") > Instant::now());
    world.child().await.open(Era::Modern).await;
    world.up().await;
    let report = world.upstream.report();
    assert_eq!((report.state, report.failures, report.next_try), (State::Up, 0, None));
    assert_eq!(report.counts.restarts, 1);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f20_a_child_that_ends_again_and_again_is_a_crash_loop_until_it_lives() {
    let mut world = World::start(settings(TestTransport::Stdio));
    let mut last = None;
    let mut pauses = Vec::new();
    for end in 1..=7 {
        let mut peer = world.child().await;
        pauses.extend(last.map(|last: Instant| last.elapsed().as_millis()));
        peer.open(Era::Modern).await;
        world.up().await;
        peer.exit("exited with code 1");
        world.down().await;
        last = Some(Instant::now());
        let expected = if end < 5 { State::Down } else { State::CrashLoop };
        assert_eq!(world.upstream.report().state, expected, "{end}");
    }
    assert_eq!(pauses, [250, 500, 1_000, 2_000, 30_000, 30_000]);
    // The child lives, but not for long enough.
    for (lives, state, pause) in [(59, State::CrashLoop, 30_000), (60, State::Down, 250)] {
        let mut peer = world.child().await;
        peer.open(Era::Modern).await;
        world.up().await;
        tokio::time::sleep(Duration::from_secs(lives)).await;
        peer.exit("exited with code 1");
        world.down().await;
        assert_eq!(world.upstream.report().state, state, "{lives}");
        let down = Instant::now();
        let next = world.upstream.report().next_try.expect("it is tried again");
        assert_eq!((next - down).as_millis(), pause);
    }
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f20_a_child_that_ends_before_it_is_open_is_a_crash_loop_too() {
    let settings = Settings { era: Some(Era::Modern), ..settings(TestTransport::Stdio) };
    let mut world = World::start(settings);
    for end in 1..=5 {
        world.child().await.exit("exited with code 127");
        wait_for_report(&world, |report| report.failures == end).await;
    }
    assert_eq!(world.upstream.report().state, State::CrashLoop);
    assert_eq!(world.upstream.report().counts.restarts, 4);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f08_a_server_that_fails_call_after_call_is_left_alone_and_probed_by_one_call() {
    let mut world = World::http(Era::Modern).await;
    call_with_status(&mut world, 500).await;
    world.check().await.answer(discovered());
    for status in [502, 503, 504] {
        call_with_status(&mut world, status).await;
    }
    // A client's mistake, and a JSON-RPC error of the server, show that the server works.
    call_with_status(&mut world, 400).await;
    assert_eq!(world.upstream.report().state, State::Up);
    for _ in 0..4 {
        call_with_status(&mut world, 500).await;
    }
    assert_eq!(world.upstream.report().state, State::Up);
    call_with_status(&mut world, 500).await;
    let report = world.upstream.report();
    assert_eq!((report.state, report.counts.breaker_opens), (State::BreakerOpen, 1));
    let began = Instant::now();
    let error = world.upstream.send(call(MODERN)).await.expect_err("left alone");
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("HTTP 500")), "{error}");
    assert!(world.upstream.list(Kind::Tool).await.is_err(), "lists are not tried either");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(world.is_quiet().await);

    let due = report.next_try.expect("when it is tried again");
    assert_eq!((due - report.since).as_secs(), 5);
    tokio::time::sleep_until(due).await;
    assert_eq!(world.upstream.report().state, State::BreakerHalfOpen);
    let probe = RunningCall::start(&world, call(MODERN));
    let request = world.post().await;
    for _ in 0..10 {
        let error = world.upstream.send(call(MODERN)).await.expect_err("one probe at a time");
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
    }
    assert!(world.is_quiet().await);
    request.answer(json!({ "content": [] }));
    probe.end().await.expect("a reply");
    assert_eq!(world.upstream.report().state, State::Up);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f04_a_server_that_answers_nothing_is_left_alone_and_a_probe_that_is_given_up_decides_nothing()
 {
    let mut world = World::http(Era::Modern).await;
    let mut request = Vec::new();
    let calls: Vec<_> = (0..4).map(|_| RunningCall::start(&world, call(MODERN))).collect();
    for _ in 0..4 {
        request.push(world.post().await);
    }
    for running in calls {
        assert!(matches!(running.end().await, Err(Error::TimedOut(_))));
    }
    let running = RunningCall::start(&world, call(MODERN));
    request.push(world.post().await);
    assert!(matches!(running.end().await, Err(Error::TimedOut(_))));
    let due = world.upstream.report().next_try.expect("it is left alone");
    tokio::time::sleep_until(due).await;
    let probe = RunningCall::start(&world, call(MODERN));
    request.push(world.post().await);
    probe.0.abort();
    let report = wait_for_report(&world, |_| outcome_count(&world, CallEnd::Cancelled) > 0).await;
    assert_eq!(report.state, State::BreakerHalfOpen);
    let probe = RunningCall::start(&world, call(MODERN));
    world.post().await.answer(json!({ "content": [] }));
    probe.end().await.expect("a reply");
    assert_eq!(world.upstream.report().state, State::Up);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f08_retry_after_is_told_to_its_caller_and_leaves_the_server_to_all_others() {
    let retry_after = |seconds| Some(Duration::from_secs(seconds));
    for (status, after, expected) in [
        (503, "0", retry_after(0)),
        (503, "7", retry_after(7)),
        (429, "1", retry_after(1)),
        (429, "99999999", retry_after(24 * 60 * 60)),
        (503, "soon", None),
    ] {
        let mut world = World::http(Era::Modern).await;
        for count in 1..=5 {
            let running = RunningCall::start(&world, call(MODERN));
            let request = world.post().await;
            let response = hyper::Response::builder().status(status).header("retry-after", after);
            request.reply(response, String::new());
            let error = running.end().await.expect_err("no reply");
            let Error::HttpStatus { retry_after, .. } = error else { panic!("{error}") };
            if expected.is_none() && count == 1 {
                world.check().await.answer(discovered());
            }
            assert_eq!(retry_after, expected, "{status} {after}");
            // By the breaker's own rule, after five in a row, and for its own open period.
            let report = world.upstream.report();
            let rest = report.next_try.map(|due| (due - report.since).as_secs());
            assert_eq!(rest, (count == 5).then_some(5), "{status} {after}");
        }
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_for_its_credentials_is_no_failing_server() {
    let mut world = World::http(Era::Modern).await;
    for status in [401, 403].repeat(5) {
        let error = call_with_status(&mut world, status).await;
        let is_status = matches!(&error, Error::HttpStatus { status: it, .. } if *it == status);
        assert!(is_status, "{error}");
    }
    assert_eq!(world.upstream.report().state, State::Up);
    assert_eq!(outcome_count(&world, CallEnd::HttpStatus), 10);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_ends_under_many_calls_is_not_left_alone_for_each_of_them() {
    let mut settings = settings(TestTransport::Stdio);
    settings.limits.concurrency = 16;
    let (mut world, mut peer) = World::opened(settings, Era::Modern).await;
    let calls: Vec<_> = (0..16).map(|_| RunningCall::start(&world, call(MODERN))).collect();
    for _ in 0..16 {
        peer.read().await;
    }
    peer.exit("was killed by signal 9");
    for running in calls {
        assert!(matches!(running.end().await, Err(Error::ConnectionLost(_))));
    }
    let mut peer = world.child().await;
    peer.open(Era::Modern).await;
    world.up().await;
    let running = RunningCall::start(&world, call(MODERN));
    let request = peer.read().await;
    peer.answer(&request, json!({ "content": [] })).await;
    running.end().await.expect("a reply");
    assert_eq!(world.upstream.report().counts.breaker_opens, 0);
    world.finish().await;
}

/// Reason for the end of a child that was connected and then wrote something.
async fn end_reason(write: impl AsyncFn(&mut Peer)) -> String {
    let (world, mut peer) = World::opened(settings(TestTransport::Stdio), Era::Modern).await;
    write(&mut peer).await;
    let reason = world.down().await;
    world.finish().await;
    // The child did not end by itself.
    assert_eq!(*peer.signals.lock(), ["terminate", "kill", "kill"]);
    reason
}

#[tokio::test(start_paused = true)]
async fn f29_f31_f36_a_child_that_nobody_can_make_sense_of_is_started_again() {
    let junk = async |peer: &mut Peer| {
        for _ in 0..=1_000 {
            peer.write("INFO all is well").await;
        }
    };
    let too_much = |what: &str| format!("it sent too much junk: more than {what}");
    let lines = too_much("1000 lines or events that are no messages in 10 s");
    assert_eq!(end_reason(junk).await, lines);
    let empty = async |peer: &mut Peer| peer.write(&"\n".repeat(1_000)).await;
    let lines = too_much("1000 empty lines or comments in 10 s");
    assert_eq!(end_reason(empty).await, lines);
    let unasked = async |peer: &mut Peer| {
        for id in 0..=100 {
            peer.send(json!({ "jsonrpc": "2.0", "id": 1_000_000 + id, "result": {} })).await;
        }
    };
    let responses = too_much("100 responses to unknown requests in 10 s");
    assert_eq!(end_reason(unasked).await, responses);
    let oversized = async |peer: &mut Peer| {
        for _ in 0..3 {
            peer.write(&"x".repeat(1024 * 1024 + 1)).await;
        }
    };
    let messages = too_much("2 messages over the limit in 60 s");
    assert_eq!(end_reason(oversized).await, messages);
}

#[tokio::test(start_paused = true)]
async fn f29_what_is_within_bounds_is_skipped_and_counted() {
    let (world, mut peer) = World::opened(settings(TestTransport::Stdio), Era::Modern).await;
    for _ in 0..3 {
        for _ in 0..900 {
            peer.write("INFO all is well").await;
        }
        for _ in 0..2 {
            peer.write(&"x".repeat(1024 * 1024 + 1)).await;
        }
        // Late and duplicate responses belong to requests of Weir.
        let running = RunningCall::start(&world, call(MODERN));
        let request = peer.read().await;
        for _ in 0..200 {
            peer.answer(&request, json!({ "content": [] })).await;
        }
        running.end().await.expect("a reply");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let report = world.upstream.report();
    assert_eq!((report.state, report.counts.junk, report.counts.restarts), (State::Up, 2_700, 0));
    assert_eq!(report.counts.dropped, 3 * 199);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn f29_a_child_that_says_nothing_but_nonsense_is_no_server_and_its_first_line_tells() {
    let settings = Settings { era: Some(Era::Modern), ..settings(TestTransport::Stdio) };
    let mut world = World::start(settings);
    let mut peer = world.child().await;
    for _ in 0..20 {
        peer.write(&format!("usage: server [--stdio]{}", " ".repeat(4_000))).await;
    }
    let reason = world.down().await;
    assert!(reason.contains("its standard output does not begin with a message"), "{reason}");
    assert!(reason.contains("usage: server [--stdio]"), "{reason}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_a_server_repeats_in_a_refusal_is_not_in_the_reason() {
    let mut settings = Settings { era: Some(Era::Legacy), ..settings(TestTransport::Http) };
    let UpstreamSource::Http { headers, .. } = &mut settings.source else { unreachable!() };
    headers.insert("authorization", HeaderValue::from_static("Bearer canary-token"));
    headers.insert("x-basic", HeaderValue::from_static("Basic bWU6Y2FuYXJ5LXBhc3N3b3Jk"));
    let mut world = World::start(settings);
    let request = world.post().await;
    let error = json!({ "code": -32000, "message": "bad token canary-token, me, canary-password" });
    let reply = json!({ "jsonrpc": "2.0", "id": request.id(), "error": error });
    request.json(200, reply);
    let reason = world.down().await;
    assert!(reason.contains("bad token") && !reason.contains("canary"), "{reason}");
    world.finish().await;
}

#[test]
fn what_is_kept_on_disk_is_for_the_same_server_and_the_same_account() {
    for digest in [Settings::fingerprint, Settings::list_key] {
        let process = |value: &str| {
            digest(&process(|command| command.env.push(("TOKEN".into(), value.into()))))
        };
        let (one, other) = (process("a-secret"), process("another"));
        assert_eq!(one, process("a-secret"));
        assert!(one != other && !one.contains("a-secret") && one.len() == 64);
        assert!(digest(&settings(TestTransport::Http)) != digest(&settings(TestTransport::Sse)));
    }
}

#[test]
fn lists_are_the_same_for_every_client_and_wherever_it_starts_weir() {
    let key = |change: fn(&mut ChildCommand)| process(change).list_key();
    let plain = key(|_| {});
    assert_eq!(key(|command| command.inherited.push(("TERM".into(), "dumb".into()))), plain);
    let sole = Settings { sharing: Sharing::Sole("{}".into()), ..process(|_| {}) };
    assert_eq!(sole.list_key(), plain);
    assert!(sole.fingerprint() != process(|_| {}).fingerprint());
    // Whether the working directory counts: it does if it makes no difference to name it.
    let depends_on_folder = |arg: &str| {
        let at = |cwd: Option<PathBuf>| {
            let settings = process(|command| {
                command.args.push(arg.into());
                command.cwd = cwd;
            });
            settings.list_key()
        };
        at(None) == at(std::env::current_dir().ok())
    };
    for absolute in ["-y", "@scope/server", "missing.py", "/etc/hosts", "--dir=/etc", ""] {
        assert!(!depends_on_folder(absolute), "{absolute}");
    }
    // The folder of a package has a folder `src`.
    for relative in [".", "./a", "../a", "src", "--dir=src", "--dir=."] {
        assert!(depends_on_folder(relative), "{relative}");
    }
}

/// Settings of a process whose command is changed.
fn process(change: impl FnOnce(&mut ChildCommand)) -> Settings {
    let mut settings = settings(TestTransport::Stdio);
    let UpstreamSource::Process(command) = &mut settings.source else { unreachable!() };
    change(command);
    settings
}
