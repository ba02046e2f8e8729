//! `[audit]` and `[state]`: the audit log, and the folder for the files that Weir writes.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

pub(super) use crate::audit::{Arguments, OnError};
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::TableReader;
use crate::config::reader::value;
use crate::config::reader::variables::Environment;

/// Settings of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditConfig {
    /// Configured value; `None` leaves it to
    /// [`Config::records_requests`](super::Config::records_requests).
    pub enabled: Option<bool>,
    /// File, relative to the state folder; `-` is standard output.
    pub path: PathBuf,
    /// Recorded part of a request's arguments.
    pub arguments: Arguments,
    /// True if each line contains the hash of the line before.
    pub chain: bool,
    /// Bytes at which a file is rotated.
    pub rotate_size: usize,
    /// Number of rotated files that are kept.
    pub rotate_keep: usize,
    /// Handling of requests that cannot be recorded.
    pub on_error: OnError,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            enabled: None,
            path: "audit.jsonl".into(),
            arguments: Arguments::Names,
            chain: true,
            rotate_size: 100 << 20,
            rotate_keep: 10,
            on_error: OnError::Continue,
        }
    }
}

/// Folder for the files that Weir writes.
#[derive(Clone, Debug, PartialEq)]
pub struct StateConfig {
    /// Path; `None` if neither the file nor the environment names one. It need not exist.
    pub dir: Option<PathBuf>,
    /// True if the last lists of upstreams are cached there.
    pub catalog: bool,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self { dir: None, catalog: true }
    }
}

impl StateConfig {
    /// Returns the folder of the list cache, if it is enabled.
    pub fn catalog_folder(&self) -> Option<PathBuf> {
        self.dir.as_ref().filter(|_| self.catalog).map(|dir| dir.join("catalog"))
    }
}

pub(super) fn read_state(t: &TableReader<'_>, environment: &Environment) -> StateConfig {
    let dir = t.read("dir", value::text).map(|dir| t.base_folder("dir").join(dir));
    let catalog = t.read("catalog", value::boolean).unwrap_or(StateConfig::default().catalog);
    StateConfig { dir: dir.or_else(|| default_folder(environment)), catalog }
}

/// Returns the default state folder (XDG base directories); relative paths in these variables are
/// ignored, as that specification requires.
fn default_folder(environment: &Environment) -> Option<PathBuf> {
    let folder = |name| {
        let value = environment.get(name).ok().flatten().map(PathBuf::from);
        value.filter(|folder| folder.is_absolute())
    };
    let state = folder("XDG_STATE_HOME");
    let state = state.or_else(|| folder("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("weir"))
}

pub(super) fn read_audit(t: &TableReader<'_>, state: &StateConfig) -> AuditConfig {
    let default = AuditConfig::default();
    let enabled = t.read("enabled", value::boolean);
    let path = t.read("path", value::text).map_or(default.path, PathBuf::from);
    let on_error = t.read("on_error", value::choice(&ON_ERROR)).unwrap_or(default.on_error);
    if enabled == Some(false) && on_error == OnError::Refuse {
        let what = "requests that are not recorded are to be refused, and none is recorded";
        t.error("on_error", ValueError::new(what, "set enabled = true, or remove this key"));
    }
    if enabled == Some(true) && state.dir.is_none() && path.is_relative() && path != Path::new("-")
    {
        let what = "there is no folder for this file: neither XDG_STATE_HOME nor HOME is set";
        t.error("path", ValueError::new(what, "write the whole path, or set dir under [state]"));
    }
    let (rotate_size, rotate_keep) = t.table("rotate", |t| {
        let size = t.read("size", |v| match value::size(v)? {
            size if size >= MIN_ROTATE_SIZE => Ok(size),
            _ => Err(ValueError::new(
                "files would be rotated all the time",
                "write \"64KiB\" or more",
            )),
        });
        (size, t.read("keep", value::count(ROTATE_KEEP)))
    });
    AuditConfig {
        enabled,
        path,
        arguments: t.read("arguments", value::choice(&ARGUMENTS)).unwrap_or(default.arguments),
        chain: t.read("chain", value::boolean).unwrap_or(default.chain),
        rotate_size: rotate_size.unwrap_or(default.rotate_size),
        rotate_keep: rotate_keep.unwrap_or(default.rotate_keep),
        on_error,
    }
}

pub(super) const ARGUMENTS: [(&str, Arguments); 4] = [
    ("none", Arguments::None),
    ("names", Arguments::Names),
    ("hash", Arguments::Hash),
    ("full", Arguments::Full),
];

pub(super) const ON_ERROR: [(&str, OnError); 2] =
    [("continue", OnError::Continue), ("refuse", OnError::Refuse)];

pub(super) const ROTATE_KEEP: RangeInclusive<usize> = 1..=1_000;

/// Minimum size for rotation: a few of the longest lines.
const MIN_ROTATE_SIZE: usize = 64 << 10;
