//! Records about sessions that outlive the process: which ones their clients have ended, and what
//! clients have set in the others.
//!
//! A session itself needs no record, since its id rebuilds it. The records are lines of JSON in a
//! file of the state folder (see [`record_file`]). All processes that share the folder append to
//! it, and each reads what the others have appended before it rebuilds a session. In a fleet they
//! are in its store instead, and a replica gets those of a session when it takes it over; its file
//! has the ends that the store does not have yet.
//!
//! Invariants: an ended session stays ended for the rest of its id's life. Of sessions whose ids
//! have no number (up to version 0.1.0), and of settings, at most [`record_file::MAX_RECORDS`] are
//! known: then those that would expire first are dropped. What was recorded survives the end of the
//! process, but an end of the machine may lose the last seconds.

mod record_file;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::downstream::legacy::session_facts::SessionSettings;
use crate::fleet::{Fleet, PlacedSession};
use crate::hex::hex;
use crate::sha256::sha256;
use crate::sync::Mutex;
use record_file::{Changes, RecordTable};

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
            RecordPlace::Fleet(fleet, _) => fleet.all_read_numbers(),
            RecordPlace::Memory | RecordPlace::File(_) => true,
        }
    }

    /// Records that a client has ended its session. Requests find it ended from now on, and after a
    /// restart once the future is complete without an error.
    pub(crate) fn end(
        &self,
        session: &PlacedSession,
    ) -> impl Future<Output = Result<(), NotKept>> + use<> {
        let end = self.state.lock().end(session);
        let records = self.clone();
        async move { records.keep_end(end).await }
    }

    /// Records an end again that is not kept yet; `None` if the session has not ended, or the end
    /// is kept.
    pub(crate) fn end_again(
        &self,
        session: &PlacedSession,
    ) -> Option<impl Future<Output = Result<(), NotKept>> + use<>> {
        let is_pending = self.state.lock().is_end_pending(session);
        is_pending.then(|| self.end(session))
    }

    async fn keep_end(&self, end: Changes) -> Result<(), NotKept> {
        match &self.place {
            RecordPlace::Memory => {}
            RecordPlace::File(path) => {
                // An error is logged: until the process ends, nobody else serves its sessions.
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

    /// Records the settings of a session; [`SessionRecords::run`] writes them.
    pub(crate) fn set(&self, session: &PlacedSession, settings: SessionSettings) {
        self.state.lock().set(session, settings);
        self.changed.notify_one();
    }

    /// Returns whether a client has ended the session, as far as this process knows.
    pub(crate) fn is_ended(&self, session: &PlacedSession) -> bool {
        self.state.lock().is_ended(session)
    }

    /// Adds the record of a session that this replica has taken over, as another one has written
    /// it. Returns the settings, if it has any.
    pub(crate) fn take_over(
        &self,
        session: &PlacedSession,
        written: &[u8],
    ) -> Option<SessionSettings> {
        self.state.lock().take_over(session, written)
    }

    /// Returns the settings of a session; `None` if a client has ended it. Reads first what other
    /// processes have recorded in the file.
    pub(crate) async fn find(&self, session: &PlacedSession) -> Option<SessionSettings> {
        if let RecordPlace::File(path) = &self.place {
            let read =
                |path: &Path, state: &Mutex<RecordTable>| state.lock().read_from(path).map(drop);
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
    fn put_back(&self, changes: Changes) {
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
    async fn write_to(&self, fleet: &Fleet, changes: Changes) -> Changes {
        let mut failed = Changes::default();
        for (name, block) in changes.ended.blocks() {
            if fleet.end_sessions(name, block).await.is_err() {
                failed.ended.merge(name, block);
            }
        }
        for key in changes.records {
            let Some(line) = self.state.lock().line(&key) else { continue };
            let written = match line.ended {
                true => fleet.end_unnumbered(&hex(&key), line.expires()).await,
                false => {
                    fleet.put_settings(&hex(&key), line.to_json().as_bytes(), line.expires()).await
                }
            };
            if written.is_err() {
                failed.records.insert(key);
            }
        }
        failed
    }

    /// Appends changes to the file; false if that is not possible now.
    async fn append(&self, path: &Arc<Path>, changes: Changes) -> bool {
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

/// Hash of a session id, which names it in the records.
pub(crate) type RecordKey = [u8; 16];

/// Returns the hash that names a session in the records.
pub(crate) fn key_of(id: &str) -> RecordKey {
    *sha256(id).first_chunk().expect("a hash has more than 16 bytes")
}

/// Shortest time between two writes of settings.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
