//! Kept connections to the other replicas.
//!
//! A connection carries one request at a time, and is kept after the response has been read to its
//! end, unless its replica is gone.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::membership::Replica;
use crate::replica_tls::{ReplicaTls, server_name};
use weir_base::net::http_connection::HttpConnection;
use weir_base::secrets::sealing::InstanceId;
use weir_base::tasks::sync::Mutex;

/// Connections to the other replicas. Cheap to clone.
#[derive(Clone)]
pub(super) struct ReplicaPool {
    tls: ReplicaTls,
    /// By the runtime that has opened them.
    idle: Arc<Mutex<KeptConnections>>,
    /// Ends all connections that are not in use.
    stop: CancellationToken,
}

type KeptConnections = HashMap<(Id, InstanceId), Vec<IdleConnection>>;

struct IdleConnection {
    connection: ReplicaConnection,
    since: Instant,
}

/// Connection to a replica, until that is gone.
struct ReplicaConnection {
    http: Box<HttpConnection>,
    instance: InstanceId,
    gone: CancellationToken,
}

/// Reason why another replica did not respond to a request.
#[derive(Debug)]
pub enum ForwardError {
    /// The replica cannot be reached. The request was not sent.
    NotSent(UnsentRequest),
    /// The request was sent, and there is no response: it may have been executed.
    NoResponse,
}

/// Request that was not sent, with the reason why there is no connection.
pub struct UnsentRequest {
    pub(super) request: Box<Request<Full<Bytes>>>,
    /// `None` if there was a connection.
    reason: Option<io::ErrorKind>,
}

/// Body of the response of another replica.
pub struct ReplicaBody {
    body: Incoming,
    /// Connection that is kept after the end of the body.
    connection: Option<ReplicaConnection>,
    pool: ReplicaPool,
}

impl ReplicaPool {
    pub(super) fn new(tls: ReplicaTls) -> Self {
        Self { tls, idle: Arc::default(), stop: CancellationToken::new() }
    }

    /// Sends a request to a replica, and returns the response once its head has arrived.
    pub(super) async fn send(
        &self,
        replica: &Replica,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ReplicaBody>, ForwardError> {
        let mut request = request;
        // A kept connection may end at any time, and then returns the request.
        while let Some(mut connection) = self.take_idle(replica.instance) {
            if timeout(READY_TIMEOUT, connection.http.is_ready()).await != Ok(true) {
                continue;
            }
            match self.send_on(connection, request).await {
                Err(ForwardError::NotSent(unsent)) => request = *unsent.request,
                sent => return sent,
            }
        }
        let connected = timeout(CONNECT_TIMEOUT, self.connect(replica)).await;
        match connected.map_err(io::Error::from).flatten() {
            Ok(connection) => self.send_on(connection, request).await,
            Err(error) => {
                debug!(replica = replica.record.name, %error, "replica cannot be reached");
                let (request, reason) = (request.into(), Some(error.kind()));
                Err(ForwardError::NotSent(UnsentRequest { request, reason }))
            }
        }
    }

    async fn send_on(
        &self,
        mut connection: ReplicaConnection,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ReplicaBody>, ForwardError> {
        match connection.http.send(request).await {
            Ok(response) => Ok(response.map(|body| ReplicaBody {
                body,
                connection: Some(connection),
                pool: self.clone(),
            })),
            Err(mut error) => Err(match error.take_message() {
                Some(unsent) => {
                    let (request, reason) = (unsent.into(), None);
                    ForwardError::NotSent(UnsentRequest { request, reason })
                }
                None => ForwardError::NoResponse,
            }),
        }
    }

    async fn connect(&self, replica: &Replica) -> io::Result<ReplicaConnection> {
        let (instance, gone) = (replica.instance, replica.gone.clone());
        let stream = Box::new(open(&self.tls.connector, replica).await?);
        let http = HttpConnection::open(stream, gone.clone()).await.map_err(io::Error::other)?;
        Ok(ReplicaConnection { http: Box::new(http), instance, gone })
    }

    fn take_idle(&self, instance: InstanceId) -> Option<ReplicaConnection> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(&(Handle::current().id(), instance))?;
        // The longest unused ones are at the beginning.
        std::iter::from_fn(|| kept.pop()).find(IdleConnection::is_usable).map(|it| it.connection)
    }

    fn keep(&self, connection: ReplicaConnection) {
        if self.stop.is_cancelled() || !connection.is_usable() {
            return;
        }
        let mut idle = self.idle.lock();
        let kept = idle.entry((connection.http.runtime_id, connection.instance)).or_default();
        if kept.len() < MAX_KEPT {
            kept.push(IdleConnection { connection, since: Instant::now() });
        }
    }

    /// Closes the connections to replicas that are gone, and those that are not needed.
    pub(super) fn close_unusable(&self) {
        self.idle.lock().retain(|_, kept| {
            kept.retain(IdleConnection::is_usable);
            !kept.is_empty()
        });
    }

    /// Closes all connections that are not in use, now and later.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.idle.lock().clear();
    }
}

impl IdleConnection {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < MAX_IDLE && self.connection.is_usable()
    }
}

impl ReplicaConnection {
    fn is_usable(&self) -> bool {
        !self.gone.is_cancelled() && !self.http.is_closed()
    }
}

impl UnsentRequest {
    /// Returns whether no process has the address of the replica, or another one. A certificate
    /// names its process, so that of another one is invalid.
    pub(super) fn is_replica_absent(&self) -> bool {
        let Some(reason) = self.reason else { return false };
        matches!(reason, io::ErrorKind::ConnectionRefused | io::ErrorKind::InvalidData)
    }
}

/// Without the request, which may contain secrets.
impl fmt::Debug for UnsentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsentRequest").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl ReplicaBody {
    /// Returns the next piece; `None` at the end. Fails also if the other replica is gone.
    /// Cancel-safe.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, String>> {
        while !self.body.is_end_stream() {
            match self.connection.as_mut()?.http.frame(&mut self.body).await {
                // Replicas send no trailers.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Some(Err(error)) => {
                    self.connection = None;
                    return Some(Err(error));
                }
                None => break,
            }
        }
        self.keep_connection();
        None
    }

    /// Returns the connection to the pool: the body has been read.
    fn keep_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.keep(connection);
        }
    }
}

impl Drop for ReplicaBody {
    fn drop(&mut self) {
        // A body of known length is not read again after its last byte.
        if self.body.is_end_stream() {
            self.keep_connection();
        }
    }
}

/// Opens a connection to a replica.
pub(super) async fn open(
    connector: &TlsConnector,
    replica: &Replica,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(&replica.record.address).await?;
    stream.set_nodelay(true)?;
    // A machine that is gone without a word ends the requests that wait for it.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(&stream, SILENCE / 5)?;
    sockopt::set_tcp_user_timeout(&stream, 2_000 * SILENCE.as_secs() as u32)?;
    connector.connect(server_name(replica.instance), stream).await
}

/// Longest time for a connection with its TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);
/// Time without a sign of the other machine after which it is asked for one.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest time until a kept connection can take a request.
const READY_TIMEOUT: Duration = Duration::from_millis(100);
/// Most kept connections of a thread to one replica; more are closed after their request.
const MAX_KEPT: usize = 256;
/// Time for which an unused connection is kept: less than the other side keeps it, even if its
/// memory is scarce.
const MAX_IDLE: Duration = Duration::from_secs(4);
