//! Listening socket: the accept loop, and the connections in the backlog at shutdown.
//!
//! Invariants: the accept loop neither ends on an error nor spins; connections that the kernel has
//! accepted before the shutdown are answered, unless another process listens on the same socket and
//! accepts them.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::ServerStateCell;
use crate::http::connection::replicas::ReplicaListener;
use crate::http::connection::tls::Tls;
use crate::http::connection::workers::Workers;
use crate::http::{serve_connection, serve_replica, serve_tls};
use weir_base::tasks::sync::Mutex;
use weir_base::time::backoff::Backoff;

/// Listening socket. All clones share it; it closes with the last of them.
#[derive(Clone)]
pub struct ListenSocket(Arc<SharedListener>);

struct SharedListener {
    listener: TcpListener,
    /// True if another process listens on the socket, too.
    is_shared: AtomicBool,
}

impl ListenSocket {
    /// Wraps a socket of the standard library.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::from)
    }

    /// Records that another process listens on the socket, or will: the backlog is left to it at
    /// shutdown.
    pub fn share(&self) {
        self.0.is_shared.store(true, Ordering::Release);
    }

    /// True if another process listens on the socket.
    pub fn is_shared(&self) -> bool {
        self.0.is_shared.load(Ordering::Acquire)
    }

    /// Local address of the socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.listener.local_addr()
    }

    /// Accepts all connections in the backlog, without waiting.
    fn backlog(&self) -> impl Iterator<Item = TcpStream> {
        let accept = || accept_with(&self.0.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        std::iter::from_fn(move || accept().ok())
            .filter_map(|stream| TcpStream::from_std(stream.into()).ok())
    }
}

impl From<TcpListener> for ListenSocket {
    fn from(listener: TcpListener) -> Self {
        Self(Arc::new(SharedListener { listener, is_shared: AtomicBool::new(false) }))
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.listener.as_fd()
    }
}

/// Peers of a listener, and how their connections are secured.
#[derive(Clone)]
pub enum ListenerPeers {
    /// Clients.
    Plain,
    /// Clients, with TLS.
    Tls(Arc<Tls>),
    /// Other replicas of the fleet.
    Replicas(ReplicaListener),
}

impl From<Option<Arc<Tls>>> for ListenerPeers {
    fn from(tls: Option<Arc<Tls>>) -> Self {
        tls.map_or(Self::Plain, Self::Tls)
    }
}

/// Accepts connections until shutdown and serves each in a task of its own on one of the `workers`.
/// At most `max_connections` are open; further ones wait in the kernel's backlog.
///
/// Never ends on an error: the causes are temporary (a client that left, no free file descriptors),
/// so the loop waits and tries again.
pub async fn accept_loop(
    socket: impl Into<ListenSocket>,
    peers: impl Into<ListenerPeers>,
    max_connections: usize,
    state_cell: Arc<ServerStateCell>,
    workers: Arc<Workers>,
) {
    let (socket, peers) = (socket.into(), peers.into());
    // These values are the same under every configuration. Keeping the state itself would keep the
    // first configuration in memory.
    let (tasks, stop) = {
        let state = state_cell.now();
        (state.tracker.clone(), state.stop.clone())
    };
    let evict_at_once = max_connections.div_ceil(8);
    let permits = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    if let ListenerPeers::Tls(tls) = &peers {
        let (tls, ending) = (Arc::clone(tls), stop.clone());
        tasks.spawn(async move { tls.watch(&ending).await });
    }
    let spawn = |stream, permit| {
        spawn_connection(&tasks, &workers, &state_cell, peers.clone(), stream, permit)
    };
    let reserve = ReserveFd::open();
    let mut backoff = ACCEPT_BACKOFF;
    // Without a permit, a connection waits in the kernel.
    let permit = || acquire_permit(&permits, evict_at_once, &state_cell);
    while let Some(accepted) = accept(&socket.0.listener, &stop, permit()).await {
        match accepted {
            Ok((stream, _, permit)) => {
                backoff.reset();
                spawn(stream, Some(permit));
            }
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                warn!(%error, "cannot accept connections, retrying");
                // The oldest connection in the backlog is accepted and closed, so that its client
                // does not wait in vain.
                if is_fd_limit(&error) && reserve.release() {
                    drop(accept_with(&socket.0.listener, SocketFlags::CLOEXEC));
                }
                reserve.hold();
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(backoff.next_pause()) => {}
                }
            }
        }
    }
    if !socket.is_shared() {
        // Closing the socket would reset these connections, and requests that they may have sent
        // already.
        socket.backlog().for_each(|stream| spawn(stream, None));
    }
}

