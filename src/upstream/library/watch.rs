//! Noticing that the folder has changed.
//!
//! The kernel's events say only *that* something happened; what it was is found by reading the folder
//! again. Looking every two seconds finds what the kernel does not tell: changes in network folders, in
//! sub-folders, and in a folder that was put in the place of the one that is watched.
//! Knows nothing of: what is in the files.

use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::Library;
use super::folder;
use super::loaded::Shelf;
use crate::folder_watch::FolderWatch;

/// Keeps a library as its folder is.
pub(super) struct Watch {
    library: Library,
    /// Moved by the kernel's events: no payload, so a burst is one change.
    events: watch::Sender<()>,
    kernel: Option<FolderWatch>,
    has_vanished: bool,
}

enum Event {
    Stop,
    /// The kernel says that something happened.
    Told,
    /// It is time to look.
    Look,
}

/// What a round on the disk gave.
struct Round {
    /// A new reading, if there was reason for one.
    shelf: Option<Shelf>,
    /// Another watcher, if the one at hand is none or has missed something.
    kernel: Option<FolderWatch>,
}

impl Watch {
    pub(super) fn new(library: Library) -> Watch {
        let (events, _) = watch::channel(());
        Watch { library, events, kernel: None, has_vanished: false }
    }

    /// Ends only when `stop` fires, and then at once, even while the disk hangs.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut told = self.events.subscribe();
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => Event::Stop,
                // Cannot be closed: `self.events` is its sender.
                _ = told.changed() => Event::Told,
                _ = look.tick() => Event::Look,
            };
            let round = async {
                match event {
                    Event::Stop => None,
                    Event::Told => {
                        sleep(BURST).await;
                        // What happens from here on, while the folder is read, is another change.
                        told.mark_unchanged();
                        Some(self.round(true).await)
                    }
                    Event::Look => Some(self.round(false).await),
                }
            };
            let round = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                round = round => round,
            };
            match round {
                None => return,
                Some(Ok(round)) => self.take(round),
                Some(Err(bug)) => tracing::error!(%bug, "reading the prompt folder broke off"),
            }
        }
    }

    /// One round on the disk. Without the kernel's word the folder is read only if the files' lengths
    /// and times show a change; then the kernel has missed it, and is asked anew.
    async fn round(&self, told: bool) -> Result<io::Result<Round>, JoinError> {
        let (library, events) = (self.library.clone(), self.events.clone());
        let deaf = self.kernel.is_none();
        spawn_blocking(move || {
            let (dir, last) = (&library.inner.dir, library.shelf());
            // Listening begins before looking, so that no change falls in between.
            let kernel = if deaf { listen(&library, events.clone()) } else { None };
            // What was changed before the kernel was listening may look the same: clocks of files are coarse.
            if !told && kernel.is_none() && folder::look(dir, last.stamps())? == *last.stamps() {
                return Ok(Round { shelf: None, kernel });
            }
            let kernel = if told || deaf { kernel } else { listen(&library, events) };
            Ok(Round { shelf: Some(Shelf::read(dir, Some(&last))?), kernel })
        })
        .await
    }

    fn take(&mut self, round: io::Result<Round>) {
        let dir = self.library.inner.dir.display();
        match round {
            Ok(round) => {
                if std::mem::take(&mut self.has_vanished) {
                    tracing::info!(%dir, "the prompt folder is back");
                }
                if let Some(kernel) = round.kernel {
                    self.kernel = Some(kernel);
                }
                if let Some(shelf) = round.shelf {
                    self.library.publish(shelf);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_vanished, true) {
                    tracing::warn!(%dir, %error, "the prompt folder cannot be read; keeping its last prompts");
                }
                // It watches a folder that is gone; the one that comes will need another.
                self.kernel = None;
            }
        }
    }
}

