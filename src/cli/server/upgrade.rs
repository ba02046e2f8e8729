//! Handing the listening sockets to a new program, so that an upgrade refuses nobody.
//!
//! The one that serves starts the program anew, from the file that it was started from itself, with the same arguments and
//! one end of a pair of sockets as its standard input. The listening sockets, clients' and operators', come through that
//! pair; when the new one is ready it says so there. Nobody but it inherits a descriptor, and nothing of this needs `unsafe`.
//!
//! Promises: there is a moment at which both listen, and none at which nobody does; a new program that does not get
//! ready is ended, and the old one serves on as if nothing had been.
//!
//! Knows nothing of: what the doors do with a socket.

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
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::downstream::http::Socket;

/// Set for a program that gets its socket through its standard input, and to what: whether somebody holds the socket
/// beside the one that hands it over.
const HANDED: &str = "WEIR_HANDOVER";
const SHARED: &str = "shared";
const ALONE: &str = "alone";

/// How long a new program may take until it is ready: reading its configuration, and listing its upstreams.
const PATIENCE: Duration = Duration::from_secs(60);

/// How this program was started.
pub(crate) struct Start {
    /// Where it lay then: whatever lies there when a new one is started is the new one.
    program: io::Result<PathBuf>,
    arguments: Vec<OsString>,
}

impl Start {
    /// Remembers it, for when the file has been replaced.
    pub(crate) fn of_this() -> Self {
        Self { program: std::env::current_exe(), arguments: std::env::args_os().skip(1).collect() }
    }

    /// Starts the program anew with this socket, and the one for operators, and returns its process number once it is
    /// ready. An error says why it is not; then it has been ended. Dropped before it is ready, it ends it, too.
    pub(crate) async fn anew(
        &self,
        socket: &Socket,
        operators: Option<&OwnedFd>,
    ) -> Result<u32, String> {
        if std::process::id() == 1 {
            return Err("this is the first process of its container, which ends with it".into());
        }
        let program = self.program.as_ref().map_err(|error| format!("where is it? {error}"))?;
        let failed = |error: io::Error| format!("{}: {error}", program.display());
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let operators = operators.map(AsFd::as_fd);
        let sockets: Vec<_> = [Some(socket.as_fd()), operators].into_iter().flatten().collect();
        send(&ours, &sockets).map_err(failed)?;
        let mut command = Command::new(program);
        let holds = if socket.is_shared() { SHARED } else { ALONE };
        command.args(&self.arguments).env(HANDED, holds);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        // It holds its own end, and its end is the end of that.
        drop(command);
        ours.set_nonblocking(true).map_err(failed)?;
        let mut ours = tokio::net::UnixStream::from_std(ours).map_err(failed)?;
        let mut word = [0; 1];
        let read = tokio::time::timeout(PATIENCE, ours.read(&mut word)).await;
        match read {
            Ok(Ok(1)) => {}
            Ok(_) => {
                let _ = child.start_kill();
                let how = child.wait().await.map_err(failed)?;
                return Err(format!("it has not got ready: {how}"));
            }
            Err(_) => {
                return Err(format!("it has not got ready within {} s", PATIENCE.as_secs()));
            }
        }
        let number = child.id().ok_or("it has ended already")?;
        // Its life does not depend on ours any more.
        std::mem::forget(child);
        Ok(number)
    }
}

/// What was handed to a program.
pub(crate) struct Handed {
    pub(crate) socket: Socket,
    /// Where operators ask, if they could before.
    pub(crate) operators: Option<TcpListener>,
}

/// The sockets that were handed to this program, if any were.
pub(crate) fn taken_over() -> io::Result<Option<Handed>> {
    let Some(holds) = std::env::var_os(HANDED) else { return Ok(None) };
    let mut sockets = receive(std::io::stdin())?.into_iter();
    let nothing = || io::Error::new(io::ErrorKind::InvalidInput, "nothing was handed over");
    let socket = Socket::from_std(sockets.next().ok_or_else(nothing)?.into())?;
    if holds == SHARED {
        socket.share();
    }
    Ok(Some(Handed { socket, operators: sockets.next().map(TcpListener::from) }))
}

/// Tells the program before this one, if there is one, that this one is ready.
pub(crate) fn tell_ready() {
    if std::env::var_os(HANDED).is_some() {
        // Who is not there any more need not be told.
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
