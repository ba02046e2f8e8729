//! A legacy conversation in which everything for the client goes out on one stream: over lines, or as the
//! events of the HTTP+SSE pair.
//!
//! Promises: each request is a task of its own that its client can cancel by its id; its notes and questions
//! go before its answer; whoever takes a message never waits for what goes out. The end of the conversation ends
//! all of its tasks.
//!
//! Knows nothing of: how messages come, and what carries those that go out.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::client_requests::Questions;
use super::http::admission::unread;
use super::in_flight::Calls;
use super::legacy::{self, Peer};
use super::response::{Answer, Call, Refused, Text, Way};
use super::session::new_id;
use super::{Door, Doors, batch};
use crate::audit::Record;
use crate::downstream::limits::concurrency::{Busy, Turn};
use crate::downstream::response::audit_events::recorded;
use crate::downstream::response::results;
use crate::gateway::{Guest, Listen};
use crate::json::Object;
use crate::jsonrpc::{self, Id, Notification, Request};
use crate::mcp::call::Client;
use crate::memory_budget::{Allowance, Budget, NoRoom};
use crate::request_scope::Trail;

/// A client's conversation, whether it has been opened yet or not.
pub(super) struct Conversation {
    pub(super) guest: Guest,
    pub(super) door: Arc<Door>,
    doors: watch::Receiver<Arc<Door>>,
    /// Whether its client would not be let in any more.
    pub(super) is_over: bool,
    /// Open requests, by the client's ids.
    pub(super) calls: Arc<Calls>,
    pub(super) outgoing: Outgoing,
    /// What a client that has not opened it yet is told to do.
    hint: &'static str,
    /// What the client has been asked: ids go on even if it opens the conversation again.
    questions: Questions,
    opened: Option<Opened>,
    end: CancellationToken,
}

/// What `initialize` opened.
struct Opened {
    peer: Peer,
    /// Until the client says that it is initialized: what it has seen by then.
    listen: Option<Listen>,
    end: CancellationToken,
}

/// The way out, and the tasks that use it.
pub(super) struct Outgoing {
    /// Messages on one line each; a task waits here while the client does not read.
    pub(super) queue: mpsc::Sender<Bytes>,
    pub(super) tasks: TaskTracker,
    allowed: Allowance,
    /// Bytes of answers that may wait to go out; whatever has no room is answered with an error.
    room: Room,
}

/// How much may wait to go out: in this conversation, and in all of them.
#[derive(Clone)]
struct Room {
    own: Arc<Semaphore>,
    budget: Budget,
}

