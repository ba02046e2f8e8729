//! An upstream's questions in the middle of a call, and how the call goes on once they are answered.
//!
//! Promises: a call that asks is executed once; dropping an [`Asks`] cancels the call that waits behind it.
//!
//! Knows nothing of: clients, and where a call that waits is kept.

use crate::mcp::call::{Caller, Reply};
use crate::mcp::question::{Answered, Question};

use super::Error;

/// How a call went on.
#[derive(Debug)]
pub enum Called {
    /// It was answered.
    Replied(Reply),
    /// Its upstream wants to know something first.
    Asks(Asks),
}

/// A call whose upstream wants to know something from its client.
#[derive(Debug)]
pub struct Asks {
    questions: Vec<Question>,
}

impl Asks {
    /// What has to be answered; each key once.
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// Goes on with all of the answers. What `caller` says of notes replaces what was said before.
    pub async fn answer(self, answers: Vec<Answered>, caller: Caller) -> Result<Called, Error> {
        let _ = (answers, caller);
        Err(Error::Protocol("it asks".into()))
    }
}
