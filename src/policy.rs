//! Who you are, what you may use, and how often.
//!
//! A client shows [`Credentials`]; [`Policy::enter`] answers with a [`Principal`] or a [`Refusal`]. A
//! principal has one role, and a role is a set of patterns per kind. Denying wins, and what nothing
//! allows is denied.
//!
//! Promise: keys are compared by their SHA-256 and in constant time; no key and no token is stored or printed.
//! Knows nothing of: the catalog, and transports.

pub mod certificates;
pub mod keys;
pub mod limits;
pub mod role;
pub mod tokens;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use certificates::{Certificate, Validity};
use certificates::{Certificates, Holder};
use keys::{Key, Keys};
use limits::{Limit, Limits};
use role::{Role, Roles};
use tokens::{Bad, Fetch, Tokens};

/// What a client shows at the door.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// Nothing.
    None,
    /// A bearer token: one of Weir's API keys, or an access token of an identity provider.
    Bearer(&'a str),
}

/// What somebody was let in with, to be judged again under other rules. Nobody could come in with it.
#[derive(Debug, Clone)]
pub enum Pass {
    /// Nothing.
    Nothing,
    /// A key, of which this is the hash.
    Key([u8; 32]),
    /// A certificate.
    Certificate(Arc<Certificate>),
    /// An access token.
    Token {
        /// Which provider issued it, by a number that no other one ever has.
        provider: u64,
        /// When it ends.
        until: SystemTime,
    },
}

/// What is known of somebody at the door.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    /// What is shown.
    pub credentials: Credentials<'a>,
    /// The client certificate of the connection. It identifies a client that sends no bearer token, and it
    /// has to be valid whatever the client sends.
    pub certificate: Option<&'a Arc<Certificate>>,
    /// Where the connection comes from, if it comes over a network: the peer's own address, whatever
    /// headers say.
    pub from: Option<IpAddr>,
}

/// Who is asking. Two requests with equal principals come from the same client.
///
/// What it may use is no part of that: its role may be another one tomorrow, and it goes on with what it has begun.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The client's name in the configuration; `<provider>/<user>` for who shows a token; `anonymous` for
    /// who shows nothing.
    pub name: Arc<str>,
    /// The name of its role; the sorted names joined with `+` where it has several.
    pub role: Arc<str>,
    /// The application that a token was issued to, if it says so.
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

/// Why somebody is not let in. A client learns no more than that it was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No credentials, where some are required.
    #[error("no credentials")]
    Missing,
    /// No client has this key.
    #[error("unknown key")]
    Unknown,
    /// The client's key has expired.
    #[error("expired key")]
    Expired,
    /// The connection's client certificate has expired, or no CA in force has signed it.
    #[error("the client certificate is not valid any more")]
    Certificate,
    /// Unknown credentials, and too many such attempts from this address.
    #[error("too many unknown keys from this address")]
    TooMany {
        /// When an attempt is looked at again.
        retry_after: Duration,
    },
    /// The access token is not good.
    #[error("{0}")]
    Token(Bad),
    /// The access token is good, but was not granted these scopes, one space between two.
    #[error("the token lacks a scope of: {0}")]
    Scope(Arc<str>),
    /// Nobody can say whether the access token is good: its provider has never told its keys, or not for long.
    #[error("the keys of the token's provider are not known")]
    Unverifiable,
    /// The access token gives a combination of roles for which there is no room.
    #[error("more than {} combinations of roles are in use", role::MAX_JOINED)]
    TooManyRoles,
}

/// What the policy is made of.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The role of who shows no credentials; `None` lets nobody in without.
    pub anonymous_role: Option<String>,
    /// The role of who holds the program.
    pub local_role: String,
    /// The roles by name.
    pub roles: HashMap<String, Role>,
    /// The clients' keys.
    pub keys: Vec<Key>,
    /// The clients' certificates.
    pub certificates: Vec<Holder>,
    /// How often something may be done.
    pub limits: Vec<Limit>,
    /// The identity providers whose tokens are accepted.
    pub providers: Vec<tokens::Settings>,
}

