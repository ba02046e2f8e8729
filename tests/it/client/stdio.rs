//! A client over newline-delimited JSON.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use weir_base::json::Object;
use weir_mcp::jsonrpc::Id;
use weir_mcp::meta;

use super::Connector;
use crate::cell::Transport;
use crate::upstream::QUEUE;

pub(super) type Routes = Arc<Mutex<HashMap<Bytes, mpsc::Sender<Bytes>>>>;

/// The client's end of a pair of pipes.
pub(crate) struct Stdio {
    pub(super) lines: mpsc::Sender<Vec<u8>>,
    pub(super) routes: Routes,
    pub(super) unrouted_messages: tokio::sync::Mutex<mpsc::Receiver<Bytes>>,
    pub(super) _open: DropGuard,
}

/// A request in flight.
pub(super) struct Exchange {
    messages: mpsc::Receiver<Bytes>,
}

impl Stdio {
    pub(super) fn new(open: &Connector, tasks: &TaskTracker) -> Self {
        let (input, mut output) = tokio::io::split(open.connect());
        let (lines, mut to_write) = mpsc::channel::<Vec<u8>>(QUEUE);
        let (unrouted, unrouted_messages) = mpsc::channel(QUEUE);
        let routes = Routes::default();
        let stop = CancellationToken::new();
        let writing = stop.clone();
        let (saying, hearing) = (open.clone(), open.clone());
        tasks.spawn(async move {
            while let Some(Some(line)) = writing.run_until_cancelled(to_write.recv()).await {
                saying.record_sent(&line, Transport::Stdio);
                if output.write_all(&line).await.is_err() {
                    break;
                }
            }
            // The other side sees the end of its input.
            let _ = output.shutdown().await;
        });
        let (reading, table) = (stop.clone(), Arc::clone(&routes));
        tasks.spawn(async move {
            let mut input = BufReader::new(input).lines();
            while let Some(Ok(Some(line))) = reading.run_until_cancelled(input.next_line()).await {
                hearing.check_received(line.as_bytes());
                deliver(&table, &unrouted, line.into());
            }
            table.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Self {
            lines,
            routes,
            unrouted_messages: unrouted_messages.into(),
            _open: stop.drop_guard(),
        }
    }

    /// Sends a line.
    pub(crate) fn send(&self, line: &[u8]) {
        // If the other side is gone, the test sees that no response comes.
        let _ = self.lines.try_send([line, b"\n"].concat());
    }

    /// Sends a request.
    pub(super) fn ask(&self, id: &Id, message: &[u8]) -> Exchange {
        let (sender, messages) = mpsc::channel(QUEUE);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        routes.insert(id.as_bytes().clone(), sender);
        self.send(message);
        Exchange { messages }
    }

    /// The next message that belongs to no request.
    pub(crate) async fn next_unrouted(&self) -> Option<Bytes> {
        self.unrouted_messages.lock().await.recv().await
    }
}

impl Exchange {
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.messages.recv().await
    }
}

/// Routes a message to its request: by its id, its subscription, or its progress token, which tests
/// set to the request's id.
pub(super) fn deliver(routes: &Routes, unrouted: &mpsc::Sender<Bytes>, line: Bytes) {
    // The responses to a batch go to the sender of its line.
    let message = match line.starts_with(b"[") {
        true => Object::new(),
        false => Object::parse(line.clone()).expect("a line is an object"),
    };
    let params = message.get_object("params").unwrap_or_default();
    let subscription =
        params.get_object("_meta").and_then(|inner| inner.get_bytes(meta::SUBSCRIPTION_ID));
    let key =
        message.get_bytes("id").or(subscription).or_else(|| params.get_bytes(meta::PROGRESS_TOKEN));
    let mut routes = routes.lock().unwrap_or_else(PoisonError::into_inner);
    // The server chooses the id of its own request.
    let is_question = message.has("method") && message.has("id");
    let key = key.filter(|_| !is_question);
    let route = key.as_ref().and_then(|key| routes.get(key)).unwrap_or(unrouted);
    // A request that has been dropped misses the message.
    let _ = route.try_send(line);
    if let (Some(key), false) = (key, message.has("method")) {
        routes.remove(&key);
    }
}
