//! What whoever keeps Weir running is told, and what it hands us: systemd's own words.
//!
//! Without a `NOTIFY_SOCKET` all of it does nothing.
//!
//! Knows nothing of: when any of it is so.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use listenfd::ListenFd;
use rustix::io::FdFlags;
use sd_notify::NotifyState;

/// Whether clients are served: then it can be told of a reload.
static IS_READY: AtomicBool = AtomicBool::new(false);

/// Clients are served from now on.
pub(crate) fn ready() {
    IS_READY.store(true, Ordering::Relaxed);
    tell(&[NotifyState::Ready]);
}

/// The configuration is read again.
pub(crate) fn reloading() {
    // Since when it is, or it could be told of another one.
    if IS_READY.load(Ordering::Relaxed)
        && let Ok(now) = NotifyState::monotonic_usec_now()
    {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// That has ended, whatever became of it.
pub(crate) fn reloaded() {
    if IS_READY.load(Ordering::Relaxed) {
        tell(&[NotifyState::Ready]);
    }
}

/// Nobody new is served from now on.
pub(crate) fn stopping() {
    IS_READY.store(false, Ordering::Relaxed);
    tell(&[NotifyState::Stopping]);
}

/// Another process is the service from now on, and this one ends.
pub(crate) fn handed_to(process: u32) {
    IS_READY.store(false, Ordering::Relaxed);
    tell(&[NotifyState::MainPid(process)]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the supervisor was not told");
    }
}

/// The socket that systemd listens at for us (`Sockets=` of the unit), if it does. It has one address; an error if
/// there are more.
pub(crate) fn activated() -> io::Result<Option<TcpListener>> {
    let mut sockets = ListenFd::from_env();
    if sockets.len() > 1 {
        let text = "one socket is served, and the socket unit has more";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if sockets.len() == 0 {
        return Ok(None);
    }
    let socket = sockets.take_tcp_listener(0)?;
    if let Some(socket) = &socket {
        // It comes open for whatever this process starts, too.
        rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    }
    Ok(socket)
}
