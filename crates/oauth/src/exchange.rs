//! Exchanges with authorization servers whose response must not be lost: the server has replaced a
//! refresh token, or has redeemed a code, as soon as it has the request.
//!
//! Invariants: an exchange begins when its connection is there and its request is written next, and
//! lasts until its owner drops it. Once [`finish_exchanges`] was called, none begins.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::{Request, Response};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::net::http_send::HttpSend;

/// Exchange for the sign-in to one upstream. It ends when the last clone is dropped.
#[derive(Clone)]
pub struct Exchange(Arc<Inner>);

struct Inner {
    upstream: String,
    has_begun: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.has_begun.get_mut() {
            EXCHANGES.send_modify(|all| {
                if let Some(at) = all.upstreams.iter().position(|it| *it == self.upstream) {
                    all.upstreams.swap_remove(at);
                }
            });
        }
    }
}

impl Exchange {
    /// Creates an exchange that has not begun.
    pub fn new(upstream: &str) -> Self {
        let has_begun = AtomicBool::new(false);
        Self(Arc::new(Inner { upstream: upstream.to_owned(), has_begun }))
    }

    /// Returns an HTTP client whose requests belong to this exchange.
    pub fn over<'a>(&self, http: &'a dyn HttpSend) -> ExchangeHttp<'a> {
        ExchangeHttp { http, exchange: self.clone() }
    }

    /// Begins the exchange of a request, if it belongs to one. The request is written next.
    ///
    /// # Errors
    ///
    /// Weir is stopping, and waits for no other exchange.
    pub fn begin(request: &mut Request<Bytes>) -> Result<(), String> {
        let Some(Self(inner)) = request.extensions_mut().remove() else { return Ok(()) };
        let mut is_closed = false;
        EXCHANGES.send_modify(|all| {
            is_closed = all.is_closed;
            if !is_closed && !inner.has_begun.swap(true, Ordering::Relaxed) {
                all.upstreams.push(inner.upstream.clone());
            }
        });
        if is_closed { Err("Weir is stopping".into()) } else { Ok(()) }
    }

    /// Returns whether the request was written, or is written next.
    pub fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exchange").field(&self.0.upstream).finish()
    }
}

/// HTTP client of an exchange.
pub struct ExchangeHttp<'a> {
    http: &'a dyn HttpSend,
    exchange: Exchange,
}

impl HttpSend for ExchangeHttp<'_> {
    fn send<'a>(
        &'a self,
        mut request: Request<Bytes>,
        limit: usize,
        allowed: Option<&'a AllowedAddresses>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, String>> {
        request.extensions_mut().insert(self.exchange.clone());
        self.http.send(request, limit, allowed)
    }
}

/// Lets no exchange begin any more, and waits for those that have begun, for at most
/// [`RESPONSE_TIMEOUT`]. `announce` is called with their upstreams, if there are any.
pub async fn finish_exchanges(announce: impl FnOnce(&[String])) {
    let mut exchanges = EXCHANGES.subscribe();
    EXCHANGES.send_modify(|all| all.is_closed = true);
    let upstreams = exchanges.borrow().upstreams.clone();
    if !upstreams.is_empty() {
        announce(&upstreams);
        let ended = exchanges.wait_for(|all| all.upstreams.is_empty());
        let _ = timeout_awake(RESPONSE_TIMEOUT, ended).await;
    }
}

/// Waits for `work`, for at most `limit`. A process that was stopped meanwhile, for example by
/// Ctrl-Z, still gets what has come in that time: it counts for a second at most.
pub async fn timeout_awake<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut rest) = (pin!(work), limit);
    while !rest.is_zero() {
        let (begin, tick) = (Instant::now(), rest.min(TICK));
        if let Ok(done) = timeout(tick, &mut work).await {
            return Some(done);
        }
        rest -= tick;
        if begin.elapsed() > tick + TICK {
            // It was stopped: what has come is not read yet.
            rest = rest.max(TICK);
        }
    }
    None
}

/// Exchanges of this process.
#[derive(Default)]
struct Exchanges {
    /// Upstream of each exchange that has begun.
    upstreams: Vec<String>,
    /// Whether none begins any more.
    is_closed: bool,
}

/// One for the process, because whatever ends it has to wait: a signal, an error or a panic.
static EXCHANGES: LazyLock<watch::Sender<Exchanges>> = LazyLock::new(watch::Sender::default);

/// Part of a time limit for which a process that was stopped cannot have waited.
const TICK: Duration = Duration::from_secs(1);
/// Longest wait for the response of an authorization server when Weir is stopping.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
