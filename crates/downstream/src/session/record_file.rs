//! File with records about sessions: lines of JSON. It is rewritten when most of it is obsolete.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

use super::record_table::{RecordChanges, RecordTable};
use weir_base::files::regular_file;
use weir_base::tasks::sync::Mutex;

/// Appends changes, and rewrites the file if most of it is obsolete.
pub(super) fn append(
    path: &Path,
    state: &Mutex<RecordTable>,
    changes: &RecordChanges,
) -> io::Result<()> {
    let mut file = open_locked(path)?;
    let lines = state.lock().lines_of(changes);
    file.write_all(lines.as_bytes())?;
    let size = file.metadata()?.len();
    let mut state = state.lock();
    let needed = state.size().max(REWRITE_FROM_BYTES) as u64;
    if size <= 2 * needed {
        return Ok(());
    }
    // The lock is held, so no other process appends to the old file meanwhile.
    read(path, &mut state)?;
    state.drop_expired(SystemTime::now());
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(state.all_lines().as_bytes())?;
    let about = new.as_file().metadata()?;
    new.persist(path)?;
    state.read = (about.ino(), about.len());
    Ok(())
}

/// Takes over the ends that are in the file, to be written to the store of a fleet, and empties the
/// file if there are none that this process has not read before.
pub(super) fn settle(path: &Path, state: &Mutex<RecordTable>) -> io::Result<()> {
    if !fs::exists(path)? {
        return Ok(());
    }
    let file = open_locked(path)?;
    let mut state = state.lock();
    let read = self::read(path, &mut state)?;
    if !read.is_empty() {
        state.put_back(read);
    } else if state.has_no_pending() && file.metadata()?.len() > 0 {
        file.set_len(0)?;
        state.read = (file.metadata()?.ino(), 0);
    }
    Ok(())
}

/// Reads what was appended to the file since it was last read, or all of a new file. Returns the
/// ends that were read.
pub(super) fn read(path: &Path, table: &mut RecordTable) -> io::Result<RecordChanges> {
    let mut read = RecordChanges::default();
    let mut file = match regular_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(read),
        opened => opened?,
    };
    let about = file.metadata()?;
    let (inode, before) = table.read;
    let from = if inode == about.ino() && before <= about.len() { before } else { 0 };
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(MAX_READ_BYTES).read_to_end(&mut text)?;
    // Another process may be writing the last line.
    text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
    for line in text.split(|byte| *byte == b'\n') {
        table.read_line(line, &mut read);
    }
    table.read = (about.ino(), from + text.len() as u64);
    Ok(read)
}

/// Opens the file for appending and locks it; another process may have replaced it meanwhile.
pub(super) fn open_locked(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    loop {
        let file = regular_file::open_to_append(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let is_current = fs::metadata(path)
            .is_ok_and(|it| file.metadata().is_ok_and(|own| own.ino() == it.ino()));
        if is_current {
            return Ok(file);
        }
    }
}

/// Most bytes that are read at once.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Size from which on the file is rewritten if most of it is obsolete.
pub(super) const REWRITE_FROM_BYTES: usize = 512 << 10;
