//! What a server says, sorted by whom it is for.
//!
//! Each connection has one [`Ear`]. Every text that comes in goes through it, over whichever wire:
//! answers go back to the wire, progress and questions to the call that they belong to, news of changes
//! to the `watch` that the house looks at. A request of the server's that belongs to no call gets the
//! answer of a client that offers nothing.
//!
//! Promises never to wait: a server that floods us costs itself its own answers, and nobody else
//! anything.

mod attribution;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::json::{self, Object};
use crate::jsonrpc::pending::{Pending, Ticket};
use crate::jsonrpc::{self, Id, Invalid, Looks, Message, Notification, Request};
use crate::mcp::call::{Body, Outcome};
use crate::mcp::call_notifications::Notes;
use crate::mcp::input_request::{Subject, VISIT_DONE};
use crate::mcp::kind::{RESOURCE_SUBSCRIPTIONS, RESOURCE_UPDATED, Topic};
use crate::mcp::meta;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::{Era, Revision};
use crate::mcp::task::{TASK_IDS, TOLD_TO_LISTENERS, TOLD_TO_OWNERS, TaskScope};
use crate::upstream::Changes;
use crate::upstream::health::health_state::Vitals;
use crate::upstream::input_requests::{Questions, unsupported};
use crate::upstream::message::{Failure, Honored, Outgoing};
use crate::upstream::subscriptions::{Interest, MAX_URIS};
use crate::upstream::task_owners::{TaskClaim, Tasks};
use crate::upstream::transport::junk_limits::Useless;
use crate::upstream::url_elicitations::Visits;

/// How deep an upstream's message may nest: payloads are its own business, so this only keeps the
/// reading of them bounded.
const MAX_DEPTH: usize = 512;

/// How many messages one batch may hold.
const MAX_BATCH: usize = 1_000;

/// How long an opening connection waits to be told that it will hear of changes.
const LISTEN_GRACE: Duration = Duration::from_millis(500);

/// Pauses before a stream for changes is opened again.
pub(crate) const LISTEN_AGAIN: Duration = Duration::from_secs(1);
const LISTEN_AGAIN_MAX: Duration = Duration::from_secs(30);
/// A stream that lived this long was a good one.
const LISTENED_WELL: Duration = Duration::from_secs(30);

/// How much of a server's log message stands in our log.
const MAX_LOGGED_CHARS: usize = 1_000;

/// The claim to an answer on this connection.
pub(crate) type Claim = Ticket<Result<Outcome, Failure>, Side>;

/// What is kept beside an open request.
#[derive(Debug)]
pub(crate) struct Side {
    /// Where its progress goes.
    pub(crate) notes: Option<Notes>,
    /// Where its server's questions go; `None` if it may have none.
    pub(crate) questions: Option<Questions>,
    /// Whether it is a subscription, which the other side may cancel.
    pub(crate) listen: bool,
    /// Where the resources go that a subscription's other side agrees to tell of.
    pub(crate) acknowledged: Option<mpsc::Sender<Honored>>,
    /// Whose tasks its answer may name.
    pub(crate) tasks: Option<TaskClaim>,
}

/// A call's questions, and where its notes go.
type Asked = (Questions, Option<Notes>);

/// Sorts what a server says.
#[derive(Debug)]
pub(crate) struct Ear {
    pub(crate) name: UpstreamName,
    pub(crate) pending: Pending<Result<Outcome, Failure>, Side>,
    changes: watch::Sender<Changes>,
    /// Who wants to hear of which resources.
    interest: Arc<Interest>,
    /// Whose the tasks are that were begun here.
    tasks: Tasks,
    /// The visits that its callers were asked for.
    visits: Visits,
    /// What the server speaks, once that is known: which freedoms it has.
    spoken: OnceLock<Revision>,
    /// Where the tasks are known that its server tells of, once that is known.
    pub(crate) scope: OnceLock<TaskScope>,
    /// Whose calls are made on this connection.
    callers: Callers,
    /// How many requests came where there may be none.
    unlawful: AtomicUsize,
    /// Set once somebody may have listed: of which topics the server tells changes.
    up: OnceLock<[bool; 3]>,
    listening: Notify,
    /// Where what it drops is counted.
    pub(crate) vitals: Arc<Vitals>,
}

