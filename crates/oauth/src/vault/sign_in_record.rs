//! Record of a user's sign-in: where it is good, and its tokens.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::metadata::{ServerMetadata, is_same_issuer, names};
use crate::revocation::Revocation;
use crate::step_up::StepUp;
use crate::token_request::IssuedToken;
use crate::url_rules::OAuthClient;
use crate::{ClientCredential, Grant, OAuthError, RegisteredClient, ResourceIndicator, Settings};
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::secret::Secret;
use weir_base::text::hex::hex;
use weir_base::time::timestamp::unix_time;

/// Number of a sign-in: each `weir login` makes another one, and whatever was opened or listed for
/// one is not used for the next. An account without a user has always the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SignInNumber(u64);

impl SignInNumber {
    /// Returns the number of a new sign-in. Those of records of earlier versions are zero.
    pub(crate) fn random() -> Self {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        Self(u64::from_be_bytes(bytes).max(1))
    }

    /// Returns the number as text, as a part of names and hashes; `None` for the one of accounts
    /// without a user, and of records of earlier versions.
    pub fn text(self) -> Option<String> {
        (self.0 != 0).then(|| hex(&self.0.to_be_bytes()))
    }
}

/// Sign-in at the authorization server of one upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignInRecord {
    /// Number of the sign-in, which refreshes keep.
    #[serde(default)]
    pub(crate) number: SignInNumber,
    /// URL of the upstream, without its query.
    pub(crate) upstream: String,
    /// Hash of the whole URL; records of earlier versions have none until they are refreshed.
    #[serde(default)]
    pub(crate) url_hash: Option<String>,
    pub(crate) issuer: String,
    pub(crate) token_endpoint: String,
    pub(crate) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    pub(crate) revocation_endpoint: Option<String>,
    pub(crate) client_id: String,
    /// Whether this client is in the configuration.
    #[serde(default)]
    pub(crate) is_configured_client: bool,
    /// Secret of a client that registered itself.
    #[serde(serialize_with = "expose_option", deserialize_with = "secret_option")]
    pub(crate) client_secret: Option<Secret>,
    pub(crate) resource: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) step_up: StepUp,
    #[serde(serialize_with = "expose", deserialize_with = "secret")]
    pub(crate) access_token: Secret,
    /// Unix time in seconds at which the access token expires; `None` if it does not.
    pub(crate) expires: Option<u64>,
    /// Seconds for which it was issued.
    pub(crate) lifetime: Option<u64>,
    #[serde(serialize_with = "expose_option", deserialize_with = "secret_option")]
    pub(crate) refresh_token: Option<Secret>,
}

impl SignInRecord {
    /// Number of the sign-in.
    pub fn number(&self) -> SignInNumber {
        self.number
    }

    /// Returns to which authorization server the credentials of its client belong.
    pub(crate) fn bound(&self) -> BoundClient {
        BoundClient { client_id: Some(self.client_id.clone()), issuer: self.issuer.clone() }
    }

