//! Attribution of an upstream's message to the call that it belongs to.
//!
//! A message on a call's own stream belongs to that call. On a stream that calls share, it depends
//! on the clients of the connection: see [`ConnectionClients`].

use crate::input_requests::{SEVERAL_CALLS, unsupported_method};
use crate::message::{PendingContext, TransportError};
use crate::transport::dispatcher::{ConnectionClients, Dispatcher, InputTarget};
use crate::transport::junk_limits::JunkCounts;
use weir_base::json::Object;
use weir_mcp::call_notifications::NotificationSink;
use weir_mcp::jsonrpc::{self, Id};
use weir_mcp::meta;

impl Dispatcher {
    /// Counts a response that matches no request in flight. A late or repeated response to a known
    /// id counts as unattributed, not as unsolicited. Returns whether it is unsolicited.
    pub(super) fn count_response(
        &self,
        id: Option<u64>,
        stream_of: Option<u64>,
        junk_counts: &mut JunkCounts,
    ) -> bool {
        let is_awaited = match (id, stream_of) {
            (Some(id), Some(stream_of)) if id == stream_of => true,
            (Some(id), None) => self.pending.with_context(id, |_| ()).is_some(),
            (Some(id), Some(_)) => {
                self.has_session() && self.pending.with_context(id, |_| ()).is_some()
            }
            // On a request's own stream a response without an id can only be about that request.
            (None, stream_of) => stream_of.is_some(),
        };
        if is_awaited {
            return false;
        }
        let was_issued = id.is_some_and(|id| self.pending.was_issued(id));
        match was_issued {
            true => junk_counts.unattributed += 1,
            false => junk_counts.unsolicited += 1,
        }
        !was_issued
    }

    /// Registers the owner of the task that a result names, before any notification about that task
    /// is dispatched.
    pub(super) fn register_task(&self, id: Option<u64>, result: &Object) {
        let claim =
            id.and_then(|id| self.pending.with_context(id, |context| context.task_claim.clone()));
        if let (Some(claim), Some(scope)) = (claim.flatten(), self.scope.get()) {
            self.tasks.on_response(result, claim, *scope);
        }
    }

    /// Handles `notifications/cancelled` of the server.
    pub(super) fn on_cancelled(&self, id: &Id) {
        // spec 2026-07-28, cancellation: a server sends it to end a subscription and for nothing
        // else. In older revisions it is about the server's own requests, whose ids are not ours.
        let withdraw =
            |context: &PendingContext| context.input_requests.as_ref()?.withdraw(id).then_some(());
        if self.pending.find_newest(withdraw).is_some() {
            return;
        }
        let Some(id) = id.as_local() else { return };
        if self.pending.with_context(id, |context| context.listen) == Some(true) {
            let ended = TransportError::ConnectionLost("the server ended the subscription".into());
            self.pending.complete(id, Err(ended));
        }
    }

    pub(super) fn notification_sink(&self, id: u64) -> Option<NotificationSink> {
        self.pending.with_context(id, |context| context.notifications.clone()).flatten()
    }

    /// Returns the notification sink of the call that a log message is about, attributed like an
    /// input request: see [`Dispatcher::input_request_target`].
    pub(super) fn log_target(&self, stream_of: Option<u64>) -> Option<NotificationSink> {
        match stream_of {
            Some(id) => self.notification_sink(id).filter(NotificationSink::takes_logs),
            None => self.find_unattributed(|context| {
                let notifications =
                    context.notifications.as_ref().filter(|sink| sink.takes_logs())?;
                notifications.logs().minimum().map(|_| notifications.clone())
            }),
        }
    }

    /// Returns the call that a message without a stream of its own belongs to.
    fn find_unattributed<R>(&self, select: impl Fn(&PendingContext) -> Option<R>) -> Option<R> {
        match self.clients {
            ConnectionClients::Many => None,
            ConnectionClients::Single => self.pending.find_newest(select),
            ConnectionClients::SamePrincipal => self.pending.find_unique(select),
        }
    }

    /// Whether a message that names no call can be attributed to one.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.clients != ConnectionClients::Many
    }

    /// Returns the call that a server request belongs to, and its notification sink: the call on
    /// whose stream it arrived. A shared stream names no call, but where all calls are one client's
    /// the newest is as good as any.
    pub(super) fn input_request_target(
        &self,
        stream_of: Option<u64>,
        method: &str,
    ) -> Result<InputTarget, jsonrpc::Error> {
        let select = |context: &PendingContext| {
            Some((context.input_requests.clone()?, context.notifications.clone()))
        };
        let target = match (stream_of, self.clients) {
            (Some(id), _) => self.pending.with_context(id, select).flatten(),
            (None, ConnectionClients::SamePrincipal) => return self.only_candidate(select, method),
            (None, ConnectionClients::Many | ConnectionClients::Single) => {
                self.find_unattributed(select)
            }
        };
        target.ok_or_else(|| unsupported_method(method))
    }

    /// Returns the call that a server request belongs to where several clients may share a
    /// principal: the only candidate. A call that waits for its client has already received a
    /// request, and a client that sends another call may never answer the first one. Therefore the
    /// request belongs to the only call that does not wait, and the calls that wait are given up.
    fn only_candidate(
        &self,
        select: impl Fn(&PendingContext) -> Option<InputTarget>,
        method: &str,
    ) -> Result<InputTarget, jsonrpc::Error> {
        let all = self.pending.find_all(select).into_iter().filter(|(call, _)| !call.is_given_up());
        let (waiting, running): (Vec<_>, Vec<_>) =
            all.partition(|(call, _)| call.is_waiting_for_client());
        match (&running[..], &waiting[..]) {
            ([target], waiting) => {
                waiting.iter().for_each(|(call, _)| call.give_up());
                Ok(target.clone())
            }
            ([], [target]) => Ok(target.clone()),
            ([], []) => Err(unsupported_method(method)),
            _ => Err(jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, SEVERAL_CALLS)),
        }
    }
}

/// Returns the local id of the `subscriptions/listen` request that a notification belongs to.
pub(super) fn subscription_of(params: &Object) -> Option<u64> {
    params.get_object("_meta")?.get_bytes(meta::SUBSCRIPTION_ID).and_then(Id::parse)?.as_local()
}