/// Whose calls are made on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Those of many clients: what is not said to be about a call is for nobody.
    Many,
    /// One client's: what is not said to be about one of its calls is about its newest.
    One,
    /// All that comes under one name, which several may share: it is about a call only while there is no
    /// other.
    Alike,
}

/// What a text held that the wire has to see to.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Answers, by the id that was minted; `None` where the server could not read ours. A failure where
    /// one bears an id and cannot be read.
    pub(crate) answers: Vec<(Option<u64>, Result<Outcome, Failure>)>,
    /// What goes back to the server.
    pub(crate) replies: Vec<Bytes>,
    pub(crate) useless: Useless,
}

impl Heard {
    /// Picks the answer to request `id` from what came on its own response: an error without an id
    /// can be about this request only.
    pub(crate) fn answer_to(self, id: u64) -> Option<Result<Outcome, Failure>> {
        let is_ours = |(answered, outcome): &(Option<u64>, Result<Outcome, _>)| match answered {
            Some(answered) => *answered == id,
            None => matches!(outcome, Ok(Outcome::Error(_))),
        };
        self.answers.into_iter().find(is_ours).map(|(_, outcome)| outcome)
    }
}

/// A text that is no message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Junk(String);

impl Ear {
    pub(crate) fn new(
        name: UpstreamName,
        changes: watch::Sender<Changes>,
        interest: Arc<Interest>,
        callers: Callers,
        vitals: Arc<Vitals>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            pending: Pending::default(),
            changes,
            interest,
            tasks: Tasks::default(),
            visits: Visits::default(),
            spoken: OnceLock::new(),
            scope: OnceLock::new(),
            callers,
            unlawful: AtomicUsize::new(0),
            up: OnceLock::new(),
            listening: Notify::new(),
            vitals,
        })
    }

    /// The server speaks this revision from now on.
    pub(crate) fn tune(&self, revision: Revision) {
        let _ = self.spoken.set(revision);
    }

    /// The server confirmed that we will hear of changes from now on. What changed while nobody
    /// listened went unheard, so it counts as changed if somebody may have listed already.
    pub(crate) fn listening(&self) {
        self.listening.notify_one();
        let Some(tells) = self.up.get().filter(|tells| tells.contains(&true)) else { return };
        self.changes.send_modify(|changes| {
            for (count, tells) in changes.0.iter_mut().zip(tells) {
                *count += u64::from(*tells);
            }
        });
    }

    /// For a while nobody heard which resources changed.
    pub(crate) fn missed_updates(&self) {
        self.interest.missed();
    }

    /// Waits a moment for [`Ear::listening`], so that the first list misses no change; from then on
    /// a late confirmation counts as a change of what the server `tells` of.
    pub(crate) async fn settle_in(&self, tells: [bool; 3]) {
        if tells.contains(&true) {
            let _ = tokio::time::timeout(LISTEN_GRACE, self.listening.notified()).await;
        }
        let _ = self.up.set(tells);
    }

    /// Enters a request whose answer will be heard; `None` if the connection is closed.
    pub(crate) fn enter(&self, request: &Outgoing) -> Option<Claim> {
        self.pending.open(Side {
            notes: request.notes.clone(),
            questions: request.questions.clone(),
            listen: request.listen,
            acknowledged: request.acknowledged.clone(),
            tasks: request.tasks.clone(),
        })
    }

    /// Reads a text that the server sent: one message, or an array of them. `on` is the request on whose
    /// own stream it came, where requests have streams of their own.
    pub(crate) fn hear(&self, text: Bytes, on: Option<u64>) -> Result<Heard, Junk> {
        let mut heard = Heard::default();
        let is_array = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        if !is_array {
            self.hear_one(text, on, &mut heard).map_err(|invalid| Junk(invalid.reason))?;
            return Ok(heard);
        }
        if self.spoken.get().is_some_and(|revision| !revision.has_batches()) {
            return Err(Junk("an array of messages, which this revision does not know".into()));
        }
        let messages = json::elements(&text).ok_or_else(|| Junk("not valid JSON".into()))?;
        // Counted before the first is read, so that too many are not half heard.
        if messages.clone().nth(MAX_BATCH).is_some() {
            return Err(Junk(format!("more than {MAX_BATCH} messages in one array")));
        }
        for message in messages {
            if let Err(invalid) = self.hear_one(message, on, &mut heard) {
                heard.useless.junk += 1;
                tracing::debug!(upstream = %self.name, %invalid, "not a message");
            }
        }
        Ok(heard)
    }

    /// Reads one message. An answer that cannot be read ends the request whose id it bears: no better one
    /// will come.
    fn hear_one(&self, text: Bytes, on: Option<u64>, heard: &mut Heard) -> Result<(), Invalid> {
        match Message::parse_within(text, MAX_DEPTH) {
            Ok(message) => self.sort(message, on, heard),
            Err(invalid) => {
                let named = invalid.id.as_ref().filter(|_| invalid.looks != Looks::Request);
                let Some(id) = named.and_then(Id::minted) else { return Err(invalid) };
                let broken = Failure::Protocol(format!("its answer is none: {}", invalid.reason));
                heard.answers.push((Some(id), Err(broken)));
            }
        }
        Ok(())
    }

    fn sort(&self, message: Message, on: Option<u64>, heard: &mut Heard) {
        match message {
            Message::Answer(answer) => {
                let broken = |text: &str| Err(Failure::Protocol(text.to_owned()));
                let outcome = match (answer.outcome, answer.result) {
                    (jsonrpc::Outcome::Result(text), _) if !text.starts_with(b"{") => {
                        broken("its result is no object")
                    }
                    (jsonrpc::Outcome::Result(text), read) => {
                        Ok(Outcome::Result(Body::part(text, read)))
                    }
                    (jsonrpc::Outcome::Error(error), _) if !is_error(&error) => {
                        broken("its error lacks a code or a message")
                    }
                    (jsonrpc::Outcome::Error(error), _) => {
                        Ok(Outcome::Error(json::on_one_line(error)))
                    }
                };
                match answer.id.as_ref().map(Id::minted) {
                    // An id that we could not have minted is nobody's.
                    Some(None) => {
                        heard.useless.unasked += 1;
                        self.vitals.dropped();
                        tracing::debug!(upstream = %self.name, "an answer to nobody");
                    }
                    Some(id) => {
                        self.count_answer(id, on, &mut heard.useless);
                        match (&outcome, id) {
                            (Ok(Outcome::Result(Body::Read(result))), _) => self.begun(id, result),
                            (Ok(Outcome::Error(error)), Some(id)) => {
                                if let Some(notes) = self.notes_of(id) {
                                    self.visits.begin_all(error, &notes);
                                }
                            }
                            _ => {}
                        }
                        heard.answers.push((id, outcome));
                    }
                    None => {
                        self.count_answer(None, on, &mut heard.useless);
                        heard.answers.push((None, outcome));
                    }
                }
            }
            Message::Notification(notification) => self.note(notification, on, &mut heard.useless),
            Message::Request(request) => {
                heard.useless.unattributed += 1;
                heard.replies.extend(self.reply(request, on));
            }
        }
    }

    /// Counts a response to nothing that is open, or that is on the stream of another request. One that comes late, or
    /// twice, was asked for.
    fn count_answer(&self, id: Option<u64>, on: Option<u64>, useless: &mut Useless) {
        let is_awaited = match (id, on) {
            (Some(id), Some(on)) => id == on,
            (Some(id), None) => self.pending.beside(id, |_| ()).is_some(),
            // On a request's own stream it can be about that request only.
            (None, on) => on.is_some(),
        };
        if !is_awaited {
            match id.is_some_and(|id| self.pending.was_minted(id)) {
                true => useless.unattributed += 1,
                false => useless.unasked += 1,
            }
        }
    }

    /// Learns whose task a result names, before anything that the server says of it.
    fn begun(&self, id: Option<u64>, result: &Object) {
        let claim = id.and_then(|id| self.pending.beside(id, |side| side.tasks.clone()));
        if let (Some(claim), Some(scope)) = (claim.flatten(), self.scope.get()) {
            self.tasks.replied(result, claim, *scope);
        }
    }

    /// Whether a task goes on that was begun here, as far as the server tells.
    pub(crate) fn has_tasks(&self) -> bool {
        self.tasks.go_on()
    }

    fn note(&self, notification: Notification, on: Option<u64>, useless: &mut Useless) {
        let Notification { method, mut params } = notification;
        // Unless it turns out to be about a call.
        let before = *useless;
        useless.unattributed += 1;
        if let Some(topic) = Topic::of_notification(&method) {
            self.changes.send_modify(|changes| changes.0[topic.index()] += 1);
            return;
        }
        match &*method {
            "notifications/progress" => {
                let token = params.take(meta::PROGRESS_TOKEN).and_then(Id::parse);
                let id = token.and_then(|token| token.minted());
                let Some(id) = id.filter(|id| self.pending.was_minted(*id)) else {
                    *useless = Useless { junk: before.junk + 1, ..before };
                    return;
                };
                if let Some(notes) = self.notes_of(id) {
                    *useless = before;
                    notes.progress(params);
                }
            }
            "notifications/cancelled" => {
                if let Some(id) = params.get_bytes("requestId").and_then(Id::parse) {
                    self.cancelled(&id);
                }
            }
            "notifications/subscriptions/acknowledged" => {
                let id = on.or_else(|| subscription_of(&params));
                match id.and_then(|id| self.pending.beside(id, |side| side.acknowledged.clone())) {
                    // A second one says nothing new.
                    Some(Some(waiting)) => drop(waiting.try_send(honored(&params))),
                    _ => self.listening(),
                }
            }
            RESOURCE_UPDATED => {
                if let Some(uri) = params.get_string("uri") {
                    self.interest.updated(&uri);
                }
            }
            TOLD_TO_OWNERS => self.tasks.told(&params),
            TOLD_TO_LISTENERS => {
                if let Some(scope) = self.scope.get() {
                    self.interest.tasks().told(&params, *scope);
                }
            }
            VISIT_DONE => self.visits.done(&params),
            "notifications/message" => {
                if let Some(notes) = self.logs_to(on) {
                    *useless = before;
                    return notes.log(&params);
                }
                let text = String::from_utf8_lossy(&params.to_bytes()).into_owned();
                let text: String = text.chars().take(MAX_LOGGED_CHARS).collect();
                tracing::debug!(upstream = %self.name, message = text, "the upstream logs");
            }
            _ => tracing::trace!(upstream = %self.name, method = &*method, "a notification"),
        }
    }

    /// The server takes something back.
    fn cancelled(&self, id: &Id) {
        // spec 2026-07-28, cancellation: a server sends it to end a subscription and for nothing
        // else. Before that it is about the server's own requests, whose ids are not ours.
        let withdraw = |side: &Side| side.questions.as_ref()?.withdraw(id).then_some(());
        if self.pending.newest(withdraw).is_some() {
            return;
        }
        let Some(id) = id.minted() else { return };
        if self.pending.beside(id, |side| side.listen) == Some(true) {
            let ended = Failure::Broke("the server ended the subscription".into());
            self.pending.settle(id, Err(ended));
        }
    }

    /// What is said at once to a request of the server's. `None`: its client will say it, or nobody may
    /// (spec 2026-07-28, transports: the client MUST NOT send responses).
    fn reply(&self, request: Request, on: Option<u64>) -> Option<Bytes> {
        let revision = self.spoken.get().copied().unwrap_or(Revision::NEWEST_LEGACY);
        let Request { id, method, params, .. } = request;
        if revision.era() == Era::Modern {
            let before = self.unlawful.fetch_add(1, Ordering::Relaxed);
            self.vitals.dropped();
            tracing::debug!(upstream = %self.name, method = &*method, before, "an unlawful request");
            return None;
        }
        if &*method == "ping" {
            return Some(jsonrpc::write_result(&id, b"{}"));
        }
        let asked = match Subject::of_method(&method) {
            Some(subject) => self.asked(on, &method).map(|(call, notes)| (subject, call, notes)),
            None => Err(unsupported(&method)),
        };
        let (subject, call, notes) = match asked {
            Ok(asked) => asked,
            Err(refused) => return Some(jsonrpc::write_error(Some(&id), &refused.to_bytes())),
        };
        // The first of two with one id is the one that is answered: the second may be the first, told again
        // on a stream that was taken up, and an answer to both would be read as two to the first.
        let is_open = |side: &Side| side.questions.as_ref()?.has(&id).then_some(());
        if self.pending.newest(is_open).is_some() {
            tracing::debug!(upstream = %self.name, %id, "a question with the id of an open one");
            return None;
        }
        match call.put(id.clone(), subject, params.clone(), revision) {
            Ok(()) => {
                notes.inspect(|notes| self.visits.begin(&params, notes));
                None
            }
            Err(refused) => Some(jsonrpc::write_error(Some(&id), &refused.to_bytes())),
        }
    }
}

