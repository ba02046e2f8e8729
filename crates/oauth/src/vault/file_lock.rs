//! Lock among the processes that share a folder.
//!
//! A process can be stopped while it has a lock, for good. It is waited for as long as it may need,
//! and then no longer: what a lock protects is compared again before it is written.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

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

/// Time for which one process may have a lock: longer than its request takes. One that has it for
/// longer was stopped.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(15);
/// Pause between two attempts to get a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest text of a holder that is read.
const MAX_HOLDER_BYTES: u64 = 1024;
