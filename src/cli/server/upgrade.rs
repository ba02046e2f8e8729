//! Graceful upgrade: passes the listening sockets to a successor process.
//!
//! The serving process starts its own program file again, with the same arguments and one end of a
//! socket pair as standard input. The listening sockets, the clients' and the admin listener's, are
//! passed through that pair; the successor reports there that it is ready. No other process
//! inherits a descriptor, and none of this needs `unsafe`.
//!
//! Invariants: at every moment at least one of the two processes listens; a successor that does
//! not become ready is ended, and the old process keeps serving.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use weir_downstream::http::ListenSocket;
use weir_oauth::RESPONSE_TIMEOUT;

/// Variable that is set for a process that receives its sockets through standard input. The value
/// says whether another process than the predecessor, such as systemd, also has the socket open.
const HANDOVER_VARIABLE: &str = "WEIR_HANDOVER";
const SHARED: &str = "shared";
const ALONE: &str = "alone";

/// Time limit for the successor to become ready: it reads its configuration and lists its
/// upstreams.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for a successor to end: that for an answer, and a moment.
const END_TIMEOUT: Duration = RESPONSE_TIMEOUT.saturating_add(Duration::from_secs(5));

/// Program file and arguments of this process.
pub(crate) struct LaunchCommand {
    /// Path of the program file at the start; the successor runs the file that is there later.
    program: io::Result<PathBuf>,
    arguments: Vec<OsString>,
}

impl LaunchCommand {
    /// Records both before the file is replaced.
    pub(crate) fn from_environment() -> Self {
        Self { program: std::env::current_exe(), arguments: std::env::args_os().skip(1).collect() }
    }

    /// Starts the successor with the socket and the admin socket, and returns its process id once
    /// it is ready, or `None` once `stop` is. On an error and after `stop` the successor has ended.
    pub(crate) async fn start_successor(
        &self,
        socket: &ListenSocket,
        operators: Option<&OwnedFd>,
        stop: impl Future<Output = u8>,
    ) -> Result<Option<u32>, String> {
        if std::process::id() == 1 {
            return Err("this process is PID 1 of its container, which ends with it".into());
        }
        let program = self
            .program
            .as_ref()
            .map_err(|error| format!("path of the program unknown: {error}"))?;
        let failed = |error: io::Error| format!("{}: {error}", program.display());
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let operators = operators.map(AsFd::as_fd);
        let sockets: Vec<_> = [Some(socket.as_fd()), operators].into_iter().flatten().collect();
        send(&ours, &sockets).map_err(failed)?;
        let mut command = Command::new(program);
        let holds = if socket.is_shared() { SHARED } else { ALONE };
        command.args(&self.arguments).env(HANDOVER_VARIABLE, holds);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        // `Command` holds the successor's end of the pair; closed here, the pair reports its exit.
        drop(command);
        ours.set_nonblocking(true).map_err(failed)?;
        let mut ours = tokio::net::UnixStream::from_std(ours).map_err(failed)?;
        let mut word = [0; 1];
        let read = tokio::select! {
            read = tokio::time::timeout(READY_TIMEOUT, ours.read(&mut word)) => read,
            _ = stop => {
                end(&mut child).await;
                return Ok(None);
            }
        };
        match read {
            Ok(Ok(1)) => {}
            Ok(_) => {
                let _ = child.start_kill();
                let how = child.wait().await.map_err(failed)?;
                return Err(format!("the new process ended before it was ready: {how}"));
            }
            Err(_) => {
                end(&mut child).await;
                let seconds = READY_TIMEOUT.as_secs();
                return Err(format!("the new process was not ready within {seconds} s"));
            }
        }
        let number = child.id().ok_or("the new process has ended already")?;
        // `kill_on_drop` must not apply any more.
        std::mem::forget(child);
        Ok(Some(number))
    }
}

/// Ends a successor. It may wait for the answer of an authorization server, as any process of Weir
/// does when it stops.
async fn end(successor: &mut Child) {
    if let Some(id) = successor.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // A failure means that it has ended.
        let _ = kill_process(id, Signal::TERM);
    }
    if tokio::time::timeout(END_TIMEOUT, successor.wait()).await.is_err() {
        let _ = successor.kill().await;
    }
}

/// Sockets that a process received from its predecessor.
pub(crate) struct InheritedSockets {
    pub(crate) socket: ListenSocket,
    /// Admin socket, if the predecessor had one.
    pub(crate) operators: Option<TcpListener>,
}

/// Receives the sockets from the predecessor, if there is one.
pub(crate) fn inherited_sockets() -> io::Result<Option<InheritedSockets>> {
    let Some(holds) = std::env::var_os(HANDOVER_VARIABLE) else { return Ok(None) };
    let mut sockets = receive(std::io::stdin())?.into_iter();
    let nothing = || io::Error::new(io::ErrorKind::InvalidInput, "no socket was received");
    let socket = ListenSocket::from_std(sockets.next().ok_or_else(nothing)?.into())?;
    if holds == SHARED {
        socket.share();
    }
    Ok(Some(InheritedSockets { socket, operators: sockets.next().map(TcpListener::from) }))
}

/// Reports to the predecessor, if there is one, that this process is ready.
pub(crate) fn notify_ready_to_predecessor() {
    if std::env::var_os(HANDOVER_VARIABLE).is_some() {
        // A failure means that the predecessor has ended; it needs no report.
        let _ = rustix::io::write(std::io::stdin(), b"r");
    }
}

fn send(over: &UnixStream, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    sendmsg(over, &[IoSlice::new(b"s")], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive(from: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 1];
    recvmsg(from, &mut [IoSliceMut::new(&mut word)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let sockets = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
        _ => None,
    });
    Ok(sockets.flatten().collect())
}
