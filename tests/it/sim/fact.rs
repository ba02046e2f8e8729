//! One request as both its ends saw it: its client, its executions, and how it ended at either end.

use super::ledger::ServerAction;
use crate::cell::Side;

/// Recorded facts of one request.
#[derive(Debug, Clone)]
pub(super) struct RequestFacts {
    pub(super) who: String,
    pub(super) role: &'static str,
    pub(super) side: Side,
    /// Whether its client accepts a task as a result.
    pub(super) takes_tasks: bool,
    pub(super) executed: u32,
    /// Number of responses to input requests that its server has received.
    pub(super) received: u32,
    /// Outcome at the client, including a connection that broke in a storm or during the shutdown.
    pub(super) client: Option<ClientEnd>,
    pub(super) server: Option<ServerEnd>,
}

/// Outcome of a request at its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientEnd {
    /// With a result.
    Has,
    /// With an error of this code.
    Refused(i64),
    /// Without a response, because of the simulated network or the shutdown.
    BrokenOff,
    /// The client abandoned the request.
    GaveUp,
    /// The client got an input request and did not come back.
    StayedAway,
}

/// Outcome of a request at its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerEnd {
    /// The server has sent its response.
    Ended,
    /// The server was notified of the cancellation.
    Notified,
    /// The server saw its stream close, perhaps by its own fault.
    Closed,
}

impl RequestFacts {
    pub(super) fn new(who: &str, role: &'static str, side: Side, takes_tasks: bool) -> Self {
        let (who, executed, received) = (who.to_owned(), 0, 0);
        Self { who, role, side, takes_tasks, executed, received, client: None, server: None }
    }

    /// Contradiction between both ends, if there is one.
    pub(super) fn wrong(&self, action: ServerAction) -> Option<String> {
        use ClientEnd::{GaveUp, Has, Refused};
        // A modern server gets the call again, with the answers.
        let is_asked = action == ServerAction::Asks;
        let ended = self.server == Some(ServerEnd::Ended);
        let may_be_cancelled = match self.client {
            Some(Has) => false,
            // The call timed out, its connection broke, or a message of it could not be forwarded.
            Some(Refused(code)) => matches!(code, 5030 | 5040 | -32021 | -32603),
            _ => true,
        };
        let what = match (self.client, self.server) {
            _ if self.executed > 1 => "it was executed more than once",
            _ if self.received > 1 => "its server got more than one answer to what it had asked",
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
            (Some(_), Some(ServerEnd::Notified)) if !may_be_cancelled => {
                "it was cancelled, which nobody wanted"
            }
            _ => return None,
        };
        Some(what.to_owned())
    }
}
