//! Why the gateway itself could not produce a reply, sorted by who has to act.
//!
//! Codes and HTTP statuses are not decided here: each dialect turns a fault into its own, in one
//! exhaustive `match`.

use std::time::Duration;

use crate::guard::Findings;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::upstream;

/// A failure of Weir's own making or telling. An upstream's error object is none: it is a reply.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The client sent something that no server should accept; the text is fit for it.
    #[error("{0}")]
    Request(String),
    /// Unknown, or known and not allowed; the two are indistinguishable on purpose.
    #[error("no such {kind}")]
    NoSuchItem {
        /// What was looked for.
        kind: Kind,
        /// Under which name or URI, as the client wrote it.
        key: Box<str>,
    },
    /// No task has this handle, or none of this client's.
    #[error("no such task")]
    NoSuchTask,
    /// The call has begun a task that no handle can lead to: the upstream's id of it is too long.
    #[error("the id of a task of upstream {upstream} is too long")]
    TaskIdTooLong {
        /// Whose task.
        upstream: UpstreamName,
    },
    /// A limit is reached, or there is no place; nothing was done, and the client may try again later.
    #[error("too busy")]
    TooBusy {
        /// After this time.
        retry_after: Duration,
    },
    /// Everything has to be recorded, and this cannot be: nothing was done.
    #[error("the request cannot be recorded")]
    Unrecorded,
    /// The call had to wait for its client's answers, and too many do already; it was cancelled.
    #[error("too many calls wait for answers")]
    TooManyWaiting,
    /// An upstream broke, is down, or broke the protocol. The operator acts.
    #[error("upstream {upstream}")]
    Upstream {
        /// Which.
        upstream: UpstreamName,
        /// How.
        #[source]
        cause: upstream::Error,
    },
    /// An upstream's reply is not passed on, by the operator's rules.
    #[error("a reply of upstream {upstream} is refused: {found}")]
    Refused {
        /// Whose reply.
        upstream: UpstreamName,
        /// What is wrong with it.
        found: Findings,
    },
}
