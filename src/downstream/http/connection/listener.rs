//! The listening socket: who comes in, and what becomes of those who wait there when the house closes.
//!
//! Promises: accepting neither ends on an error nor spins; whoever the kernel has let in before the house closed is
//! answered, unless another process listens at the same socket: then they are its guests.
//!
//! Knows nothing of: what is said on a connection.

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
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::downstream::Doors;
use crate::downstream::http::connection::tls::Tls;
use crate::downstream::http::connection::workers::Workers;
use crate::downstream::http::{serve_connection, serve_secured};

/// A listening socket. All clones are the same one, which closes with the last of them.
#[derive(Clone)]
pub struct Socket(Arc<Listening>);

struct Listening {
    listener: TcpListener,
    /// Another process listens here, too.
    is_shared: AtomicBool,
}

impl Socket {
    /// The same of a socket from elsewhere.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::from)
    }

    /// Tells that another process listens here, or will: who waits is left to it when the house closes.
    pub fn share(&self) {
        self.0.is_shared.store(true, Ordering::Release);
    }

    /// Whether another process listens here.
    pub fn is_shared(&self) -> bool {
        self.0.is_shared.load(Ordering::Acquire)
    }

    /// The address that is listened at.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.listener.local_addr()
    }

    /// Everybody who waits, without waiting for anybody.
    fn waiting(&self) -> impl Iterator<Item = TcpStream> {
        let accept = || accept_with(&self.0.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        std::iter::from_fn(move || accept().ok())
            .filter_map(|stream| TcpStream::from_std(stream.into()).ok())
    }
}

impl From<TcpListener> for Socket {
    fn from(listener: TcpListener) -> Self {
        Self(Arc::new(Listening { listener, is_shared: AtomicBool::new(false) }))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.listener.as_fd()
    }
}

/// Accepts connections until the house closes, and lets `workers` serve each on a task of its own, so many at a time;
/// further ones wait in the kernel.
///
/// Never ends on an error: what accepting can fail with passes (a client that left, no free file
/// descriptors), so it waits and tries again.
pub async fn accept_loop(
    socket: impl Into<Socket>,
    tls: Option<Arc<Tls>>,
    places: usize,
    doors: Arc<Doors>,
    workers: Arc<Workers>,
) {
    let socket = socket.into();
    // What is the same under every configuration; who held more would hold the first one for good.
    let (tasks, stop, sessions) = {
        let door = doors.now();
        (door.tasks.clone(), door.stop.clone(), Arc::clone(&door.sessions))
    };
    let at_once = places.div_ceil(8);
    let places = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
    let ending = stop.clone();
    tasks.spawn(async move { sessions.sweep(&ending).await });
    if let Some(tls) = tls.clone() {
        let ending = stop.clone();
        tasks.spawn(async move { tls.watch(&ending).await });
    }
    let begin = |stream, place| begin(&tasks, &workers, &doors, tls.clone(), stream, place);
    let mut spare = Spare::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = async {
                // Before accepting: who has no place waits in the kernel and not here.
                let place = place(&places, at_once, &doors).await;
                socket.0.listener.accept().await.map(|(stream, _)| (stream, place))
            } => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                pause = FIRST_PAUSE;
                begin(stream, Some(place));
            }
            Err(error) if is_the_peers(&error) => {}
            Err(error) => {
                warn!(%error, "no connection can be accepted at the moment");
                if is_exhausted(&error) {
                    spare.turn_away(&socket);
                }
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
    if !socket.is_shared() {
        // Closing the socket would cut them off, and what they may have asked already.
        socket.waiting().for_each(|stream| begin(stream, None));
    }
}

/// Waits for a place. Where there is none, connections that nothing is asked on are closed, so many `at_once`.
async fn place(places: &Arc<Semaphore>, at_once: usize, doors: &Doors) -> OwnedSemaphorePermit {
    loop {
        let acquiring = Arc::clone(places).acquire_owned();
        match timeout(MAKE_ROOM_EVERY, acquiring).await {
            Ok(place) => return place.expect("nobody closes the semaphore"),
            Err(_) => doors.now().connections.close_idle(at_once),
        }
    }
}

/// Serves a connection on a task of its own.
fn begin(
    tasks: &TaskTracker,
    workers: &Workers,
    doors: &Arc<Doors>,
    tls: Option<Arc<Tls>>,
    stream: TcpStream,
    place: Option<OwnedSemaphorePermit>,
) {
    let Ok(peer) = stream.peer_addr() else {
        // It has left already.
        return;
    };
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "small answers may be late");
    }
    // The runtime that accepted it would go on to hear of its bytes.
    let Ok(stream) = stream.into_std() else { return };
    let (serving, at) = (Arc::clone(doors), workers.place());
    let runtime = at.runtime().clone();
    let serving = async move {
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        match tls {
            None => serve_connection(serving, stream, Some(peer)).await,
            // Boxed: the task of a connection without TLS would be as large.
            Some(tls) => serve_secured(serving, &tls, stream, peer).boxed().await,
        }
        drop((place, at));
    };
    tasks.spawn_on(serving, &runtime);
}

/// A file descriptor that is kept for when there are no others.
struct Spare(Option<File>);

impl Spare {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Hangs up on the one who has waited longest, so that it need not wait for nothing.
    fn turn_away(&mut self, socket: &Socket) {
        if self.0.take().is_some() {
            let accepted = accept_with(&socket.0.listener, SocketFlags::CLOEXEC);
            drop(accepted);
        }
        *self = Self::new();
    }
}

/// Whether there are no file descriptors left.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a connection failed by itself between the kernel's accepting it and ours.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// How often connections are closed that nothing is asked on, while there is no place for another one.
const MAKE_ROOM_EVERY: Duration = Duration::from_millis(100);
/// How long accepting rests after an error, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
