//! Watches of an account, for other parts of Weir.

use tokio::sync::watch;

use crate::OAuthError;
use crate::access_token::{AccessToken, TokenFinders, token_finders, token_of};
use crate::vault::SignInNumber;

/// Outcome, tokens and sign-in of an account, for those who follow them.
pub(super) struct AccountWatches {
    outcome: watch::Sender<TokenOutcome>,
    /// Finders of the last two tokens: the former one may still be valid.
    finders: watch::Sender<TokenFinders>,
    /// Sign-in whose tokens are used; `None` if no user is signed in.
    sign_in: watch::Sender<Option<SignInNumber>>,
}

/// Outcome of the last request for a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TokenOutcome {
    /// None was requested yet.
    #[default]
    None,
    /// It was issued.
    Issued,
    /// It was not, for this reason.
    Failed(OAuthError),
}

impl AccountWatches {
    pub(super) fn new(sign_in: Option<SignInNumber>) -> Self {
        let (outcome, finders) = (watch::Sender::default(), watch::Sender::default());
        Self { outcome, finders, sign_in: watch::Sender::new(sign_in) }
    }

    /// Publishes an outcome, and returns whether it differs from the last one.
    pub(super) fn publish(&self, outcome: TokenOutcome) -> bool {
        self.outcome.send_if_modified(|last| {
            let is_new = *last != outcome;
            *last = outcome;
            is_new
        })
    }

    pub(super) fn outcomes(&self) -> watch::Receiver<TokenOutcome> {
        self.outcome.subscribe()
    }

    /// Publishes the finders of a new token and of the one before.
    pub(super) fn publish_tokens(&self, token: &AccessToken, before: Option<&AccessToken>) {
        let tokens = [Some(token), before].into_iter().flatten();
        let tokens = tokens.filter_map(|token| token_of(token.header()));
        self.finders.send_replace(token_finders(tokens));
    }

    pub(super) fn token_finders(&self) -> watch::Receiver<TokenFinders> {
        self.finders.subscribe()
    }

    /// Returns whether a text repeats a token.
    pub(super) fn finds_token_in(&self, text: &str) -> bool {
        self.finders.borrow().are_in(text.as_bytes())
    }

    /// Returns an error without tokens that a server may have repeated.
    pub(super) fn without_tokens(&self, error: OAuthError) -> OAuthError {
        error.redact(&self.finders.borrow())
    }

    /// Publishes the sign-in whose tokens are used.
    pub(super) fn publish_sign_in(&self, number: Option<SignInNumber>) {
        self.sign_in.send_if_modified(|present| std::mem::replace(present, number) != number);
    }

    pub(super) fn sign_in(&self) -> Option<SignInNumber> {
        *self.sign_in.borrow()
    }

    pub(super) fn sign_in_changes(&self) -> watch::Receiver<Option<SignInNumber>> {
        self.sign_in.subscribe()
    }
}
