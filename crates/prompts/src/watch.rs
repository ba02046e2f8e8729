//! Change detection for the prompt folder.
//!
//! Kernel events say only *that* something happened; the folder is read again to find out what. A
//! check every two seconds finds changes without an event: in network folders, in sub-folders, and
//! in a folder that replaced the watched one.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::Library;
use super::folder;
use super::loaded::LoadedPrompts;
use weir_base::files::folder_watch::{FileWakeups, FolderWatch};

/// Task that keeps a library in step with its folder.
pub(super) struct FolderWatcher {
    library: Arc<Library>,
    wakeups: FileWakeups,
    kernel: Option<FolderWatch>,
    has_vanished: bool,
}

/// Result of one check of the disk.
struct CheckResult {
    /// New reading, if one was needed.
    loaded: Option<LoadedPrompts>,
    /// New kernel watcher, if there was none or it has missed a change.
    kernel: Option<FolderWatch>,
}

impl FolderWatcher {
    pub(super) fn new(library: Arc<Library>) -> FolderWatcher {
        FolderWatcher {
            library,
            wakeups: FileWakeups::default(),
            kernel: None,
            has_vanished: false,
        }
    }

    /// Runs until `stop` fires, and then ends at once, even while the disk hangs.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let follow = async {
            loop {
                let has_event = self.wakeups.next().await;
                match self.check(has_event).await {
                    Ok(check) => self.take(check),
                    Err(bug) => {
                        tracing::error!(%bug, "reading the prompt folder failed unexpectedly")
                    }
                }
            }
        };
        let _: Option<()> = stop.run_until_cancelled(follow).await;
    }

    /// Checks the disk once. Without a kernel event the folder is read only if lengths or times of
    /// files show a change; then the kernel watcher has missed it and is replaced.
    async fn check(&self, has_event: bool) -> Result<io::Result<CheckResult>, JoinError> {
        let (library, events) = (Arc::clone(&self.library), self.wakeups.notices.clone());
        let is_unwatched = self.kernel.is_none();
        spawn_blocking(move || {
            let (dir, last) = (&library.dir, library.loaded());
            // The watcher starts before the check, so that no change falls in between.
            let kernel =
                if is_unwatched { start_kernel_watch(&library, events.clone()) } else { None };
            // A change before the watcher started may leave the same stamps: file timestamps are
            // coarse.
            if !has_event
                && kernel.is_none()
                && folder::current_stamps(dir, &last.stamps)? == last.stamps
            {
                return Ok(CheckResult { loaded: None, kernel });
            }
            let kernel = if has_event || is_unwatched {
                kernel
            } else {
                start_kernel_watch(&library, events)
            };
            Ok(CheckResult { loaded: Some(LoadedPrompts::read(dir, Some(&last))?), kernel })
        })
        .await
    }

    fn take(&mut self, check: io::Result<CheckResult>) {
        let dir = self.library.dir.display();
        match check {
            Ok(check) => {
                if std::mem::take(&mut self.has_vanished) {
                    tracing::info!(%dir, "prompt folder readable again");
                }
                if let Some(kernel) = check.kernel {
                    self.kernel = Some(kernel);
                }
                if let Some(loaded) = check.loaded {
                    self.library.publish(loaded);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_vanished, true) {
                    tracing::warn!(%dir, %error, "prompt folder unreadable, last prompts kept");
                }
                // The watcher belongs to a folder that is gone; a new folder needs a new watcher.
                self.kernel = None;
            }
        }
    }
}

