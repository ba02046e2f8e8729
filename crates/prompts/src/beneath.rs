//! Opening of files beneath a folder that may be changed at the same time.
//!
//! Invariants: the opened file lies beneath the folder, even if a component of its path is replaced
//! by a symbolic link during resolution; it is a regular file; and opening never blocks, as a named
//! pipe without a writer would.
//!
//! On Linux the kernel resolves and checks the path in one step (`openat2`, since 5.6). Elsewhere
//! each component is opened separately, without following links.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};

/// Reason why a file was not opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotOpened {
    /// Its path leads out of the folder.
    Outside,
    /// It is a folder, a named pipe, a socket or a device.
    NotAFile,
    /// The operating system refuses.
    System(Errno),
}

/// Opens a regular file by its path within the folder, which must consist of names only. `root` is
/// the folder's own path without links.
pub(super) fn open(folder: &OwnedFd, root: &Path, within: &Path) -> Result<File, NotOpened> {
    let opened = match in_one_step(folder, within) {
        // XDEV: a link is absolute or leaves the folder, perhaps to return. NOSYS, PERM: this
        // kernel or its seccomp filter lacks `openat2`. AGAIN: a component was renamed meanwhile.
        Err(Errno::XDEV | Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {
            step_by_step(folder, root, within)?
        }
        opened => opened.map_err(from_system)?,
    };
    let file = File::from(opened);
    match file.metadata() {
        Ok(about) if about.is_file() => Ok(file),
        Ok(_) => Err(NotOpened::NotAFile),
        Err(error) => Err(from_io(&error)),
    }
}

#[cfg(target_os = "linux")]
fn in_one_step(folder: &OwnedFd, within: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::{ResolveFlags, openat2};
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    retry_on_intr(|| openat2(folder, within, FLAGS, Mode::empty(), resolve))
}

#[cfg(not(target_os = "linux"))]
fn in_one_step(_folder: &OwnedFd, _within: &Path) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

/// Resolves the links first, and then opens each component of the result. A component that has
/// become a link in between is an error of this reading.
fn step_by_step(folder: &OwnedFd, root: &Path, within: &Path) -> Result<OwnedFd, NotOpened> {
    let real = fs::canonicalize(root.join(within)).map_err(|error| from_io(&error))?;
    let inside = real.strip_prefix(root).map_err(|_| NotOpened::Outside)?;
    let mut opened: Option<OwnedFd> = None;
    let mut names = inside.iter().peekable();
    while let Some(name) = names.next() {
        let at = opened.as_ref().map_or(folder.as_fd(), AsFd::as_fd);
        let kind = if names.peek().is_some() { OFlags::DIRECTORY } else { OFlags::empty() };
        let flags = FLAGS | OFlags::NOFOLLOW | kind;
        let next = retry_on_intr(|| openat(at, name, flags, Mode::empty()));
        opened = Some(next.map_err(from_system)?);
    }
    // An empty path is the folder itself.
    opened.ok_or(NotOpened::NotAFile)
}

fn from_io(error: &io::Error) -> NotOpened {
    from_system(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn from_system(error: Errno) -> NotOpened {
    match error {
        // A socket, or a device that is not there.
        Errno::NXIO | Errno::OPNOTSUPP => NotOpened::NotAFile,
        error => NotOpened::System(error),
    }
}

const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn both_ways_of_opening_lead_to_the_same_files_and_refuse_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap().join("inner");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("sub/a"), "inside").unwrap();
        fs::write(dir.path().join("a"), "outside").unwrap();
        let links = [("up", ".."), ("here", "."), ("sub/back", "../sub/a"), ("out", "../a")];
        for (name, target) in links.into_iter().chain([("fd", "/proc/self/fd"), ("gone", "x")]) {
            symlink(target, root.join(name)).unwrap();
        }
        symlink(dir.path().join("a"), root.join("absolute-out")).unwrap();
        symlink(root.join("sub"), root.join("absolute")).unwrap();
        let folder = OwnedFd::from(File::open(&root).unwrap());
        let read = |opened: Result<OwnedFd, NotOpened>| {
            let text = opened.map(|file| io::read_to_string(File::from(file)).unwrap_or_default());
            text.ok()
        };
        let inside = Some("inside".to_owned());
        for (path, expected) in [
            ("sub/a", &inside),
            ("sub/back", &inside),
            ("here/sub/a", &inside),
            ("absolute/a", &inside),
            ("up/a", &None),
            ("out", &None),
            ("absolute-out", &None),
            ("gone", &None),
            ("fd/0", &None),
        ] {
            let path = Path::new(path);
            assert_eq!(read(step_by_step(&folder, &root, path)), *expected, "{path:?}");
            let text = open(&folder, &root, path).map(OwnedFd::from);
            assert_eq!(read(text), *expected, "{path:?}");
        }
        for path in ["up/a", "out", "absolute-out"] {
            let refused = open(&folder, &root, Path::new(path)).unwrap_err();
            assert_eq!(refused, NotOpened::Outside, "{path}");
        }
    }

    #[test]
    fn a_component_that_has_become_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (dir.path().join("inner"), dir.path().join("elsewhere"));
        for folder in [&root, &elsewhere] {
            fs::create_dir_all(folder.join("sub")).unwrap();
            fs::write(folder.join("sub/a"), "text").unwrap();
        }
        // Simulates an exchange after the links were resolved: beneath the descriptor there is a
        // link.
        fs::remove_dir_all(elsewhere.join("sub")).unwrap();
        symlink("../inner/sub", elsewhere.join("sub")).unwrap();
        let folder = OwnedFd::from(File::open(&elsewhere).unwrap());
        let root = fs::canonicalize(&root).unwrap();
        let refused = step_by_step(&folder, &root, Path::new("sub/a")).unwrap_err();
        assert!(matches!(refused, NotOpened::System(Errno::LOOP | Errno::NOTDIR)), "{refused:?}");
    }
}