/// The listen that a notification belongs to.
fn subscription_of(params: &Object) -> Option<u64> {
    params.get_object("_meta")?.get_bytes(meta::SUBSCRIPTION_ID).and_then(Id::parse)?.minted()
}

/// The resources or tasks of which a server agrees to tell: a listen is for one of the two.
fn honored(params: &Object) -> Honored {
    let filter = params.get_object("notifications").unwrap_or_default();
    // No more are ever asked for: a longer list is a server's nonsense, and its end is not read.
    let named = |member| Some(filter.get_elements(member)?.take(MAX_URIS));
    let all = [RESOURCE_SUBSCRIPTIONS, TASK_IDS].into_iter().filter_map(named).flatten();
    all.filter_map(|raw| Some(json::decode_string(std::str::from_utf8(&raw).ok()?)?.into()))
        .collect()
}

/// The pause before a stream for changes that was opened at `since`, after a pause of `last`, is
/// opened again.
pub(crate) fn next_pause(last: Duration, since: Instant) -> Duration {
    if since.elapsed() >= LISTENED_WELL { LISTEN_AGAIN } else { (last * 2).min(LISTEN_AGAIN_MAX) }
}

/// Whether this is what JSON-RPC calls an error: a client would choke on another code.
fn is_error(error: &Bytes) -> bool {
    let Ok(error) = Object::parse_within(error.clone(), usize::MAX) else { return false };
    let code = error.get("code").and_then(|code| code.parse::<i64>().ok());
    code.is_some() && error.get("message").is_some_and(|message| message.starts_with('"'))
}

