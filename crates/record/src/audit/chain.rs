//! Hash chain of the audit log: a line's number, and the hash of the previous line.
//!
//! Invariant: a line that is changed, removed, inserted or moved does not fit the chain any more,
//! unless all lines behind it are rewritten. An operator who stores the last hash elsewhere detects
//! that, too.

use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// End of a chain: number and hash for the next line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Number of the next line; the first has 1.
    pub(crate) next: u64,
    /// Hash of the last line, without its line feed; zeros before the first.
    pub(crate) last: [u8; 32],
}

impl Chain {
    /// Creates an empty chain.
    pub fn new() -> Self {
        Self { next: 1, last: [0; 32] }
    }

    /// Adds a line.
    pub fn push(&mut self, line: &[u8]) {
        self.push_unnumbered(line);
        self.next += 1;
    }

    /// Counts a line of a log without hashes.
    pub(super) fn skip_hash(&mut self) {
        self.next += 1;
    }

    /// Adds an incomplete line, which has no number.
    pub(crate) fn push_unnumbered(&mut self, text: &[u8]) {
        self.last = sha256(text);
    }

    /// Returns the last hash in hexadecimal.
    pub(crate) fn last_hash_hex(&self) -> String {
        hex(&self.last)
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::new()
    }
}
