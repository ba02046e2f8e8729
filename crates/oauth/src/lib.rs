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
mod sign_in;
mod signing_key;
mod step_up;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token_request;
mod url_rules;
mod vault;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::Uri;
use url::Url;

pub use access_token::AccessToken;
pub use access_token::{TokenFinders, token_finders};
pub use account::{Account, TokenOutcome};
pub use challenge::BearerChallenge;
pub use exchange::{Exchange, ExchangeHttp, RESPONSE_TIMEOUT, finish_exchanges, timeout_awake};
pub use sign_in::SignIn;
pub use signing_key::SigningKey;
pub use vault::{SignInNumber, SignInRecord, StateFolderProblem, Vault};
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::tasks::sync::Mutex;

/// Settings of the account at one upstream. `Debug` tells two accounts apart, without secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// URL of the upstream, without a query.
    pub upstream: Url,
    /// Hash of the whole URL, whose query may contain a secret: a sign-in is good for one URL.
    pub url_hash: String,
    /// Grant by which tokens are obtained.
    pub grant: Grant,
    /// Issuer of the tokens; `None` accepts the one that the upstream names first.
    pub issuer: Option<String>,
    /// URL of the metadata of that issuer, if they are not where its name leads.
    pub metadata_url: Option<String>,
    /// Issuer that these metadata name, if it is another text.
    pub metadata_issuer: Option<String>,
    /// Token endpoint, in place of discovery.
    pub token_url: Option<Uri>,
    /// Scopes that are requested; `None` requests those that the upstream names.
    pub scopes: Option<Vec<String>>,
    /// Resource for which tokens are requested (RFC 8707).
    pub resource: ResourceIndicator,
    /// Whether a server supports PKCE with S256 whose metadata do not say so.
    pub assumes_pkce: bool,
    /// Further parameters of authorization and token requests.
    pub params: Vec<(String, String)>,
    /// URL of the document that describes Weir as a client.
    pub client_metadata_url: Option<String>,
    /// State folder, whose vault has the sign-ins of users.
    pub state: Option<PathBuf>,
    /// Addresses to which the URLs of servers may lead. With `loopback`, these URLs may be
    /// unprotected.
    pub allowed: AllowedAddresses,
}

/// Grant by which an access token is obtained.
#[derive(Debug, Clone, PartialEq)]
pub enum Grant {
    /// Sign-in by a user (OAuth 2.1, 4.1).
    AuthorizationCode {
        /// Client as which Weir is registered; `None` if it registers itself.
        client: Option<RegisteredClient>,
    },
    /// Client credentials (RFC 6749, 4.4).
    ClientCredentials(RegisteredClient),
    /// Assertion of the platform on which Weir runs (RFC 7523, 2.1).
    JwtBearer {
        /// File with the assertion, read for each request.
        assertion: PathBuf,
    },
}

impl Settings {
    /// Returns the secret that Weir and the authorization server share, if they have one.
    pub fn client_secret(&self) -> Option<&Secret> {
        match &self.grant.client()?.credential {
            ClientCredential::Secret(secret) => Some(secret),
            ClientCredential::None | ClientCredential::Key(_) => None,
        }
    }
}

impl Grant {
    /// Returns the client of the configuration.
    fn client(&self) -> Option<&RegisteredClient> {
        match self {
            Self::AuthorizationCode { client } => client.as_ref(),
            Self::ClientCredentials(client) => Some(client),
            Self::JwtBearer { .. } => None,
        }
    }

    /// Returns whether a user signs in for it.
    pub fn is_of_user(&self) -> bool {
        matches!(self, Self::AuthorizationCode { .. })
    }
}

/// Client that an authorization server knows.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisteredClient {
    /// Identifier of the client.
    pub id: String,
    /// Proof of the client's identity.
    pub credential: ClientCredential,
}

impl RegisteredClient {
    /// Returns the secret that the client shares with its authorization server.
    fn secret(&self) -> Option<&Secret> {
        match &self.credential {
            ClientCredential::Secret(secret) => Some(secret),
            ClientCredential::Key(_) | ClientCredential::None => None,
        }
    }
}

/// Proof of a client's identity.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientCredential {
    /// None: a public client.
    None,
    /// Shared secret.
    Secret(Secret),
    /// Private key (RFC 7523, 2.2).
    Key(SigningKey),
}

/// Resource for which tokens are requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ResourceIndicator {
    /// The upstream, by the name that it gives itself.
    #[default]
    Auto,
    /// None: some authorization servers refuse the parameter.
    None,
    /// This identifier.
    Named(String),
}

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
