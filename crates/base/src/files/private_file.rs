//! Short secrets in files that only their owner can read, created by Weir.
//!
//! Invariants: a file appears completely or not at all, and is accessible to its owner only from
//! its first byte on; processes that start at the same moment use the same text; the text is never
//! displayed.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use tempfile::NamedTempFile;
use zeroize::Zeroizing;

use crate::files::regular_file;

/// Reads the text of a file, or creates the file with a text from `create`. The folder is created
/// for its owner only.
pub fn load_or_create<T: AsRef<str>>(
    path: &Path,
    max_bytes: u64,
    create: impl FnOnce() -> T,
) -> io::Result<Zeroizing<String>> {
    match read(path, max_bytes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    match self::create(path, create().as_ref()) {
        // Another process has created it in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    read(path, max_bytes)
}

/// Creates a file with one line; an error if there is a file already. The folder is created for its
/// owner only.
pub fn create(path: &Path, line: &str) -> io::Result<()> {
    let folder = folder_of(path)?;
    let mut file = NamedTempFile::new_in(folder)?;
    writeln!(file, "{line}")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    // What is sealed with it must not outlive it.
    sync_folder(folder)
}

/// Writes a file with one line in place of the former one, if there is one. The folder is created
/// for its owner only. After a crash of the machine the former file may be back.
pub fn replace(path: &Path, line: &str) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(folder_of(path)?)?;
    writeln!(file, "{line}")?;
    file.persist(path)?;
    Ok(())
}

/// Creates the folder of a file, for its owner only.
fn folder_of(path: &Path) -> io::Result<&Path> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    Ok(folder)
}

/// Waits until the names of files in a folder are on disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    Ok(rustix::fs::fsync(folder)?)
}

/// Reads the text of a file that only its owner may read.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Zeroizing<String>> {
    let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let file = regular_file::open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        return Err(bad(
            "others than its owner may read it: run `chmod 600` on it, and replace the secret if others \
             may have read it",
        ));
    }
    let text = Zeroizing::new(regular_file::read_all(file, max_bytes)?);
    let text = std::str::from_utf8(&text).map_err(|_| bad("it is not text"))?;
    Ok(Zeroizing::new(text.to_owned()))
}
