//! Vault: the sign-ins that outlive the process, in sealed files of the state folder.
//!
//! Processes that share the folder share the sign-ins. The lock of a record decides which of them
//! renews its tokens.
//!
//! Invariants: a record is replaced as a whole, and is on disk before its tokens are used. A file
//! that was moved to another name, or sealed with other keys, does not open.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::metadata::{ServerMetadata, is_same_issuer, names};
use super::step_up::StepUp;
use super::token_request::IssuedToken;
use super::{ClientCredential, Grant, OAuthError, RegisteredClient, ResourceIndicator, Settings};
use crate::hex::hex;
use crate::private_file;
use crate::regular_file;
use crate::sealing::{Sealer, SealingKeys};
use crate::secret::{Secret, random_token};
use crate::sha256::sha256;
use crate::timestamp::unix_time;

/// Folder with the sign-ins of an installation.
pub struct Vault {
    folder: PathBuf,
    sealer: Sealer,
}

/// Sign-in at the authorization server of one upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignInRecord {
    /// URL of the upstream.
    pub(super) upstream: String,
    pub(super) issuer: String,
    pub(super) token_endpoint: String,
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) client_id: String,
    /// Whether this client is in the configuration.
    #[serde(default)]
    pub(super) is_configured_client: bool,
    /// Secret of a client that registered itself.
    #[serde(serialize_with = "expose_option", deserialize_with = "secret_option")]
    pub(super) client_secret: Option<Secret>,
    pub(super) resource: Option<String>,
    pub(super) scope: Option<String>,
    pub(super) step_up: StepUp,
    #[serde(serialize_with = "expose", deserialize_with = "secret")]
    pub(super) access_token: Secret,
    /// Unix time in seconds at which the access token expires; `None` if it does not.
    pub(super) expires: Option<u64>,
    /// Seconds for which it was issued.
    pub(super) lifetime: Option<u64>,
    #[serde(serialize_with = "expose_option", deserialize_with = "secret_option")]
    pub(super) refresh_token: Option<Secret>,
}

impl SignInRecord {
    /// Issuer of the tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Unix time in seconds at which the access token expires, if it is not renewed.
    pub fn expires(&self) -> Option<u64> {
        self.expires
    }

    /// Whether the access token can be renewed.
    pub fn is_renewable(&self) -> bool {
        self.refresh_token.is_some()
    }

    /// Returns whether this sign-in may be used with these settings: it is for the configured
    /// upstream, resource, issuer and client.
    pub fn is_of(&self, settings: &Settings) -> bool {
        let client = match &settings.grant {
            Grant::AuthorizationCode { client } => client.as_ref(),
            Grant::ClientCredentials(_) | Grant::JwtBearer { .. } => return false,
        };
        let issuer = settings.metadata_issuer.as_ref().or(settings.issuer.as_ref());
        let resource = self.resource.as_deref();
        let is_resource = match &settings.resource {
            ResourceIndicator::Auto => resource.is_some_and(|it| names(it, &settings.upstream)),
            ResourceIndicator::None => resource.is_none(),
            ResourceIndicator::Named(named) => resource == Some(named),
        };
        self.upstream == settings.upstream.as_str()
            && is_resource
            && issuer.is_none_or(|issuer| is_same_issuer(issuer, &self.issuer))
            && client.map_or(!self.is_configured_client, |client| client.id == self.client_id)
    }

    /// Returns the time for which the access token is still valid; `None` if it does not expire.
    pub(super) fn rest(&self) -> Option<Duration> {
        self.expires.map(|expires| Duration::from_secs(expires).saturating_sub(unix_time()))
    }

    /// Returns whether the access token is valid for some time, so that it needs no renewal.
    pub(super) fn is_fresh(&self) -> bool {
        let lifetime = self.lifetime.map_or(Duration::MAX, Duration::from_secs);
        self.rest().is_none_or(|rest| rest > MIN_REST.min(lifetime / 5))
    }

    /// Returns the client that registered itself for this sign-in.
    pub(super) fn client(&self) -> RegisteredClient {
        let credential = match &self.client_secret {
            Some(secret) => ClientCredential::Secret(secret.clone()),
            None => ClientCredential::None,
        };
        RegisteredClient { id: self.client_id.clone(), credential }
    }

