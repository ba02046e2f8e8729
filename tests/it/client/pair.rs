//! A client over the HTTP+SSE pair: what it says goes out as POSTs one after another, what it hears comes on
//! one stream, as with lines.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use hyper::Method;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http::Http;
use super::stdio::{Routes, Stdio, deliver};
use super::string;
use crate::upstream::QUEUE;

/// Opens the stream. A POST that is not taken is answered where a line would be.
pub(super) fn open(http: Http, tasks: &TaskTracker) -> Stdio {
    let http = Arc::new(http);
    let (lines, mut to_post) = mpsc::channel::<Vec<u8>>(QUEUE);
    let (stray, strays) = mpsc::channel(QUEUE);
    let (tell_address, address) = oneshot::channel();
    let routes = Routes::default();
    let stop = CancellationToken::new();

    let (reading, table, wire) = (stop.clone(), Arc::clone(&routes), Arc::clone(&http));
    let refused = stray.clone();
    tasks.spawn(async move {
        let mut stream = wire.send(Method::GET, "/sse", "", &wire.plain_headers());
        let first = reading.run_until_cancelled(stream.next()).await.flatten();
        if let Some(first) = first {
            let _ = tell_address.send(string(first));
            while let Some(Some(event)) = reading.run_until_cancelled(stream.next()).await {
                deliver(&table, &stray, event);
            }
        }
        table.lock().unwrap_or_else(PoisonError::into_inner).clear();
    });
    let (posting, table) = (stop.clone(), Arc::clone(&routes));
    tasks.spawn(async move {
        let Ok(address) = address.await else { return };
        while let Some(Some(message)) = posting.run_until_cancelled(to_post.recv()).await {
            let posted = http.send(Method::POST, &address, message, &http.headers("", "{}"));
            let Some(reply) = posting.run_until_cancelled(posted.whole()).await else { return };
            if reply.status != 202 {
                deliver(&table, &refused, Bytes::from(reply.body));
            }
        }
    });
    Stdio { lines, routes, strays: strays.into(), _open: stop.drop_guard() }
}
