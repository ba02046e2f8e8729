//! The stdio wire: one client, lines in both directions, both eras at once.
//!
//! Promises: nothing but protocol goes out, one message a line; each request is a task of its own that
//! its client can cancel by its id; the end of the input cancels what is left. The reader waits for the
//! writer for a bounded time: a client that asks on and on and reads nothing is hung up on.
//!
//! Knows nothing of: processes and their streams; tests speak through memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::in_flight::OpenCall;
use super::modern::{Exchange, Listening};
use super::response::{Answer, Call, Way};
use super::stream_session::Conversation;
use super::{Doors, batch, era, legacy, modern};
use crate::audit::Wire;
use crate::downstream::limits::concurrency::Turn;
use crate::downstream::response::audit_events::recorded;
use crate::downstream::response::results;
use crate::fairness::Workload;
use crate::gateway::Guest;
use crate::jsonrpc::{Message, Request};
use crate::line_codec::{Line, Lines};
use crate::mcp::revision::Era;

/// Serves the client at the other end of `input` and `output` until it closes its side or the house
/// closes.
pub async fn serve<R, W>(doors: Arc<Doors>, guest: Guest, mut input: R, output: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    // Its client has started us this very moment and will learn once what can be asked here.
    guest.settle().await;
    let door = doors.now();
    let stop = door.stop.clone();
    let end = CancellationToken::new();
    let (queue, lines) = mpsc::channel(QUEUE);
    let writer = door.tasks.spawn(write(output, lines, end.clone()));
    let guest = guest.recorded(door.settings.audit.conversation(Wire::Stdio, None));
    let talk = Conversation::new(&doors, door, guest, queue, end.clone(), HINT, ROOM);
    let mut client = Client { talk, end: end.clone() };
    let lines = Lines::new(client.talk.door.settings.max_body);
    let mut lines = lines.counted(client.talk.door.budget());
    let mut workload = Workload::default();
    'reading: loop {
        workload.add(0);
        workload.yield_if_due().await;
        while let Some(line) = lines.next_line() {
            workload.add(0);
            workload.yield_if_due().await;
            if !client.talk.follow() {
                break 'reading;
            }
            client.take(line).await;
            if end.is_cancelled() {
                break 'reading;
            }
        }
        let read = tokio::select! {
            biased;
            () = end.cancelled() => break,
            () = stop.cancelled() => break,
            () = client.talk.replaced() => match client.talk.follow() {
                true => continue,
                false => break,
            },
            read = input.read_buf(lines.buffer()) => read,
        };
        match read {
            Ok(0) => {
                if let Some(line) = lines.last_line() {
                    client.take(line).await;
                }
                break;
            }
            Ok(_) => {}
            Err(error) => {
                debug!(%error, "the client's input broke");
                break;
            }
        }
    }
    let is_over = client.talk.is_over;
    if is_over {
        warn!("the client would not be let in any more: its conversation is over");
    }
    let hang_up = writer.abort_handle();
    let closing = async {
        client.talk.close().await;
        // All senders are gone: the writer ends behind the last line.
        if let Err(error) = writer.await {
            debug!(%error, "the writer ended early");
        }
    };
    if is_over || stop.is_cancelled() {
        // What is under way is finished; the house itself knows how long it waits for that.
        closing.await;
    } else if tokio::time::timeout(LAST_WORDS, closing).await.is_err() {
        // A client that has closed its side and does not read either.
        hang_up.abort();
    }
}

/// The client and what it has open.
struct Client {
    /// The legacy conversation; on one channel requests of both eras share its ids, its queue, its tasks.
    talk: Conversation,
    end: CancellationToken,
}

impl Client {
    async fn take(&mut self, line: Line) {
        let text = match line {
            Line::Whole(text) => text,
            Line::TooLong(_) => {
                let limit = self.talk.door.settings.max_body;
                let refused = results::too_large("the client", limit);
                return self.say(self.talk.unread(Answer::refused(None, &refused))).await;
            }
            Line::NoRoom(_) => {
                let refused = results::full();
                return self.say(self.talk.unread(Answer::refused(None, &refused))).await;
            }
        };
        if batch::is_batch(&text) {
            return self.take_batch(&text).await;
        }
        match Message::parse(text) {
            Ok(Message::Request(request)) => self.take_request(request).await,
            Ok(Message::Notification(notification)) => self.talk.take_notification(&notification),
            Ok(Message::Answer(answer)) => self.talk.take_answer(answer),
            Err(invalid) => {
                if let Some(answer) = invalid.as_answer() {
                    self.talk.take_answer(answer);
                }
                self.say(self.talk.unread(Answer::from(invalid))).await;
            }
        }
    }

