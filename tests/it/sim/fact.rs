//! One request as both its ends saw it: who asked, how often it was executed, how it ended there and here.

use super::ledger::Fate;
use crate::cell::Side;

/// What is known of one request.
#[derive(Debug, Clone)]
pub(super) struct Fact {
    pub(super) who: String,
    pub(super) role: &'static str,
    pub(super) side: Side,
    /// Whether its client takes a task for an answer.
    pub(super) takes_tasks: bool,
    pub(super) executed: u32,
    /// How often its server has heard an answer to what it had asked.
    pub(super) heard: u32,
    /// What the client has, and whether it broke off in a storm or while the house closed.
    pub(super) client: Option<ClientEnd>,
    pub(super) server: Option<ServerEnd>,
}

/// How a request ended for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientEnd {
    /// With a result.
    Has,
    /// With an error of this code.
    Refused(i64),
    /// Without an answer, which the weather or the end of the house explain.
    BrokenOff,
    /// It wants none any more.
    GaveUp,
    /// It was asked something, and did not come back.
    StayedAway,
}

/// How a request ended for its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerEnd {
    /// It has said all that it had to say.
    Ended,
    /// It was told that nobody waits.
    Told,
    /// It saw its stream close, of which it may be the cause itself.
    Closed,
}

impl Fact {
    pub(super) fn new(who: &str, role: &'static str, side: Side, takes_tasks: bool) -> Self {
        let (who, executed, heard) = (who.to_owned(), 0, 0);
        Self { who, role, side, takes_tasks, executed, heard, client: None, server: None }
    }

    /// What both ends together say that must not be.
    pub(super) fn wrong(&self, fate: Fate) -> Option<String> {
        use ClientEnd::{GaveUp, Has, Refused};
        // A server of the newer era is asked again with the answers.
        let is_asked = fate == Fate::Asks;
        let ended = self.server == Some(ServerEnd::Ended);
        let may_be_cancelled = match self.client {
            Some(Has) => false,
            // It was not in time, its connection broke, or it asked or said what nobody can pass on.
            Some(Refused(code)) => matches!(code, 5030 | 5040 | -32021 | -32603),
            _ => true,
        };
        let what = match (self.client, self.server) {
            _ if self.executed > 1 => "it was executed more than once",
            _ if self.heard > 1 => "its server got more than one answer to what it had asked",
            (None, _) => "its client does not know how it ended",
            (Some(Has), _) if self.executed != 1 => "it was answered, and not executed",
            (Some(Has), _) if !ended => "it was answered, and its server has not ended it",
            (Some(Refused(-31_000)), _) if !ended => "its server's own error is not its server's",
            (Some(Refused(-32_602 | -32_002)), _) if self.executed > 0 && !is_asked => {
                "it is unknown, and was executed"
            }
            (Some(Refused(5040) | GaveUp), None) if self.executed > 0 => {
                "nobody waits for it, and its server was not told"
            }
            (Some(_), Some(ServerEnd::Told)) if !may_be_cancelled => {
                "it was cancelled, which nobody wanted"
            }
            _ => return None,
        };
        Some(what.to_owned())
    }
}
