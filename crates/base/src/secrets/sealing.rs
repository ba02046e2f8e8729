//! Sealed texts: state that clients keep for Weir, encrypted and authenticated (AEAD).
//!
//! [`SealingKeys`] are the secrets of an installation. A [`Sealer`] seals for one purpose. Its key
//! is derived (HKDF-SHA-256) from the first secret, the purpose and the number of the process, so
//! that no two processes use a nonce with the same key, and each process opens the texts of all
//! others that have the same secrets. The number stands in clear. It selects a key and proves
//! nothing.
//!
//! Invariants: a text opens only for the purpose and the owner that it was sealed for. At most one
//! decryption is tried, and all refusals are alike.
//!
//! Decision: docs/decisions/0036-ids-that-outlive-the-process.md

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::files::private_file;
use crate::secrets::secret::random_token;
use crate::text::hex;

/// Number of a process: random, and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InstanceId(u64);

impl InstanceId {
    /// Number of no process: of texts that every process seals alike.
    const SHARED: Self = Self(0);

    /// Splits a text that was named with [`InstanceId::name`] into the number and the text itself.
    pub fn split_named(named: &str) -> Option<(Self, &str)> {
        let (number, text) = named.split_once('.')?;
        Some((Self(u64::from_be_bytes(hex::decode(number)?)), text))
    }

    /// Puts the number in front of a text that only this process understands.
    pub fn name(self, text: impl fmt::Display) -> String {
        format!("{self}.{text}")
    }

    /// Returns the number, which proves nothing.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the number of a process that has no other.
    pub fn random() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        // Zero is `SHARED`.
        Self(u64::from_be_bytes(bytes).max(1))
    }
}

/// Shown as 16 hexadecimal digits.
impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Short hash that names a secret in sealed texts, and proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl KeyId {
    /// Returns the name of the secret with which a text is sealed, if it is a sealed text.
    pub fn of_sealed(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.get(..4 * HEADER_BYTES.div_ceil(3))?).ok()?;
        Some(Self(Header::from_bytes(bytes.first_chunk()?)?.key_id))
    }
}

/// Shown as 8 hexadecimal digits.
impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::hex(&self.0))
    }
}

/// Secrets of an installation, and the number of this process. Cheap to clone.
#[derive(Clone)]
pub struct SealingKeys {
    /// The first one seals, all open.
    secrets: Arc<[SealingSecret]>,
    instance: InstanceId,
}

struct SealingSecret {
    /// Short hash that names the secret in sealed texts.
    id: [u8; KEY_ID_BYTES],
    derivation: hkdf::Prk,
}

/// Error: a text that is not one secret or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not contain one to {MAX_SECRETS} keys of 32 bytes in base64url, one per line")]
pub struct InvalidKeys;

impl SealingKeys {
    /// Creates a random secret, for texts that end with the process.
    pub fn random() -> Self {
        Self::parse(&random_token()).expect("256 random bits are a secret")
    }

    /// Parses secrets: 32 bytes each in base64url without padding, one per line, the one that seals
    /// first.
    pub fn parse(text: &str) -> Result<Self, InvalidKeys> {
        let secrets: Vec<_> = text.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
        if !(1..=MAX_SECRETS).contains(&secrets.len()) {
            return Err(InvalidKeys);
        }
        let secrets = secrets.into_iter().map(SealingSecret::parse).collect::<Result<_, _>>()?;
        Ok(Self { secrets, instance: InstanceId::random() })
    }