    /// Returns the authorization server, as far as renewals need it.
    pub(super) fn server(&self) -> ServerMetadata {
        ServerMetadata::of_token_endpoint(
            self.issuer.clone(),
            self.token_endpoint.clone(),
            self.token_endpoint_auth_methods_supported.clone(),
        )
    }

    /// Forgets the scopes that the upstream has demanded, which the authorization server or the
    /// user has refused.
    pub fn forget_demands(&mut self) {
        self.step_up.forget(self.scope.as_deref());
    }

    /// Replaces the tokens by new ones; without a new refresh token the old one stays (RFC 6749,
    /// 6). An access token that cannot be used replaces none.
    pub(super) fn renew(&mut self, issued: &IssuedToken, refresh_token: Secret) {
        if let Ok(token) = &issued.token {
            self.access_token = token.clone();
            self.lifetime = issued.lifetime.map(|lifetime| lifetime.as_secs());
            self.expires = issued.expires();
        }
        self.refresh_token = issued.refresh_token.clone().or(Some(refresh_token));
    }
}

/// Version of a record: its file is replaced with each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordVersion {
    inode: u64,
    changed: (i64, i64),
}

/// Lock of a record, which is released when it is dropped.
pub struct RecordLock {
    _file: File,
}

impl Vault {
    /// Opens the vault in the state folder. Its keys are created when it is opened first.
    ///
    /// # Errors
    ///
    /// The folder belongs to another user or cannot be written, or its keys cannot be read.
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

    /// Seals all sign-ins with a new key, removes the former keys, and returns the number of
    /// sign-ins. Other processes can use the vault meanwhile.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written. Then the former keys stay.
    pub async fn rekey(state: &Path) -> Result<usize, OAuthError> {
        let folder = Self::folder(state);
        let failed = |error: &dyn std::fmt::Display| unusable(&folder, error);
        let lock = Self::open(state).map_err(|error| failed(&error))?.lock_keys().await?;
        let keys = SealingKeys::path(&folder);
        let former = private_file::read(&keys, MAX_KEYS_BYTES).map_err(|error| failed(&error))?;
        // All must open before anything changes.
        let vault = Self::open(state).map_err(|error| failed(&error))?;
        for name in vault.names().map_err(|error| failed(&error))? {
            vault.read_file(&name)?;
        }
        let new = match former.split_once('\n') {
            // A change of keys was interrupted, and is finished now.
            Some((first, rest)) if !rest.trim().is_empty() => first.to_owned().into(),
            _ => {
                let new = random_token();
                let both = Zeroizing::new(format!("{}\n{}", &*new, former.trim_end()));
                replace_file(&keys, &both).map_err(|error| failed(&error))?;
                new
            }
        };
        let vault = Self::open(state).map_err(|error| failed(&error))?;
        let mut count = 0;
        for name in vault.names().map_err(|error| failed(&error))? {
            let lock = vault.lock_file(&name).await?;
            if let Some(record) = vault.read_file(&name)? {
                vault.write_file(&name, &record)?;
                count += 1;
            }
            drop(lock);
        }
        replace_file(&keys, &new).map_err(|error| failed(&error))?;
        drop(lock);
        Ok(count)
    }

    /// Returns the names of all records.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if name.len() == NAME_BYTES * 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Opens the vault in the state folder; `None` if there was no sign-in yet.
    ///
    /// # Errors
    ///
    /// As for [`Vault::open`].
    pub fn open_existing(state: &Path) -> Result<Option<Self>, OAuthError> {
        let folder = Self::folder(state);
        match folder.exists() {
            true => Self::open(state).map(Some).map_err(|error| unusable(&folder, &error)),
            false => Ok(None),
        }
    }

    /// Returns the folder of the vault in the state folder.
    fn folder(state: &Path) -> PathBuf {
        state.join("sign-in")
    }

    /// Opens the vault with the lock of an upstream's record, as [`Vault::lock`] does; `None` if
    /// there was no sign-in yet.
    ///
    /// # Errors
    ///
    /// As for [`Vault::open`] and [`Vault::lock`].
    pub async fn open_locked(
        state: &Path,
        upstream: &str,
    ) -> Result<Option<(Self, RecordLock)>, OAuthError> {
        let Some(vault) = Self::open_existing(state)? else { return Ok(None) };
        let lock = vault.lock(upstream).await?;
        // The keys may have been changed before the lock was there.
        Ok(Self::open_existing(state)?.map(|vault| (vault, lock)))
    }

