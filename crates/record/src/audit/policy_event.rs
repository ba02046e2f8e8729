//! Entries about changes of policy: of the configuration, of keys, of approved definitions and of
//! the process that serves.
//!
//! Invariants: an entry contains no secret and no value of the configuration, only names of tables
//! and keys, and hashes of files. Its lists are bounded.

use super::json_line::JsonLineWriter;

/// Entry about a change of policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyEvent {
    /// Kind of the change.
    pub kind: PolicyChange,
    /// Origin of the change, such as a signal.
    pub by: &'static str,
    /// Description of the changes, one each.
    pub changes: Vec<String>,
    /// Reason why the change did not take effect.
    pub refusal: Option<String>,
}

/// Kind of a change of policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyChange {
    /// A configuration was taken up, or refused.
    Config {
        /// Path and SHA-256 of each file.
        files: Vec<FileHash>,
        /// Changed keys that take effect after a restart.
        after_restart: Vec<&'static str>,
    },
    /// Keys of a client were changed in a file.
    Keys {
        /// The change, as the command is called.
        action: &'static str,
        /// The client.
        client: String,
        /// First digits of the SHA-256 of the new key, or of the removed ones.
        keys: Vec<String>,
        /// The changed file.
        file: String,
    },
    /// Definitions of an upstream were approved, or are approved no longer.
    Pins {
        /// The upstream.
        upstream: String,
    },
    /// A successor has taken over, or was not able to.
    Upgrade {
        /// Process id of the successor.
        process: Option<u32>,
    },
}

/// File of a configuration, and the hash of its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHash {
    /// Path of the file.
    pub path: String,
    /// SHA-256 in hexadecimal; `None` if the file cannot be read.
    pub sha256: Option<String>,
}

impl PolicyEvent {
    /// Creates the event of a change that takes effect.
    pub fn new(kind: PolicyChange, by: &'static str) -> Self {
        Self { kind, by, changes: Vec::new(), refusal: None }
    }

    pub(super) fn write(&self, out: &mut JsonLineWriter<'_>) {
        let Self { kind, by, changes, refusal } = self;
        match kind {
            PolicyChange::Config { files, after_restart } => {
                out.word("event", "config");
                write_files(out, files);
                out.texts("after_restart", after_restart);
            }
            PolicyChange::Keys { action, client, keys, file } => {
                out.word("event", "keys");
                out.word("action", action);
                out.text("client", Some(client));
                out.texts("keys", keys);
                out.text("file", Some(file));
            }
            PolicyChange::Pins { upstream } => {
                out.word("event", "pins");
                out.text("upstream", Some(upstream));
            }
            PolicyChange::Upgrade { process } => {
                out.word("event", "upgrade");
                out.number("process", *process);
            }
        }
        out.word("by", by);
        out.texts("changes", changes);
        let is_config = matches!(kind, PolicyChange::Config { .. });
        out.word(
            "outcome",
            match (refusal.is_some(), is_config) {
                (false, _) => "ok",
                (true, true) => "refused",
                (true, false) => "error",
            },
        );
        out.text("reason", refusal.as_deref());
    }
}

/// Writes the hashes of files, if there are any.
pub(super) fn write_files(out: &mut JsonLineWriter<'_>, files: &[FileHash]) {
    if files.is_empty() {
        return;
    }
    out.list(
        "files",
        files.iter().map(|FileHash { path, sha256 }| {
            move |out: &mut JsonLineWriter<'_>| {
                out.0.push_str("{\"path\":");
                out.quoted(path);
                out.text("sha256", sha256.as_deref());
                out.0.push('}');
            }
        }),
    );
}
