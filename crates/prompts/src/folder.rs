//! Prompt folder on disk: the only module that opens its files.
//!
//! Invariants: no byte comes from outside the folder, whatever a prompt's text, a symbolic link or
//! a `..` says, and whatever is exchanged in the folder during a reading; nothing in the folder can
//! block the reading thread; the sizes of files and folder are bounded; and the state of every
//! requested file is recorded, so that a change can be detected.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Dir, Mode, OFlags, open};

use super::beneath::{self, NotOpened};

/// State of a file for change detection; `None` if the file does not exist.
type FileStamp = Option<(u64, SystemTime)>;

/// State of each file that a reading requested, by path within the folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps(BTreeMap<PathBuf, FileStamp>);

/// Folder during one reading.
pub(super) struct Folder {
    /// Files are listed and opened relative to this descriptor, so a changed path has no effect.
    descriptor: OwnedFd,
    /// Its path with all links resolved.
    root: PathBuf,
    bytes_left: u64,
    /// State of every file that was requested in this reading.
    pub(super) stamps: Stamps,
}

impl Folder {
    /// Opens the folder and resolves the links on the way to it.
    pub(super) fn open(dir: &Path) -> io::Result<Folder> {
        let root = fs::canonicalize(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = open(&root, flags, Mode::empty())?;
        Ok(Folder { descriptor, root, bytes_left: MAX_FOLDER_BYTES, stamps: Stamps::default() })
    }

    /// Name of the folder, which distinguishes the files of two libraries.
    pub(super) fn name(&self) -> String {
        self.root
            .file_name()
            .map_or_else(|| "library".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Returns the names of the prompt files, sorted; one more than the bound if there are more.
    ///
    /// Names that begin with a dot belong to editors or tools, and `README.md` is for people.
    pub(super) fn prompt_files(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in Dir::read_from(&self.descriptor)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && is_prompt_file(name)
            {
                names.insert(name.to_owned());
            }
            if names.len() > MAX_PROMPT_FILES + 1 {
                names.pop_last();
            }
        }
        Ok(names)
    }

    /// Reads a prompt, or a file that a prompt names, by its path within the folder. The error is a
    /// text for the author.
    pub(super) fn read(&mut self, path: &str) -> Result<Vec<u8>, String> {
        let within = relative_path(path)?;
        // The stamp is taken before the bytes: the next check finds a change in between.
        self.stamps.0.insert(within.clone(), stamp(&self.root.join(&within)));
        let opened = beneath::open(&self.descriptor, &self.root, &within);
        let file = opened.map_err(|why| match why {
            NotOpened::Outside => format!("`{path}` leads out of the folder"),
            NotOpened::NotAFile => format!("`{path}` is not a file"),
            NotOpened::System(error) => format!("`{path}`: {}", io::Error::from(error)),
        })?;
        let mut bytes = Vec::new();
        let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("`{path}`: {error}"))?;
        let length = bytes.len() as u64;
        if length > MAX_FILE_BYTES {
            return Err(format!("`{path}` is larger than {} KiB", MAX_FILE_BYTES >> 10));
        }
        self.bytes_left = self.bytes_left.checked_sub(length).ok_or_else(|| {
            format!(
                "with `{path}` the folder's files are larger than {} MiB",
                MAX_FOLDER_BYTES >> 20
            )
        })?;
        Ok(bytes)
    }
}

impl Stamps {
    /// Whether a reading depends on the content of a file with this name.
    pub(super) fn concern(&self, name: &OsStr) -> bool {
        name.to_str().is_some_and(is_prompt_file)
            || self.0.keys().any(|path| path.file_name() == Some(name))
    }
}

/// Whether a file in the folder itself is a prompt, by its name.
fn is_prompt_file(name: &str) -> bool {
    name.ends_with(".md") && !name.starts_with('.') && !name.eq_ignore_ascii_case("readme.md")
}

/// Returns the folder's current state, limited to what a reading with the stamps `last` depends on.
pub(super) fn current_stamps(dir: &Path, last: &Stamps) -> io::Result<Stamps> {
    let folder = Folder::open(dir)?;
    let listed = folder.prompt_files()?.into_iter().take(MAX_PROMPT_FILES).map(PathBuf::from);
    let with_stamp = |path: PathBuf| {
        let stamp = stamp(&folder.root.join(&path));
        (path, stamp)
    };
    Ok(Stamps(last.0.keys().cloned().chain(listed).map(with_stamp).collect()))
}

fn stamp(path: &Path) -> FileStamp {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// Converts a path to one without upward components; [`Folder::read`] resolves links.
fn relative_path(path: &str) -> Result<PathBuf, String> {
    let mut within = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            // A backslash is a separator on Windows only: the path would name two different files.
            Component::Normal(name) if !path.contains(['\\', '\0']) => within.push(name),
            Component::CurDir => {}
            _ => return Err(format!("`{path}` is not a path within the folder")),
        }
    }
    if within.as_os_str().is_empty() {
        Err("the path of the file is missing".to_owned())
    } else {
        Ok(within)
    }
}

