//! Verification of audit logs.
//!
//! Invariants: a line that was changed, removed, inserted or moved is found, and the first such
//! line is named. A line torn by a crash is counted and is not an error, if the chain continues
//! behind it. Lines removed at the end cannot be detected from the file alone; that needs the last
//! hash, stored elsewhere.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::chain::Chain;
use super::file::number_of;
use weir_base::files::regular_file;
use weir_base::json::Object;
use weir_base::text::hex::{decode, hex};

/// Result of a verification.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Number of lines.
    pub lines: u64,
    /// Number of the first line; more than 1 if older files are missing.
    pub first: u64,
    /// Number of the last line.
    pub last: u64,
    /// Number of lines torn by a crash.
    pub torn: u64,
    /// Number of entries that could not be written, according to the log.
    pub lost: u64,
    /// Number of lines without a hash.
    pub unchained: u64,
    /// Hash of the last line.
    pub last_hash: String,
}

/// Reason why a log is not intact.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A line does not fit the chain.
    #[error("{}:{line}: {what}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Line number in the file, from 1.
        line: u64,
        /// Description of the error.
        what: String,
    },
}

/// Verifies consecutive files.
pub fn verify(files: &[PathBuf]) -> Result<VerifyReport, VerifyError> {
    let mut reader = LogReader::default();
    for path in files {
        each_line(path, |number, line, is_whole| {
            let broken = |what| VerifyError::Broken { path: path.clone(), line: number, what };
            reader.read(line, is_whole).map_err(broken)
        })?;
    }
    reader.end().map_err(|what| {
        let path = files.last().cloned().unwrap_or_default();
        VerifyError::Broken { path, line: reader.report.lines, what }
    })
}

/// Sorts files by the number of their first line.
pub fn in_order(files: &[PathBuf]) -> Result<Vec<PathBuf>, VerifyError> {
    let mut numbered = Vec::new();
    for path in files {
        let mut first = None;
        each_line(path, |_, line, _| {
            first = first.or_else(|| number_of(line));
            Ok(())
        })?;
        numbered.push((first.unwrap_or(u64::MAX), path.clone()));
    }
    numbered.sort();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

/// Reads a file line by line: the position from 1, the line, and whether it ends with a line feed.
fn each_line(
    path: &Path,
    mut take: impl FnMut(u64, &[u8], bool) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let unreadable = |cause| VerifyError::Unreadable { path: path.to_owned(), cause };
    let file = regular_file::open_or_inherited(path).map_err(unreadable)?;
    let mut file = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut file).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        if read.map_err(unreadable)? == 0 {
            break;
        }
        let whole = line.strip_suffix(b"\n");
        take(number, whole.unwrap_or(&line), whole.is_some())?;
    }
    Ok(())
}

/// State of the verification.
#[derive(Debug, Default)]
struct LogReader {
    chain: Option<Chain>,
    /// Set if an unreadable line follows the last readable one; true if it has a line feed.
    torn: Option<bool>,
    /// True if the process that wrote the last line writes hashes.
    is_chained: bool,
    report: VerifyReport,
}

impl LogReader {
    fn read(&mut self, text: &[u8], is_whole: bool) -> Result<(), String> {
        let line = Object::parse(text.to_vec()).ok();
        let Some((line, number)) = line.zip(number_of(text)) else {
            return self.read_torn(text, is_whole);
        };
        let prev = line.get_string("prev");
        let chain = match &self.chain {
            Some(chain) => *chain,
            None => {
                Chain { next: number, last: prev.as_deref().and_then(decode).unwrap_or_default() }
            }
        };
        if number != chain.next {
            let expected = chain.next;
            return Err(format!("line has number {number}, expected {expected}"));
        }
        match prev.as_deref() {
            Some(prev) if prev != hex(&chain.last) => {
                return Err("hash mismatch: this line or the previous one was changed".into());
            }
            None if line.has("prev") => {
                return Err("the hash of the previous line is not a string".into());
            }
            Some(_) => self.is_chained = true,
            None if self.is_chained && line.get("event") != Some("\"started\"") => {
                return Err("line without a hash after lines with hashes".into());
            }
            None => {
                self.is_chained = false;
                self.report.unchained += 1;
            }
        }
        if line.get("event") == Some("\"lost\"") {
            let count = line.get("count").and_then(|count| count.parse::<u64>().ok());
            self.report.lost += count.unwrap_or_default();
        }
        let mut chain = chain;
        chain.push(text);
        if self.report.lines == 0 {
            self.report.first = number;
        }
        self.report.lines += 1;
        self.report.last = number;
        self.chain = Some(chain);
        self.torn = None;
        Ok(())
    }

    /// Accepts an unreadable line, which is valid if the next line has its hash, or if no line
    /// follows.
    fn read_torn(&mut self, text: &[u8], is_whole: bool) -> Result<(), String> {
        if self.torn.is_some() {
            return Err("not a line of the audit log".into());
        }
        self.report.torn += 1;
        self.torn = Some(is_whole);
        let mut chain = self.chain.unwrap_or_default();
        chain.push_unnumbered(text);
        self.chain = Some(chain);
        Ok(())
    }

