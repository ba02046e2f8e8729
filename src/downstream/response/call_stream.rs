//! What goes out beside an answer, on its call's own stream, while the answer is made: progress under the
//! client's own token, log messages, and what its upstream asks of the client.
//!
//! Promises: what is said goes before the answer, in its order; a call that its client has cancelled is
//! told of no further, but questions that were asked for it are taken back.
//!
//! Knows nothing of: eras, and which wire carries it.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::json;
use crate::jsonrpc::{self, Id};
use crate::mcp::call_notifications::{Note, NoteStream, Notes};
use crate::mcp::elicitation_complete::Visits;
use crate::mcp::input_request::VISIT_DONE;
use crate::mcp::log_level::Wanted;
use crate::memory_budget::Budget;

/// What goes out beside one answer.
#[derive(Default)]
pub(crate) struct Beside {
    noted: Option<Noted>,
    said: Option<mpsc::Receiver<Bytes>>,
}

/// Notes, as this client is told of them.
struct Noted {
    /// Under which it hears of progress, if it asked for any.
    token: Option<Id>,
    notes: NoteStream,
    budget: Budget,
}

/// Where whole messages are put that go out beside an answer; a full one is waited for. Closed once
/// nobody takes them any more: the stream is lost.
pub(crate) type Say = mpsc::Sender<Bytes>;

impl Beside {
    /// Where an upstream's side puts notes, and what becomes of them: of progress nothing without a
    /// `token`, of log messages nothing where none are wanted, and of visits nothing without `visits`.
    /// What waits to be read counts against `budget`.
    pub(crate) fn notes(
        token: Option<Id>,
        logs: Wanted,
        visits: Option<&Visits>,
        budget: &Budget,
    ) -> (Notes, Self) {
        if token.is_none() && logs.least().is_none() && visits.is_none() {
            return (Notes::unheard(), Self::default());
        }
        let (notes, stream) = Notes::open(token.is_some(), logs);
        if let Some(visits) = visits {
            notes.tell_visits(visits);
        }
        notes.count_against(budget);
        let noted = Noted { token, notes: stream, budget: budget.clone() };
        (notes, Self { noted: Some(noted), said: None })
    }

    /// Takes whole messages, too.
    pub(crate) fn with_said(self) -> (Say, Self) {
        let (say, said) = mpsc::channel(QUEUE);
        (say, Self { said: Some(said), ..self })
    }

    /// The next message. Never ends: race it with the answer. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Bytes {
        let Self { noted, said } = self;
        let next_note = async {
            match noted {
                Some(noted) => noted.next().await,
                None => std::future::pending().await,
            }
        };
        let next_said = async {
            match said {
                // Nobody has anything to say any more.
                Some(said) => match said.recv().await {
                    Some(message) => message,
                    None => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = next_said => message,
            note = next_note => note,
        }
    }

    /// Those that are left, once the answer is there; without one, because it was cancelled, only what has
    /// been said.
    pub(crate) fn rest(self, is_answered: bool) -> impl Iterator<Item = Bytes> {
        let Self { noted, said } = self;
        let notes = noted.filter(|_| is_answered).into_iter().flat_map(Noted::rest);
        let said =
            said.into_iter().flat_map(|mut said| std::iter::from_fn(move || said.try_recv().ok()));
        notes.chain(said)
    }
}

impl Noted {
    async fn next(&mut self) -> Bytes {
        loop {
            let note = self.notes.next().await;
            // One for which there is no room is not told.
            if let Ok(message) = self.budget.keep_large(message(self.token.as_ref(), note)) {
                return message;
            }
        }
    }

    fn rest(self) -> impl Iterator<Item = Bytes> {
        let Self { token, notes, budget } = self;
        let messages = notes.rest().into_iter().map(move |note| message(token.as_ref(), note));
        messages.filter_map(move |message| budget.keep_large(message).ok())
    }
}

fn message(token: Option<&Id>, note: Note) -> Bytes {
    match note {
        Note::Progress(mut params) => {
            if let Some(token) = token {
                params.set("progressToken", token.as_bytes().clone());
            }
            let params = json::on_one_line(params.to_bytes());
            jsonrpc::write_notification("notifications/progress", &params)
        }
        Note::Log(params) => jsonrpc::write_notification("notifications/message", &params),
        Note::Visited(params) => jsonrpc::write_notification(VISIT_DONE, &params),
    }
}

/// How many messages wait for a call's stream: all questions that a conversation may have open, and
/// their taking back.
const QUEUE: usize = 128;
