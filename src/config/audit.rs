//! `[audit]` and `[state]`: whether requests are recorded, where and how; and where Weir keeps what it writes.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

pub(super) use crate::audit::{Arguments, OnError};
use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::Table;
use crate::config::reader::value;
use crate::config::reader::variables::Environment;

/// Whether requests are recorded, where and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// Whether at all; `None` leaves it to whether there is anybody to tell apart.
    pub enabled: Option<bool>,
    /// The file, relative to the folder of the state; `-` is standard output.
    pub path: PathBuf,
    /// What is told of a request's arguments.
    pub arguments: Arguments,
    /// Whether each line carries the hash of the one before.
    pub chain: bool,
    /// From how many bytes on a file is put aside.
    pub rotate_size: usize,
    /// How many files that were put aside are kept.
    pub rotate_keep: usize,
    /// What becomes of requests that cannot be recorded.
    pub on_error: OnError,
}

impl Default for Audit {
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

/// Where Weir keeps what it writes.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The folder; `None` if neither the file nor the environment names one. It need not be there.
    pub dir: Option<PathBuf>,
    /// Whether the last lists of upstreams are kept there.
    pub catalog: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { dir: None, catalog: true }
    }
}

impl State {
    /// The folder for the last lists of upstreams, where they are kept.
    pub fn catalog_folder(&self) -> Option<PathBuf> {
        self.dir.as_ref().filter(|_| self.catalog).map(|dir| dir.join("catalog"))
    }
}

pub(super) fn state(t: &Table<'_>, environment: &Environment) -> State {
    let dir = t.read("dir", value::text).map(|dir| t.folder("dir").join(dir));
    let catalog = t.read("catalog", value::boolean).unwrap_or(State::default().catalog);
    State { dir: dir.or_else(|| usual_folder(environment)), catalog }
}

/// Where programs of a user keep their state (XDG base directories); relative paths in these variables mean
/// nothing.
fn usual_folder(environment: &Environment) -> Option<PathBuf> {
    let folder = |name| {
        let value = environment.get(name).ok().flatten().map(PathBuf::from);
        value.filter(|folder| folder.is_absolute())
    };
    let state = folder("XDG_STATE_HOME");
    let state = state.or_else(|| folder("HOME").map(|home| home.join(".local/state")));
    state.map(|state| state.join("weir"))
}

pub(super) fn audit(t: &Table<'_>, state: &State) -> Audit {
    let default = Audit::default();
    let enabled = t.read("enabled", value::boolean);
    let path = t.read("path", value::text).map_or(default.path, PathBuf::from);
    let on_error = t.read("on_error", value::choice(&ON_ERROR)).unwrap_or(default.on_error);
    if enabled == Some(false) && on_error == OnError::Refuse {
        let what = "requests that are not recorded are to be refused, and none is recorded";
        t.object("on_error", Complaint::new(what, "set enabled = true, or remove this key"));
    }
    if enabled == Some(true) && state.dir.is_none() && path.is_relative() && path != Path::new("-")
    {
        let what = "there is no folder for this file: neither XDG_STATE_HOME nor HOME is set";
        t.object("path", Complaint::new(what, "write the whole path, or set dir under [state]"));
    }
    let (rotate_size, rotate_keep) = t.table("rotate", |t| {
        let size = t.read("size", |v| match value::size(v)? {
            size if size >= MIN_ROTATE_SIZE => Ok(size),
            _ => Err(Complaint::new(
                "files would be put aside all the time",
                "write \"64KiB\" or more",
            )),
        });
        (size, t.read("keep", value::count(ROTATE_KEEP)))
    });
    Audit {
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

/// The least size from which on a file is put aside: a few of the longest lines.
const MIN_ROTATE_SIZE: usize = 64 << 10;
