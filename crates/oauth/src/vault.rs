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
mod sign_in_notes;
mod sign_in_record;
mod state_folder;

use std::fs::{self, DirBuilder};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

use super::OAuthError;
pub(crate) use file_lock::FileLock;
pub(super) use sign_in_notes::SignInNotes;
pub(super) use sign_in_record::BoundClient;
pub use sign_in_record::{SignInNumber, SignInRecord};
pub use state_folder::StateFolderProblem;
use weir_base::files::private_file;
use weir_base::secrets::sealing::{Sealer, SealingKeys};
use weir_base::secrets::secret::random_token;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Folder with the sign-ins of an installation.
pub struct Vault {
    folder: PathBuf,
    sealer: Sealer,
}

/// Version of what the vault has about an upstream: each file is replaced with each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordVersion {
    record: Option<FileVersion>,
    notes: Option<FileVersion>,
}

type FileVersion = (u64, i64, i64);

impl RecordVersion {
    /// Whether there is a record.
    pub(super) fn has_record(self) -> bool {
        self.record.is_some()
    }
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

/// Space on the disk for a record, which is released when it is dropped.
pub(super) struct ReservedSpace(NamedTempFile);

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
        if existing.is_some_and(|folder| is_of_another(folder.uid(), user)) {
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
        let keys = SealingKeys::load_or_create(&folder)?;
        Ok(Self { folder, sealer: keys.sealer("sign-in") })
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
        let _lock = Self::open_usable(state)?.lock_changes().await?;
        let vault = Self::open_usable(state)?;
        let failed = |error: &dyn std::fmt::Display| unusable(&vault.folder, error);
        let keys = SealingKeys::path(&vault.folder);
        let former = private_file::read(&keys, MAX_KEYS_BYTES).map_err(|error| failed(&error))?;
        // All must open before anything changes.
        let names = vault.names().map_err(|error| failed(&error))?;
        let mut all = Vec::new();
        for name in names {
            if let Some(content) = vault.read_file(&name)? {
                all.push((name, content));
            }
        }
        let new = match former.split_once('\n') {
            // A change of keys was interrupted, and is finished now.
            Some((first, rest)) if !rest.trim().is_empty() => first.to_owned().into(),
            _ => {
                let new = random_token();
                let both = Zeroizing::new(format!("{}\n{}", &*new, former.trim_end()));
                vault.replace_file(&keys, &both, None).map_err(|error| failed(&error))?;
                new
            }
        };
        let vault = Self::open_usable(state)?;
        for (name, content) in &all {
            vault.write_file(name, content, None)?;
        }
        vault.replace_file(&keys, &new, None).map_err(|error| failed(&error))?;
        Ok(all.iter().filter(|(name, _)| !name.ends_with(NOTES)).count())
    }

    /// Returns the names of all files with sealed contents.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            let stem = name.strip_suffix(NOTES).unwrap_or(&name);
            if stem.len() == NAME_BYTES * 2 && stem.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    // === Records ===

