//! Socket for operators of a process without a port: `weir stdio`, of which each client starts one.
//!
//! It lies in the folder `run` of the state folder, and is named by the configuration, the machine
//! and the process. A client sends one line first, which says what it wants, then a request as at
//! the listener. The user id takes the place of the token.
//!
//! Invariants: processes of another user, apart from root, are disconnected before a byte is read.
//! A folder that others can write to is not used, and nothing of another process is removed. The
//! first line and the wait for it are bounded.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, socket};
use rustix::process::geteuid;
use rustix::system::uname;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::Admin;
use super::connections::Connections;
use super::listener::serve_connection;
use weir_base::files::regular_file;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Listening socket of this process. The file is removed when this is dropped.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// First line of a connection.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Preface {
    /// Version of the exchange.
    weir: u32,
    /// Whether a request for operators follows.
    admin: bool,
}

impl AdminSocket {
    /// Opens the socket of this process for a configuration. Blocks.
    pub fn open(state: &Path, configuration: &str) -> io::Result<Self> {
        let folder = state.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        check_folder(&folder)?;
        let path = path_in(&folder, configuration, std::process::id())?;
        for old in find(state, configuration) {
            // Nothing listens at the socket of a process that was killed.
            if is_refused(&old) {
                let _ = fs::remove_file(old);
            }
        }
        Ok(Self { listener: UnixListener::bind(&path)?, path })
    }

