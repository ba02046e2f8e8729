//! Records about sessions that outlive the process: which ones their clients have ended, and what
//! clients have set in the others.
//!
//! A session itself needs no record, since its id rebuilds it. The records are lines of JSON in a
//! file of the state folder. All processes that share the folder append to it, and each reads what
//! the others have appended before it rebuilds a session. In a fleet they are in its store instead,
//! and a replica gets those of a session when it takes it over.
//!
//! Invariants: an ended session stays ended for the rest of its id's life, unless more than
//! [`MAX_RECORDS`] are known: then those that would expire first are dropped. The file is rewritten
//! when most of it is obsolete. What was recorded survives the end of the process, but an end of
//! the machine may lose the last seconds.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::downstream::legacy::session_facts::{SessionSettings, seconds_of};
use crate::fleet::Fleet;
use crate::hex::{decode, hex};
use crate::mcp::log_level::LogLevel;
use crate::regular_file;
use crate::sha256::sha256;
use crate::sync::Mutex;

/// Records of one installation. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SessionRecords {
    place: RecordPlace,
    state: Arc<Mutex<RecordTable>>,
    changed: Arc<Notify>,
}

/// Place of the records.
#[derive(Clone)]
pub(crate) enum RecordPlace {
    /// The memory: they end with the process.
    Memory,
    /// A file of the state folder.
    File(Arc<Path>),
    /// The store of a fleet.
    Fleet(Arc<Fleet>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SessionRecord {
    Ended,
    Settings(SessionSettings),
}

#[derive(Default)]
struct RecordTable {
    /// Records, with the second of their expiry.
    records: HashMap<RecordKey, (u64, SessionRecord)>,
    /// Estimated size of their lines.
    bytes: usize,
    /// Records that are not written yet.
    pending: HashSet<RecordKey>,
    /// Inode of the file, and bytes of it that were read.
    read: (u64, u64),
}

/// Hash of a session id.
pub(crate) type RecordKey = [u8; 16];

/// Line of the file.
#[derive(Serialize, Deserialize)]
struct RecordLine {
    session: String,
    /// Seconds since 1970 at which the id expires.
    until: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ended: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_level: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    subscriptions: Vec<Box<str>>,
}

impl SessionRecords {
    /// Opens the records in this place.
    pub(crate) fn new(place: RecordPlace) -> Self {
        Self { place, state: Arc::default(), changed: Arc::default() }
    }

    /// Records that a client has ended its session. Requests find it ended from now on, and after a
    /// restart once the future is complete.
    pub(crate) fn end(&self, id: &str, until: SystemTime) -> impl Future<Output = ()> + use<> {
        let key = key_of(id);
        self.state.lock().put(key, seconds_of(until), SessionRecord::Ended);
        let records = self.clone();
        // Another write that has begun may have taken the record, and not be done when this is.
        async move { records.write_with(HashSet::from([key])).await }
    }

    /// Records the settings of a session; [`SessionRecords::run`] writes them.
    pub(crate) fn set(&self, id: &str, until: SystemTime, settings: SessionSettings) {
        let record = SessionRecord::Settings(bounded(settings));
        self.state.lock().put(key_of(id), seconds_of(until), record);
        self.changed.notify_one();
    }

    /// Returns whether a client has ended the session, as far as this process knows.
    pub(crate) fn is_ended(&self, id: &str) -> bool {
        let state = self.state.lock();
        matches!(state.records.get(&key_of(id)), Some((_, SessionRecord::Ended)))
    }

    /// Adds the record of a session that this replica has taken over, as another one has written
    /// it. Returns the settings, if it has any.
    pub(crate) fn take_over(&self, id: &str, written: &[u8]) -> Option<SessionSettings> {
        let line = serde_json::from_slice::<RecordLine>(written).ok()?;
        let (key, record) = line.read().filter(|(key, _)| *key == key_of(id))?;
        let settings = match &record {
            SessionRecord::Settings(settings) => Some(settings.clone()),
            SessionRecord::Ended => None,
        };
        self.state.lock().insert(key, line.until, record);
        settings
    }

    /// Returns the settings of a session; `None` if a client has ended it. Reads first what other
    /// processes have recorded in the file.
    pub(crate) async fn find(&self, id: &str) -> Option<SessionSettings> {
        if let RecordPlace::File(path) = &self.place {
            self.on_file(path, "read", |path, state| state.lock().read_from(path)).await;
        }
        match self.state.lock().records.get(&key_of(id)) {
            None => Some(SessionSettings::default()),
            Some((_, SessionRecord::Settings(settings))) => Some(settings.clone()),
            Some((_, SessionRecord::Ended)) => None,
        }
    }

    /// Writes changed settings, at most once a second, until `stop` fires.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let changed = || async {
            self.changed.notified().await;
            sleep(WRITE_INTERVAL).await;
        };
        while stop.run_until_cancelled(changed()).await.is_some() {
            self.write().await;
        }
    }

