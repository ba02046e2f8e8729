//! Request in flight on any transport, and its cancellation.

use bytes::Bytes;

use crate::message::{OutboundRequest, SentFlag, cancel_notification};
use crate::transport::dispatcher::{Dispatcher, PendingUpstreamResponse};
use weir_mcp::call::CancelReason;
use weir_mcp::call_notifications::NotificationSink;

/// Request in flight. Dropping it before its response sends the cancellation, if it has one and
/// the request has begun to be written: one that never was needs none.
pub(crate) struct RequestInFlight<Cancel: FnOnce(Bytes)> {
    /// Response, where it arrives on a stream that requests share.
    pub(crate) response: PendingUpstreamResponse,
    sent: SentFlag,
    cancel_reason: CancelReason,
    /// Sends the cancellation without waiting; `None` where none is to be sent (any more).
    cancel: Option<Cancel>,
}

impl<Cancel: FnOnce(Bytes)> RequestInFlight<Cancel> {
    /// Registers a request, and encodes it under the id that was issued for it; `None` if the
    /// connection is closed.
    pub(crate) fn register(
        dispatcher: &Dispatcher,
        request: &mut OutboundRequest,
        cancel: Option<Cancel>,
    ) -> Option<(Self, Bytes)> {
        let context = std::mem::take(&mut request.context);
        let notifications = context.notifications.as_ref();
        let wants_progress = notifications.is_some_and(NotificationSink::wants_progress);
        let response = dispatcher.pending.open(context)?;
        let message = request.write(response.id(), wants_progress);
        let (sent, cancel_reason) = (request.sent.clone(), request.cancel_reason.clone());
        Some((Self { response, sent, cancel_reason, cancel }, message))
    }

    /// Id that was issued for the request.
    pub(crate) fn id(&self) -> u64 {
        self.response.id()
    }

    /// Makes sure that no cancellation is sent any more.
    pub(crate) fn disarm_cancel(&mut self) {
        self.cancel = None;
    }
}

impl<Cancel: FnOnce(Bytes)> Drop for RequestInFlight<Cancel> {
    fn drop(&mut self) {
        let Some(cancel) = self.cancel.take() else { return };
        if self.sent.is_sent() && self.response.is_open() {
            cancel(cancel_notification(self.response.id(), &self.cancel_reason));
        }
    }
}
