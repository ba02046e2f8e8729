//! Hops: requests that one replica sends on to another, over kept connections.
//!
//! Invariants: a request is sent once. An attempt that failed before the request was sent returns
//! it ([`HopError::Unsent`]); after that the other replica may have executed it
//! ([`HopError::Broken`]). What waits for a replica ends when that is no member any more, also if
//! its machine or process stands still without a word. A connection carries one request at a time,
//! and is kept after the response has been read to its end.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::certificate::{FleetTls, server_name};
use super::view::Replica;
use super::{Fleet, HopFailure};
use crate::sealing::Instance;
use crate::sync::Mutex;

/// Connections to the other replicas. Cheap to clone.
#[derive(Clone)]
pub(super) struct HopPool {
    tls: FleetTls,
    /// By the thread that has opened them, which is the one that polls them: a request on another
    /// thread would have to wake it, twice.
    idle: Arc<Mutex<IdleHops>>,
    tasks: TaskTracker,
    /// Ends all connections that are not in use.
    stop: CancellationToken,
}

type IdleHops = HashMap<(ThreadId, Instance), Vec<IdleHop>>;
type HopRequest = Request<Full<Bytes>>;
type Sender = SendRequest<Full<Bytes>>;

struct IdleHop {
    sender: Sender,
    since: Instant,
}

/// Failed hop.
#[derive(Debug)]
pub(super) enum HopError {
    /// The request was not sent.
    Unsent(Box<HopRequest>),
    /// The request was sent, and there is no response.
    Broken,
}

/// Body of the response of another replica.
pub(crate) struct HopBody {
    body: Incoming,
    /// Connection that is kept after the end of the body.
    connection: Option<(Instance, Sender)>,
    pool: HopPool,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Reason why the body of another replica has ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HopBodyError {
    /// Its connection has ended.
    #[error("{0}")]
    Connection(#[from] hyper::Error),
    /// It is no member any more.
    #[error("it is gone")]
    Gone,
}

impl HopPool {
    pub(super) fn new(tls: FleetTls) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        Self { tls, idle: Arc::default(), tasks, stop }
    }

    /// Sends a request to a member, and returns the response once its head has arrived.
    pub(super) async fn send(
        &self,
        member: &Replica,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopError> {
        let mut request = request;
        // A kept connection may end at any time, and then returns the request.
        while let Some(sender) = self.take_idle(member.instance) {
            match self.send_on(member, sender, request).await {
                Err(HopError::Unsent(unsent)) => request = *unsent,
                sent => return sent,
            }
        }
        let connected = timeout(CONNECT_TIMEOUT, self.connect(member)).await;
        match connected.map_err(io::Error::from).flatten() {
            Ok(sender) => self.send_on(member, sender, request).await,
            Err(error) => {
                debug!(member = member.record.name, %error, "replica cannot be reached");
                Err(HopError::Unsent(request.into()))
            }
        }
    }

    async fn send_on(
        &self,
        member: &Replica,
        mut sender: Sender,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopError> {
        let sent = sender.try_send_request(request).with_cancellation_token(&member.gone).await;
        match sent.ok_or(HopError::Broken)? {
            Ok(response) => Ok(response.map(|body| HopBody {
                body,
                connection: Some((member.instance, sender)),
                pool: self.clone(),
                gone: Box::pin(member.gone.clone().cancelled_owned()),
            })),
            Err(mut error) => Err(match error.take_message() {
                Some(unsent) => HopError::Unsent(unsent.into()),
                None => HopError::Broken,
            }),
        }
    }

    async fn connect(&self, member: &Replica) -> io::Result<Sender> {
        let stream = open(&self.tls.connector, member).await?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "connection to a replica failed");
            }
        });
        Ok(sender)
    }

    fn take_idle(&self, instance: Instance) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(&(thread::current().id(), instance))?;
        // The longest unused ones are at the beginning.
        let is_usable = |hop: &IdleHop| hop.since.elapsed() < MAX_IDLE && !hop.sender.is_closed();
        kept.retain(is_usable);
        let at = kept.iter().rposition(|hop| hop.sender.is_ready())?;
        Some(kept.remove(at).sender)
    }

    fn keep(&self, instance: Instance, sender: Sender) {
        if self.stop.is_cancelled() || sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        let kept = idle.entry((thread::current().id(), instance)).or_default();
        if kept.len() < MAX_KEPT {
            kept.push(IdleHop { sender, since: Instant::now() });
        }
    }

    /// Closes the connections to replicas that are no members any more.
    pub(super) fn retain(&self, is_member: impl Fn(Instance) -> bool) {
        self.idle.lock().retain(|(_, instance), _| is_member(*instance));
    }

    /// Closes all connections that are not in use, now and later.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.idle.lock().clear();
    }
}

impl Fleet {
    /// Sends a request to another replica. One that refuses connections twice, with a look at its
    /// record between, counts as gone for some time.
    pub(crate) async fn hop(
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
            Err(HopError::Unsent(request)) => *request,
            Err(HopError::Broken) => return Err(HopFailure::Broken),
            Ok(response) => return Ok(response),
        };
        self.refresh().await;
        let member = self.member(member.instance).ok_or(HopFailure::Unreachable)?;
        self.hops.send(&member, request).await.map_err(|error| match error {
            HopError::Broken => HopFailure::Broken,
            HopError::Unsent(_) => {
                self.view().set_unreachable(member.instance, Instant::now());
                HopFailure::Unreachable
            }
        })
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
    /// Returns the connection to the pool: the body has been read.
    fn keep_connection(&mut self) {
        if let Some((instance, sender)) = self.connection.take() {
            self.pool.keep(instance, sender);
        }
    }
}

impl Drop for HopBody {
    fn drop(&mut self) {
        // A body of known length is not polled again after its last byte.
        if self.body.is_end_stream() {
            self.keep_connection();
        }
    }
}

impl Body for HopBody {
    type Data = Bytes;
    type Error = HopBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HopBodyError>>> {
        if self.connection.is_some() && self.gone.as_mut().poll(cx).is_ready() {
            self.connection = None;
            return Poll::Ready(Some(Err(HopBodyError::Gone)));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => {}
            Some(Err(_)) => self.connection = None,
            None => self.keep_connection(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(HopBodyError::from)))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Longest time for a connection with its TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);
/// Time without a sign of the other machine after which it is asked for one.
const SILENCE: Duration = Duration::from_secs(5);
/// Most kept connections of a thread to one replica; more are closed after their request.
const MAX_KEPT: usize = 256;
/// Time for which an unused connection is kept: less than the other side keeps it, even if its
/// memory is scarce.
const MAX_IDLE: Duration = Duration::from_secs(4);