    /// Reads the secrets in the state folder, or creates one.
    pub fn load_or_create(state: &Path) -> io::Result<Self> {
        let text = private_file::load_or_create(&Self::path(state), MAX_BYTES, random_token)?;
        Self::parse(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Returns the path of the secrets in the state folder.
    pub fn path(state: &Path) -> PathBuf {
        state.join("sealing-keys")
    }

    /// Returns the number of this process.
    pub fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Returns the same secrets with another number, for a second gateway in this process.
    #[must_use]
    pub fn of_another_process(&self) -> Self {
        Self { secrets: Arc::clone(&self.secrets), instance: InstanceId::random() }
    }

    /// Returns the names of the secrets, in their order.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> {
        self.secrets.iter().map(|secret| KeyId(secret.id))
    }

    /// Derives 32 secret bytes for a purpose from each secret, in their order.
    pub fn derive(
        &self,
        purpose: &'static str,
    ) -> impl Iterator<Item = Zeroizing<[u8; SECRET_BYTES]>> {
        self.secrets.iter().map(move |secret| {
            let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
            let label = [purpose.as_bytes()];
            let derived = secret.derivation.expand(&label, hkdf::HKDF_SHA256);
            let filled = derived.and_then(|derived| derived.fill(&mut *bytes));
            filled.expect("the bytes have the length of a hash");
            bytes
        })
    }

    /// Creates a sealer whose texts name this process and differ each time.
    pub fn sealer(&self, purpose: &'static str) -> Sealer {
        self.sealer_of(purpose, self.instance, None)
    }

    /// Creates a sealer that seals equal contents for equal owners into equal texts, in every
    /// process. (The nonce is a keyed hash of both.)
    pub fn repeatable_sealer(&self, purpose: &'static str) -> Sealer {
        let label = [purpose.as_bytes(), b"nonce"];
        let nonces = self.secrets[0].derivation.expand(&label, hmac::HMAC_SHA256);
        let nonces = hmac::Key::from(nonces.expect("the key has the length of a hash"));
        self.sealer_of(purpose, InstanceId::SHARED, Some(nonces))
    }

    fn sealer_of(
        &self,
        purpose: &'static str,
        instance: InstanceId,
        nonces: Option<hmac::Key>,
    ) -> Sealer {
        let key = self.secrets[0].key(purpose, instance);
        Sealer { secrets: Arc::clone(&self.secrets), purpose, instance, key, nonces }
    }
}

impl fmt::Debug for SealingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKeys").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl SealingSecret {
    fn parse(text: &str) -> Result<Self, InvalidKeys> {
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidKeys)?);
        if bytes.len() != SECRET_BYTES {
            return Err(InvalidKeys);
        }
        let mut id = [0; KEY_ID_BYTES];
        let named = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &bytes), b"weir key id");
        id.copy_from_slice(&named.as_ref()[..KEY_ID_BYTES]);
        let derivation = hkdf::Salt::new(hkdf::HKDF_SHA256, b"weir sealing").extract(&bytes);
        Ok(Self { id, derivation })
    }

    fn key(&self, purpose: &str, instance: InstanceId) -> LessSafeKey {
        let (label, number) = (purpose.as_bytes(), instance.0.to_be_bytes());
        let label = [label, b"key", &number];
        let key = self.derivation.expand(&label, &AES_256_GCM);
        LessSafeKey::new(UnboundKey::from(key.expect("the key is shorter than 255 hashes")))
    }
}

/// Seals texts for one purpose, and opens them.
pub struct Sealer {
    secrets: Arc<[SealingSecret]>,
    purpose: &'static str,
    instance: InstanceId,
    /// Key of the first secret for this instance.
    key: LessSafeKey,
    /// Key of the hash that nonces are made of; `None` for random nonces.
    nonces: Option<hmac::Key>,
}

/// An opened text.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    /// Process that has sealed the content.
    pub instance: InstanceId,
    /// The content.
    pub content: Vec<u8>,
}

