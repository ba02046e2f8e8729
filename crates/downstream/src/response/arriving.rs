//! Result that is still arriving from its upstream, on its way to the client.
//!
//! The only adapter between an upstream's pieces and the body of an HTTP response: it writes the
//! envelope around them, and owns all that has to live until the last piece.
//!
//! Invariants: with the last piece the permits are released and the audit event ends; a result that
//! is dropped before is recorded as cancelled.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use futures::stream::BoxStream;

use crate::limits::concurrency::ConcurrencyPermit;
use crate::response::RequestEnd;
use weir_access::policy::limits::Permit;
use weir_gateway::RequestStatus;
use weir_mcp::call::PayloadBroken;
use weir_mcp::jsonrpc::{self, Id};
use weir_record::audit::AuditOutcome;

/// Response with a result that is still arriving, as a stream of pieces of JSON text.
pub(crate) struct ArrivingResult {
    /// Text before the result, until it is read.
    prefix: Option<Bytes>,
    /// The result; `None` after its last piece.
    pieces: Option<BoxStream<'static, Result<Bytes, PayloadBroken>>>,
    /// Permit of the rate limits.
    pub(super) permit: Option<Permit>,
    /// Permit of the client's own concurrency limit.
    pub(crate) concurrency_permit: Option<ConcurrencyPermit>,
    /// Bytes of the response so far, including those around the result.
    sent: u64,
    /// End of the request, which the last piece records.
    pub(super) end: Option<RequestEnd>,
}

impl ArrivingResult {
    /// Creates the response to a request from the pieces of its result.
    pub(super) fn new(id: &Id, pieces: BoxStream<'static, Result<Bytes, PayloadBroken>>) -> Self {
        let prefix = jsonrpc::response_prefix(id);
        Self {
            sent: (prefix.len() + SUFFIX.len()) as u64,
            prefix: Some(prefix),
            pieces: Some(pieces),
            permit: None,
            concurrency_permit: None,
            end: None,
        }
    }
}

impl Stream for ArrivingResult {
    type Item = Result<Bytes, PayloadBroken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(prefix) = self.prefix.take() {
            return Poll::Ready(Some(Ok(prefix)));
        }
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(None) };
        let piece = ready!(pieces.as_mut().poll_next(cx));
        match &piece {
            Some(Ok(piece)) => self.sent += piece.len() as u64,
            Some(Err(_)) => {
                if let Some(end) = self.end.take() {
                    end.record_as(AuditOutcome::Error, RequestStatus::Error(None), self.sent);
                }
            }
            None => {
                (self.pieces, self.permit, self.concurrency_permit) = (None, None, None);
                if let Some(end) = self.end.take() {
                    end.record(Some(self.sent));
                }
            }
        }
        Poll::Ready(Some(piece.unwrap_or(Ok(Bytes::from_static(SUFFIX)))))
    }
}

impl Drop for ArrivingResult {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end.record_as(AuditOutcome::Cancelled, RequestStatus::Cancelled, self.sent);
        }
    }
}

/// Text after the result.
const SUFFIX: &[u8] = b"}";