    /// Serves operators until `stop`. Connections run on `tracker`.
    pub async fn serve(self, admin: Arc<Admin>, tracker: TaskTracker, stop: CancellationToken) {
        let connections = Connections::default();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            let stream = match accepted {
                Ok((stream, _)) if is_own_user(&stream) => stream,
                Ok(_) => {
                    debug!("connection of another user to the socket for operators closed");
                    continue;
                }
                Err(error) => {
                    debug!(%error, "connection to the socket for operators not accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = connections.open(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let (admin, stop) = (Arc::clone(&admin), stop.clone());
            tracker.spawn(async move {
                let work = async {
                    let mut stream = BufReader::new(stream);
                    if read_preface(&mut stream).await.is_some() {
                        serve_connection(admin, stream, &connection, true, &stop).await;
                    }
                };
                tokio::select! {
                    () = work => {}
                    () = connection.closed() => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the sockets of all processes of a configuration on this machine, the newest first. That
/// of a process that was killed may be among them.
pub fn find(state: &Path, configuration: &str) -> Vec<PathBuf> {
    let (folder, prefix) = (state.join(FOLDER), format!("{}.", identity(configuration)));
    if check_folder(&folder).is_err() {
        return Vec::new();
    }
    let is_socket = |name: &str| name.starts_with(&prefix) && name.ends_with(".sock");
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_socket))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    found.into_iter().rev().take(MAX_PROCESSES).map(|(_, path)| path).collect()
}

/// Fails if a process of a configuration could not open a socket, as far as that can be seen before
/// it does.
pub fn check(state: &Path, configuration: &str) -> io::Result<()> {
    let folder = state.join(FOLDER);
    path_in(&folder, configuration, std::process::id())?;
    match check_folder(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        checked => checked,
    }
}

/// Connects to a socket for a request of an operator. Fails at once if so many others wait for the
/// process that no more can.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    use tokio::io::AsyncWriteExt;

    let mut stream = UnixStream::connect(path).await?;
    if !is_own_user(&stream) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is of another user"));
    }
    let mut line = serde_json::to_vec(&Preface { weir: VERSION, admin: true })?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    Ok(stream)
}

/// Reads the first line; `None` if it does not ask for the routes of operators.
async fn read_preface(stream: &mut BufReader<UnixStream>) -> Option<Preface> {
    let mut line = Vec::new();
    let mut bounded = stream.take(MAX_PREFACE_BYTES);
    let read = timeout(PREFACE_TIMEOUT, bounded.read_until(b'\n', &mut line)).await;
    read.ok()?.ok()?;
    let preface: Preface = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    (preface.weir == VERSION && preface.admin).then_some(preface)
}

/// Returns whether the other end is a process of this user, or of root.
fn is_own_user(stream: &UnixStream) -> bool {
    let own = geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

/// Fails unless a folder belongs to this user and no other can write to it.
fn check_folder(folder: &Path) -> io::Result<()> {
    let about = fs::symlink_metadata(folder)?;
    let is_safe = about.is_dir() && about.uid() == geteuid().as_raw() && about.mode() & 0o022 == 0;
    match is_safe {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is not a folder that only this user can write to", folder.display()),
        )),
    }
}

/// Returns the path of the socket of a process.
fn path_in(folder: &Path, configuration: &str, process: u32) -> io::Result<PathBuf> {
    let path = folder.join(format!("{}.{process}.sock", identity(configuration)));
    match path.as_os_str().len() > MAX_PATH_BYTES {
        true => Err(io::Error::new(io::ErrorKind::InvalidFilename, "the path is too long")),
        false => Ok(path),
    }
}

/// Returns whether nothing listens at a socket. Does not wait for a process that is stopped while
/// others wait for it.
fn is_refused(path: &Path) -> bool {
    let connect = || -> Result<(), Errno> {
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    connect() == Err(Errno::CONNREFUSED)
}

/// Returns the part of a name that the processes of one configuration on one machine share. A home
/// folder may be shared by several machines.
fn identity(configuration: &str) -> String {
    let about = uname();
    let machine = about.nodename().to_bytes();
    let boot = regular_file::read(Path::new("/proc/sys/kernel/random/boot_id"), MAX_BOOT_ID_BYTES);
    let boot = boot.unwrap_or_default();
    let user = geteuid().as_raw().to_be_bytes();
    let parts = [configuration.as_bytes(), machine, &boot, &user].map(sha256).concat();
    hex(&sha256(parts)[..8])
}

const FOLDER: &str = "run";
/// Version of the exchange; another one is disconnected.
const VERSION: u32 = 1;
/// Longest first line.
const MAX_PREFACE_BYTES: u64 = 16 << 10;
/// Time for the first line.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BOOT_ID_BYTES: u64 = 64;
/// Longest path of a socket; the smallest limit of a kernel is 104.
const MAX_PATH_BYTES: usize = 100;
/// Pause of the accept loop after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Processes of one configuration that are found; a client starts one per window.
const MAX_PROCESSES: usize = 256;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_found_by_its_configuration_until_its_process_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path();
        assert!(find(state, "/a").is_empty());
        let socket = AdminSocket::open(state, "/a").expect("opened");
        assert_eq!(find(state, "/a"), std::slice::from_ref(&socket.path));
        assert!(find(state, "/b").is_empty());
        connect(&socket.path).await.expect("it listens");
        drop(socket);
        assert!(find(state, "/a").is_empty());

        // A process that was killed leaves its file.
        let left = state.join(FOLDER).join(format!("{}.1.sock", identity("/a")));
        drop(std::os::unix::net::UnixListener::bind(&left).expect("bound"));
        assert_eq!(find(state, "/a"), [left]);
        let socket = AdminSocket::open(state, "/a").expect("opened");
        assert_eq!(find(state, "/a"), std::slice::from_ref(&socket.path));
    }

    #[tokio::test]
    async fn a_stopped_process_for_which_many_wait_holds_up_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join(FOLDER);
        DirBuilder::new().mode(0o700).create(&run).expect("made");
        let path = run.join(format!("{}.1.sock", identity("/a")));
        // It accepts nothing, so one connection more than its backlog fills it.
        let stopped = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        let address = SocketAddrUnix::new(path.as_path()).expect("it is short");
        rustix::net::bind(&stopped, &address).expect("bound");
        rustix::net::listen(&stopped, 0).expect("it listens");
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        assert!(connect(&path).await.is_err());
        let socket = AdminSocket::open(folder.path(), "/a").expect("opened");
        assert!(path.exists() && find(folder.path(), "/a").contains(&socket.path));
    }

    #[tokio::test]
    async fn a_folder_that_others_can_change_is_not_used_and_nothing_in_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join(FOLDER);
        fs::create_dir(&run).expect("made");
        let planted = run.join(format!("{}.1.sock", identity("/a")));
        fs::write(&planted, "").expect("written");
        fs::set_permissions(&run, fs::Permissions::from_mode(0o777)).expect("set");
        assert!(AdminSocket::open(folder.path(), "/a").is_err());
        assert!(find(folder.path(), "/a").is_empty() && planted.exists());

        fs::remove_dir_all(&run).expect("removed");
        let elsewhere = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(elsewhere.path(), &run).expect("linked");
        assert!(AdminSocket::open(folder.path(), "/a").is_err());
    }

    #[tokio::test]
    async fn a_first_line_that_asks_for_something_else_is_not_answered() {
        use tokio::io::AsyncWriteExt;

        for line in ["", "GET /status HTTP/1.1", r#"{"weir":2,"admin":true}"#, r#"{"weir":1}"#] {
            let (mut ours, theirs) = UnixStream::pair().expect("a pair");
            ours.write_all(line.as_bytes()).await.expect("written");
            ours.write_all(b"\n").await.expect("written");
            assert_eq!(read_preface(&mut BufReader::new(theirs)).await, None, "{line}");
        }
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let endless = tokio::spawn(async move {
            // It ends when the other end is closed.
            while ours.write_all(&[b'x'; 1024]).await.is_ok() {}
        });
        assert_eq!(read_preface(&mut BufReader::new(theirs)).await, None);
        endless.await.expect("it ends");
    }
}
