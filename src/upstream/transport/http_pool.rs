//! HTTP/1.1 connections to one server, used again where that is safe.
//!
//! Promises: a connection is pooled only after its response was read to the end and was no refusal; one whose response
//! is dropped earlier is closed at once, so that the server notices. A connection is used by the runtime alone in which it
//! was opened, so that what comes over it wakes no other thread. A request goes out a second time only
//! if hyper hands it back unsent, or if it is a GET that broke on a connection kept from before. No redirect is followed.
//!
//! Knows nothing of: what requests and responses hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, Uri};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fairness::Workload;
use crate::upstream::connect::Dial;
use crate::upstream::message::Sent;
use crate::upstream::transport::http_connection::Lease;
use crate::upstream::transport::min_rate::{Pace, TOO_SLOW};

/// How long a connection may idle where its server does not say. Node closes after 5 s.
const IDLE: Duration = Duration::from_secs(4);
/// The longest idle time that is believed.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// How much earlier than the server we let go of a connection.
const IDLE_MARGIN: Duration = Duration::from_secs(1);
/// How long a pooled connection may take to be ready.
const READY: Duration = Duration::from_millis(100);
/// How long the end of a response is waited for once nobody wants the rest.
const DRAIN: Duration = Duration::from_secs(1);
/// How many bytes of it are read.
const DRAIN_BYTES: usize = 64 * 1024;

/// The connections to one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    dial: Arc<dyn Dial>,
    url: Uri,
    /// How long connecting may take.
    connect: Duration,
    /// How many connections may idle.
    most: usize,
    idle: Mutex<Idle>,
    tasks: TaskTracker,
    /// Fires with the one that was given, and when nobody has the pool any more.
    stop: CancellationToken,
}

#[derive(Default)]
struct Idle {
    /// With the end of the time that each may idle. The most recently used stands last.
    leases: Vec<(Lease, Instant)>,
    /// Whether somebody looks after them.
    is_swept: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum NoResponse {
    /// The request was not written.
    Unsent(String),
    /// It was, at least in part.
    Broke(String),
    /// It was, and no response followed the informational ones, of which there were too many.
    Flooded,
}

impl Pool {
    /// A pool of connections to the server of `url`, of which at most so many are kept while they idle. All of them
    /// close when `stop` fires.
    pub(crate) fn new(
        dial: Arc<dyn Dial>,
        url: Uri,
        most: usize,
        connect: Duration,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (idle, stop) = (Mutex::default(), stop.child_token());
        Self { shared: Arc::new(Shared { dial, url, connect, most, idle, tasks, stop }) }
    }

    /// Sends a request and waits for the head of its response; `sent` tells once it begins to be written. Dropping the future, or the response
    /// before its end, closes the connection.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        sent: &Sent,
    ) -> Result<Response<Arrival>, NoResponse> {
        while let Some(mut lease) = self.shared.take_idle() {
            // It may have been left before the end of the last exchange was seen; one that takes long over it has a
            // server that never read the whole request.
            if !matches!(tokio::time::timeout(READY, lease.is_ready()).await, Ok(true)) {
                continue;
            }
            sent.begin();
            let again = repeatable(&request);
            match lease.send(request).await {
                Ok(response) => return Ok(self.response(response, lease)),
                // The server closed the idle connection before it saw a byte of the request, or may well have.
                Err(mut error) => match error.take_message().or(again) {
                    Some(unsent) => {
                        sent.take_back();
                        request = unsent;
                        break;
                    }
                    None => return Err(broke(&lease, error.into_error())),
                },
            }
        }
        let mut lease = self.connect().await?;
        sent.begin();
        match lease.send(request).await {
            Ok(response) => Ok(self.response(response, lease)),
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                if unsent {
                    sent.take_back();
                }
                let error = error.into_error();
                Err(if unsent {
                    NoResponse::Unsent(error.to_string())
                } else {
                    broke(&lease, error)
                })
            }
        }
    }

    async fn connect(&self) -> Result<Lease, NoResponse> {
        let unsent = |text: String| NoResponse::Unsent(text);
        let stream = self.shared.dial.connect(&self.shared.url, self.shared.connect).await;
        let stream = stream.map_err(|error| unsent(error.to_string()))?;
        let lease = Lease::open(stream, self.shared.stop.clone()).await;
        lease.map_err(|error| unsent(error.to_string()))
    }

    fn response(&self, response: Response<Incoming>, lease: Lease) -> Response<Arrival> {
        // Who refuses may do so before the request was read, and close the connection behind the answer.
        let is_refusal = !response.status().is_success();
        let keep = if is_refusal { Duration::ZERO } else { keep_alive(response.headers()) };
        let pool = self.clone();
        response.map(|body| {
            let (pace, workload) = (Pace::default(), Workload::default());
            let mut body = Arrival { body, lease: Some(lease), keep, pace, workload, pool };
            if body.body.is_end_stream() {
                body.give_back();
            }
            body
        })
    }
}

