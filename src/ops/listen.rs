//! The listener: few connections, one request each, and no more than some seconds for either.
//!
//! Promises: what hangs here is closed after a bounded time; while no file descriptor is left one that was kept for this
//! lets in one connection at a time, so that an operator can still see why.
//!
//! Knows nothing of: what is asked.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::{Ops, answer};

/// Answers operators until `stop`. Its connections run on `tasks`.
pub async fn serve(
    listener: TcpListener,
    ops: Arc<Ops>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut spare = Spare::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                let place = place.expect("nobody closes the semaphore");
                listener.accept().await.map(|(stream, _)| (stream, place))
            } => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (ops, stop) = (Arc::clone(&ops), stop.clone());
                let connection = async move {
                    serve_connection(ops, stream, &stop).await;
                    drop(place);
                };
                match spare.is_kept() {
                    true => drop(tasks.spawn(connection)),
                    // There was none but ours: it is kept again before the next one comes.
                    false => {
                        connection.await;
                        spare.keep();
                    }
                }
            }
            Err(error) => {
                debug!(%error, "an operator cannot be let in at the moment");
                if !spare.give() {
                    tokio::time::sleep(PAUSE).await;
                    spare.keep();
                }
            }
        }
    }
}

/// Answers the one request of a connection.
pub(super) async fn serve_connection<S>(ops: Arc<Ops>, io: S, stop: &CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let work = Mutex::new(());
    let service = service_fn(|request| {
        let (ops, work) = (Arc::clone(&ops), &work);
        async move { Ok::<_, Infallible>(answer::answer(&ops, request, work).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_headers(MAX_HEADER_FIELDS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(io), service);
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            debug!(%error, "an operator's connection broke");
        },
        () = too_long(&work) => debug!("an operator's connection was given up"),
        () = stop.cancelled() => {}
    }
}

/// Waits until a connection has taken its time; what is worked on for it is not counted.
async fn too_long(work: &Mutex<()>) {
    tokio::time::sleep(PATIENCE).await;
    if work.try_lock().is_err() {
        drop(work.lock().await);
        tokio::time::sleep(PATIENCE).await;
    }
}

/// A file descriptor that is kept for when there is no other.
struct Spare(Option<File>);

impl Spare {
    fn new() -> Self {
        Self(open())
    }

    fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    fn keep(&mut self) {
        if self.0.is_none() {
            self.0 = open();
        }
    }

    /// Gives it back to the system; false if it was not kept.
    fn give(&mut self) -> bool {
        self.0.take().is_some()
    }
}

fn open() -> Option<File> {
    let opened: io::Result<File> = File::open("/dev/null");
    opened.ok()
}

/// How many connections are served at a time; further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may take in all, beside a reload.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long accepting rests after an error.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_HEADER_FIELDS: usize = 64;
const MAX_HEAD_BYTES: usize = 16 * 1024;