/// The door and the rules.
#[derive(Debug)]
pub struct Policy {
    anonymous: Option<Principal>,
    local_role: Arc<str>,
    roles: Arc<Roles>,
    keys: Keys,
    certificates: Certificates,
    limits: Limits,
    tokens: Tokens,
}

/// The name of whoever shows no credentials.
pub const ANONYMOUS: &str = "anonymous";

/// How many clients those without credentials count as together: on one machine they are many windows.
pub const ANONYMOUS_CLIENTS: usize = 16;

impl Principal {
    /// Somebody of this name in this role.
    pub fn new(name: impl Into<Arc<str>>, role: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), role: role.into(), application: None }
    }

    /// The client that somebody uses: the application that a token was issued to, where it says so.
    pub fn client(&self) -> &Arc<str> {
        self.application.as_ref().unwrap_or(&self.name)
    }

    /// Who uses it.
    pub fn user(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether this may be many clients at once: all that show no credentials.
    pub fn is_anonymous(&self) -> bool {
        *self.name == *ANONYMOUS
    }

    /// How much it has of what is limited to `per_client`: who shows no credentials stands for
    /// [`ANONYMOUS_CLIENTS`] clients.
    pub fn share(&self, per_client: usize) -> usize {
        if self.is_anonymous() { per_client * ANONYMOUS_CLIENTS } else { per_client }
    }
}

impl Policy {
    /// Makes a policy. A role that a client names and nobody defines allows nothing.
    pub fn new(settings: Settings) -> Self {
        Self::make(settings, None)
    }

    /// Makes a policy that comes after this one: limits that stay as they are have counted already, unknown
    /// credentials stay counted, and providers that stay have told their keys.
    pub fn then(&self, settings: Settings) -> Self {
        Self::make(settings, Some(self))
    }

    fn make(settings: Settings, before: Option<&Self>) -> Self {
        let principal = |role: String| Principal::new(ANONYMOUS, role);
        let roles = Roles::new(settings.roles);
        if let Some(before) = before {
            roles.join_like(&before.roles);
        }
        let roles = Arc::new(roles);
        let (limits, tokens) = match before {
            None => {
                (Limits::new(settings.limits), Tokens::new(settings.providers, Arc::clone(&roles)))
            }
            Some(before) => (
                before.limits.then(settings.limits),
                before.tokens.then(settings.providers, Arc::clone(&roles)),
            ),
        };
        Self {
            anonymous: settings.anonymous_role.map(principal),
            local_role: settings.local_role.into(),
            keys: Keys::new(settings.keys),
            certificates: Certificates::new(settings.certificates),
            limits,
            tokens,
            roles,
        }
    }

    /// Keeps the keys of the identity providers, each on a task of its own, until `stop`. Without it no
    /// access token is accepted. Does nothing for those that are kept already.
    pub fn keep_keys(&self, fetch: &Arc<dyn Fetch>, tasks: &TaskTracker, stop: &CancellationToken) {
        self.tokens.keep(fetch, tasks, stop);
    }

    /// Ends the tasks of the identity providers that `next` does not have.
    pub fn retire(&self, next: &Self) {
        self.tokens.retire(&next.tokens);
    }

    /// Tells who shows these credentials, and with what it may be let in again.
    ///
    /// Wrong credentials are refused even where none are needed: a client with a mistyped key should
    /// hear of it and not wonder at what it can see.
    pub async fn enter(
        &self,
        arrival: Arrival<'_>,
        now: SystemTime,
    ) -> Result<(Principal, Pass), Refusal> {
        if !Certificate::holds(arrival.certificate, now) {
            return Err(Refusal::Certificate);
        }
        // Who shows a key means that one, whatever the connection is secured with.
        let entered = match (arrival.credentials, arrival.certificate) {
            (Credentials::None, Some(certificate)) => {
                let found = self.certificates.find(certificate, now);
                found.map(|principal| (principal, Pass::Certificate(Arc::clone(certificate))))
            }
            (Credentials::None, None) => {
                let anonymous = self.anonymous.clone().ok_or(Refusal::Missing);
                anonymous.map(|principal| (principal, Pass::Nothing))
            }
            (Credentials::Bearer(token), _)
                if !self.tokens.is_empty() && tokens::is_token(token) =>
            {
                // Boxed: who shows a key, or nothing, needs no room for it.
                Box::pin(self.tokens.find(token, now)).await
            }
            (Credentials::Bearer(key), _) => self.keys.find(key, now),
        };
        match entered {
            // Behind a proxy all clients have one address: whoever shows good credentials is let in even so.
            Err(refusal @ (Refusal::Unknown | Refusal::Token(Bad::Signature))) => {
                Err(match self.limits.count_failed_login(arrival.from) {
                    Some(retry_after) => Refusal::TooMany { retry_after },
                    None => refusal,
                })
            }
            // Not counted, since it was not guessed; but who guesses must not learn by it which ones were good.
            Err(Refusal::Expired) => Err(match self.limits.failed_logins(arrival.from) {
                Some(retry_after) => Refusal::TooMany { retry_after },
                None => Refusal::Expired,
            }),
            entered => entered,
        }
    }

