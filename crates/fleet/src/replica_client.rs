//! Hops: requests that one replica sends on to another, over kept connections.
//!
//! Invariants: a request is sent once. An attempt that failed before the request was sent returns
//! it ([`HopError::Unsent`]); after that the other replica may have executed it
//! ([`HopError::Broken`]). What waits for a replica ends when that is no member any more, or shows
//! no sign of life, also if its machine or process stands still without a word. A connection
//! carries one request at a time, and is kept after the response has been read to its end.

pub(super) mod probes;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response, StatusCode};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::membership::Replica;
use crate::replica_tls::{FleetTls, server_name};
use crate::{Fleet, HopFailure};
use weir_base::net::http_connection::HttpConnection;
use weir_base::secrets::sealing::Instance;
use weir_base::tasks::sync::Mutex;

/// Connections to the other replicas. Cheap to clone.
#[derive(Clone)]
pub(super) struct HopPool {
    tls: FleetTls,
    /// By the runtime that has opened them.
    idle: Arc<Mutex<IdleHops>>,
    /// Ends all connections that are not in use.
    stop: CancellationToken,
}

type IdleHops = HashMap<(Id, Instance), Vec<IdleHop>>;
type HopRequest = Request<Full<Bytes>>;

struct IdleHop {
    connection: Box<HttpConnection>,
    since: Instant,
}

/// Failed hop.
#[derive(Debug)]
pub(super) enum HopError {
    /// The request was not sent. The kind of the error is that of the connection, if there is one.
    Unsent(Box<HopRequest>, Option<io::ErrorKind>),
    /// The request was sent, and there is no response.
    Broken,
}

impl HopError {
    /// Returns whether no process has the address of the replica, or another one. A certificate
    /// names its process, so that of another one is invalid.
    fn is_of_absent(&self) -> bool {
        let Self::Unsent(_, Some(kind)) = self else { return false };
        matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::InvalidData)
    }
}

/// Body of the response of another replica.
pub struct HopBody {
    body: Incoming,
    /// Connection that is kept after the end of the body.
    connection: Option<Box<HttpConnection>>,
    instance: Instance,
    pool: HopPool,
}

impl HopPool {
    pub(super) fn new(tls: FleetTls) -> Self {
        Self { tls, idle: Arc::default(), stop: CancellationToken::new() }
    }

    /// Sends a request to a member, and returns the response once its head has arrived.
    pub(super) async fn send(
        &self,
        member: &Replica,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopError> {
        let mut request = request;
        // A kept connection may end at any time, and then returns the request.
        while let Some(mut connection) = self.take_idle(member.instance) {
            if timeout(READY_TIMEOUT, connection.is_ready()).await != Ok(true) {
                continue;
            }
            match self.send_on(member, connection, request).await {
                Err(HopError::Unsent(unsent, _)) => request = *unsent,
                sent => return sent,
            }
        }
        let connected = timeout(CONNECT_TIMEOUT, self.connect(member)).await;
        match connected.map_err(io::Error::from).flatten() {
            Ok(connection) => self.send_on(member, connection, request).await,
            Err(error) => {
                debug!(member = member.record.name, %error, "replica cannot be reached");
                Err(HopError::Unsent(request.into(), Some(error.kind())))
            }
        }
    }

    async fn send_on(
        &self,
        member: &Replica,
        mut connection: Box<HttpConnection>,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopError> {
        match connection.send(request).await {
            Ok(response) => Ok(response.map(|body| HopBody {
                body,
                connection: Some(connection),
                instance: member.instance,
                pool: self.clone(),
            })),
            Err(mut error) => Err(match error.take_message() {
                Some(unsent) => HopError::Unsent(unsent.into(), None),
                None => HopError::Broken,
            }),
        }
    }

    async fn connect(&self, member: &Replica) -> io::Result<Box<HttpConnection>> {
        let stream = Box::new(open(&self.tls.connector, member).await?);
        let connection = HttpConnection::open(stream, member.gone.clone()).await;
        connection.map(Box::new).map_err(io::Error::other)
    }

    fn take_idle(&self, instance: Instance) -> Option<Box<HttpConnection>> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(&(Handle::current().id(), instance))?;
        // The longest unused ones are at the beginning.
        std::iter::from_fn(|| kept.pop()).find(IdleHop::is_usable).map(|hop| hop.connection)
    }

    fn keep(&self, instance: Instance, connection: Box<HttpConnection>) {
        if self.stop.is_cancelled() || connection.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        let kept = idle.entry((connection.runtime_id, instance)).or_default();
        if kept.len() < MAX_KEPT {
            kept.push(IdleHop { connection, since: Instant::now() });
        }
    }

    /// Closes the connections to replicas that are no members any more, and those that are not
    /// needed.
    pub(super) fn retain(&self, is_member: impl Fn(Instance) -> bool) {
        self.idle.lock().retain(|(_, instance), kept| {
            kept.retain(IdleHop::is_usable);
            is_member(*instance) && !kept.is_empty()
        });
    }

    /// Closes all connections that are not in use, now and later.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.idle.lock().clear();
    }
}

impl IdleHop {
    fn is_usable(&self) -> bool {
        self.since.elapsed() < MAX_IDLE && !self.connection.is_closed()
    }
}