    async fn take_request(&mut self, request: Request) {
        let turn = match self.talk.turn() {
            Ok(turn) => turn,
            Err(refused) => {
                let answer = self.talk.busy_answer(&request, &refused);
                return self.say(self.talk.answered(&request, answer)).await;
            }
        };
        let versions = &self.talk.door.settings.versions;
        match era::of_request(versions, &request.method, &request.params, None) {
            Era::Modern => self.take_modern(request, turn).await,
            Era::Legacy => {
                if let Some((answer, _)) = self.talk.take_request(request, turn) {
                    self.say(answer).await;
                }
            }
        }
    }

    async fn take_modern(&mut self, request: Request, turn: Turn) {
        let Conversation { door, calls, outgoing, .. } = &self.talk;
        let settings = &door.settings;
        let guest = self.talk.guest();
        let record = guest.record();
        record.of_method(&request.method);
        let refuse = |id, refused| recorded(record, Answer::refused(Some(id), refused));
        let opened = match modern::open(request, None, &settings.versions) {
            Ok(opened) => opened,
            Err((id, refused)) => return self.say(refuse(&id, &refused)).await,
        };
        let id = opened.id().clone();
        let Some(open) = calls.open(&id) else {
            return self.say(refuse(&id, &legacy::id_in_use())).await;
        };
        let (versions, allowed) = (&settings.versions, &settings.held);
        // Held: a piece at a time would hold up everybody else's lines.
        let way = Way::Shared;
        match modern::serve(&guest, opened, versions, &door.streams, allowed, way) {
            Exchange::Call(Call { answer, beside }) => {
                let answer = async move { open.run(answer).await.flatten() };
                let call = Call { answer: Box::pin(answer), beside };
                outgoing.answer(id, call, record.clone(), turn);
            }
            // How many of these there are is another bound's to say.
            Exchange::Listening(listening) => {
                let listening = listen(listening, open, outgoing.queue.clone(), door.stop.clone());
                outgoing.tasks.spawn(listening);
            }
        }
    }

    async fn take_batch(&mut self, text: &Bytes) {
        if let Err(refused) = self.talk.take_batch(text) {
            self.say(self.talk.unread(Answer::refused(None, &refused))).await;
        }
    }

    /// Answers at once. A full queue is waited for, since a client may well read more slowly than it
    /// sends; not for long, since one that sends without reading is nobody to wait for.
    async fn say(&self, answer: Answer) {
        let (queue, patience) = (&self.talk.outgoing.queue, self.talk.door.settings.timeouts.write);
        if let Some(text) = answer.text.into_whole()
            && queue.send_timeout(text, patience).await.is_err()
        {
            debug!("the client does not read what it is answered");
            self.end.cancel();
        }
    }
}

/// Tells a modern client of the changes that it asked for, until it cancels or the house closes.
async fn listen(
    mut listening: Listening,
    open: OpenCall,
    queue: mpsc::Sender<Bytes>,
    stop: CancellationToken,
) {
    loop {
        let line = tokio::select! {
            biased;
            () = open.cancelled().cancelled() => return,
            () = stop.cancelled() => {
                let _ = queue.send(listening.cancelled()).await;
                return;
            }
            change = listening.next() => match change {
                Some(change) => change,
                // Its client would not be let in any more.
                None => {
                    let _ = queue.send(listening.cancelled()).await;
                    return;
                }
            },
        };
        if queue.send(line).await.is_err() {
            return;
        }
    }
}

/// Writes lines until nobody has any more. A client that takes none is gone, and `end` says so.
async fn write<W: AsyncWrite + Unpin>(
    mut output: W,
    mut lines: mpsc::Receiver<Bytes>,
    end: CancellationToken,
) {
    let _ended = end.drop_guard();
    while let Some(line) = lines.recv().await {
        let written = async {
            output.write_all(&line).await?;
            output.write_all(b"\n").await?;
            output.flush().await
        };
        if let Err(error) = written.await {
            debug!(%error, "the client's output broke");
            return;
        }
    }
}

/// How long the last answers have to be written once the client has closed its side.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How many lines wait for the writer before those who have more wait too.
const QUEUE: usize = 256;
/// How many bytes of answers may wait: there is one client, and it is on this machine.
const ROOM: usize = usize::MAX;
/// What a client that asks something before it has opened a conversation can do.
const HINT: &str = "send `initialize` first, or the `_meta` of revision 2026-07-28";