impl Sealer {
    /// Seals a content for an owner, as base64url. The text is a third longer,
    /// and 55 characters.
    pub fn seal(&self, owner: &str, content: &[u8]) -> String {
        let nonce = self.nonce(owner, content);
        let header = Header { key_id: self.secrets[0].id, instance: self.instance, nonce };
        let header = header.to_bytes();
        let mut sealed = content.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(self.context(&header, owner)),
                &mut sealed,
            )
            .expect("a text in memory can be sealed");
        URL_SAFE_NO_PAD.encode([&header[..], &sealed].concat())
    }

    /// Opens a text that was sealed for this owner; `None` if it is anything else.
    pub fn open(&self, owner: &str, text: &str) -> Option<Opened> {
        self.open_up_to(owner, text, MAX_TEXT)
    }

    /// Opens a text as [`Sealer::open`] does, of at most this many characters.
    pub fn open_up_to(&self, owner: &str, text: &str, max_text: usize) -> Option<Opened> {
        if text.len() > max_text {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (header, sealed) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let Header { key_id, instance, nonce } = Header::from_bytes(header)?;
        let secret = self.secrets.iter().find(|secret| secret.id == key_id)?;
        let derived;
        let key = match secret.id == self.secrets[0].id && instance == self.instance {
            true => &self.key,
            false => {
                derived = secret.key(self.purpose, instance);
                &derived
            }
        };
        let (nonce, aad) =
            (Nonce::assume_unique_for_key(nonce), Aad::from(self.context(header, owner)));
        let mut content = sealed.to_vec();
        let length = key.open_in_place(nonce, aad, &mut content).ok()?.len();
        content.truncate(length);
        Some(Opened { instance, content })
    }

    fn nonce(&self, owner: &str, content: &[u8]) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        match &self.nonces {
            Some(key) => {
                let mut hash = hmac::Context::with_key(key);
                hash.update(&(owner.len() as u64).to_be_bytes());
                hash.update(owner.as_bytes());
                hash.update(content);
                nonce.copy_from_slice(&hash.sign().as_ref()[..NONCE_LEN]);
            }
            // Not a counter: a copy of a virtual machine would count on from the same number.
            None => getrandom::fill(&mut nonce).expect("the system has random numbers"),
        }
        nonce
    }

    /// Returns the data that is authenticated with a text. The purpose is part of its key.
    fn context(&self, header: &[u8; HEADER_BYTES], owner: &str) -> Vec<u8> {
        [&header[..], owner.as_bytes()].concat()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

/// Beginning of a sealed text, in clear.
struct Header {
    key_id: [u8; KEY_ID_BYTES],
    instance: InstanceId,
    nonce: [u8; NONCE_LEN],
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [VERSION; HEADER_BYTES];
        bytes[1..5].copy_from_slice(&self.key_id);
        bytes[5..13].copy_from_slice(&self.instance.0.to_be_bytes());
        bytes[13..].copy_from_slice(&self.nonce);
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (key_id, rest) = rest.split_first_chunk()?;
        let (instance, rest) = rest.split_first_chunk()?;
        let (nonce, _) = rest.split_first_chunk()?;
        let instance = InstanceId(u64::from_be_bytes(*instance));
        (*version == VERSION).then_some(Self { key_id: *key_id, instance, nonce: *nonce })
    }
}

