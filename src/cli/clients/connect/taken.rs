//! Servers that were taken over from a client's file, kept until they are put back.
//!
//! Invariants: a record contains each entry as it was in the file, an equal one once, and the file
//! as it was before; only its owner can read it, because an entry may contain secrets.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::other_scopes::{entry_at, strs};
use crate::cli::clients::document::{self, DocumentValue, JsonDialect};
use crate::cli::clients::edit::{self, EntryLocation};
use crate::cli::exit::Failure;
use crate::cli::files;
use weir_base::files::regular_file;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Servers that were taken over from one file.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct TakenOver {
    client: String,
    file: String,
    pub(crate) servers: Vec<TakenServer>,
    /// File before the take-over, unless something else has changed it between two of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) original: Option<OriginalText>,
}

/// Text of a client's file before its servers were taken over.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct OriginalText {
    pub(super) text: String,
    /// Name of the entry for Weir, which was written then.
    pub(super) entry: String,
    /// Hash of the text that Weir has left.
    left: String,
}

/// Server that was taken over.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct TakenServer {
    pub(crate) name: String,
    /// Path of the key that contained it.
    pub(super) section: Vec<String>,
    /// Text of the entry.
    pub(super) entry: String,
}

impl OriginalText {
    /// Creates it for a file in which Weir leaves the text `left`, with an entry of this name.
    pub(super) fn new(text: String, entry: &str, left: &str) -> Self {
        Self { text, entry: entry.to_owned(), left: digest_of(left) }
    }

    /// Returns whether a file is still as Weir has left it, with an entry of this name.
    pub(super) fn is_unchanged(&self, entry: &str, now: &str) -> bool {
        self.entry == entry && self.left == digest_of(now)
    }
}

impl TakenOver {
    /// Reads the record of a client's file; empty if there is none.
    pub(crate) fn read(state: &Path, place: &EntryLocation<'_>) -> Result<Self, Failure> {
        let path = record_path(state, place);
        let text = match regular_file::read(&path, MAX_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::empty(place)),
            Err(error) => return Err(unusable(&path, &error.to_string())),
        };
        serde_json::from_slice(&text).map_err(|_| unusable(&path, "it is not what Weir wrote"))
    }

    /// Waits until no other command moves servers. Others wait until the result is dropped.
    pub(super) fn lock(state: &Path) -> Result<File, Failure> {
        let path = state.join("taken-over.lock");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
        let locked = made.and_then(|()| {
            let file = regular_file::open_to_append(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
        locked.map_err(|error| files::write_failure(&path, &error))
    }

    /// Adds a server in the place of an equal one: a client that writes its file from memory brings
    /// back what was moved.
    pub(super) fn add(&mut self, server: TakenServer, place: &EntryLocation<'_>) {
        self.servers.retain(|other| !other.is_same(&server, place));
        self.servers.push(server);
    }

    fn empty(place: &EntryLocation<'_>) -> Self {
        let file = absolute_path(place.path).display().to_string();
        Self { client: place.client.name.to_owned(), file, servers: Vec::new(), original: None }
    }

    /// Writes the record, or removes it if it is empty; returns its path.
    pub(super) fn write(
        &self,
        state: &Path,
        place: &EntryLocation<'_>,
    ) -> Result<PathBuf, Failure> {
        let path = record_path(state, place);
        if self.servers.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(files::write_failure(&path, &error))
                }
                _ => Ok(path),
            };
        }
        let folder = path.parent().unwrap_or(state);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| files::write_failure(folder, &error))?;
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        files::write_private(&path, &text)?;
        Ok(path)
    }
}

impl TakenServer {
    /// Meaning of the entry; `None` if its text has none in the client's format.
    pub(super) fn meaning(&self, place: &EntryLocation<'_>) -> Option<DocumentValue> {
        let place = EntryLocation { name: &self.name, ..*place };
        let text = edit::put_back("", &place, &strs(&self.section), &self.entry).ok()?;
        let (format, dialect) = (place.client.format, JsonDialect::TOLERANT);
        let whole = document::parse(&text, format, dialect, place.path).ok()?;
        entry_at(&whole, &self.section, &self.name).cloned()
    }

    /// Returns whether it was at the same place as another one.
    pub(super) fn is_at_place_of(&self, other: &Self) -> bool {
        (&self.name, &self.section) == (&other.name, &other.section)
    }

    fn is_same(&self, other: &Self, place: &EntryLocation<'_>) -> bool {
        let is_equal = || self.meaning(place).is_some_and(|it| Some(it) == other.meaning(place));
        self.is_at_place_of(other) && (self.entry == other.entry || is_equal())
    }
}

/// Path of the record of a client's file.
fn record_path(state: &Path, place: &EntryLocation<'_>) -> PathBuf {
    let file = absolute_path(place.path);
    let digest = hex(&sha256(file.as_os_str().as_encoded_bytes()));
    let digest = digest.get(..DIGEST_DIGITS).unwrap_or_default();
    state.join("taken-over").join(format!("{}-{digest}.json", place.client.name))
}

fn digest_of(text: &str) -> String {
    hex(&sha256(text.as_bytes()))
}

/// Path by which the client knows its file. Links in it are not followed: a client may replace one
/// by a file, and the record has to be found all the same.
fn absolute_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn unusable(path: &Path, why: &str) -> Failure {
    Failure::NoConfig(format!(
        "{} cannot be used: {why}; correct it, or move it away if nothing is to be put back",
        path.display()
    ))
}

/// Digits of a path's hash in the name of its record.
const DIGEST_DIGITS: usize = 16;

/// Largest record that is read: several times as large as a client's file.
const MAX_BYTES: u64 = 256 << 20;
