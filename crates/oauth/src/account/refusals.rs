//! Refusals of tokens by the upstream, and the pace of the refreshes that they cause.

use std::time::Duration;

use tokio::time::Instant;

use crate::access_token::TokenNumber;

/// Tokens that the upstream has refused, as far as that decides about others.
#[derive(Debug, Default)]
pub(super) struct TokenRefusals {
    /// Last token that was refused; `None` if the last request that was refused had none.
    last: Option<TokenNumber>,
    /// Token that was refused when it was new, and the time until which its refusals are not
    /// believed.
    rejected: Option<(TokenNumber, Instant)>,
    /// Time at which the last token was issued.
    issued: Option<Instant>,
    /// Number of tokens in turn that were refused when they were young.
    young: u32,
}

impl TokenRefusals {
    /// Records that a token was issued.
    pub(super) fn on_issued(&mut self, now: Instant) {
        self.issued = Some(now);
    }

    /// Records that a request with this token, or without one, was refused.
    pub(super) fn on_refused(&mut self, number: Option<TokenNumber>) {
        self.last = number;
    }

    /// Records that a token was refused when it was new: for a while its refusals are not believed.
    pub(super) fn on_refused_when_new(&mut self, number: TokenNumber, now: Instant) {
        self.rejected = Some((number, now + REJECTED_PAUSE));
    }

    /// Returns whether this is the token that was refused last.
    pub(super) fn is_last(&self, number: TokenNumber) -> bool {
        self.last == Some(number)
    }

    /// Returns whether refusals of a token are not believed: it is the request that is refused.
    pub(super) fn is_rejected(&self, number: TokenNumber, now: Instant) -> bool {
        self.rejected.is_some_and(|(rejected, until)| rejected == number && until > now)
    }

    /// Returns whether a token that was refused may be refreshed now. After a few that were refused
    /// when they were young there are pauses, which grow.
    pub(super) fn allow_refresh(&mut self, now: Instant) -> bool {
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
}

/// Number of young tokens in turn that are refreshed at once when they are refused.
const FREE_REFUSALS: u32 = 2;
/// Shortest and longest pause between refreshes because of refusals. A token that lives as long as
/// the longest one is no young one.
const MIN_REFUSAL_PAUSE: Duration = Duration::from_secs(1);
pub(super) const MAX_REFUSAL_PAUSE: Duration = Duration::from_secs(60);
/// Time for which a token that was refused when it was new is not replaced because of refusals.
pub(super) const REJECTED_PAUSE: Duration = Duration::from_secs(60);
