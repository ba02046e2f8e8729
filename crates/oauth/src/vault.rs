//! Vault: the sign-ins that outlive the process, in sealed files of the state folder.
//!
//! Processes that share the folder share the sign-ins. One of them refreshes the tokens of a
//! record, which takes as long as its authorization server does; a change of a record takes a
//! moment, so that a user signs in and out whatever the others wait for.
//!
//! Invariants: a record is replaced as a whole, and is on disk before its tokens are used. It is
//! changed only if it is still the one that was read. A file that was moved to another name, or
//! sealed with other keys, does not open.

pub(super) mod binding;
mod file_lock;
mod record_version;
mod sealed_folder;
mod sign_in_notes;
mod sign_in_record;
mod state_folder;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::OAuthError;
pub(crate) use file_lock::FileLock;
use file_lock::LOCK_PATIENCE;
pub(super) use record_version::RecordVersion;
pub(crate) use sealed_folder::ReservedSpace;
use sealed_folder::{SealedFolder, unusable};
pub(super) use sign_in_notes::SignInNotes;
pub(super) use sign_in_record::BoundClient;
pub use sign_in_record::{SignInNumber, SignInRecord};
pub use state_folder::StateFolderProblem;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Folder with the sign-ins of an installation.
pub struct Vault {
    files: SealedFolder,
}

/// Change of a record.
pub(super) enum RecordChange {
    /// It stays as it is.
    None,
    Write(Box<SignInRecord>),
    /// The user has signed out.
    SignOut,
    /// The authorization server has ended the sign-in.
    RunOut,
}

