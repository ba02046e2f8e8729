//! What a server says, sorted by whom it is for.
//!
//! Each connection has one [`Ear`]. Every text that comes in goes through it, over whichever wire:
//! answers go back to the wire, progress to the call that it belongs to, news of changes to the
//! `watch` that the house looks at, and a server's own requests get the answer of a client that
//! offers nothing.
//!
//! Promises never to wait: a server that floods us costs itself its own answers, and nobody else
//! anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Changes;
use super::wire::{Failure, Outgoing};
use crate::json;
use crate::mcp::kind::Topic;
use crate::mcp::meta;
use crate::mcp::name::UpstreamName;
use crate::mcp::note::Notes;
use crate::rpc::pending::{Pending, Ticket};
use crate::rpc::{self, Id, Message, Notification, Outcome, Request};

/// How deep an upstream's message may nest: payloads are its own business, so this only keeps the
/// reading of them bounded.
const MAX_DEPTH: usize = 512;

/// How many messages one batch may hold.
const MAX_BATCH: usize = 1_000;

/// How long an opening connection waits to be told that it will hear of changes.
const LISTEN_GRACE: Duration = Duration::from_millis(500);

/// Pauses before a stream for changes is opened again.
pub(super) const LISTEN_AGAIN: Duration = Duration::from_secs(1);
const LISTEN_AGAIN_MAX: Duration = Duration::from_secs(30);
/// A stream that lived this long was a good one.
const LISTENED_WELL: Duration = Duration::from_secs(30);

/// How much of a server's log message stands in our log.
const MAX_LOGGED_CHARS: usize = 1_000;

/// The claim to an answer on this connection.
pub(super) type Claim = Ticket<Result<Outcome, Failure>, Side>;

/// What is kept beside an open request.
#[derive(Debug)]
pub(super) struct Side {
    /// Where its progress goes.
    pub(super) notes: Option<Notes>,
    /// Whether it is a subscription, which the other side may cancel.
    pub(super) listen: bool,
}

/// Sorts what a server says.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) name: UpstreamName,
    pub(super) pending: Pending<Result<Outcome, Failure>, Side>,
    changes: watch::Sender<Changes>,
    /// Whether several messages may stand in one array; depends on the revision.
    batches: AtomicBool,
    /// Whether the server may ask us something, and we may answer; depends on the era.
    questions: AtomicBool,
    /// Set once somebody may have listed: of which topics the server tells changes.
    up: OnceLock<[bool; 3]>,
    listening: Notify,
}

/// What a text held that the wire has to see to.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Answers, by the id that was minted; `None` where the server could not read ours.
    pub(super) answers: Vec<(Option<u64>, Outcome)>,
    /// What goes back to the server.
    pub(super) replies: Vec<Bytes>,
}

impl Heard {
    /// Picks the answer to request `id` from what came on its own response: an error without an id
    /// can be about this request only.
    pub(super) fn answer_to(self, id: u64) -> Option<Outcome> {
        let is_ours = |(answered, outcome): &(Option<u64>, Outcome)| match answered {
            Some(answered) => *answered == id,
            None => matches!(outcome, Outcome::Error(_)),
        };
        self.answers.into_iter().find(is_ours).map(|(_, outcome)| outcome)
    }
}

/// A text that is no message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Junk(String);

impl Ear {
    pub(super) fn new(name: UpstreamName, changes: watch::Sender<Changes>) -> Arc<Self> {
        Arc::new(Self {
            name,
            pending: Pending::default(),
            changes,
            batches: AtomicBool::new(true),
            questions: AtomicBool::new(true),
            up: OnceLock::new(),
            listening: Notify::new(),
        })
    }

    /// Which freedoms the server has, once it is known what it speaks.
    pub(super) fn tune(&self, batches: bool, questions: bool) {
        self.batches.store(batches, Ordering::Relaxed);
        self.questions.store(questions, Ordering::Relaxed);
    }

