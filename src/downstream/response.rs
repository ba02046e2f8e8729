//! What a dialect says to a request: an answer on its way, and how a wire is to put it.
//!
//! An [`Answer`] is a whole JSON-RPC message, or one whose payload still arrives from its upstream. The
//! HTTP status beside it means nothing to the other wire.
//!
//! Knows nothing of: eras, and which wire carries it.

pub(crate) mod audit_events;
pub(crate) mod call_stream;
pub(crate) mod results;

use std::panic::AssertUnwindSafe;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hyper::StatusCode;

use crate::downstream::response::call_stream::Beside;
use crate::json::Object;
use crate::jsonrpc::{self, Id};
use crate::mcp::call::{Body, Broken};
use crate::memory_budget::{Allowance, SMALL_BYTES};
use crate::policy::limits::Permit;

/// A JSON-RPC answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// When the client may try again.
    pub(super) retry_after: Option<Duration>,
    /// What kind of error it is, if it is one.
    pub(super) failure: Option<Failure>,
    pub(super) text: Text,
}

/// Whose error an answer is, and its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    Own(i64),
    Upstreams(Option<i64>),
}

/// The answer as JSON text on one line.
pub(super) enum Text {
    /// All of it.
    Whole(Bytes),
    /// All of it in parts, of which a large one is not its own and is not copied.
    Parts([Bytes; 3]),
    /// What stands before the result, and the result as it arrives; a `}` ends the answer.
    Arriving(Bytes, BoxStream<'static, Result<Bytes, Broken>>),
}

/// A text, and what is given back once nobody has it any more.
struct Held {
    text: Bytes,
    _permit: Permit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// How an answer goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// On a response of its own: a large result passes piece by piece.
    Alone,
    /// On a stream that many share: a result is held until it is whole, or its pieces would hold up the
    /// others.
    Shared,
    /// As one of several in an array: it is held, and nothing goes out beside it.
    Batched,
}

/// An error of Weir's own making, as an era puts it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) error: jsonrpc::Error,
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
}

/// A request that is being worked on.
pub(super) struct Call {
    /// `None` if the client has cancelled it: then nothing is sent.
    pub(super) answer: BoxFuture<'static, Option<Answer>>,
    /// What goes out on the same stream meanwhile.
    pub(super) beside: Beside,
}

impl Answer {
    /// A result.
    pub(super) fn result(id: &Id, result: &[u8]) -> Self {
        Self::good(Text::Whole(jsonrpc::write_result(id, result)))
    }

    fn good(text: Text) -> Self {
        Self { status: StatusCode::OK, retry_after: None, failure: None, text }
    }

    /// A result that is this object.
    pub(super) fn object(id: &Id, result: &Object) -> Self {
        Self::good(Text::Whole(jsonrpc::write_object(id, result)))
    }

    /// A result that is this object, most of which is a list that is kept as it is sent, on one line.
    pub(super) fn list(id: &Id, result: &Object) -> Self {
        let is_large = result.written_bytes() >= SMALL_BYTES;
        let parts =
            is_large.then(|| jsonrpc::write_object_around(id, result, SMALL_BYTES)).flatten();
        parts.map_or_else(|| Self::object(id, result), |parts| Self::good(Text::Parts(parts)))
    }

    /// A result that passes as its upstream sent it, held or still arriving.
    pub(super) fn passing(id: &Id, body: Body) -> Self {
        match body {
            Body::Read(result) => Self::object(id, &result),
            Body::Whole(result) => Self::result(id, &result),
            Body::Arriving(pieces) => Self::good(Text::Arriving(jsonrpc::result_head(id), pieces)),
        }
    }

    /// The answer with all of its text; an error if that breaks off or cannot be held.
    pub(super) async fn whole(self, id: &Id, allowed: &Allowance) -> Self {
        let Self { status, retry_after, failure, text } = self;
        let collected = match text {
            Text::Whole(text) => Ok(text),
            Text::Parts(parts) => Ok(parts.concat().into()),
            arriving @ Text::Arriving(..) => {
                Body::Arriving(arriving.into_pieces()).collect(allowed).await
            }
        };
        match collected {
            Ok(text) => Self { status, retry_after, failure, text: Text::Whole(text) },
            Err(why) => Self::refused(Some(id), &results::uncollected(&why)),
        }
    }

    /// The answer, which holds the request's permit until it has gone out.
    pub(super) fn holding(self, permit: Permit) -> Self {
        if !permit.holds_places() {
            return self;
        }
        let text = match self.text {
            Text::Whole(text) => Text::Whole(Bytes::from_owner(Held { text, _permit: permit })),
            Text::Parts([head, middle, text]) => {
                Text::Parts([head, middle, Bytes::from_owner(Held { text, _permit: permit })])
            }
            Text::Arriving(head, pieces) => Text::Arriving(head, holding(permit, pieces)),
        };
        Self { text, ..self }
    }