    /// Waits for the lock of all keys, which [`Vault::rekey`] has: no record is made meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`Vault::lock`].
    pub async fn lock_keys(&self) -> Result<RecordLock, OAuthError> {
        // No upstream has this name.
        self.lock("").await
    }

    /// Waits for the lock of an upstream's record, for a bounded time.
    ///
    /// # Errors
    ///
    /// Another process has had the lock for all that time, or the file cannot be created.
    pub async fn lock(&self, upstream: &str) -> Result<RecordLock, OAuthError> {
        self.lock_file(&name(upstream)).await
    }

    async fn lock_file(&self, name: &str) -> Result<RecordLock, OAuthError> {
        let path = self.folder.join(name).with_extension("lock");
        let file = regular_file::open_to_append(&path).map_err(|error| unusable(&path, &error))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(RecordLock { _file: file }),
                Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    sleep(LOCK_INTERVAL).await;
                }
                Err(fs::TryLockError::WouldBlock) => {
                    let text = "another process does not finish the renewal of the sign-in";
                    return Err(OAuthError::Unavailable(text.into()));
                }
                Err(fs::TryLockError::Error(error)) => return Err(unusable(&path, &error)),
            }
        }
    }

    /// Reads the record of an upstream; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or does not open: then a user has to sign in again.
    pub fn read(&self, upstream: &str) -> Result<Option<SignInRecord>, OAuthError> {
        self.read_file(&name(upstream)).map_err(|error| match error {
            OAuthError::SignInNeeded(text) => {
                let text = format!("{text}: sign in again with `weir login {upstream}`");
                OAuthError::SignInNeeded(text)
            }
            error => error,
        })
    }

    /// Returns the version of an upstream's record, which changes with each change of it. `None` if
    /// there is none.
    pub(super) fn version(state: &Path, upstream: &str) -> Option<RecordVersion> {
        let about = fs::metadata(Self::folder(state).join(name(upstream))).ok()?;
        Some(RecordVersion { inode: about.ino(), changed: (about.ctime(), about.ctime_nsec()) })
    }

    fn read_file(&self, name: &str) -> Result<Option<SignInRecord>, OAuthError> {
        let path = self.folder.join(name);
        let text = match private_file::read(&path, MAX_RECORD_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&path, &error)),
        };
        let opened = self.sealer.open_up_to(name, text.trim_end(), MAX_RECORD_BYTES as usize);
        let record = opened.and_then(|opened| serde_json::from_slice(&opened.content).ok());
        record.map(Some).ok_or_else(|| {
            let path = path.display();
            let text = format!("the sign-in in {path} was sealed with other keys, or is damaged");
            OAuthError::SignInNeeded(text)
        })
    }

    /// Writes the record of an upstream, whose lock the caller has.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(
        &self,
        upstream: &str,
        record: &SignInRecord,
        _: &RecordLock,
    ) -> Result<(), OAuthError> {
        self.write_file(&name(upstream), record)
    }

    fn write_file(&self, name: &str, record: &SignInRecord) -> Result<(), OAuthError> {
        let path = self.folder.join(name);
        let write = || replace_file(&path, &self.seal(name, record)?);
        write().map_err(|error| unusable(&path, &error))
    }

    fn seal(&self, name: &str, record: &SignInRecord) -> io::Result<String> {
        let content = Zeroizing::new(serde_json::to_vec(record)?);
        let sealed = self.sealer.seal(name, &content);
        if sealed.len() as u64 >= MAX_RECORD_BYTES {
            return Err(io::Error::other("it is larger than 128 KiB"));
        }
        Ok(sealed)
    }

    /// Checks that a record of this size can be written now, and changes nothing.
    ///
    /// # Errors
    ///
    /// It cannot, because the disk is full for example.
    pub(super) fn check_space(&self, record: &SignInRecord) -> Result<(), OAuthError> {
        let check = || write_aside(&self.folder, &self.seal("", record)?).map(drop);
        check().map_err(|error| unusable(&self.folder, &error))
    }

    /// Removes the record of an upstream, whose lock the caller has. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn remove(&self, upstream: &str, _: &RecordLock) -> Result<bool, OAuthError> {
        let path = self.folder.join(name(upstream));
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unusable(&path, &error)),
        }
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

/// Replaces the contents of a file, which are on disk then.
fn replace_file(path: &Path, line: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    write_aside(folder, line)?.persist(path)?;
    // The new name is on disk, too, once the folder is.
    private_file::sync_folder(folder)
}

