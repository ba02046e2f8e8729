//! An intercepted call, and the sink for a server's answers.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;
use weir_base::json::Object;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::meta;

use super::{PATIENCE, QUEUE};
use crate::cell::Transport;
use crate::judge::JudgedConversation;

/// Output of a server for a request.
#[derive(Debug)]
pub(super) enum Output {
    /// A message before the response.
    Note(Bytes),
    /// The response.
    Last(Bytes),
    /// Raw bytes of a response.
    Piece(Bytes),
    /// No response: the connection ends.
    HangUp,
    /// Only this HTTP status, with `Retry-After` in seconds if there is one.
    Status(u16, Option<u64>),
}

/// Destination of the output: the process's stdout, or the request's own response.
#[derive(Debug, Clone)]
pub(super) struct OutputSink(pub(super) mpsc::Sender<Output>);

impl OutputSink {
    pub(super) fn send(&self, out: Output) {
        // A receiver that is gone misses the output, as on any transport.
        if let Err(TrySendError::Full(_)) = self.0.try_send(out) {
            panic!("a test says more than {QUEUE} things at once");
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// An intercepted call. Dropped, it is never answered; over HTTP its response breaks off.
pub(crate) struct Call {
    pub(crate) params: Object,
    pub(super) id: Id,
    pub(super) sink: OutputSink,
    pub(super) cancelled: CancellationToken,
    pub(super) conversation: Option<Arc<JudgedConversation>>,
}

/// Signal by which a server learned that a call is abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// By `notifications/cancelled`.
    Notified,
    /// The end of its response stream or of its process's output.
    Closed,
}

impl Call {
    /// Sends progress if the call asks for it; `members` as in `"progress":1`.
    pub(crate) fn progress(&self, members: &str) {
        let token = self.progress_token();
        let params = format!(r#"{{"progressToken":{token},{members}}}"#);
        self.notify("notifications/progress", &params);
    }

    /// Id of the call's request.
    pub(crate) fn id(&self) -> Id {
        self.id.clone()
    }

    /// Token of the call's progress.
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
        self.sink.send(Output::Note(jsonrpc::write_notification(method, params.as_bytes())));
    }

    pub(crate) fn result(self, result: &str) {
        self.sink.send(Output::Last(jsonrpc::write_result(&self.id, result.as_bytes())));
    }

    /// Sends this text instead of the response; `{id}` in it stands for the request's id.
    pub(crate) fn respond_raw(self, text: &str) {
        self.sink.send(Output::Last(text.replace("{id}", &self.id.to_string()).into()));
    }

    /// Sends this text before the response; `{id}` in it stands for the request's id.
    pub(crate) fn send_raw(&self, text: &str) {
        self.sink.send(Output::Note(text.replace("{id}", &self.id.to_string()).into()));
    }

    /// Sends a request on the call's own stream.
    pub(crate) fn send_request(&self, text: &str) {
        if let Some(conversation) = &self.conversation {
            conversation.record_sent(text.as_bytes(), Transport::Http);
        }
        self.sink.send(Output::Note(text.to_owned().into()));
    }

    /// Sends some bytes of the response; `{id}` in them stands for the request's id.
    pub(crate) fn piece(&self, bytes: &str) {
        self.sink.send(Output::Piece(bytes.replace("{id}", &self.id.to_string()).into()));
    }

    /// Breaks off: over HTTP the connection ends, else the process.
    pub(crate) fn hang_up(self) {
        self.sink.send(Output::HangUp);
    }

    /// Waits until the call is abandoned.
    pub(crate) async fn cancelled(&self) -> Cancelled {
        let gone = tokio::time::timeout(PATIENCE, self.gone()).await;
        gone.expect("the call is cancelled in time")
    }

    /// Waits until the call is abandoned, without a time limit.
    pub(crate) async fn gone(&self) -> Cancelled {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Cancelled::Notified,
            () = self.sink.0.closed() => Cancelled::Closed,
        }
    }

    /// Whether the response is still expected, as far as a server can know.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.cancelled.is_cancelled() && !self.sink.is_closed()
    }
}
