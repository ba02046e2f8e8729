//! Noticing that the files of the configuration have changed, or those that hold its secrets.
//!
//! What counts is what stands in them: the texts are hashed, so that it does not matter how a file came to be another
//! one (written in place, put in its place, a link that leads elsewhere, a new file beside it). The kernel's notices
//! only say when to look; where it says nothing, looking every two seconds finds it. What is still being written is
//! waited for.
//!
//! The certificates of the listener are not looked at here: they are taken up without a reload (`http/tls.rs`).
//!
//! Knows nothing of: what is in the files. Of a secret nothing is kept but a hash.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use zeroize::Zeroizing;

use super::{Reloader, Rooms};
use crate::config::{Config, MAX_FILE_BYTES, Options, Sources};
use crate::folder_watch::FolderWatch;
use crate::regular_file;
use crate::sha256::sha256;

/// The files of a configuration, as they were at a moment.
pub struct Files {
    path: PathBuf,
    options: Options,
    last: Print,
}

/// Which files there are, and what is in them.
#[derive(Clone, PartialEq)]
struct Print {
    sources: Sources,
    sha256: [u8; 32],
}

impl Files {
    /// Looks at the files, before they are read. Nothing if there are none that could be read again: the configuration
    /// comes through a pipe.
    pub fn look(path: &Path, options: &Options) -> Option<Self> {
        let is_pipe = path.metadata().is_ok_and(|about| !about.is_file());
        let look = || {
            let last = print(path, options, &Sources::default());
            Self { path: path.to_owned(), options: options.clone(), last }
        };
        (!is_pipe).then(look)
    }

    /// Has the configuration reloaded whenever the files have changed, where it says so, until `stop`.
    pub(super) async fn follow(
        mut self,
        rooms: Arc<Rooms>,
        reloader: Reloader,
        stop: CancellationToken,
    ) {
        let work = async {
            let (events, mut told) = watch::channel(());
            let mut look = interval(LOOK_EVERY);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut _kernel = listen(&self.last.sources, &events);
            loop {
                let was_told = tokio::select! {
                    _ = told.changed() => true,
                    _ = look.tick() => false,
                };
                if !rooms.config().server.watch {
                    continue;
                }
                if was_told {
                    sleep(BURST).await;
                }
                // What happens from here on is another change.
                told.mark_unchanged();
                let mut now = self.print().await;
                if now == self.last {
                    continue;
                }
                loop {
                    sleep(BURST).await;
                    let later = self.print().await;
                    if std::mem::replace(&mut now, later.clone()) == later {
                        break;
                    }
                }
                self.last = now;
                // Folders may have come, or one that is watched may have been put aside.
                _kernel = listen(&self.last.sources, &events);
                reloader.reload().await;
            }
        };
        let _: Option<()> = stop.run_until_cancelled(work).await;
    }

    async fn print(&self) -> Print {
        let (path, options, last) = (self.path.clone(), self.options.clone(), self.last.clone());
        let looked = spawn_blocking(move || print(&path, &options, &last.sources)).await;
        looked.unwrap_or_else(|_| self.last.clone())
    }
}

/// Looks at all files. Where the main one cannot be read as TOML, those count that it had before.
fn print(path: &Path, options: &Options, known: &Sources) -> Print {
    let sources = Config::sources(path, options).unwrap_or_else(|_| {
        let others = known.files.iter().filter(|known| *known != path);
        let files = std::iter::once(path.to_owned()).chain(others.cloned()).collect();
        Sources { files, secrets: known.secrets.clone() }
    });
    let mut hashes = Vec::new();
    for file in &sources.files {
        hashes.extend(sha256(file.as_os_str().as_encoded_bytes()));
        hashes.extend(match regular_file::read(file, MAX_FILE_BYTES) {
            Ok(text) => sha256(text),
            Err(error) => sha256(format!("{:?}", error.kind())),
        });
    }
    for secret in &sources.secrets {
        hashes.extend(sha256(secret.as_os_str().as_encoded_bytes()));
        hashes.extend(of_secret(secret));
    }
    Print { sources, sha256: sha256(hashes) }
}

/// A hash of what is in a file that holds a secret, and of who may read it, on which it depends whether it is taken.
fn of_secret(path: &Path) -> [u8; 32] {
    let look = || {
        let file = regular_file::open(path)?;
        let about = file.metadata()?;
        // What is too long is no secret.
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_SECRET_BYTES));
        file.take(MAX_SECRET_BYTES as u64).read_to_end(&mut text)?;
        let numbers = [u64::from(about.mode()), u64::from(about.uid()), about.len()];
        let numbers = numbers.map(u64::to_be_bytes).concat();
        Ok::<_, std::io::Error>(sha256([sha256(&*text), sha256(numbers)].concat()))
    };
    look().unwrap_or_else(|error| sha256(format!("{:?}", error.kind())))
}

/// Has the kernel give notice of changes where the files are, and where the links lead to.
fn listen(sources: &Sources, events: &watch::Sender<()>) -> Option<FolderWatch> {
    let files = || sources.files.iter().chain(&sources.secrets);
    let real = files().filter_map(|file| fs::canonicalize(file).ok());
    let all: BTreeSet<PathBuf> = files().cloned().chain(real).collect();
    let folders: BTreeSet<&Path> = all
        .iter()
        .filter_map(|file| file.parent())
        .map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
        .collect();
    let names: BTreeSet<OsString> =
        all.iter().filter_map(|file| file.file_name().map(OsStr::to_owned)).collect();
    FolderWatch::start(folders, move |name: &OsStr| names.contains(name), events.clone())
}

/// Editors write a file in several steps, and a checkout writes many files.
const BURST: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How much of a file that holds a secret is looked at: a little more than is taken for one.
const MAX_SECRET_BYTES: usize = 65 * 1024;
