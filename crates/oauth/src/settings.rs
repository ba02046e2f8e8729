//! Settings of the account at one upstream.

use std::path::PathBuf;

use hyper::Uri;
use url::Url;

use super::signing_key::SigningKey;
use weir_base::net::allowed_addresses::{AllowedAddresses, is_loopback_host};
use weir_base::secrets::secret::Secret;

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

    /// Returns whether no other machine can read what is sent to this URL: codes, tokens and
    /// secrets of clients. Without TLS it leads to this machine, and only if the upstream is there
    /// as well, or if that is configured.
    pub fn protects(&self, url: &Url) -> bool {
        match url.scheme() {
            "https" => true,
            "http" => {
                is_loopback_host(url.host_str().unwrap_or_default())
                    && (self.allowed.loopback || url.origin() == self.upstream.origin())
            }
            _ => false,
        }
    }

    /// Returns whether the operator has written this host, as that of the upstream or of an
    /// authorization server.
    pub(super) fn names_host(&self, host: &str) -> bool {
        let token_url = self.token_url.as_ref().map(ToString::to_string);
        let written = [&self.issuer, &self.metadata_url, &token_url].into_iter().flatten();
        let written = written.filter_map(|url| Url::parse(url).ok());
        written.chain([self.upstream.clone()]).any(|url| url.host_str() == Some(host))
    }
}

impl Grant {
    /// Returns the client of the configuration.
    pub(super) fn client(&self) -> Option<&RegisteredClient> {
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
    pub(super) fn secret(&self) -> Option<&Secret> {
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
