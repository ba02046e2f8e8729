//! Tests of the audit log as a whole: events in, lines in a file out.

use std::fs;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use weir_base::json::Object;

/// A log that is written.
struct RunningLog {
    audit: Audit,
    tracker: TaskTracker,
    stop: CancellationToken,
    path: PathBuf,
}

fn settings(path: &Path) -> Settings {
    Settings {
        target: AuditTarget::File(path.to_owned()),
        arguments: Arguments::Names,
        chain: true,
        rotate_size: 1 << 20,
        rotate_keep: 3,
        on_error: OnError::Continue,
    }
}

impl RunningLog {
    fn open(settings: &Settings) -> Self {
        let (audit, writer) = Audit::open(settings).expect("opened");
        let (tasks, stop, path) = (TaskTracker::new(), CancellationToken::new(), writer.path());
        tasks.spawn(writer.run(stop.clone()));
        Self { audit, tracker: tasks, stop, path }
    }

    fn event(&self, client: &str, method: &str) -> AuditEvent {
        let event = self.audit.begin(TransportKind::Http, Some([127, 0, 0, 1].into()));
        event.set_client(&client.into(), &"guest".into(), Some(&"editor".into()));
        event.set_method(method);
        event
    }

    async fn close(self) -> PathBuf {
        drop(self.audit);
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        self.path
    }
}

const OK: EventCompletion =
    EventCompletion { outcome: AuditOutcome::Ok, code: None, status: None, bytes_out: Some(7) };
const UNAUTHORIZED: EventCompletion = EventCompletion {
    outcome: AuditOutcome::Refused,
    code: Some(-32600),
    status: Some(401),
    bytes_out: None,
};

/// The values of some members of each line.
fn member_values(path: &Path, members: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a log");
    let of_line = |line: &str| {
        let object = Object::parse(line.to_owned()).expect("a line of JSON");
        let member = |member: &&str| object.get(member).unwrap_or("-").trim_matches('"').to_owned();
        members.iter().map(member).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(of_line).collect()
}

#[tokio::test]
async fn a_record_is_written_once_however_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = RunningLog::open(&settings(&folder.path().join("a")));
    let event = log.event("ann", "tools/list");
    event.end(OK);
    event.end(UNAUTHORIZED);
    drop(event);
    let event = log.event("bob", "tools/call");
    drop(event.clone());
    event.begin_next().discard();
    drop(event);
    let path = log.close().await;
    let expected = [
        "1 started - - -",
        "2 request ann tools/list ok",
        "3 request bob tools/call cancelled",
        "4 stopped - - -",
    ];
    assert_eq!(member_values(&path, &["seq", "event", "client", "method", "outcome"]), expected);
    assert_eq!(verify::verify(&[path]).expect("whole").lines, 4);
}

#[tokio::test]
async fn a_log_goes_on_in_the_next_process_and_over_rotation() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a");
    let small = Settings { rotate_size: 2_000, rotate_keep: 50, ..settings(&path) };
    for _ in 0..2 {
        let log = RunningLog::open(&small);
        for _ in 0..20 {
            log.event("ann", "tools/list").end(OK);
        }
        log.close().await;
    }
    let files = log_files(&path).concat();
    assert!(files.len() > 5, "{files:?}");
    let sizes = files.iter().map(|file| fs::metadata(file).expect("there").len());
    assert!(sizes.max() < Some(2_600));
    let report = verify::verify(&verify::in_order(&files).expect("readable")).expect("whole");
    assert_eq!((report.first, report.last, report.lines), (1, 44, 44));
    let without_one = [&files[..2], &files[3..]].concat();
    assert!(verify::verify(&without_one).is_err());
}

#[tokio::test]
async fn a_log_that_was_moved_away_is_begun_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a");
    let log = RunningLog::open(&settings(&path));
    log.event("ann", "tools/list").end(OK);
    while fs::read_to_string(&path).is_ok_and(|text| text.lines().count() < 2) {
        tokio::task::yield_now().await;
    }
    let moved = folder.path().join("moved");
    fs::rename(&path, &moved).expect("moved");
    log.event("bob", "tools/list").end(OK);
    log.close().await;
    assert_eq!(member_values(&path, &["seq", "client"]), ["3 bob", "4 -"]);
    assert_eq!(verify::verify(&[moved, path]).expect("whole").lines, 4);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_refusals_is_a_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = RunningLog::open(&settings(&folder.path().join("a")));
    // The client is unknown, with any outcome.
    for number in 0..1_000 {
        let event = log.audit.begin(TransportKind::Http, None);
        match number % 3 {
            0 => event.end(UNAUTHORIZED),
            1 => event.end(OK),
            _ => drop(event),
        }
    }
    log.event("ann", "tools/list").end(OK);
    let path = log.close().await;
    let lines = member_values(&path, &["event", "status", "count"]);
    assert_eq!(lines.len(), 1 + 100 + 1 + 2);
    assert_eq!(lines[101..], ["request - -", "left_out - 900", "stopped - -"]);
}

