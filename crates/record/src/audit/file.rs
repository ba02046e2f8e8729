//! Log file of the audit log: locking, appending, rotation.
//!
//! Invariants: one process at a time writes to a file; another one takes `audit-2.jsonl` beside it,
//! and so on. Only the owner can read the file, and the folder if it has to be created. A file that
//! was moved away is created anew, and one with a line torn by a crash is continued: the chain
//! continues in both cases.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::chain::Chain;
use weir_base::files::regular_file;
use weir_base::json::Object;

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the audit log {} cannot be written: {cause}", path.display())]
pub struct CannotOpen {
    /// The file.
    pub(crate) path: PathBuf,
    /// The cause.
    #[source]
    pub(crate) cause: io::Error,
}

/// Gives a new file to the owner of its folder: what a command of root has made must not keep a
/// service from writing.
fn give_to_owner_of_folder(file: &File, path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let owner = folder.unwrap_or(Path::new(".")).metadata();
    let own = file.metadata();
    if let (Ok(owner), Ok(own)) = (owner, own)
        && own.uid() == 0
        && owner.uid() != 0
    {
        // Without this the file stays root's, as before.
        let _ = std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()));
    }
}

/// Log file that no other process writes.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    pub(super) path: PathBuf,
    /// Size up to the end of the last complete line; `None` for anything but a regular file, such
    /// as `/dev/null`.
    pub(super) size: Option<u64>,
    /// True if the file ends with an incomplete line, so that a line feed has to be written first.
    pub(super) is_torn: bool,
}

/// Opened log file, and the end of its chain.
pub(super) struct OpenedLog {
    pub(super) log: LogFile,
    pub(super) chain: Chain,
    /// Bytes of an incomplete line at its end.
    pub(super) torn: usize,
}

/// A write failed.
#[derive(Debug)]
pub(super) struct WriteError {
    /// Bytes written before the failure.
    pub(super) written: usize,
    pub(super) cause: io::Error,
}

impl LogFile {
    /// Opens standard output, whose path is displayed as `-`.
    pub(super) fn stdout() -> Result<OpenedLog, CannotOpen> {
        let log = |file: OwnedFd| Self::new(file.into(), Path::new("-"), None);
        let opened = io::stdout().as_fd().try_clone_to_owned().and_then(|file| log(file).resume());
        opened.map_err(|cause| CannotOpen { path: "-".into(), cause })
    }

    fn new(file: File, path: &Path, size: Option<u64>) -> Self {
        Self { file, path: path.to_owned(), size, is_torn: false }
    }

    /// Opens the file, or the first one beside it that no other process writes.
    pub(super) fn open(base: &Path) -> Result<OpenedLog, CannotOpen> {
        let cannot = |path: &Path| {
            let path = path.to_owned();
            move |cause| CannotOpen { path, cause }
        };
        if let Some(folder) = base.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(cannot(base))?;
        }
        for number in 1..=MAX_PROCESSES {
            let path = process_path(base, number);
            match Self::lock(&path) {
                Ok(Some(log)) => return log.resume().map_err(cannot(&path)),
                Ok(None) => {}
                // A command of another user has made it.
                Err(error) if number > 1 && error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(cannot(&path)(error)),
            }
        }
        let cause = io::Error::other("too many processes write audit logs in this folder");
        Err(CannotOpen { path: base.to_owned(), cause })
    }

    /// Opens and locks the file; `None` if another process has locked it.
    fn lock(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = regular_file::open_to_append(path)?;
            let about = file.metadata()?;
            if !about.is_file() {
                return Ok(Some(Self::new(file, path, None)));
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if about.len() == 0 {
                give_to_owner_of_folder(&file, path);
            }
            let log = Self::new(file, path, Some(about.len()));
            // Its last owner may have rotated it in between.
            if !log.is_moved() {
                return Ok(Some(log));
            }
        }
    }

    /// Reads the end of the file on the disk.
    fn resume(mut self) -> io::Result<OpenedLog> {
        let end = match self.size {
            None => FileEnd::default(),
            // The previous file may have been rotated a moment before a crash.
            Some(0) => match regular_file::open(&rotated_path(&self.path, 1)) {
                Ok(mut older) => {
                    FileEnd { chain: read_end(&mut older)?.chain, ..FileEnd::default() }
                }
                Err(_) => FileEnd::default(),
            },
            Some(_) => read_end(&mut regular_file::open(&self.path)?)?,
        };
        self.is_torn = end.has_open_line;
        Ok(OpenedLog { log: self, chain: end.chain, torn: end.torn })
    }

    /// Appends complete lines.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), WriteError> {
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => {
                    return Err(WriteError { written, cause: io::ErrorKind::WriteZero.into() });
                }
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(WriteError { written, cause }),
            }
        }
        self.advance(lines.len());
        Ok(())
    }

    /// Keeps `whole` bytes of complete lines of a failed write, and truncates the file behind them.
    /// Returns whether that succeeded; otherwise the incomplete line remains.
    pub(super) fn truncate_partial(&mut self, whole: usize) -> bool {
        if whole > 0 {
            self.advance(whole);
        }
        self.size.is_some_and(|size| self.file.set_len(size).is_ok())
    }

    fn advance(&mut self, bytes: usize) {
        self.is_torn = false;
        self.size = self.size.map(|size| size + bytes as u64);
    }

    /// Returns whether the file is no longer at its path.
    pub(super) fn is_moved(&self) -> bool {
        if self.size.is_none() {
            return false;
        }
        let (Ok(ours), Ok(there)) = (self.file.metadata(), std::fs::metadata(&self.path)) else {
            return true;
        };
        (ours.dev(), ours.ino()) != (there.dev(), there.ino())
    }

    /// Continues in a new file at the same path.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        let taken = || io::Error::other("another process has created a file at this path");
        *self = Self::lock(&self.path)?.ok_or_else(taken)?;
        Ok(())
    }

    /// Rotates the file and deletes the oldest rotated one.
    pub(super) fn rotate(&mut self, keep: usize) -> io::Result<()> {
        for number in (1..keep).rev() {
            match std::fs::rename(
                rotated_path(&self.path, number),
                rotated_path(&self.path, number + 1),
            ) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, rotated_path(&self.path, 1))?;
        self.reopen()
    }
}

