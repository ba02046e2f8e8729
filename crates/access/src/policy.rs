//! Access policy: credentials to principal and role, and rate limits.
//!
//! A client presents [`Credentials`]; [`Policy::authenticate`] returns a [`Principal`] or an
//! [`AuthError`]. A principal has one role, and a role is a set of patterns per kind. Deny rules
//! win, and an item that no rule allows is denied.
//!
//! Invariant: keys are compared by their SHA-256 and in constant time; no key and no token is
//! stored or printed.

pub(crate) mod certificates;
pub mod keys;
pub mod limits;
pub(crate) mod refusals;
pub mod role;
pub mod tokens;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use certificates::Certificates;
pub use certificates::{Certificate, Validity};
use keys::Keys;
use limits::{Limit, Limits};
pub use refusals::{Refusal, Refusals};
use role::{Role, Roles};
pub use tokens::{SeenUser, UserSearch};
use tokens::{TokenError, Tokens};
use weir_base::net::http_send::HttpSend;
use weir_fleet::SharedLimits;

/// Credentials of a request.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// No credentials.
    None,
    /// A bearer token: one of Weir's API keys, or an access token of an identity provider.
    Bearer(&'a str),
}

/// Proof of a successful authentication, for evaluating it again under a new configuration. It
/// cannot be used to authenticate.
#[derive(Debug, Clone)]
pub enum VerifiedCredential {
    /// No credentials.
    Nothing,
    /// An API key, as its hash.
    Key([u8; 32]),
    /// A certificate.
    Certificate(Arc<Certificate>),
    /// An access token.
    Token {
        /// Number of the issuing provider; numbers are never reused.
        provider: u64,
        /// Expiry of the token.
        until: SystemTime,
        /// Time at which the token was issued, if it says it.
        issued_at: Option<SystemTime>,
    },
}

/// Credentials and connection of a request to authenticate.
#[derive(Clone, Copy)]
pub struct AuthAttempt<'a> {
    /// Credentials presented with the request.
    pub credentials: Credentials<'a>,
    /// Client certificate of the connection. It identifies a client that sends no bearer token, and
    /// it must be valid whatever the client sends.
    pub certificate: Option<&'a Arc<Certificate>>,
    /// Peer address of the connection, if it comes over a network, regardless of headers.
    pub from: Option<IpAddr>,
}

/// Authenticated client. Two requests with equal principals come from the same client.
///
/// The role is no part of the identity: it may change with the configuration, and the client
/// continues its sessions and streams.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The client's name in the configuration; `<provider>/<user>` for a client with a token;
    /// `anonymous` for a client without credentials.
    pub name: Arc<str>,
    /// Name of its role; the sorted names joined with `+` if it has several.
    pub role: Arc<str>,
    /// Application that a token was issued to, if the token names it.
    pub application: Option<Arc<str>>,
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.application) == (&other.name, &other.application)
    }
}

impl Eq for Principal {}

impl Hash for Principal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.application).hash(state);
    }
}

/// Reason why authentication failed. A client only learns that it was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No credentials, although some are required.
    #[error("no credentials")]
    Missing,
    /// The key belongs to no client.
    #[error("unknown key")]
    Unknown,
    /// The client's key has expired.
    #[error("expired key")]
    Expired,
    /// The connection's client certificate has expired, or no CA that is currently trusted has
    /// signed it.
    #[error("the client certificate has expired or its CA is no longer trusted")]
    Certificate,
    /// Unknown credentials, after too many such attempts from this address.
    #[error("too many unknown keys from this address")]
    TooMany {
        /// Time until another attempt is evaluated.
        retry_after: Duration,
    },
    /// The access token is invalid.
    #[error("{0}")]
    Token(TokenError),
    /// The access token is valid, but lacks all of these scopes, separated by single spaces.
    #[error("the token lacks a scope of: {0}")]
    Scope(Arc<str>),
    /// The access token cannot be verified: no current keys of its provider are known.
    #[error("no current keys of the token's identity provider are available")]
    Unverifiable,
    /// The access token has a new combination of roles, and the number of combinations is at its
    /// limit.
    #[error("more than {} combinations of roles are in use", role::MAX_COMBINATIONS)]
    TooManyRoles,
}

impl AuthError {
    /// Returns the reason as one word, for the audit log: for a token the part that is wrong.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "no_credentials",
            Self::Unknown => "unknown_key",
            Self::Expired => "expired_key",
            Self::Certificate => "certificate",
            Self::TooMany { .. } => "too_many_attempts",
            Self::Token(TokenError::Refused(refusal)) => refusal.into(),
            Self::Token(error) => error.into(),
            Self::Scope(_) => "scope",
            Self::Unverifiable => "no_provider_keys",
            Self::TooManyRoles => "too_many_roles",
        }
    }
}

