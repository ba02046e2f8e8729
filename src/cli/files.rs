//! Files of the user: written whole or not at all, and never without what was there before.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::failure::Failure;

/// Writes a file: beside it first, then in its place, so that a reader finds the old text or the new one.
/// Its permissions stay as they are, and a link still leads to it. Missing folders are made.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    write_there(&real, text).map_err(|error| cannot_write(&real, &error))
}

fn write_there(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let old = std::fs::metadata(path).ok();
    let mut builder = tempfile::Builder::new();
    builder.prefix(".weir-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A new file is as any program would make it: the umask takes away what it should not have.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    if let Some(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Copies a file to `<file>.weir-backup-<time>`, permissions included, and returns where it is now.
pub(super) fn back_up(path: &Path) -> Result<PathBuf, Failure> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = real.clone().into_os_string();
    name.push(format!(".weir-backup-{}", timestamp(SystemTime::now())));
    let first = PathBuf::from(name);
    let mut backup = first.clone();
    // Two in one second each have their own.
    let mut number = 2;
    while backup.exists() {
        backup = PathBuf::from(format!("{}-{number}", first.display()));
        number += 1;
    }
    std::fs::copy(&real, &backup).map_err(|error| cannot_write(&backup, &error))?;
    Ok(backup)
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

/// A moment in UTC, as names of files sort: `20261121T042012Z`.
fn timestamp(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // The Gregorian calendar in eras of 400 years, with years that begin in March.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_timestamp_is_the_moment_in_utc() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_795_234_812, "20261121T042012Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