    fn end(&mut self) -> Result<VerifyReport, String> {
        if self.torn == Some(true) {
            return Err("the last line is not a line of the audit log".into());
        }
        self.report.last_hash = self.chain.unwrap_or_default().last_hash_hex();
        Ok(self.report.clone())
    }
}

/// Longest line that is read; longer ones are not lines of a log.
const MAX_LINE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::AuditEntry;
    use super::*;
    use proptest::prelude::*;

    /// A log of so many lines.
    fn log(lines: u64) -> Vec<Vec<u8>> {
        let mut chain = Chain::new();
        let write = |count| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(count);
            let line = AuditEntry::Lost(count).write(&chain, at, true);
            chain.push(&line);
            line
        };
        (0..lines).map(write).collect()
    }

    fn read(lines: &[Vec<u8>]) -> Result<VerifyReport, String> {
        let mut reader = LogReader::default();
        lines.iter().try_for_each(|line| reader.read(line, true))?;
        reader.end()
    }

    proptest! {
        #[test]
        fn what_was_changed_removed_put_in_or_swapped_is_found(
            lines in 3_u64..20,
            at in any::<prop::sample::Index>(),
            other in any::<prop::sample::Index>(),
            byte in any::<prop::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let log = log(lines);
            prop_assert_eq!(read(&log).map(|report| report.lines), Ok(lines));
            // The last line is only protected by a stored hash, the first by the files before it.
            let at = 1 + at.index(log.len() - 2);
            let other = 1 + other.index(log.len() - 2);
            let whole = read(&log).expect("whole").last_hash;

            let mut changed = log.clone();
            let byte = byte.index(changed[at].len());
            changed[at][byte] ^= 1_u8 << bit;
            prop_assert!(read(&changed).is_err());
            let mut removed = log.clone();
            removed.remove(at);
            prop_assert!(read(&removed).is_err());
            let mut put_in = log.clone();
            put_in.insert(at, log[other].clone());
            prop_assert!(read(&put_in).is_err());
            if at != other {
                let mut swapped = log.clone();
                swapped.swap(at, other);
                prop_assert!(read(&swapped).is_err());
            }
            let cut = &log[..log.len() - 1];
            prop_assert!(read(cut).is_ok_and(|report| report.last_hash != whole));
        }
    }

    #[test]
    fn a_torn_line_is_told_if_the_chain_goes_on_behind_it() {
        let mut chain = Chain::new();
        let first = AuditEntry::Started { torn: 0, files: Vec::new() }.write(
            &chain,
            SystemTime::UNIX_EPOCH,
            true,
        );
        chain.push(&first);
        let torn = first[..40].to_vec();
        let mut reader = LogReader::default();
        reader.read(&first, true).expect("good");
        reader.read(&torn, false).expect("perhaps torn");
        assert_eq!(reader.end().map(|report| (report.lines, report.torn)), Ok((1, 1)));

        chain.push_unnumbered(&torn);
        let second = AuditEntry::Started { torn: 40, files: Vec::new() }.write(
            &chain,
            SystemTime::UNIX_EPOCH,
            true,
        );
        let report = read(&[first.clone(), torn.clone(), second.clone()]).expect("good");
        assert_eq!((report.lines, report.torn, report.last), (2, 1, 2));
        // Here the line before was not torn.
        assert!(read(&[first.clone(), second]).is_err());
        assert_eq!(
            read(&[first, torn]),
            Err("the last line is not a line of the audit log".into())
        );
    }

    #[test]
    fn only_who_writes_no_chain_leaves_hashes_out() {
        let (mut chain, at) = (Chain::new(), SystemTime::UNIX_EPOCH);
        // `started` and another line, with (`S`, `L`) or without (`s`, `l`) a hash.
        let mut read = |words: &str| {
            chain = Chain::new();
            let write = |word: char| {
                let line = match word.to_ascii_lowercase() {
                    's' => AuditEntry::Started { torn: 0, files: Vec::new() },
                    _ => AuditEntry::Lost(1),
                };
                let text = line.write(&chain, at, word.is_ascii_uppercase());
                chain.push(&text);
                text
            };
            let lines: Vec<_> = words.chars().map(write).collect();
            read(&lines).map(|report| report.unchained)
        };
        for (words, unchained) in
            [("SLL", 0), ("sll", 3), ("SLsl", 2), ("slSLs", 3), ("l", 1), ("LLsSL", 1)]
        {
            assert_eq!(read(words), Ok(unchained), "{words}");
        }
        for words in ["SLl", "Sl", "Ll", "SLlSL", "slSl", "SLslSLl"] {
            let broken = "line without a hash after lines with hashes";
            assert_eq!(read(words), Err(broken.to_owned()), "{words}");
        }
    }

    #[test]
    fn a_log_without_hashes_is_held_by_its_numbers() {
        let at = SystemTime::UNIX_EPOCH;
        let line =
            |next| AuditEntry::Stopped(None).write(&Chain { next, ..Chain::new() }, at, false);
        let report = read(&[line(3), line(4)]).expect("good");
        assert_eq!((report.first, report.last, report.unchained), (3, 4, 2));
        assert!(read(&[line(3), line(5)]).is_err());
    }
}
