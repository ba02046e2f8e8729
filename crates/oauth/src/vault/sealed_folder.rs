//! Folder with sealed files, which processes share.
//!
//! Invariants: a file is replaced as a whole, and is on disk then. One that was moved to another
//! name, or sealed with other keys, does not open. The keys are replaced only after all files have
//! opened, and the former key goes last.

use std::fmt::Display;
use std::fs;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

use super::file_lock::{FileLock, LOCK_PATIENCE};
use crate::OAuthError;
use weir_base::files::{private_file, regular_file};
use weir_base::secrets::sealing::{Sealer, SealingKeys};
use weir_base::secrets::secret::random_token;

/// Folder with sealed files.
pub(super) struct SealedFolder {
    pub(super) path: PathBuf,
    sealer: Sealer,
}

/// Content of a file, and its name.
pub(super) type NamedContent = (String, Zeroizing<Vec<u8>>);

/// Space on the disk for a record, which is released when it is dropped.
pub(crate) struct ReservedSpace(pub(super) NamedTempFile);

impl SealedFolder {
    /// Opens the folder. Its keys are created when it is opened first.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let keys = SealingKeys::load_or_create(&path)?;
        Ok(Self { path, sealer: keys.sealer("sign-in") })
    }

    // === Keys ===

    /// Reads all files with these names, which must open.
    pub(super) fn read_all(
        &self,
        is_sealed: impl Fn(&str) -> bool,
    ) -> Result<Vec<NamedContent>, OAuthError> {
        let failed = |error| unusable(&self.path, &error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().into_string().unwrap_or_default();
            if is_sealed(&name)
                && let Some(content) = self.read_file(&name)?
            {
                all.push((name, content));
            }
        }
        Ok(all)
    }

    /// Writes a new key before the present one, and returns it. A folder that is opened then seals
    /// with the new key, and opens what was sealed with either.
    pub(super) fn add_key(&self) -> Result<Box<str>, OAuthError> {
        let failed = |error| unusable(&self.path, &error);
        let keys = SealingKeys::path(&self.path);
        let former = private_file::read(&keys, MAX_KEYS_BYTES).map_err(failed)?;
        match former.split_once('\n') {
            // A change of keys was interrupted, and is finished now.
            Some((first, rest)) if !rest.trim().is_empty() => Ok(first.to_owned().into()),
            _ => {
                let new = random_token();
                let both = Zeroizing::new(format!("{}\n{}", &*new, former.trim_end()));
                self.replace_file(&keys, &both, None).map_err(failed)?;
                Ok(new)
            }
        }
    }

    /// Seals all files with a key that was added, and removes the other one.
    pub(super) fn seal_all(&self, all: &[NamedContent], key: &str) -> Result<(), OAuthError> {
        for (name, content) in all {
            self.write_file(name, content, None)?;
        }
        let keys = SealingKeys::path(&self.path);
        self.replace_file(&keys, key, None).map_err(|error| unusable(&self.path, &error))
    }

    // === Files ===

    pub(super) fn read_json<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<T>, OAuthError> {
        let Some(content) = self.read_file(name)? else { return Ok(None) };
        serde_json::from_slice(&content).map(Some).map_err(|_| self.damaged(name))
    }

    pub(super) fn write_json(
        &self,
        name: &str,
        content: &impl Serialize,
        space: Option<ReservedSpace>,
    ) -> Result<(), OAuthError> {
        let content = serde_json::to_vec(content).map(Zeroizing::new);
        let content = content.map_err(|error| unusable(&self.path.join(name), &error))?;
        self.write_file(name, &content, space)
    }

    fn read_file(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, OAuthError> {
        let path = self.path.join(name);
        let text = match private_file::read(&path, MAX_RECORD_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&path, &error)),
        };
        let opened = self.sealer.open_up_to(name, text.trim_end(), MAX_RECORD_BYTES as usize);
        let opened = opened.ok_or_else(|| self.damaged(name))?;
        Ok(Some(Zeroizing::new(opened.content)))
    }

    fn damaged(&self, name: &str) -> OAuthError {
        let path = self.path.join(name);
        let path = path.display();
        let text = format!("the sign-in in {path} was sealed with other keys, or is damaged");
        OAuthError::SignInNeeded(text)
    }

    fn write_file(
        &self,
        name: &str,
        content: &[u8],
        space: Option<ReservedSpace>,
    ) -> Result<(), OAuthError> {
        let path = self.path.join(name);
        let sealed = self.sealer.seal(name, content);
        let written = match sealed.len() as u64 >= MAX_RECORD_BYTES {
            true => Err(io::Error::other("it is larger than 128 KiB")),
            false => self.replace_file(&path, &sealed, space),
        };
        written.map_err(|error| unusable(&path, &error))
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &str) -> Result<(), OAuthError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(&path, &error)),
            _ => Ok(()),
        }
    }

    /// Replaces the contents of a file, which are on disk then.
    pub(super) fn replace_file(
        &self,
        path: &Path,
        line: &str,
        space: Option<ReservedSpace>,
    ) -> io::Result<()> {
        let file = match space {
            Some(ReservedSpace(mut file)) => {
                file.rewind()?;
                writeln!(file, "{line}")?;
                let length = file.stream_position()?;
                file.as_file().set_len(length)?;
                file
            }
            None => {
                let mut file = self.temporary_file(NEW)?;
                writeln!(file, "{line}")?;
                file
            }
        };
        file.as_file().sync_all()?;
        file.persist(path)?;
        // The new name is on disk, too, once the folder is.
        private_file::sync_folder(&self.path)
    }

    /// Reserves space for the largest record: what is requested now can be kept then.
    ///
    /// # Errors
    ///
    /// There is none, because the disk is full for example, or nothing can be changed.
    pub(super) fn reserve_space(&self) -> Result<ReservedSpace, OAuthError> {
        self.check_lock()?;
        let reserve = || {
            let mut file = self.temporary_file(SPACE)?;
            // Equal bytes may take no space where files are compressed.
            let filling: String = (0..MAX_RECORD_BYTES / 32).map(|_| random_token()).collect();
            file.write_all(&filling.as_bytes()[..MAX_RECORD_BYTES as usize])?;
            file.as_file().sync_all()?;
            Ok(ReservedSpace(file))
        };
        reserve().map_err(|error: io::Error| unusable(&self.path, &error))
    }

    /// Creates a file that is readable by its owner only, and removed when it is dropped.
    fn temporary_file(&self, prefix: &str) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(prefix).tempfile_in(&self.path)
    }

    // === Locks ===

    /// Waits until no other process changes the folder, which takes a moment. One that has been
    /// stopped is not waited for.
    pub(super) async fn lock_changes(&self) -> Result<FileLock, OAuthError> {
        let path = self.path.join(CHANGES);
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
    fn check_lock(&self) -> Result<(), OAuthError> {
        let path = self.path.join(CHANGES);
        regular_file::open_to_append(&path).map(drop).map_err(|error| unusable(&path, &error))
    }

    /// Removes the files that processes have left which were killed while they wrote them.
    fn remove_leftovers(&self) {
        let now = SystemTime::now();
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
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

/// Returns the error about a file that cannot be used.
pub(super) fn unusable(path: &Path, error: &dyn Display) -> OAuthError {
    OAuthError::Unavailable(format!("the sign-in in {} cannot be used: {error}", path.display()))
}

/// Largest file of a record: an access token and a refresh token of 16 KiB each, and URLs.
pub(super) const MAX_RECORD_BYTES: u64 = 128 * 1024;
/// Largest file of keys.
const MAX_KEYS_BYTES: u64 = 1024;
/// Beginning of the name of a file that is being written, and of one that reserves space.
const NEW: &str = ".new-";
const SPACE: &str = ".space-";
/// Name of the file whose lock a change takes.
const CHANGES: &str = "changes.lock";
/// Age from which on a temporary file is one that was left.
const LEFTOVER_AGE: Duration = Duration::from_mins(1);
