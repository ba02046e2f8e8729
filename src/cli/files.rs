//! Files of the user: written whole or not at all, and never without what was there before.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::exit::Failure;
use super::timestamp::to_words;
use crate::regular_file;

/// Writes a file: beside it first, then in its place, so that a reader finds the old text or the new one.
/// Its permissions stay as they are, and a link still leads to it. Missing folders are made.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    write_there(&real, text, |_| Ok(())).map_err(|error| cannot_write(&real, &error))
}

/// Writes a file as [`write`] does, if it still says what it said when it was read; none if it was not there.
pub(super) fn replace(path: &Path, old: Option<&str>, text: &str) -> Result<(), Failure> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let max_bytes = old.map_or(0, str::len) as u64;
    let is_as_read = |path: &Path| match (regular_file::read(path, max_bytes), old) {
        (Ok(now), Some(old)) if now == old.as_bytes() => Ok(()),
        (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(std::io::Error::other("somebody else has just changed it; run this again")),
    };
    write_there(&real, text, is_as_read).map_err(|error| cannot_write(&real, &error))
}

fn write_there(
    path: &Path,
    text: &str,
    check: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let old = std::fs::metadata(path).ok();
    let mut file = beside(folder, old.is_some())?;
    if let Some(old) = old {
        keep_owner(file.as_file(), &old)?;
        file.as_file().set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    check(path)?;
    file.persist(path)?;
    Ok(())
}

/// Makes the file that becomes another. Until it has the permissions of one that it replaces, nobody else may
/// open it: whoever has opened it reads what is written later.
fn beside(folder: &Path, replaces: bool) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".weir-");
    #[cfg(unix)]
    if !replaces {
        use std::os::unix::fs::PermissionsExt;
        // A new file is as any program would make it: the umask takes away what it should not have.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Gives a file the owner of the one that it replaces: an administrator's run must not take a user's away.
fn keep_owner(file: &std::fs::File, old: &std::fs::Metadata) -> std::io::Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};
    let own = file.metadata()?;
    match (own.uid(), own.gid()) == (old.uid(), old.gid()) {
        true => Ok(()),
        false => fchown(file, Some(old.uid()), Some(old.gid())),
    }
}

/// Copies a file to `<file>.weir-backup-20261121T042012Z`, permissions included, and returns where it is now.
pub(super) fn back_up(path: &Path) -> Result<PathBuf, Failure> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.clone().into_os_string();
    name.push(format!(".weir-backup-{}", stamp(SystemTime::now())));
    let first = PathBuf::from(name);
    let mut backup = first.clone();
    // Two in one second each have their own.
    let mut number = 2;
    // A link that leads nowhere is there, too: the copy would be made where it leads.
    while backup.symlink_metadata().is_ok() {
        backup = PathBuf::from(format!("{}-{number}", first.display()));
        number += 1;
    }
    std::fs::copy(&real, &backup).map_err(|error| cannot_write(&backup, &error))?;
    Ok(backup)
}

/// A moment as it may stand in a file's name.
fn stamp(moment: SystemTime) -> String {
    to_words(moment).replace(['-', ':'], "")
}

/// What is said of a file that cannot be written.
pub(super) fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    // One that is not the system's own names a file that was only on its way to be this one.
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
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = beside(folder.path(), true).expect("made");
        let mode = file.as_file().metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }

    #[test]
    fn a_change_of_somebody_elses_is_not_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        let read = || std::fs::read_to_string(&path).expect("it is there");
        assert!(replace(&path, Some("old"), "new").is_err() && !path.exists());
        assert!(replace(&path, None, "one").is_ok() && read() == "one");
        assert!(replace(&path, None, "two").is_err() && read() == "one");
        assert!(replace(&path, Some("other"), "two").is_err() && read() == "one");
        assert!(replace(&path, Some("one"), "two").is_ok() && read() == "two");
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1);
    }

    #[test]
    fn a_copy_is_not_made_where_a_link_leads() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, elsewhere) = (folder.path().join("a"), folder.path().join("elsewhere"));
        std::fs::write(&path, "text").expect("written");
        let now = SystemTime::now();
        for seconds in 0..3 {
            let at = stamp(now + Duration::from_secs(seconds));
            let link = folder.path().join(format!("a.weir-backup-{at}"));
            std::os::unix::fs::symlink(&elsewhere, link).expect("linked");
        }
        let backup = back_up(&path).expect("copied");
        assert!(!elsewhere.exists() && backup.is_file(), "{}", backup.display());
    }
}
