//! Pool of HTTP/1.1 connections to one server, reused where that is safe.
//!
//! Invariants: a connection is pooled only after its response was read to the end and was a
//! success; if a response is dropped earlier its connection is closed at once, so that the server
//! notices. A connection is used only by the runtime in which it was opened, so that received bytes
//! wake no other thread. A request is sent a second time only if hyper returns it unsent, or if it
//! is a GET that failed on a pooled connection. No redirect is followed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderMap, HeaderName};
use hyper::{Method, Request, Response, Uri};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::{Connect, Destination, Egress};
use crate::message::message_trace::{BodyTrace, MessageTrace};
use crate::message::{SentFlag, TransportError};
use crate::transport::echo_filter::EchoFilter;
use crate::transport::min_rate::{MinRate, TOO_SLOW};
use weir_base::net::http_connection::HttpConnection;
use weir_base::tasks::fairness::Workload;
use weir_base::tasks::sync::Mutex;
use weir_oauth::Account;

/// Header with the idle timeout of a server.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Idle timeout of a connection if its server sets none. Node.js closes after 5 s.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest idle timeout that is accepted from a server.
const MAX_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Margin by which Weir closes an idle connection before its server does.
const IDLE_MARGIN: Duration = Duration::from_secs(1);
/// Timeout for a pooled connection to become ready.
const READY_TIMEOUT: Duration = Duration::from_millis(100);
/// Time for which the rest of an unwanted response is read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes of it that are read.
const DRAIN_BYTES: usize = 64 * 1024;

/// Pool of connections to one server.
pub(crate) struct HttpPool {
    io: Arc<dyn Connect>,
    /// URL of the server.
    pub(crate) url: Uri,
    /// Way to the server.
    egress: Egress,
    /// Connect timeout.
    connect_timeout: Duration,
    /// Maximum number of idle connections.
    max_idle: usize,
    idle: Mutex<IdleConnections>,
    pub(crate) tracker: TaskTracker,
    /// Fires with the token given to [`HttpPool::new`], and when the pool is dropped.
    stop: CancellationToken,
}

#[derive(Default)]
struct IdleConnections {
    /// Idle connections with their expiry. The most recently used one is the last.
    connections: Vec<(Box<HttpConnection>, Instant)>,
    /// Whether a sweep task runs.
    sweep_runs: bool,
}

impl Drop for HttpPool {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl HttpPool {
    /// Creates a pool of connections to the server of a URL, of which at most `max_idle` may be
    /// idle. All of them close when `stop` fires.
    pub(crate) fn new(
        io: Arc<dyn Connect>,
        (url, egress): (Uri, Egress),
        max_idle: usize,
        connect_timeout: Duration,
        tracker: TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let (idle, stop) = (Mutex::default(), stop.child_token());
        Arc::new(Self { io, url, egress, connect_timeout, max_idle, idle, tracker, stop })
    }

    /// Sends a request and waits for the head of its response; `sent` is set before the request is
    /// written. Dropping the future, or the response before its end, closes the connection.
    pub(crate) async fn send(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
        sent: &SentFlag,
    ) -> Result<Response<PooledBody>, TransportError> {
        self.egress.prepare(&self.url, &mut request);
        let mut pooled = self.take_ready().await;
        loop {
            let is_pooled = pooled.is_some();
            let mut connection = match pooled.take() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            sent.mark_sent();
            let copy = if is_pooled { retryable_copy(&request) } else { None };
            let mut error = match connection.send(request).await {
                Ok(response) => return Ok(self.response(response, connection)),
                Err(error) => error,
            };
            let Some(again) = error.take_message().or(copy) else {
                return Err(broken(&connection, error.into_error()));
            };
            sent.mark_unsent();
            if !is_pooled {
                return Err(TransportError::NotSent(connection.describe(&error.into_error())));
            }
            // The server closed the idle connection, either before it saw a byte of the request or
            // possibly after that.
            request = again;
        }
    }

