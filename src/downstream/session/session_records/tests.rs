//! Tests of the records about sessions.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::time::SystemTime;

use super::record_file::{MAX_RECORDS, REWRITE_FROM_BYTES, open_locked};
use super::*;
use crate::ended_sessions::SessionNumber;
use crate::fleet::{FleetSettings, OnStoreDown, StoreKind, StoreLogin, StoreSettings};
use crate::mcp::log_level::LogLevel;
use crate::sealing::{Instance, SealingKeys};

/// Process that has opened the sessions.
static OPENED_BY: LazyLock<Instance> = LazyLock::new(|| SealingKeys::random().instance());

fn settings(level: LogLevel, uris: &[&str]) -> SessionSettings {
    let subscriptions = uris.iter().map(|uri| Box::from(*uri)).collect();
    SessionSettings { log_level: Some(level), subscriptions }
}

fn file(path: &Path) -> SessionRecords {
    SessionRecords::new(RecordPlace::File(path.into()))
}

fn session(id: &str) -> PlacedSession {
    let opened_by = *OPENED_BY;
    let place = id.bytes().fold(0, |place, byte| 256 * place + u64::from(byte));
    PlacedSession {
        key: hex(&key_of(id)),
        number: Some(SessionNumber { opened_by, place }),
        sealed_by: opened_by,
        until: SystemTime::now() + Duration::from_secs(1_000),
    }
}

/// A session whose id has no number.
fn unnumbered(id: &str) -> PlacedSession {
    PlacedSession { number: None, ..session(id) }
}

/// Records of a replica whose store is away.
fn replica(file: Option<&Path>) -> SessionRecords {
    let settings = FleetSettings {
        name: "weir".into(),
        member: "a".into(),
        address: "127.0.0.1:1".into(),
        store: StoreSettings {
            urls: Vec::new(),
            kind: StoreKind::Server,
            login: StoreLogin::default(),
            ca: None,
            timeout: Duration::from_millis(50),
        },
        on_store_down: OnStoreDown::Share,
    };
    let fleet = Fleet::new(SealingKeys::random(), settings);
    SessionRecords::new(RecordPlace::Fleet(fleet, file.map(Into::into)))
}

fn size(path: &Path) -> usize {
    fs::metadata(path).expect("there").len() as usize
}

#[tokio::test]
async fn what_a_client_has_set_and_ended_is_known_to_the_next_process_and_to_others() {
    for session in [session, unnumbered] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state/sessions");
        let open = || file(&path);
        let (one, other) = (open(), open());
        let set = settings(LogLevel::Error, &["file:///a\n", "b"]);
        one.set(&session("a"), settings(LogLevel::Info, &[]));
        one.set(&session("a"), set.clone());
        one.set(&session("b"), set.clone());
        one.write().await;
        assert_eq!(one.end(&session("b")).await, Ok(()));
        // An ended session stays ended, whatever comes late.
        other.set(&session("b"), set.clone());
        other.write().await;
        assert!(one.is_ended(&session("b")) && !one.is_ended(&session("a")));
        for records in [&one, &other, &open()] {
            assert_eq!(records.find(&session("a")).await, Some(set.clone()));
            assert_eq!(records.find(&session("b")).await, None);
            assert_eq!(records.find(&session("c")).await, Some(SessionSettings::default()));
        }
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn an_end_that_the_store_does_not_take_is_kept_in_the_file_until_it_does() {
    for session in [session, unnumbered] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state/sessions");
        let records = replica(Some(&path));
        assert_eq!(records.end(&session("a")).await, Ok(()));
        assert!(records.is_ended(&session("a")) && !records.is_ended(&session("b")));
        let next = replica(Some(&path));
        next.settle_file().await;
        assert!(next.is_ended(&session("a")) && !next.is_ended(&session("b")));
        assert!(next.state.lock().is_end_pending(&session("a")));
        // Once the store has what was read, nothing is left.
        next.state.lock().take_pending();
        next.settle_file().await;
        assert_eq!(size(&path), 0);
    }
}

#[tokio::test]
async fn a_file_is_not_emptied_of_ends_that_another_process_has_added() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions");
    let (one, other) = (replica(Some(&path)), replica(Some(&path)));
    assert_eq!(one.end(&session("a")).await, Ok(()));
    one.settle_file().await;
    one.state.lock().take_pending();
    assert_eq!(other.end(&session("b")).await, Ok(()));
    one.settle_file().await;
    assert!(size(&path) > 0 && one.state.lock().is_end_pending(&session("b")));
}