    /// Returns what its authorization server knows, and no other server.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let optional = self.refresh_token.iter().chain(&self.client_secret);
        std::iter::once(&self.access_token).chain(optional)
    }

    /// Issuer of the tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Unix time in seconds at which the access token expires, if it is not refreshed.
    pub fn expires(&self) -> Option<u64> {
        self.expires
    }

    /// Whether the access token can be refreshed.
    pub fn is_refreshable(&self) -> bool {
        self.refresh_token.is_some()
    }

    /// Returns whether this sign-in may be used with these settings: it is for the configured
    /// upstream, resource, issuer and client.
    pub fn is_of(&self, settings: &Settings) -> bool {
        let client = match &settings.grant {
            Grant::AuthorizationCode { client } => client.as_ref(),
            Grant::ClientCredentials(_) | Grant::JwtBearer { .. } => return false,
        };
        let issuer = settings.metadata_issuer.as_ref().or(settings.issuer.as_ref());
        let resource = self.resource.as_deref();
        let is_resource = match &settings.resource {
            ResourceIndicator::Auto => resource.is_some_and(|it| names(it, &settings.upstream)),
            ResourceIndicator::None => resource.is_none(),
            ResourceIndicator::Named(named) => resource == Some(named),
        };
        self.upstream == settings.upstream.as_str()
            && self.url_hash.as_ref().is_none_or(|hash| *hash == settings.url_hash)
            && is_resource
            && issuer.is_none_or(|issuer| is_same_issuer(issuer, &self.issuer))
            && match client {
                None => !self.is_configured_client,
                // Only a record of an earlier version does not say whose name that is: a server
                // may give any name to a client that registers itself.
                Some(client) => {
                    client.id == self.client_id
                        && (self.is_configured_client || self.number == SignInNumber::default())
                }
            }
    }

    /// Returns whether two records have the same tokens of the same sign-in.
    pub(crate) fn has_tokens_of(&self, other: &Self) -> bool {
        let tokens = |record: &Self| (record.number, record.access_token.clone());
        tokens(self) == tokens(other) && self.refresh_token == other.refresh_token
    }

    /// Returns whether its tokens can be revoked while another sign-in is used. A server may count
    /// all sign-ins of one client as one grant, and would end that, too (RFC 7009, 2.1).
    pub fn is_revocable_beside(&self, present: &Self) -> bool {
        self.client_id != present.client_id
    }

    /// Returns the time for which the access token is still valid; `None` if it does not expire.
    pub(crate) fn rest(&self) -> Option<Duration> {
        self.expires.map(|expires| Duration::from_secs(expires).saturating_sub(unix_time()))
    }

    /// Returns whether the access token is valid for some time, so that it needs no refresh.
    pub(crate) fn is_fresh(&self) -> bool {
        let lifetime = self.lifetime.map_or(Duration::MAX, Duration::from_secs);
        self.rest().is_none_or(|rest| rest > MIN_REST.min(lifetime / 5))
    }

    /// Returns the client that registered itself for this sign-in.
    pub(crate) fn client(&self) -> RegisteredClient {
        let credential = match &self.client_secret {
            Some(secret) => ClientCredential::Secret(secret.clone()),
            None => ClientCredential::None,
        };
        RegisteredClient { id: self.client_id.clone(), credential }
    }

    /// Returns the authorization server, as far as refreshes need it.
    pub(crate) fn server(&self) -> ServerMetadata {
        ServerMetadata::of_token_endpoint(
            self.issuer.clone(),
            self.token_endpoint.clone(),
            self.token_endpoint_auth_methods_supported.clone(),
        )
    }

    /// Revokes the refresh token, or the access token if there is none, at the authorization
    /// server. Returns false if the server has no endpoint for that.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses.
    pub async fn revoke(
        &self,
        http: &dyn HttpSend,
        settings: &Settings,
    ) -> Result<bool, OAuthError> {
        let Some(endpoint) = &self.revocation_endpoint else { return Ok(false) };
        let client = match &settings.grant {
            // The secret of another client is not for this server.
            Grant::AuthorizationCode { client: Some(configured) } if self.is_of(settings) => {
                configured.clone()
            }
            _ => self.client(),
        };
        let (token, kind) = match &self.refresh_token {
            Some(token) => (token, "refresh_token"),
            None => (&self.access_token, "access_token"),
        };
        let server = &self.server();
        let revocation = Revocation { endpoint, server, client: &client, token, kind };
        revocation.send(&OAuthClient::new(http, settings)).await?;
        Ok(true)
    }

    /// Revokes the tokens of a sign-in that cannot be kept for this reason, and returns the error
    /// for that.
    pub async fn discard(
        &self,
        http: &dyn HttpSend,
        settings: &Settings,
        reason: &OAuthError,
    ) -> OAuthError {
        let outcome = match self.revoke(http, settings).await {
            Ok(true) => "were revoked".to_owned(),
            Ok(false) => {
                "were not revoked: the authorization server does not support that".to_owned()
            }
            Err(error) => format!("were not revoked: {error}"),
        };
        OAuthError::Unavailable(format!("{reason}; the tokens that had come {outcome}"))
    }

    /// Forgets the scopes that the upstream has demanded, which the authorization server or the
    /// user has refused.
    pub(crate) fn forget_demands(&mut self) {
        self.step_up.forget(self.scope.as_deref());
    }

    /// Replaces the tokens by new ones; without a new refresh token the old one stays (RFC 6749,
    /// 6). An access token that cannot be used replaces none.
    pub(crate) fn replace_tokens(&mut self, issued: &IssuedToken, settings: &Settings) {
        if let Ok(token) = &issued.token {
            self.access_token = token.clone();
            self.lifetime = issued.lifetime.map(|lifetime| lifetime.as_secs());
            self.expires = issued.expires();
        }
        if let Some(refresh_token) = &issued.refresh_token {
            self.refresh_token = Some(refresh_token.clone());
        }
        self.url_hash.get_or_insert_with(|| settings.url_hash.clone());
    }
}

