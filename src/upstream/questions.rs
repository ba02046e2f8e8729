//! The questions that one call's upstream has asked and that are not answered yet.
//!
//! Three meet here: the ear puts in what a legacy server asks and takes out what it withdraws; whoever holds
//! the call takes the questions to its client and brings the answers; the call itself sends the answers on.
//! None of them waits for another.
//!
//! Promises: at most [`MAX_OPEN`] questions of a call are open, in at most [`MAX_OPEN_BYTES`]. A question that
//! the client did not declare never gets past [`Questions::put`]. Each is answered once; an answer to
//! nothing, or to what was withdrawn, is dropped.
//!
//! Knows nothing of: how a question comes, how an answer goes, and how long either takes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::json::Object;
use crate::mcp::call::Caller;
use crate::mcp::meta;
use crate::mcp::question::{Abilities, Answered, Question, Subject};
use crate::mcp::revision::{Era, Revision};
use crate::rpc::{self, Id, Outcome};

/// How many questions of one call may be open.
pub(super) const MAX_OPEN: usize = 16;
/// How large they may be in all.
const MAX_OPEN_BYTES: usize = 16 << 20;

/// The open questions of one call. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Questions {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something for the client, or the call cannot go on.
    news: Notify,
    /// There is something for the server, or nothing is open any more.
    answers: Notify,
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
    minted: u64,
    /// Whether the server has answered, or is not waited for any more.
    is_closed: bool,
}

#[derive(Debug)]
struct Open {
    /// The server's own id, where the question was a request of its own.
    id: Option<Id>,
    question: Question,
    /// Whether the client has been asked.
    is_out: bool,
}

/// A question's answer on its way to the server.
#[derive(Debug)]
pub(super) struct Given {
    id: Option<Id>,
    pub(super) key: Box<str>,
    pub(super) subject: Subject,
    pub(super) outcome: Outcome,
}

impl Given {
    /// The answer to a question that was a request.
    pub(super) fn write(&self) -> Option<Bytes> {
        let id = self.id.as_ref()?;
        Some(match &self.outcome {
            Outcome::Result(result) => rpc::write_result(id, result),
            Outcome::Error(error) => rpc::write_error(Some(id), error),
        })
    }
}

impl Questions {
    /// No questions yet to this caller.
    pub(super) fn new(caller: &Caller) -> Self {
        let state = State {
            abilities: caller.abilities,
            era: caller.revision.era(),
            open: Vec::new(),
            answers: VecDeque::new(),
            lacking: None,
            minted: 0,
            is_closed: false,
        };
        let (news, answers) = (Notify::new(), Notify::new());
        Self { shared: Arc::new(Shared { state: Mutex::new(state), news, answers }) }
    }

    // --- The server's side ---

    /// A request goes out whose server may ask.
    pub(super) fn begin(&self) {
        self.lock().is_closed = false;
    }

    /// Takes a server's request; or tells why not, as its client would, in the words of the `revision` that is
    /// spoken with the server.
    pub(super) fn put(
        &self,
        id: Id,
        subject: Subject,
        mut params: Object,
        revision: Revision,
    ) -> Result<(), rpc::Error> {
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
            return Err(rpc::Error::new(rpc::code::INTERNAL_ERROR, text));
        }
        state.open.push(Open { id: Some(id), question, is_out: false });
        self.shared.news.notify_one();
        Ok(())
    }

    /// Takes the questions of a reply, whose keys are the server's own. `Err` is what the client did not declare.
    pub(super) fn put_all(&self, questions: Vec<Question>) -> Result<(), Abilities> {
        let mut state = self.lock();
        if let Some(lacking) = questions.iter().find_map(|it| state.abilities.lacks(it)) {
            return Err(lacking);
        }
        let open = questions.into_iter().map(|question| Open { id: None, question, is_out: false });
        state.open.extend(open);
        self.shared.news.notify_one();
        Ok(())
    }

    /// Whether the server's request of this id is open here.
    pub(super) fn has(&self, id: &Id) -> bool {
        self.lock().open.iter().any(|open| open.id.as_ref() == Some(id))
    }

    /// Takes a request back; `false` if it is not open here.
    pub(super) fn withdraw(&self, id: &Id) -> bool {
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
    pub(super) async fn answered(&self) -> Given {
        loop {
            if let Some(given) = self.lock().answers.pop_front() {
                return given;
            }
            self.shared.answers.notified().await;
        }
    }

    /// All answers, once nothing is open any more. Cancel-safe.
    pub(super) async fn all_answered(&self) -> Vec<Given> {
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
    pub(super) fn close(&self) -> Vec<Id> {
        let mut state = self.lock();
        state.is_closed = true;
        let open = std::mem::take(&mut state.open).into_iter().filter_map(|open| open.id);
        let unsent = std::mem::take(&mut state.answers).into_iter().filter_map(|given| given.id);
        open.chain(unsent).collect()
    }

    // --- The client's side ---

    /// Waits until there is something to ask, or (`Err`) something was asked that a modern client did not
    /// declare. Cancel-safe.
    pub(super) async fn news(&self) -> Result<(), Abilities> {
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

    /// Whether those that are open came as requests of their own, so that there may be more to come.
    pub(super) fn come_singly(&self) -> bool {
        self.lock().open.iter().any(|open| open.id.is_some())
    }

    /// Takes what the client has not been asked yet.
    pub(super) fn take(&self) -> Result<Vec<Question>, Abilities> {
        let mut state = self.lock();
        if let Some(lacking) = state.lacking {
            return Err(lacking);
        }
        let new = state.open.iter_mut().filter(|open| !open.is_out);
        Ok(new
            .map(|open| {
                open.is_out = true;
                open.question.clone()
            })
            .collect())
    }

    /// Waits until the server wants none of the answers any more that the client was asked for. Cancel-safe.
    pub(super) async fn withdrawn(&self) {
        while self.lock().open.iter().any(|open| open.is_out) {
            self.shared.news.notified().await;
        }
    }

    /// Brings a client's answers. What it was asked and left out will be asked again.
    pub(super) fn answer(&self, answers: Vec<Answered>, abilities: Abilities) {
        let mut state = self.lock();
        state.abilities = abilities;
        for Answered { key, outcome } in answers {
            let asked = |open: &Open| open.is_out && open.question.key == key;
            let Some(at) = state.open.iter().position(asked) else { continue };
            let Open { id, question, .. } = state.open.remove(at);
            state.answers.push_back(Given { id, key, subject: question.subject, outcome });
        }
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
    pub(super) fn decline(&self, questions: &[Question]) {
        let text = "too many questions wait for their answers: ask again later";
        let error = rpc::Error::new(rpc::code::INTERNAL_ERROR, text).to_bytes();
        let declined = questions.iter().map(|question| Answered {
            key: question.key.clone(),
            outcome: rpc::Outcome::Error(error.clone()),
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
fn refusal(abilities: Abilities, question: &Question) -> rpc::Error {
    let method = question.subject.method();
    let knows_method = match question.subject {
        Subject::Sampling => abilities.sampling,
        Subject::Elicitation => abilities.form || abilities.url,
        Subject::Roots => abilities.roots,
    };
    if knows_method {
        let text = format!("this client does not support {method} in this form");
        return rpc::Error::new(rpc::code::INVALID_PARAMS, text);
    }
    unsupported(method)
}

/// How a client refuses a method that it does not offer.
pub(super) fn unsupported(method: &str) -> rpc::Error {
    let text = format!("Method not found: this client does not support {method}");
    rpc::Error::new(rpc::code::METHOD_NOT_FOUND, text)
}
