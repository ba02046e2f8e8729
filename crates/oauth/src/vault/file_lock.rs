//! Lock among the processes that share a folder.
//!
//! A process can be stopped while it has a lock, for good. It is waited for as long as it may need,
//! and then no longer: what a lock protects is compared again before it is written.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::{NEW, SPACE, Vault, name, unusable};
use crate::OAuthError;
use weir_base::files::regular_file;
use weir_base::secrets::secret::random_token;

/// Lock of a file, which is released when it is dropped.
pub(crate) struct FileLock {
    _file: Option<File>,
}

impl FileLock {
    /// Waits for the lock of a file, which is created if it is missing. Returns `None` if one
    /// process has had it for all of `patience`.
    ///
    /// # Errors
    ///
    /// The file cannot be created or locked.
    pub(super) async fn acquire(path: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let mut file = regular_file::open_to_append(path)?;
        let (mut holder, mut since) = (None, Instant::now());
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Each holder writes a text of its own, so that several in turn are no stopped one.
            let present = regular_file::read(path, MAX_HOLDER_BYTES).ok();
            if holder != present {
                (holder, since) = (present, Instant::now());
            }
            if since.elapsed() >= patience {
                return Ok(None);
            }
            sleep(LOCK_INTERVAL).await;
        }
        // On a full disk the former text stays, and a waiting process has less patience.
        let _ = file.set_len(0).and_then(|()| file.write_all(random_token().as_bytes()));
        Ok(Some(Self { _file: Some(file) }))
    }

    /// No lock, for what is done although another process does not release it.
    pub(super) fn without() -> Self {
        Self { _file: None }
    }
}

impl Vault {
    /// Waits until no other process refreshes the tokens of an upstream's record. One that has been
    /// stopped is not waited for.
    ///
    /// # Errors
    ///
    /// Other processes refresh them, and do not finish; or the file cannot be created.
    pub(crate) async fn lock_refresh(&self, upstream: &str) -> Result<FileLock, OAuthError> {
        // Each process that is stopped keeps one of the files.
        for number in 0..MAX_STOPPED {
            let suffix = if number == 0 { "lock".to_owned() } else { format!("lock{number}") };
            let path = self.folder.join(name(upstream)).with_extension(suffix);
            let locked = FileLock::acquire(&path, LOCK_PATIENCE).await;
            if let Some(lock) = locked.map_err(|error| unusable(&path, &error))? {
                return Ok(lock);
            }
        }
        let text = "other processes do not finish the renewal of the sign-in";
        Err(OAuthError::Unavailable(text.into()))
    }

    /// Waits until no other process changes the vault, which takes a moment. One that has been
    /// stopped is not waited for.
    pub(super) async fn lock_changes(&self) -> Result<FileLock, OAuthError> {
        let path = self.folder.join(CHANGES);
        let locked = FileLock::acquire(&path, LOCK_PATIENCE).await;
        match locked.map_err(|error| unusable(&path, &error))? {
            Some(lock) => {
                self.remove_leftovers();
                Ok(lock)
            }
            None => Ok(FileLock::without()),
        }
    }

    /// Checks that there can be a lock for changes, without which none is written.
    pub(super) fn check_lock(&self) -> Result<(), OAuthError> {
        let path = self.folder.join(CHANGES);
        regular_file::open_to_append(&path).map(drop).map_err(|error| unusable(&path, &error))
    }

    /// Removes the files that processes have left which were killed while they wrote them.
    fn remove_leftovers(&self) {
        let now = SystemTime::now();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_old = || {
                let modified = entry.metadata().and_then(|about| about.modified()).ok();
                let age = modified.and_then(|modified| now.duration_since(modified).ok());
                age.is_some_and(|age| age > LEFTOVER_AGE)
            };
            // Only a process that has the lock writes a new file.
            let is_temporary = name.starts_with(SPACE) || name.starts_with(".tmp");
            if name.starts_with(NEW) || is_temporary && is_old() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Name of the file whose lock a change of the vault takes.
const CHANGES: &str = "changes.lock";
/// Time for which one process may have a lock: longer than its request takes. One that has it for
/// longer was stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);
/// Number of processes that may be stopped while they refresh the tokens of one record.
const MAX_STOPPED: usize = 4;
/// Age from which on a temporary file is one that was left.
const LEFTOVER_AGE: Duration = Duration::from_mins(1);
/// Pause between two attempts to get a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest text of a holder that is read.
const MAX_HOLDER_BYTES: u64 = 1024;

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_process_at_a_time_refreshes_a_record_unless_the_first_was_stopped() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let first = vault.lock_refresh("hub").await.expect("locked");
        vault.lock_refresh("other").await.expect("locked");
        let mut second = std::pin::pin!(vault.lock_refresh("hub"));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        let begin = tokio::time::Instant::now();
        let second = second.await.expect("locked");
        assert!(begin.elapsed() < Duration::from_secs(1));
        // Each holder in turn is waited for as long as the first.
        let mut third = std::pin::pin!(vault.lock_refresh("hub"));
        assert!(futures::poll!(&mut third).is_pending());
        tokio::time::sleep(LOCK_PATIENCE / 2).await;
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        let stopped = third.await.expect("locked");
        let begin = tokio::time::Instant::now();
        let next = vault.lock_refresh("hub").await.expect("it does not wait for a stopped one");
        assert!((LOCK_PATIENCE..LOCK_PATIENCE * 2).contains(&begin.elapsed()));
        drop((stopped, next));
    }
}