/// Starts a kernel watcher for the folder itself.
fn start_kernel_watch(library: &Arc<Library>, events: watch::Sender<()>) -> Option<FolderWatch> {
    let dir = library.dir.clone();
    let library = Arc::clone(library);
    let is_relevant = move |name: &OsStr| library.loaded().stamps.concern(name);
    FolderWatch::start([&*dir], is_relevant, events)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Prompt folder on the real disk, watched with the real clock.
    struct WatchedFolder {
        dir: tempfile::TempDir,
        library: Arc<Library>,
        changes: watch::Receiver<u64>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    impl WatchedFolder {
        fn start(files: &[(&str, &str)]) -> WatchedFolder {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("prompts")).unwrap();
            for (name, text) in files {
                fs::write(dir.path().join("prompts").join(name), text).unwrap();
            }
            let library = Library::open(&dir.path().join("prompts")).unwrap();
            let (changes, stop) = (library.changes(), CancellationToken::new());
            let task = tokio::spawn(library.clone().watch(stop.clone()));
            WatchedFolder { dir, library, changes, stop, task }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.dir.path().join("prompts").join(name)
        }

        fn text(&self, name: &str) -> String {
            let answer = self.library.get(name, &BTreeMap::new()).map(|answer| answer.to_vec());
            answer.map_or_else(
                |refusal| refusal.to_string(),
                |answer| String::from_utf8(answer).unwrap(),
            )
        }

        /// Waits until the response for `a` contains this text, driven by change notifications
        /// only.
        async fn becomes(&mut self, text: &str) {
            let deadline = Duration::from_secs(30);
            while !self.text("a").contains(text) {
                tokio::time::timeout(deadline, self.changes.changed()).await.unwrap().unwrap();
            }
        }

        async fn end(self) {
            self.stop.cancel();
            tokio::time::timeout(Duration::from_secs(30), self.task).await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_file_that_is_written_anew_is_read_anew() {
        let mut watched = WatchedFolder::start(&[("a.md", "---\n---\none")]);
        fs::write(watched.path("a.md"), "---\n---\ntwo").unwrap();
        watched.becomes("two").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn a_file_that_is_saved_by_renaming_is_read_anew() {
        let mut watched = WatchedFolder::start(&[("a.md", "---\n---\none")]);
        fs::write(watched.path(".a.md.tmp"), "---\n---\ntwo").unwrap();
        fs::rename(watched.path(".a.md.tmp"), watched.path("a.md")).unwrap();
        watched.becomes("two").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn files_come_and_go() {
        let mut watched = WatchedFolder::start(&[]);
        fs::write(watched.path("a.md"), "---\n---\none").unwrap();
        watched.becomes("one").await;
        fs::remove_file(watched.path("a.md")).unwrap();
        watched.becomes("Unknown prompt: a").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn a_change_in_a_sub_folder_is_found_by_looking() {
        let mut watched = WatchedFolder::start(&[("a.md", "---\n---\n<!-- embed: sub/b.txt -->")]);
        fs::create_dir(watched.path("sub")).unwrap();
        fs::write(watched.path("sub/b.txt"), "one").unwrap();
        watched.becomes("one").await;
        fs::write(watched.path("sub/b.txt"), "second").unwrap();
        watched.becomes("second").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn a_file_that_turns_bad_keeps_its_last_good_version_and_the_rest_goes_on() {
        let mut watched =
            WatchedFolder::start(&[("a.md", "---\n---\none"), ("b.md", "---\n---\nbee")]);
        fs::write(watched.path("b.md"), "---\nname: [").unwrap();
        fs::write(watched.path("a.md"), "---\n---\ntwo").unwrap();
        watched.becomes("two").await;
        assert!(watched.text("b").contains("bee"));
        let problems = watched.library.loaded().problems.clone();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].kept && problems[0].file == "b.md");
        watched.end().await;
    }

    #[tokio::test]
    async fn a_folder_that_vanishes_keeps_its_prompts_and_may_come_back() {
        let mut watched = WatchedFolder::start(&[("a.md", "---\n---\none")]);
        fs::rename(watched.dir.path().join("prompts"), watched.dir.path().join("away")).unwrap();
        let check = FolderWatcher::new(watched.library.clone()).check(true).await.unwrap();
        assert!(check.is_err());
        assert!(watched.text("a").contains("one"));
        fs::create_dir(watched.dir.path().join("new")).unwrap();
        fs::write(watched.dir.path().join("new/a.md"), "---\n---\ntwo").unwrap();
        fs::rename(watched.dir.path().join("new"), watched.dir.path().join("prompts")).unwrap();
        watched.becomes("two").await;
        watched.end().await;
    }

    #[test]
    fn a_file_that_a_prompt_uses_gives_notice_when_it_is_written_and_a_log_is_none_of_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "---\n---\n<!-- embed: used.txt -->").unwrap();
        fs::write(dir.path().join("used.txt"), "text").unwrap();
        fs::write(dir.path().join("weir.log"), "").unwrap();
        let library = Library::open(dir.path()).unwrap();
        let (events, kernel_events) = watch::channel(());
        let _kernel = start_kernel_watch(&library, events).unwrap();
        fs::write(dir.path().join("used.txt"), "more").unwrap();
        let begin = std::time::Instant::now();
        while !kernel_events.has_changed().unwrap() {
            assert!(begin.elapsed() < Duration::from_secs(30), "there is a notice of `used.txt`");
            std::thread::yield_now();
        }
        let concern = |name: &str| library.loaded().stamps.concern(name.as_ref());
        assert_eq!(["a.md", "used.txt", "weir.log"].map(concern), [true, true, false]);
    }
}