/// Settings of the policy.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Role of clients without credentials; `None` refuses them.
    pub anonymous_role: Option<String>,
    /// Role of the local user who runs the program.
    pub local_role: String,
    /// Roles by name.
    pub roles: HashMap<String, Role>,
    /// Clients with a key or a certificate.
    pub clients: Vec<ClientCredentials>,
    /// Rate and concurrency limits.
    pub limits: Vec<Limit>,
    /// Identity providers with accepted tokens.
    pub providers: Vec<tokens::Settings>,
    /// Refused users of the providers.
    pub refusals: Refusals,
}

/// Client with the hashes of its keys and the names of its certificates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientCredentials {
    /// The client's name.
    pub name: String,
    /// The client's role.
    pub role: String,
    /// SHA-256 of each valid key: one, or two while the key is being changed.
    pub key_sha256: Vec<[u8; 32]>,
    /// Names as in [`Certificate::names`]; no two clients share a name.
    pub certificates: Vec<String>,
    /// Time from which the client is refused, however long its certificate is valid.
    pub expires: Option<SystemTime>,
}

/// Authentication, roles and limits of one configuration. The default refuses everyone.
#[derive(Debug, Default)]
pub struct Policy {
    anonymous: Option<Principal>,
    local_role: Arc<str>,
    roles: Arc<Roles>,
    /// Clients with a key or a certificate, by name.
    clients: HashMap<String, Principal>,
    keys: Keys,
    certificates: Certificates,
    limits: Limits,
    tokens: Tokens,
    /// Times at which clients are refused from then on.
    expiries: Vec<SystemTime>,
}

/// Name of clients without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// Number of clients that all clients without credentials count as together: on one machine they
/// are several windows.
pub const ANONYMOUS_CLIENTS: usize = 16;

impl Principal {
    /// Creates a principal of this name in this role.
    pub fn new(name: impl Into<Arc<str>>, role: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), role: role.into(), application: None }
    }

    /// Returns the client: the application that a token was issued to, if the token names it, else
    /// the name.
    pub(crate) fn client(&self) -> &Arc<str> {
        self.application.as_ref().unwrap_or(&self.name)
    }

    /// Returns a text that differs for each two principals, for what is sealed for one of them.
    pub fn sealing_name(&self) -> String {
        let application = self.application.as_deref().unwrap_or_default();
        format!("{}:{}{application}", self.name.len(), self.name)
    }

    /// Returns the user of the client.
    pub(crate) fn user(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns whether this may be many clients at once: all those without credentials.
    pub fn is_anonymous(&self) -> bool {
        *self.name == *ANONYMOUS
    }

    /// Returns the principal's share of a quantity that is limited to `per_client`: the anonymous
    /// principal counts as [`ANONYMOUS_CLIENTS`] clients.
    pub fn share(&self, per_client: usize) -> usize {
        if self.is_anonymous() { per_client * ANONYMOUS_CLIENTS } else { per_client }
    }
}

impl ClientCredentials {
    fn principal(&self) -> Principal {
        Principal::new(&*self.name, &*self.role)
    }
}

impl Policy {
    /// Creates a policy. An undefined role of a client allows nothing.
    pub fn new(settings: Settings) -> Self {
        Self::default().with_settings(settings)
    }

    /// Creates the policy of a replica, whose limits all replicas of the fleet count together.
    pub fn in_fleet(limits: Option<Arc<SharedLimits>>) -> Self {
        Self { limits: Limits::default().in_fleet(limits), ..Self::default() }
    }

    /// Creates the successor of this policy: unchanged limits keep their counts, failed attempts
    /// stay counted, and unchanged providers keep their keys.
    pub fn with_settings(&self, settings: Settings) -> Self {
        let roles = Roles::new(settings.roles);
        roles.combine_like(&self.roles);
        let roles = Arc::new(roles);
        Self {
            anonymous: settings.anonymous_role.map(|role| Principal::new(ANONYMOUS, role)),
            local_role: settings.local_role.into(),
            keys: Keys::new(&settings.clients),
            certificates: Certificates::new(&settings.clients),
            expiries: settings.clients.iter().filter_map(|client| client.expires).collect(),
            clients: settings
                .clients
                .into_iter()
                .map(|it| (it.name.clone(), it.principal()))
                .collect(),
            limits: self.limits.with_limits(settings.limits),
            tokens: self.tokens.with_providers(
                settings.providers,
                settings.refusals,
                Arc::clone(&roles),
            ),
            roles,
        }
    }

