//! Which call a message of an upstream belongs to.
//!
//! A message on a call's own stream belongs to that call. On a stream that calls share, it depends on whose calls they are:
//! see [`Callers`].

use crate::jsonrpc;
use crate::mcp::call_notifications::Notes;
use crate::upstream::input_requests::{SEVERAL_CALLS, unsupported};
use crate::upstream::transport::dispatcher::{Asked, Callers, Ear, Side};

impl Ear {
    pub(super) fn notes_of(&self, id: u64) -> Option<Notes> {
        self.pending.beside(id, |side| side.notes.clone()).flatten()
    }

    /// The call that a log message is about, as with a question: see [`Ear::asked`].
    pub(super) fn logs_to(&self, on: Option<u64>) -> Option<Notes> {
        match on {
            Some(id) => self.notes_of(id).filter(Notes::takes_logs),
            None => self.unattributed(|side| {
                let notes = side.notes.as_ref().filter(|notes| notes.takes_logs())?;
                notes.logs().least().map(|_| notes.clone())
            }),
        }
    }

    /// The call that something is about which does not say so.
    fn unattributed<R>(&self, look: impl Fn(&Side) -> Option<R>) -> Option<R> {
        match self.callers {
            Callers::Many => None,
            Callers::One => self.pending.newest(look),
            Callers::Alike => self.pending.only(look),
        }
    }

    /// Whether what is not said to be about a call can be told to somebody.
    pub(in crate::upstream) fn is_alone(&self) -> bool {
        self.callers != Callers::Many
    }

    /// The call that a question is about, and where its notes go: the one on whose stream it came. On a stream that all share
    /// nothing tells which, but where all are one client's the newest is as good as any.
    pub(super) fn asked(&self, on: Option<u64>, method: &str) -> Result<Asked, jsonrpc::Error> {
        let look = |side: &Side| Some((side.questions.clone()?, side.notes.clone()));
        let asked = match (on, self.callers) {
            (Some(id), _) => self.pending.beside(id, look).flatten(),
            (None, Callers::Alike) => return self.asked_of_one(look, method),
            (None, Callers::Many | Callers::One) => self.unattributed(look),
        };
        asked.ok_or_else(|| unsupported(method))
    }

    /// The call that a question is about where several clients may share a name: the only one that can be. One that
    /// waits for its client has asked already, and a client that sends another call may never come back for it. So
    /// the question is of the only call that does not wait, and those that do are given up.
    fn asked_of_one(
        &self,
        look: impl Fn(&Side) -> Option<Asked>,
        method: &str,
    ) -> Result<Asked, jsonrpc::Error> {
        let all = self.pending.all(look).into_iter().filter(|(call, _)| !call.is_given_up());
        let (waiting, running): (Vec<_>, Vec<_>) =
            all.partition(|(call, _)| call.wait_for_client());
        match (&running[..], &waiting[..]) {
            ([asks], waiting) => {
                waiting.iter().for_each(|(call, _)| call.give_up());
                Ok(asks.clone())
            }
            ([], [asks]) => Ok(asks.clone()),
            ([], []) => Err(unsupported(method)),
            _ => Err(jsonrpc::Error::new(jsonrpc::code::INTERNAL_ERROR, SEVERAL_CALLS)),
        }
    }
}
