//! Hops: requests that one replica sends on to another, over kept connections.
//!
//! Invariants: a request is sent once. An attempt that failed before the request was sent returns
//! it ([`HopError::Unsent`]); after that the other replica may have executed it
//! ([`HopError::Broken`]). A connection carries one request at a time, and is kept after the
//! response has been read to its end.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
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
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::certificate::{FleetTls, server_name};
use super::view::Replica;
use crate::sealing::Instance;
use crate::sync::Mutex;

/// Connections to the other replicas. Cheap to clone.
#[derive(Clone)]
pub(super) struct HopPool {
    tls: FleetTls,
    idle: Arc<Mutex<HashMap<Instance, Vec<IdleHop>>>>,
    tasks: TaskTracker,
    /// Ends all connections that are not in use.
    stop: CancellationToken,
}

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
            match self.send_on(member.instance, sender, request).await {
                Err(HopError::Unsent(unsent)) => request = *unsent,
                sent => return sent,
            }
        }
        match timeout(CONNECT_TIMEOUT, self.connect(member)).await {
            Ok(Ok(sender)) => self.send_on(member.instance, sender, request).await,
            failed => {
                let error = failed.map_or_else(|late| late.to_string(), |it| describe(it.err()));
                debug!(member = member.record.name, %error, "replica cannot be reached");
                Err(HopError::Unsent(request.into()))
            }
        }
    }

    async fn send_on(
        &self,
        instance: Instance,
        mut sender: Sender,
        request: HopRequest,
    ) -> Result<Response<HopBody>, HopError> {
        match sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| HopBody {
                body,
                connection: Some((instance, sender)),
                pool: self.clone(),
            })),
            Err(mut error) => Err(match error.take_message() {
                Some(unsent) => HopError::Unsent(unsent.into()),
                None => HopError::Broken,
            }),
        }
    }

    async fn connect(&self, member: &Replica) -> io::Result<Sender> {
        let stream = TcpStream::connect(&member.record.address).await?;
        stream.set_nodelay(true)?;
        // A machine that is gone without a word ends the requests that wait for it.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(&stream, SILENCE / 5)?;
        sockopt::set_tcp_user_timeout(&stream, 2_000 * SILENCE.as_secs() as u32)?;
        let stream = self.tls.connector.connect(server_name(member.instance), stream).await?;
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
        let kept = idle.get_mut(&instance)?;
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
        let kept = idle.entry(instance).or_default();
        if kept.len() < MAX_KEPT {
            kept.push(IdleHop { sender, since: Instant::now() });
        }
    }

    /// Closes the connections to replicas that are no members any more.
    pub(super) fn retain(&self, is_member: impl Fn(Instance) -> bool) {
        self.idle.lock().retain(|instance, _| is_member(*instance));
    }

    /// Closes all connections that are not in use, now and later.
    pub(super) fn close(&self) {
        self.stop.cancel();
        self.idle.lock().clear();
    }
}

fn describe(error: Option<io::Error>) -> String {
    error.map(|error| error.to_string()).unwrap_or_default()
}

impl Body for HopBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => {}
            Some(Err(_)) => self.connection = None,
            None => {
                if let Some((instance, sender)) = self.connection.take() {
                    self.pool.keep(instance, sender);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Longest time for a connection with its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);
/// Time without a sign of the other machine after which it is asked for one.
const SILENCE: Duration = Duration::from_secs(5);
/// Most kept connections to one replica; more are closed after their request.
const MAX_KEPT: usize = 256;
/// Time for which an unused connection is kept: less than the other side keeps it, even if its
/// memory is scarce.
const MAX_IDLE: Duration = Duration::from_secs(4);