    /// Reads the record of an upstream; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not open: then a user has to sign in again.
    pub fn read(&self, upstream: &str) -> Result<Option<SignInRecord>, OAuthError> {
        self.read_json(&name(upstream)).map_err(|error| match error {
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
        Ok(self.read_json(&notes_name(upstream))?.unwrap_or_default())
    }

    /// Returns the version of what the vault has about an upstream, which changes with each change
    /// of it.
    pub(super) fn version(state: &Path, upstream: &str) -> RecordVersion {
        let folder = Self::folder(state);
        let version = |name: String| {
            let about = fs::metadata(folder.join(name)).ok()?;
            Some((about.ino(), about.ctime(), about.ctime_nsec()))
        };
        RecordVersion { record: version(name(upstream)), notes: version(notes_name(upstream)) }
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
        let _lock = Self::open_usable(state)?.lock_changes().await?;
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
                vault.write_json(&name(upstream), &*record, space)?;
                // Beside a record the notes do not count: the change is made without them, too.
                if let Err(error) = note(None) {
                    tracing::debug!(%error, "notes about a sign-in not written");
                }
            }
            // Without a record the notes decide, so they are written first.
            RecordChange::SignOut | RecordChange::RunOut => {
                note(number.filter(|_| matches!(change, RecordChange::RunOut)))?;
                vault.remove(upstream)?;
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
        let _lock = vault.lock_changes().await?;
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
            false => self.write_json(&notes_name(upstream), &notes, None),
        }
    }

    fn remove(&self, upstream: &str) -> Result<(), OAuthError> {
        let path = self.folder.join(name(upstream));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(&path, &error)),
            _ => Ok(()),
        }
    }

    // === Files ===

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, OAuthError> {
        let Some(content) = self.read_file(name)? else { return Ok(None) };
        serde_json::from_slice(&content).map(Some).map_err(|_| self.damaged(name))
    }

    fn write_json(
        &self,
        name: &str,
        content: &impl Serialize,
        space: Option<ReservedSpace>,
    ) -> Result<(), OAuthError> {
        let content = serde_json::to_vec(content).map(Zeroizing::new);
        let content = content.map_err(|error| unusable(&self.folder.join(name), &error))?;
        self.write_file(name, &content, space)
    }

    fn read_file(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, OAuthError> {
        let path = self.folder.join(name);
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
        let path = self.folder.join(name);
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
        let path = self.folder.join(name);
        let sealed = self.sealer.seal(name, content);
        let written = match sealed.len() as u64 >= MAX_RECORD_BYTES {
            true => Err(io::Error::other("it is larger than 128 KiB")),
            false => self.replace_file(&path, &sealed, space),
        };
        written.map_err(|error| unusable(&path, &error))
    }

    /// Replaces the contents of a file, which are on disk then.
    fn replace_file(
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
        private_file::sync_folder(&self.folder)
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
        reserve().map_err(|error: io::Error| unusable(&self.folder, &error))
    }

    /// Creates a file that is readable by its owner only, and removed when it is dropped.
    fn temporary_file(&self, prefix: &str) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(prefix).tempfile_in(&self.folder)
    }
}

/// Returns whether what this user writes into a folder of `owner` could not be read by that owner.
/// Other users than root write there only if the folder was given to them.
fn is_of_another(owner: u32, user: u32) -> bool {
    user == 0 && owner != 0
}

/// Returns the name of the record that all users of an upstream share.
fn name(upstream: &str) -> String {
    hex(&sha256(format!("{upstream}/shared"))[..NAME_BYTES])
}

