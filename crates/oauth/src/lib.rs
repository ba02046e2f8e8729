//! OAuth client toward upstreams: access tokens of Weir's own, for servers that demand them.
//!
//! `discovery` finds the authorization server of a protected resource, `token_request` asks it for
//! a token, and an [`Account`] keeps the token of one upstream fresh. A user signs in with
//! [`SignIn`], and the [`Vault`] keeps that sign-in. The module knows no MCP.
//!
//! Invariants: a token is sent to the resource for which it was issued, and to no other. Issuers
//! are compared as the texts that came, apart from a slash behind the host. A resource is sent as
//! the text that came, which the parser of URLs does not read as another one. Codes, refresh
//! tokens, assertions and secrets of clients leave this machine over TLS only. A connection for a
//! URL that a server has named leads to an allowed address. Errors and `Debug` contain no secret.
//!
//! Decision: docs/decisions/0039-sign-in-to-upstreams.md

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

mod access_token;
mod account;
mod challenge;
mod discovery;
mod exchange;
mod metadata;
mod registration;
mod revocation;
mod settings;
mod sign_in;
mod signing_key;
mod step_up;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token_request;
mod url_rules;
mod vault;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

pub use access_token::AccessToken;
pub use access_token::{TokenFinders, token_finders};
pub use account::{Account, TokenOutcome};
pub use challenge::BearerChallenge;
pub use exchange::{Exchange, ExchangeHttp, RESPONSE_TIMEOUT, finish_exchanges, timeout_awake};
pub use settings::{ClientCredential, Grant, RegisteredClient, ResourceIndicator, Settings};
pub use sign_in::SignIn;
pub use signing_key::SigningKey;
pub use vault::{SignInNumber, SignInRecord, StateFolderProblem, Vault};
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::tasks::sync::Mutex;

/// Reason why there is no access token. The text is for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OAuthError {
    /// A server cannot be reached, or its response cannot be used.
    #[error("{0}")]
    Unavailable(String),
    /// The authorization server refuses, or the upstream names one that must not be used. The
    /// operator has to act.
    #[error("{0}")]
    Refused(String),
    /// A user has to sign in.
    #[error("{0}")]
    SignInNeeded(String),
}

impl OAuthError {
    /// Returns the error without these secrets, which a server may have repeated.
    fn without<'a>(self, secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        self.redact(&SecretPatterns::new(secrets.into_iter().map(Secret::expose)))
    }

    fn redact(self, secrets: &SecretPatterns) -> Self {
        match self {
            Self::Unavailable(text) => Self::Unavailable(secrets.redact(&text)),
            Self::Refused(text) => Self::Refused(secrets.redact(&text)),
            Self::SignInNeeded(text) => Self::SignInNeeded(secrets.redact(&text)),
        }
    }
}

/// Body of a response, as far as it has come. A request that has it as an extension leaves it
/// behind if the rest does not come: it may contain tokens.
#[derive(Clone, Default)]
pub struct ReceivedBody(Arc<Mutex<BytesMut>>);

impl ReceivedBody {
    /// Appends bytes, up to a size of `limit`. Returns false if there are more.
    #[must_use]
    pub fn append(&self, bytes: &[u8], limit: usize) -> bool {
        let mut body = self.0.lock();
        let space = limit.saturating_sub(body.len());
        body.extend_from_slice(&bytes[..space.min(bytes.len())]);
        bytes.len() <= space
    }

    /// Takes the bytes that have come.
    pub fn take(&self) -> Bytes {
        std::mem::take(&mut *self.0.lock()).freeze()
    }
}