    /// Writes what is not written yet. What cannot be written now is written with the next record.
    pub(crate) async fn write(&self) {
        self.write_with(HashSet::new()).await;
    }

    /// Writes these records, and what is not written yet.
    async fn write_with(&self, mut pending: HashSet<RecordKey>) {
        pending.extend(std::mem::take(&mut self.state.lock().pending));
        if pending.is_empty() {
            return;
        }
        match &self.place {
            RecordPlace::Memory => {}
            RecordPlace::File(path) => {
                self.on_file(path, "written", move |path, state| {
                    append(path, state, &pending)
                        .inspect_err(|_| state.lock().pending.extend(&pending))
                })
                .await;
            }
            RecordPlace::Fleet(fleet) => {
                let failed = self.write_to(fleet, pending).await;
                if !failed.is_empty() {
                    self.state.lock().pending.extend(failed);
                    self.changed.notify_one();
                }
            }
        }
    }

    /// Writes records to the store of a fleet, and returns those that it does not take now.
    async fn write_to(&self, fleet: &Fleet, pending: HashSet<RecordKey>) -> Vec<RecordKey> {
        let mut failed = Vec::new();
        for key in pending {
            let Some((until, record)) = self.state.lock().records.get(&key).cloned() else {
                continue;
            };
            let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(until);
            let written = match record {
                SessionRecord::Ended => fleet.end_session(&hex(&key), expires).await,
                SessionRecord::Settings(_) => {
                    let line = line_of(&key, until, &record);
                    fleet.put_settings(&hex(&key), line.trim().as_bytes(), expires).await
                }
            };
            if written.is_err() {
                failed.push(key);
            }
        }
        failed
    }

    /// Works on the file on a blocking thread. An error is logged: without the file the records
    /// hold in this process.
    async fn on_file(
        &self,
        path: &Arc<Path>,
        verb: &'static str,
        work: impl FnOnce(&Path, &Mutex<RecordTable>) -> io::Result<()> + Send + 'static,
    ) {
        let (state, path) = (Arc::clone(&self.state), Arc::clone(path));
        let shown = Arc::clone(&path);
        let done = tokio::task::spawn_blocking(move || work(&path, &state)).await;
        if let Ok(Err(error)) = done {
            warn!(
                path = %shown.display(), %error,
                "session records cannot be {verb}: after a restart an ended session may be used \
                 again, and clients may have to subscribe again"
            );
        }
    }
}

/// Drops the subscriptions that are too many for a record.
fn bounded(mut settings: SessionSettings) -> SessionSettings {
    let mut bytes = 0;
    let fits = settings.subscriptions.iter().take_while(|uri| {
        bytes += uri.len() + 3;
        bytes <= MAX_SETTINGS_BYTES
    });
    let count = fits.count();
    settings.subscriptions.truncate(count);
    settings
}

impl RecordTable {
    /// Adds a record, which is to be written.
    fn put(&mut self, key: RecordKey, until: u64, record: SessionRecord) {
        if self.insert(key, until, record) {
            self.pending.insert(key);
        }
    }

    /// Adds a record; false if the session has ended before.
    fn insert(&mut self, key: RecordKey, until: u64, record: SessionRecord) -> bool {
        let bytes = line_of(&key, until, &record).len();
        match self.records.insert(key, (until, record)) {
            Some(ended @ (_, SessionRecord::Ended)) => {
                self.records.insert(key, ended);
                return false;
            }
            Some((until, old)) => self.bytes -= line_of(&key, until, &old).len(),
            None => {}
        }
        self.bytes += bytes;
        if self.records.len() > MAX_RECORDS || self.bytes > MAX_FILE_BYTES {
            self.drop_first_to_expire();
        }
        true
    }

    /// Drops a tenth of the records, so that this is rare.
    fn drop_first_to_expire(&mut self) {
        let mut expiries: Vec<_> = self.records.values().map(|(until, _)| *until).collect();
        let tenth = expiries.len() / 10;
        let (_, limit, _) = expiries.select_nth_unstable(tenth);
        let limit = *limit;
        self.keep_until_after(limit);
        warn!(remaining = self.records.len(), "oldest session records dropped: too many");
    }

    /// Drops the records that expire in this second or before.
    fn keep_until_after(&mut self, second: u64) {
        self.records.retain(|_, (until, _)| *until > second);
        self.bytes = self.lines().map(|line| line.len()).sum();
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.records.iter().map(|(key, (until, record))| line_of(key, *until, record))
    }

