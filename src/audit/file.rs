//! The file: found, locked, gone on with, put aside when it is full.
//!
//! Promises: one process at a time writes to a file; another one takes `audit-2.jsonl` beside it, and so on. A file
//! is readable for its owner only, and so is the folder, if it has to be made. A file that somebody has moved away
//! is begun anew, and one that was torn by a crash is gone on with: the chain goes on in both.
//!
//! Knows nothing of: what a line tells.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::chain::Chain;
use crate::json::Object;
use crate::regular_file;

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the audit log {} cannot be written: {cause}", path.display())]
pub struct CannotOpen {
    /// Which file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub cause: io::Error,
}

/// A file that this process has for itself.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    /// Up to the end of the last whole line; `None` for what is no regular file, such as `/dev/null`.
    size: Option<u64>,
    /// Whether what was written last is no whole line.
    is_torn: bool,
}

/// A log that was opened, and where it goes on.
pub(super) struct Opened {
    pub(super) log: Log,
    pub(super) chain: Chain,
    /// How many bytes of a torn line it ends with.
    pub(super) torn: usize,
}

/// Writing broke off.
#[derive(Debug)]
pub(super) struct Broken {
    /// How many bytes were taken before.
    pub(super) written: usize,
    pub(super) cause: io::Error,
}

