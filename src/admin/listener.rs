//! The listener: few connections, one request each, and no more than some seconds for either.
//!
//! Promises: every connection is accepted at once, whatever others do: where there are too many, one of them is closed
//! (`connections`), and what hangs is closed after a bounded time. While no file descriptor is left one that was kept for
//! this lets in one connection at a time, so that an operator can still see why.
//!
//! Knows nothing of: what is asked.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::connections::{Connection, Connections, Stage};
use super::{Ops, handler};

/// Answers operators until `stop`. Its connections run on `tasks`.
pub async fn serve(
    listener: TcpListener,
    ops: Arc<Ops>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let (connections, spare) = (Connections::default(), Spare::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = connections.open(peer.ip().to_canonical());
                let (ops, stop, spare) = (Arc::clone(&ops), stop.clone(), spare.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        biased;
                        () = serve_connection(ops, stream, &connection, &stop) => {}
                        () = connection.closed() => debug!(%peer, "closed for a newer connection"),
                    }
                    // What it has held, before anybody else takes it.
                    spare.keep();
                });
            }
            Err(error) => {
                debug!(%error, "an operator cannot be let in at the moment");
                if spare.give() {
                    continue;
                }
                // No file descriptor is left but those of connections here, which may all be silent.
                match connections.close_one() {
                    Some(ended) => drop(timeout(PAUSE, ended.cancelled()).await),
                    None => sleep(PAUSE).await,
                }
                spare.keep();
            }
        }
    }
}

/// Answers the one request of a connection.
async fn serve_connection<S>(
    ops: Arc<Ops>,
    io: S,
    connection: &Connection,
    stop: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let work = Mutex::new(());
    let service = service_fn(|request| {
        connection.reaches(match handler::is_trusted(&ops, &request) {
            true => Stage::TrustedAnswer,
            false => Stage::Answer,
        });
        let (ops, work) = (Arc::clone(&ops), &work);
        async move { Ok::<_, Infallible>(handler::answer(&ops, request, work).await) }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_headers(MAX_HEADER_FIELDS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(io), service);
    tokio::select! {
        ended = served => if let Err(error) = ended {
            debug!(%error, "an operator's connection broke");
        },
        () = too_long(&work) => debug!("an operator's connection was given up"),
        () = stop.cancelled() => {}
    }
}

/// Waits until a connection has taken its time; what is worked on for it is not counted.
async fn too_long(work: &Mutex<()>) {
    sleep(PATIENCE).await;
    if work.try_lock().is_err() {
        drop(work.lock().await);
        sleep(PATIENCE).await;
    }
}

/// A file descriptor that is kept for when there is no other. All clones are the same one.
#[derive(Clone)]
struct Spare(Arc<std::sync::Mutex<Option<File>>>);

impl Spare {
    fn new() -> Self {
        Self(Arc::new(std::sync::Mutex::new(open())))
    }

    fn keep(&self) {
        let mut kept = self.lock();
        if kept.is_none() {
            *kept = open();
        }
    }

    /// Gives it back to the system; false if it was not kept.
    fn give(&self) -> bool {
        self.lock().take().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open() -> Option<File> {
    let opened: io::Result<File> = File::open("/dev/null");
    opened.ok()
}

/// How long a connection may take in all, beside a reload.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long accepting rests after an error.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_HEADER_FIELDS: usize = 64;
const MAX_HEAD_BYTES: usize = 16 * 1024;