/// Has the kernel give notice of changes in the folder itself.
fn listen(library: &Library, events: watch::Sender<()>) -> Option<FolderWatch> {
    let dir = library.inner.dir.clone();
    let library = library.clone();
    let is_asked_about = move |name: &OsStr| library.shelf().stamps().concern(name);
    FolderWatch::start([&*dir], is_asked_about, events)
}

/// Editors write a file in several steps, and a checkout writes many files.
const BURST: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// A folder of prompts on the real disk, watched with the real clock.
    struct Watched {
        dir: tempfile::TempDir,
        library: Library,
        changes: watch::Receiver<u64>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    impl Watched {
        fn start(files: &[(&str, &str)]) -> Watched {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("prompts")).unwrap();
            for (name, text) in files {
                fs::write(dir.path().join("prompts").join(name), text).unwrap();
            }
            let library = Library::open(&dir.path().join("prompts")).unwrap();
            let (changes, stop) = (library.changes(), CancellationToken::new());
            let task = tokio::spawn(library.clone().watch(stop.clone()));
            Watched { dir, library, changes, stop, task }
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

        /// Waits until the answer for `a` holds this text: by the changes alone.
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
        let mut watched = Watched::start(&[("a.md", "---\n---\none")]);
        fs::write(watched.path("a.md"), "---\n---\ntwo").unwrap();
        watched.becomes("two").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn a_file_that_is_saved_by_renaming_is_read_anew() {
        let mut watched = Watched::start(&[("a.md", "---\n---\none")]);
        fs::write(watched.path(".a.md.tmp"), "---\n---\ntwo").unwrap();
        fs::rename(watched.path(".a.md.tmp"), watched.path("a.md")).unwrap();
        watched.becomes("two").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn files_come_and_go() {
        let mut watched = Watched::start(&[]);
        fs::write(watched.path("a.md"), "---\n---\none").unwrap();
        watched.becomes("one").await;
        fs::remove_file(watched.path("a.md")).unwrap();
        watched.becomes("Unknown prompt: a").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn a_change_in_a_sub_folder_is_found_by_looking() {
        let mut watched = Watched::start(&[("a.md", "---\n---\n<!-- embed: sub/b.txt -->")]);
        fs::create_dir(watched.path("sub")).unwrap();
        fs::write(watched.path("sub/b.txt"), "one").unwrap();
        watched.becomes("one").await;
        fs::write(watched.path("sub/b.txt"), "second").unwrap();
        watched.becomes("second").await;
        watched.end().await;
    }

    #[tokio::test]
    async fn a_file_that_turns_bad_keeps_its_last_good_version_and_the_rest_goes_on() {
        let mut watched = Watched::start(&[("a.md", "---\n---\none"), ("b.md", "---\n---\nbee")]);
        fs::write(watched.path("b.md"), "---\nname: [").unwrap();
        fs::write(watched.path("a.md"), "---\n---\ntwo").unwrap();
        watched.becomes("two").await;
        assert!(watched.text("b").contains("bee"));
        let problems = watched.library.problems();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].kept && problems[0].file == "b.md");
        watched.end().await;
    }

    #[tokio::test]
    async fn a_folder_that_vanishes_keeps_its_prompts_and_may_come_back() {
        let mut watched = Watched::start(&[("a.md", "---\n---\none")]);
        fs::rename(watched.dir.path().join("prompts"), watched.dir.path().join("away")).unwrap();
        let round = Watch::new(watched.library.clone()).round(true).await.unwrap();
        assert!(round.is_err());
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
        let (events, told) = watch::channel(());
        let _kernel = listen(&library, events).unwrap();
        fs::write(dir.path().join("used.txt"), "more").unwrap();
        let begin = std::time::Instant::now();
        while !told.has_changed().unwrap() {
            assert!(begin.elapsed() < Duration::from_secs(30), "there is a notice of `used.txt`");
            std::thread::yield_now();
        }
        let concern = |name: &str| library.shelf().stamps().concern(name.as_ref());
        assert_eq!(["a.md", "used.txt", "weir.log"].map(concern), [true, true, false]);
    }
}
