//! One session of the HTTP+SSE pair: a task that takes what its client posts.
//!
//! Promises: it never waits for the stream, so a message is taken or refused at once; `initialize` opens the
//! session once; when the house closes, what is under way is answered before the stream ends.
//!
//! Knows nothing of: HTTP, and whose messages these are.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::sessions::Listed;
use crate::audit::Record;
use crate::downstream::response::{Answer, Call, Refused};
use crate::downstream::stream_session::Conversation;
use crate::downstream::{Door, Doors, legacy};
use crate::gateway::Guest;
use crate::jsonrpc::{Message, Request, code};
use crate::policy::Certificate;

/// What a client has posted.
pub(super) struct Posted {
    pub(super) told: Told,
    /// Whether it is taken: then whatever answers it comes on the stream.
    pub(super) verdict: oneshot::Sender<Result<(), Answer>>,
}

/// One message, or several.
pub(super) enum Told {
    Message(Message),
    /// Not read yet: whether there are batches is the session's revision's to say.
    Batch(Bytes),
}

/// The session.
pub(super) struct Talk {
    conversation: Conversation,
    inbox: mpsc::Receiver<Posted>,
    end: CancellationToken,
    stop: CancellationToken,
    listed: Listed,
    /// The client certificate of the stream's connection, if it has one.
    certificate: Option<Arc<Certificate>>,
}

enum Event {
    /// The stream has ended.
    Gone,
    /// The house closes.
    Stop,
    /// Another configuration holds.
    Replaced,
    /// The certificate that the stream was opened with is not valid any more.
    Expired,
    Posted(Option<Posted>),
}

impl Talk {
    pub(super) fn new(
        doors: &Doors,
        door: Arc<Door>,
        guest: Guest,
        inbox: mpsc::Receiver<Posted>,
        queue: mpsc::Sender<Bytes>,
        end: CancellationToken,
        listed: Listed,
    ) -> Self {
        let stop = door.stop.clone();
        let certificate = guest.certificate().cloned();
        // Room for one of the largest whatever else waits.
        let room = 2 * door.settings.held.limit;
        let conversation = Conversation::new(doors, door, guest, queue, end.clone(), HINT, room);
        Self { conversation, inbox, end, stop, listed, certificate }
    }

    /// Takes what is posted until the stream has ended, the house closes or its client would not be let in any more. The stream ends when this
    /// does, if it has not before: nobody is left who has anything to say.
    pub(super) async fn run(mut self) {
        loop {
            let event = tokio::select! {
                biased;
                () = self.end.cancelled() => Event::Gone,
                () = self.stop.cancelled() => Event::Stop,
                () = Certificate::expired(self.certificate.as_ref()) => Event::Expired,
                () = self.conversation.replaced() => Event::Replaced,
                posted = self.inbox.recv() => Event::Posted(posted),
            };
            match event {
                Event::Posted(Some(Posted { told, verdict })) => {
                    // Whoever has posted may have left.
                    let _ = verdict.send(self.take(told));
                }
                Event::Replaced if self.conversation.follow() => {}
                Event::Replaced
                | Event::Expired
                | Event::Gone
                | Event::Stop
                | Event::Posted(None) => break,
            }
        }
        // Nobody finds it any more, and who has found it before is told that it has ended.
        drop((self.listed, self.inbox));
        self.conversation.close().await;
    }

    fn take(&mut self, told: Told) -> Result<(), Answer> {
        match told {
            Told::Message(Message::Request(request)) => self.take_request(request),
            Told::Message(Message::Notification(notification)) => {
                self.conversation.take_notification(&notification);
                Ok(())
            }
            Told::Message(Message::Answer(answer)) => {
                self.conversation.take_answer(answer);
                Ok(())
            }
            Told::Batch(text) => {
                let taken = self.conversation.take_batch(&text);
                taken.map_err(|refused| Answer::refused(None, &refused))
            }
        }
    }

    fn take_request(&mut self, request: Request) -> Result<(), Answer> {
        let outgoing = &self.conversation.outgoing;
        let id = request.id.clone();
        let turn = match self.conversation.turn() {
            Ok(turn) => turn,
            Err(refused) => {
                let answer = self.conversation.busy_answer(&request, &refused);
                // On the stream, where its client looks for it, if there is room; else the POST's record tells of it.
                if !outgoing.try_say(&answer) {
                    return Err(answer);
                }
                self.conversation.answered(&request, answer);
                return Ok(());
            }
        };
        let answer = if self.conversation.is_open() && &*request.method == legacy::OPENING {
            let text = "the session is open already: open another stream to begin anew";
            let again = Refused::new(StatusCode::OK, code::INVALID_REQUEST, text);
            let again = Answer::refused(Some(&id), &again);
            Some((self.conversation.answered(&request, again), turn))
        } else {
            self.conversation.take_request(request, turn)
        };
        if let Some((answer, turn)) = answer {
            let call = Call::answered(answer);
            self.conversation.outgoing.answer(id, call, Record::off(), turn);
        }
        Ok(())
    }
}

/// How many messages wait for the stream. When it is full, each call waits with its own answer in a task
/// of its own, and keeps its client's turn: no more than this and the client's turns are held at a time, and
/// together no more than two of the largest replies.
pub(super) const QUEUE: usize = 32;
/// What a client that asks something before it has opened its session can do.
const HINT: &str = "send `initialize` first";