    /// The server confirmed that we will hear of changes from now on. What changed while nobody
    /// listened went unheard, so it counts as changed if somebody may have listed already.
    pub(super) fn listening(&self) {
        self.listening.notify_one();
        let Some(tells) = self.up.get().filter(|tells| tells.contains(&true)) else { return };
        self.changes.send_modify(|changes| {
            for (count, tells) in changes.0.iter_mut().zip(tells) {
                *count += u64::from(*tells);
            }
        });
    }

    /// Waits a moment for [`Ear::listening`], so that the first list misses no change; from then on
    /// a late confirmation counts as a change of what the server `tells` of.
    pub(super) async fn settle_in(&self, tells: [bool; 3]) {
        if tells.contains(&true) {
            let _ = tokio::time::timeout(LISTEN_GRACE, self.listening.notified()).await;
        }
        let _ = self.up.set(tells);
    }

    /// Enters a request whose answer will be heard; `None` if the connection is closed.
    pub(super) fn enter(&self, request: &Outgoing) -> Option<Claim> {
        self.pending.open(Side { notes: request.notes.clone(), listen: request.listen })
    }

    /// Reads a text that the server sent: one message, or an array of them. `on` is the request on whose
    /// own stream it came, where requests have streams of their own.
    pub(super) fn hear(&self, text: Bytes, on: Option<u64>) -> Result<Heard, Junk> {
        let mut heard = Heard::default();
        let is_array = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        if !is_array {
            let message = Message::parse_within(text, MAX_DEPTH);
            self.sort(message.map_err(|invalid| Junk(invalid.reason))?, on, &mut heard);
            return Ok(heard);
        }
        if !self.batches.load(Ordering::Relaxed) {
            return Err(Junk("an array of messages, which this revision does not know".into()));
        }
        let messages = json::elements(&text).ok_or_else(|| Junk("not valid JSON".into()))?;
        if messages.len() > MAX_BATCH {
            return Err(Junk(format!("more than {MAX_BATCH} messages in one array")));
        }
        for message in messages {
            match Message::parse_within(message, MAX_DEPTH) {
                Ok(message) => self.sort(message, on, &mut heard),
                Err(invalid) => tracing::debug!(upstream = %self.name, %invalid, "not a message"),
            }
        }
        Ok(heard)
    }

    fn sort(&self, message: Message, on: Option<u64>, heard: &mut Heard) {
        match message {
            Message::Answer(answer) => {
                let outcome = match answer.outcome {
                    Outcome::Result(result) => Outcome::Result(json::on_one_line(result)),
                    Outcome::Error(error) => Outcome::Error(json::on_one_line(error)),
                };
                match answer.id.as_ref().map(Id::minted) {
                    // An id that we could not have minted is nobody's.
                    Some(None) => tracing::debug!(upstream = %self.name, "an answer to nobody"),
                    Some(id) => heard.answers.push((id, outcome)),
                    None => heard.answers.push((None, outcome)),
                }
            }
            Message::Notification(notification) => self.note(notification, on),
            Message::Request(request) => heard.replies.extend(self.reply(&request)),
        }
    }

    fn note(&self, notification: Notification, on: Option<u64>) {
        let Notification { method, mut params } = notification;
        if let Some(topic) = Topic::of_notification(&method) {
            self.changes.send_modify(|changes| changes.0[topic.index()] += 1);
            return;
        }
        match &*method {
            "notifications/progress" => {
                let token = params.take(meta::PROGRESS_TOKEN).and_then(Id::parse);
                let Some(id) = token.and_then(|token| token.minted()) else { return };
                if let Some(notes) = self.notes_of(id) {
                    notes.progress(params);
                }
            }
            // spec 2026-07-28, cancellation: a server sends it to end a subscription and for nothing
            // else. Before that it is about the server's own requests, whose ids are not ours.
            "notifications/cancelled" => {
                let id = params.get_bytes("requestId").and_then(Id::parse);
                let Some(id) = id.and_then(|id| id.minted()) else { return };
                if self.pending.beside(id, |side| side.listen) == Some(true) {
                    let ended = Failure::Broke("the server ended the subscription".into());
                    self.pending.settle(id, Err(ended));
                }
            }
            "notifications/subscriptions/acknowledged" => self.listening(),
            "notifications/message" => {
                let notes = on.and_then(|id| self.notes_of(id));
                if let Some(notes) = notes.filter(|notes| notes.logs().least().is_some()) {
                    return notes.log(&params);
                }
                let text = String::from_utf8_lossy(&params.to_bytes()).into_owned();
                let text: String = text.chars().take(MAX_LOGGED_CHARS).collect();
                tracing::debug!(upstream = %self.name, message = text, "the upstream logs");
            }
            _ => tracing::trace!(upstream = %self.name, method = &*method, "a notification"),
        }
    }

