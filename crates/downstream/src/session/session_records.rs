//! Records about sessions that outlive the process: which ones their clients have ended, and what
//! clients have set in the others.
//!
//! A session itself needs no record, since its id rebuilds it. The records are lines of JSON in a
//! file of the state folder (see [`super::record_file`]). All processes that share the folder
//! append to it, and each reads what the others have appended before it rebuilds a session. In a
//! fleet they are in its store instead, and a replica gets those of a session when it takes it
//! over; its file has the ends that the store does not have yet.
//!
//! Invariants: an ended session stays ended for the rest of its id's life. Of sessions whose ids
//! have no number (up to version 0.1.0), and of settings, a bounded number is known: beyond, those
//! that would expire first are dropped, settings before ends. The settings of one client displace
//! none of another before that. What was recorded survives the end of the process, but an
//! end of the machine may lose the last seconds.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::legacy::session_facts::SessionSettings;
use crate::session::record_file;
use crate::session::record_table::{RecordChanges, RecordTable, key_of};
use weir_access::policy::Principal;
use weir_base::tasks::sync::Mutex;
use weir_base::text::hex::hex;
use weir_fleet::{Fleet, SessionIdentity};

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
    /// The store of a fleet; and the file for ends that it does not take, if there is a state
    /// folder.
    Fleet(Arc<Fleet>, Option<Arc<Path>>),
}

impl RecordPlace {
    /// Chooses the place: the store of the fleet, if there is one, and the file, if there is a
    /// state folder.
    pub(crate) fn new(fleet: Option<&Arc<Fleet>>, file: Option<&Path>) -> Self {
        match (fleet, file.map(Arc::from)) {
            (Some(fleet), file) => Self::Fleet(Arc::clone(fleet), file),
            (None, Some(file)) => Self::File(file),
            (None, None) => Self::Memory,
        }
    }
}

/// The end of a session is recorded in this process only, and is lost when that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotKept;

impl SessionRecords {
    /// Opens the records in this place.
    pub(crate) fn new(place: RecordPlace) -> Self {
        Self { place, state: Arc::default(), changed: Arc::default() }
    }

    /// Returns whether all replicas of the fleet read ids with numbers.
    pub(crate) fn may_number(&self) -> bool {
        match &self.place {
            RecordPlace::Fleet(fleet, _) => fleet.sessions().all_read_numbers(),
            RecordPlace::Memory | RecordPlace::File(_) => true,
        }
    }

    /// Records that a client has ended its session. Requests find it ended from now on, and after a
    /// restart once the future is complete without an error.
    pub(crate) fn end(
        &self,
        session: &SessionIdentity,
    ) -> impl Future<Output = Result<(), NotKept>> + use<> {
        let end = self.state.lock().end(session);
        // The store may have its settings.
        self.changed.notify_one();
        let records = self.clone();
        async move { records.keep_end(end).await }
    }

    /// Records an end again that is not kept yet; `None` if the session has not ended, or the end
    /// is kept.
    pub(crate) fn end_again(
        &self,
        session: &SessionIdentity,
    ) -> Option<impl Future<Output = Result<(), NotKept>> + use<>> {
        let is_pending = self.state.lock().is_end_pending(session);
        is_pending.then(|| self.end(session))
    }

    async fn keep_end(&self, end: RecordChanges) -> Result<(), NotKept> {
        match &self.place {
            RecordPlace::Memory => {}
            RecordPlace::File(path) => {
                // An error is logged: until the process ends, no other one serves its sessions.
                self.append(path, end).await;
            }
            RecordPlace::Fleet(fleet, file) => {
                let failed = self.write_to(fleet, end).await;
                if failed.is_empty() {
                    return Ok(());
                }
                self.put_back(failed.clone());
                let file = file.as_ref().ok_or(NotKept)?;
                self.append(file, failed).await.then_some(()).ok_or(NotKept)?;
            }
        }
        Ok(())
    }

    /// Records the settings of a session of this client; [`SessionRecords::run`] writes them.
    pub(crate) fn set(
        &self,
        session: &SessionIdentity,
        client: &Principal,
        settings: SessionSettings,
    ) {
        self.state.lock().set(session, client, settings);
        self.changed.notify_one();
    }

    /// Forgets that this replica serves a session without a claim: it is not in its memory any
    /// more. So a client has no more of these than sessions in memory.
    pub(crate) fn drop_unclaimed(&self, id: &str) {
        if let RecordPlace::Fleet(fleet, _) = &self.place {
            fleet.sessions().drop_unclaimed(&hex(&key_of(id)));
        }
    }

    /// Returns whether a client has ended the session, as far as this process knows.
    pub(crate) fn is_ended(&self, session: &SessionIdentity) -> bool {
        self.state.lock().is_ended(session)
    }

    /// Adds the record of a client's session that this replica has taken over, as another one has
    /// written it. Returns the settings, if it has any.
    pub(crate) fn take_over(
        &self,
        session: &SessionIdentity,
        client: &Principal,
        written: &[u8],
    ) -> Option<SessionSettings> {
        self.state.lock().take_over(session, client, written)
    }