/// Waits for a permit, and then accepts the next connection; `None` once `stop` fires.
pub async fn accept<R>(
    listener: &TcpListener,
    stop: &CancellationToken,
    permit: impl Future<Output = R>,
) -> Option<io::Result<(TcpStream, SocketAddr, R)>> {
    let accepting = async {
        let permit = permit.await;
        listener.accept().await.map(|(stream, peer)| (stream, peer, permit))
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        accepted = accepting => Some(accepted),
    }
}

/// Waits for a connection permit. While there is none, idle connections are closed, `evict_at_once`
/// at a time.
async fn acquire_permit(
    permits: &Arc<Semaphore>,
    evict_at_once: usize,
    state_cell: &ServerStateCell,
) -> OwnedSemaphorePermit {
    loop {
        let acquiring = Arc::clone(permits).acquire_owned();
        match timeout(EVICTION_INTERVAL, acquiring).await {
            Ok(permit) => return permit.expect("the semaphore is never closed"),
            Err(_) => state_cell.now().connections.close_idle(evict_at_once),
        }
    }
}

/// Serves a connection in a task of its own.
fn spawn_connection(
    tasks: &TaskTracker,
    workers: &Workers,
    state_cell: &Arc<ServerStateCell>,
    peers: ListenerPeers,
    stream: TcpStream,
    permit: Option<OwnedSemaphorePermit>,
) {
    let Ok(peer) = stream.peer_addr() else {
        // The client has disconnected already.
        return;
    };
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    // The stream is deregistered from the runtime that accepted it and registered with the
    // worker's.
    let Ok(stream) = stream.into_std() else { return };
    let (serving, slot) = (Arc::clone(state_cell), workers.assign());
    let runtime = slot.runtime().clone();
    let serving = async move {
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        match peers {
            ListenerPeers::Plain => serve_connection(serving, stream, Some(peer)).await,
            // Boxed: otherwise the task of a connection without TLS would be as large.
            ListenerPeers::Tls(tls) => serve_tls(serving, &tls, stream, peer).boxed().await,
            ListenerPeers::Replicas(listener) => {
                serve_replica(serving, listener, stream, peer).boxed().await;
            }
        }
        drop((permit, slot));
    };
    tasks.spawn_on(serving, &runtime);
}

/// Reserve file descriptor, for when the process has no other left. All clones share it.
#[derive(Clone)]
pub struct ReserveFd(Arc<Mutex<Option<File>>>);

impl ReserveFd {
    /// Opens the descriptor, if one is free.
    pub fn open() -> Self {
        Self(Arc::new(Mutex::new(open_reserve())))
    }

    /// Opens the descriptor again, if it was released and another one is free.
    pub fn hold(&self) {
        let mut reserved = self.0.lock();
        if reserved.is_none() {
            *reserved = open_reserve();
        }
    }

    /// Releases the descriptor; false if it was not held.
    pub fn release(&self) -> bool {
        self.0.lock().take().is_some()
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

/// True if no file descriptors are left.
fn is_fd_limit(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// True if the connection failed before it was accepted here.
fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Interval of the eviction of idle connections while the connection limit is reached.
const EVICTION_INTERVAL: Duration = Duration::from_millis(100);
/// Pauses of the accept loop after errors.
const ACCEPT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
