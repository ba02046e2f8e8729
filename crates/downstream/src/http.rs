//! HTTP transport: connections, their time limits, and their shutdown.
//!
//! Invariants: an inactive connection is closed after a bounded time in every phase; at shutdown,
//! requests in progress are finished and no new one begins. Requests are handled in `handler`.

mod call;
pub mod connection;
mod forwarding;
mod handler;
mod head;
pub(super) mod http_sse;
mod legacy_endpoint;
mod oauth_metadata;
mod refusal;
mod request;
mod response_body;
mod resume;
mod routes;
mod sse_streams;

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tracing::debug;

use super::{ServerState, ServerStateCell};
use crate::http::connection::connection_over::{CloseReason, ConnectionOver};
pub use crate::http::connection::listener::{ListenSocket, ListenerPeers, accept_loop};
pub use crate::http::connection::listener::{ReserveFd, accept};
pub use crate::http::connection::replicas::RunningUpstream;
use crate::http::connection::replicas::{ForwardPurpose, RequestOrigin};
pub use crate::http::connection::replicas::{ReplicaListener, RunningUpstreams};
use crate::http::connection::timed_io::{ConnectionPhases, TimedIo};
pub use crate::http::connection::tls::Tls;
pub use crate::http::connection::workers::{LAST_TASKS, Workers};
pub use oauth_metadata::ProtectedResource;
pub use routes::HttpRoute;
pub use routes::{MESSAGES_PATH, STREAM_PATH};
use weir_access::policy::Certificate;
use weir_base::metrics::Gauge;
use weir_base::tasks::request_scope::RequestScope;
use weir_base::tasks::suppressible_waker::SuppressibleWaker;
use weir_fleet::{ACCEPTED, UPSTREAM};
use weir_record::audit::{AuditOutcome, EventCompletion, TransportKind};

/// Connection of a client, as its requests see it.
struct ClientConnection {
    peer: Option<SocketAddr>,
    /// Verified client certificate.
    certificate: Option<Arc<Certificate>>,
    /// Waker of the task that serves the connection and its requests.
    waker: Arc<SuppressibleWaker>,
    origin: RequestOrigin,
}

impl ClientConnection {
    fn new(peer: Option<SocketAddr>, certificate: Option<Arc<Certificate>>) -> Arc<Self> {
        Arc::new(Self { peer, certificate, waker: Arc::default(), origin: RequestOrigin::Client })
    }

    /// Returns whether another replica has forwarded the request.
    fn is_forwarded(&self) -> bool {
        matches!(self.origin, RequestOrigin::Replica(..))
    }

    /// Returns the purpose for which another replica has forwarded the request.
    fn purpose(&self) -> ForwardPurpose {
        match self.origin {
            RequestOrigin::Replica(_, purpose) => purpose,
            RequestOrigin::Client | RequestOrigin::Listener(_) => ForwardPurpose::Serve,
        }
    }

    /// True if the client's certificate has expired: no further request is served.
    fn is_expired(&self) -> bool {
        !Certificate::is_valid(self.certificate.as_ref(), SystemTime::now())
    }
}

/// Serves one connection until either side closes it. At shutdown, the request in progress is
/// finished first.
pub async fn serve_connection<S>(state_cell: Arc<ServerStateCell>, io: S, peer: Option<SocketAddr>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    serve(state_cell, io, ClientConnection::new(peer, None)).await;
}

/// Performs the TLS handshake and serves the connection.
pub(super) async fn serve_tls<S>(
    state_cell: Arc<ServerStateCell>,
    tls: &Tls,
    io: S,
    peer: SocketAddr,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (stop, handshake_timeout, handshake) = {
        let state = state_cell.now();
        let timeouts = &state.settings.timeouts;
        let handshake = Arc::new(ConnectionPhases::new(timeouts, state.budget()));
        state.connections.add(&handshake);
        (state.stop.clone(), timeouts.handshake, handshake)
    };
    let mut accepting = pin!(tls.accept(io, handshake_timeout));
    let accepted = tokio::select! {
        biased;
        accepted = accepting.as_mut() => accepted,
        () = handshake.evicted() => return,
        () = stop.cancelled() => match timeout(SHUTDOWN_GRACE, accepting).await {
            Ok(accepted) => accepted,
            Err(_) => return,
        },
    };
    match accepted {
        Ok((stream, certificate)) => {
            serve(state_cell, stream, ClientConnection::new(Some(peer), certificate)).await;
        }
        Err(error) => {
            debug!(%peer, %error, "TLS handshake failed");
            record_refused_handshake(&state_cell.now(), peer);
        }
    }
}

/// Records a connection that failed in its TLS handshake.
fn record_refused_handshake(state: &ServerState, peer: SocketAddr) {
    let from = Some(peer.ip().to_canonical());
    let audit_event = state.audit.begin(TransportKind::Http, from);
    audit_event.set_refused_by("tls");
    audit_event.end(EventCompletion::of(AuditOutcome::Refused));
}

/// Performs the TLS handshake with another replica, and serves its connection.
async fn serve_replica<S>(
    state_cell: Arc<ServerStateCell>,
    listener: ReplicaListener,
    io: S,
    peer: SocketAddr,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = listener.fleet.client().tls().acceptor.accept(io);
    let handshake_timeout = state_cell.now().settings.timeouts.handshake;
    match timeout(handshake_timeout, handshake).await.map_err(io::Error::from).flatten() {
        Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(UPSTREAM) => {
            if let Err(error) = serve_upstream(&listener.running, stream, handshake_timeout).await {
                debug!(%peer, %error, "connection of a replica to an upstream failed");
            }
        }
        Ok(stream) => {
            let origin = RequestOrigin::Listener(listener);
            let (peer, certificate, waker) = (Some(peer), None, Arc::default());
            let remote = Arc::new(ClientConnection { peer, certificate, waker, origin });
            serve(state_cell, stream, remote).await;
        }
        Err(error) => debug!(%peer, %error, "TLS handshake with a replica failed"),
    }
}