    /// Returns the settings of a session; `None` if a client has ended it. Reads first what other
    /// processes have recorded in the file.
    pub(crate) async fn find(&self, session: &SessionIdentity) -> Option<SessionSettings> {
        if let RecordPlace::File(path) = &self.place {
            let read = |path: &Path, state: &Mutex<RecordTable>| {
                record_file::read(path, &mut state.lock()).map(drop)
            };
            self.on_file(path, "read", read).await;
        }
        self.state.lock().settings_of(session)
    }

    /// Writes changed settings, at most once a second, and ends that could not be written, until
    /// `stop` fires.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        self.settle_file().await;
        let changed = || async {
            self.changed.notified().await;
            sleep(WRITE_INTERVAL).await;
        };
        while stop.run_until_cancelled(changed()).await.is_some() {
            self.write().await;
        }
    }

    /// Writes what is not written yet. What cannot be written now is written later.
    pub(crate) async fn write(&self) {
        let pending = self.state.lock().take_pending();
        if pending.is_empty() {
            return;
        }
        match &self.place {
            RecordPlace::Memory => {}
            RecordPlace::File(path) => {
                self.append(path, pending).await;
            }
            RecordPlace::Fleet(fleet, _) => {
                let failed = self.write_to(fleet, pending).await;
                match failed.is_empty() {
                    true => self.settle_file().await,
                    false => self.put_back(failed),
                }
            }
        }
    }

    /// Has changes written later.
    fn put_back(&self, changes: RecordChanges) {
        self.state.lock().put_back(changes);
        self.changed.notify_one();
    }

    /// Takes the ends over that are in the file, and empties it once the store has all of them.
    async fn settle_file(&self) {
        if let RecordPlace::Fleet(_, Some(path)) = &self.place {
            self.on_file(path, "read", record_file::settle).await;
            if !self.state.lock().has_no_pending() {
                self.changed.notify_one();
            }
        }
    }

    /// Writes changes to the store of a fleet, and returns those that it does not take now.
    async fn write_to(&self, fleet: &Fleet, changes: RecordChanges) -> RecordChanges {
        let mut failed = RecordChanges::default();
        for (name, block) in changes.ended.blocks() {
            if fleet.sessions().end(name, block).await.is_err() {
                failed.ended.merge(name, block);
            }
        }
        for key in changes.records {
            let (line, name) = (self.state.lock().line(&key), hex(&key));
            let written = match line {
                None => fleet.sessions().drop_settings(name).await,
                Some(line) if line.ended => {
                    fleet.sessions().end_unnumbered(&name, line.expires()).await
                }
                Some(line) => {
                    fleet
                        .sessions()
                        .put_settings(&name, line.to_json().as_bytes(), line.expires())
                        .await
                }
            };
            if written.is_err() {
                failed.records.insert(key);
            }
        }
        failed
    }

    /// Appends changes to the file; false if that is not possible now.
    async fn append(&self, path: &Arc<Path>, changes: RecordChanges) -> bool {
        self.on_file(path, "written", move |path, state| {
            record_file::append(path, state, &changes)
                .inspect_err(|_| state.lock().put_back(changes))
        })
        .await
    }

    /// Works on the file on a blocking thread; false after an error, which is logged: without the
    /// file the records hold in this process.
    async fn on_file(
        &self,
        path: &Arc<Path>,
        verb: &'static str,
        work: impl FnOnce(&Path, &Mutex<RecordTable>) -> io::Result<()> + Send + 'static,
    ) -> bool {
        let (state, path) = (Arc::clone(&self.state), Arc::clone(path));
        let shown = Arc::clone(&path);
        let done = tokio::task::spawn_blocking(move || work(&path, &state)).await;
        if let Ok(Err(error)) = &done {
            warn!(
                path = %shown.display(), %error,
                "session records cannot be {verb}: after a restart an ended session may be used \
                 again, and clients may have to subscribe again"
            );
        }
        matches!(done, Ok(Ok(())))
    }
}

