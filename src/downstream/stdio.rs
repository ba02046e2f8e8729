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
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::answer::{Answer, Call, Refused, Text};
use super::calls::{Calls, OpenCall};
use super::legacy::Peer;
use super::modern::{Exchange, Listening};
use super::{Door, batch, encode, era, legacy, modern};
use crate::gateway::{Guest, Listen};
use crate::line::{Line, Lines};
use crate::mcp::call::Body;
use crate::mcp::revision::Era;
use crate::rpc::{self, Id, Message, Notification, Request, code};

/// Serves the client at the other end of `input` and `output` until it closes its side or the house
/// closes.
pub async fn serve<R, W>(door: Arc<Door>, guest: Guest, mut input: R, output: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    // Its client has started us this very moment and will learn once what can be asked here.
    guest.settle().await;
    let end = CancellationToken::new();
    let (queue, lines) = mpsc::channel(QUEUE);
    let writer = door.tasks.spawn(write(output, lines, end.clone()));
    let mut client = Client {
        tasks: TaskTracker::new(),
        calls: Calls::new(end.clone()),
        legacy: None,
        end: end.clone(),
        queue,
        guest,
        door: Arc::clone(&door),
    };
    let mut lines = Lines::new(door.settings.max_body);
    'reading: loop {
        while let Some(line) = lines.next_line() {
            client.take(line).await;
            if end.is_cancelled() {
                break 'reading;
            }
        }
        let read = tokio::select! {
            biased;
            () = end.cancelled() => break,
            () = door.stop.cancelled() => break,
            read = input.read_buf(lines.buffer()) => read,
        };
        match read {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                debug!(%error, "the client's input broke");
                break;
            }
        }
    }
    let hang_up = writer.abort_handle();
    let closing = async {
        client.close().await;
        // All senders are gone: the writer ends behind the last line.
        if let Err(error) = writer.await {
            debug!(%error, "the writer ended early");
        }
    };
    if door.stop.is_cancelled() {
        // What is under way is finished; the house itself knows how long it waits for that.
        closing.await;
    } else if tokio::time::timeout(LAST_WORDS, closing).await.is_err() {
        // A client that has closed its side and does not read either.
        hang_up.abort();
    }
}

/// The client and what it has open.
struct Client {
    guest: Guest,
    door: Arc<Door>,
    /// Requests of both eras: on one channel they share one space of ids.
    calls: Arc<Calls>,
    /// The legacy conversation, once it has been opened.
    legacy: Option<Conversation>,
    /// Lines for the writer; a task waits here while the client does not read.
    queue: mpsc::Sender<Bytes>,
    tasks: TaskTracker,
    end: CancellationToken,
}

/// What `initialize` opened.
struct Conversation {
    peer: Peer,
    /// Until the client says that it is initialized: what it has seen by then.
    listen: Option<Listen>,
    end: CancellationToken,
}

impl Client {
    async fn take(&mut self, line: Line) {
        let text = match line {
            Line::Whole(text) => text,
            Line::TooLong(_) => {
                let refused = encode::too_large("the client", self.door.settings.max_body);
                return self.say(Answer::refused(None, &refused)).await;
            }
        };
        if batch::is_batch(&text) {
            return self.take_batch(&text).await;
        }
        match Message::parse(text) {
            Ok(Message::Request(request)) => self.take_request(request).await,
            Ok(Message::Notification(notification)) => self.take_notification(&notification),
            // Nothing is asked of the client, so nothing waits for an answer.
            Ok(Message::Answer(_)) => {}
            Err(invalid) => self.say(Answer::from(invalid)).await,
        }
    }

    async fn take_request(&mut self, request: Request) {
        if self.calls.len() >= MAX_OPEN {
            let refused = encode::too_busy(BUSY_RETRY);
            return self.say(Answer::refused(Some(&request.id), &refused)).await;
        }
        let versions = &self.door.settings.versions;
        match era::of_request(versions, &request.method, &request.params, None) {
            Era::Modern => self.take_modern(request).await,
            Era::Legacy => self.take_legacy(request).await,
        }
    }

    async fn take_modern(&mut self, request: Request) {
        let settings = &self.door.settings;
        let opened = match modern::open(request, None, &settings.versions) {
            Ok(opened) => opened,
            Err((id, refused)) => return self.say(Answer::refused(Some(&id), &refused)).await,
        };
        let id = opened.id().clone();
        let Some(open) = self.calls.open(&id) else {
            return self.say(Answer::refused(Some(&id), &legacy::id_in_use())).await;
        };
        let (versions, streams) = (&settings.versions, &self.door.streams);
        match modern::serve(&self.guest, opened, versions, streams, settings.max_reply) {
            Exchange::Call(Call { answer, progress }) => {
                let answer = async move { open.run(answer).await.flatten() };
                self.answer(id, Call { answer: Box::pin(answer), progress });
            }
            Exchange::Listening(listening) => {
                let listening = listen(listening, open, self.queue.clone(), self.door.stop.clone());
                self.tasks.spawn(listening);
            }
        }
    }

    async fn take_legacy(&mut self, request: Request) {
        if &*request.method == legacy::OPENING {
            return self.initialize(&request).await;
        }
        let Some(conversation) = &self.legacy else {
            if &*request.method == "ping" {
                return self.say(Answer::result(&request.id, b"{}")).await;
            }
            let text = "send `initialize` first, or the `_meta` of revision 2026-07-28";
            let refused = Refused::new(hyper::StatusCode::BAD_REQUEST, code::INVALID_REQUEST, text);
            return self.say(Answer::refused(Some(&request.id), &refused)).await;
        };
        let id = request.id.clone();
        let max_reply = self.door.settings.max_reply;
        let call = legacy::serve(&self.guest, &conversation.peer, &self.calls, request, max_reply);
        self.answer(id, call);
    }

