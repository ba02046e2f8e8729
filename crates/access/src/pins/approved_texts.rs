//! Texts of approved definitions, which `weir pins diff` compares with what is listed now.
//!
//! The folder `approved` of the state folder has a file per text, named by its digest, with the
//! canonical form that was digested. In mode `alert`, where nothing is approved, it has a lock file
//! per upstream besides, with the digests of what was seen first.
//!
//! Invariants: a file is replaced as a whole or not at all, so several processes may share the
//! folder; it is readable by its owner only. A text is used only if it has the digest of its name.
//! All files together take at most [`MAX_BYTES`], rounded up to blocks. A text makes space for
//! itself by removing less important ones, the oldest first; it never removes an equally important
//! one. Nothing here decides what is served.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::NamedTempFile;

use super::digest::Digest;
use super::lock::PinFile;
use weir_base::files::regular_file;

/// Importance of a text; texts of a lower one make space for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Importance {
    /// It is neither approved nor what was seen first.
    Former,
    /// It was seen first, in mode `alert`.
    FirstSeen,
    /// It is approved at present.
    Approved,
}

/// Reason why the text of a definition cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum TextUnavailable {
    /// There is no file.
    #[error(
        "its text is not stored in {}: it was approved elsewhere, repeats a secret, or has made space for others",
        .0.parent().unwrap_or(.0).display()
    )]
    Missing(PathBuf),
    /// The text does not have its digest.
    #[error("its text is damaged: {} does not have the digest of its name", .0.display())]
    Damaged(PathBuf),
    /// The file cannot be read.
    #[error("its text cannot be read: {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// There is no state folder.
    #[error("its text is not stored, because there is no state folder")]
    NoFolder,
}

/// Folder of the texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApprovedTexts {
    folder: PathBuf,
}

/// Files of the folder, with the bytes that they take together.
#[derive(Default)]
struct Entries {
    files: HashMap<PathBuf, Entry>,
    bytes: u64,
    /// Files that may be removed, once that is needed; without those that were written since.
    queue: Option<Vec<PathBuf>>,
}

/// File of the folder.
struct Entry {
    importance: Importance,
    written: SystemTime,
    bytes: u64,
}

impl ApprovedTexts {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(digest.to_string())
    }

    /// Reads a text, and checks its digest.
    pub(super) fn read(&self, digest: &Digest) -> Result<String, TextUnavailable> {
        let path = self.path(digest);
        let bytes = match read_no_link(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(TextUnavailable::Missing(path));
            }
            // A larger file than all together cannot have been written by Weir.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(TextUnavailable::Damaged(path));
            }
            Err(error) => return Err(TextUnavailable::Unreadable { path, error }),
        };
        match String::from_utf8(bytes) {
            Ok(text) if Digest::of(&text.clone().into()) == *digest => Ok(text),
            _ => Err(TextUnavailable::Damaged(path)),
        }
    }

    /// Returns whether the file of a text exists with this size.
    pub(super) fn has(&self, digest: &Digest, bytes: u64) -> bool {
        let about = fs::symlink_metadata(self.path(digest));
        about.is_ok_and(|about| about.is_file() && about.len() == bytes)
    }

    /// Writes texts that are missing or damaged, as far as there is space. Returns the digests of
    /// those that are stored then, with their sizes, and the first error. Blocks.
    pub(super) fn write(
        &self,
        texts: Vec<(Digest, Vec<u8>)>,
        importance: impl Fn(&Digest) -> Importance,
    ) -> (HashMap<Digest, u64>, Option<io::Error>) {
        let (mut stored, mut problem) = (HashMap::new(), None);
        let mut entries = None;
        for (digest, text) in texts {
            let bytes = text.len() as u64;
            let kept = match self.read(&digest) {
                // What was listed last is removed last.
                Ok(_) => {
                    let file = regular_file::open_to_append(&self.path(&digest));
                    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
                    Ok(())
                }
                Err(_) => {
                    let entries = entries.get_or_insert_with(|| self.entries(&importance));
                    let (path, importance) = (self.path(&digest), importance(&digest));
                    // A damaged one is replaced.
                    entries.remove(&path);
                    let entry =
                        Entry { importance, written: SystemTime::now(), bytes: blocks(bytes) };
                    entries
                        .free_space(entry.bytes, importance)
                        .and_then(|()| self.replace(&path, &text))
                        .map(|()| entries.insert(path, entry))
                }
            };
            match kept {
                Ok(()) => drop(stored.insert(digest, bytes)),
                // The others would most likely fail, too, unless it is only its own place.
                Err(error) => {
                    let is_own = error.kind() == io::ErrorKind::IsADirectory;
                    problem = Some(error);
                    if !is_own {
                        break;
                    }
                }
            }
        }
        if entries.is_some() {
            // Another process may have written at the same time.
            let _ = self.entries(&importance).free_space(0, Importance::FirstSeen);
        }
        (stored, problem)
    }

    /// Reads what was seen first of an upstream; nothing if the file is missing or malformed.
    pub(super) fn read_first_seen(&self, upstream: &str) -> PinFile {
        let text = read_no_link(&self.first_seen(upstream)).ok();
        let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
        text.and_then(|text| PinFile::parse(&text).ok()).unwrap_or_default()
    }

    /// Writes what was seen first of an upstream. Blocks.
    pub(super) fn write_first_seen(&self, upstream: &str, seen: &PinFile) -> io::Result<()> {
        let text = seen.to_text_with(FIRST_SEEN_HEADER);
        let mut entries = self.entries(&|_| Importance::Approved);
        entries.free_space(blocks(text.len() as u64), Importance::FirstSeen)?;
        self.replace(&self.first_seen(upstream), text.as_bytes())
    }

    fn first_seen(&self, upstream: &str) -> PathBuf {
        self.folder.join(format!("{upstream}{FIRST_SEEN}"))
    }

    /// Replaces a file, or a link in its place, completely or not at all.
    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut file = NamedTempFile::new_in(&self.folder)?;
        file.write_all(text)?;
        file.persist(path)?;
        Ok(())
    }

    /// Lists the files of the folder.
    fn entries(&self, importance: &impl Fn(&Digest) -> Importance) -> Entries {
        let mut entries = Entries::default();
        let entry = |entry: fs::DirEntry| {
            let about = entry.metadata().ok()?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let importance = match name.parse() {
                Ok(digest) => importance(&digest),
                Err(_) if name.ends_with(FIRST_SEEN) => Importance::FirstSeen,
                // A process that was killed left it.
                Err(_) => Importance::Former,
            };
            let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let bytes = blocks(about.size());
            Some((entry.path(), Entry { importance, written, bytes }))
        };
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten().filter_map(entry);
        files.for_each(|(path, entry)| entries.insert(path, entry));
        entries
    }
}