/// Shortest time between two writes of settings.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::sync::LazyLock;
    use std::time::SystemTime;

    use super::*;
    use crate::session::record_file::{REWRITE_FROM_BYTES, open_locked};
    use crate::session::record_table::{MAX_CLIENT_BYTES, MAX_RECORDS};
    use weir_base::ended_sessions::SessionNumber;
    use weir_base::secrets::sealing::{InstanceId, SealingKeys};
    use weir_fleet::FleetSettings;
    use weir_mcp::log_level::LogLevel;

    /// Client of the sessions.
    static ANN: LazyLock<Principal> = LazyLock::new(|| Principal::new("ann", "staff"));

    /// Process that has opened the sessions.
    static OPENED_BY: LazyLock<InstanceId> = LazyLock::new(|| SealingKeys::random().instance());

    fn settings(level: LogLevel, uris: &[&str]) -> SessionSettings {
        let subscriptions = uris.iter().map(|uri| Box::from(*uri)).collect();
        SessionSettings { log_level: Some(level), subscriptions }
    }

    fn file(path: &Path) -> SessionRecords {
        SessionRecords::new(RecordPlace::File(path.into()))
    }

    fn session(id: &str) -> SessionIdentity {
        let opened_by = *OPENED_BY;
        let place = id.bytes().fold(0, |place, byte| 256 * place + u64::from(byte));
        SessionIdentity {
            key: hex(&key_of(id)),
            number: Some(SessionNumber { opened_by, place }),
            sealed_by: opened_by,
            until: SystemTime::now() + Duration::from_secs(1_000),
        }
    }

    /// A session whose id has no number.
    fn unnumbered(id: &str) -> SessionIdentity {
        SessionIdentity { number: None, ..session(id) }
    }

    /// Records of a replica whose store is away.
    fn replica(file: Option<&Path>) -> SessionRecords {
        let fleet = Fleet::new(SealingKeys::random(), FleetSettings::of_replica("a"), None);
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
            one.set(&session("a"), &ANN, settings(LogLevel::Info, &[]));
            one.set(&session("a"), &ANN, set.clone());
            one.set(&session("b"), &ANN, set.clone());
            one.write().await;
            assert_eq!(one.end(&session("b")).await, Ok(()));
            // An ended session stays ended, whatever comes late.
            other.set(&session("b"), &ANN, set.clone());
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
        let expired = SessionIdentity { until: SystemTime::UNIX_EPOCH, ..session("c") };
        assert_eq!(open().end(&expired).await, Ok(()));
        let next = open();
        let found = [
            next.find(&session("a")).await,
            next.find(&session("b")).await,
            next.find(&session("c")).await,
        ];
        assert_eq!(
            found,
            [Some(SessionSettings::default()), None, Some(SessionSettings::default())]
        );
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
            one.set(&session("a"), &ANN, settings(LogLevel::Info, &[&uri]));
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
            assert!(
                records.find(&session("a")).await.is_some_and(|it| it.subscriptions.len() == 1)
            );
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
        assert!(
            records.find(&session("a")).await.is_none() && records.state.lock().has_no_pending()
        );
    }

    #[test]
    fn records_are_bounded_but_ends_of_numbered_sessions_displace_none() {
        let mut table = RecordTable::default();
        let at = |number: usize| {
            let until = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64);
            SessionIdentity { until, ..unnumbered(&number.to_string()) }
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
        table.set(&session("long"), &ANN, SessionSettings { log_level: None, subscriptions });
        let set = table.settings_of(&session("long")).expect("not ended");
        assert_eq!(set.subscriptions.len(), 65);
    }

    #[test]
    fn settings_of_one_client_are_bounded_and_displace_none_of_another() {
        let mut table = RecordTable::default();
        let bob = Principal::new("bob", "staff");
        let uri = "x".repeat(60_000);
        let at = |number: u64| SessionIdentity {
            until: SystemTime::now() + Duration::from_secs(1_000 + number),
            ..session(&number.to_string())
        };
        table.set(&session("other"), &bob, settings(LogLevel::Info, &["a"]));
        let count = 2 * MAX_CLIENT_BYTES / uri.len();
        for number in 0..count as u64 {
            table.set(&at(number), &ANN, settings(LogLevel::Info, &[&uri]));
            // All of the sessions that a client has in memory.
            for number in number.saturating_sub(31)..=number {
                let known = table.settings_of(&at(number)).expect("not ended");
                assert_eq!(known.subscriptions.len(), 1, "{number}");
            }
        }
        let kept = (0..count as u64).filter(|number| {
            !table.settings_of(&at(*number)).expect("not ended").subscriptions.is_empty()
        });
        assert!(kept.count() * uri.len() <= MAX_CLIENT_BYTES);
        let others = table.settings_of(&session("other")).expect("not ended");
        assert_eq!(others.subscriptions.len(), 1);
        // What was dropped is dropped in the store, too.
        let pending = table.take_pending().records;
        assert_eq!(pending.len(), count + 1);
    }

    #[test]
    fn settings_count_for_a_client_from_a_takeover_to_the_end_of_the_session() {
        let (mut table, mut former) = (RecordTable::default(), RecordTable::default());
        let uri = "x".repeat(60_000);
        for number in 0..2 * MAX_CLIENT_BYTES / uri.len() {
            let session = session(&number.to_string());
            former.set(&session, &ANN, settings(LogLevel::Info, &[&uri]));
            let line = former.line(&key_of(&number.to_string())).expect("it is there").to_json();
            assert!(table.take_over(&session, &ANN, line.as_bytes()).is_some());
        }
        let count = table.bytes_of(&ANN) / uri.len();
        assert!((32..=MAX_CLIENT_BYTES / uri.len()).contains(&count), "{count}");
        for number in 0..2 * MAX_CLIENT_BYTES / uri.len() {
            table.end(&session(&number.to_string()));
        }
        assert_eq!(table.bytes_of(&ANN), 0);
    }
}
