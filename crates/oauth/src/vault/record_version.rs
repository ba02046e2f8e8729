//! Version of a record, by which another process's change is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Version of what the vault has about an upstream: each file is replaced with each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordVersion {
    record: Option<FileVersion>,
    notes: Option<FileVersion>,
}

type FileVersion = (u64, i64, i64);

impl RecordVersion {
    /// Reads the version of a record and of its notes.
    pub(super) fn read(record: &Path, notes: &Path) -> Self {
        let version = |path: &Path| {
            let about = fs::metadata(path).ok()?;
            Some((about.ino(), about.ctime(), about.ctime_nsec()))
        };
        Self { record: version(record), notes: version(notes) }
    }

    /// Returns whether there is a record.
    pub(crate) fn has_record(self) -> bool {
        self.record.is_some()
    }

    /// Returns the version of a record in a test.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Self {
        Self { record: Some((number, 0, 0)), notes: None }
    }
}