impl Vault {
    /// Opens the vault in the state folder. Its keys are created when it is opened first.
    ///
    /// # Errors
    ///
    /// The folder belongs to another user, can be changed by others or cannot be written, or its
    /// keys cannot be read.
    pub fn open(state: &Path) -> io::Result<Self> {
        let (folder, user) = (Self::folder(state), geteuid().as_raw());
        let foreign = || {
            let text = "the folder belongs to another user: run Weir as that user, for example \
                        with `sudo -u`";
            io::Error::other(text)
        };
        // What root writes there, the owner of the state could not read.
        let existing = state.ancestors().find_map(|folder| fs::metadata(folder).ok());
        if existing.is_some_and(|folder| state_folder::is_of_another(folder.uid(), user)) {
            return Err(foreign());
        }
        let refused = Self::folder_problems(state).into_iter().find(|problem| problem.is_refused);
        if let Some(StateFolderProblem { what, remedy, .. }) = refused {
            return Err(io::Error::other(format!("{what}; {remedy}")));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let about = fs::symlink_metadata(&folder)?;
        if !about.is_dir() {
            return Err(io::Error::other("it is a link, and not a folder"));
        }
        if about.uid() != user {
            return Err(foreign());
        }
        Ok(Self { files: SealedFolder::open(folder)? })
    }

    /// Opens the vault in the state folder; `None` if there was no sign-in yet.
    ///
    /// # Errors
    ///
    /// As for [`Vault::open`].
    pub fn open_existing(state: &Path) -> Result<Option<Self>, OAuthError> {
        match Self::folder(state).exists() {
            true => Self::open_usable(state).map(Some),
            false => Ok(None),
        }
    }

    fn open_usable(state: &Path) -> Result<Self, OAuthError> {
        Self::open(state).map_err(|error| unusable(&Self::folder(state), &error))
    }

    /// Returns what is wrong with the state folder and the folder of the vault in it.
    pub fn folder_problems(state: &Path) -> Vec<StateFolderProblem> {
        state_folder::problems(state, &Self::folder(state))
    }

    /// Returns the folder of the vault in the state folder.
    pub fn folder(state: &Path) -> PathBuf {
        state.join("sign-in")
    }

    /// Seals everything with a new key, removes the former keys, and returns the number of
    /// sign-ins. Other processes can use the vault meanwhile, and change nothing until it is done.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written. Then the former keys stay.
    pub async fn rekey(state: &Path) -> Result<usize, OAuthError> {
        let _lock = Self::open_usable(state)?.files.lock_changes().await?;
        let files = Self::open_usable(state)?.files;
        // All must open before anything changes.
        let all = files.read_all(is_sealed)?;
        let new = files.add_key()?;
        Self::open_usable(state)?.files.seal_all(&all, &new)?;
        Ok(all.iter().filter(|(name, _)| !name.ends_with(NOTES)).count())
    }

    // === Records ===

    /// Reads the record of an upstream; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not open: then a user has to sign in again.
    pub fn read(&self, upstream: &str) -> Result<Option<SignInRecord>, OAuthError> {
        self.files.read_json(&name(upstream)).map_err(|error| match error {
            OAuthError::SignInNeeded(text) => {
                let text = format!("{text}: sign in again with `weir login {upstream}`");
                OAuthError::SignInNeeded(text)
            }
            error => error,
        })
    }

    /// Reads the notes about the sign-ins to an upstream.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not open.
    pub(super) fn notes(&self, upstream: &str) -> Result<SignInNotes, OAuthError> {
        Ok(self.files.read_json(&notes_name(upstream))?.unwrap_or_default())
    }

    /// Returns the version of what the vault has about an upstream, which changes with each change
    /// of it.
    pub(super) fn version(state: &Path, upstream: &str) -> RecordVersion {
        let path = |name: String| Self::folder(state).join(name);
        RecordVersion::read(&path(name(upstream)), &path(notes_name(upstream)))
    }

    /// Changes the record of an upstream as `change` says, which gets the present one. Returns what
    /// it returns.
    ///
    /// # Errors
    ///
    /// The change cannot be written.
    pub(super) async fn change<T>(
        state: &Path,
        upstream: &str,
        space: Option<ReservedSpace>,
        change: impl FnOnce(Result<Option<SignInRecord>, OAuthError>) -> (RecordChange, T),
    ) -> Result<T, OAuthError> {
        let _lock = Self::open_usable(state)?.files.lock_changes().await?;
        // The keys may have been changed before the lock was there.
        let vault = Self::open_usable(state)?;
        let record = vault.read(upstream);
        let before = record.as_ref().ok().and_then(|it| it.as_ref());
        let number = before.map(SignInRecord::number);
        // Earlier versions have noted it in the record only.
        let bound = before.filter(|it| it.is_configured_client).map(SignInRecord::bound);
        let (change, returned) = change(record);
        let note = |ran_out| {
            vault.note(upstream, |notes| {
                notes.ran_out = ran_out;
                let noted = std::mem::take(&mut notes.bound);
                bound.into_iter().chain(noted).for_each(|it| it.keep_in(&mut notes.bound));
            })
        };
        match change {
            RecordChange::None => {}
            RecordChange::Write(record) => {
                vault.files.write_json(&name(upstream), &*record, space)?;
                // Beside a record the notes do not count: the change is made without them, too.
                if let Err(error) = note(None) {
                    tracing::debug!(%error, "notes about a sign-in not written");
                }
            }
            // Without a record the notes decide, so they are written first.
            RecordChange::SignOut | RecordChange::RunOut => {
                note(number.filter(|_| matches!(change, RecordChange::RunOut)))?;
                vault.files.remove(&name(upstream))?;
            }
        }
        Ok(returned)
    }

    /// Keeps a user's sign-in in place of the earlier one, and returns that, if it can be read.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub async fn sign_in(
        state: &Path,
        upstream: &str,
        record: SignInRecord,
    ) -> Result<Option<SignInRecord>, OAuthError> {
        let write = |before: Result<_, _>| {
            (RecordChange::Write(Box::new(record)), before.unwrap_or_default())
        };
        Self::change(state, upstream, None, write).await
    }

