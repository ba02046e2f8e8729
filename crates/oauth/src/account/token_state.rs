//! State of an account's access token: which token a request has, and when another one is
//! requested.
//!
//! Pure: each event comes with its time, and each action is done by the account.
//!
//! Invariants: at most one refresh runs. After a failure none begins until a pause has passed, or
//! the sign-in has changed. A valid token is used while its refresh runs, and if that fails.
//!
//! Decision: docs/decisions/0046-token-state.md

#[cfg(test)]
mod tests;

use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

use super::refusals::TokenRefusals;
use super::sign_in_state::CHECK_INTERVAL;
use crate::OAuthError;
use crate::access_token::{AccessToken, TokenNumber};
use crate::vault::RecordVersion;
use weir_base::time::backoff::Backoff;

/// State of the access token of one account.
#[derive(Debug)]
pub(super) struct TokenState {
    token: LastToken,
    /// Whether a refresh runs.
    is_running: bool,
    /// Failure of the last refresh that has ended.
    failure: Option<RefreshFailure>,
    /// Version of the sign-in record that was read last; `None` if none was.
    sign_in: Option<RecordVersion>,
    refusals: TokenRefusals,
    backoff: Backoff,
}

/// Token that was issued last.
#[derive(Debug)]
enum LastToken {
    None,
    Usable(AccessToken),
    /// Its sign-in was removed or replaced.
    Ended(AccessToken),
}

/// Reason why no refresh begins until a time, unless the sign-in changes.
#[derive(Debug)]
struct RefreshFailure {
    until: Instant,
    error: OAuthError,
    /// Sign-in record that it is about.
    sign_in: Option<RecordVersion>,
    /// Whether the upstream has accepted the token since.
    is_over: bool,
}

/// Event that decides about the token.
#[derive(Debug)]
pub(super) enum Event {
    /// A request needs a token.
    Needed {
        /// Whether one can be requested already.
        can_request: bool,
    },
    /// The upstream has refused a request with this token, or without one.
    Refused(Option<TokenNumber>),
    /// The upstream demands scopes, which the next token has.
    ScopesDemanded,
    /// The upstream has refused a token that was issued for the request.
    RefusedWhenNew(TokenNumber),
    /// The upstream has accepted a token.
    Accepted(TokenNumber),
    /// The refresh has ended with a token.
    Issued(AccessToken),
    /// The refresh has ended without a token.
    Failed {
        error: OAuthError,
        /// Version of the sign-in record that the refresh has read or written: another one is a
        /// change by another process.
        sign_in: Option<RecordVersion>,
    },
    /// The sign-in record is another one, with this token in the header.
    SignInChanged { version: RecordVersion, token: Option<HeaderValue> },
}

/// Action for the request that was the event; `None` if it was no request.
#[derive(Debug, Clone)]
pub(super) enum Action {
    None,
    /// Send the request without a token: the upstream has not demanded one yet.
    SendWithout,
    Use(AccessToken),
    /// Use the token, and start a refresh for the next requests.
    UseAndRefresh(AccessToken),
    /// Start a refresh, and wait for its token.
    Refresh,
    /// Wait for the refresh that runs.
    Join,
    Fail(OAuthError),
    /// The upstream refuses the request, and not its token: no other token helps.
    RefuseRequest,
}