    async fn initialize(&mut self, request: &Request) {
        match legacy::initialize(&self.guest, &self.door.settings.versions, &request.params) {
            Ok((peer, result)) => {
                // Opening again begins anew.
                if let Some(old) = self.legacy.take() {
                    old.end.cancel();
                }
                let listen = Some(self.guest.listen());
                self.legacy = Some(Conversation { peer, listen, end: self.end.child_token() });
                self.say(Answer::result(&request.id, &result)).await;
            }
            Err(refused) => self.say(Answer::refused(Some(&request.id), &refused)).await,
        }
    }

    fn take_notification(&mut self, notification: &Notification) {
        match &*notification.method {
            "notifications/cancelled" => self.calls.cancel(&notification.params),
            "notifications/initialized" => {
                let conversation = self.legacy.as_mut();
                let opened = conversation.and_then(|open| Some((open.listen.take()?, &open.end)));
                if let Some((listen, end)) = opened {
                    let telling = tell_changes(listen, end.clone(), self.queue.clone());
                    self.tasks.spawn(telling);
                }
            }
            _ => {}
        }
    }

    async fn take_batch(&mut self, text: &Bytes) {
        let Some(conversation) = &self.legacy else {
            return self.say(Answer::refused(None, &batch::removed())).await;
        };
        let peer = &conversation.peer;
        if self.calls.len() >= MAX_OPEN {
            return self.say(Answer::refused(None, &encode::too_busy(BUSY_RETRY))).await;
        }
        let messages = match batch::read(peer.revision, text) {
            Ok(messages) => messages,
            Err(refused) => return self.say(Answer::refused(None, &refused)).await,
        };
        let max_reply = self.door.settings.max_reply;
        let answers = batch::serve(&self.guest, peer, &self.calls, messages, max_reply);
        let queue = self.queue.clone();
        self.tasks.spawn(async move {
            if let Some(Answer { text: Text::Whole(text), .. }) = answers.await {
                // Fails only when the writer is gone, and the client with it.
                let _ = queue.send(text).await;
            }
        });
    }

    /// Answers on a task of its own.
    fn answer(&self, id: Id, call: Call) {
        let queue = self.queue.clone();
        let max_reply = self.door.settings.max_reply;
        self.tasks.spawn(answer(id, call, queue, max_reply));
    }

    /// Answers at once. A full queue is waited for, since a client may well read more slowly than it
    /// sends; not for long, since one that sends without reading is nobody to wait for.
    async fn say(&self, answer: Answer) {
        if let Text::Whole(text) = answer.text
            && self.queue.send_timeout(text, self.door.settings.write_stall).await.is_err()
        {
            debug!("the client does not read what it is answered");
            self.end.cancel();
        }
    }

    /// Ends everything that is open. When the house closes, that is what the streams of changes say.
    async fn close(self) {
        if !self.door.stop.is_cancelled() {
            self.end.cancel();
        }
        let Self { tasks, end, legacy, .. } = self;
        if let Some(conversation) = legacy {
            conversation.end.cancel();
        }
        tasks.close();
        tasks.wait().await;
        end.cancel();
    }
}

/// Sends a call's progress and then its answer.
async fn answer(id: Id, call: Call, queue: mpsc::Sender<Bytes>, max_reply: usize) {
    let Call { mut answer, mut progress } = call;
    let done = loop {
        tokio::select! {
            biased;
            done = &mut answer => break done,
            note = async {
                match &mut progress {
                    Some(progress) => progress.next().await,
                    None => std::future::pending().await,
                }
            } => if queue.send(note).await.is_err() {
                return;
            },
        }
    };
    let Some(done) = done else { return };
    let text = match done.text {
        Text::Whole(text) => text,
        // One channel for all: a piece at a time would hold up everybody else's lines.
        arriving @ Text::Arriving(..) => {
            match Body::Arriving(arriving.into_pieces()).collect(max_reply).await {
                Ok(text) => text,
                Err(broken) => {
                    let refused = encode::broken(&broken.to_string());
                    rpc::write_error(Some(&id), &refused.error.to_bytes())
                }
            }
        }
    };
    let rest = progress.into_iter().flat_map(super::answer::Progress::rest);
    for line in rest.chain([text]) {
        if queue.send(line).await.is_err() {
            return;
        }
    }
}

/// Tells a legacy client of changes until its conversation ends.
async fn tell_changes(mut listen: Listen, end: CancellationToken, queue: mpsc::Sender<Bytes>) {
    loop {
        let topic = tokio::select! {
            biased;
            () = end.cancelled() => return,
            topic = listen.next() => topic,
        };
        if queue.send(rpc::write_notification(topic.notification(), b"{}")).await.is_err() {
            return;
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
    let mut line = listening.acknowledged();
    loop {
        if queue.send(line).await.is_err() {
            return;
        }
        line = tokio::select! {
            biased;
            () = open.cancelled().cancelled() => return,
            () = stop.cancelled() => {
                let _ = queue.send(listening.cancelled()).await;
                return;
            }
            change = listening.changed() => change,
        };
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
/// How many requests of one client are worked on at a time; further ones are refused.
const MAX_OPEN: usize = 1_024;
/// When a client with too many open requests may try again.
const BUSY_RETRY: Duration = Duration::from_secs(1);