/// Writes a file that has no name to last, and which is removed when it is dropped.
fn write_aside(folder: &Path, line: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    writeln!(file, "{line}")?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> OAuthError {
    OAuthError::Unavailable(format!("the sign-in in {} cannot be used: {error}", path.display()))
}

fn expose<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    secret.expose().serialize(serializer)
}

fn expose_option<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::expose).serialize(serializer)
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Secret::from)
}

fn secret_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.map(Secret::from))
}

/// Time for which an access token must still be valid to be used without a renewal; less for one
/// that lives for less than five times as long.
const MIN_REST: Duration = Duration::from_secs(30);
/// Longest wait for the lock of a record: longer than the request of the process that has it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between two attempts to get the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Largest file of a record: an access token and a refresh token of 16 KiB each, and URLs.
const MAX_RECORD_BYTES: u64 = 128 * 1024;
const NAME_BYTES: usize = 16;
/// Largest file of keys.
const MAX_KEYS_BYTES: u64 = 1024;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::oauth) fn record() -> SignInRecord {
        SignInRecord {
            upstream: "https://mcp.test/mcp".into(),
            issuer: "https://id.test".into(),
            token_endpoint: "https://id.test/token".into(),
            token_endpoint_auth_methods_supported: None,
            revocation_endpoint: None,
            client_id: "weir".into(),
            is_configured_client: false,
            client_secret: Some("hunter1".into()),
            resource: Some("https://mcp.test/mcp".into()),
            scope: None,
            step_up: StepUp::default(),
            access_token: "hunter2".into(),
            expires: Some(7),
            lifetime: Some(1_000),
            refresh_token: Some("hunter3".into()),
        }
    }

    #[tokio::test]
    async fn a_record_is_sealed_replaced_and_removed() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        assert_eq!(vault.read("hub"), Ok(None));
        let lock = vault.lock("hub").await.expect("locked");
        vault.write("hub", &record(), &lock).expect("written");
        // Another process.
        let again = Vault::open(state.path()).expect("a vault");
        assert_eq!(again.read("hub"), Ok(Some(record())));
        assert_eq!(again.read("hub2"), Ok(None));
        let renewed = SignInRecord { refresh_token: None, ..record() };
        vault.write("hub", &renewed, &lock).expect("written");
        assert_eq!(again.read("hub"), Ok(Some(renewed)));
        for file in fs::read_dir(vault.folder).expect("a folder") {
            let path = file.expect("a file").path();
            let text = fs::read_to_string(&path).expect("text");
            assert!(!text.contains("hunter") && !text.contains("mcp.test"), "{text}");
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("there"));
            assert_eq!(mode & 0o077, 0, "{}", path.display());
        }
        assert_eq!(again.remove("hub", &lock), Ok(true));
        assert_eq!(again.remove("hub", &lock), Ok(false));
        assert_eq!(again.read("hub"), Ok(None));
    }

    #[test]
    fn what_is_debugged_shows_no_secret() {
        let (token, lifetime) = (Ok("hunter4".into()), None);
        let issued = IssuedToken { token, refresh_token: Some("hunter5".into()), lifetime };
        let access = crate::oauth::AccessToken::new(&issued, 1).expect("valid");
        let settings = crate::oauth::testing::settings();
        let client = SignInRecord { client_secret: Some("hunter6".into()), ..record() };
        let shown = format!("{client:?} {issued:?} {access:?} {settings:?} {:?}", client.client());
        assert!(!shown.contains("hunter"), "{shown}");
    }

    #[tokio::test]
    async fn a_record_of_another_upstream_or_of_other_keys_does_not_open() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        vault.write("hub", &record(), &lock).expect("written");
        let path = |upstream| vault.folder.join(name(upstream));
        fs::copy(path("hub"), path("other")).expect("copied");
        let text = vault.read("other").expect_err("refused").to_string();
        let expected =
            "was sealed with other keys, or is damaged: sign in again with `weir login other`";
        assert!(text.ends_with(expected), "{text}");
        let path = path("hub");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .expect("changed");
        let text = vault.read("hub").expect_err("refused").to_string();
        assert!(text.contains("others than its owner may read it"), "{text}");
    }

    #[tokio::test]
    async fn all_sign_ins_are_sealed_with_a_new_key_and_the_former_one_is_forgotten() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        for upstream in ["hub", "wiki"] {
            let lock = vault.lock(upstream).await.expect("locked");
            vault.write(upstream, &record(), &lock).expect("written");
        }
        let keys = SealingKeys::path(&vault.folder);
        let former = fs::read_to_string(&keys).expect("keys");
        let copy = fs::read(vault.folder.join(name("hub"))).expect("a record");
        assert_eq!(Vault::rekey(state.path()).await, Ok(2));
        let new = fs::read_to_string(&keys).expect("keys");
        assert!(new.lines().count() == 1 && new != former);
        let again = Vault::open(state.path()).expect("a vault");
        for upstream in ["hub", "wiki"] {
            assert_eq!(again.read(upstream), Ok(Some(record())));
            assert!(vault.read(upstream).is_err(), "with the former key");
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
    async fn room_for_a_record_is_checked_without_a_change() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let files = || fs::read_dir(&vault.folder).expect("a folder").count();
        let before = files();
        assert_eq!(vault.check_space(&record()), Ok(()));
        assert_eq!(files(), before);
        fs::remove_dir_all(&vault.folder).expect("removed");
        let refused = vault.check_space(&record());
        assert!(matches!(refused, Err(OAuthError::Unavailable(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_change_of_keys_that_was_interrupted_is_finished_by_the_next_one() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        vault.write("hub", &record(), &lock).expect("written");
        let keys = SealingKeys::path(&vault.folder);
        let former = fs::read_to_string(&keys).expect("keys");
        let new = random_token();
        replace_file(&keys, &format!("{new}\n{}", former.trim_end())).expect("written");
        drop(lock);
        assert_eq!(Vault::rekey(state.path()).await, Ok(1));
        assert_eq!(fs::read_to_string(&keys).expect("keys"), format!("{new}\n"));
        let again = Vault::open(state.path()).expect("a vault");
        assert_eq!(again.read("hub"), Ok(Some(record())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_sealed_with_the_keys_that_there_are_when_it_is_locked() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        vault.write("hub", &record(), &lock).expect("written");
        let mut opened = std::pin::pin!(Vault::open_locked(state.path(), "hub"));
        assert!(futures::poll!(&mut opened).is_pending());
        let mut rekeyed = std::pin::pin!(Vault::rekey(state.path()));
        assert!(futures::poll!(&mut rekeyed).is_pending());
        drop(lock);
        assert_eq!(rekeyed.await, Ok(1));
        let (vault, _lock) = opened.await.expect("locked").expect("a vault");
        assert_eq!(vault.read("hub"), Ok(Some(record())));
    }

    #[tokio::test]
    async fn a_record_is_not_larger_than_what_is_read_and_a_link_is_no_vault() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        let large = SignInRecord { resource: Some("x".repeat(100_000)), ..record() };
        let refused = vault.write("hub", &large, &lock).expect_err("refused").to_string();
        assert!(refused.ends_with("it is larger than 128 KiB"), "{refused}");
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
            ..crate::oauth::testing::settings()
        };
        let named = ResourceIndicator::Named("urn:x".into());
        let configured = SignInRecord { is_configured_client: true, ..record() };
        assert!(record().is_of(&of_user(None)));
        assert!(configured.is_of(&of_user(Some("weir"))));
        for (record, settings) in [
            (configured, of_user(None)),
            (record(), of_user(Some("other"))),
            (record(), Settings { resource: ResourceIndicator::None, ..of_user(None) }),
            (record(), Settings { resource: named.clone(), ..of_user(None) }),
            (SignInRecord { resource: None, ..record() }, of_user(None)),
            (SignInRecord { resource: Some("urn:x".into()), ..record() }, of_user(None)),
            (record(), crate::oauth::testing::settings()),
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
    async fn one_process_at_a_time_has_the_lock_of_a_record() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        vault.lock("other").await.expect("locked");
        let refused = vault.lock("hub").await.err().expect("refused");
        assert!(refused.to_string().contains("another process"), "{refused}");
        let release = async {
            sleep(Duration::from_secs(1)).await;
            drop(lock);
        };
        let (locked, ()) = tokio::join!(vault.lock("hub"), release);
        locked.expect("locked");
    }

    #[test]
    fn root_writes_nothing_into_the_folder_of_another_user() {
        assert!(is_of_another(1000, 0));
        assert!(!is_of_another(0, 0) && !is_of_another(1000, 1000));
        // A volume belongs to root, and a group may write to it.
        assert!(!is_of_another(0, 1000));
    }
}
