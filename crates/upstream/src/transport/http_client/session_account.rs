//! Access tokens in the requests of one session: all of one sign-in, and the demands of a server
//! for another one.

use std::sync::{Arc, OnceLock};

use hyper::header::WWW_AUTHENTICATE;
use hyper::{Response, StatusCode};

use crate::Error;
use crate::message::TransportError;
use crate::transport::http_pool::PooledBody;
use weir_oauth::{AccessToken, Account, BearerChallenge, OAuthError, SignInNumber};

/// Account of one session: all its requests have tokens of one sign-in.
#[derive(Clone)]
pub(super) struct SessionAccount {
    pub(super) account: Arc<Account>,
    /// Sign-in of the first token.
    pub(super) sign_in: Arc<OnceLock<SignInNumber>>,
}

impl SessionAccount {
    pub(super) fn new(account: Arc<Account>) -> Self {
        Self { account, sign_in: Arc::default() }
    }

    /// Returns whether a token may be used in the session.
    pub(super) fn owns(&self, token: &AccessToken) -> bool {
        *self.sign_in.get_or_init(|| token.sign_in()) == token.sign_in()
    }
}

/// Returns the challenge of a server that wants another access token: one that it accepts, or one
/// with more scopes (RFC 6750, 3.1).
pub(super) fn token_challenge(
    response: &Response<PooledBody>,
    account: &Account,
) -> Option<BearerChallenge> {
    if !matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return None;
    }
    let texts = response.headers().get_all(WWW_AUTHENTICATE).iter();
    let mut texts = texts.filter_map(|text| text.to_str().ok());
    // One that repeats a token is not read: its contents are shown to the operator.
    let has_token = texts.any(|text| account.is_repeated_in(text));
    let challenge = BearerChallenge::find(response.headers()).filter(|challenge| {
        // A character may have been escaped in a quoted string.
        !has_token && !challenge.texts().any(|text| account.is_repeated_in(text))
    });
    match response.status() {
        StatusCode::UNAUTHORIZED => Some(challenge.unwrap_or_default()),
        _ => challenge.filter(BearerChallenge::demands_scope),
    }
}

/// Returns the error of a request for which there is no access token: the server is up, and it has
/// not executed the request.
pub(super) fn no_token(error: OAuthError) -> TransportError {
    let text = format!("no access token: {error}");
    TransportError::Other(match error {
        OAuthError::SignInNeeded(_) => Error::SignInNeeded(text),
        OAuthError::Unavailable(_) | OAuthError::Refused(_) => Error::Unavailable(text),
    })
}