/// Client whose credentials belong to one authorization server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoundClient {
    pub(crate) client_id: Option<String>,
    pub(crate) issuer: String,
}

impl BoundClient {
    /// Keeps it, in place of what was known about the same client.
    pub(crate) fn keep_in(self, all: &mut Vec<Self>) {
        all.retain(|it| it.client_id != self.client_id);
        all.push(self);
        if all.len() > MAX_BOUND {
            all.remove(0);
        }
    }
}

fn expose<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    secret.expose().serialize(serializer)
}

fn expose_option<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::expose).serialize(serializer)
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Secret::from)
}

fn secret_option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|text| text.map(Secret::from))
}

/// Most clients of which the authorization servers are kept.
const MAX_BOUND: usize = 16;
/// Time for which an access token must still be valid to be used without a refresh; less for one
/// that lives for less than five times as long.
const MIN_REST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;

    #[test]
    fn a_record_is_of_the_settings_with_which_it_was_made() {
        let of_user = |client: Option<&str>| Settings {
            grant: Grant::AuthorizationCode {
                client: client.map(|id| RegisteredClient {
                    id: id.into(),
                    credential: ClientCredential::None,
                }),
            },
            ..crate::testing::settings()
        };
        let named = ResourceIndicator::Named("urn:x".into());
        let configured = SignInRecord { is_configured_client: true, ..record() };
        assert!(record().is_of(&of_user(None)));
        assert!(configured.is_of(&of_user(Some("weir"))));
        for (record, settings) in [
            (configured, of_user(None)),
            // An authorization server has given this name to a client that registered itself.
            (SignInRecord { number: SignInNumber::random(), ..record() }, of_user(Some("weir"))),
            (record(), of_user(Some("other"))),
            (record(), Settings { resource: ResourceIndicator::None, ..of_user(None) }),
            (record(), Settings { resource: named.clone(), ..of_user(None) }),
            (SignInRecord { resource: None, ..record() }, of_user(None)),
            (SignInRecord { resource: Some("urn:x".into()), ..record() }, of_user(None)),
            (SignInRecord { url_hash: Some("other".into()), ..record() }, of_user(None)),
            (record(), crate::testing::settings()),
        ] {
            assert!(!record.is_of(&settings), "{record:?}");
        }
        let issued_by = |issuer: &str| Settings { issuer: Some(issuer.into()), ..of_user(None) };
        assert!(record().is_of(&issued_by("https://id.test")));
        assert!(record().is_of(&issued_by("https://id.test/")));
        assert!(!record().is_of(&issued_by("https://id.test/t")));
        let of_name = SignInRecord { resource: Some("urn:x".into()), ..record() };
        assert!(of_name.is_of(&Settings { resource: named, ..of_user(None) }));
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let mut json = serde_json::to_value(record()).expect("JSON");
        let members = json.as_object_mut().expect("an object");
        assert!(members.remove("number").is_some() && members.remove("url_hash").is_some());
        assert_eq!(serde_json::from_value::<SignInRecord>(json).expect("valid"), record());
    }
}
