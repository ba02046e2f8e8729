//! Search path: the folders in which a program is looked up.
//!
//! Invariant: no program is found in an empty or relative entry of `PATH`, which means the working
//! directory, or one below it: that is often the folder of a cloned project.

use std::fs::metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Finds the file of a program: in the folders of `path`, or for a path (with a slash) as it is,
/// seen from `folder`.
pub fn find_program(program: &str, path: Option<&str>, folder: &Path) -> io::Result<PathBuf> {
    if program.contains('/') {
        check(&folder.join(program))?;
        return Ok(program.into());
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for entry in entries(path.unwrap_or(DEFAULT_PATH)) {
        let file = Path::new(entry).join(program);
        match check(&file) {
            Ok(()) => return Ok(file),
            // One that another folder has may be executed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && file.exists() => {
                last = error;
            }
            Err(_) => {}
        }
    }
    Err(last)
}

/// Returns the entries of a search path that name a folder wherever the process works.
pub(crate) fn absolute_entries(path: &str) -> String {
    entries(path).collect::<Vec<_>>().join(":")
}

/// Returns a search path in which the entries of `second` follow those of `first`, each one once.
pub(crate) fn join(first: &str, second: &str) -> String {
    let mut joined: Vec<&str> = Vec::new();
    for entry in entries(first).chain(entries(second)) {
        if !joined.contains(&entry) {
            joined.push(entry);
        }
    }
    joined.join(":")
}

/// Returns whether a search path has the system's own folders only: it is that of a desktop's
/// session, and not of a user's shell.
pub(crate) fn is_of_system(path: &str) -> bool {
    entries(path).all(|entry| SYSTEM_FOLDERS.contains(&entry.trim_end_matches('/')))
}

fn entries(path: &str) -> impl Iterator<Item = &str> {
    path.split(':').filter(|entry| entry.starts_with('/') && !entry.contains(char::is_control))
}

/// Checks that a file can be executed.
fn check(file: &Path) -> io::Result<()> {
    let found = metadata(file)?;
    match found.is_file() && found.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Search path without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Folders of `PATH` where neither the user nor a shell has set it.
const SYSTEM_FOLDERS: [&str; 9] = [
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/games",
    "/usr/local/games",
    "/snap/bin",
];

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions, write};

    use super::*;

    fn folder(path: &Path, programs: &[(&str, u32)]) -> String {
        create_dir(path).expect("a folder");
        for (name, mode) in programs {
            write(path.join(name), "").expect("a file");
            set_permissions(path.join(name), Permissions::from_mode(*mode)).expect("ours");
        }
        path.display().to_string()
    }

    #[test]
    fn a_program_is_found_in_the_first_folder_in_which_it_may_be_executed() {
        let root = tempfile::tempdir().expect("a folder");
        let first = folder(&root.path().join("first"), &[("npx", 0o644), ("node", 0o755)]);
        let second = folder(&root.path().join("second"), &[("npx", 0o755), ("plain", 0o644)]);
        let path = format!("{first}:{second}");
        let find = |name| find_program(name, Some(&path), Path::new(""));
        assert_eq!(find("npx").expect("found"), root.path().join("second/npx"));
        assert_eq!(find("node").expect("found"), root.path().join("first/node"));
        assert_eq!(find("plain").expect_err("not executable").kind(), PERMISSION_DENIED);
        assert_eq!(find("absent").expect_err("not there").kind(), io::ErrorKind::NotFound);
        let sh = find_program("sh", None, Path::new("")).expect("there is one without PATH");
        assert!(sh.is_absolute(), "{}", sh.display());
    }

    #[test]
    fn a_program_is_never_found_in_an_empty_or_relative_entry() {
        let root = tempfile::tempdir().expect("a folder");
        folder(&root.path().join("bin"), &[("npx", 0o755)]);
        // The folder of this test is the working directory of its process.
        let own = std::env::current_dir().expect("a folder");
        let steps = "../".repeat(own.components().count());
        let there = format!("{steps}{}", root.path().join("bin").display());
        assert!(Path::new(&there).join("npx").exists(), "{there}");
        for path in [there.as_str(), "", ":", ".", "bin", "./bin", &format!("::{there}:")] {
            for folder in [root.path(), &root.path().join("bin"), Path::new("")] {
                let found = find_program("npx", Some(path), folder);
                let error = found.expect_err("not there").kind();
                assert_eq!(error, io::ErrorKind::NotFound, "{path:?}");
            }
        }
        assert_eq!(absolute_entries(":.:/a::b:/c:/d\u{1b}[m:"), "/a:/c");
        assert_eq!(absolute_entries("bin:."), "");
    }

    #[test]
    fn a_path_with_a_slash_starts_from_the_folder() {
        let root = tempfile::tempdir().expect("a folder");
        folder(&root.path().join("bin"), &[("npx", 0o755), ("plain", 0o644)]);
        let find = |program| find_program(program, Some("/bin"), root.path());
        assert_eq!(find("./bin/npx").expect("found"), Path::new("./bin/npx"));
        assert_eq!(find("bin/plain").expect_err("not executable").kind(), PERMISSION_DENIED);
        assert_eq!(find("./npx").expect_err("not there").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_entries_of_the_second_path_follow_and_none_is_there_twice() {
        assert_eq!(join("/a:/b:.", "/b:/c::/c"), "/a:/b:/c");
        assert_eq!(join("", "/b"), "/b");
    }

    #[test]
    fn the_path_of_a_desktop_is_told_from_that_of_a_shell() {
        for path in ["", "/usr/bin:/bin:/usr/sbin:/sbin", "/usr/local/bin/:/bin", ".:/bin"] {
            assert!(is_of_system(path), "{path}");
        }
        for path in ["/home/ann/.local/bin:/usr/bin:/bin", "/opt/homebrew/bin:/bin"] {
            assert!(!is_of_system(path), "{path}");
        }
    }

    const PERMISSION_DENIED: io::ErrorKind = io::ErrorKind::PermissionDenied;
}
