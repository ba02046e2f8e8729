//! Who you are, and what you may use.
//!
//! A client shows [`Credentials`]; [`Policy::enter`] answers with a [`Principal`] or a [`Refusal`]. A
//! principal has one role, and a role is a set of patterns per kind. Denying wins, and what nothing
//! allows is denied.
//!
//! Promise: keys are compared by their SHA-256 and in constant time; no key is stored or printed.
//! Knows nothing of: the catalog, transports, and how often something may be done (there is room for
//! limits beside the roles).

pub mod certificates;
pub mod keys;
pub mod role;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

pub use certificates::Certificate;
use certificates::{Certificates, Holder};
use keys::{Key, Keys};
use role::Role;

/// What a client shows at the door.
#[derive(Clone, Copy)]
pub enum Credentials<'a> {
    /// Nothing.
    None,
    /// A bearer token; Weir's API keys are such.
    Bearer(&'a str),
    /// A certificate, proven in the TLS handshake.
    Certificate(&'a Certificate),
}

/// What is known of somebody at the door.
#[derive(Clone, Copy)]
pub struct Arrival<'a> {
    /// What is shown.
    pub credentials: Credentials<'a>,
    /// Where the connection comes from, if it comes over a network: the peer's own address, whatever
    /// headers say.
    pub from: Option<IpAddr>,
}

/// Who is asking. Two requests with equal principals come from the same client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// The client's name in the configuration; `anonymous` for who shows nothing.
    pub name: Arc<str>,
    /// The name of its role.
    pub role: Arc<str>,
}

/// Why somebody is not let in. A client learns no more than that it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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
}

/// What the policy is made of.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The role of who shows no credentials; `None` lets nobody in without.
    pub anonymous_role: Option<String>,
    /// The roles by name.
    pub roles: HashMap<String, Role>,
    /// The clients' keys.
    pub keys: Vec<Key>,
    /// The clients' certificates.
    pub certificates: Vec<Holder>,
}

/// The door and the rules.
#[derive(Debug)]
pub struct Policy {
    anonymous: Option<Principal>,
    roles: HashMap<Arc<str>, Arc<Role>>,
    keys: Keys,
    certificates: Certificates,
}

/// The name of whoever shows no credentials.
const ANONYMOUS: &str = "anonymous";

/// How many clients those without credentials count as together: on one machine they are many windows.
pub const ANONYMOUS_CLIENTS: usize = 16;

impl Principal {
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
        let principal = |role: String| Principal { name: ANONYMOUS.into(), role: role.into() };
        let roles = settings.roles.into_iter();
        Self {
            anonymous: settings.anonymous_role.map(principal),
            roles: roles.map(|(name, role)| (name.into(), Arc::new(role))).collect(),
            keys: Keys::new(settings.keys),
            certificates: Certificates::new(settings.certificates),
        }
    }

    /// Tells who shows these credentials.
    ///
    /// Wrong credentials are refused even where none are needed: a client with a mistyped key should
    /// hear of it and not wonder at what it can see.
    pub async fn enter(&self, arrival: Arrival<'_>, now: SystemTime) -> Result<Principal, Refusal> {
        match arrival.credentials {
            Credentials::None => self.anonymous.clone().ok_or(Refusal::Missing),
            Credentials::Bearer(key) => self.keys.find(key, now),
            Credentials::Certificate(certificate) => self.certificates.find(certificate, now),
        }
    }

    /// The principal of this name, as the command line's `--as` needs it.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let anonymous = self.anonymous.iter().find(|anonymous| *anonymous.name == *name);
        let anonymous = anonymous.cloned();
        let by_key = || self.keys.principal(name);
        anonymous.or_else(by_key).or_else(|| self.certificates.principal(name))
    }

    /// Whether nobody needs credentials.
    pub fn is_open(&self) -> bool {
        self.anonymous.is_some()
    }

    /// What a principal may use.
    pub fn role(&self, principal: &Principal) -> Arc<Role> {
        self.roles.get(&principal.role).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::pattern::Rules;

    fn shows(credentials: Credentials<'_>) -> Arrival<'_> {
        Arrival { credentials, from: None }
    }

    #[tokio::test]
    async fn who_shows_nothing_is_anonymous_or_refused() {
        let roles = HashMap::from([("local".to_owned(), Role::everything())]);
        let anonymous_role = Some("local".to_owned());
        let open = Policy::new(Settings { anonymous_role, roles, ..Settings::default() });
        let principal =
            open.enter(shows(Credentials::None), SystemTime::now()).await.expect("open");
        assert_eq!((&*principal.name, &*principal.role), ("anonymous", "local"));
        assert_eq!(open.role(&principal).prompts, Rules::everything());
        let wrong = open.enter(shows(Credentials::Bearer("nonsense")), SystemTime::now()).await;
        assert_eq!(wrong, Err(Refusal::Unknown));

        let closed = Policy::new(Settings::default());
        let refused = closed.enter(shows(Credentials::None), SystemTime::now()).await;
        assert_eq!(refused, Err(Refusal::Missing));
    }

    #[test]
    fn a_role_that_nobody_defines_allows_nothing() {
        let policy = Policy::new(Settings::default());
        let principal = Principal { name: "x".into(), role: "ghost".into() };
        assert_eq!(*policy.role(&principal), Role::default());
    }
}