    /// Starts a task per identity provider that keeps its keys current until `stop`. Without these
    /// tasks no access token is accepted. Does nothing for providers that have a task already.
    pub fn spawn_jwks_refreshers(
        &self,
        http: &Arc<dyn HttpSend>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        self.tokens.spawn_refreshers(http, tasks, stop);
    }

    /// Ends the tasks of the identity providers that `next` does not have.
    pub fn stop_removed_providers(&self, next: &Self) {
        self.tokens.stop_removed(&next.tokens);
    }

    /// Authenticates credentials, and returns the principal and the proof for
    /// [`Policy::reauthenticate`].
    ///
    /// Wrong credentials are refused even where none are required: a client with a mistyped key
    /// should get an error, and not the view of an anonymous client.
    pub async fn authenticate(
        &self,
        arrival: AuthAttempt<'_>,
        now: SystemTime,
    ) -> Result<(Principal, VerifiedCredential), AuthError> {
        if !Certificate::is_valid(arrival.certificate, now) {
            return Err(AuthError::Certificate);
        }
        // A presented key takes precedence over the certificate of the connection.
        let entered = match (arrival.credentials, arrival.certificate) {
            (Credentials::None, Some(certificate)) => {
                let found = self.certificates.find(certificate, now);
                found.map(|principal| {
                    (principal, VerifiedCredential::Certificate(Arc::clone(certificate)))
                })
            }
            (Credentials::None, None) => {
                let anonymous = self.anonymous.clone().ok_or(AuthError::Missing);
                anonymous.map(|principal| (principal, VerifiedCredential::Nothing))
            }
            (Credentials::Bearer(token), _)
                if !self.tokens.is_empty() && tokens::is_token(token) =>
            {
                // Boxed, because requests with a key or without credentials should not pay for the
                // size of this future.
                Box::pin(self.tokens.find(token, now)).await
            }
            (Credentials::Bearer(key), _) => self.keys.find(key, now),
        };
        match entered {
            // Behind a proxy all clients share one address; valid credentials are accepted
            // nevertheless.
            Err(refusal @ (AuthError::Unknown | AuthError::Token(TokenError::Signature))) => {
                Err(match self.limits.count_failed_login(arrival.from) {
                    Some(retry_after) => AuthError::TooMany { retry_after },
                    None => refusal,
                })
            }
            // An expired key is not a guess, so it is not counted. But the response must not reveal
            // to an attacker which guesses hit an expired key.
            Err(AuthError::Expired) => Err(match self.limits.failed_logins(arrival.from) {
                Some(retry_after) => AuthError::TooMany { retry_after },
                None => AuthError::Expired,
            }),
            entered => entered,
        }
    }

    /// Evaluates an earlier authentication under this policy; `before` is its principal then.
    pub fn reauthenticate(
        &self,
        pass: &VerifiedCredential,
        before: &Principal,
        now: SystemTime,
    ) -> Result<Principal, AuthError> {
        match pass {
            VerifiedCredential::Nothing => self.anonymous.clone().ok_or(AuthError::Missing),
            VerifiedCredential::Key(sha256) => self.keys.principal_of_hash(sha256, now),
            VerifiedCredential::Certificate(certificate) => {
                self.certificates.find(certificate, now)
            }
            VerifiedCredential::Token { until, .. } if *until <= now => {
                Err(TokenError::Expired.into())
            }
            // The provider's statement still holds; the rules of the roles are looked up by name.
            VerifiedCredential::Token { provider, issued_at, .. } => {
                self.tokens.check_refusals(*provider, before, *issued_at)?;
                Ok(before.clone())
            }
        }
    }

    /// Returns the user that refused credentials name, if they are a token. Nothing of it was
    /// verified.
    pub fn claimed_user(&self, credentials: Credentials<'_>) -> Option<String> {
        match credentials {
            Credentials::Bearer(token) if !self.tokens.is_empty() && tokens::is_token(token) => {
                self.tokens.claimed_user(token)
            }
            Credentials::Bearer(_) | Credentials::None => None,
        }
    }

    /// Finds a user of an identity provider by name, `<provider>/<user>`.
    pub fn find_user(&self, name: &str) -> UserSearch {
        self.tokens.find_user(name)
    }

    /// Returns the number of users with a valid token and without a role, by identity provider.
    pub fn users_without_role(&self) -> BTreeMap<String, usize> {
        self.tokens.users_without_role()
    }

