//! What a call over HTTP takes while it is under way: one of its client's turns, and then room for its answer until
//! that has been read.
//!
//! Promise: whatever finds no turn or no room is answered with an error; nothing is dropped in silence.
//!
//! Knows nothing of: eras, and what is asked.

use std::sync::Arc;

use futures::FutureExt;
use hyper::StatusCode;

use crate::downstream::Door;
use crate::downstream::limits::concurrency::Busy;
use crate::downstream::response::audit_events::recorded;
use crate::downstream::response::call_stream::Beside;
use crate::downstream::response::results;
use crate::downstream::response::{Answer, Call, Refused, Text, holding};
use crate::gateway::Guest;
use crate::jsonrpc::{Id, code};
use crate::memory_budget::NoRoom;

/// The call, which waits for its turn before it begins. A batch has no id.
pub(super) fn bounded(door: &Arc<Door>, guest: &Guest, id: Option<Id>, call: Call) -> Call {
    let (door, principal) = (Arc::clone(door), guest.principal().clone());
    let record = guest.record().clone();
    if id.is_some() {
        // Its answer may still be replaced.
        record.hold(true);
    }
    let Call { answer, beside } = call;
    let call = Call { answer, beside: Beside::default() };
    let answer = async move {
        let refuse = |refused| Some(recorded(&record, Answer::refused(id.as_ref(), &refused)));
        let turn = match door.turns.take(&principal).await {
            Ok(turn) => turn,
            Err(Busy { retry_after }) => return refuse(results::too_busy(retry_after)),
        };
        let answer = call.surviving(id.clone()).answer.await?;
        match answer.text {
            Text::Whole(text) => match door.budget().keep(text) {
                Ok(text) => Some(Answer { text: Text::Whole(text), ..answer }),
                Err(NoRoom) => refuse(unread()),
            },
            Text::Parts([head, middle, behind]) => match door.budget().keep(middle) {
                Ok(middle) => Some(Answer { text: Text::Parts([head, middle, behind]), ..answer }),
                Err(NoRoom) => refuse(unread()),
            },
            Text::Arriving(head, pieces) => {
                // What comes of it is what goes out: it ends with its last piece. Until then it is the client's own
                // turns that it takes, however slowly it reads.
                record.hold(false);
                let pieces = holding(turn, pieces);
                Some(Answer { text: Text::Arriving(head, pieces), ..answer })
            }
        }
    };
    Call { answer: answer.boxed(), beside }
}

/// An answer for which there is no room: whoever asks for much and reads nothing must not have it held here.
pub(in crate::downstream) fn unread() -> Refused {
    let what = "too many large answers wait to be read: read them, then ask again";
    Refused::new(StatusCode::OK, code::INTERNAL_ERROR, what)
}
