//! The HTTP wire: connections, their limits in time, and their end.
//!
//! Promises: a connection that does nothing is closed after a bounded time in every phase of its life;
//! when the house closes, what is under way is finished and nothing new begins.
//!
//! Knows nothing of: what is said on a connection; see `endpoint`.

mod body;
mod detach;
mod endpoint;
mod head;
mod incoming;
pub(super) mod pair;
mod protection;
mod record;
mod resume;
mod routes;
mod streams;
pub mod tls;
mod wire;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::Doors;
use crate::meter::Gauge;
use crate::policy::Certificate;
pub use pair::{MESSAGES_PATH, STREAM_PATH};
pub use protection::Protection;
pub use routes::Route;
use tls::Tls;
use wire::Wire;

/// What is known of a connection's other end.
#[derive(Debug, Clone)]
struct Connection {
    peer: Option<SocketAddr>,
    /// What the client has proven to hold.
    certificate: Option<Arc<Certificate>>,
}

/// Accepts connections until the house closes, and serves each on a task of its own.
///
/// Never ends on an error: what accepting can fail with passes (a client that left, no free file
/// descriptors), so it waits and tries again.
pub async fn accept_loop(listener: TcpListener, tls: Option<Arc<Tls>>, doors: Arc<Doors>) {
    // What is the same under every configuration; who held more would hold the first one for good.
    let (tasks, stop, sessions, places) = {
        let door = doors.now();
        let places = Arc::new(Semaphore::new(door.settings.max_connections));
        (door.tasks.clone(), door.stop.clone(), Arc::clone(&door.sessions), places)
    };
    let ending = stop.clone();
    tasks.spawn(async move { sessions.sweep(&ending).await });
    if let Some(tls) = tls.clone() {
        let ending = stop.clone();
        tasks.spawn(async move { tls.watch(&ending).await });
    }
    let mut pause = FIRST_PAUSE;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            accepted = async {
                // Before accepting: who has no place waits in the kernel and not here.
                let place = Arc::clone(&places).acquire_owned().await;
                let place = place.expect("nobody closes the semaphore");
                listener.accept().await.map(|(stream, peer)| (stream, peer, place))
            } => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                pause = FIRST_PAUSE;
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%peer, %error, "small answers may be late");
                }
                let (serving, tls) = (Arc::clone(&doors), tls.clone());
                tasks.spawn(async move {
                    match tls {
                        None => serve_connection(serving, stream, Some(peer)).await,
                        Some(tls) => serve_secured(serving, &tls, stream, peer).await,
                    }
                    drop(place);
                });
            }
            Err(error) if is_the_peers(&error) => {}
            Err(error) => {
                warn!(%error, "no connection can be accepted at the moment");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

/// Serves one connection until either side ends it. When the house closes, the request that is under
/// way is finished first.
pub async fn serve_connection<S>(doors: Arc<Doors>, io: S, peer: Option<SocketAddr>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    serve(doors, io, Connection { peer, certificate: None }).await;
}

/// Serves a connection once hands are shaken.
pub(super) async fn serve_secured<S>(doors: Arc<Doors>, tls: &Tls, io: S, peer: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stop = doors.now().stop.clone();
    let accepted = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        accepted = tls.accept(io) => accepted,
    };
    match accepted {
        Ok((stream, certificate)) => {
            let certificate = certificate.map(Arc::new);
            serve(doors, stream, Connection { peer: Some(peer), certificate }).await;
        }
        Err(error) => {
            debug!(%peer, %error, "a TLS handshake failed");
            record::refused_handshake(&doors.now(), peer);
        }
    }
}

async fn serve<S>(doors: Arc<Doors>, io: S, from: Connection)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let peer = from.peer;
    let (wire, stop, _open) = {
        let door = doors.now();
        let open = Gauge::enter(&door.gateway.meters().connections);
        (Wire::new(io, &door.settings), door.stop.clone(), open)
    };
    let service = service_fn(|request| {
        let gone = wire.clone().gone().boxed();
        let (doors, from) = (Arc::clone(&doors), from.clone());
        endpoint::answer(doors, from, request, wire.busy(), gone).map(Ok::<_, Infallible>)
    });
    let connection = http1::Builder::new()
        .max_headers(MAX_HEADER_FIELDS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(wire.clone()), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = wire.clone().idle_too_long() => Ok(()),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(?peer, %error, "a connection broke");
    }
}

/// Whether a connection failed by itself between the kernel's accepting it and ours.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The most header fields of a request.
const MAX_HEADER_FIELDS: usize = 100;
/// The most bytes of a request's head; also what is read ahead.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long accepting rests after an error, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
