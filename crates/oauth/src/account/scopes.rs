//! Scopes of the tokens of an account that no user has.

use std::time::Duration;

use crate::step_up::StepUp;
use crate::{OAuthError, Settings};

/// Scopes of the last token, and those that the upstream has demanded since. For a user's account
/// the sign-in record has them.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Scopes that were requested for the last token.
    requested: Option<String>,
    step_up: StepUp,
}

impl Scopes {
    /// Records the upstream's demand for scopes, which the next token has. `now` is the Unix time.
    ///
    /// # Errors
    ///
    /// The demand cannot be followed.
    pub(super) fn demand(
        &mut self,
        demanded: &str,
        settings: &Settings,
        now: Duration,
    ) -> Result<(), OAuthError> {
        self.step_up.demand(demanded, self.requested.as_deref(), settings, now)
    }

    /// Returns the scopes to request where the upstream names these.
    pub(super) fn to_request(&self, named: Option<String>) -> Option<String> {
        self.step_up.widen(named, self.requested.as_deref())
    }

    /// Records the scopes with which a token was issued.
    pub(super) fn on_issued(&mut self, requested: Option<String>) {
        self.requested = requested;
    }

    /// Forgets what was demanded: without it there is a token, perhaps.
    pub(super) fn on_refused(&mut self) {
        self.step_up.forget(self.requested.as_deref());
    }
}
