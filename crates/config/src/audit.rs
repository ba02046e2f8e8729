//! `[audit]` and `[state]`: the audit log, and the folder for the files that Weir writes.

use std::path::{Path, PathBuf};

use crate::keys::{
    Described, ValueShape, boolean, count, parsed, path, settings, size_of, table, variant,
};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use crate::reader::variables::Environment;
use weir_oauth::Vault;
use weir_record::audit::{Arguments, OnError};

settings! {
    /// The audit log: who did what, when, and with which result.
    pub struct AuditConfig {
        /// With `true` requests are recorded: one line of JSON for each, including refused ones.
        /// `weir stdio` records only if this is set to `true`.
        ///
        /// ```toml
        /// enabled = true
        /// ```
        enabled: Option<bool> = None,
            boolean().optional().default_text(
                "true, unless access is anonymous, no client is defined and the address is a \
                 loopback address",
            );
        /// The file, relative to `dir` under `[state]`; `-` is standard output, but not for `weir
        /// stdio`. It is readable by its owner only. It is a regular file, or a character device
        /// such as `/dev/null`, or `/dev/stdout` or `/dev/stderr`; a named pipe is refused. Each
        /// process has a file of its own: while one writes to `audit.jsonl`, another one uses
        /// `audit-2.jsonl`, and so on.
        ///
        /// ```toml
        /// path = "/var/log/weir/audit.jsonl"
        /// ```
        path: PathBuf = "audit.jsonl".into(),
            parsed(ValueShape::text(), |v| value::text(v).map(PathBuf::from))
                .written(|path| path.display().to_string().into());
        /// The part of a request's arguments that a line contains: nothing, their names, the
        /// SHA-256 of their text as it was sent, or the text up to 16 KiB. A hash does not protect
        /// values that can be guessed; arguments in full may contain secrets.
        arguments: Arguments = Arguments::Names, variant();
        /// With `true` each line contains the hash of the line before, so that `weir audit verify`
        /// finds changes.
        chain: bool = true, boolean();
        /// Rotation of the file.
        rotate: RotateConfig = RotateConfig::default(), table();
        /// Handling of requests that cannot be recorded, for example because the disk is full:
        /// `continue` serves and counts them; `refuse` refuses them with error 5031, and writes a
        /// line before each call goes to its upstream, so that nothing is executed without a
        /// record.
        on_error: OnError = OnError::Continue, variant();
    }
}

settings! {
    /// Rotation of the audit log's file.
    pub struct RotateConfig {
        /// Size at which a file is rotated and a new one begins; at least `64KiB`.
        size: usize = 100 << 20, size_of(rotate_size);
        /// Number of rotated files that are kept, as `audit.jsonl.1` (the newest) and so on.
        keep: usize = 10, count(1..=1_000);
    }
}

settings! {
    /// The files that Weir writes.
    pub struct StateConfig {
        /// The folder for the files that Weir writes. It is created, for its owner only, when the
        /// first file is written.
        ///
        /// ```toml
        /// dir = "/var/lib/weir"
        /// ```
        dir: Option<PathBuf> = None,
            path("string")
                .optional()
                .default_text("`$XDG_STATE_HOME/weir`, or `~/.local/state/weir`");
        /// With `true` the last lists of each upstream are stored in the folder `catalog` there,
        /// for the owner only, and served after the next start until the upstream has been listed.
        /// The lists of a `prompts_dir` are not stored, because it is a folder already.
        catalog: bool = true, boolean();
    }
}

impl StateConfig {
    /// Returns the folder of the list cache, if it is enabled.
    pub fn catalog_folder(&self) -> Option<PathBuf> {
        self.dir.as_ref().filter(|_| self.catalog).map(|dir| dir.join("catalog"))
    }
}

pub(super) fn read_state(t: &TableReader<'_>, environment: &Environment) -> StateConfig {
    let state = StateConfig::read(t);
    StateConfig { dir: state.dir.or_else(|| default_folder(environment)), ..state }
}

/// Warns of a state folder in which sign-ins are not safe, or cannot be kept.
pub(super) fn warn_of_folder(t: &TableReader<'_>, state: &StateConfig) {
    for problem in state.dir.as_deref().map(Vault::folder_problems).unwrap_or_default() {
        t.warning("dir", ValueError::new(problem.what, problem.remedy));
    }
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
    let audit = AuditConfig::read(t);
    let AuditConfig { enabled, on_error, .. } = audit;
    let path = Path::new(&audit.path);
    if enabled == Some(false) && on_error == OnError::Refuse {
        let what = "requests that are not recorded are to be refused, and none is recorded";
        t.error("on_error", ValueError::new(what, "set enabled = true, or remove this key"));
    }
    if enabled == Some(true) && state.dir.is_none() && path.is_relative() && path != Path::new("-")
    {
        let what = "there is no folder for this file: neither XDG_STATE_HOME nor HOME is set";
        t.error("path", ValueError::new(what, "write the whole path, or set dir under [state]"));
    }
    audit
}

/// Parses the size at which a file is rotated.
fn rotate_size(v: &SpannedValue<'_>) -> Parsed<usize> {
    match value::size(v)? {
        size if size >= MIN_ROTATE_SIZE => Ok(size),
        _ => Err(ValueError::new("files would be rotated all the time", "write \"64KiB\" or more")),
    }
}

/// Minimum size for rotation: a few of the longest lines.
const MIN_ROTATE_SIZE: usize = 64 << 10;