    /// Tells who somebody is under these rules that was let in with `pass`, perhaps under others, as `before`.
    pub fn again(
        &self,
        pass: &Pass,
        before: &Principal,
        now: SystemTime,
    ) -> Result<Principal, Refusal> {
        match pass {
            Pass::Nothing => self.anonymous.clone().ok_or(Refusal::Missing),
            Pass::Key(sha256) => self.keys.whose(sha256, now),
            Pass::Certificate(certificate) => self.certificates.find(certificate, now),
            Pass::Token { until, .. } if *until <= now => Err(Bad::Expired.into()),
            Pass::Token { provider, .. } if !self.tokens.has(*provider) => Err(Bad::Issuer.into()),
            // The provider says the same as before; what its roles may use is looked up by their names.
            Pass::Token { .. } => Ok(before.clone()),
        }
    }

    /// The principal of this name, as the command line's `--as` needs it.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let anonymous = self.anonymous.iter().find(|anonymous| *anonymous.name == *name);
        let anonymous = anonymous.cloned();
        let by_key = || self.keys.principal(name);
        anonymous.or_else(by_key).or_else(|| self.certificates.principal(name))
    }

    /// How often something may be done.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether nobody needs credentials.
    pub fn is_open(&self) -> bool {
        self.anonymous.is_some()
    }

    /// The role of who holds the program.
    pub fn local_role(&self) -> &Arc<str> {
        &self.local_role
    }

    /// What a principal may use.
    pub fn role(&self, principal: &Principal) -> Arc<Role> {
        self.roles.get(&principal.role).0
    }

    /// Whether the configuration has this role.
    pub fn has_role(&self, name: &str) -> bool {
        self.roles.has(name)
    }

    /// The same, and the name of the view that it has: roles with the same rules have the same.
    pub fn role_and_view(&self, principal: &Principal) -> (Arc<Role>, Arc<str>) {
        self.roles.get(&principal.role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::pattern::Rules;

    fn shows(credentials: Credentials<'_>) -> Arrival<'_> {
        Arrival { credentials, certificate: None, from: None }
    }

    #[tokio::test]
    async fn who_shows_nothing_is_anonymous_or_refused() {
        let roles = HashMap::from([("local".to_owned(), Role::everything())]);
        let anonymous_role = Some("local".to_owned());
        let open = Policy::new(Settings { anonymous_role, roles, ..Settings::default() });
        let (principal, _) =
            open.enter(shows(Credentials::None), SystemTime::now()).await.expect("open");
        assert_eq!((&*principal.name, &*principal.role), ("anonymous", "local"));
        assert_eq!(open.role(&principal).prompts, Rules::everything());
        let wrong = open.enter(shows(Credentials::Bearer("nonsense")), SystemTime::now()).await;
        assert_eq!(wrong.err(), Some(Refusal::Unknown));

        let closed = Policy::new(Settings::default());
        let refused = closed.enter(shows(Credentials::None), SystemTime::now()).await;
        assert_eq!(refused.err(), Some(Refusal::Missing));
    }

    #[test]
    fn a_role_that_nobody_defines_allows_nothing() {
        let policy = Policy::new(Settings::default());
        let principal = Principal::new("x", "ghost");
        assert_eq!(*policy.role(&principal), Role::default());
    }
}
