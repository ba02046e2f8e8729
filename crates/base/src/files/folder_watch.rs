//! Kernel notifications that a file in a folder may have changed, and the wake-ups of a task that
//! follows files.
//!
//! A notice carries no data: its receiver reads the files to find the change. Writing to a file
//! that is not watched gives no notice. Such a file may be a log of Weir's own, and a notice for
//! each of its lines would cause work for each of its lines. Every creation, removal and rename
//! gives a notice, because it can change the target of a link or the matches of a pattern.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

/// Time for writes to settle: editors write a file in several steps, and a checkout writes many
/// files.
pub const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Time between two checks without a notice.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Wake-ups of a task that follows files: notices of the kernel, and a regular check, which finds
/// changes without a notice.
pub struct FileWakeups {
    /// Changed by the kernel's notices: no payload, so a burst counts as one change.
    pub notices: watch::Sender<()>,
    noticed: watch::Receiver<()>,
    checks: Interval,
}

impl Default for FileWakeups {
    fn default() -> Self {
        let (notices, noticed) = watch::channel(());
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { notices, noticed, checks }
    }
}

impl FileWakeups {
    /// Waits for the next wake-up; true after a notice, once the writes have settled. A notice
    /// from then on, while the files are read, is another one.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            biased;
            // The channel cannot be closed: its sender is here.
            _ = self.noticed.changed() => {}
            _ = self.checks.tick() => return false,
        }
        sleep(SETTLE_TIME).await;
        self.noticed.mark_unchanged();
        true
    }
}

/// Watch on some folders, which ends when it is dropped.
pub struct FolderWatch {
    _watcher: RecommendedWatcher,
}

impl FolderWatch {
    /// Watches these folders, without their sub-folders. `is_watched` decides by a file's name
    /// whether its content matters. Returns `None` if the kernel can watch none of the folders.
    pub fn start<'a>(
        folders: impl IntoIterator<Item = &'a Path>,
        is_watched: impl Fn(&OsStr) -> bool + Send + Sync + 'static,
        notices: watch::Sender<()>,
    ) -> Option<Self> {
        let is_watched = Arc::new(is_watched);
        let handler = move |event: notify::Result<Event>| {
            // An error may mean that an event was lost, therefore it counts as a change.
            if event.map_or(true, |event| is_change(&event, &*is_watched)) {
                notices.send_replace(());
            }
        };
        let mut watcher = match notify::recommended_watcher(handler) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::debug!(
                    %error,
                    "folder watcher could not be created, changes are found by polling"
                );
                return None;
            }
        };
        let mut watched = 0;
        for folder in folders {
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => watched += 1,
                Err(error) => {
                    tracing::debug!(
                        folder = %folder.display(), %error,
                        "folder could not be watched"
                    );
                }
            }
        }
        (watched > 0).then_some(Self { _watcher: watcher })
    }
}

/// Returns whether a watched file may have changed.
fn is_change(event: &Event, is_watched: &dyn Fn(&OsStr) -> bool) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Metadata(_)) => {
            let mut names = event.paths.iter().filter_map(|path| path.file_name());
            event.paths.is_empty() || names.any(is_watched)
        }
        // The kernel reports opened files, too: reading them would cause the next notice.
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, MetadataKind, RemoveKind, RenameMode};

    use super::*;

    #[test]
    fn what_is_read_and_what_is_written_elsewhere_is_no_change() {
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let marked = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        for (kind, ours, others) in [
            (opened, false, false),
            (closed, true, false),
            (written, true, false),
            (marked, true, false),
            (renamed, true, true),
            (EventKind::Create(CreateKind::File), true, true),
            (EventKind::Remove(RemoveKind::File), true, true),
            (EventKind::Other, true, true),
        ] {
            let about = |name: &str| {
                let event = Event::new(kind).add_path(Path::new("/folder").join(name));
                is_change(&event, &|name| name == "ours.toml")
            };
            assert_eq!((about("ours.toml"), about("weir.log")), (ours, others), "{kind:?}");
        }
    }
}