/// End of a file.
#[derive(Default)]
struct FileEnd {
    chain: Chain,
    torn: usize,
    /// True if its last line has no line feed.
    has_open_line: bool,
}

/// Reads the end of a file's chain.
fn read_end(file: &mut File) -> io::Result<FileEnd> {
    let size = file.metadata()?.len();
    let from = size.saturating_sub(MAX_TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(MAX_TAIL_BYTES).read_to_end(&mut tail)?;
    let has_open_line = tail.last().is_some_and(|byte| *byte != b'\n');
    let text = if has_open_line { &tail[..] } else { tail.strip_suffix(b"\n").unwrap_or_default() };
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
    Ok(FileEnd { chain, torn, has_open_line })
}

/// Returns the number of a line, if the line is complete.
pub(super) fn number_of(line: &[u8]) -> Option<u64> {
    let object = Object::parse(line.to_vec()).ok()?;
    object.get("seq")?.parse().ok()
}

/// Returns the path for the process of this number.
fn process_path(base: &Path, number: usize) -> PathBuf {
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

/// Returns the path of the rotated file of this age.
fn rotated_path(path: &Path, number: usize) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

/// Returns the files of a log, grouped by chain and each chain oldest first: one chain per
/// concurrent process, with its rotated files.
pub fn log_files(base: &Path) -> Vec<Vec<PathBuf>> {
    let files = |number| {
        let path = process_path(base, number);
        let older =
            (1..=MAX_ROTATED).map(|at| rotated_path(&path, at)).take_while(|path| path.exists());
        let mut files: Vec<_> = older.collect();
        files.reverse();
        files.extend(Some(path).filter(|path| path.exists()));
        files
    };
    (1..=MAX_PROCESSES).map(files).filter(|files| !files.is_empty()).collect()
}

/// Most processes that may write concurrently.
const MAX_PROCESSES: usize = 64;
/// Most rotated files that may be kept.
pub(crate) const MAX_ROTATED: usize = 1_000;
/// Bytes of a file's end that are read to find its last line: more than any line has.
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
        let first = LogFile::open(&base).expect("opened");
        let second = LogFile::open(&base).expect("opened beside it");
        assert_eq!(second.log.path, folder.path().join("state/audit-2.jsonl"));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&first.log.path), mode(&folder.path().join("state"))), (0o600, 0o700));
        drop(first);
        assert_eq!(LogFile::open(&base).expect("opened").log.path, base);
        assert_eq!(log_files(&base), [vec![base.clone()], vec![second.log.path.to_owned()]]);
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
            let opened = LogFile::open(&path).expect("opened");
            assert_eq!((opened.chain, opened.torn), (Chain { next, last }, torn), "{text:?}");
            assert_eq!(opened.log.is_torn, is_torn, "{text:?}");
        }
    }

    #[test]
    fn the_oldest_file_goes_and_an_empty_one_goes_on_from_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let mut log = LogFile::open(&path).expect("opened").log;
        for number in 1..=4 {
            log.append(format!("{{\"seq\":{number}}}\n").as_bytes()).expect("written");
            log.rotate(2).expect("put aside");
        }
        drop(log);
        let names = log_files(&path).concat();
        let texts: Vec<_> =
            names.iter().map(|path| fs::read_to_string(path).expect("text")).collect();
        assert_eq!(texts, ["{\"seq\":3}\n", "{\"seq\":4}\n", ""]);
        assert_eq!(LogFile::open(&path).expect("opened").chain.next, 5);
    }

    #[test]
    fn what_cannot_be_opened_is_told_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        let error = LogFile::open(&file.join("audit.jsonl")).err().expect("an error").to_string();
        assert!(error.contains("file/audit.jsonl cannot be written: "), "{error}");
    }
}
