//! Regular files, opened without blocking and read up to a bound.
//!
//! A path in the configuration or in the state folder may lead to a named pipe, a socket or a
//! device. Opening a named pipe blocks until another process opens its other end, and a device may
//! never end. Therefore every such path is opened here: without blocking, and the type of the
//! opened file is checked before use.
//!
//! There are two exceptions, each with a function of its own: descriptors that Weir was started
//! with (`/dev/stdin`, or `/dev/fd/63` as a shell writes it for `<(command)`), and character
//! devices opened for appending (`/dev/null`).

use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open as open_at};
use rustix::io::retry_on_intr;

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    open_if(path, OFlags::RDONLY, |kind| kind.is_file())
}

/// Opens a regular file for reading, or any descriptor other than a folder that Weir was started
/// with.
pub fn open_or_inherited(path: &Path) -> io::Result<File> {
    let is_inherited = is_inherited(path);
    open_if(path, OFlags::RDONLY, |kind| kind.is_file() || is_inherited && !kind.is_dir())
}

/// Opens a regular file for appending, or creates it, accessible to its owner only. Accepts a
/// character device and a descriptor that Weir was started with, too.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let is_inherited = is_inherited(path);
    open_if(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, |kind| {
        kind.is_file() || kind.is_char_device() || is_inherited && !kind.is_dir()
    })
}

/// Reads a complete regular file, if it is not larger than `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_all(open(path)?, max_bytes)
}

/// Reads a file that was opened here to its end, if it is not larger than `max_bytes`.
pub fn read_all(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let too_large = || {
        let text = format!("it is larger than {max_bytes} bytes");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
    };
    let size = file.metadata()?.len();
    if size > max_bytes {
        return too_large();
    }
    // One byte more than the file has: the buffer never grows, so a secret is never copied.
    let mut bytes = Vec::with_capacity(usize::try_from(size + 1).unwrap_or_default());
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes { too_large() } else { Ok(bytes) }
}

fn open_if(path: &Path, flags: OFlags, accepts: impl Fn(FileType) -> bool) -> io::Result<File> {
    let check = |kind: FileType| match accepts(kind) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is {}, not a regular file", name_of(kind)),
        )),
    };
    // The type is checked before opening, because opening a device can have an effect. A missing
    // file may be created.
    match fs::metadata(path) {
        Ok(about) => check(about.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let all = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = File::from(retry_on_intr(|| open_at(path, all, mode))?);
    // The type is checked again, because the file may have been replaced in between.
    let kind = file.metadata()?.file_type();
    check(kind)?;
    if !kind.is_file() {
        // Only opening must not block: reads from a pipe wait for data.
        let now = fcntl_getfl(&file)?;
        fcntl_setfl(&file, now - OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// Returns whether a path names a descriptor of this process.
fn is_inherited(path: &Path) -> bool {
    let streams = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    let folders = ["/dev/fd", "/proc/self/fd"];
    streams.iter().any(|name| path == Path::new(name))
        || folders.iter().any(|folder| path.parent() == Some(Path::new(folder)))
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn pipe(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        path
    }

    #[test]
    fn what_is_no_regular_file_is_named_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).expect("bound");
        let pipe = pipe(folder.path());
        for (path, name) in [
            (folder.path(), "a folder"),
            (&pipe, "a named pipe"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let expected = format!("it is {name}, not a regular file");
            assert_eq!(open(path).expect_err("refused").to_string(), expected);
            assert_eq!(open_or_inherited(path).expect_err("refused").to_string(), expected);
            assert_eq!(read(path, 10).expect_err("refused").to_string(), expected);
            if name != "a device" {
                assert_eq!(open_to_append(path).expect_err("refused").to_string(), expected);
            }
        }
        open_to_append(Path::new("/dev/null")).expect("a device is written to");
    }

    #[test]
    fn a_pipe_that_the_process_was_started_with_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let path = Path::new("/dev/fd").join(number.to_string());
        let writing = std::thread::spawn(move || writer.write_all(&[7; 100_000]));
        let bytes = read_all(open_or_inherited(&path).expect("opened"), 200_000).expect("read");
        assert_eq!(bytes, [7; 100_000]);
        writing.join().expect("joined").expect("written");
        assert_eq!(open(&path).expect_err("it is no file").kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_made_for_its_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert_eq!(read(&path, 3).expect_err("none").kind(), io::ErrorKind::NotFound);
        open_to_append(&path).expect("made").write_all(b"one").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path, 3).expect("it fits"), b"one");
        let refused = read(&path, 2).expect_err("it is larger");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(refused.to_string(), "it is larger than 2 bytes");
    }
}