    /// The lines of some of the records.
    fn lines_of(&self, keys: &HashSet<RecordKey>) -> String {
        let found = keys.iter().filter_map(|key| Some((key, self.records.get(key)?)));
        found.map(|(key, (until, record))| line_of(key, *until, record)).collect()
    }

    /// Reads what was appended to the file since it was last read, or all of a new file.
    fn read_from(&mut self, path: &Path) -> io::Result<()> {
        let mut file = match regular_file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let about = file.metadata()?;
        let (inode, read) = self.read;
        let from = if inode == about.ino() && read <= about.len() { read } else { 0 };
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(2 * MAX_FILE_BYTES as u64).read_to_end(&mut text)?;
        // Another process may be writing the last line.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        let now = seconds_of(SystemTime::now());
        for line in text.split(|byte| *byte == b'\n') {
            // A process that was killed may have left an incomplete line.
            let Ok(line) = serde_json::from_slice::<RecordLine>(line) else { continue };
            if let Some((key, record)) = line.read().filter(|_| line.until > now) {
                self.insert(key, line.until, record);
            }
        }
        self.read = (about.ino(), from + text.len() as u64);
        Ok(())
    }
}

impl RecordLine {
    fn read(&self) -> Option<(RecordKey, SessionRecord)> {
        let key = decode(&self.session)?;
        let level = self.log_level.as_deref();
        let settings = SessionSettings {
            log_level: LogLevel::ALL.into_iter().find(|it| Some(it.as_str()) == level),
            subscriptions: self.subscriptions.clone(),
        };
        let settings = SessionRecord::Settings(bounded(settings));
        Some((key, if self.ended { SessionRecord::Ended } else { settings }))
    }
}

fn line_of(key: &RecordKey, until: u64, record: &SessionRecord) -> String {
    let settings = match record {
        SessionRecord::Ended => SessionSettings::default(),
        SessionRecord::Settings(settings) => settings.clone(),
    };
    let line = RecordLine {
        session: hex(key),
        until,
        ended: *record == SessionRecord::Ended,
        log_level: settings.log_level.map(|level| level.as_str().to_owned()),
        subscriptions: settings.subscriptions,
    };
    // The line feed in front ends a line that another process has left incomplete.
    format!("\n{}\n", serde_json::to_string(&line).expect("texts and numbers are JSON"))
}

/// Appends records, and rewrites the file if most of it is obsolete.
fn append(path: &Path, state: &Mutex<RecordTable>, pending: &HashSet<RecordKey>) -> io::Result<()> {
    let mut file = open_locked(path)?;
    let lines = state.lock().lines_of(pending);
    file.write_all(lines.as_bytes())?;
    let size = file.metadata()?.len();
    let mut state = state.lock();
    let needed = state.bytes.max(REWRITE_FROM_BYTES) as u64;
    if size <= 2 * needed {
        return Ok(());
    }
    // The lock is held, so no other process appends to the old file meanwhile.
    state.read_from(path)?;
    let now = seconds_of(SystemTime::now());
    state.keep_until_after(now);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    for line in state.lines() {
        new.write_all(line.as_bytes())?;
    }
    let about = new.as_file().metadata()?;
    new.persist(path)?;
    state.read = (about.ino(), state.bytes as u64);
    Ok(())
}