    async fn connect(&self) -> Result<Box<HttpConnection>, TransportError> {
        let Self { url, egress, connect_timeout: timeout, .. } = self;
        let to = Destination { url, timeout: *timeout, allowed: None, egress };
        let stream = self.io.connect(to).await;
        let stream = stream.map_err(|error| TransportError::NotSent(error.to_string()))?;
        let connection = HttpConnection::open(stream, self.stop.clone()).await;
        connection.map(Box::new).map_err(|error| TransportError::NotSent(error.to_string()))
    }

    fn response(
        self: &Arc<Self>,
        response: Response<Incoming>,
        connection: Box<HttpConnection>,
    ) -> Response<PooledBody> {
        // A server may send an error response before it has read the request, and then close the
        // connection.
        let is_refusal = !response.status().is_success();
        let idle_timeout =
            if is_refusal { Duration::ZERO } else { idle_timeout_of(response.headers()) };
        response.map(|body| {
            let mut body = PooledBody {
                body,
                connection: Some(connection),
                idle_timeout,
                min_rate: MinRate::default(),
                workload: Workload::default(),
                echo_filter: None,
                trace: None,
                pool: Arc::clone(self),
            };
            if body.body.is_end_stream() {
                body.return_to_pool();
            }
            body
        })
    }

    /// Takes an idle connection of this runtime, the most recently used first.
    fn take_idle(&self) -> Option<Box<HttpConnection>> {
        let (now, here) = (Instant::now(), Handle::current().id());
        let mut idle = self.idle.lock();
        while let Some(at) =
            idle.connections.iter().rposition(|(connection, _)| connection.runtime_id == here)
        {
            let (connection, until) = idle.connections.remove(at);
            if until > now && !connection.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    /// Takes an idle connection that can take a request now.
    async fn take_ready(&self) -> Option<Box<HttpConnection>> {
        while let Some(mut connection) = self.take_idle() {
            // The connection may have been returned before the end of its last exchange was seen.
            // If it is not ready soon, its server never read the whole request.
            let is_ready = timeout(READY_TIMEOUT, connection.is_ready()).await;
            if is_ready == Ok(true) {
                return Some(connection);
            }
        }
        None
    }

    /// Adds an idle connection until its timeout. If the pool is full, the least recently used one
    /// is closed: that may belong to a runtime that does not need it any more.
    fn add_idle(self: &Arc<Self>, connection: Box<HttpConnection>, time: Duration) {
        let mut idle = self.idle.lock();
        // After the pool's end no sweep would close the connection.
        if time.is_zero()
            || connection.is_closed()
            || self.max_idle == 0
            || self.stop.is_cancelled()
        {
            return;
        }
        if idle.connections.len() >= self.max_idle {
            idle.connections.remove(0);
        }
        idle.connections.push((connection, Instant::now() + time));
        if !idle.sweep_runs {
            idle.sweep_runs = true;
            self.tracker.spawn(sweep(Arc::downgrade(self), self.stop.clone()));
        }
    }

    /// Closes the connections whose idle timeout has passed. Returns the next expiry; `None` if
    /// none are left.
    fn remove_expired(&self) -> Option<Instant> {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        idle.connections.retain(|(_, until)| *until > now);
        let next = idle.connections.iter().map(|(_, until)| *until).min();
        idle.sweep_runs = next.is_some();
        next
    }
}

/// Returns the error of a request that was written, at least in part.
fn broken(connection: &HttpConnection, error: hyper::Error) -> TransportError {
    if connection.is_flooded() {
        return TransportError::Protocol(
            "it sent more than 128 KiB of informational responses before its response".into(),
        );
    }
    TransportError::ConnectionLost(connection.describe(&error))
}

/// Returns a copy of the request that may be sent once more if a pooled connection breaks, which
/// its server may have closed before it read any of it: only of a safe method (RFC 9110, 9.2.2).
fn retryable_copy(request: &Request<Full<Bytes>>) -> Option<Request<Full<Bytes>>> {
    (request.method() == Method::GET).then(|| request.clone())
}

/// Returns the idle timeout of a connection after this response.
fn idle_timeout_of(headers: &HeaderMap) -> Duration {
    let text = headers.get(KEEP_ALIVE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let timeout = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="));
    match timeout.and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => {
            Duration::from_secs(seconds).saturating_sub(IDLE_MARGIN).min(MAX_IDLE_TIMEOUT)
        }
        None => DEFAULT_IDLE_TIMEOUT,
    }
}

/// Closes idle connections when their timeout passes, for as long as there are any.
async fn sweep(pool: Weak<HttpPool>, stop: CancellationToken) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.remove_expired()) {
        if stop.run_until_cancelled(tokio::time::sleep_until(next)).await.is_none() {
            break;
        }
    }
    // The pool is shutting down and no later sweep will run.
    if stop.is_cancelled()
        && let Some(pool) = pool.upgrade()
    {
        pool.idle.lock().connections.clear();
    }
}

// === PooledBody ===

/// Body of a response. Once it has been read to the end its connection returns to the pool.
pub(crate) struct PooledBody {
    body: Incoming,
    connection: Option<Box<HttpConnection>>,
    idle_timeout: Duration,
    /// Minimum rate. If no end of a message is recorded in it, the body is one message.
    pub(crate) min_rate: MinRate,
    workload: Workload,
    echo_filter: Option<EchoFilter>,
    trace: Option<Box<BodyTrace>>,
    pool: Arc<HttpPool>,
}

impl PooledBody {
    /// Hides the access tokens of this account, should the server repeat them.
    pub(crate) fn hide_tokens(mut self, account: &Account) -> Self {
        self.echo_filter = Some(EchoFilter::new(account.token_finders()));
        self
    }

