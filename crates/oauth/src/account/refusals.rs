//! Refusals of tokens by the upstream.

use std::time::Duration;

use tokio::time::Instant;

use super::{Account, TokenOutcome};
use crate::OAuthError;
use crate::access_token::AccessToken;
use crate::challenge::BearerChallenge;

impl Account {
    /// Records that the upstream has refused a token that [`Account::refresh`] has just returned, and
    /// returns the error for that request. For a while no other one is requested because of such
    /// refusals.
    pub async fn reject(&self, token: &AccessToken, challenge: &BearerChallenge) -> OAuthError {
        let error = if challenge.demands_scope() {
            self.step_up(challenge).await.err().unwrap_or_else(|| self.rejected())
        } else {
            self.state.lock().rejected = Some((token.number, Instant::now() + REJECTED_PAUSE));
            self.rejected()
        };
        self.publish(TokenOutcome::Failed(error.clone()));
        error
    }

    pub(super) fn rejected(&self) -> OAuthError {
        let text = "the upstream refuses an access token that is new";
        match self.settings.grant.is_of_user() {
            true => {
                let name = &self.name;
                let text =
                    format!("{text}: if it stays so, sign in again with `weir login {name}`");
                OAuthError::Refused(text)
            }
            false => OAuthError::Refused(text.into()),
        }
    }
}

/// Pace of the refreshes that an upstream causes because it refuses tokens.
#[derive(Debug, Default)]
pub(super) struct RefusalPace {
    issued: Option<Instant>,
    /// Number of tokens in turn that were refused when they were young.
    young: u32,
}

impl RefusalPace {
    /// Returns whether a token that was refused may be refreshed now. After a few that were refused
    /// when they were young there are pauses, which grow.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let Some(age) = self.issued.map(|issued| now.duration_since(issued)) else { return true };
        if age >= MAX_REFUSAL_PAUSE {
            self.young = 0;
        }
        let pause = match self.young.checked_sub(FREE_REFUSALS) {
            None => Duration::ZERO,
            Some(over) => MAX_REFUSAL_PAUSE.min(MIN_REFUSAL_PAUSE * (1 << over.min(6))),
        };
        let is_allowed = age >= pause;
        if is_allowed {
            self.young = self.young.saturating_add(1);
        }
        is_allowed
    }

    pub(super) fn issued(&mut self, now: Instant) {
        self.issued = Some(now);
    }
}

/// Number of young tokens in turn that are refreshed at once when they are refused.
const FREE_REFUSALS: u32 = 2;
/// Shortest and longest pause between refreshes because of refusals. A token that lives as long as
/// the longest one is no young one.
const MIN_REFUSAL_PAUSE: Duration = Duration::from_secs(1);
pub(super) const MAX_REFUSAL_PAUSE: Duration = Duration::from_secs(60);
/// Time for which a token that was refused when it was new is not replaced because of refusals.
pub(super) const REJECTED_PAUSE: Duration = Duration::from_secs(60);
