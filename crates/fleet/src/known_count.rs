//! Number of replicas, as this one has known it last, also before it was started.
//!
//! A replica that starts while the store is away divides limits by this number. It is kept in the
//! folder of `[state]`; without it the configuration says how many replicas there are.
//!
//! Invariant: a number that is smaller than before counts only after it has held for a minute.
//! Otherwise the last replica of a fleet that is stopped would remember that it was alone.

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::warn;

use weir_base::files::regular_file;
use weir_base::tasks::sync::Mutex;

/// Number of replicas that was known last.
pub(crate) struct KnownCount {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    count: u32,
    /// True if the number was ever known, and not only expected.
    is_known: bool,
    /// Smaller number, with the time since when it is known.
    smaller: Option<(u32, Instant)>,
}

impl KnownCount {
    /// Reads the number that was kept in a folder; without one it is the expected one.
    pub(crate) fn read(folder: Option<&Path>, fleet: &str, expected: u32) -> Self {
        let file = folder.map(|folder| folder.join(format!("fleet-{fleet}")));
        let kept = file.as_ref().and_then(|file| regular_file::read(file, MAX_BYTES).ok());
        let kept = kept.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok());
        let kept = kept.filter(|count| *count > 0);
        let state =
            State { count: kept.unwrap_or(expected), is_known: kept.is_some(), smaller: None };
        Self { file, state: Mutex::new(state) }
    }

    /// Returns the number of replicas.
    pub(crate) fn get(&self) -> u32 {
        self.state.lock().count
    }

    /// Takes over the number that a heartbeat has found, and keeps it.
    pub(crate) async fn learn(&self, count: u32) {
        let has_changed = self.state.lock().learn(count, Instant::now());
        let Some(file) = self.file.clone().filter(|_| has_changed) else { return };
        let shown = file.clone();
        let written = spawn_blocking(move || write(&file, count)).await;
        if let Ok(Err(error)) = written {
            warn!(
                path = %shown.display(), %error,
                "number of replicas cannot be kept: check `dir` under [state]"
            );
        }
    }
}

impl State {
    /// Returns whether the number is another one now.
    fn learn(&mut self, count: u32, now: Instant) -> bool {
        let since = self.smaller.filter(|(known, _)| *known == count);
        let (_, since) = since.unwrap_or((count, now));
        let is_smaller = self.is_known && count < self.count;
        if is_smaller && now - since < LASTING {
            self.smaller = Some((count, since));
            return false;
        }
        self.smaller = None;
        let has_changed = !self.is_known || count != self.count;
        (self.count, self.is_known) = (count, true);
        has_changed
    }
}

/// Replaces the file, whose folder is created for its owner only.
fn write(file: &Path, count: u32) -> std::io::Result<()> {
    let folder = file.parent().expect("it was joined");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut new = NamedTempFile::new_in(folder)?;
    writeln!(new, "{count}")?;
    new.persist(file)?;
    Ok(())
}

/// Time for which a smaller number has to hold.
const LASTING: Duration = Duration::from_secs(60);
/// Largest file with a number.
const MAX_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_known_number_of_replicas_outlives_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let read = |expected| KnownCount::read(Some(folder.path()), "weir", expected).get();
        assert_eq!(read(3), 3, "expected");
        let known = KnownCount::read(Some(folder.path()), "weir", 3);
        for (count, kept) in [(1, 1), (2, 2), (4, 4), (3, 4), (1, 4)] {
            known.learn(count).await;
            assert_eq!((known.get(), read(9)), (kept, kept), "{count}");
        }
        tokio::time::advance(LASTING).await;
        known.learn(2).await;
        assert_eq!(read(9), 4, "another number");
        tokio::time::advance(LASTING).await;
        known.learn(2).await;
        assert_eq!((known.get(), read(9)), (2, 2));
        assert_eq!(KnownCount::read(None, "weir", 5).get(), 5);
        assert_eq!(KnownCount::read(Some(folder.path()), "other", 5).get(), 5);
    }

    #[test]
    fn a_number_that_cannot_be_read_is_the_expected_one() {
        let folder = tempfile::tempdir().expect("a folder");
        for text in ["", "0", "-1", "many", "99999999999999"] {
            std::fs::write(folder.path().join("fleet-weir"), text).expect("written");
            assert_eq!(KnownCount::read(Some(folder.path()), "weir", 3).get(), 3, "{text}");
        }
    }
}