    /// Traces the body, as one message.
    pub(crate) fn with_trace(mut self, trace: &Arc<MessageTrace>) -> Self {
        self.trace = Some(Box::new(BodyTrace::new(Arc::clone(trace))));
        self
    }

    /// Takes the trace of a body that has several messages, before any of it is read.
    pub(crate) fn take_trace(&mut self) -> Option<Arc<MessageTrace>> {
        self.trace.take().map(|trace| trace.into_trace())
    }

    /// Returns the next piece; `None` at the end. Fails also if a message that has begun arrives
    /// too slowly. Yields after a bounded number of pieces. Cancel-safe.
    pub(crate) async fn chunk(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            let piece = self.read_piece().await;
            let Some(filter) = &mut self.echo_filter else { return self.traced(piece) };
            let (passed, is_end) = match piece {
                Some(Ok(piece)) => (filter.push(piece), false),
                None => (filter.finish(), true),
                Some(Err(error)) => return Some(Err(error)),
            };
            if !passed.is_empty() {
                return self.traced(Some(Ok(passed)));
            }
            if is_end {
                return self.traced(None);
            }
        }
    }

    fn traced(&mut self, piece: Option<Result<Bytes, String>>) -> Option<Result<Bytes, String>> {
        if let Some(trace) = &mut self.trace
            && let Ok(piece) = piece.as_ref().map(Result::as_ref).transpose()
        {
            trace.read(piece);
        }
        piece
    }

