//! The questions that one call's upstream has asked and that are not answered yet.
//!
//! Three meet here: the ear puts in what a legacy server asks and takes out what it withdraws; whoever holds
//! the call takes the questions to its client and brings the answers; the call itself sends the answers on.
//! None of them waits for another.
//!
//! Promises: at most [`MAX_OPEN`] questions of a call are open, in at most [`MAX_OPEN_BYTES`], and those of all calls
//! of an upstream in no more than its [`Room`]. A question that
//! the client did not declare never gets past [`Questions::put`]. Each is answered once; an answer to
//! nothing, or to what was withdrawn, is dropped.
//!
//! Knows nothing of: how a question comes, how an answer goes, and how long either takes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::json::Object;
use crate::jsonrpc::{self, Id, Outcome};
use crate::mcp::call::Caller;
use crate::mcp::input_request::{Abilities, Answered, Question, Subject};
use crate::mcp::meta;
use crate::mcp::revision::{Era, Revision};
use crate::mcp::trace_context;

/// How many questions of one call may be open.
pub(crate) const MAX_OPEN: usize = 16;
/// How large they may be in all.
const MAX_OPEN_BYTES: usize = 16 << 20;
/// How large those of all calls of an upstream may be.
const ROOM_BYTES: usize = 64 << 20;

/// What the open questions of all calls of one upstream may take. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    /// All of it is free.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ROOM_BYTES)))
    }

    /// Takes what a question needs, until it is dropped; `None` if there is too little left.
    fn take(&self, question: &Question) -> Option<OwnedSemaphorePermit> {
        let size = u32::try_from(question.params.to_bytes().len()).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(size).ok()
    }
}

/// Why questions of a reply are not asked.
#[derive(Debug)]
pub(crate) enum Unasked {
    /// The client did not declare this.
    Undeclared(Abilities),
    /// Too many wait for their answers.
    NoRoom,
}

/// The open questions of one call. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Questions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something for the client, or the call cannot go on.
    news: Notify,
    /// There is something for the server, or nothing is open any more.
    answers: Notify,
    /// The call is given up.
    given_up: Notify,
}

#[derive(Debug)]
struct State {
    /// What the client declared, and in which era it did.
    abilities: Abilities,
    era: Era,
    open: Vec<Open>,
    answers: VecDeque<Given>,
    /// What a question took that a modern client did not declare.
    lacking: Option<Abilities>,
    room: Room,
    minted: u64,
    /// Whether the server has answered, or is not waited for any more.
    is_closed: bool,
    /// Whether the call is given up for a later one of its client.
    is_given_up: bool,
}

#[derive(Debug)]
struct Open {
    /// The server's own id, where the question was a request of its own.
    id: Option<Id>,
    question: Question,
    /// Whether the client has been asked.
    is_out: bool,
    _room: OwnedSemaphorePermit,
}

/// A question's answer on its way to the server.
#[derive(Debug)]
pub(crate) struct Given {
    id: Option<Id>,
    pub(crate) key: Box<str>,
    pub(crate) subject: Subject,
    pub(crate) outcome: Outcome,
}

impl Given {
    /// The answer to a question that was a request.
    pub(crate) fn write(&self) -> Option<Bytes> {
        let id = self.id.as_ref()?;
        Some(match &self.outcome {
            Outcome::Result(result) => jsonrpc::write_result(id, result),
            Outcome::Error(error) => jsonrpc::write_error(Some(id), error),
        })
    }
}

impl Questions {
    /// No questions yet to this caller, of an upstream that has this room for them.
    pub(crate) fn new(caller: &Caller, room: Room) -> Self {
        let state = State {
            abilities: caller.abilities,
            era: caller.revision.era(),
            open: Vec::new(),
            answers: VecDeque::new(),
            lacking: None,
            room,
            minted: 0,
            is_closed: false,
            is_given_up: false,
        };
        let (news, answers, given_up) = (Notify::new(), Notify::new(), Notify::new());
        Self { shared: Arc::new(Shared { state: Mutex::new(state), news, answers, given_up }) }
    }

    // --- The server's side ---