#[cfg(test)]
mod tests {
    use crate::mcp::call_notifications::Note;
    use crate::mcp::log_level::{Level, Wanted};
    use crate::upstream::transport::dispatcher::*;

    fn ear() -> Arc<Ear> {
        ear_of(Callers::Many)
    }

    fn ear_of(callers: Callers) -> Arc<Ear> {
        let (changes, _) = watch::channel(Changes::default());
        let name: UpstreamName = "hub".parse().expect("a name");
        let vitals =
            Vitals::new(name.clone(), crate::upstream::health::breaker::Settings::default());
        Ear::new(name.clone(), changes, Interest::new(name), callers, vitals)
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
            r#""message":"Method not found: this client does not support sampling/createMessage"}}"#
        );
        assert_eq!(replies(&ear, sampling), [expected]);
        ear.tune(Revision::V2026_07_28);
        assert!(replies(&ear, ping).is_empty(), "a modern client sends no responses");
    }

    #[test]
    fn a_batch_is_heard_only_where_the_revision_knows_it() {
        let ear = ear();
        let batch =
            r#" [{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}},7]"#;
        assert_eq!(ear.hear(batch.into(), None).expect("a batch").answers.len(), 2);
        ear.tune(Revision::V2025_06_18);
        assert!(ear.hear(batch.into(), None).is_err());
    }

    #[test]
    fn an_array_of_too_many_messages_is_not_heard_at_all() {
        let array = |count: usize| {
            let message = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            Bytes::from(format!("[{}]", vec![message; count].join(",")))
        };
        let ear = ear();
        assert!(ear.hear(array(MAX_BATCH + 1), None).is_err());
        assert_eq!(*ear.changes.borrow(), Changes::default());
        assert!(ear.hear(array(MAX_BATCH), None).is_ok());
        assert_eq!(*ear.changes.borrow(), Changes([0, MAX_BATCH as u64, 0]));
    }

    #[test]
    fn an_acknowledgment_names_no_more_than_can_be_asked_for() {
        let uris = vec!["\"a:b\""; MAX_URIS + 1].join(",");
        let params = format!(r#"{{"notifications":{{"resourceSubscriptions":[7,{uris}]}}}}"#);
        let params = Object::parse(params).expect("an object");
        assert_eq!(honored(&params).len(), MAX_URIS - 1);
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

    #[tokio::test]
    async fn a_log_message_belongs_to_the_call_of_its_stream_or_to_the_only_client() {
        for callers in [Callers::Many, Callers::One, Callers::Alike] {
            let ear = ear_of(callers);
            let enter = |wanted: Option<Level>| {
                let wanted = wanted.map_or_else(Wanted::nothing, Wanted::from);
                let (notes, stream) = Notes::open(true, wanted);
                let notes = notes.given_to(true);
                let side =
                    Side { notes, questions: None, listen: false, acknowledged: None, tasks: None };
                (ear.pending.open(side).expect("open"), stream)
            };
            let (first, heard_first) = enter(Some(Level::Debug));
            let (second, heard_second) = enter(Some(Level::Error));
            let (_third, heard_third) = enter(None);
            let say = |on, data: u32| {
                let params = format!(r#"{{"level":"error","data":{data}}}"#);
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#
                );
                ear.hear(text.into(), on).expect("a notification");
                Note::Log(params.into())
            };
            let of_first = say(Some(first.id()), 1);
            let of_second = say(Some(second.id()), 2);
            say(Some(99), 3);
            let of_no_call = say(None, 4);
            assert_eq!(heard_first.rest(), [of_first]);
            let mut expected = vec![of_second];
            // Of several that are alike it may be anybody's.
            expected.extend((callers == Callers::One).then(|| of_no_call.clone()));
            assert_eq!(heard_second.rest(), expected);
            assert_eq!(heard_third.rest(), []);
        }
    }

    #[test]
    fn only_a_subscription_can_be_cancelled_by_the_server() {
        let ear = ear();
        let side =
            |listen| Side { notes: None, questions: None, listen, acknowledged: None, tasks: None };
        let call = ear.pending.open(side(false)).expect("open");
        let listen = ear.pending.open(side(true)).expect("open");
        for id in [call.id(), listen.id()] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            );
            ear.hear(text.into(), None).expect("a notification");
        }
        assert_eq!((call.is_open(), listen.is_open()), (true, false));
    }
}