    fn notes_of(&self, id: u64) -> Option<Notes> {
        self.pending.beside(id, |side| side.notes.clone()).flatten()
    }

    /// The answer of a client that offers nothing; `None` where answers are not allowed
    /// (spec 2026-07-28, transports: the client MUST NOT send responses).
    fn reply(&self, request: &Request) -> Option<Bytes> {
        if !self.questions.load(Ordering::Relaxed) {
            tracing::debug!(upstream = %self.name, method = &*request.method, "an unlawful request");
            return None;
        }
        if &*request.method == "ping" {
            return Some(rpc::write_result(&request.id, b"{}"));
        }
        let text = format!("Method not found: {}", request.method);
        let error = rpc::Error::new(rpc::code::METHOD_NOT_FOUND, text);
        Some(rpc::write_error(Some(&request.id), &error.to_bytes()))
    }
}

/// The pause before a stream for changes that was opened at `since`, after a pause of `last`, is
/// opened again.
pub(super) fn next_pause(last: Duration, since: Instant) -> Duration {
    if since.elapsed() >= LISTENED_WELL { LISTEN_AGAIN } else { (last * 2).min(LISTEN_AGAIN_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ear() -> Arc<Ear> {
        let (changes, _) = watch::channel(Changes::default());
        Ear::new("hub".parse().expect("a name"), changes)
    }

    fn replies(ear: &Ear, text: &'static str) -> Vec<Bytes> {
        ear.hear(text.into(), None).expect(text).replies
    }

    #[test]
    fn a_server_gets_the_answers_of_a_client_that_offers_nothing() {
        let ear = ear();
        let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
        assert_eq!(replies(&ear, ping), [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#]);
        let sampling = r#"{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}"#;
        let expected = concat!(
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"#,
            r#""message":"Method not found: sampling/createMessage"}}"#
        );
        assert_eq!(replies(&ear, sampling), [expected]);
        ear.tune(false, false);
        assert!(replies(&ear, ping).is_empty(), "a modern client sends no responses");
    }

    #[test]
    fn a_batch_is_heard_only_where_the_revision_knows_it() {
        let ear = ear();
        let batch =
            r#" [{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}},7]"#;
        assert_eq!(ear.hear(batch.into(), None).expect("a batch").answers.len(), 2);
        ear.tune(false, true);
        assert!(ear.hear(batch.into(), None).is_err());
    }

    #[test]
    fn news_of_a_change_count_by_topic() {
        let ear = ear();
        for _ in 0..2 {
            let text = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            ear.hear(text.into(), None).expect("a notification");
        }
        assert_eq!(*ear.changes.borrow(), Changes([0, 2, 0]));
    }

    #[test]
    fn only_a_subscription_can_be_cancelled_by_the_server() {
        let ear = ear();
        let call = ear.pending.open(Side { notes: None, listen: false }).expect("open");
        let listen = ear.pending.open(Side { notes: None, listen: true }).expect("open");
        for id in [call.id(), listen.id()] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            );
            ear.hear(text.into(), None).expect("a notification");
        }
        assert_eq!((call.is_open(), listen.is_open()), (true, false));
    }
}