    /// A request goes out whose server may ask.
    pub(crate) fn begin(&self) {
        self.lock().is_closed = false;
    }

    /// Takes a server's request; or tells why not, as its client would, in the words of the `revision` that is
    /// spoken with the server.
    pub(crate) fn put(
        &self,
        id: Id,
        subject: Subject,
        mut params: Object,
        revision: Revision,
    ) -> Result<(), jsonrpc::Error> {
        drop_progress_token(&mut params);
        let mut state = self.lock();
        if state.is_closed {
            return Err(unsupported(subject.method()));
        }
        state.minted += 1;
        let key = format!("q{}", state.minted).into();
        let question = Question { key, subject, params };
        let known = known_at(revision);
        if known.lacks(&question).is_some() {
            return Err(refusal(known, &question));
        }
        if let Some(lacking) = state.abilities.lacks(&question) {
            if state.era == Era::Modern {
                state.lacking.get_or_insert(lacking);
                self.shared.news.notify_one();
            }
            return Err(refusal(state.abilities, &question));
        }
        if !state.has_room(&question) {
            let text = format!("no more than {MAX_OPEN} questions of a call may be open");
            return Err(jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, text));
        }
        let Some(room) = state.room.take(&question) else {
            return Err(jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, NO_ROOM));
        };
        state.open.push(Open { id: Some(id), question, is_out: false, _room: room });
        self.shared.news.notify_one();
        Ok(())
    }

    /// Takes the questions of a reply, whose keys are the server's own: all of them, or none.
    pub(crate) fn put_all(&self, questions: Vec<Question>) -> Result<(), Unasked> {
        let mut state = self.lock();
        if let Some(lacking) = questions.iter().find_map(|it| state.abilities.lacks(it)) {
            return Err(Unasked::Undeclared(lacking));
        }
        let open = questions.into_iter().map(|question| {
            let room = state.room.take(&question).ok_or(Unasked::NoRoom)?;
            Ok(Open { id: None, question, is_out: false, _room: room })
        });
        let open: Vec<_> = open.collect::<Result<_, _>>()?;
        state.open.extend(open);
        self.shared.news.notify_one();
        Ok(())
    }

    /// Whether the server's request of this id is open here.
    pub(crate) fn has(&self, id: &Id) -> bool {
        self.lock().open.iter().any(|open| open.id.as_ref() == Some(id))
    }

    /// Whether the call waits for nothing but its client: the client has been asked all that is open.
    pub(crate) fn wait_for_client(&self) -> bool {
        let state = self.lock();
        !state.open.is_empty() && state.open.iter().all(|open| open.is_out)
    }

    /// Gives the call up, so that a later one of its client can be asked: it is cancelled at the server.
    pub(crate) fn give_up(&self) {
        self.lock().is_given_up = true;
        self.shared.given_up.notify_one();
    }

    /// Whether the call is given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.lock().is_given_up
    }

    /// Waits until the call is given up. Cancel-safe. For one reader.
    pub(crate) async fn given_up(&self) {
        while !self.is_given_up() {
            self.shared.given_up.notified().await;
        }
    }

    /// Takes a request back; `false` if it is not open here.
    pub(crate) fn withdraw(&self, id: &Id) -> bool {
        let mut state = self.lock();
        let before = state.open.len();
        state.open.retain(|open| open.id.as_ref() != Some(id));
        let withdrawn = state.open.len() < before;
        if withdrawn {
            self.shared.news.notify_one();
        }
        withdrawn
    }

    /// The next answer that is owed to the server. Cancel-safe.
    pub(crate) async fn answered(&self) -> Given {
        loop {
            if let Some(given) = self.lock().answers.pop_front() {
                return given;
            }
            self.shared.answers.notified().await;
        }
    }

    /// All answers, once nothing is open any more. Cancel-safe.
    pub(crate) async fn all_answered(&self) -> Vec<Given> {
        loop {
            {
                let mut state = self.lock();
                if state.open.is_empty() {
                    return state.answers.drain(..).collect();
                }
            }
            self.shared.answers.notified().await;
        }
    }

    /// Forgets everything, and tells which of the server's requests nobody will answer.
    pub(crate) fn close(&self) -> Vec<Id> {
        let mut state = self.lock();
        state.is_closed = true;
        let open = std::mem::take(&mut state.open).into_iter().filter_map(|open| open.id);
        let unsent = std::mem::take(&mut state.answers).into_iter().filter_map(|given| given.id);
        open.chain(unsent).collect()
    }

    // --- The client's side ---

    /// Waits until there is something to ask, or (`Err`) something was asked that a modern client did not
    /// declare. Cancel-safe.
    pub(crate) async fn news(&self) -> Result<(), Abilities> {
        loop {
            {
                let state = self.lock();
                if let Some(lacking) = state.lacking {
                    return Err(lacking);
                }
                if state.open.iter().any(|open| !open.is_out) {
                    return Ok(());
                }
            }
            self.shared.news.notified().await;
        }
    }

    /// What was asked that a modern client did not declare.
    pub(crate) fn lacking(&self) -> Option<Abilities> {
        self.lock().lacking
    }

    /// Whether those that are open came as requests of their own, so that there may be more to come.
    pub(crate) fn come_singly(&self) -> bool {
        self.lock().open.iter().any(|open| open.id.is_some())
    }

    /// Takes what the client has not been asked yet.
    pub(crate) fn take(&self) -> Result<Vec<Question>, Abilities> {
        let mut state = self.lock();
        if let Some(lacking) = state.lacking {
            return Err(lacking);
        }
        Ok(state.take_new())
    }

    /// Waits for what the client has not been asked yet while it is being asked. `None` once the server waits
    /// for none of its answers any more, or has asked for what was not declared. Cancel-safe.
    pub(crate) async fn more(&self) -> Option<Vec<Question>> {
        loop {
            {
                let mut state = self.lock();
                if state.lacking.is_some() || state.open.is_empty() {
                    return None;
                }
                let new = state.take_new();
                if !new.is_empty() {
                    return Some(new);
                }
            }
            self.shared.news.notified().await;
        }
    }

    /// Brings one of a client's answers while it is asked for others.
    pub(crate) fn give(&self, answered: Answered) {
        self.lock().settle(answered);
        self.shared.answers.notify_one();
    }

    /// Brings a client's answers. What it was asked and left out will be asked again.
    pub(crate) fn answer(&self, answers: Vec<Answered>, abilities: Abilities) {
        let mut state = self.lock();
        state.abilities = abilities;
        answers.into_iter().for_each(|answered| state.settle(answered));
        for open in &mut state.open {
            open.is_out = false;
        }
        // A modern client declares with each request what it can be asked.
        if state.era == Era::Modern {
            state.lacking = state.open.iter().find_map(|open| abilities.lacks(&open.question));
        }
        self.shared.answers.notify_one();
    }

    /// Answers these questions with an error: too many calls wait for their clients.
    pub(crate) fn decline(&self, questions: &[Question]) {
        let error = jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, NO_ROOM).to_bytes();
        let declined = questions.iter().map(|question| Answered {
            key: question.key.clone(),
            outcome: jsonrpc::Outcome::Error(error.clone()),
        });
        let abilities = self.lock().abilities;
        self.answer(declined.collect(), abilities);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No change under the lock can panic half-way.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_new(&mut self) -> Vec<Question> {
        let new = self.open.iter_mut().filter(|open| !open.is_out);
        let take = |open: &mut Open| {
            open.is_out = true;
            open.question.clone()
        };
        new.map(take).collect()
    }

    fn settle(&mut self, Answered { key, outcome }: Answered) {
        let asked = |open: &Open| open.is_out && open.question.key == key;
        let Some(at) = self.open.iter().position(asked) else { return };
        let Open { id, question, .. } = self.open.remove(at);
        let outcome = match outcome {
            Outcome::Result(text) => Outcome::Result(trace_context::without_malformed(text)),
            error @ Outcome::Error(_) => error,
        };
        self.answers.push_back(Given { id, key, subject: question.subject, outcome });
    }

    fn has_room(&self, question: &Question) -> bool {
        let size = |question: &Question| question.params.to_bytes().len();
        let open: usize = self.open.iter().map(|open| size(&open.question)).sum();
        self.open.len() < MAX_OPEN && open + size(question) <= MAX_OPEN_BYTES
    }
}