impl Fleet {
    /// Sends a request to another replica. One that cannot be reached twice, with a look at its
    /// record between, is not tried again for some time.
    pub async fn hop(
        &self,
        member: &Replica,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopFailure> {
        let sent = self.try_hop(member, request).await;
        match &sent {
            Ok(_) => self.metrics.responses.increment(),
            Err(HopFailure::Unreachable) => self.metrics.unreachable.increment(),
            Err(HopFailure::Broken) => self.metrics.broken.increment(),
        }
        sent
    }

    async fn try_hop(
        &self,
        member: &Replica,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopFailure> {
        let request = match self.hops.send(member, request).await {
            Err(HopError::Unsent(request, _)) => *request,
            Err(HopError::Broken) => return Err(HopFailure::Broken),
            Ok(response) => return Ok(response),
        };
        self.refresh().await;
        let member = self.member(|it| it == member.instance).ok_or(HopFailure::Unreachable)?;
        self.hops.send(&member, request).await.map_err(|error| match error {
            HopError::Broken => HopFailure::Broken,
            error => {
                let is_absent = error.is_of_absent();
                let mut view = self.view();
                view.set_unreachable(member.instance, Instant::now());
                if is_absent {
                    view.pass_over(member.instance);
                }
                HopFailure::Unreachable
            }
        })
    }
}

/// Reply of a replica to a request that may be sent more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageReply {
    /// Status of its response.
    Status(StatusCode),
    /// The replica has ended.
    Ended,
    /// It does not reply in time.
    Silent,
}

impl Fleet {
    /// Sends a request without a body of interest in its response to another replica, again until
    /// it replies: what the request says has an effect once only.
    pub async fn send_message(
        &self,
        member: &Replica,
        request: HopRequest,
        patience: Duration,
    ) -> MessageReply {
        let sending = async {
            loop {
                match self.hops.send(member, request.clone()).await {
                    Ok(response) => {
                        let status = response.status();
                        // Read to its end, so that the connection is kept.
                        let mut body = response.into_body();
                        while body.chunk().await.is_some_and(|chunk| chunk.is_ok()) {}
                        return MessageReply::Status(status);
                    }
                    Err(error) if error.is_of_absent() => return MessageReply::Ended,
                    Err(_) => sleep(RETRY_PAUSE).await,
                }
            }
        };
        let reply = timeout(patience, member.gone.run_until_cancelled(sending)).await;
        let reply = reply.ok().flatten().unwrap_or(MessageReply::Silent);
        match reply {
            MessageReply::Status(_) => self.metrics.responses.increment(),
            MessageReply::Ended | MessageReply::Silent => self.metrics.unreachable.increment(),
        }
        reply
    }
}

/// Opens a connection to a member.
pub(super) async fn open(
    connector: &TlsConnector,
    member: &Replica,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(&member.record.address).await?;
    stream.set_nodelay(true)?;
    // A machine that is gone without a word ends the requests that wait for it.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(&stream, SILENCE / 5)?;
    sockopt::set_tcp_user_timeout(&stream, 2_000 * SILENCE.as_secs() as u32)?;
    connector.connect(server_name(member.instance), stream).await
}

impl HopBody {
    /// Returns the next piece; `None` at the end. Fails also if the other replica is no member any
    /// more. Cancel-safe.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, String>> {
        while !self.body.is_end_stream() {
            match self.connection.as_mut()?.frame(&mut self.body).await {
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
            self.pool.keep(self.instance, connection);
        }
    }
}

impl Drop for HopBody {
    fn drop(&mut self) {
        // A body of known length is not read again after its last byte.
        if self.body.is_end_stream() {
            self.keep_connection();
        }
    }
}

/// Longest time for a connection with its TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);
/// Time without a sign of the other machine after which it is asked for one.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest time until a kept connection can take a request.
const READY_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause before a request is sent again to a replica that does not reply.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Most kept connections of a thread to one replica; more are closed after their request.
const MAX_KEPT: usize = 256;
/// Time for which an unused connection is kept: less than the other side keeps it, even if its
/// memory is scarce.
const MAX_IDLE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;
    use crate::FleetSettings;
    use crate::records::MemberRecord;
    use weir_base::secrets::sealing::SealingKeys;

    #[tokio::test]
    async fn a_replica_that_is_silent_is_distinguished_from_one_that_has_ended() {
        let keys = SealingKeys::random();
        let fleet = Fleet::new(keys.clone(), FleetSettings::of_member("a"), None);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let record = MemberRecord::of("b", "");
        let instance = keys.of_another_process().instance();
        let mut member = Replica { instance, record, gone: CancellationToken::new() };
        let send = async |member: &Replica, patience| {
            let request = Request::new(Full::new(Bytes::new()));
            fleet.send_message(member, request, patience).await
        };
        let (moment, long) = (Duration::from_millis(500), Duration::from_secs(600));
        // It accepts connections, as the kernel does for a process that stands still.
        member.record.address = listener.local_addr().expect("bound").to_string();
        assert_eq!(send(&member, moment).await, MessageReply::Silent);
        let unused = TcpSocket::new_v4().expect("a socket");
        unused.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        member.record.address = unused.local_addr().expect("bound").to_string();
        assert_eq!(send(&member, long).await, MessageReply::Ended);
        member.gone.cancel();
        assert_eq!(send(&member, long).await, MessageReply::Silent, "its record is missing");
    }
}
