//! Writing of the user's files.
//!
//! Invariants: a file is replaced atomically, so a reader sees the old text or the new one; its
//! owner, permissions and symbolic link are preserved; a file is copied before it is overwritten,
//! and only its owner can read the copies, of which a bounded number is kept.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::exit::Failure;
use super::timestamp::format_rfc3339;
use weir_base::files::regular_file;

/// New text of a file, written beside it: everything but the rename has succeeded.
pub(super) struct PreparedFile {
    /// Path of the file, or of the one that it links to.
    path: PathBuf,
    temporary: tempfile::NamedTempFile,
    old: Option<String>,
}

impl PreparedFile {
    /// Prepares a file as [`write`] writes it. Fails unless its text is still `old` and it is not
    /// read-only; `None` means that the file did not exist.
    pub(super) fn replacing(path: &Path, old: Option<&str>, text: &str) -> Result<Self, Failure> {
        let path = resolve_link(path);
        let temporary = write_beside(&path, text, false)?;
        let prepared = Self { path, temporary, old: old.map(str::to_owned) };
        prepared.check()?;
        Ok(prepared)
    }

    /// Replaces the file, unless it was changed since.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.check()?;
        persist(self.temporary, &self.path)
    }

    fn check(&self) -> Result<(), Failure> {
        let (path, old) = (&self.path, self.old.as_deref());
        let max_bytes = old.map_or(0, str::len) as u64;
        match (regular_file::read(path, max_bytes), old) {
            (Ok(now), Some(old)) if now == old.as_bytes() => check_writable(path),
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            _ => Err(not_written(path, "it was changed in the meantime; run this command again")),
        }
    }
}

/// Writes a file through a temporary file in the same folder and a rename. Permissions and a
/// symbolic link are preserved; missing folders are created.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let path = resolve_link(path);
    persist(write_beside(&path, text, false)?, &path)
}

/// Writes a file that only its owner can read, whatever file it replaces.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    persist(write_beside(path, text, true)?, path)
}

/// Fails if a file is read-only, also for its owner: a rename would replace it all the same.
pub(super) fn check_writable(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path).is_ok_and(|file| file.permissions().readonly()) {
        true => Err(not_written(path, "it is read-only; `chmod u+w` makes it writable")),
        false => Ok(()),
    }
}

fn not_written(path: &Path, why: &str) -> Failure {
    Failure::Usage(format!("{} was not written: {why}", path.display()))
}