    /// Returns a principal with these roles, for the command line.
    pub fn principal_with(&self, name: &str, roles: &BTreeSet<Arc<str>>) -> Principal {
        Principal::new(name, self.roles.combine(roles).unwrap_or_else(|| role::NO_ROLE.into()))
    }

    /// Returns the next time at which the key or the certificate of a client stops to be accepted.
    pub fn next_key_expiry(&self, now: SystemTime) -> Option<SystemTime> {
        self.expiries.iter().copied().filter(|expires| *expires > now).min()
    }

    /// Returns the principal of this name, for the command line's `--as`.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let anonymous = self.anonymous.iter().find(|anonymous| *anonymous.name == *name);
        anonymous.or_else(|| self.clients.get(name)).cloned()
    }

    /// Returns the rate and concurrency limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns whether clients without credentials are accepted.
    pub fn allows_anonymous(&self) -> bool {
        self.anonymous.is_some()
    }

    /// Returns the role of the local user who runs the program.
    pub fn local_role(&self) -> &Arc<str> {
        &self.local_role
    }

    /// Returns the rules of a principal's role.
    pub fn role(&self, principal: &Principal) -> Arc<Role> {
        self.roles.get(&principal.role).0
    }

    /// Returns the names of the roles of the configuration.
    pub fn role_names(&self) -> impl Iterator<Item = &str> {
        self.roles.names()
    }

    /// Returns whether the configuration has this role.
    pub fn has_role(&self, name: &str) -> bool {
        self.roles.has(name)
    }

    /// Returns the rules of a principal's role and the name of its view: roles with the same rules
    /// share a view.
    pub fn role_and_view(&self, principal: &Principal) -> (Arc<Role>, Arc<str>) {
        self.roles.get(&principal.role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mcp::pattern::AllowDeny;

    fn shows(credentials: Credentials<'_>) -> AuthAttempt<'_> {
        AuthAttempt { credentials, certificate: None, from: None }
    }

    #[tokio::test]
    async fn who_shows_nothing_is_anonymous_or_refused() {
        let roles = HashMap::from([("local".to_owned(), Role::everything())]);
        let anonymous_role = Some("local".to_owned());
        let open = Policy::new(Settings { anonymous_role, roles, ..Settings::default() });
        let (principal, _) =
            open.authenticate(shows(Credentials::None), SystemTime::now()).await.expect("open");
        assert_eq!((&*principal.name, &*principal.role), ("anonymous", "local"));
        assert_eq!(open.role(&principal).prompts, AllowDeny::everything());
        let wrong =
            open.authenticate(shows(Credentials::Bearer("nonsense")), SystemTime::now()).await;
        assert_eq!(wrong.err(), Some(AuthError::Unknown));

        let closed = Policy::new(Settings::default());
        let refused = closed.authenticate(shows(Credentials::None), SystemTime::now()).await;
        assert_eq!(refused.err(), Some(AuthError::Missing));
    }

    #[test]
    fn a_client_with_a_key_or_a_certificate_is_found_by_its_name() {
        let client = |name: &str| ClientCredentials {
            name: name.to_owned(),
            role: "dev".to_owned(),
            ..ClientCredentials::default()
        };
        let key = ClientCredentials { key_sha256: vec![[1; 32]], ..client("bob") };
        let certificate = ClientCredentials { certificates: vec!["dns:b".into()], ..client("ann") };
        let policy =
            Policy::new(Settings { clients: vec![key, certificate], ..Settings::default() });
        let role = |name: &str| policy.principal(name).map(|found| found.role);
        assert_eq!(["bob", "ann"].map(role), [Some("dev".into()), Some("dev".into())]);
        assert_eq!(role("eve"), None);
    }

    #[test]
    fn the_next_expiry_is_that_of_a_client_that_is_still_accepted() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let next = |ends: &[Option<u64>]| {
            let clients = ends.iter().map(|end| ClientCredentials {
                expires: end.map(at),
                ..ClientCredentials::default()
            });
            let settings = Settings { clients: clients.collect(), ..Settings::default() };
            Policy::new(settings).next_key_expiry(now)
        };
        assert_eq!(next(&[]), None);
        assert_eq!(next(&[None, Some(99), Some(100)]), None);
        assert_eq!(next(&[Some(300), None, Some(99), Some(101)]), Some(at(101)));
    }

    #[test]
    fn a_role_that_nobody_defines_allows_nothing() {
        let policy = Policy::new(Settings::default());
        let principal = Principal::new("x", "ghost");
        assert_eq!(*policy.role(&principal), Role::default());
    }
}
