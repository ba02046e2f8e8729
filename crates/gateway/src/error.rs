//! Errors of the gateway, by who has to act.
//!
//! JSON-RPC codes and HTTP statuses are not decided here: `downstream` maps the errors in one
//! exhaustive `match`.

use std::time::Duration;

use weir_access::guard::{Findings, InspectionError};
use weir_base::memory::memory_budget::BufferError;
use weir_mcp::call::CollectError;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_record::audit::AuditEvent;
use weir_upstream as upstream;

/// Failure of a request. An error object of an upstream is not a failure: it is a response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid; the text is for the client.
    #[error("{0}")]
    Request(String),
    /// Unknown or not allowed; the two are indistinguishable on purpose.
    #[error("no such {kind}")]
    NoSuchItem {
        /// The requested kind.
        kind: Kind,
        /// The requested name or URI, as the client wrote it.
        key: Box<str>,
    },
    /// No task of this client has this handle.
    #[error("no such task")]
    NoSuchTask,
    /// The process that had the task has ended, or cannot be found.
    #[error("the task may have been lost")]
    TaskLost,
    /// The call has begun a task whose id is too long for a handle.
    #[error("the id of a task of upstream {upstream} is too long")]
    TaskIdTooLong {
        /// The upstream of the task.
        upstream: UpstreamName,
    },
    /// A limit is reached; nothing was done, and the client may retry later.
    #[error("too busy")]
    TooBusy {
        /// Time until a retry makes sense.
        retry_after: Duration,
    },
    /// Auditing is mandatory and not possible; nothing was done.
    #[error("the request cannot be recorded")]
    AuditUnavailable,
    /// Too many calls wait for input of their clients; this call was cancelled.
    #[error("too many calls wait for client input")]
    TooManySuspended,
    /// An upstream failed, is down, or violated the protocol. The operator has to act.
    #[error("upstream {upstream}")]
    Upstream {
        /// The failed upstream.
        upstream: UpstreamName,
        /// The failure.
        #[source]
        cause: upstream::Error,
    },
    /// The guard rejects an upstream's response.
    #[error("response of upstream {upstream} rejected: {found}")]
    Refused {
        /// The upstream of the response.
        upstream: UpstreamName,
        /// The guard's findings.
        found: Findings,
    },
}

/// Error for a response that is not forwarded.
pub(super) fn rejected_response(
    upstream: &UpstreamName,
    reason: InspectionError,
    audit_event: &AuditEvent,
) -> Error {
    match reason {
        InspectionError::Refused(found) => {
            audit_event.set_refused_by(GUARD);
            Error::Refused { upstream: upstream.clone(), found }
        }
        InspectionError::Uncollected(why) => upstream_error(
            upstream,
            match why {
                CollectError::Broken(broken) => upstream::Error::ConnectionLost(broken.0),
                CollectError::NotBuffered(BufferError::TooLarge(limit)) => {
                    upstream::Error::TooLarge(limit)
                }
                CollectError::NotBuffered(BufferError::BudgetExhausted) => {
                    upstream::Error::MemoryExhausted
                }
            },
        ),
    }
}

/// Logs why a call failed; the client's error says only who has to act.
pub(super) fn upstream_error(upstream: &UpstreamName, cause: upstream::Error) -> Error {
    match &cause {
        // These causes are logged elsewhere or repeat for many calls.
        upstream::Error::Unavailable(_)
        | upstream::Error::SignInNeeded(_)
        | upstream::Error::Busy { .. }
        | upstream::Error::NoSuchTask => {
            tracing::debug!(%upstream, %cause, "upstream call failed");
        }
        _ => tracing::warn!(%upstream, %cause, "upstream call failed"),
    }
    match cause {
        upstream::Error::Busy { retry_after } => Error::TooBusy { retry_after },
        upstream::Error::TooManyInputRequests => Error::TooManySuspended,
        upstream::Error::NoSuchTask => Error::NoSuchTask,
        cause => Error::Upstream { upstream: upstream.clone(), cause },
    }
}

/// Rule name in audit events for rejections by the guard.
pub(super) const GUARD: &str = "guard";