/// An answer that waits to go out, and the room that it takes until then.
struct Waiting {
    text: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Waiting {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Conversation {
    /// A conversation that nobody has opened, whose answers may be no more than `room` bytes while they
    /// wait to go out. When `end` fires its requests are cancelled.
    pub(super) fn new(
        doors: &Doors,
        door: Arc<Door>,
        guest: Guest,
        queue: mpsc::Sender<Bytes>,
        end: CancellationToken,
        hint: &'static str,
        room: usize,
    ) -> Self {
        let allowed = door.settings.held.clone();
        let own = Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS)));
        let room = Room { own, budget: allowed.budget.clone() };
        let outgoing = Outgoing { queue, tasks: TaskTracker::new(), allowed, room };
        let (calls, questions) = (Calls::new(end.clone()), Questions::new(door.stop.clone()));
        let mut doors = doors.watch();
        match Arc::ptr_eq(&doors.borrow(), &door) && guest.is_under(&door.generation) {
            true => doors.mark_unchanged(),
            false => doors.mark_changed(),
        }
        let (is_over, opened) = (false, None);
        Self { guest, door, doors, is_over, calls, outgoing, hint, questions, opened, end }
    }

    /// Waits until another configuration holds. Cancel-safe.
    pub(super) async fn replaced(&mut self) {
        if self.doors.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.doors.mark_changed();
    }

    /// Goes over to the configuration that holds; false if its client would not be let in there. What is under way
    /// is answered even so.
    pub(super) fn follow(&mut self) -> bool {
        if self.doors.has_changed().unwrap_or(false) {
            let door = Arc::clone(&self.doors.borrow_and_update());
            match self.guest.again(&door.generation) {
                Ok(guest) => (self.guest, self.door) = (guest, door),
                Err(refusal) => {
                    debug!(client = %self.guest.principal().name, %refusal, "a conversation is over");
                    self.is_over = true;
                }
            }
        }
        !self.is_over
    }

    /// Whether `initialize` has been answered.
    pub(super) fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    /// The right to have a request answered here, or to wait for that; it is kept until its answer has found a place
    /// in the queue, since a client that does not read its answers has them under way.
    pub(super) fn turn(&self) -> Result<Turn, Refused> {
        let turn = self.door.turns.begin(self.guest.principal());
        turn.map_err(|Busy { retry_after }| results::too_busy(retry_after))
    }

    /// What a request is answered with for which there is no turn: it is refused, but for a ping, whose answer takes
    /// no work. Its record is the caller's to make.
    pub(super) fn busy_answer(&self, request: &Request, refused: &Refused) -> Answer {
        let is_ping = self.is_open() && &*request.method == "ping";
        match is_ping {
            true => Answer::result(&request.id, b"{}"),
            false => Answer::refused(Some(&request.id), refused),
        }
    }

    /// The client, for a message whose record begins here.
    pub(super) fn guest(&self) -> Guest {
        self.guest.recorded(self.guest.record().another())
    }

    /// The answer to a request that is there at once, and with it the whole of its record.
    pub(super) fn answered(&self, request: &Request, answer: Answer) -> Answer {
        let record = self.guest.record().another();
        record.of_method(&request.method);
        record.took(request.bytes);
        if let Some(opened) = &self.opened {
            record.speaks(opened.peer.revision);
        }
        recorded(&record, answer)
    }

    /// The answer to what is no request.
    pub(super) fn unread(&self, answer: Answer) -> Answer {
        recorded(&self.guest.record().another(), answer)
    }

    /// Starts to answer a request when its turn has come, or returns the answer that is there at once.
    pub(super) fn take_request(&mut self, request: Request, turn: Turn) -> Option<(Answer, Turn)> {
        if &*request.method == legacy::OPENING {
            let answer = self.initialize(&request);
            return Some((self.answered(&request, answer), turn));
        }
        let Some(opened) = &self.opened else {
            let answer = legacy::unopened(&self.guest, &request, self.hint);
            return Some((self.answered(&request, answer), turn));
        };
        let id = request.id.clone();
        let allowed = &self.door.settings.held;
        let (guest, peer) = (self.guest(), &opened.peer);
        let record = guest.record().clone();
        record.hold(true);
        let call = legacy::serve(&guest, peer, &self.calls, request, allowed, Way::Shared);
        self.outgoing.answer(id, call, record, turn);
        None
    }

    fn initialize(&mut self, request: &Request) -> Answer {
        let client = Client::new(&new_id(), self.end.child_token());
        let versions = &self.door.settings.versions;
        let questions = self.questions.clone();
        match legacy::initialize(&self.guest, versions, &request.params, client, questions) {
            Ok((peer, result)) => {
                // Opening again begins anew.
                if let Some(old) = self.opened.take() {
                    old.end.cancel();
                }
                let listen = self.guest.listen(&peer.subscriptions, peer.revision);
                let listen = Some(listen.with_visits(&peer.client.visits));
                let end = peer.client.gone.clone();
                self.opened = Some(Opened { peer, listen, end });
                Answer::result(&request.id, &result)
            }
            Err(refused) => Answer::refused(Some(&request.id), &refused),
        }
    }

    /// Does what a notification asks for.
    pub(super) fn take_notification(&mut self, notification: &Notification) {
        match &*notification.method {
            "notifications/cancelled" => self.calls.cancel(&notification.params),
            "notifications/initialized" => {
                let opened = self.opened.as_mut();
                let opened = opened.and_then(|opened| Some((opened.listen.take()?, &opened.end)));
                if let Some((listen, end)) = opened {
                    let telling = tell_changes(listen, end.clone(), self.outgoing.queue.clone());
                    self.outgoing.tasks.spawn(telling);
                }
            }
            _ => {}
        }
    }

    /// Takes what the client answers to a question.
    pub(super) fn take_answer(&self, answer: jsonrpc::Answer) {
        if let Some(Opened { peer, .. }) = &self.opened {
            peer.questions.settle(answer);
        }
    }

    /// Starts to answer a batch, in the revisions that have them.
    pub(super) fn take_batch(&self, text: &Bytes) -> Result<(), Refused> {
        let Some(Opened { peer, .. }) = &self.opened else {
            return Err(batch::removed());
        };
        let messages = batch::read(peer.revision, text)?;
        let mut turn = self.turn()?;
        let allowed = &self.door.settings.held;
        let (queue, room) = (self.outgoing.queue.clone(), self.outgoing.room.clone());
        let fit = move |text| with_room(&room, text);
        let answers = batch::serve(&self.guest, peer, &self.calls, messages, allowed, fit);
        self.outgoing.tasks.spawn(async move {
            let answer = match turn.come().await {
                Ok(()) => answers.await,
                Err(Busy { retry_after }) => {
                    Some(Answer::refused(None, &results::too_busy(retry_after)))
                }
            };
            if let Some(text) = answer.and_then(|answer| answer.text.into_whole()) {
                // Fails only when the stream is gone, and the client with it.
                let _ = queue.send(text).await;
            }
        });
        Ok(())
    }

    /// Ends everything that is open; when the house closes, or the client would not be let in any more, only what
    /// tells of changes: calls that are under way are answered first.
    pub(super) async fn close(self) {
        if !self.is_over && !self.door.stop.is_cancelled() {
            self.end.cancel();
        }
        if let Some(opened) = self.opened {
            opened.end.cancel();
        }
        self.outgoing.tasks.close();
        self.outgoing.tasks.wait().await;
        self.end.cancel();
    }
}