/// Returns the name of the notes about the sign-ins to an upstream.
fn notes_name(upstream: &str) -> String {
    name(upstream) + NOTES
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> OAuthError {
    OAuthError::Unavailable(format!("the sign-in in {} cannot be used: {error}", path.display()))
}

/// Largest file of a record: an access token and a refresh token of 16 KiB each, and URLs.
const MAX_RECORD_BYTES: u64 = 128 * 1024;
const NAME_BYTES: usize = 16;
/// End of the name of notes.
const NOTES: &str = ".notes";
/// Beginning of the name of a file that is being written, and of one that reserves space.
const NEW: &str = ".new-";
const SPACE: &str = ".space-";
/// Largest file of keys.
const MAX_KEYS_BYTES: u64 = 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use futures::FutureExt;

    use super::*;

    use crate::testing::record;
    use crate::token_request::IssuedToken;
    use crate::{ClientCredential, Grant, RegisteredClient, ResourceIndicator, Settings};

    async fn sign_in(state: &Path, upstream: &str, record: SignInRecord) -> Vault {
        let _ = Vault::sign_in(state, upstream, record).await.expect("written");
        Vault::open(state).expect("a vault")
    }

    #[tokio::test]
    async fn a_record_that_is_written_is_kept_although_its_notes_cannot_be_written() {
        let state = tempfile::tempdir().expect("a folder");
        let first = SignInRecord { is_configured_client: true, ..record() };
        let vault = sign_in(state.path(), "hub", first.clone()).await;
        // A folder in the place of the file cannot be replaced by a file.
        fs::create_dir(vault.folder.join(notes_name("hub"))).expect("made");
        let second = SignInRecord { access_token: "hunter4".into(), ..first.clone() };
        let former = Vault::sign_in(state.path(), "hub", second.clone()).await;
        assert_eq!((former, vault.read("hub")), (Ok(Some(first)), Ok(Some(second))));
    }

    #[tokio::test]
    async fn a_record_is_sealed_replaced_and_removed() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        assert_eq!(vault.read("hub"), Ok(None));
        sign_in(state.path(), "hub", record()).await;
        // Another process.
        let again = Vault::open(state.path()).expect("a vault");
        assert_eq!(again.read("hub"), Ok(Some(record())));
        assert_eq!(again.read("hub2"), Ok(None));
        let second = SignInRecord { refresh_token: None, ..record() };
        let first = Vault::sign_in(state.path(), "hub", second.clone()).await;
        assert_eq!(first, Ok(Some(record())));
        assert_eq!(again.read("hub"), Ok(Some(second.clone())));
        for file in fs::read_dir(vault.folder).expect("a folder") {
            let path = file.expect("a file").path();
            let text = fs::read_to_string(&path).expect("text");
            assert!(!text.contains("hunter") && !text.contains("mcp.test"), "{text}");
            let mode = MetadataExt::mode(&fs::metadata(&path).expect("there"));
            assert_eq!(mode & 0o077, 0, "{}", path.display());
        }
        assert_eq!(Vault::sign_out(state.path(), "hub").await, Ok((true, Some(second))));
        assert_eq!(Vault::sign_out(state.path(), "hub").await, Ok((false, None)));
        assert_eq!(again.read("hub"), Ok(None));
    }

    #[test]
    fn what_is_debugged_shows_no_secret() {
        let (token, lifetime) = (Ok("hunter4".into()), None);
        let issued = IssuedToken { token, refresh_token: Some("hunter5".into()), lifetime };
        let access = crate::AccessToken::new(&issued, SignInNumber::default(), 1).expect("valid");
        let settings = crate::testing::settings();
        let client = SignInRecord { client_secret: Some("hunter6".into()), ..record() };
        let shown = format!("{client:?} {issued:?} {access:?} {settings:?} {:?}", client.client());
        assert!(!shown.contains("hunter"), "{shown}");
    }

    #[tokio::test]
    async fn a_record_of_another_upstream_or_of_other_keys_does_not_open() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = sign_in(state.path(), "hub", record()).await;
        let path = |upstream| vault.folder.join(name(upstream));
        fs::copy(path("hub"), path("other")).expect("copied");
        let text = vault.read("other").expect_err("refused").to_string();
        let expected =
            "was sealed with other keys, or is damaged: sign in again with `weir login other`";
        assert!(text.ends_with(expected), "{text}");
        let path = path("hub");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("changed");
        let text = vault.read("hub").expect_err("refused").to_string();
        assert!(text.contains("others than its owner may read it"), "{text}");
        // It is removed all the same.
        assert_eq!(Vault::sign_out(state.path(), "other").await, Ok((true, None)));
        assert_eq!(vault.read("other"), Ok(None));
    }

    #[tokio::test]
    async fn all_sign_ins_are_sealed_with_a_new_key_and_the_former_one_is_forgotten() {
        let state = tempfile::tempdir().expect("a folder");
        for upstream in ["hub", "wiki"] {
            sign_in(state.path(), upstream, record()).await;
        }
        let bound = BoundClient { client_id: None, issuer: "https://id.test".into() };
        Vault::bind(state.path(), "hub", &bound).await.expect("noted");
        let vault = Vault::open(state.path()).expect("a vault");
        let keys = SealingKeys::path(&vault.folder);
        let former = fs::read_to_string(&keys).expect("keys");
        let copy = fs::read(vault.folder.join(name("hub"))).expect("a record");
        // Another change of keys was killed while it wrote the new ones.
        fs::write(vault.folder.join(".new-x"), &former).expect("written");
        assert_eq!(Vault::rekey(state.path()).await, Ok(2));
        let new = fs::read_to_string(&keys).expect("keys");
        assert!(new.lines().count() == 1 && new != former);
        let again = Vault::open(state.path()).expect("a vault");
        for upstream in ["hub", "wiki"] {
            assert_eq!(again.read(upstream), Ok(Some(record())));
            assert!(vault.read(upstream).is_err(), "with the former key");
        }
        assert_eq!(again.notes("hub").expect("readable").bound, [bound]);
        for file in fs::read_dir(&vault.folder).expect("a folder") {
            let text = fs::read_to_string(file.expect("a file").path()).expect("text");
            assert!(!text.contains(former.trim_end()), "the former key is left");
        }
        // One that cannot be read changes nothing, however often.
        fs::write(vault.folder.join(name("hub")), copy).expect("written");
        for _ in 0..10 {
            assert!(Vault::rekey(state.path()).await.is_err());
        }
        assert_eq!(fs::read_to_string(&keys).expect("keys"), new);
        let again = Vault::open(state.path()).expect("a vault");
        assert_eq!(again.read("wiki"), Ok(Some(record())));
    }

    #[tokio::test]
    async fn space_for_the_largest_record_is_reserved_and_used_or_released() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = sign_in(state.path(), "hub", record()).await;
        let files = || fs::read_dir(&vault.folder).expect("a folder").count();
        let before = files();
        drop(vault.reserve_space().expect("there is space"));
        assert_eq!(files(), before);
        let space = vault.reserve_space().expect("there is space");
        assert_eq!(space.0.as_file().metadata().expect("a file").len(), MAX_RECORD_BYTES);
        let access_token = "x".repeat(16_384).as_str().into();
        let refreshed = SignInRecord { access_token, ..record() };
        let write = |_| (RecordChange::Write(Box::new(refreshed.clone())), ());
        Vault::change(state.path(), "hub", Some(space), write).await.expect("written");
        assert_eq!((files(), vault.read("hub")), (before, Ok(Some(refreshed))));
        fs::remove_dir_all(&vault.folder).expect("removed");
        let refused = vault.reserve_space().map(drop);
        assert!(matches!(refused, Err(OAuthError::Unavailable(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_change_of_keys_that_was_interrupted_is_finished_by_the_next_one() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = sign_in(state.path(), "hub", record()).await;
        let keys = SealingKeys::path(&vault.folder);
        let former = fs::read_to_string(&keys).expect("keys");
        let new = random_token();
        let both = format!("{new}\n{}", former.trim_end());
        vault.replace_file(&keys, &both, None).expect("written");
        assert_eq!(Vault::rekey(state.path()).await, Ok(1));
        assert_eq!(fs::read_to_string(&keys).expect("keys"), format!("{new}\n"));
        let again = Vault::open(state.path()).expect("a vault");
        assert_eq!(again.read("hub"), Ok(Some(record())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_sealed_with_the_keys_that_there_are_when_it_is_changed() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = sign_in(state.path(), "hub", record()).await;
        let lock = vault.lock_changes().await.expect("locked");
        let mut signed_in = std::pin::pin!(Vault::sign_in(state.path(), "wiki", record()));
        assert!(futures::poll!(&mut signed_in).is_pending());
        // The process that has the lock changes the keys.
        let keys = SealingKeys::path(&vault.folder);
        vault.replace_file(&keys, &random_token(), None).expect("written");
        drop(lock);
        signed_in.await.expect("written");
        let vault = Vault::open(state.path()).expect("a vault");
        assert_eq!(vault.read("wiki"), Ok(Some(record())));
    }

    #[tokio::test]
    async fn a_record_is_not_larger_than_what_is_read_and_a_link_is_no_vault() {
        let state = tempfile::tempdir().expect("a folder");
        let large = SignInRecord { resource: Some("x".repeat(100_000)), ..record() };
        let refused = Vault::sign_in(state.path(), "hub", large).await.expect_err("refused");
        assert!(refused.to_string().ends_with("it is larger than 128 KiB"), "{refused}");
        let vault = Vault::open(state.path()).expect("a vault");
        assert_eq!(vault.read("hub"), Ok(None));
        let elsewhere = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(state.path().join("sign-in"), elsewhere.path().join("sign-in"))
            .expect("a link");
        let refused = Vault::open(elsewhere.path()).err().expect("refused").to_string();
        assert_eq!(refused, "it is a link, and not a folder");
    }

    #[test]
    fn a_record_is_of_the_settings_with_which_it_was_made() {
        let of_user = |client: Option<&str>| Settings {
            grant: Grant::AuthorizationCode {
                client: client.map(|id| RegisteredClient {
                    id: id.into(),
                    credential: ClientCredential::None,
                }),
            },
            ..crate::testing::settings()
        };
        let named = ResourceIndicator::Named("urn:x".into());
        let configured = SignInRecord { is_configured_client: true, ..record() };
        assert!(record().is_of(&of_user(None)));
        assert!(configured.is_of(&of_user(Some("weir"))));
        for (record, settings) in [
            (configured, of_user(None)),
            // An authorization server has given this name to a client that registered itself.
            (SignInRecord { number: SignInNumber::random(), ..record() }, of_user(Some("weir"))),
            (record(), of_user(Some("other"))),
            (record(), Settings { resource: ResourceIndicator::None, ..of_user(None) }),
            (record(), Settings { resource: named.clone(), ..of_user(None) }),
            (SignInRecord { resource: None, ..record() }, of_user(None)),
            (SignInRecord { resource: Some("urn:x".into()), ..record() }, of_user(None)),
            (SignInRecord { url_hash: Some("other".into()), ..record() }, of_user(None)),
            (record(), crate::testing::settings()),
        ] {
            assert!(!record.is_of(&settings), "{record:?}");
        }
        let issued_by = |issuer: &str| Settings { issuer: Some(issuer.into()), ..of_user(None) };
        assert!(record().is_of(&issued_by("https://id.test")));
        assert!(record().is_of(&issued_by("https://id.test/")));
        assert!(!record().is_of(&issued_by("https://id.test/t")));
        let of_name = SignInRecord { resource: Some("urn:x".into()), ..record() };
        assert!(of_name.is_of(&Settings { resource: named, ..of_user(None) }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_signs_in_and_out_while_others_refresh_or_were_stopped() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = sign_in(state.path(), "hub", record()).await;
        let _refreshing = vault.lock_refresh("hub").await.expect("locked");
        let second = SignInRecord { access_token: "second".into(), ..record() };
        Vault::sign_in(state.path(), "hub", second.clone())
            .now_or_never()
            .expect("at once")
            .unwrap();
        let out = Vault::sign_out(state.path(), "hub").now_or_never().expect("at once");
        assert_eq!(out, Ok((true, Some(second.clone()))));
        // A process was stopped while it changed the vault.
        let _stopped = vault.lock_changes().await.expect("locked");
        let _ = Vault::sign_in(state.path(), "hub", second.clone()).await.expect("written");
        assert_eq!(vault.read("hub"), Ok(Some(second)));
    }

    #[tokio::test]
    async fn notes_outlive_a_sign_in_and_say_whether_it_ran_out() {
        let state = tempfile::tempdir().expect("a folder");
        let number = SignInNumber::random();
        let signed_in = SignInRecord { number, is_configured_client: true, ..record() };
        let vault = sign_in(state.path(), "hub", signed_in.clone()).await;
        assert_eq!(vault.notes("hub"), Ok(SignInNotes::default()));
        let end = |_| (RecordChange::RunOut, ());
        Vault::change(state.path(), "hub", None, end).await.expect("removed");
        let bound = vec![signed_in.bound()];
        assert_eq!(vault.read("hub"), Ok(None));
        let ran_out = SignInNotes { bound: bound.clone(), ran_out: Some(number) };
        assert_eq!(vault.notes("hub"), Ok(ran_out));
        assert_eq!(Vault::sign_out(state.path(), "hub").await, Ok((true, None)));
        assert_eq!(vault.notes("hub"), Ok(SignInNotes { bound, ran_out: None }));
    }

    #[test]
    fn notes_of_an_earlier_version_are_read() {
        for (bound, clients) in [("null", 0), (r#"{"client_id":"weir","issuer":"i"}"#, 1)] {
            let text = format!(r#"{{"bound":{bound},"ran_out":null}}"#);
            let notes: SignInNotes = serde_json::from_str(&text).expect("valid");
            assert_eq!(notes.bound.len(), clients);
            let again = serde_json::to_string(&notes).expect("JSON");
            assert_eq!(serde_json::from_str::<SignInNotes>(&again).expect("valid"), notes);
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let mut json = serde_json::to_value(record()).expect("JSON");
        let members = json.as_object_mut().expect("an object");
        assert!(members.remove("number").is_some() && members.remove("url_hash").is_some());
        assert_eq!(serde_json::from_value::<SignInRecord>(json).expect("valid"), record());
    }

    #[test]
    fn root_writes_nothing_into_the_folder_of_another_user() {
        assert!(is_of_another(1000, 0));
        assert!(!is_of_another(0, 0) && !is_of_another(1000, 1000));
        // A volume belongs to root, and a group may write to it.
        assert!(!is_of_another(0, 1000));
    }
}
