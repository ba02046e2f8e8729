//! The server behind Weir: one tool with a given duration, which counts its executions.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_mcp::jsonrpc::{self, Message};

use crate::lab::ledger::{Executions, Ledger, Summary};

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    executed: Mutex<Executions>,
    under_way: AtomicUsize,
    /// Number of calls executed at a time.
    workers: Semaphore,
    capacity: usize,
    /// Whether calls waited at the end of each execution.
    turns: Mutex<Vec<bool>>,
    released: CancellationToken,
}

impl Server {
    /// Starts a server that executes this number of calls at a time.
    pub(crate) async fn start(capacity: usize) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (executed, under_way) = (Mutex::default(), AtomicUsize::new(0));
        let (workers, turns) = (Semaphore::new(capacity), Mutex::default());
        let released = CancellationToken::new();
        let server = Self { address, executed, under_way, workers, capacity, turns, released };
        let server = Arc::new(server);
        let (tasks, serving) = (TaskTracker::new(), Arc::clone(&server));
        tasks.clone().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let server = Arc::clone(&serving);
                let service = service_fn(move |request| {
                    let server = Arc::clone(&server);
                    async move { Ok::<_, Infallible>(server.serve(request).await) }
                });
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tasks.spawn(async move {
                    let _ = serving.await;
                });
            }
        });
        server
    }

    pub(crate) fn executed(&self) -> Executions {
        self.executed.lock().expect("the lock is not poisoned").clone()
    }

    /// Compares a ledger with the executions: an answered call was executed once, a refused one
    /// never, and none twice.
    pub(crate) fn compare(&self, ledger: &Ledger) -> Summary {
        let calls = ledger.compare(&HashMap::from([("hub", self.executed())])).remove("hub");
        let calls = calls.expect("there were calls");
        assert_eq!(calls.executions_of_refused, 0, "{calls:?}");
        calls
    }

    /// Number of calls that have arrived and are not answered.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Whether calls waited at the end of each execution so far.
    pub(crate) fn turns(&self) -> Vec<bool> {
        self.turns.lock().expect("the lock is not poisoned").clone()
    }

    /// Lets the held calls begin, and all later ones at once.
    pub(crate) fn release(&self) {
        self.released.cancel();
    }

    /// Waits until this number of calls is in flight.
    pub(crate) async fn has_under_way(&self, calls: usize) {
        while self.under_way() < calls {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::POST {
            return reply(405, Bytes::new());
        }
        let Ok(body) = request.into_body().collect().await else {
            return reply(400, Bytes::new());
        };
        let Ok(Message::Request(request)) = Message::parse(body.to_bytes()) else {
            return reply(202, Bytes::new());
        };
        let result = match &*request.method {
            "server/discover" => {
                r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":3600000,"cacheScope":"public"}"#.to_owned()
            }
            "tools/list" => {
                r#"{"resultType":"complete","tools":[{"name":"a","inputSchema":{"type":"object"}}],"ttlMs":3600000,"cacheScope":"public"}"#.to_owned()
            }
            "tools/call" => self.call(&request).await,
            _ => {
                let error = br#"{"code":-32601,"message":"Method not found"}"#;
                return reply(404, jsonrpc::write_error(Some(&request.id), error));
            }
        };
        reply(200, jsonrpc::write_result(&request.id, result.as_bytes()))
    }

    async fn call(&self, request: &jsonrpc::Request) -> String {
        let arguments = request.params.get_object("arguments").expect("arguments");
        let number = |name| arguments.get(name).map_or(0, |text| text.parse().expect("a number"));
        let nonce: u64 = number("nonce");
        *self
            .executed
            .lock()
            .expect("the lock is not poisoned")
            .entry(nonce.to_string())
            .or_default() += 1;
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let _under_way = InFlightGuard(&self.under_way);
        if arguments.get("held") == Some("true") {
            self.released.cancelled().await;
        }
        let _turn = self.workers.acquire().await.expect("it is never closed");
        tokio::time::sleep(Duration::from_millis(number("wait"))).await;
        let others_wait = self.under_way() > self.capacity;
        self.turns.lock().expect("the lock is not poisoned").push(others_wait);
        let text = "x".repeat(number("bytes") as usize);
        format!(
            r#"{{"resultType":"complete","content":[{{"type":"text","text":"{nonce}.{text}"}}]}}"#
        )
    }
}

/// Counts a call as ended when dropped.
struct InFlightGuard<'a>(&'a AtomicUsize);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn reply(status: u16, body: Bytes) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Full::new(body)).expect("a response")
}