/// Serves a connection of another replica to an upstream that only this one runs.
async fn serve_upstream<S>(
    running: &RunningUpstreams,
    mut stream: S,
    name_timeout: Duration,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let name = timeout(name_timeout, read_name(&mut stream)).await??;
    let upstream = running.find(&name).ok_or(io::ErrorKind::NotFound)?;
    stream.write_u8(ACCEPTED).await?;
    let connection = serve_connection(upstream.server, stream, None).boxed();
    upstream.connections.track_future(connection).await;
    Ok(())
}

/// Reads the name of an upstream, byte by byte: what follows it is HTTP.
async fn read_name(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut name = String::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => return Ok(name),
            byte if name.len() < MAX_NAME => name.push(byte.into()),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

async fn serve<S>(state_cell: Arc<ServerStateCell>, io: S, remote: Arc<ClientConnection>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Values that the connection needs. Keeping the state itself would keep its configuration in
    // memory as long as the connection.
    let (timed_io, builder, stop, _open) = {
        let state = state_cell.now();
        let open = Gauge::enter(&state.gateway.metrics().connections);
        let mut builder = http1::Builder::new();
        builder.max_buf_size(state.settings.max_head.max(MIN_BUFFER_BYTES));
        // With an explicit limit, hyper allocates space for that many headers with each request.
        if state.settings.max_headers != DEFAULT_MAX_HEADERS {
            builder.max_headers(state.settings.max_headers);
        }
        let timed_io = TimedIo::new(io, &state.settings.timeouts, state.budget());
        state.connections.add(timed_io.phases());
        (timed_io, builder, state.stop.clone(), open)
    };
    let service = service_fn(|request: Request<Incoming>| {
        let gone = Box::pin(timed_io.clone().disconnected());
        let (state_cell, remote) = (Arc::clone(&state_cell), Arc::clone(&remote));
        let in_progress = timed_io.begin_request(request.body().size_hint().exact());
        // Boxed: hyper stores the future inline for the lifetime of the connection, and a request's
        // future is a hundred times larger than what an idle stream needs.
        let handling = handler::handle(state_cell, remote, request, in_progress, gone);
        RequestScope::begin().run(handling).boxed()
    });
    let ended = {
        let mut connection = builder.serve_connection(TokioIo::new(timed_io.clone()), service);
        let waker = Waker::from(Arc::clone(&remote.waker));
        let mut served = poll_fn(|cx| {
            remote.waker.register(cx.waker());
            Pin::new(&mut connection).poll(&mut Context::from_waker(&waker))
        });
        let over = pin!(async {
            tokio::select! {
                () = timed_io.clone().idle_timeout_elapsed() => CloseReason::Idle,
                () = stop.cancelled() => CloseReason::Closing,
                () = Certificate::expired(remote.certificate.as_ref()) => CloseReason::Closing,
            }
        });
        let ended = tokio::select! {
            biased;
            ended = &mut served => Some(ended),
            reason = ConnectionOver::new(over) => match reason {
                CloseReason::Idle => Some(Ok(())),
                CloseReason::Closing => tokio::select! {
                    biased;
                    ended = &mut served => Some(ended),
                    () = wait_for_last_request(&timed_io) => None,
                }
            }
        };
        match ended {
            Some(ended) => ended,
            // Requests in progress are answered; notification streams end by themselves.
            None => {
                Pin::new(&mut connection).graceful_shutdown();
                connection.await
            }
        }
    };
    match ended {
        Ok(()) => {
            let linger = match timed_io.phases().is_evicted() {
                // Nothing was sent that the client has to receive.
                true => Duration::ZERO,
                false if stop.is_cancelled() => SHUTDOWN_LINGER,
                false => LINGER,
            };
            timed_io.lingering_close(linger).await;
        }
        Err(error) => debug!(peer = ?remote.peer, %error, "connection failed"),
    }
}

/// Waits until a request is in progress, whose response will be the last of the connection, or
/// until none has begun for a moment.
async fn wait_for_last_request<S>(timed_io: &TimedIo<S>) {
    let mut moment = pin!(tokio::time::sleep(SHUTDOWN_GRACE));
    // Polled together with the connection, whose task is woken by each byte.
    poll_fn(|cx| match timed_io.is_busy() {
        true => Poll::Ready(()),
        false => moment.as_mut().poll(cx),
    })
    .await;
}

/// Longest name of an upstream.
const MAX_NAME: usize = 32;
/// Default number of header fields in hyper.
const DEFAULT_MAX_HEADERS: usize = 100;
/// Smallest read buffer of hyper.
const MIN_BUFFER_BYTES: usize = 8 * 1024;
/// Time that a connection without a request stays open at shutdown: a request that its client is
/// sending at that moment is refused with an error instead of being cut off.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(300);
/// Time for a client to read the last response before the connection is closed; less at shutdown.
const LINGER: Duration = Duration::from_secs(1);
const SHUTDOWN_LINGER: Duration = Duration::from_millis(200);
