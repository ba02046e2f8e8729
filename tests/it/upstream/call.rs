//! A call in a test's hands, and the sink through which a server answers.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;
use weir::json::Object;
use weir::jsonrpc::{self, Id};
use weir::mcp::meta;

use super::{PATIENCE, QUEUE};
use crate::cell::Wire;
use crate::judge::Talk;

/// What a server sends for a request.
#[derive(Debug)]
pub(super) enum Out {
    /// A message before the answer.
    Note(Bytes),
    /// The answer.
    Last(Bytes),
    /// Raw bytes of an answer, as they are.
    Piece(Bytes),
    /// No answer: the connection ends.
    HangUp,
    /// No answer but this HTTP status, with `Retry-After` in seconds if there is one.
    Status(u16, Option<u64>),
}

/// Where a server puts it: the process's output, or the request's own response.
#[derive(Debug, Clone)]
pub(super) struct Sink(pub(super) mpsc::Sender<Out>);

impl Sink {
    pub(super) fn send(&self, out: Out) {
        // Whoever is gone misses it, as on any wire.
        if let Err(TrySendError::Full(_)) = self.0.try_send(out) {
            panic!("a test says more than {QUEUE} things at once");
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// A call that waits for the test. Dropped, it is never answered; over HTTP its response breaks off.
pub(crate) struct Call {
    pub(crate) params: Object,
    pub(super) id: Id,
    pub(super) sink: Sink,
    pub(super) cancelled: CancellationToken,
    pub(super) talk: Option<Arc<Talk>>,
}

/// How a server learned that nobody waits for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// By `notifications/cancelled`.
    Told,
    /// Its response stream or its process's output was closed.
    Closed,
}

impl Call {
    /// Sends progress, if it is wanted; `members` as in `"progress":1`.
    pub(crate) fn progress(&self, members: &str) {
        let token = self.progress_token();
        let params = format!(r#"{{"progressToken":{token},{members}}}"#);
        self.notify("notifications/progress", &params);
    }

    /// The id under which the call came.
    pub(crate) fn id(&self) -> Id {
        self.id.clone()
    }

    /// The token under which the call asks for progress.
    pub(crate) fn progress_token(&self) -> String {
        let meta = self.params.get_object("_meta").unwrap_or_default();
        meta.get(meta::PROGRESS_TOKEN).expect("the call asks for progress").to_owned()
    }

    /// Whether the call asks for progress.
    pub(crate) fn wants_progress(&self) -> bool {
        self.params.get_object("_meta").is_some_and(|meta| meta.has(meta::PROGRESS_TOKEN))
    }

    /// Sends any notification on the call's stream.
    pub(crate) fn notify(&self, method: &str, params: &str) {
        self.sink.send(Out::Note(jsonrpc::write_notification(method, params.as_bytes())));
    }

    pub(crate) fn result(self, result: &str) {
        self.sink.send(Out::Last(jsonrpc::write_result(&self.id, result.as_bytes())));
    }

    /// Sends this text in the answer's place; `{id}` in it stands for the request's id.
    pub(crate) fn garbage(self, text: &str) {
        self.sink.send(Out::Last(text.replace("{id}", &self.id.to_string()).into()));
    }

    /// Sends this text before the answer; `{id}` in it stands for the request's id.
    pub(crate) fn stray(&self, text: &str) {
        self.sink.send(Out::Note(text.replace("{id}", &self.id.to_string()).into()));
    }

    /// Asks something on the call's own stream.
    pub(crate) fn question(&self, text: &str) {
        if let Some(talk) = &self.talk {
            talk.said(text.as_bytes(), Wire::Http);
        }
        self.sink.send(Out::Note(text.to_owned().into()));
    }

    /// Sends some bytes of the answer; `{id}` in them stands for the request's id.
    pub(crate) fn piece(&self, bytes: &str) {
        self.sink.send(Out::Piece(bytes.replace("{id}", &self.id.to_string()).into()));
    }

    /// Breaks off: over HTTP the connection ends, else the process.
    pub(crate) fn hang_up(self) {
        self.sink.send(Out::HangUp);
    }

    /// Waits until nobody wants the answer any more.
    pub(crate) async fn cancelled(&self) -> Cancelled {
        let gone = tokio::time::timeout(PATIENCE, self.gone()).await;
        gone.expect("the call is cancelled in time")
    }

    /// The same, however long it takes.
    pub(crate) async fn gone(&self) -> Cancelled {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Cancelled::Told,
            () = self.sink.0.closed() => Cancelled::Closed,
        }
    }

    /// Whether somebody still wants the answer, as far as a server can know.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.cancelled.is_cancelled() && !self.sink.is_closed()
    }
}