    async fn read_piece(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            self.workload.add(0);
            self.workload.yield_if_due().await;
            // The end of a body of known length needs no further read.
            if self.body.is_end_stream() {
                self.return_to_pool();
                return None;
            }
            // Without a connection nothing more will arrive.
            let frame = self.connection.as_mut()?.frame(&mut self.body);
            let Some(next) = self.min_rate.wait(frame).await else {
                return Some(Err(TOO_SLOW.into()));
            };
            match next {
                None => {
                    self.return_to_pool();
                    return None;
                }
                Some(Err(error)) => return Some(Err(error.to_string())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        self.min_rate.on_bytes(&data);
                        return Some(Ok(data));
                    }
                    // Trailers have no meaning here.
                    Err(_) => {}
                },
            }
        }
    }

    /// Length of the body, if the server sent it.
    pub(crate) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Reads the rest of an unwanted body, so that the connection can be reused; gives up if it is
    /// long or slow.
    pub(crate) fn drain(mut self) {
        if self.connection.is_none() {
            return;
        }
        let (tracker, stop) = (self.pool.tracker.clone(), self.pool.stop.clone());
        tracker.spawn(async move {
            let rest = async {
                let mut read = 0;
                while let Some(Ok(chunk)) = self.chunk().await {
                    read += chunk.len();
                    if read > DRAIN_BYTES {
                        return;
                    }
                }
            };
            let _ = stop.run_until_cancelled(timeout(DRAIN_TIMEOUT, rest)).await;
        });
    }

    fn return_to_pool(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.add_idle(connection, self.idle_timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::runtime::Builder;
    use tokio::sync::mpsc;

    use crate::connect::{Child, ChildCommand};
    use crate::transport::http_pool::*;
    use weir_base::net::http_connection::ByteStream;

    /// Sends the server's end of each connection to a channel.
    struct DuplexConnect(mpsc::UnboundedSender<DuplexStream>);

    impl Connect for DuplexConnect {
        fn connect<'a>(
            &'a self,
            _: Destination<'a>,
        ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
            let (ours, theirs) = duplex(64 * 1024);
            let _ = self.0.send(theirs);
            async { Ok(Box::new(ours) as Box<dyn ByteStream>) }.boxed()
        }

        fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    struct World {
        pool: Arc<HttpPool>,
        servers: mpsc::UnboundedReceiver<DuplexStream>,
        tasks: TaskTracker,
        stop: CancellationToken,
    }

    impl World {
        fn new() -> Self {
            Self::keeping(32)
        }

        fn keeping(max_idle: usize) -> Self {
            let (sender, servers) = mpsc::unbounded_channel();
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let url = Uri::from_static("http://server/mcp");
            let pool = HttpPool::new(
                Arc::new(DuplexConnect(sender)),
                (url, Egress::default()),
                max_idle,
                DEFAULT_IDLE_TIMEOUT,
                tasks.clone(),
                &stop,
            );
            Self { pool, servers, tasks, stop }
        }

        /// Starts an exchange.
        fn start_get(
            &self,
        ) -> impl Future<Output = Result<Response<PooledBody>, TransportError>> + use<> {
            self.start(Method::GET)
        }

        fn start(
            &self,
            method: Method,
        ) -> impl Future<Output = Result<Response<PooledBody>, TransportError>> + use<> {
            let (pool, sent) = (self.pool.clone(), SentFlag::default());
            let mut request = Request::new(Full::default());
            *request.method_mut() = method;
            async move { pool.send(request, &sent).await }
        }

        async fn finish(self) {
            let Self { pool, servers: _servers, tasks, stop } = self;
            drop(pool);
            stop.cancel();
            tasks.close();
            tasks.wait().await;
        }
    }

    async fn respond(server: &mut DuplexStream, text: &str) {
        let mut request = [0_u8; 1_024];
        let read = server.read(&mut request).await.expect("a request");
        assert!(request[..read].starts_with(b"GET"));
        server.write_all(text.as_bytes()).await.expect("space");
    }

    /// Completes an exchange over the next new connection, which is pooled after it.
    async fn exchange(world: &mut World) -> DuplexStream {
        let (response, server) = tokio::join!(world.start_get(), async {
            let mut server = world.servers.recv().await.expect("a connection");
            respond(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            server
        });
        let mut body = response.expect("a response").into_body();
        assert_eq!(body.chunk().await.expect("a chunk").expect("ok"), "ok");
        assert!(body.chunk().await.is_none());
        server
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_used_again_unless_its_server_has_closed_it() {
        let mut world = World::new();
        let mut server = exchange(&mut world).await;
        let again = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (response, ()) = tokio::join!(world.start_get(), respond(&mut server, again));
        drop(response.expect("a response over the same connection"));
        drop(server);
        // The next exchange uses another connection.
        let server = exchange(&mut world).await;
        drop(server);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_post_does_not_break_on_a_connection_that_its_server_closed_meanwhile() {
        let mut world = World::new();
        drop(exchange(&mut world).await);
        let (response, server) = tokio::join!(world.start(Method::POST), async {
            let mut server = world.servers.recv().await.expect("another connection");
            assert!(server.read(&mut [0; 1_024]).await.expect("a request") > 0);
            server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("space");
            server
        });
        assert_eq!(response.expect("a response").status(), 204);
        drop(server);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_its_server_will_close_is_closed_at_the_end_of_the_response() {
        let mut world = World::new();
        let text = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\n";
        for parts in [["", "done"], ["do", "ne"]] {
            let (response, mut server) = tokio::join!(world.start_get(), async {
                let mut server = world.servers.recv().await.expect("a connection");
                respond(&mut server, &format!("{text}{}", parts[0])).await;
                server
            });
            let mut body = response.expect("a response").into_body();
            let rest = async {
                tokio::task::yield_now().await;
                server.write_all(parts[1].as_bytes()).await.expect("space");
            };
            let read = async {
                while let Some(chunk) = body.chunk().await {
                    chunk.expect("ok");
                }
            };
            tokio::join!(read, rest);
            assert_eq!(server.read(&mut [0]).await.expect("an end"), 0);
            assert!(world.pool.take_idle().is_none());
        }
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_used_again_only_by_the_runtime_in_which_it_was_opened() {
        let mut world = World::new();
        let server = exchange(&mut world).await;
        let elsewhere = Builder::new_current_thread().build().expect("a runtime");
        let entered = elsewhere.enter();
        assert!(world.pool.take_idle().is_none());
        drop(entered);
        assert!(world.pool.take_idle().is_some());
        elsewhere.shutdown_background();
        drop(server);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_takes_the_place_of_the_one_that_was_used_least_recently() {
        let mut world = World::keeping(1);
        let first = exchange(&mut world).await;
        let connection = world.pool.take_idle().expect("the first one");
        let mut second = exchange(&mut world).await;
        world.pool.add_idle(connection, DEFAULT_IDLE_TIMEOUT);
        assert_eq!(second.read(&mut [0]).await.expect("an end"), 0);
        assert!(world.pool.take_idle().is_some());
        drop(first);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_which_something_was_refused_is_not_used_again() {
        let mut world = World::new();
        let mut server = exchange(&mut world).await;
        let refusal = "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n";
        let (response, ()) = tokio::join!(world.start_get(), respond(&mut server, refusal));
        drop(response.expect("a response"));
        assert_eq!(server.read(&mut [0]).await.expect("an end"), 0);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_does_nothing_goes_out_once_more_when_a_kept_connection_breaks_on_it() {
        let mut world = World::new();
        let read_and_close = async |mut server: DuplexStream| {
            assert!(server.read(&mut [0; 1_024]).await.expect("a request") > 0);
        };
        let server = exchange(&mut world).await;
        let (broken, ()) = tokio::join!(world.start(Method::POST), read_and_close(server));
        assert!(matches!(broken, Err(TransportError::ConnectionLost(_))));
        let server = exchange(&mut world).await;
        let (response, ()) = tokio::join!(world.start_get(), async {
            read_and_close(server).await;
            let mut server = world.servers.recv().await.expect("another connection");
            respond(&mut server, "HTTP/1.1 204 No Content\r\n\r\n").await;
        });
        assert_eq!(response.expect("a response").status(), 204);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_closes_in_its_time_and_then_nothing_is_left_to_do() {
        let mut world = World::new();
        let mut server = exchange(&mut world).await;
        let begin = Instant::now();
        assert_eq!(server.read(&mut [0]).await.expect("an end"), 0);
        assert_eq!(begin.elapsed(), DEFAULT_IDLE_TIMEOUT);
        world.tasks.close();
        world.tasks.wait().await;
        world.tasks.reopen();
        exchange(&mut world).await;
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_the_end_of_all_cuts_is_broken_and_not_short() {
        let mut world = World::new();
        let begun = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok";
        let (response, server) = tokio::join!(world.start_get(), async {
            let mut server = world.servers.recv().await.expect("a connection");
            respond(&mut server, begun).await;
            server
        });
        let mut body = response.expect("a response").into_body();
        assert_eq!(body.chunk().await.expect("a chunk").expect("ok"), "ok");
        world.stop.cancel();
        assert!(body.chunk().await.expect("not its end").is_err());
        drop((body, server));
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_dropped_closes_its_connection_at_once() {
        let mut world = World::new();
        let (response, mut server) = tokio::join!(world.start_get(), async {
            let mut server = world.servers.recv().await.expect("a connection");
            respond(&mut server, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            server
        });
        drop(response);
        assert_eq!(server.read(&mut [0]).await.expect("an end"), 0);
        world.finish().await;
    }
}
