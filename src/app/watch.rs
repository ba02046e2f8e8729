//! Watcher of the configuration files and of secret files.
//!
//! Changes are detected by content: the files are hashed, so that the kind of change does not
//! matter (written in place, replaced, another link target, a new file beside it). Notifications of
//! the kernel only trigger a check; without them a check every two seconds finds the change. Files
//! that are still being written are waited for. Of a secret only a hash is stored.
//!
//! Certificates of the listener are not watched here: they are reloaded without a configuration
//! reload (`downstream/http/connection/tls.rs`).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use zeroize::Zeroizing;

use super::{Components, ReloadTrigger, Reloader};
use weir_base::files::folder_watch::{FileWakeups, FolderWatch, SETTLE_TIME};
use weir_base::files::regular_file;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;
use weir_config::{Config, MAX_FILE_BYTES, Options, Sources};
use weir_record::audit::FileHash;

/// Files of a configuration, with the fingerprint of their last contents.
pub struct ConfigFiles {
    path: PathBuf,
    options: Options,
    last: Fingerprint,
    /// Files with their hashes at the time of the snapshot.
    hashes: Vec<FileHash>,
}

/// Paths and content hash of the files.
#[derive(Clone, PartialEq)]
struct Fingerprint {
    sources: Sources,
    sha256: [u8; 32],
}

impl ConfigFiles {
    /// Takes the fingerprint of the files before they are read. `None` if they cannot be read
    /// again, because the configuration comes through a pipe.
    pub fn snapshot(path: &Path, options: &Options) -> Option<Self> {
        let is_pipe = path.metadata().is_ok_and(|about| !about.is_file());
        let look = || {
            let last = fingerprint(path, options, &Sources::default());
            let hashes = hash_files(path, options);
            Self { path: path.to_owned(), options: options.clone(), last, hashes }
        };
        (!is_pipe).then(look)
    }

    /// Returns the files with their hashes at the time of the snapshot.
    pub fn hashes(&self) -> Vec<FileHash> {
        self.hashes.clone()
    }

    /// Reloads the configuration whenever the files have changed, if the configuration enables it,
    /// until `stop`.
    pub(super) async fn follow(
        mut self,
        components: Arc<Components>,
        reloader: Reloader,
        stop: CancellationToken,
    ) {
        let work = async {
            let mut wakeups = FileWakeups::default();
            let mut _kernel = watch_folders(&self.last.sources, &wakeups.notices);
            loop {
                wakeups.next().await;
                if !components.config().server.watch {
                    continue;
                }
                let mut now = self.fingerprint().await;
                if now == self.last {
                    continue;
                }
                loop {
                    sleep(SETTLE_TIME).await;
                    let later = self.fingerprint().await;
                    if std::mem::replace(&mut now, later.clone()) == later {
                        break;
                    }
                }
                self.last = now;
                // Folders may have been created or replaced.
                _kernel = watch_folders(&self.last.sources, &wakeups.notices);
                reloader.reload_because_of(ReloadTrigger::File).await;
            }
        };
        let _: Option<()> = stop.run_until_cancelled(work).await;
    }

    async fn fingerprint(&self) -> Fingerprint {
        let (path, options, last) = (self.path.clone(), self.options.clone(), self.last.clone());
        let looked = spawn_blocking(move || fingerprint(&path, &options, &last.sources)).await;
        looked.unwrap_or_else(|_| self.last.clone())
    }
}

/// Returns the files of a configuration with their hashes; of a configuration with mistakes perhaps
/// only the main file.
pub fn hash_files(path: &Path, options: &Options) -> Vec<FileHash> {
    let files = Config::sources(path, options).map(|sources| sources.files);
    let files = files.unwrap_or_else(|_| vec![path.to_owned()]);
    let hash = |file: &PathBuf| FileHash {
        path: file.display().to_string(),
        sha256: regular_file::read(file, MAX_FILE_BYTES).ok().map(|text| hex(&sha256(text))),
    };
    files.iter().map(hash).collect()
}

/// Hashes all files. If the main file is not valid TOML, the files of the last valid one are used.
fn fingerprint(path: &Path, options: &Options, known: &Sources) -> Fingerprint {
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
        hashes.extend(secret_fingerprint(secret));
    }
    Fingerprint { sources, sha256: sha256(hashes) }
}

/// Returns a hash of a secret file and of its permissions, which decide whether it is accepted.
fn secret_fingerprint(path: &Path) -> [u8; 32] {
    let look = || {
        let file = regular_file::open(path)?;
        let about = file.metadata()?;
        // A longer file is not accepted as a secret.
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_SECRET_BYTES));
        file.take(MAX_SECRET_BYTES as u64).read_to_end(&mut text)?;
        let numbers = [u64::from(about.mode()), u64::from(about.uid()), about.len()];
        let numbers = numbers.map(u64::to_be_bytes).concat();
        Ok::<_, std::io::Error>(sha256([sha256(&*text), sha256(numbers)].concat()))
    };
    look().unwrap_or_else(|error| sha256(format!("{:?}", error.kind())))
}

/// Watches the folders of the files, and of the targets of links.
fn watch_folders(sources: &Sources, events: &watch::Sender<()>) -> Option<FolderWatch> {
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

/// Bytes of a secret file that are hashed: slightly more than are accepted.
const MAX_SECRET_BYTES: usize = 65 * 1024;
