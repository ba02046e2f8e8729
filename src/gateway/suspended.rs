//! A call that waits for its client's answers.
//!
//! Knows nothing of: how a client is asked.

pub(crate) mod table;

use super::task_handles::Dressing;
use super::{Fault, unfit, upstream_error};
use crate::audit::Record;
use crate::guard::{Findings, Watch};
use crate::mcp::call::{Caller, Reply};
use crate::mcp::input_request::{Answered, Question};
use crate::mcp::name::UpstreamName;
use crate::memory_budget::Allowance;
use crate::upstream::{Asks, Called};

/// How an ask went on.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is made and taken apart once a call")]
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
    /// Where somebody looks at the reply.
    watch: Option<Box<Watched>>,
    /// Where the call may name a task.
    dressing: Option<Dressing>,
    questions: Vec<Question>,
    asks: Asks,
}

/// Who looks at the reply, where it is told what was found, and how much the reply may have.
type Watched = (Watch, Record, Allowance);

impl Went {
    pub(super) async fn of(
        upstream: &UpstreamName,
        watch: Option<Box<Watched>>,
        dressing: Option<Dressing>,
        called: Called,
    ) -> Result<Self, Fault> {
        let reply = match called {
            Called::Replied(reply) => reply,
            Called::Asks(asks) => {
                let questions = dressed(dressing.as_ref(), asks.questions().to_vec());
                let upstream = upstream.clone();
                return Ok(Self::Asks(Asked { upstream, watch, dressing, questions, asks }));
            }
        };
        let reply = match watch {
            Some(watched) => {
                let (watch, record, allowed) = *watched;
                let flagged = record.clone();
                let tell = move |found: Findings| flagged.flagged(found.count());
                let looked = watch.look(reply, &allowed, tell).await;
                looked.map_err(|why| unfit(upstream, why, &record))?
            }
            None => reply,
        };
        Ok(Self::Replied(match dressing {
            Some(dressing) => dressing.dress(reply)?,
            None => reply,
        }))
    }
}

impl Asked {
    /// Who asks.
    pub fn upstream(&self) -> &UpstreamName {
        &self.upstream
    }

    /// Whether the call was given up for a later one of its client.
    pub(super) fn is_given_up(&self) -> bool {
        self.asks.is_given_up()
    }

    /// What has to be answered; each key once.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Waits for further questions; `None` once no answers are wanted any more: [`Asked::answer`] without any
    /// then tells why. Cancel-safe.
    pub async fn more(&mut self) -> Option<Vec<Question>> {
        let questions = self.asks.more().await?;
        Some(dressed(self.dressing.as_ref(), questions))
    }

    /// Brings one answer ahead of the others.
    pub fn give(&self, answered: Answered) {
        self.asks.give(match &self.dressing {
            Some(dressing) => dressing.undress(answered),
            None => answered,
        });
    }

    /// The call, as what this other request goes on with.
    pub(super) fn recorded(mut self, record: &Record) -> Self {
        if let Some(watched) = &mut self.watch {
            watched.1 = record.clone();
        }
        self
    }

    /// Goes on with the answers; those that are missing will be asked for again.
    pub async fn answer(self, answers: Vec<Answered>, caller: Caller) -> Result<Went, Fault> {
        let Self { upstream, watch, dressing, asks, .. } = self;
        let answers = match &dressing {
            Some(dressing) => answers.into_iter().map(|it| dressing.undress(it)).collect(),
            None => answers,
        };
        match asks.answer(answers, caller).await {
            Ok(called) => Went::of(&upstream, watch, dressing, called).await,
            Err(cause) => Err(upstream_error(&upstream, cause)),
        }
    }
}

/// Questions with the names that the client knows its tasks by.
fn dressed(dressing: Option<&Dressing>, questions: Vec<Question>) -> Vec<Question> {
    match dressing {
        Some(dressing) => questions.into_iter().map(|it| dressing.dress_question(it)).collect(),
        None => questions,
    }
}