/// Takes out the server's progress token: those of two servers may be the same to their one client, and
/// nobody takes its progress to them.
fn drop_progress_token(params: &mut Object) {
    let Some(mut meta) = params.get_object("_meta") else { return };
    if meta.take(meta::PROGRESS_TOKEN).is_none() {
        return;
    }
    if meta.is_empty() {
        params.take("_meta");
    } else {
        params.set("_meta", meta.to_bytes());
    }
}

/// What can be asked for at a revision.
fn known_at(revision: Revision) -> Abilities {
    let elicitation = revision >= Revision::V2025_06_18;
    let newest = revision >= Revision::V2025_11_25;
    Abilities {
        sampling: true,
        sampling_tools: newest,
        sampling_context: true,
        form: elicitation,
        url: newest,
        roots: true,
    }
}

/// How a client with these abilities refuses a question that takes others.
///
/// Spec 2025-11-25: -32601 for roots that are not supported, -32602 for an elicitation in a mode that was not
/// declared; an error for tools in a sampling that were not.
fn refusal(abilities: Abilities, question: &Question) -> jsonrpc::Error {
    let method = question.subject.method();
    let knows_method = match question.subject {
        Subject::Sampling => abilities.sampling,
        Subject::Elicitation => abilities.form || abilities.url,
        Subject::Roots => abilities.roots,
    };
    if knows_method {
        let text = format!("this client does not support {method} in this form");
        return jsonrpc::Error::new(jsonrpc::code::INVALID_PARAMS, text);
    }
    unsupported(method)
}

