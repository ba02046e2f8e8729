//! The chain: a line's number, and the hash of the line before.
//!
//! Promise: a line that is changed, removed, put in or moved does not fit any more, unless all behind it are
//! written anew; so whoever keeps the last hash elsewhere can tell that, too.
//!
//! Knows nothing of: files, and what a line tells.

use crate::hex::hex;
use crate::sha256::sha256;

/// Where a chain ends: what the next line has to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// The number of the next line; the first has 1.
    pub next: u64,
    /// The hash of the last line, without its end; zeros before the first.
    pub last: [u8; 32],
}

impl Chain {
    /// A chain without a line.
    pub fn new() -> Self {
        Self { next: 1, last: [0; 32] }
    }

    /// Adds a line.
    pub fn push(&mut self, line: &[u8]) {
        self.push_unnumbered(line);
        self.next += 1;
    }

    /// Adds a line where lines are numbered only.
    pub(super) fn count(&mut self) {
        self.next += 1;
    }

    /// Adds what is no whole line, and so has no number.
    pub fn push_unnumbered(&mut self, text: &[u8]) {
        self.last = sha256(text);
    }

    /// The last hash as it is written.
    pub fn last_in_words(&self) -> String {
        hex(&self.last)
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::new()
    }
}