#[tokio::test]
async fn a_record_that_is_held_ends_as_it_was_ended_last() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = RunningLog::open(&settings(&folder.path().join("a")));
    for (ends, is_held) in [(vec![OK, UNAUTHORIZED], true), (vec![OK, UNAUTHORIZED], false)] {
        let event = log.event("ann", "tools/list");
        if is_held {
            event.defer_end(true);
        }
        ends.into_iter().for_each(|ending| event.end(ending));
    }
    log.event("bob", "tools/list").defer_end(true);
    let event = log.event("eve", "tools/list");
    event.set_refused_by("limits[0]");
    event.add_findings(2);
    event.end_if_written(OK);
    let path = log.close().await;
    let expected = ["ann editor refused", "ann editor ok", "bob editor cancelled"];
    assert_eq!(member_values(&path, &["client", "application", "outcome"])[1..4], expected);
    assert_eq!(fs::read_to_string(path).expect("a log").lines().count(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_at_the_place_that_was_kept_for_it_and_keeps_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let refusing = Settings { on_error: OnError::Refuse, ..settings(&folder.path().join("a")) };
    let (audit, writer) = Audit::open(&refusing).expect("opened");
    let event = |client: &str| {
        let event = audit.begin(TransportKind::Http, None);
        event.set_client(&client.into(), &"guest".into(), None);
        event.set_method("subscriptions/listen");
        event
    };
    let stream = event("ann");
    assert_eq!(stream.reserve().await, Ok(()));
    // The writer does not run yet, and the queue is full.
    (1..QUEUE).for_each(|_| event("bob").end(OK));
    let stream = stream.begin_stream();
    assert_eq!(event("eve").reserve().await, Err(AuditUnavailable));
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let path = writer.path();
    tasks.spawn(writer.run(stop.clone()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(audit.0.as_ref().map(|shared| shared.queue.capacity()), Some(QUEUE));
    drop(stream);
    tasks.close();
    stop.cancel();
    tasks.wait().await;
    let about = member_values(&path, &["client", "event"]);
    let anns: Vec<_> = about.iter().filter(|line| line.starts_with("ann ")).collect();
    assert_eq!(anns, ["ann begun", "ann request"]);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_can_be_written_it_is_refused_or_counted() {
    let full = |on_error| {
        let settings = Settings { on_error, ..settings(Path::new("/dev/full")) };
        let (audit, mut writer) = Audit::open(&settings).expect("it can be opened");
        let error = writer.write_first().expect_err("it is full").to_string();
        assert!(error.contains("/dev/full cannot be written: No space"), "{error}");
        (audit, writer)
    };
    let (audit, writer) = full(OnError::Continue);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    tasks.spawn(writer.run(stop.clone()));
    let event = audit.begin(TransportKind::Stdio, None);
    assert_eq!((event.reserve().await, event.before_sending().await), (Ok(()), Ok(())));
    drop(event);
    stop.cancel();

    let (audit, writer) = full(OnError::Refuse);
    let stop = CancellationToken::new();
    tasks.spawn(writer.run(stop.clone()));
    let event = audit.begin(TransportKind::Stdio, None);
    assert_eq!(event.reserve().await, Ok(()), "nobody has tried yet");
    assert_eq!(event.before_sending().await, Err(AuditUnavailable));
    assert_eq!(event.begin_next().reserve().await, Err(AuditUnavailable));
    drop(event);
    stop.cancel();
    tasks.close();
    tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn writing_goes_on_once_there_is_room_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("logs/a");
    let refusing = Settings { on_error: OnError::Refuse, ..settings(&path) };
    let log = RunningLog::open(&refusing);
    let event = log.event("ann", "tools/call");
    assert_eq!(event.before_sending().await, Ok(()));
    event.end(OK);
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Without the folder there is no file to write to.
    fs::rename(folder.path().join("logs"), folder.path().join("gone")).expect("moved");
    let event = log.event("bob", "tools/call");
    assert_eq!(event.before_sending().await, Err(AuditUnavailable));
    event.end(UNAUTHORIZED);
    fs::create_dir(folder.path().join("logs")).expect("made");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let event = log.event("eve", "tools/call");
    assert_eq!(event.before_sending().await, Ok(()));
    event.end(OK);
    log.close().await;
    let events = member_values(&path, &["event", "client", "outcome", "request"]);
    let expected =
        ["request bob refused 2", "admitted eve - 3", "request eve ok 3", "stopped - - -"];
    assert_eq!(events, expected);
    let old = folder.path().join("gone/a");
    assert_eq!(verify::verify(&[old, path]).expect("whole").last, 7);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_written_is_counted_and_the_count_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("logs/a");
    let log = RunningLog::open(&Settings { rotate_size: u64::MAX, ..settings(&path) });
    fs::rename(folder.path().join("logs"), folder.path().join("gone")).expect("moved");
    for number in 0..10_000 {
        log.event("ann", "tools/list").end(OK);
        // The queue is emptied now and then, into what is kept until it can be written.
        if number % 1_000 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    fs::create_dir(folder.path().join("logs")).expect("made");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let path = log.close().await;
    let written =
        member_values(&path, &["event"]).iter().filter(|event| *event == "request").count() as u64;
    let report = verify::verify(&[path]).expect("whole");
    assert!(report.lost > 0 && written > 4_000, "{report:?}");
    assert_eq!(written + report.lost, 10_000);
}