    /// An upstream's error object.
    pub(super) fn error(id: Option<&Id>, status: StatusCode, error: &[u8]) -> Self {
        let object = Object::parse_within(Bytes::copy_from_slice(error), usize::MAX).ok();
        let code = object.as_ref().and_then(results::code_of);
        let text = Text::Whole(jsonrpc::write_error(id, error));
        Self { status, retry_after: None, failure: Some(Failure::Upstreams(code)), text }
    }

    /// An error of Weir's own.
    pub(super) fn refused(id: Option<&Id>, refused: &Refused) -> Self {
        let text = Text::Whole(jsonrpc::write_error(id, &refused.error.to_bytes()));
        let failure = Some(Failure::Own(refused.error.code));
        Self { status: refused.status, retry_after: refused.retry_after, failure, text }
    }
}

/// The pieces, with which something is held until they have ended or nobody wants more of them.
pub(super) fn holding(
    what: impl Send + 'static,
    pieces: BoxStream<'static, Result<Bytes, Broken>>,
) -> BoxStream<'static, Result<Bytes, Broken>> {
    let mut held = Some(what);
    let end = stream::poll_fn(move |_| {
        drop(held.take());
        Poll::Ready(None)
    });
    pieces.chain(end).boxed()
}

impl Refused {
    /// An error without more.
    pub(super) fn new(status: StatusCode, code: i64, message: impl Into<String>) -> Self {
        Self { error: jsonrpc::Error::new(code, message), status, retry_after: None }
    }
}

impl From<jsonrpc::Invalid> for Answer {
    fn from(invalid: jsonrpc::Invalid) -> Self {
        let refused = Refused::new(StatusCode::BAD_REQUEST, invalid.code, invalid.reason);
        // The id of an answer is one of Weir's: among the client's own it may be that of an open request.
        let id = invalid.id.as_ref().filter(|_| invalid.looks != jsonrpc::Looks::Answer);
        Self::refused(id, &refused)
    }
}

impl Text {
    /// How many bytes it has, if that is known.
    pub(super) fn len(&self) -> Option<u64> {
        match self {
            Self::Whole(text) => Some(text.len() as u64),
            Self::Parts(parts) => Some(parts.iter().map(|part| part.len() as u64).sum()),
            Self::Arriving(..) => None,
        }
    }

    /// All of the text; `None` if it still arrives.
    pub(super) fn into_whole(self) -> Option<Bytes> {
        match self {
            Self::Whole(text) => Some(text),
            Self::Parts(parts) => Some(parts.concat().into()),
            Self::Arriving(..) => None,
        }
    }

    /// The text piece by piece.
    pub(super) fn into_pieces(self) -> BoxStream<'static, Result<Bytes, Broken>> {
        let one = |piece: Bytes| stream::once(future::ready(Ok(piece)));
        match self {
            Self::Whole(text) => one(text).boxed(),
            Self::Parts(parts) => stream::iter(parts.map(Ok)).boxed(),
            Self::Arriving(head, pieces) => {
                one(head).chain(pieces).chain(one(Bytes::from_static(b"}"))).boxed()
            }
        }
    }
}

impl Call {
    /// The same call, of which a panic is no more than an internal error: nothing of it is shown.
    pub(super) fn surviving(self, id: Option<Id>) -> Self {
        let Self { answer, beside } = self;
        let answer = async move {
            // Whatever it has left behind is dropped with it, and no lock stays poisoned: all are taken regardless.
            let survived = AssertUnwindSafe(answer).catch_unwind().await;
            survived.unwrap_or_else(|_| {
                tracing::error!("a request ended with a panic: this is a bug of Weir's");
                Some(Answer::refused(id.as_ref(), &results::broken("internal error")))
            })
        };
        Self { answer: answer.boxed(), beside }
    }

    /// A request that is answered already.
    pub(super) fn answered(answer: Answer) -> Self {
        Self { answer: future::ready(Some(answer)).boxed(), beside: Beside::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn f90_a_panic_ends_its_request_with_an_internal_error_and_nothing_else() {
        let budget = crate::memory_budget::Budget::new(1 << 20);
        for _ in 0..10_000 {
            let mut held = budget.hold();
            held.grow(100).expect("room");
            let answer = async move {
                let _held = held;
                std::panic::resume_unwind(Box::new("injected"))
            };
            let call = Call { answer: answer.boxed(), beside: Beside::default() };
            let answer = call.surviving(Some(Id::from(7))).answer.await.expect("an answer");
            assert_eq!(answer.failure, Some(Failure::Own(-32603)));
            let Text::Whole(text) = answer.text else { panic!("it is whole") };
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(text.contains(r#""id":7"#) && !text.contains("injected"), "{text}");
        }
        assert_eq!(budget.held(), 0);
    }
}