/// Path of the file that a symbolic link leads to.
fn resolve_link(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Writes the temporary file that is to replace a file.
fn write_beside(
    path: &Path,
    text: &str,
    private: bool,
) -> Result<tempfile::NamedTempFile, Failure> {
    let prepare = || {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        std::fs::create_dir_all(folder)?;
        let old = std::fs::metadata(path).ok().filter(|_| !private);
        let mut file = create_temporary(folder, private || old.is_some())?;
        if let Some(old) = old {
            copy_owner(file.as_file(), &old)?;
            file.as_file().set_permissions(old.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    prepare().map_err(|error| write_failure(path, &error))
}

fn persist(temporary: tempfile::NamedTempFile, path: &Path) -> Result<(), Failure> {
    let persisted = temporary.persist(path);
    persisted.map(drop).map_err(|error| write_failure(path, &error.error))
}

/// Creates the temporary file. Until it has the permissions of the file that it replaces, no other
/// user may open it: an open descriptor could read everything that is written later. A new file
/// gets the usual mode, which the umask restricts, unless it is `private`.
fn create_temporary(folder: &Path, private: bool) -> io::Result<tempfile::NamedTempFile> {
    let mode = if private { 0o600 } else { 0o666 };
    tempfile::Builder::new()
        .prefix(".weir-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
}

/// Gives a file the owner of the one that it replaces: a run as root must not take a file away
/// from its user.
fn copy_owner(file: &File, old: &std::fs::Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    match (own.uid(), own.gid()) == (old.uid(), old.gid()) {
        true => Ok(()),
        false => fchown(file, Some(old.uid()), Some(old.gid())),
    }
}

/// Copies a file to `<file>.weir-backup-20261121T042012Z`, for its owner only, and returns the path
/// of the copy. The oldest copies of the file are removed.
pub(super) fn back_up_file(path: &Path) -> Result<PathBuf, Failure> {
    let real = resolve_link(path);
    let (stamp, former) = (format_stamp(SystemTime::now()), find_backups(&real));
    let mut name = real.clone().into_os_string();
    name.push(format!("{BACKUP}{stamp}"));
    let first = PathBuf::from(name);
    // Copies within one second have numbers, and that of one that was removed is not used again.
    let numbers =
        former.iter().filter(|((its, _), _)| *its == stamp).map(|((_, number), _)| *number);
    let mut number = numbers.max().unwrap_or(0).saturating_add(1);
    let named = |number: u32| match number {
        1 => first.clone(),
        number => PathBuf::from(format!("{}-{number}", first.display())),
    };
    // `symlink_metadata`, because copying to a dangling link would create its target.
    while named(number).symlink_metadata().is_ok() {
        number += 1;
    }
    let backup = named(number);
    copy_privately(&real, &backup).map_err(|error| write_failure(&backup, &error))?;
    let old = former.len().saturating_sub(MAX_BACKUPS - 1);
    for (_, old) in &former[..old] {
        // One that cannot be removed is found again by the next command.
        let _ = std::fs::remove_file(old);
    }
    Ok(backup)
}

/// Copies a file for its owner only: it may contain tokens.
fn copy_privately(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = regular_file::open(from)?;
    let old = source.metadata()?;
    let mut copy = create_temporary(to.parent().unwrap_or(Path::new(".")), true)?;
    // Else it stays that of this user, who is allowed to replace the file.
    let _ = copy_owner(copy.as_file(), &old);
    io::copy(&mut source, &mut copy)?;
    let mode = old.permissions().mode() & 0o600;
    copy.as_file().set_permissions(Permissions::from_mode(mode))?;
    copy.persist_noclobber(to)?;
    Ok(())
}

/// Finds the copies of a file, the oldest first.
fn find_backups(path: &Path) -> Vec<((String, u32), PathBuf)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_file()));
    let mut backups: Vec<_> = files
        .filter_map(|entry| Some((backup_order(name, &entry.file_name())?, entry.path())))
        .collect();
    backups.sort_unstable();
    backups
}

/// Returns the time in the name of a copy of this file, and its number within that second; `None`
/// for other files.
fn backup_order(file: &OsStr, name: &OsStr) -> Option<(String, u32)> {
    let stamp = name.to_str()?.strip_prefix(file.to_str()?)?.strip_prefix(BACKUP)?;
    let (stamp, number) = match stamp.split_once('-') {
        Some((stamp, number)) => (stamp, number.parse().ok()?),
        None => (stamp, 1),
    };
    let has_form = stamp.len() == STAMP_FORM.len()
        && stamp.chars().zip(STAMP_FORM.chars()).all(|(c, form)| match form {
            '0' => c.is_ascii_digit(),
            form => c == form,
        });
    has_form.then(|| (stamp.to_owned(), number))
}

/// Formats a timestamp for a file name.
fn format_stamp(moment: SystemTime) -> String {
    format_rfc3339(moment).replace(['-', ':'], "")
}

/// Part of the name of a copy, between that of the file and the time.
const BACKUP: &str = ".weir-backup-";
/// Form of the time, with digits in the place of zeros.
const STAMP_FORM: &str = "00000000T000000Z";
/// Copies of one file that are kept.
const MAX_BACKUPS: usize = 5;

/// Failure for a file that cannot be written.
pub(super) fn write_failure(path: &Path, error: &io::Error) -> Failure {
    // Errors without an OS code name the temporary file, which means nothing to the user.
    let why = match error.raw_os_error() {
        Some(_) => error.to_string(),
        None => error.kind().to_string(),
    };
    Failure::Usage(format!(
        "{} cannot be written: {why}; check the path and the permissions of its folder",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_replaces_a_file_is_never_open_to_more_people() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = create_temporary(folder.path(), true).expect("made");
        let mode = file.as_file().metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }

    #[test]
    fn a_change_of_somebody_elses_is_not_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        let read = || std::fs::read_to_string(&path).expect("it is there");
        let replace = |path: &Path, old: Option<&str>, text: &str| {
            PreparedFile::replacing(path, old, text).and_then(PreparedFile::finish)
        };
        assert!(replace(&path, Some("old"), "new").is_err() && !path.exists());
        assert!(replace(&path, None, "one").is_ok() && read() == "one");
        assert!(replace(&path, None, "two").is_err() && read() == "one");
        assert!(replace(&path, Some("other"), "two").is_err() && read() == "one");
        assert!(replace(&path, Some("one"), "two").is_ok() && read() == "two");
        let set_mode = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode));
        set_mode(0o444).expect("ours");
        let refused = replace(&path, Some("two"), "three").map_err(|why| why.to_string());
        assert!(refused.is_err_and(|why| why.contains("it is read-only")) && read() == "two");
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1);
        set_mode(0o644).expect("ours");
        let prepared = PreparedFile::replacing(&path, Some("two"), "three").expect("it is ours");
        std::fs::write(&path, "four").expect("written");
        assert!(prepared.finish().is_err() && read() == "four");
    }

    #[test]
    fn a_copy_is_not_made_where_a_link_leads() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, elsewhere) = (folder.path().join("a"), folder.path().join("elsewhere"));
        std::fs::write(&path, "text").expect("written");
        let now = SystemTime::now();
        for seconds in 0..3 {
            let at = format_stamp(now + Duration::from_secs(seconds));
            let link = folder.path().join(format!("a.weir-backup-{at}"));
            std::os::unix::fs::symlink(&elsewhere, link).expect("linked");
        }
        let backup = back_up_file(&path).expect("copied");
        assert!(!elsewhere.exists() && backup.is_file(), "{}", backup.display());
    }

    #[test]
    fn copies_are_for_their_owner_and_the_five_newest_of_a_file_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weir.toml");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o777;
        let others = [
            "weir.toml.weir-backup-mine",
            "weir.toml.weir-backup-20200101T000000Z.gz",
            "other.toml.weir-backup-20200101T000000Z",
        ];
        let oldest = "weir.toml.weir-backup-20200101T000000Z";
        for name in others.iter().chain([&oldest]) {
            std::fs::write(folder.path().join(name), "kept").expect("written");
        }
        for (number, file_mode, copy_mode) in [(1, 0o644, 0o600), (2, 0o440, 0o400)] {
            std::fs::write(&path, format!("text {number}")).expect("written");
            std::fs::set_permissions(&path, Permissions::from_mode(file_mode)).expect("ours");
            let backup = back_up_file(&path).expect("copied");
            assert_eq!(mode(&backup), copy_mode);
            let text = std::fs::read_to_string(&backup).expect("readable");
            assert_eq!(text, format!("text {number}"));
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        }
        assert!(folder.path().join(oldest).exists());
        let newest: Vec<_> = (0..5).map(|_| back_up_file(&path).expect("copied")).collect();
        assert!(newest.iter().all(|backup| backup.exists()));
        assert!(!folder.path().join(oldest).exists());
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
        // The file itself, the other files and the newest copies.
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1 + 3 + 5);
    }
}