#[tokio::test]
async fn an_end_that_cannot_be_kept_is_no_success_and_can_be_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let cannot_be_written = folder.path();
    for file in [None, Some(cannot_be_written)] {
        for session in [session, unnumbered] {
            let records = replica(file);
            assert!(records.end_again(&session("a")).is_none());
            assert_eq!(records.end(&session("a")).await, Err(NotKept));
            assert!(records.is_ended(&session("a")));
            let again = records.end_again(&session("a")).expect("it is not kept yet");
            assert_eq!(again.await, Err(NotKept));
        }
    }
}

#[tokio::test]
async fn of_two_ends_at_a_time_each_is_complete_once_its_own_record_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions");
    let records = file(&path);
    let locked = open_locked(&path).expect("locked");
    let one = std::pin::pin!(records.end(&session("a")));
    let mut other = std::pin::pin!(records.end(&session("b")));
    // The first takes all records that are to be written.
    assert!(futures::poll!(one).is_pending() && futures::poll!(other.as_mut()).is_pending());
    drop(locked);
    assert_eq!(other.await, Ok(()));
    assert_eq!(file(&path).find(&session("b")).await, None);
}

#[tokio::test]
async fn an_incomplete_line_costs_itself_only_and_an_old_record_expires() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions");
    let open = || file(&path);
    assert_eq!(open().end(&session("a")).await, Ok(()));
    let torn = &fs::read(&path).expect("there")[..40];
    fs::write(&path, torn).expect("written");
    assert_eq!(open().end(&session("b")).await, Ok(()));
    let expired = PlacedSession { until: SystemTime::UNIX_EPOCH, ..session("c") };
    assert_eq!(open().end(&expired).await, Ok(()));
    let next = open();
    let found = [
        next.find(&session("a")).await,
        next.find(&session("b")).await,
        next.find(&session("c")).await,
    ];
    assert_eq!(found, [Some(SessionSettings::default()), None, Some(SessionSettings::default())]);
}

#[tokio::test]
async fn a_line_that_another_process_is_writing_is_read_once_it_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions");
    assert_eq!(file(&path).end(&session("a")).await, Ok(()));
    let whole = fs::read(&path).expect("there");
    let reader = file(&path);
    fs::write(&path, &whole[..40]).expect("written");
    assert!(reader.find(&session("a")).await.is_some());
    let mut file = fs::OpenOptions::new().append(true).open(&path).expect("there");
    file.write_all(&whole[40..]).expect("written");
    assert_eq!(reader.find(&session("a")).await, None);
}

#[tokio::test]
async fn the_file_is_rewritten_when_most_of_it_is_obsolete_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions");
    let (one, other) = (file(&path), file(&path));
    assert_eq!(other.end(&session("ended")).await, Ok(()));
    let uri = "x".repeat(50_000);
    let mut largest = 0;
    for turn in 0..60 {
        one.set(&session("a"), settings(LogLevel::Info, &[&uri]));
        one.write().await;
        largest = largest.max(size(&path));
        if turn == 30 {
            assert_eq!(other.end(&session("later")).await, Ok(()));
        }
    }
    assert!(largest < 2 * REWRITE_FROM_BYTES + 60_000, "{largest} of 3 MB");
    for records in [&one, &other, &file(&path)] {
        assert_eq!(
            (records.find(&session("ended")).await, records.find(&session("later")).await),
            (None, None)
        );
        assert!(records.find(&session("a")).await.is_some_and(|it| it.subscriptions.len() == 1));
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_written_costs_nothing_in_this_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = file(folder.path());
    assert_eq!(records.end(&session("a")).await, Ok(()));
    assert!(records.find(&session("a")).await.is_none() && records.is_ended(&session("a")));
    let records = SessionRecords::new(RecordPlace::Memory);
    assert_eq!(records.end(&session("a")).await, Ok(()));
    assert!(records.find(&session("a")).await.is_none() && records.state.lock().has_no_pending());
}

#[test]
fn records_are_bounded_but_ends_of_numbered_sessions_make_room_for_none() {
    let mut table = RecordTable::default();
    let at = |number: usize| {
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64);
        PlacedSession { until, ..unnumbered(&number.to_string()) }
    };
    let first = session("first");
    table.end(&first);
    for number in 0..=MAX_RECORDS {
        table.end(&at(number));
    }
    let is_known = |number| table.is_ended(&at(number));
    assert!(is_known(MAX_RECORDS) && !is_known(0) && table.is_ended(&first));
    let known = (0..=MAX_RECORDS).filter(|number| is_known(*number)).count();
    assert!((MAX_RECORDS / 2..=MAX_RECORDS).contains(&known), "{known}");
    let subscriptions = vec!["x".repeat(1_000).into(); 100];
    table.set(&session("long"), SessionSettings { log_level: None, subscriptions });
    let set = table.settings_of(&session("long")).expect("not ended");
    assert_eq!(set.subscriptions.len(), 65);
}
