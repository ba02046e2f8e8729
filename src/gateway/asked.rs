//! A call that waits for its client's answers.
//!
//! Knows nothing of: how a client is asked.

use super::tasks::Dressing;
use super::{Fault, fault};
use crate::mcp::call::{Caller, Reply};
use crate::mcp::name::UpstreamName;
use crate::mcp::question::{Answered, Question};
use crate::upstream::{Asks, Called};

/// How an ask went on.
#[derive(Debug)]
pub enum Went {
    /// It was answered.
    Replied(Reply),
    /// Its upstream wants to know something first.
    Asks(Asked),
}

/// A call whose upstream wants to know something from the client. Dropping it cancels the call.
#[derive(Debug)]
pub struct Asked {
    upstream: UpstreamName,
    /// Where the call may name a task.
    dressing: Option<Dressing>,
    questions: Vec<Question>,
    asks: Asks,
}

impl Went {
    pub(super) fn of(upstream: &UpstreamName, dressing: Option<Dressing>, called: Called) -> Self {
        match (called, dressing) {
            (Called::Replied(reply), Some(dressing)) => Self::Replied(dressing.dress(reply)),
            (Called::Replied(reply), None) => Self::Replied(reply),
            (Called::Asks(asks), dressing) => {
                let dress = |question: Question| match &dressing {
                    Some(dressing) => dressing.dress_question(question),
                    None => question,
                };
                let questions = asks.questions().iter().cloned().map(dress).collect();
                Self::Asks(Asked { upstream: upstream.clone(), dressing, questions, asks })
            }
        }
    }
}

impl Asked {
    /// Who asks.
    pub fn upstream(&self) -> &UpstreamName {
        &self.upstream
    }

    /// What has to be answered; each key once.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Waits for further questions; `None` once no answers are wanted any more: [`Asked::answer`] without any
    /// then tells why. Cancel-safe.
    pub async fn more(&mut self) -> Option<Vec<Question>> {
        self.asks.more().await
    }

    /// Brings one answer ahead of the others.
    pub fn give(&self, answered: Answered) {
        self.asks.give(answered);
    }

    /// Goes on with the answers; those that are missing will be asked for again.
    pub async fn answer(self, answers: Vec<Answered>, caller: Caller) -> Result<Went, Fault> {
        let Self { upstream, dressing, asks, .. } = self;
        let answers = match &dressing {
            Some(dressing) => answers.into_iter().map(|it| dressing.undress(it)).collect(),
            None => answers,
        };
        match asks.answer(answers, caller).await {
            Ok(called) => Ok(Went::of(&upstream, dressing, called)),
            Err(cause) => Err(fault(&upstream, cause)),
        }
    }
}