impl Log {
    /// Opens the file, or one beside it that no other process has.
    pub(super) fn open(base: &Path) -> Result<Opened, CannotOpen> {
        let cannot = |path: &Path| {
            let path = path.to_owned();
            move |cause| CannotOpen { path, cause }
        };
        if let Some(folder) = base.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(cannot(base))?;
        }
        for number in 1..=MAX_PROCESSES {
            let path = numbered(base, number);
            if let Some(log) = Self::lock(&path).map_err(cannot(&path))? {
                return log.resume().map_err(cannot(&path));
            }
        }
        let cause = io::Error::other("too many processes write beside each other");
        Err(CannotOpen { path: base.to_owned(), cause })
    }

    /// The file, if no other process has it.
    fn lock(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = regular_file::open_to_append(path)?;
            let about = file.metadata()?;
            if !about.is_file() {
                return Ok(Some(Self { file, path: path.to_owned(), size: None, is_torn: false }));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let log = Self { file, path: path.to_owned(), size: Some(about.len()), is_torn: false };
            // Its last owner may have put it aside in between.
            if !log.is_moved() {
                return Ok(Some(log));
            }
        }
    }

    /// Where the file on the disk ends.
    fn resume(mut self) -> io::Result<Opened> {
        let Some(size) = self.size else {
            return Ok(Opened { log: self, chain: Chain::new(), torn: 0 });
        };
        if size == 0 {
            // Perhaps the one before was put aside a moment before a crash.
            let chain = match regular_file::open(&aside(&self.path, 1)) {
                Ok(mut older) => end_of(&mut older)?.chain,
                Err(_) => Chain::new(),
            };
            return Ok(Opened { log: self, chain, torn: 0 });
        }
        let end = end_of(&mut regular_file::open(&self.path)?)?;
        self.is_torn = end.is_open;
        Ok(Opened { log: self, chain: end.chain, torn: end.torn })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes it has, if it is a plain file.
    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    /// Whether a line end has to come first.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Appends whole lines.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), Broken> {
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => return Err(Broken { written, cause: io::ErrorKind::WriteZero.into() }),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(Broken { written, cause }),
            }
        }
        self.keep(lines.len());
        Ok(())
    }

    /// After an attempt that broke off keeps `whole` bytes of whole lines, and takes back the rest. Returns whether
    /// it could; else the rest stands there.
    pub(super) fn take_back(&mut self, whole: usize) -> bool {
        if whole > 0 {
            self.keep(whole);
        }
        self.size.is_some_and(|size| self.file.set_len(size).is_ok())
    }

    /// What stands there behind the last whole line, if anything, is no line.
    pub(super) fn tear(&mut self, is_torn: bool) {
        self.is_torn = is_torn;
    }

    fn keep(&mut self, bytes: usize) {
        self.is_torn = false;
        self.size = self.size.map(|size| size + bytes as u64);
    }

    /// Whether the file is no longer where it was.
    pub(super) fn is_moved(&self) -> bool {
        if self.size.is_none() {
            return false;
        }
        let (Ok(ours), Ok(there)) = (self.file.metadata(), std::fs::metadata(&self.path)) else {
            return true;
        };
        (ours.dev(), ours.ino()) != (there.dev(), there.ino())
    }

    /// Goes on in a new file at the same place.
    pub(super) fn begin_anew(&mut self) -> io::Result<()> {
        let taken = || io::Error::other("another process has begun a file there");
        *self = Self::lock(&self.path)?.ok_or_else(taken)?;
        Ok(())
    }

    /// Puts the file aside, and lets the oldest go of those that were.
    pub(super) fn put_aside(&mut self, keep: usize) -> io::Result<()> {
        for number in (1..keep).rev() {
            match std::fs::rename(aside(&self.path, number), aside(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, aside(&self.path, 1))?;
        self.begin_anew()
    }
}

/// The end of a file.
struct End {
    chain: Chain,
    torn: usize,
    /// Whether its last line has no end.
    is_open: bool,
}

/// Reads where the chain of a file ends.
fn end_of(file: &mut File) -> io::Result<End> {
    let size = file.metadata()?.len();
    let from = size.saturating_sub(MAX_TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(MAX_TAIL_BYTES).read_to_end(&mut tail)?;
    let is_open = tail.last().is_some_and(|byte| *byte != b'\n');
    let text = if is_open { &tail[..] } else { tail.strip_suffix(b"\n").unwrap_or_default() };
    let mut lines = text.rsplit(|byte| *byte == b'\n');
    let last = lines.next().unwrap_or_default();
    let mut chain = Chain::new();
    chain.push_unnumbered(last);
    let number = number_of(last);
    let torn = if number.is_some() { 0 } else { last.len() };
    chain.next = number.or_else(|| lines.find_map(number_of)).map_or(1, |number| number + 1);
    if text.is_empty() {
        chain = Chain::new();
    }
    Ok(End { chain, torn, is_open })
}

/// The number of a line, if it is whole.
pub(super) fn number_of(line: &[u8]) -> Option<u64> {
    let object = Object::parse(line.to_vec()).ok()?;
    object.get("seq")?.parse().ok()
}

/// The file that the process of this number takes.
fn numbered(base: &Path, number: usize) -> PathBuf {
    if number == 1 {
        return base.to_owned();
    }
    let mut name = base.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = base.extension() {
        name.push(".");
        name.push(extension);
    }
    base.with_file_name(name)
}

/// Where a file is put that is this many files old.
fn aside(path: &Path, number: usize) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

/// The files that belong to a log, each chain by itself, oldest first: those that processes beside each other
/// write, and those that were put aside.
pub fn family(base: &Path) -> Vec<Vec<PathBuf>> {
    let files = |number| {
        let path = numbered(base, number);
        let older = (1..=MAX_ASIDE).map(|at| aside(&path, at)).take_while(|path| path.exists());
        let mut files: Vec<_> = older.collect();
        files.reverse();
        files.extend(Some(path).filter(|path| path.exists()));
        files
    };
    (1..=MAX_PROCESSES).map(files).filter(|files| !files.is_empty()).collect()
}

/// How many processes may write beside each other.
const MAX_PROCESSES: usize = 64;
/// How many files may be kept.
pub(crate) const MAX_ASIDE: usize = 1_000;
/// How much of a file's end is read to find its last line: longer than any line is.
const MAX_TAIL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_its_owners_and_one_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().join("state/audit.jsonl");
        let first = Log::open(&base).expect("opened");
        let second = Log::open(&base).expect("opened beside it");
        assert_eq!(second.log.path(), folder.path().join("state/audit-2.jsonl"));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(first.log.path()), mode(&folder.path().join("state"))), (0o600, 0o700));
        drop(first);
        assert_eq!(Log::open(&base).expect("opened").log.path(), base);
        assert_eq!(family(&base), [vec![base.clone()], vec![second.log.path().to_owned()]]);
    }

    #[test]
    fn a_file_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let hash = |text: &str| {
            let mut chain = Chain::new();
            chain.push_unnumbered(text.as_bytes());
            chain.last
        };
        for (text, next, last, torn, is_torn) in [
            ("", 1, Chain::new().last, 0, false),
            ("{\"seq\":7}\n", 8, hash("{\"seq\":7}"), 0, false),
            ("{\"seq\":7}\n{\"se", 8, hash("{\"se"), 4, true),
            ("{\"seq\":7}\n{\"seq\":8}", 9, hash("{\"seq\":8}"), 0, true),
            ("{\"seq\":7}\n{\"se\n", 8, hash("{\"se"), 4, false),
            ("nonsense", 1, hash("nonsense"), 8, true),
        ] {
            fs::write(&path, text).expect("written");
            let opened = Log::open(&path).expect("opened");
            assert_eq!((opened.chain, opened.torn), (Chain { next, last }, torn), "{text:?}");
            assert_eq!(opened.log.is_torn(), is_torn, "{text:?}");
        }
    }

    #[test]
    fn the_oldest_file_goes_and_an_empty_one_goes_on_from_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let mut log = Log::open(&path).expect("opened").log;
        for number in 1..=4 {
            log.append(format!("{{\"seq\":{number}}}\n").as_bytes()).expect("written");
            log.put_aside(2).expect("put aside");
        }
        drop(log);
        let names = family(&path).concat();
        let texts: Vec<_> =
            names.iter().map(|path| fs::read_to_string(path).expect("text")).collect();
        assert_eq!(texts, ["{\"seq\":3}\n", "{\"seq\":4}\n", ""]);
        assert_eq!(Log::open(&path).expect("opened").chain.next, 5);
    }

    #[test]
    fn what_cannot_be_opened_is_told_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        let error = Log::open(&file.join("audit.jsonl")).err().expect("an error").to_string();
        assert!(error.contains("file/audit.jsonl cannot be written: "), "{error}");
    }
}
