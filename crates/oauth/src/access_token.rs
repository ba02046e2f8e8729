//! Access token of an account, and the times of its life.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::OAuthError;
use super::token_request::{IssuedToken, sensitive};
use super::vault::SignInNumber;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;

/// Access token. Cheap to clone.
#[derive(Clone)]
pub struct AccessToken {
    authorization: HeaderValue,
    /// Times after which it is refreshed, and no longer used; `None` if it does not expire.
    times: Option<(Instant, Instant)>,
    number: TokenNumber,
    /// Sign-in to which it belongs.
    sign_in: SignInNumber,
}

/// Number of a token among those of its account, in the order in which they were issued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TokenNumber(u64);

impl TokenNumber {
    /// Returns the number of the next token.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Finders of access tokens in the bytes that a server sends.
pub type TokenFinders = Arc<SecretPatterns>;

/// Makes the finders of these tokens. One that is too short to be a secret is not found.
pub fn token_finders<'a>(tokens: impl IntoIterator<Item = &'a str>) -> TokenFinders {
    let tokens = tokens.into_iter().filter(|token| token.len() >= MIN_SECRET_BYTES);
    Arc::new(SecretPatterns::new(tokens))
}

impl AccessToken {
    /// Creates the token that was issued now.
    ///
    /// # Errors
    ///
    /// It cannot be used.
    pub(super) fn new(
        issued: &IssuedToken,
        sign_in: SignInNumber,
        number: TokenNumber,
        now: Instant,
    ) -> Result<Self, OAuthError> {
        let times = issued.lifetime.map(|lifetime| {
            // A token that lives shorter is refreshed at most once a second.
            let lifetime = lifetime.max(MIN_LIFETIME);
            (now + lifetime.mul_f64(REFRESHED_AT), now + lifetime)
        });
        let token = issued.token.as_ref().map_err(|unusable| unusable.error.clone())?;
        Ok(Self { authorization: authorization(token)?, times, number, sign_in })
    }

    /// Value of the `Authorization` header; sensitive.
    pub fn authorization(&self) -> HeaderValue {
        self.authorization.clone()
    }

    /// Sign-in to which the token belongs.
    pub fn sign_in(&self) -> SignInNumber {
        self.sign_in
    }

    pub(super) fn header(&self) -> &HeaderValue {
        &self.authorization
    }

    pub(super) fn number(&self) -> TokenNumber {
        self.number
    }

    /// Returns whether it is time to refresh it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.times.is_some_and(|(refresh, _)| refresh <= now)
    }

    /// Returns whether it is not used any more.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.times.is_some_and(|(_, expires)| expires <= now)
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessToken").field(&self.number.0).finish()
    }
}

/// Makes the `Authorization` header of an access token.
pub(super) fn authorization(token: &Secret) -> Result<HeaderValue, OAuthError> {
    let text = Zeroizing::new(format!("{BEARER}{}", token.expose()));
    sensitive(&text)
}

/// Returns the token of an `Authorization` header that [`authorization`] has made.
pub(super) fn token_of(header: &HeaderValue) -> Option<&str> {
    header.to_str().ok()?.strip_prefix(BEARER)
}

const BEARER: &str = "Bearer ";

/// Part of its lifetime after which a token is refreshed.
const REFRESHED_AT: f64 = 0.8;
/// Shortest token that is a secret: a shorter one could be guessed, and is part of other texts.
const MIN_SECRET_BYTES: usize = 16;
const MIN_LIFETIME: Duration = Duration::from_secs(1);