/// How a client refuses a method that it does not offer.
pub(crate) fn unsupported(method: &str) -> jsonrpc::Error {
    let text = format!("Method not found: this client does not support {method}");
    jsonrpc::Error::new(jsonrpc::code::METHOD_NOT_FOUND, text)
}

/// What a server hears whose question could be about several calls.
pub(crate) const SEVERAL_CALLS: &str = "several calls of this client are under way, and nothing tells which of them asks: ask again later";

/// What a server hears where there is no room for its question.
const NO_ROOM: &str = "too many questions wait for their answers: ask again later";

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Caller {
        Caller { abilities: Abilities::ALL, ..Caller::plain(Revision::NEWEST_LEGACY) }
    }

    /// A question of this many MiB.
    fn large(mib: usize) -> Object {
        Object::parse(format!("{{\"x\":\"{}\"}}", "x".repeat((mib << 20) - 8))).expect("an object")
    }

    #[tokio::test]
    async fn the_questions_of_all_calls_of_an_upstream_share_a_room() {
        let room = Room::new();
        let calls: Vec<_> = (0..5).map(|_| Questions::new(&caller(), room.clone())).collect();
        let put = |call: usize, mib: usize| {
            let id = Id::from(u64::try_from(mib).expect("small"));
            let revision = Revision::NEWEST_LEGACY;
            let put = calls[call].put(id, Subject::Sampling, large(mib), revision);
            put.map_err(|refused| refused.message.to_string())
        };
        for call in 0..4 {
            assert_eq!(put(call, 16), Ok(()));
        }
        assert_eq!(put(4, 1), Err(NO_ROOM.to_owned()));
        let question =
            |mib| Question { key: "q".into(), subject: Subject::Sampling, params: large(mib) };
        let unasked = calls[4].put_all(vec![question(1)]);
        assert!(matches!(unasked, Err(Unasked::NoRoom)), "{unasked:?}");
        // An answer makes room, and so does the end of a call.
        let key = calls[0].take().expect("declared").remove(0).key;
        let outcome = Outcome::Result("{}".into());
        calls[0].answer(vec![Answered { key, outcome }], Abilities::ALL);
        assert_eq!(put(4, 16), Ok(()));
        calls[1].close();
        assert!(calls[0].put_all(vec![question(8), question(8)]).is_ok());
        assert!(calls[0].put_all(vec![question(1)]).is_err());
    }
}
