//! The HTTP wire: connections, their limits in time, and their end.
//!
//! Promises: a connection that does nothing is closed after a bounded time in every phase of its life;
//! when the house closes, what is under way is finished and nothing new begins.
//!
//! Knows nothing of: what is said on a connection; see `endpoint`.

pub(super) mod admission;
mod audit_event;
pub mod connection;
mod detach;
mod handler;
mod head;
pub(super) mod http_sse;
mod oauth_metadata;
mod request_body;
mod response_body;
mod resume;
mod routes;
mod sse_streams;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tracing::debug;

use super::Doors;
pub use crate::downstream::http::connection::listener::{Socket, accept_loop};
use crate::downstream::http::connection::timed_io::{Phases, Wire};
use crate::downstream::http::connection::tls::Tls;
pub use crate::downstream::http::connection::workers::{LAST_TASKS, Workers};
use crate::metrics::Gauge;
use crate::policy::Certificate;
pub use http_sse::{MESSAGES_PATH, STREAM_PATH};
pub use oauth_metadata::Protection;
pub use routes::Route;

/// What is known of a connection's other end.
#[derive(Debug, Clone)]
struct Connection {
    peer: Option<SocketAddr>,
    /// What the client has proven to hold.
    certificate: Option<Arc<Certificate>>,
}

impl Connection {
    /// Whether the client's certificate is not valid any more: no further request is served.
    fn has_expired(&self) -> bool {
        !Certificate::holds(self.certificate.as_ref(), SystemTime::now())
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
    let (stop, patience, handshake) = {
        let door = doors.now();
        let timeouts = &door.settings.timeouts;
        let handshake = Arc::new(Phases::new(timeouts, door.budget()));
        door.connections.add(&handshake);
        (door.stop.clone(), timeouts.handshake, handshake)
    };
    let mut accepting = std::pin::pin!(tls.accept(io, patience));
    let accepted = tokio::select! {
        biased;
        accepted = accepting.as_mut() => accepted,
        () = handshake.over() => return,
        () = stop.cancelled() => match timeout(LAST_CALL, accepting).await {
            Ok(accepted) => accepted,
            Err(_) => return,
        },
    };
    match accepted {
        Ok((stream, certificate)) => {
            serve(doors, stream, Connection { peer: Some(peer), certificate }).await;
        }
        Err(error) => {
            debug!(%peer, %error, "a TLS handshake failed");
            audit_event::refused_handshake(&doors.now(), peer);
        }
    }
}

async fn serve<S>(doors: Arc<Doors>, io: S, from: Connection)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (peer, certificate) = (from.peer, from.certificate.clone());
    // What a connection is made with; who held the door would hold its configuration for as long.
    let (wire, builder, stop, _open) = {
        let door = doors.now();
        let open = Gauge::enter(&door.gateway.meters().connections);
        let mut builder = http1::Builder::new();
        builder.max_buf_size(door.settings.max_head.max(LEAST_HEAD_BYTES));
        // Where a number is said, hyper makes room for so many with each request.
        if door.settings.max_headers != USUAL_HEADERS {
            builder.max_headers(door.settings.max_headers);
        }
        let wire = Wire::new(io, &door.settings.timeouts, door.budget());
        door.connections.add(wire.phases());
        (wire, builder, door.stop.clone(), open)
    };
    let service = service_fn(|request: Request<Incoming>| {
        let gone = wire.clone().gone().boxed();
        let (doors, from) = (Arc::clone(&doors), from.clone());
        let busy = wire.busy(request.body().size_hint().exact());
        // Boxed: hyper keeps room for it for as long as the connection lives, and what a request takes is a
        // hundred times what an idle stream needs of it.
        handler::answer(doors, from, request, busy, gone).map(Ok::<_, Infallible>).boxed()
    });
    let connection = builder.serve_connection(TokioIo::new(wire.clone()), service);
    let ended = {
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = wire.clone().idle_too_long() => Ok(()),
            () = last_call(stop.cancelled(), &wire) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            // Requests that are running are answered; streams of changes end by themselves.
            () = last_call(Certificate::expired(certificate.as_ref()), &wire) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    match ended {
        Ok(()) => {
            let patience = match wire.phases().is_over() {
                // Nothing was said that it would have to hear.
                true => Duration::ZERO,
                false if stop.is_cancelled() => LAST_SEE_OFF,
                false => SEE_OFF,
            };
            wire.see_off(patience).await;
        }
        Err(error) => debug!(?peer, %error, "a connection broke"),
    }
}

/// Waits until the connection is to be closed, and until nobody is about to ask anything on it: either somebody
/// has, and the answer will be the last, or nobody does for a moment.
async fn last_call<S>(closing: impl Future<Output = ()>, wire: &Wire<S>) {
    closing.await;
    let mut moment = std::pin::pin!(tokio::time::sleep(LAST_CALL));
    // Polled with the connection, which wakes its task with each byte.
    poll_fn(|cx| match wire.is_busy() {
        true => Poll::Ready(()),
        false => moment.as_mut().poll(cx),
    })
    .await;
}

/// So many header fields hyper takes where nobody says a number.
const USUAL_HEADERS: usize = 100;
/// hyper reads no less ahead.
const LEAST_HEAD_BYTES: usize = 8 * 1024;
/// How long a connection that nobody asks anything on stays open when the house closes: what its client was sending at
/// that moment is refused in words instead of being cut off.
const LAST_CALL: Duration = Duration::from_millis(300);
/// How long a client that has been told that its connection ends may take to hear of it; less when the house closes.
const SEE_OFF: Duration = Duration::from_secs(1);
const LAST_SEE_OFF: Duration = Duration::from_millis(200);