    /// Removes a user's sign-in. Returns whether there was one, and the record if it can be read.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub async fn sign_out(
        state: &Path,
        upstream: &str,
    ) -> Result<(bool, Option<SignInRecord>), OAuthError> {
        let Some(vault) = Self::open_existing(state)? else { return Ok((false, None)) };
        let has_run_out = vault.notes(upstream).is_ok_and(|notes| notes.ran_out.is_some());
        let remove = |before: Result<Option<SignInRecord>, _>| {
            let was_signed_in = has_run_out || !matches!(before, Ok(None));
            (RecordChange::SignOut, (was_signed_in, before.unwrap_or_default()))
        };
        Self::change(state, upstream, None, remove).await
    }

    /// Forgets the scopes that an upstream has demanded, which the authorization server or the user
    /// has refused.
    ///
    /// # Errors
    ///
    /// The record cannot be written.
    pub async fn forget_demands(state: &Path, upstream: &str) -> Result<(), OAuthError> {
        let forget = |record: Result<Option<SignInRecord>, _>| match record {
            Ok(Some(mut record)) => {
                record.forget_demands();
                (RecordChange::Write(Box::new(record)), ())
            }
            _ => (RecordChange::None, ()),
        };
        Self::change(state, upstream, None, forget).await
    }

    /// Notes to which authorization server the credentials of a client belong.
    ///
    /// # Errors
    ///
    /// That cannot be written.
    pub(super) async fn bind(
        state: &Path,
        upstream: &str,
        bound: &BoundClient,
    ) -> Result<(), OAuthError> {
        let vault = Self::open_usable(state)?;
        if vault.notes(upstream).is_ok_and(|notes| notes.bound.contains(bound)) {
            return Ok(());
        }
        let _lock = vault.files.lock_changes().await?;
        // The keys may have been changed before the lock was there.
        let vault = Self::open_usable(state)?;
        vault.note(upstream, |notes| bound.clone().keep_in(&mut notes.bound))
    }

    /// Changes the notes about an upstream.
    fn note(
        &self,
        upstream: &str,
        change: impl FnOnce(&mut SignInNotes),
    ) -> Result<(), OAuthError> {
        let before = self.notes(upstream).unwrap_or_default();
        let mut notes = before.clone();
        change(&mut notes);
        match notes == before {
            true => Ok(()),
            false => self.files.write_json(&notes_name(upstream), &notes, None),
        }
    }

    // === Refreshes ===

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
            let path = self.files.path.join(name(upstream)).with_extension(suffix);
            let locked = FileLock::acquire(&path, LOCK_PATIENCE).await;
            if let Some(lock) = locked.map_err(|error| unusable(&path, &error))? {
                return Ok(lock);
            }
        }
        let text = "other processes do not finish the renewal of the sign-in";
        Err(OAuthError::Unavailable(text.into()))
    }

    /// Reserves space for the largest record: what is requested now can be kept then.
    ///
    /// # Errors
    ///
    /// There is none, because the disk is full for example, or nothing can be changed.
    pub(super) fn reserve_space(&self) -> Result<ReservedSpace, OAuthError> {
        self.files.reserve_space()
    }
}

/// Returns the name of the record that all users of an upstream share.
fn name(upstream: &str) -> String {
    hex(&sha256(format!("{upstream}/shared"))[..NAME_BYTES])
}

/// Returns the name of the notes about the sign-ins to an upstream.
fn notes_name(upstream: &str) -> String {
    name(upstream) + NOTES
}

/// Returns whether this is the name of a file with a sealed content.
fn is_sealed(name: &str) -> bool {
    let stem = name.strip_suffix(NOTES).unwrap_or(name);
    stem.len() == NAME_BYTES * 2 && stem.bytes().all(|byte| byte.is_ascii_hexdigit())
}

const NAME_BYTES: usize = 16;
/// End of the name of notes.
const NOTES: &str = ".notes";
/// Number of processes that may be stopped while they refresh the tokens of one record.
const MAX_STOPPED: usize = 4;