fn broke(lease: &Lease, error: hyper::Error) -> NoResponse {
    if lease.is_flooded() { NoResponse::Flooded } else { NoResponse::Broke(error.to_string()) }
}

/// The request, to be sent once more should a kept connection break on it, which its server may have closed before it
/// read any of it: only one that does nothing (RFC 9110, 9.2.2).
fn repeatable(request: &Request<Full<Bytes>>) -> Option<Request<Full<Bytes>>> {
    (request.method() == Method::GET).then(|| request.clone())
}

/// How long a connection may idle after this response.
fn keep_alive(headers: &HeaderMap) -> Duration {
    let text = headers.get("keep-alive").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let timeout = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="));
    match timeout.and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => Duration::from_secs(seconds).saturating_sub(IDLE_MARGIN).min(MAX_IDLE),
        None => IDLE,
    }
}

impl Shared {
    /// One of this runtime, the most recently used first.
    fn take_idle(&self) -> Option<Lease> {
        let (now, here) = (Instant::now(), Handle::current().id());
        let mut idle = self.idle();
        while let Some(at) = idle.leases.iter().rposition(|(lease, _)| lease.home() == here) {
            let (lease, until) = idle.leases.remove(at);
            if until > now && !lease.is_closed() {
                return Some(lease);
            }
        }
        None
    }

    /// Keeps a connection for as long as it may idle, in the place of the one that was used least recently if there is no
    /// other: that may be of a runtime that needs it no more.
    fn keep(self: &Arc<Self>, lease: Lease, time: Duration) {
        let mut idle = self.idle();
        // After the end of all nobody would look after it.
        if time.is_zero() || lease.is_closed() || self.most == 0 || self.stop.is_cancelled() {
            return;
        }
        if idle.leases.len() >= self.most {
            idle.leases.remove(0);
        }
        idle.leases.push((lease, Instant::now() + time));
        if !idle.is_swept {
            idle.is_swept = true;
            self.tasks.spawn(sweep(Arc::downgrade(self), self.stop.clone()));
        }
    }

    /// Closes what has idled for too long. Tells when there will be more; `None` if nothing is left.
    fn swept(&self) -> Option<Instant> {
        let mut idle = self.idle();
        let now = Instant::now();
        idle.leases.retain(|(_, until)| *until > now);
        let next = idle.leases.iter().map(|(_, until)| *until).min();
        idle.is_swept = next.is_some();
        next
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes idle connections when their time ends, for as long as there are any.
async fn sweep(shared: Weak<Shared>, stop: CancellationToken) {
    while let Some(next) = shared.upgrade().and_then(|shared| shared.swept()) {
        if stop.run_until_cancelled(tokio::time::sleep_until(next)).await.is_none() {
            break;
        }
    }
    if let Some(shared) = shared.upgrade() {
        // After the end of all there is nobody who would look again.
        if stop.is_cancelled() {
            shared.idle().leases.clear();
        }
    }
}

// === Arrival ===

/// A response's body. Once it has been read to the end its connection goes back to the pool.
pub(crate) struct Arrival {
    body: Incoming,
    lease: Option<Lease>,
    keep: Duration,
    pace: Pace,
    workload: Workload,
    pool: Pool,
}

impl Arrival {
    /// The next piece; `None` at the end. An error, too, if what has begun arrives too slowly. Yields after a bounded
    /// number of pieces. Cancel-safe.
    pub(crate) async fn chunk(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            self.workload.add(0);
            self.workload.yield_if_due().await;
            // Without a connection there is nothing left to come.
            let frame = self.lease.as_mut()?.frame(&mut self.body);
            let Some(next) = self.pace.wait(frame).await else {
                return Some(Err(TOO_SLOW.into()));
            };
            match next {
                None => {
                    self.give_back();
                    return None;
                }
                Some(Err(error)) => return Some(Err(error.to_string())),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => {
                        self.pace.took(&data);
                        return Some(Ok(data));
                    }
                    // Trailers say nothing here.
                    Err(_) => {}
                },
            }
        }
    }

    /// One of the messages in the body has ended, and perhaps the next one begun. Where this is never said, the
    /// body is one message.
    pub(crate) fn message_ended(&mut self, has_begun: bool) {
        self.pace.ended(has_begun);
    }

    /// How long the body is, if the server said so.
    pub(crate) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Reads the end of a body that nobody wants, so that the connection can be used again; a body
    /// that goes on for long is given up.
    pub(crate) fn drain(mut self) {
        if self.lease.is_none() {
            return;
        }
        let tasks = self.pool.shared.tasks.clone();
        let stop = self.pool.shared.stop.clone();
        tasks.spawn(async move {
            let rest = async {
                let mut read = 0;
                while let Some(Ok(chunk)) = self.chunk().await {
                    read += chunk.len();
                    if read > DRAIN_BYTES {
                        return;
                    }
                }
            };
            let _ = stop.run_until_cancelled(tokio::time::timeout(DRAIN, rest)).await;
        });
    }

