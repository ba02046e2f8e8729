//! What a dialect says to a request: an answer on its way, and how a wire is to put it.
//!
//! An [`Answer`] is a whole JSON-RPC message, or one whose payload still arrives from its upstream. The
//! HTTP status beside it means nothing to the other wire.
//!
//! Knows nothing of: eras, and which wire carries it.

use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hyper::StatusCode;

use super::encode;
use crate::json;
use crate::mcp::call::{Body, Broken};
use crate::mcp::log::Wanted;
use crate::mcp::note::{Note, NoteStream, Notes};
use crate::rpc::{self, Id};

/// A JSON-RPC answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// When the client may try again.
    pub(super) retry_after: Option<Duration>,
    pub(super) text: Text,
}

/// The answer as JSON text on one line.
pub(super) enum Text {
    /// All of it.
    Whole(Bytes),
    /// What stands before the result, and the result as it arrives; a `}` ends the answer.
    Arriving(Bytes, BoxStream<'static, Result<Bytes, Broken>>),
}

/// What becomes of a result that still arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Large {
    /// It passes piece by piece, on a response of its own.
    Passes,
    /// It is held until it is whole: on a stream that many share its pieces would hold up the others.
    Held,
}

/// An error of Weir's own making, as an era puts it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) error: rpc::Error,
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
}

/// A request that is being worked on.
pub(super) struct Call {
    /// `None` if the client has cancelled it: then nothing is sent.
    pub(super) answer: BoxFuture<'static, Option<Answer>>,
    /// Where the client asked for progress.
    pub(super) progress: Option<Progress>,
}

/// Notes beside a call: progress under the client's own token.
pub(super) struct Progress {
    /// `None` where the client did not ask for progress: then there is none.
    token: Option<Id>,
    notes: NoteStream,
}

impl Answer {
    /// A result.
    pub(super) fn result(id: &Id, result: &[u8]) -> Self {
        let text = Text::Whole(rpc::write_result(id, result));
        Self { status: StatusCode::OK, retry_after: None, text }
    }

    /// A result that passes as its upstream sent it, held or still arriving.
    pub(super) fn passing(id: &Id, body: Body) -> Self {
        match body {
            Body::Whole(result) => Self::result(id, &result),
            Body::Arriving(pieces) => {
                let text = Text::Arriving(rpc::result_head(id), pieces);
                Self { status: StatusCode::OK, retry_after: None, text }
            }
        }
    }

    /// The answer with all of its text; an error if that breaks off or is larger than `limit`.
    pub(super) async fn whole(self, id: &Id, limit: usize) -> Self {
        let Self { status, retry_after, text } = self;
        let collected = match text {
            Text::Whole(text) => Ok(text),
            arriving @ Text::Arriving(..) => {
                Body::Arriving(arriving.into_pieces()).collect(limit).await
            }
        };
        match collected {
            Ok(text) => Self { status, retry_after, text: Text::Whole(text) },
            Err(broken) => Self::refused(Some(id), &encode::broken(&broken.to_string())),
        }
    }

    /// An error object.
    pub(super) fn error(id: Option<&Id>, status: StatusCode, error: &[u8]) -> Self {
        let text = Text::Whole(rpc::write_error(id, error));
        Self { status, retry_after: None, text }
    }

    /// An error of Weir's own.
    pub(super) fn refused(id: Option<&Id>, refused: &Refused) -> Self {
        let answer = Self::error(id, refused.status, &refused.error.to_bytes());
        Self { retry_after: refused.retry_after, ..answer }
    }
}

impl Refused {
    /// An error without more.
    pub(super) fn new(status: StatusCode, code: i64, message: impl Into<String>) -> Self {
        Self { error: rpc::Error::new(code, message), status, retry_after: None }
    }
}

impl From<rpc::Invalid> for Answer {
    fn from(invalid: rpc::Invalid) -> Self {
        let refused = Refused::new(StatusCode::BAD_REQUEST, invalid.code, invalid.reason);
        Self::refused(invalid.id.as_ref(), &refused)
    }
}

impl Text {
    /// The text piece by piece.
    pub(super) fn into_pieces(self) -> BoxStream<'static, Result<Bytes, Broken>> {
        let one = |piece: Bytes| stream::once(future::ready(Ok(piece)));
        match self {
            Self::Whole(text) => one(text).boxed(),
            Self::Arriving(head, pieces) => {
                one(head).chain(pieces).chain(one(Bytes::from_static(b"}"))).boxed()
            }
        }
    }
}

impl Call {
    /// A request that is answered already.
    pub(super) fn answered(answer: Answer) -> Self {
        Self { answer: future::ready(Some(answer)).boxed(), progress: None }
    }
}

impl Progress {
    /// Where an upstream's side puts notes, and where the client's wire takes them if it wants any.
    pub(super) fn channel(token: Option<Id>, logs: Wanted) -> (Notes, Option<Self>) {
        if token.is_none() && logs.least().is_none() {
            return (Notes::unheard(), None);
        }
        let (notes, stream) = Notes::open(token.is_some(), logs);
        (notes, Some(Self { token, notes: stream }))
    }

    /// The next notification. Never ends: race it with the answer. Cancel-safe.
    pub(super) async fn next(&mut self) -> Bytes {
        let note = self.notes.next().await;
        notification(self.token.as_ref(), note)
    }

    /// Those that are left, once the answer is there.
    pub(super) fn rest(self) -> impl Iterator<Item = Bytes> {
        let Self { token, notes } = self;
        notes.rest().into_iter().map(move |note| notification(token.as_ref(), note))
    }
}

fn notification(token: Option<&Id>, note: Note) -> Bytes {
    match note {
        Note::Progress(mut params) => {
            let token = token.expect("there is no progress without a token");
            params.set("progressToken", token.as_bytes().clone());
            let params = json::on_one_line(params.to_bytes());
            rpc::write_notification("notifications/progress", &params)
        }
        Note::Log(params) => rpc::write_notification("notifications/message", &params),
    }
}