const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_FOLDER_BYTES: u64 = 32 << 20;
/// Maximum prompts of a folder: no user reads a longer list.
pub(super) const MAX_PROMPT_FILES: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir_all(inner.join("sub")).unwrap();
        fs::write(dir.path().join("secret.txt"), "secret").unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("../secret.txt", inner.join("link.txt")).unwrap();
            std::os::unix::fs::symlink("..", inner.join("up")).unwrap();
        }
        Folder::open(&inner).unwrap().read(path).unwrap_err()
    }

    #[test]
    fn no_path_leaves_the_folder() {
        for path in ["../secret.txt", "sub/../../secret.txt", "/etc/passwd", "..", "sub\\..\\x"] {
            assert_eq!(refused(path), format!("`{path}` is not a path within the folder"));
        }
        assert_eq!(refused(""), "the path of the file is missing");
        assert_eq!(refused("sub"), "`sub` is not a file");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_out_of_the_folder_is_refused() {
        assert_eq!(refused("link.txt"), "`link.txt` leads out of the folder");
        assert_eq!(refused("up/secret.txt"), "`up/secret.txt` leads out of the folder");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_within_the_folder_is_followed() {
        // A ConfigMap mount in Kubernetes: each name is a link through a hidden folder.
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("..2026")).unwrap();
        fs::write(dir.path().join("..2026/a.md"), "text").unwrap();
        std::os::unix::fs::symlink("..2026", dir.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.md", dir.path().join("a.md")).unwrap();
        let mut folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.prompt_files().unwrap(), BTreeSet::from(["a.md".to_owned()]));
        assert_eq!(folder.read("a.md").unwrap(), b"text");
    }

    #[test]
    fn files_and_folders_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("large"), vec![0; (MAX_FILE_BYTES + 1) as usize]).unwrap();
        fs::write(dir.path().join("fits"), vec![0; MAX_FILE_BYTES as usize]).unwrap();
        let mut folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.read("large").unwrap_err(), "`large` is larger than 1024 KiB");
        for _ in 0..32 {
            folder.read("fits").unwrap();
        }
        assert_eq!(
            folder.read("fits").unwrap_err(),
            "with `fits` the folder's files are larger than 32 MiB"
        );
    }

    #[test]
    fn only_markdown_files_that_are_prompts_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.md", "a.md", ".hidden.md", "README.md", "a.md~", "a.txt"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let listed: Vec<String> =
            Folder::open(dir.path()).unwrap().prompt_files().unwrap().into_iter().collect();
        assert_eq!(listed, ["a.md", "b.md"]);
    }

    #[test]
    fn sub_folders_are_not_searched_for_prompts() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/b.md"), "").unwrap();
        fs::write(dir.path().join("a.md"), "").unwrap();
        let listed = Folder::open(dir.path()).unwrap().prompt_files().unwrap();
        assert_eq!(listed, BTreeSet::from(["a.md".to_owned()]));
    }

    #[test]
    fn a_look_notices_a_change_a_removal_and_a_missing_attachment_that_comes() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "a").unwrap();
        fs::write(dir.path().join("b.md"), "b").unwrap();
        let mut folder = Folder::open(dir.path()).unwrap();
        folder.read("a.md").unwrap();
        folder.read("b.md").unwrap();
        folder.read("image.png").unwrap_err();
        let last = folder.stamps;
        let current_stamps = || current_stamps(dir.path(), &last).unwrap();
        assert_eq!(current_stamps(), last);
        fs::write(dir.path().join("image.png"), "").unwrap();
        assert_ne!(current_stamps(), last);
        fs::remove_file(dir.path().join("image.png")).unwrap();
        fs::write(dir.path().join("a.md"), "longer").unwrap();
        assert_ne!(current_stamps(), last);
        fs::write(dir.path().join("a.md"), "a").unwrap();
        fs::remove_file(dir.path().join("b.md")).unwrap();
        assert_eq!(current_stamps().0.get(Path::new("b.md")), Some(&None));
    }

    /// Exchanges two names within a folder repeatedly while `read` runs; gives up after a while.
    #[cfg(target_os = "linux")]
    fn while_exchanged(dir: &Path, names: [&str; 2], read: impl FnOnce() + Send + 'static) {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let [one, other] = names.map(|name| dir.join(name));
        let (ended, wait) = std::sync::mpsc::channel();
        let reading = std::thread::spawn(move || {
            read();
            let _ = ended.send(());
        });
        let begin = std::time::Instant::now();
        while let Err(std::sync::mpsc::TryRecvError::Empty) = wait.try_recv() {
            assert!(begin.elapsed().as_secs() < 60, "the reading thread is blocked");
            renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        }
        reading.join().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_is_exchanged_with_a_link_while_it_is_read_gives_no_outside_text() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        for (folder, text) in [("inner/sub", "inside"), ("outside", "outside")] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("a.txt"), text).unwrap();
        }
        let exchanged = inner.clone();
        for link in ["../outside".to_owned(), dir.path().join("outside").display().to_string()] {
            std::os::unix::fs::symlink(link, inner.join("link")).unwrap();
            let inner = inner.clone();
            while_exchanged(&exchanged, ["sub", "link"], move || {
                let mut texts = 0;
                for _ in 0..20_000 {
                    if let Ok(text) = Folder::open(&inner).unwrap().read("sub/a.txt") {
                        assert_eq!(String::from_utf8(text).unwrap(), "inside");
                        texts += 1;
                    }
                }
                assert!(texts > 0, "some of the reads met the folder itself");
            });
            // Either of the two names may be the link now.
            if fs::remove_file(exchanged.join("link")).is_err() {
                fs::rename(exchanged.join("link"), exchanged.join("folder")).unwrap();
                fs::remove_file(exchanged.join("sub")).unwrap();
                fs::rename(exchanged.join("folder"), exchanged.join("sub")).unwrap();
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_is_exchanged_with_a_named_pipe_while_it_is_read_blocks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "text").unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
        assert!(pipe.unwrap().success());
        let folder = dir.path().to_owned();
        while_exchanged(dir.path(), ["a.md", "pipe"], move || {
            for _ in 0..20_000 {
                match Folder::open(&folder).unwrap().read("a.md") {
                    Ok(text) => assert_eq!(text, b"text"),
                    Err(what) => assert_eq!(what, "`a.md` is not a file"),
                }
            }
        });
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_back_into_the_folder_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir_all(inner.join("sub")).unwrap();
        fs::write(inner.join("sub/a.txt"), "text").unwrap();
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, inner.join(name)).unwrap();
        };
        link(&inner.join("sub"), "absolute");
        link(Path::new("../inner/sub"), "around");
        let mut folder = Folder::open(&inner).unwrap();
        for path in ["absolute/a.txt", "around/a.txt"] {
            assert_eq!(folder.read(path).unwrap(), b"text", "{path}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
        assert!(pipe.unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let mut folder = Folder::open(dir.path()).unwrap();
        for name in ["pipe", "socket"] {
            assert_eq!(folder.read(name).unwrap_err(), format!("`{name}` is not a file"));
        }
    }
}