impl Entries {
    fn insert(&mut self, path: PathBuf, entry: Entry) {
        self.bytes += entry.bytes;
        self.files.insert(path, entry);
    }

    /// Returns the files of lower importance than approved ones, the next to be removed last.
    fn queue(&self) -> Vec<PathBuf> {
        let files = self.files.iter().filter(|(_, entry)| entry.importance < Importance::Approved);
        let mut files: Vec<_> = files.collect();
        files.sort_by_key(|(_, entry)| Reverse((entry.importance, entry.written)));
        files.into_iter().map(|(path, _)| path.clone()).collect()
    }

    fn remove(&mut self, path: &Path) {
        self.bytes -= self.files.remove(path).map_or(0, |entry| entry.bytes);
    }

    /// Removes less important files, the oldest of the least important first, until a new one fits.
    fn free_space(&mut self, bytes: u64, importance: Importance) -> io::Result<()> {
        if self.bytes + bytes <= MAX_BYTES {
            return Ok(());
        }
        let removable = self.files.values().filter(|entry| entry.importance < importance);
        let spare: u64 = removable.map(|entry| entry.bytes).sum();
        if self.bytes - spare + bytes > MAX_BYTES {
            let text = format!("the folder is full: approved texts take {} MiB", MAX_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        let mut queue = self.queue.take().unwrap_or_else(|| self.queue());
        while self.bytes + bytes > MAX_BYTES
            && let Some(path) = queue.pop()
        {
            if self.files.get(&path).is_some_and(|entry| entry.importance < importance) {
                // Another process may have removed it.
                let _ = fs::remove_file(&path);
                self.remove(&path);
            }
        }
        self.queue = Some(queue);
        Ok(())
    }
}

/// Reads a regular file that is no symbolic link.
fn read_no_link(path: &Path) -> io::Result<Vec<u8>> {
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link"));
    }
    regular_file::read(path, MAX_BYTES)
}

/// Returns the bytes that a file takes on a disk.
fn blocks(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(BLOCK_BYTES)
}

/// Most bytes of all files.
const MAX_BYTES: u64 = 64 << 20;
/// Usual block of a file system.
const BLOCK_BYTES: u64 = 4_096;
/// End of the name of the file with what was seen first of an upstream.
const FIRST_SEEN: &str = ".first-seen";
const FIRST_SEEN_HEADER: &str = "\
# The definitions that Weir saw first, each by the hash of all that its server says of it.
";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn text(number: usize, bytes: usize) -> (Digest, Vec<u8>) {
        let text = format!("\"{number:04}{}\"", "x".repeat(bytes.saturating_sub(6)));
        (Digest::of(&text.clone().into()), text.into_bytes())
    }

    fn approved(_: &Digest) -> Importance {
        Importance::Approved
    }

    #[test]
    fn a_text_is_read_back_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let texts = ApprovedTexts::new(folder.path().join("a/approved"));
        let (digest, bytes) = text(1, 100);
        assert!(matches!(texts.read(&digest), Err(TextUnavailable::Missing(_))));
        let (stored, problem) = texts.write(vec![(digest, bytes.clone())], approved);
        assert!(problem.is_none() && stored == HashMap::from([(digest, 100)]), "{problem:?}");
        assert_eq!(texts.read(&digest).ok(), String::from_utf8(bytes).ok());
        assert!(texts.has(&digest, 100) && !texts.has(&digest, 99));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&texts.folder), mode(&texts.path(&digest))), (0o700, 0o600));
    }

    #[test]
    fn a_damaged_text_is_reported_and_replaced_at_the_next_listing() {
        let folder = tempfile::tempdir().expect("a folder");
        let texts = ApprovedTexts::new(folder.path().to_owned());
        let (digest, bytes) = text(1, 100);
        let path = texts.path(&digest);
        let outside = folder.path().join("outside");
        let damages: [fn(&Path, &Path); 5] = [
            |path, _| fs::write(path, "\"0002\"").expect("written"),
            |path, _| fs::write(path, "").expect("written"),
            |path, _| fs::write(path, [0xff, 0xfe]).expect("written"),
            |path, _| fs::write(path, vec![b' '; 70 << 20]).expect("written"),
            |path, outside| {
                fs::write(outside, "of another").expect("written");
                symlink(outside, path).expect("linked");
            },
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let _ = fs::remove_file(&path);
            damage(&path, &outside);
            let error = texts.read(&digest).expect_err("refused").to_string();
            let expected = if number == 4 { "it is a symbolic link" } else { "is damaged" };
            assert!(error.contains(expected), "{number}: {error}");
            let (stored, problem) = texts.write(vec![(digest, bytes.clone())], approved);
            assert!(problem.is_none() && stored.len() == 1, "{number}: {problem:?}");
            assert!(texts.read(&digest).is_ok(), "{number}");
        }
        assert_eq!(fs::read_to_string(&outside).expect("there"), "of another");
        // A folder in its place cannot be replaced.
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        fs::write(path.join("x"), "").expect("written");
        let (stored, problem) = texts.write(vec![(digest, bytes)], approved);
        assert!(stored.is_empty() && problem.is_some());
        let error = texts.read(&digest).expect_err("refused").to_string();
        assert!(error.contains("it is a folder, not a regular file"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        let texts = ApprovedTexts::new(file.join("approved"));
        let (stored, problem) = texts.write(vec![text(1, 10), text(2, 10)], approved);
        assert!(stored.is_empty() && problem.is_some());
        assert!(texts.write_first_seen("hub", &PinFile::default()).is_err());
    }

    #[test]
    fn a_full_folder_loses_former_texts_before_those_that_were_seen_first_and_no_approved_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let texts = ApprovedTexts::new(folder.path().to_owned());
        // Each takes an eighth of the folder.
        let all: Vec<_> = (0..11).map(|number| text(number, 8 << 20)).collect();
        let digest = |number: usize| all[number].0;
        let mut present: Vec<(Digest, Importance)> = Vec::new();
        let write = |number: usize, of: Importance, present: &mut Vec<(Digest, Importance)>| {
            present.push((digest(number), of));
            let rank = |digest: &Digest| {
                let known = present.iter().find(|(known, _)| known == digest);
                known.map_or(Importance::Former, |(_, of)| *of)
            };
            let (stored, _) = texts.write(vec![all[number].clone()], rank);
            // Files that are written in the same tick of the clock have an order, too.
            let age = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            if let Ok(file) = regular_file::open_to_append(&texts.path(&digest(number))) {
                file.set_modified(age).expect("set");
            }
            stored.len() == 1
        };
        for number in 0..8 {
            let of = [Importance::Approved, Importance::FirstSeen][number % 2];
            assert!(write(number, of, &mut present));
        }
        // The approvals of 0 and 2 have ended.
        present.retain(|(known, _)| ![digest(0), digest(2)].contains(known));
        assert!(write(8, Importance::FirstSeen, &mut present));
        assert!(write(9, Importance::Approved, &mut present));
        assert!(write(10, Importance::Approved, &mut present));
        let there: Vec<_> = (0..11).filter(|number| texts.read(&digest(*number)).is_ok()).collect();
        assert_eq!(there, [3, 4, 5, 6, 7, 8, 9, 10]);
        // What was seen first does not replace its equals.
        assert!(!write(1, Importance::FirstSeen, &mut present));
    }
}