impl Outgoing {
    /// Sends an answer if there is room for it now, and tells whether there was.
    pub(super) fn try_say(&self, answer: &Answer) -> bool {
        match &answer.text {
            Text::Whole(text) => self.queue.try_send(text.clone()).is_ok(),
            Text::Parts(_) | Text::Arriving(..) => false,
        }
    }

    /// Sends a call's progress and then its answer, on a task of its own, when its turn has come. The record is that of
    /// the call.
    pub(super) fn answer(&self, id: Id, call: Call, record: Record, turn: Turn) {
        let (queue, room) = (self.queue.clone(), self.room.clone());
        let call = call.surviving(Some(id.clone()));
        let trail = Trail::begin();
        record.trailed(trail.number());
        let (allowed, answering) = (self.allowed.clone(), (id, call, record));
        self.tasks.spawn(trail.walk(answer(answering, turn, queue, allowed, room)));
    }
}

async fn answer(
    (id, call, record): (Id, Call, Record),
    mut turn: Turn,
    queue: mpsc::Sender<Bytes>,
    allowed: Allowance,
    room: Room,
) {
    let Call { mut answer, mut beside } = call;
    if let Err(Busy { retry_after }) = turn.come().await {
        let refused =
            recorded(&record, Answer::refused(Some(&id), &results::too_busy(retry_after)));
        drop((answer, record));
        if let Some(text) = refused.text.into_whole() {
            let _ = queue.send(text).await;
        }
        return;
    }
    let done = loop {
        tokio::select! {
            biased;
            done = &mut answer => break done,
            message = beside.next() => if queue.send(message).await.is_err() {
                return;
            },
        }
    };
    let rest = beside.rest(done.is_some());
    let text = match done {
        // Held already by whoever made the call, so that a cancel still reaches it while it arrives.
        Some(done) => done.whole(&id, &allowed).await.text.into_whole().map(|text| {
            with_room(&room, text).unwrap_or_else(|refused| {
                recorded(&record, Answer::refused(Some(&id), &refused));
                jsonrpc::write_error(Some(&id), &refused.error.to_bytes())
            })
        }),
        None => None,
    };
    drop(record);
    for message in rest.chain(text) {
        if queue.send(message).await.is_err() {
            return;
        }
    }
}

/// An answer for which there is room until it has gone out, or an error in its place: whoever asks for much
/// and reads nothing must not have it held here.
fn with_room(room: &Room, text: Bytes) -> Result<Bytes, Refused> {
    let text = room.budget.keep(text).map_err(|NoRoom| unread())?;
    if text.len() <= ALWAYS_BYTES {
        return Ok(text);
    }
    let size = u32::try_from(text.len()).unwrap_or(u32::MAX);
    match Arc::clone(&room.own).try_acquire_many_owned(size) {
        Ok(permit) => Ok(Bytes::from_owner(Waiting { text, _room: permit })),
        Err(_) => Err(unread()),
    }
}

/// An answer for which there always is room: there are only so many.
const ALWAYS_BYTES: usize = 64 * 1024;

/// Tells of changes until the conversation ends. While the queue is full nothing gathers here: what
/// changes meanwhile is one notice.
async fn tell_changes(mut listen: Listen, end: CancellationToken, queue: mpsc::Sender<Bytes>) {
    loop {
        let news = tokio::select! {
            biased;
            () = end.cancelled() => return,
            news = listen.next() => news,
        };
        // Without news its client would not be let in any more, and the conversation ends.
        let Some(news) = news else { return };
        if queue.send(results::news(&news, Object::new())).await.is_err() {
            return;
        }
    }
}