impl TokenState {
    /// Creates the state without a token. After failures there are the pauses of `backoff`.
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            token: LastToken::None,
            is_running: false,
            failure: None,
            sign_in: None,
            refusals: TokenRefusals::default(),
            backoff,
        }
    }

    /// Changes the state by an event, and returns what has to be done.
    pub(super) fn apply(&mut self, event: Event, now: Instant) -> Action {
        match event {
            Event::Needed { can_request } => return self.need(can_request, now),
            Event::Refused(number) => return self.replace(number, now),
            Event::ScopesDemanded if self.is_rejected(now) => return Action::RefuseRequest,
            Event::ScopesDemanded => return self.refresh(now),
            Event::RefusedWhenNew(number) => self.refusals.on_refused_when_new(number, now),
            Event::Accepted(number) => self.accept(number, now),
            Event::Issued(token) => {
                self.refusals.on_issued(now);
                self.backoff.reset();
                (self.is_running, self.failure) = (false, None);
                self.token = LastToken::Usable(token);
            }
            Event::Failed { error, sign_in } => self.fail(error, sign_in, now),
            Event::SignInChanged { version, token } => {
                self.sign_in = Some(version);
                let last = std::mem::replace(&mut self.token, LastToken::None);
                self.token = match last {
                    LastToken::Usable(last) if token.as_ref() != Some(last.header()) => {
                        LastToken::Ended(last)
                    }
                    last => last,
                };
            }
        }
        Action::None
    }

    fn need(&mut self, can_request: bool, now: Instant) -> Action {
        let token = match &self.token {
            LastToken::Usable(token) if !token.is_expired(now) => token,
            LastToken::Usable(_) => return self.refresh(now),
            LastToken::None | LastToken::Ended(_) if can_request => return self.refresh(now),
            LastToken::None | LastToken::Ended(_) => return Action::SendWithout,
        };
        let (token, is_due) = (token.clone(), token.is_due(now));
        if is_due && matches!(self.refresh(now), Action::Refresh) {
            return Action::UseAndRefresh(token);
        }
        Action::Use(token)
    }

    /// Decides about a request that was refused, and had this token.
    fn replace(&mut self, refused: Option<TokenNumber>, now: Instant) -> Action {
        if let Some(other) = self.other_than(refused) {
            return Action::Use(other);
        }
        let is_cause = refused.is_some() && !self.is_running;
        if self.is_rejected(now) || is_cause && !self.refusals.allow_refresh(now) {
            return Action::RefuseRequest;
        }
        self.refusals.on_refused(refused);
        self.refresh(now)
    }

    /// Begins a refresh, if none runs and there is no pause.
    fn refresh(&mut self, now: Instant) -> Action {
        if self.is_running {
            return Action::Join;
        }
        if let Some(failure) = &self.failure
            && failure.until > now
            && failure.sign_in == self.sign_in
        {
            return Action::Fail(failure.error.clone());
        }
        self.is_running = true;
        Action::Refresh
    }

    /// If the token was to be refreshed because the upstream had refused another request, then that
    /// request was the reason.
    fn accept(&mut self, number: TokenNumber, now: Instant) {
        let is_current = self.usable().is_some_and(|it| it.number() == number && !it.is_due(now));
        if let Some(failure) = &mut self.failure
            && is_current
        {
            failure.is_over = true;
        }
    }

    fn fail(&mut self, error: OAuthError, sign_in: Option<RecordVersion>, now: Instant) {
        let pause = match error {
            OAuthError::Unavailable(_) => self.backoff.next_pause(),
            // Only the operator can change that.
            OAuthError::Refused(_) => self.backoff.longest_pause(),
            // The vault is read again.
            OAuthError::SignInNeeded(_) => CHECK_INTERVAL,
        };
        self.is_running = false;
        self.failure = Some(RefreshFailure { until: now + pause, error, sign_in, is_over: false });
    }

    // === What others see ===

    /// Returns the token, if it is not the one that was refused.
    pub(super) fn other_than(&self, refused: Option<TokenNumber>) -> Option<AccessToken> {
        self.usable().filter(|token| refused != Some(token.number())).cloned()
    }

    /// Returns the last token, also if its sign-in has ended.
    pub(super) fn last(&self) -> Option<&AccessToken> {
        match &self.token {
            LastToken::None => None,
            LastToken::Usable(token) | LastToken::Ended(token) => Some(token),
        }
    }

    /// Returns the number of the next token.
    pub(super) fn next_number(&self) -> TokenNumber {
        self.last().map(AccessToken::number).unwrap_or_default().next()
    }

    /// Returns the version of the sign-in record that was read last.
    pub(super) fn sign_in(&self) -> Option<RecordVersion> {
        self.sign_in
    }

    /// Returns whether the last refresh has failed, and the upstream has accepted no token since.
    pub(super) fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Returns the rest of the pause after a failure.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        let until = self.failure.as_ref().map(|failure| failure.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Returns why a user has to sign in, as a text for the operator; `None` if none has to, or
    /// there is a token that is still accepted.
    pub(super) fn sign_in_needed(&self, now: Instant) -> Option<&str> {
        let is_accepted = |token: &AccessToken| {
            let is_valid = token.is_due(now) && !token.is_expired(now);
            is_valid && !self.refusals.is_last(token.number())
        };
        match &self.failure()?.error {
            OAuthError::SignInNeeded(text) if !self.usable().is_some_and(is_accepted) => Some(text),
            _ => None,
        }
    }

    /// Returns whether there is another sign-in than the one with which a refresh has failed, so
    /// that the upstream can be used again.
    pub(super) fn has_new_sign_in(&self) -> bool {
        self.failure().is_some_and(|failure| {
            !matches!(failure.error, OAuthError::Unavailable(_))
                && failure.sign_in != self.sign_in
                && self.sign_in.is_some_and(RecordVersion::has_record)
        })
    }

    fn usable(&self) -> Option<&AccessToken> {
        match &self.token {
            LastToken::Usable(token) => Some(token),
            LastToken::None | LastToken::Ended(_) => None,
        }
    }

    /// Returns the failure of the last refresh that has ended, unless it is over.
    fn failure(&self) -> Option<&RefreshFailure> {
        self.failure.as_ref().filter(|failure| !failure.is_over)
    }

    fn is_rejected(&self, now: Instant) -> bool {
        self.usable().is_some_and(|token| self.refusals.is_rejected(token.number(), now))
    }
}