/// Version of the format.
const VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 4;
const SECRET_BYTES: usize = 32;
const HEADER_BYTES: usize = 1 + KEY_ID_BYTES + 8 + NONCE_LEN;
/// Longest text that is opened, in characters.
pub const MAX_TEXT: usize = 4 * 1024;
/// Most secrets of an installation: more than any rotation needs.
const MAX_SECRETS: usize = 8;
/// Largest file of secrets, in bytes.
const MAX_BYTES: u64 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(sealer: &Sealer, owner: &str, text: &str) -> Option<Vec<u8>> {
        sealer.open(owner, text).map(|opened| opened.content)
    }

    #[test]
    fn a_text_opens_for_its_owner_and_purpose_in_each_process_with_the_secret() {
        let secret = random_token();
        let keys = || SealingKeys::parse(&secret).expect("a secret");
        let (mine, other) = (keys(), keys());
        assert_ne!(mine.instance(), other.instance());
        let text = mine.sealer("a").seal("ann", b"content");
        let expected = Opened { instance: mine.instance(), content: b"content".to_vec() };
        assert_eq!(mine.sealer("a").open("ann", &text), Some(expected));
        assert_eq!(opened(&other.sealer("a"), "ann", &text), Some(b"content".to_vec()));
        for (sealer, owner) in [
            (mine.sealer("b"), "ann"),
            (mine.sealer("a"), "bob"),
            (mine.sealer("a"), ""),
            (SealingKeys::random().sealer("a"), "ann"),
        ] {
            assert_eq!(opened(&sealer, owner, &text), None, "{sealer:?} {owner}");
        }
        assert_ne!(mine.sealer("a").seal("ann", b"content"), text, "each text is different");
    }

    #[test]
    fn a_changed_text_does_not_open() {
        let sealer = SealingKeys::random().sealer("a");
        let text = sealer.seal("ann", b"content");
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(opened(&sealer, "ann", &changed), None, "{at}");
            assert_eq!(opened(&sealer, "ann", &text[..at]), None, "{at}");
        }
        for other in [format!("{text}A"), format!("{text} "), "x".repeat(8_192), String::new()] {
            assert_eq!(opened(&sealer, "ann", &other), None);
        }
    }

    #[test]
    fn a_repeatable_text_is_the_same_in_each_process_and_for_nothing_else() {
        let secret = random_token();
        let sealer = || SealingKeys::parse(&secret).expect("a secret").repeatable_sealer("a");
        let text = sealer().seal("ann", b"content");
        assert_eq!(sealer().seal("ann", b"content"), text);
        assert_eq!(opened(&sealer(), "ann", &text), Some(b"content".to_vec()));
        for (owner, content) in [("ann", "other"), ("bob", "content"), ("annc", "ontent")] {
            let other = sealer().seal(owner, content.as_bytes());
            assert_ne!(other[..50], text[..50], "{owner} {content}: another nonce");
        }
    }

    #[test]
    fn secrets_are_rotated_by_adding_one_promoting_it_and_dropping_the_old_one() {
        let (old, new) = (random_token(), random_token());
        let keys = |lines: &[&str]| SealingKeys::parse(&lines.join("\n")).expect("secrets");
        let added = keys(&[&old, &new]).sealer("a");
        let promoted = keys(&[&new, &old, ""]).sealer("a");
        let (before, after) = (added.seal("ann", b"1"), promoted.seal("ann", b"2"));
        for sealer in [&added, &promoted] {
            assert_eq!(opened(sealer, "ann", &before), Some(b"1".to_vec()));
            assert_eq!(opened(sealer, "ann", &after), Some(b"2".to_vec()));
        }
        let dropped = keys(&[&new]).sealer("a");
        assert_eq!(opened(&dropped, "ann", &before), None);
        assert_eq!(opened(&dropped, "ann", &after), Some(b"2".to_vec()));
    }

    #[test]
    fn what_is_no_secret_is_refused_and_a_secret_is_not_shown() {
        let many = [&*random_token(); 9].join("\n");
        for text in ["", "\n", "short", &format!("{}x", random_token()), "ä", &many] {
            assert_eq!(SealingKeys::parse(text).err(), Some(InvalidKeys), "{text}");
        }
        let secret = random_token();
        let keys = SealingKeys::parse(&secret).expect("a secret");
        assert!(!format!("{keys:?} {:?}", keys.sealer("a")).contains(&*secret));
    }

    #[test]
    fn the_secret_of_a_folder_is_made_once_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let text = SealingKeys::load_or_create(&state).expect("made").sealer("a").seal("", b"x");
        let kept = SealingKeys::load_or_create(&state).expect("kept");
        assert_eq!(opened(&kept.sealer("a"), "", &text), Some(b"x".to_vec()));
        std::fs::write(SealingKeys::path(&state), "nonsense\n").expect("written");
        let error = SealingKeys::load_or_create(&state).expect_err("no secret");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
