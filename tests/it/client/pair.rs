//! A client over the HTTP+SSE pair: it sends its messages as POSTs one after another and receives
//! on one stream, as over lines.

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

/// Opens the stream. The response to a POST that is refused is returned like a line.
pub(super) fn open(http: Http, tasks: &TaskTracker) -> Stdio {
    let http = Arc::new(http);
    let (lines, mut to_post) = mpsc::channel::<Vec<u8>>(QUEUE);
    let (unrouted, unrouted_messages) = mpsc::channel(QUEUE);
    let (tell_address, address) = oneshot::channel();
    let routes = Routes::default();
    let stop = CancellationToken::new();

    let (reading, table, transport) = (stop.clone(), Arc::clone(&routes), Arc::clone(&http));
    let refused = unrouted.clone();
    tasks.spawn(async move {
        let mut stream = transport.send(Method::GET, "/sse", "", &transport.plain_headers());
        let first = reading.run_until_cancelled(stream.next()).await.flatten();
        if let Some(first) = first {
            let _ = tell_address.send(string(first));
            while let Some(Some(event)) = reading.run_until_cancelled(stream.next()).await {
                deliver(&table, &unrouted, event);
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
    Stdio { lines, routes, unrouted_messages: unrouted_messages.into(), _open: stop.drop_guard() }
}
