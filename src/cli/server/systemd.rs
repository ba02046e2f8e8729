//! systemd integration: status notifications (`sd_notify`) and socket activation.
//!
//! Without a `NOTIFY_SOCKET` the notifications do nothing.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use listenfd::ListenFd;
use rustix::io::FdFlags;
use sd_notify::NotifyState;

/// Set while clients are served; only then reloads are reported.
static IS_READY: AtomicBool = AtomicBool::new(false);

/// Reports that clients are served.
pub(crate) fn notify_ready() {
    IS_READY.store(true, Ordering::Relaxed);
    notify(&[NotifyState::Ready]);
}

/// Reports that a reload has started.
pub(crate) fn notify_reloading() {
    // systemd needs the time stamp to tell this reload from another one.
    if IS_READY.load(Ordering::Relaxed)
        && let Ok(now) = NotifyState::monotonic_usec_now()
    {
        notify(&[NotifyState::Reloading, now]);
    }
}

/// Reports that the reload has ended, successfully or not.
pub(crate) fn notify_reloaded() {
    if IS_READY.load(Ordering::Relaxed) {
        notify(&[NotifyState::Ready]);
    }
}

/// Reports that the process is stopping.
pub(crate) fn notify_stopping() {
    IS_READY.store(false, Ordering::Relaxed);
    notify(&[NotifyState::Stopping]);
}

/// Reports that another process is the main process of the service from now on.
pub(crate) fn notify_main_pid(process: u32) {
    IS_READY.store(false, Ordering::Relaxed);
    notify(&[NotifyState::MainPid(process)]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd notification failed");
    }
}

/// Takes the socket that systemd passes (`Sockets=` of the unit), if any. More than one socket is
/// an error.
pub(crate) fn activated_socket() -> io::Result<Option<TcpListener>> {
    let mut sockets = ListenFd::from_env();
    if sockets.len() > 1 {
        let text = "the socket unit has more than one socket, and Weir serves one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if sockets.len() == 0 {
        return Ok(None);
    }
    let socket = sockets.take_tcp_listener(0)?;
    if let Some(socket) = &socket {
        // systemd passes it without CLOEXEC, so child processes would inherit it.
        rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    }
    Ok(socket)
}
