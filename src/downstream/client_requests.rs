//! Asking a legacy client: what its conversation has been asked and has not answered.
//!
//! A question goes out as a request on the stream of the call that it belongs to, under an id of its own.
//! Its answer comes in whatever way messages come, and is given to it once: an answer that is late, that
//! comes twice, or to a question that this conversation was never asked, is dropped.
//!
//! Promises: a conversation has a bounded number of open questions; a question that is no longer open
//! because its call has ended is taken back.
//!
//! Knows nothing of: which wire it is on, and what the question is about.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::response::Refused;
use crate::downstream::response::call_stream::{Beside, Say};
use crate::downstream::response::results;
use crate::gateway::Asked;
use crate::json::{self, Object};
use crate::jsonrpc::pending::{Pending, Ticket};
use crate::jsonrpc::{self, Answer, Id, Outcome, code};
use crate::mcp::input_request::{Abilities, Answered, ELICITATION_ID, Question};
use crate::mcp::revision::Revision;
use crate::secret;

/// The open questions of one conversation. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Questions {
    open: Pending<Outcome, ()>,
    /// Fires when the house closes: no more answers are taken.
    stop: CancellationToken,
}

/// The way to ask a call's client.
#[derive(Debug)]
pub(super) struct Asking {
    questions: Questions,
    revision: Revision,
    /// The call's own stream.
    say: Say,
}

/// A question that is under way; dropped unanswered, it is taken back.
struct Open<'a> {
    ticket: Ticket<Outcome, ()>,
    say: &'a Say,
    stop: &'a CancellationToken,
}

impl Questions {
    /// None yet. After `stop` nothing can be answered any more.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { open: Pending::default(), stop }
    }

    /// Takes what a client answered.
    pub(super) fn settle(&self, answer: Answer) {
        let Answer { id, outcome, .. } = answer;
        if let Some(id) = id.as_ref().and_then(Id::minted) {
            self.open.settle(id, outcome);
        }
    }

    fn open<'a>(&'a self, say: &'a Say) -> Result<Open<'a>, Refused> {
        let ticket = match self.open.len() < MAX_OPEN {
            true => self.open.open(()),
            false => None,
        };
        let ticket = ticket.ok_or_else(|| results::too_busy(RETRY))?;
        Ok(Open { ticket, say, stop: &self.stop })
    }
}

impl Asking {
    /// Makes the way for a call, through what goes out beside its answer; `None` where its client can be
    /// asked for nothing.
    pub(super) fn open(
        questions: &Questions,
        revision: Revision,
        abilities: Abilities,
        beside: Beside,
    ) -> (Option<Self>, Beside) {
        if abilities == Abilities::default() {
            return (None, beside);
        }
        let (say, beside) = beside.with_said();
        (Some(Self { questions: questions.clone(), revision, say }), beside)
    }

    /// Asks what a call's upstream asks, all at a time, and brings each answer as it comes: the upstream may
    /// need it before it does anything about the others, or asks more. Returns once no answers are wanted any
    /// more, and takes back what has not been answered then; so does dropping the future.
    pub(super) async fn ask(&self, asked: &mut Asked) -> Result<(), Refused> {
        let mut answers = FuturesUnordered::new();
        let mut new = asked.questions().to_vec();
        loop {
            for question in new.drain(..) {
                answers.push(self.put(question, self.questions.open(&self.say)?));
            }
            tokio::select! {
                biased;
                Some(answered) = answers.next() => asked.give(answered),
                more = asked.more() => match more {
                    Some(more) => new = more,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn put(&self, question: Question, open: Open<'_>) -> Answered {
        let outcome = open.ask(question.subject.method(), &self.dressed(&question)).await;
        Answered { key: question.key, outcome }
    }

    /// A question's parameters as this revision wants them.
    fn dressed(&self, question: &Question) -> Bytes {
        // Spec 2025-11-25, elicitation: one to visit a URL MUST have an id; later revisions have none.
        if question.is_visit()
            && self.revision == Revision::V2025_11_25
            && !question.params.has(ELICITATION_ID)
        {
            let mut params = question.params.clone();
            params.set(ELICITATION_ID, json::quote(&secret::unguessable()));
            return params.to_bytes();
        }
        question.params.to_bytes()
    }
}

impl Open<'_> {
    async fn ask(mut self, method: &str, params: &[u8]) -> Outcome {
        let request = jsonrpc::write_request(&Id::from(self.ticket.id()), method, params);
        if self.say.send(request).await.is_err() {
            // The call runs on without its stream (spec, transports), on which alone it could be asked.
            return unanswered("the client's stream is lost, so it cannot be asked");
        }
        let answer = tokio::select! {
            biased;
            answer = &mut self.ticket => answer,
            () = self.stop.cancelled() => None,
        };
        match answer {
            Some(Outcome::Result(result)) if !result.starts_with(b"{") => {
                unanswered("the client answered with a result that is no object")
            }
            Some(outcome) => outcome,
            None => unanswered("no answers are taken from the client any more"),
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ticket.is_open() {
            return;
        }
        let mut params = Object::new();
        params.set("requestId", self.ticket.id().to_string());
        params.set("reason", json::quote("the call that it was asked for has ended"));
        let cancelled = jsonrpc::write_notification("notifications/cancelled", &params.to_bytes());
        // Full or closed: then the question has not gone out either, or nobody is there to hear.
        let _ = self.say.try_send(cancelled);
    }
}

/// What an upstream hears in the place of an answer that does not come.
fn unanswered(text: &str) -> Outcome {
    Outcome::Error(jsonrpc::Error::new(code::INTERNAL_ERROR, text).to_bytes())
}

/// How many questions of one conversation may be open at a time.
const MAX_OPEN: usize = 64;
/// When a call that would ask more may be sent again.
const RETRY: Duration = Duration::from_secs(1);
