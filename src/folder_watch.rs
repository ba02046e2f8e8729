//! Notices of the kernel that a file in a folder may have changed.
//!
//! A notice carries nothing: what has changed is found by looking. Writing to a file that is not asked about gives no
//! notice. Such a file may be a log of Weir's own: a notice for each of its lines would be work for each of its lines.
//! Whatever comes, goes or is renamed gives one, because it can change what a link or a pattern stands for.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::watch;

/// Watches folders until it is dropped.
pub struct FolderWatch {
    _watcher: RecommendedWatcher,
}

impl FolderWatch {
    /// Watches these folders, not what is in their sub-folders. `is_asked_about` says by its name which file's content
    /// matters. None if the kernel watches none of them.
    pub fn start<'a>(
        folders: impl IntoIterator<Item = &'a Path>,
        is_asked_about: impl Fn(&OsStr) -> bool + Send + Sync + 'static,
        notices: watch::Sender<()>,
    ) -> Option<Self> {
        let is_asked_about = Arc::new(is_asked_about);
        let handler = move |event: notify::Result<Event>| {
            // An error may mean that an event was lost.
            if event.map_or(true, |event| is_change(&event, &*is_asked_about)) {
                notices.send_replace(());
            }
        };
        let mut watcher = match notify::recommended_watcher(handler) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::debug!(%error, "the kernel watches no folders");
                return None;
            }
        };
        let mut watched = 0;
        for folder in folders {
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => watched += 1,
                Err(error) => {
                    tracing::debug!(folder = %folder.display(), %error, "the kernel does not watch a folder");
                }
            }
        }
        (watched > 0).then_some(Self { _watcher: watcher })
    }
}

/// Whether a file that is asked about may be another one now.
fn is_change(event: &Event, is_asked_about: &dyn Fn(&OsStr) -> bool) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Metadata(_)) => {
            let mut names = event.paths.iter().filter_map(|path| path.file_name());
            event.paths.is_empty() || names.any(is_asked_about)
        }
        // The kernel also tells that files are opened: looking would be followed by looking.
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
