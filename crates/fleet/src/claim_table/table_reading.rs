//! Reading of a table of the store that every replica knows as a whole.
//!
//! Each change of an entry gives it the next number, so a replica that asks for what comes after
//! the last number that it has read gets what has changed since. The store returns a sum over all
//! entries with it. A replica that has another sum reads the whole table again: the store has lost
//! entries, has gone back to earlier contents, or entries have expired. So the work of a heartbeat
//! depends on what has changed, and not on what there is.
//!
//! Up to version 0.1.0, replicas change a table without its sum, which is unknown then. Each tenth
//! heartbeat reads the whole table meanwhile, and the first replica that has done so before another
//! change gives the store the sum.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::store::{StoredEntry, TablePage, TableRequest, TableSum};

/// Entries of a table that a replica has read.
#[derive(Default)]
pub(crate) struct TableReading {
    entries: ReadEntries,
    /// Number of the last entry that was read; 0 if all are to be read anew.
    last_number: u64,
    /// Highest number that the store is known to have given.
    last_given: u64,
    /// True while all entries are read, page by page.
    is_whole: bool,
    /// Number of pages since all entries were read.
    pages: u64,
    /// Sum that the store does not know.
    missing: Option<TableSum>,
    /// Number of requests for a page.
    requests: u64,
    /// Entries that the store has shown this replica otherwise, and that it has to return: their
    /// numbers, and the number of requests before.
    unread: HashMap<String, (u64, u64)>,
}

/// Weights of the entries that were read, by their names.
#[derive(Default)]
struct ReadEntries {
    weights: HashMap<String, u64>,
    sum: u64,
}

/// State of the reading after a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageEnd {
    /// There are more entries to read.
    More,
    /// All entries were read. True if they were read from the first one on.
    All(bool),
}

impl TableReading {
    /// Returns the request for the next page.
    pub(crate) fn request(&mut self) -> TableRequest {
        self.requests += 1;
        TableRequest { after: self.last_number, missing_sum: self.missing }
    }

    /// Takes note of an entry that the store has shown in another way than with a page. If the next
    /// page lacks it, the store has lost it.
    pub(crate) fn expect(&mut self, number: u64, name: &str, text: &str) {
        self.last_given = self.last_given.max(number);
        if !self.has(name, text) {
            self.unread.insert(name.to_owned(), (number, self.requests));
        }
    }

    /// Has all entries read anew.
    pub(crate) fn begin_anew(&mut self) {
        self.last_number = 0;
    }

    /// Returns whether this entry was read as it is.
    pub(crate) fn has(&self, name: &str, text: &str) -> bool {
        self.entries.weights.get(name) == Some(&weight(name, text))
    }

    /// Returns whether an entry of this name was read.
    pub(crate) fn has_any(&self, name: &str) -> bool {
        self.entries.weights.contains_key(name)
    }

    /// Takes note of a page.
    pub(crate) fn take(&mut self, page: &TablePage) -> PageEnd {
        if page.after == 0 {
            (self.entries, self.is_whole) = (ReadEntries::default(), true);
        }
        self.last_number = page.after;
        for StoredEntry { number, name, text } in &page.entries {
            self.last_number = self.last_number.max(*number);
            if self.unread.get(name).is_some_and(|(unread, _)| unread <= number) {
                self.unread.remove(name);
            }
            self.entries.put(name, text);
        }
        self.missing = None;
        if page.has_more() {
            return PageEnd::More;
        }
        let is_whole = std::mem::take(&mut self.is_whole);
        self.pages = if is_whole { 0 } else { self.pages + 1 };
        let lost = self.unread.extract_if(|_, (_, requests)| *requests < self.requests).count();
        let is_same = self.entries.weights.len() == page.count && page.last >= self.last_given;
        let is_same = is_same && lost == 0;
        let is_known = match page.sum {
            Some(sum) => sum == self.entries.sum,
            None => self.pages < MAX_PAGES,
        };
        self.last_given = page.last;
        match is_same && is_known {
            true if page.sum.is_none() => {
                let (last, count, sum) = (page.last, page.count, self.entries.sum);
                self.missing = Some(TableSum { last, count, sum });
            }
            true => {}
            false => self.last_number = 0,
        }
        PageEnd::All(is_whole)
    }
}

impl ReadEntries {
    fn put(&mut self, name: &str, text: &str) {
        let weight = weight(name, text);
        let before = self.weights.insert(name.to_owned(), weight).unwrap_or_default();
        self.sum = (self.sum + MODULUS - before + weight) % MODULUS;
    }
}

/// Returns the weight of an entry, as the scripts of the store do: 48 bits, so that numbers in Lua
/// are exact.
pub(crate) fn weight(name: &str, text: &str) -> u64 {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{name} {text}").as_bytes());
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(&hash.as_ref()[..6]);
    u64::from_be_bytes(bytes)
}

/// Number of different sums.
pub(crate) const MODULUS: u64 = 1 << 48;
/// Most pages between two readings of all entries while the sum is unknown.
const MAX_PAGES: u64 = 10;
