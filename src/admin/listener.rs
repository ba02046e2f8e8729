//! Accept loop of the admin listener: few connections, one request each, with time limits.
//!
//! Invariants: every connection is accepted immediately: if there are too many, one of them is
//! evicted (`connections`), and a stalled one is closed after a bounded time. Without a free file
//! descriptor, a reserved one accepts one connection at a time, so that an operator can still see
//! the cause.
//!
//! Decision: docs/decisions/0023-admin-listener.md

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
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

use super::connections::{Connection, ConnectionStage, Connections};
use super::{Admin, handler};
use weir_downstream::http::{ReserveFd, accept};

/// Serves operators until `stop`. Connections run on `tasks`.
pub async fn serve(
    listener: TcpListener,
    admin: Arc<Admin>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    let (connections, reserve) = (Connections::default(), ReserveFd::open());
    while let Some(accepted) = accept(&listener, &stop, ready(())).await {
        match accepted {
            Ok((stream, peer, ())) => {
                let connection = connections.open(peer.ip().to_canonical());
                let (admin, stop, reserve) = (Arc::clone(&admin), stop.clone(), reserve.clone());
                tracker.spawn(async move {
                    tokio::select! {
                        biased;
                        () = serve_connection(admin, stream, &connection, false, &stop) => {}
                        () = connection.closed() => {
                            debug!(
                                %peer,
                                "admin connection evicted for a newer one"
                            )
                        }
                    }
                    // Reserve the descriptor that this connection has freed, before another one
                    // takes it.
                    reserve.hold();
                });
            }
            Err(error) => {
                debug!(%error, "admin connection could not be accepted");
                if reserve.release() {
                    continue;
                }
                // All remaining descriptors belong to connections here, which may all be stalled.
                match connections.evict_one() {
                    Some(ended) => drop(timeout(ACCEPT_PAUSE, ended.cancelled()).await),
                    None => sleep(ACCEPT_PAUSE).await,
                }
                reserve.hold();
            }
        }
    }
}

/// Serves the single request of a connection, which needs no token if `is_own_user` is true.
pub(super) async fn serve_connection<S>(
    admin: Arc<Admin>,
    io: S,
    connection: &Connection,
    is_own_user: bool,
    stop: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let long_work = Mutex::new(());
    let service = service_fn(|request| {
        let is_trusted = is_own_user || handler::is_trusted(&admin, &request);
        connection.set_stage(match is_trusted {
            true => ConnectionStage::TrustedResponse,
            false => ConnectionStage::Response,
        });
        let (admin, long_work) = (Arc::clone(&admin), &long_work);
        async move {
            let response = handler::respond(&admin, request, is_trusted, long_work).await;
            Ok::<_, Infallible>(response)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_headers(MAX_HEADER_FIELDS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(io), service);
    tokio::select! {
        ended = served => if let Err(error) = ended {
            debug!(%error, "admin connection failed");
        },
        () = time_limit(&long_work) => debug!("admin connection timed out"),
        () = stop.cancelled() => {}
    }
}

/// Waits for the time limit of a connection; the time of long work is not counted.
async fn time_limit(long_work: &Mutex<()>) {
    sleep(REQUEST_TIMEOUT).await;
    if long_work.try_lock().is_err() {
        drop(long_work.lock().await);
        sleep(REQUEST_TIMEOUT).await;
    }
}

/// Time limit of a connection, without a reload.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause of the accept loop after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const MAX_HEADER_FIELDS: usize = 64;
const MAX_HEAD_BYTES: usize = 16 * 1024;
