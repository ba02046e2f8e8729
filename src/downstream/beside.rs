//! What goes out beside an answer, on its call's own stream, while the answer is made: progress under the
//! client's own token, and what its upstream asks of the client.
//!
//! Promises: what is said goes before the answer, in its order; a call that its client has cancelled is
//! told of no further, but questions that were asked for it are taken back.
//!
//! Knows nothing of: eras, and which wire carries it.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::json::{self, Object};
use crate::mcp::note::{NoteStream, Notes};
use crate::rpc::{self, Id};

/// What goes out beside one answer.
#[derive(Default)]
pub(super) struct Beside {
    progress: Option<Progress>,
    said: Option<mpsc::Receiver<Bytes>>,
}

/// Progress beside a call, under the client's own token.
struct Progress {
    token: Id,
    notes: NoteStream,
}

/// Where whole messages are put that go out beside an answer; a full one is waited for. Closed once
/// nobody takes them any more: the stream is lost.
pub(super) type Say = mpsc::Sender<Bytes>;

impl Beside {
    /// Where an upstream's side puts notes, and what becomes of them: nothing without a `token`.
    pub(super) fn notes(token: Option<Id>) -> (Notes, Self) {
        match token {
            None => (Notes::unheard(), Self::default()),
            Some(token) => {
                let (notes, stream) = Notes::channel();
                let progress = Some(Progress { token, notes: stream });
                (notes, Self { progress, said: None })
            }
        }
    }

    /// Takes whole messages, too.
    pub(super) fn with_said(self) -> (Say, Self) {
        let (say, said) = mpsc::channel(QUEUE);
        (say, Self { said: Some(said), ..self })
    }

    /// The next message. Never ends: race it with the answer. Cancel-safe.
    pub(super) async fn next(&mut self) -> Bytes {
        let Self { progress, said } = self;
        let next_note = async {
            match progress {
                Some(progress) => progress.next().await,
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
    pub(super) fn rest(self, is_answered: bool) -> impl Iterator<Item = Bytes> {
        let Self { progress, said } = self;
        let notes = progress.filter(|_| is_answered).into_iter().flat_map(Progress::rest);
        let said =
            said.into_iter().flat_map(|mut said| std::iter::from_fn(move || said.try_recv().ok()));
        notes.chain(said)
    }
}

impl Progress {
    async fn next(&mut self) -> Bytes {
        let note = self.notes.next().await;
        notification(&self.token, note)
    }

    fn rest(self) -> impl Iterator<Item = Bytes> {
        let Self { token, notes } = self;
        notes.rest().into_iter().map(move |note| notification(&token, note))
    }
}

fn notification(token: &Id, mut note: Object) -> Bytes {
    note.set("progressToken", token.as_bytes().clone());
    rpc::write_notification("notifications/progress", &json::on_one_line(note.to_bytes()))
}

/// How many messages wait for a call's stream: all questions that a conversation may have open, and
/// their taking back.
const QUEUE: usize = 128;
