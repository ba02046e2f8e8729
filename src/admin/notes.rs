//! Mistakes of servers, for their authors, in JSON output.

use serde::{Deserialize, Serialize};

use weir_upstream::Upstream;
use weir_upstream::health::author_notes::AuthorNote;

/// Mistake of a server, for its author.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NoteStatus {
    /// `protocol-version`, `stdout-line`, `unknown-id`, `duplicate-item`, `input-schema`,
    /// `task-only`, `result-content`.
    pub kind: String,
    /// Number of instances since Weir started; in lists, those of the last ones.
    pub count: u64,
    /// Text of the first instance, bounded and without secrets and control characters.
    pub first: String,
    /// All of it as a sentence that says what the author has to do.
    pub text: String,
}

impl NoteStatus {
    /// Returns the notes of an upstream.
    pub fn all(upstream: &Upstream) -> Vec<Self> {
        let note = |note: AuthorNote| Self {
            kind: note.kind.as_str().to_owned(),
            count: note.count,
            text: note.to_string(),
            first: note.first,
        };
        upstream.author_notes().into_iter().map(note).collect()
    }
}