    fn give_back(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.pool.shared.keep(lease, self.keep);
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

    use crate::upstream::connect::{Child, Command, Stream};
    use crate::upstream::transport::http_pool::*;

    /// Hands the server's side of each connection over.
    struct Wired(mpsc::UnboundedSender<DuplexStream>);

    impl Dial for Wired {
        fn connect<'a>(
            &'a self,
            _: &'a Uri,
            _: Duration,
        ) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            let (ours, theirs) = duplex(64 * 1024);
            let _ = self.0.send(theirs);
            async { Ok(Box::new(ours) as Box<dyn Stream>) }.boxed()
        }

        fn spawn(&self, _: &Command) -> io::Result<Child> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    struct World {
        pool: Pool,
        servers: mpsc::UnboundedReceiver<DuplexStream>,
        tasks: TaskTracker,
        stop: CancellationToken,
    }

    impl World {
        fn new() -> Self {
            Self::keeping(32)
        }

        fn keeping(most: usize) -> Self {
            let (sender, servers) = mpsc::unbounded_channel();
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let url = Uri::from_static("http://server/mcp");
            let pool =
                Pool::new(Arc::new(Wired(sender)), url, most, IDLE, tasks.clone(), stop.clone());
            Self { pool, servers, tasks, stop }
        }

        /// Begins an exchange.
        fn ask(&self) -> impl Future<Output = Result<Response<Arrival>, NoResponse>> + use<> {
            self.ask_by(Method::GET)
        }

        fn ask_by(
            &self,
            method: Method,
        ) -> impl Future<Output = Result<Response<Arrival>, NoResponse>> + use<> {
            let (pool, sent) = (self.pool.clone(), Sent::default());
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

    async fn say(server: &mut DuplexStream, text: &str) {
        let mut request = [0_u8; 1_024];
        let read = server.read(&mut request).await.expect("a request");
        assert!(request[..read].starts_with(b"GET"));
        server.write_all(text.as_bytes()).await.expect("room");
    }

    /// An exchange over the next new connection, which is pooled with it.
    async fn exchange(world: &mut World) -> DuplexStream {
        let (response, server) = tokio::join!(world.ask(), async {
            let mut server = world.servers.recv().await.expect("a connection");
            say(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
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
        let (response, ()) = tokio::join!(world.ask(), say(&mut server, again));
        drop(response.expect("a response over the same connection"));
        drop(server);
        // Over another one.
        let server = exchange(&mut world).await;
        drop(server);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_used_again_only_by_the_runtime_in_which_it_was_opened() {
        let mut world = World::new();
        let server = exchange(&mut world).await;
        let elsewhere = Builder::new_current_thread().build().expect("a runtime");
        let entered = elsewhere.enter();
        assert!(world.pool.shared.take_idle().is_none());
        drop(entered);
        assert!(world.pool.shared.take_idle().is_some());
        elsewhere.shutdown_background();
        drop(server);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_takes_the_place_of_the_one_that_was_used_least_recently() {
        let mut world = World::keeping(1);
        let first = exchange(&mut world).await;
        let lease = world.pool.shared.take_idle().expect("the first one");
        let mut second = exchange(&mut world).await;
        world.pool.shared.keep(lease, IDLE);
        assert_eq!(second.read(&mut [0]).await.expect("an end"), 0);
        assert!(world.pool.shared.take_idle().is_some());
        drop(first);
        world.finish().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_which_something_was_refused_is_not_used_again() {
        let mut world = World::new();
        let mut server = exchange(&mut world).await;
        let refusal = "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n";
        let (response, ()) = tokio::join!(world.ask(), say(&mut server, refusal));
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
        let (broke, ()) = tokio::join!(world.ask_by(Method::POST), read_and_close(server));
        assert!(matches!(broke, Err(NoResponse::Broke(_))));
        let server = exchange(&mut world).await;
        let (response, ()) = tokio::join!(world.ask(), async {
            read_and_close(server).await;
            let mut server = world.servers.recv().await.expect("another connection");
            say(&mut server, "HTTP/1.1 204 No Content\r\n\r\n").await;
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
        assert_eq!(begin.elapsed(), IDLE);
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
        let (response, server) = tokio::join!(world.ask(), async {
            let mut server = world.servers.recv().await.expect("a connection");
            say(&mut server, begun).await;
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
        let (response, mut server) = tokio::join!(world.ask(), async {
            let mut server = world.servers.recv().await.expect("a connection");
            say(&mut server, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            server
        });
        drop(response);
        assert_eq!(server.read(&mut [0]).await.expect("an end"), 0);
        world.finish().await;
    }
}