/// Opens the file for appending and locks it; another process may have replaced it meanwhile.
fn open_locked(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    loop {
        let file = regular_file::open_to_append(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let is_current = fs::metadata(path)
            .is_ok_and(|it| file.metadata().is_ok_and(|own| own.ino() == it.ino()));
        if is_current {
            return Ok(file);
        }
    }
}

/// Returns the hash that names a session in the records.
pub(crate) fn key_of(id: &str) -> RecordKey {
    *sha256(id).first_chunk().expect("a hash has more than 16 bytes")
}

/// Most records that are kept.
const MAX_RECORDS: usize = 100_000;
/// Most bytes of records that are kept; the file has at most twice as many.
const MAX_FILE_BYTES: usize = 32 << 20;
/// Size from which on the file is rewritten if most of it is obsolete.
const REWRITE_FROM_BYTES: usize = 512 << 10;
/// Most bytes of the subscriptions of one session.
const MAX_SETTINGS_BYTES: usize = 64 << 10;
/// Shortest time between two writes of settings.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(level: LogLevel, uris: &[&str]) -> SessionSettings {
        let subscriptions = uris.iter().map(|uri| Box::from(*uri)).collect();
        SessionSettings { log_level: Some(level), subscriptions }
    }

    fn file(path: &Path) -> SessionRecords {
        SessionRecords::new(RecordPlace::File(path.into()))
    }

    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_secs(1_000)
    }

    fn size(path: &Path) -> usize {
        fs::metadata(path).expect("there").len() as usize
    }

    #[tokio::test]
    async fn what_a_client_has_set_and_ended_is_known_to_the_next_process_and_to_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state/sessions");
        let open = || file(&path);
        let (one, other) = (open(), open());
        let set = settings(LogLevel::Error, &["file:///a\n", "b"]);
        one.set("a", later(), settings(LogLevel::Info, &[]));
        one.set("a", later(), set.clone());
        one.end("b", later()).await;
        // An ended session stays ended, whatever comes late.
        other.set("b", later(), set.clone());
        other.write().await;
        assert!(one.is_ended("b") && !one.is_ended("a"));
        for records in [&one, &other, &open()] {
            assert_eq!(records.find("a").await, Some(set.clone()));
            assert_eq!(records.find("b").await, None);
            assert_eq!(records.find("c").await, Some(SessionSettings::default()));
        }
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn of_two_ends_at_a_time_each_is_complete_once_its_own_record_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions");
        let records = file(&path);
        let locked = open_locked(&path).expect("locked");
        let one = std::pin::pin!(records.end("a", later()));
        let mut other = std::pin::pin!(records.end("b", later()));
        // The first takes all records that are to be written.
        assert!(futures::poll!(one).is_pending() && futures::poll!(other.as_mut()).is_pending());
        drop(locked);
        other.await;
        assert_eq!(file(&path).find("b").await, None);
    }

    #[tokio::test]
    async fn an_incomplete_line_costs_itself_only_and_an_old_record_expires() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions");
        let open = || file(&path);
        open().end("a", later()).await;
        let torn = &fs::read(&path).expect("there")[..40];
        fs::write(&path, torn).expect("written");
        open().end("b", later()).await;
        open().end("c", SystemTime::now() - Duration::from_secs(1)).await;
        let next = open();
        let found = [next.find("a").await, next.find("b").await, next.find("c").await];
        assert_eq!(
            found,
            [Some(SessionSettings::default()), None, Some(SessionSettings::default())]
        );
    }

    #[tokio::test]
    async fn a_line_that_another_process_is_writing_is_read_once_it_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions");
        file(&path).end("a", later()).await;
        let whole = fs::read(&path).expect("there");
        let reader = file(&path);
        fs::write(&path, &whole[..40]).expect("written");
        assert!(reader.find("a").await.is_some());
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("there");
        file.write_all(&whole[40..]).expect("written");
        assert_eq!(reader.find("a").await, None);
    }

    #[tokio::test]
    async fn the_file_is_rewritten_when_most_of_it_is_obsolete_and_nothing_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions");
        let (one, other) = (file(&path), file(&path));
        other.end("ended", later()).await;
        let uri = "x".repeat(50_000);
        let mut largest = 0;
        for turn in 0..60 {
            one.set("a", later(), settings(LogLevel::Info, &[&uri]));
            one.write().await;
            largest = largest.max(size(&path));
            if turn == 30 {
                other.end("later", later()).await;
            }
        }
        assert!(largest < 2 * REWRITE_FROM_BYTES + 60_000, "{largest} of 3 MB");
        for records in [&one, &other, &file(&path)] {
            assert_eq!((records.find("ended").await, records.find("later").await), (None, None));
            assert!(records.find("a").await.is_some_and(|it| it.subscriptions.len() == 1));
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_costs_nothing_in_this_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = file(folder.path());
        records.end("a", later()).await;
        assert!(records.find("a").await.is_none() && records.is_ended("a"));
        let records = SessionRecords::new(RecordPlace::Memory);
        records.end("a", later()).await;
        assert!(records.find("a").await.is_none() && records.state.lock().pending.is_empty());
    }

    #[test]
    fn records_are_bounded_and_the_first_to_expire_go_first() {
        let mut table = RecordTable::default();
        for number in 0..MAX_RECORDS as u64 + 1 {
            let key = key_of(&number.to_string());
            table.insert(key, number, SessionRecord::Ended);
        }
        assert!(table.records.len() <= MAX_RECORDS && table.records.len() > MAX_RECORDS / 2);
        assert!(!table.records.contains_key(&key_of("0")));
        assert!(table.records.contains_key(&key_of(&MAX_RECORDS.to_string())));
        let long =
            SessionSettings { log_level: None, subscriptions: vec!["x".repeat(1_000).into(); 100] };
        assert_eq!(bounded(long).subscriptions.len(), 65);
    }
}
