//! Users of identity providers who are refused although the provider's statement is valid.
//!
//! Keyed by the name of the principal, `<provider>/<user>`, whatever application a token was issued
//! to.
//!
//! Invariant: this table is judged for each request with a token, cached or not, and again for each
//! stream and session under a later configuration.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

/// Reason why a valid statement of a provider is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum Refusal {
    /// The configuration blocks the user.
    #[error("the token's user is blocked")]
    #[strum(serialize = "blocked")]
    Blocked,
    /// The token was issued before the time from which the configuration accepts them.
    #[error("the token was issued before `not_before`")]
    #[strum(serialize = "not_before")]
    IssuedBefore,
    /// The token does not say when it was issued, and the configuration requires a time.
    #[error("the token does not say when it was issued, which `not_before` requires")]
    #[strum(serialize = "iat")]
    NoIssueTime,
}

/// Table of the refused users and tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals {
    users: HashSet<String>,
    /// Time before which an accepted token cannot have been issued, by provider.
    not_before: HashMap<String, SystemTime>,
}

impl Refusals {
    /// Refuses a user of a provider.
    pub fn block(&mut self, provider: &str, user: &str) {
        self.users.insert(format!("{provider}/{user}"));
    }

    /// Refuses the tokens of a provider that were issued before a time.
    pub fn refuse_before(&mut self, provider: &str, time: SystemTime) {
        self.not_before.insert(provider.to_owned(), time);
    }

    /// Returns whether a verified token of a provider is accepted, with the name of its principal
    /// and the time at which it was issued, if it has one.
    pub(super) fn check(
        &self,
        provider: &str,
        principal: &str,
        issued_at: Option<SystemTime>,
    ) -> Result<(), Refusal> {
        if self.users.contains(principal) {
            return Err(Refusal::Blocked);
        }
        match (self.not_before.get(provider), issued_at) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(Refusal::NoIssueTime),
            (Some(not_before), Some(issued_at)) if issued_at < *not_before => {
                Err(Refusal::IssuedBefore)
            }
            (Some(_), Some(_)) => Ok(()),
        }
    }
}
