//! Access tokens of identity providers: Weir as an OAuth 2.1 resource server.
//!
//! A token is signed by a provider that the configuration names, for an audience that it names. [`Tokens`]
//! tells who shows one. Weir issues no tokens and hands none on.
//!
//! Promises: issuer and audience are compared exactly; a key checks signatures of one algorithm, which no
//! token chooses; nothing is accepted that cannot be checked. A token that was found good is remembered by
//! its hash until it ends or the provider's keys change.
//! Knows nothing of: HTTP, and what a role may use.

mod claims;
mod compact;
pub mod discovery;
mod key;
mod key_set;
mod preset;
mod provider;
#[cfg(test)]
mod tests;
mod verified;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::Uri;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::role::Roles;
use super::{Pass, Principal, Refusal};
use compact::Compact;
pub(super) use compact::is_token;
pub use key::Algorithm;
pub use preset::Preset;
use provider::Provider;
use verified::{Good, Verified};

/// One identity provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Its name in the configuration.
    pub name: String,
    /// The issuer of its tokens, character by character.
    pub issuer: String,
    /// Whom its tokens have to be for: one of these.
    pub audience: Vec<String>,
    /// Which product it is.
    pub preset: Preset,
    /// The claim that names the user: its own name, or a path of dots.
    pub user_claim: String,
    /// The claim that holds what is mapped to roles, likewise.
    pub role_claim: String,
    /// The roles by a value of that claim.
    pub roles: BTreeMap<String, String>,
    /// The role of whom no value gives one; without it such a user may use nothing.
    pub default_role: Option<String>,
    /// What every token has to be granted.
    pub scopes_required: Vec<String>,
    /// How tokens may be signed.
    pub algorithms: Vec<Algorithm>,
    /// Where its keys are; found out if it is not said.
    pub jwks_uri: Option<Uri>,
}

impl Settings {
    /// Whether a token can give this role.
    pub fn gives(&self, role: &str) -> bool {
        let mut given = self.roles.values().chain(&self.default_role);
        given.any(|given| given == role)
    }
}

/// Where this room touches the world: fetching the documents of providers.
pub trait Fetch: Send + Sync + 'static {
    /// Fetches what is at `url`: the body of an answer with status 200, of at most `limit` bytes. Follows no
    /// redirect. The error is in words for the operator. Dropping the future ends the fetch.
    fn fetch<'a>(&'a self, url: &'a Uri, limit: usize) -> BoxFuture<'a, Result<Bytes, String>>;
}

/// Why a token is refused. Its sender learns no more than that it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// It is larger than 16 KiB.
    #[error("the token is too long")]
    TooLong,
    /// It is encrypted (RFC 7516): five parts.
    #[error("the token is encrypted")]
    Encrypted,
    /// It is not three parts of base64url.
    #[error("the token is malformed")]
    Form,
    /// Its header is no JSON object, or has a member twice.
    #[error("the token's header is malformed")]
    Header,
    /// Its claims are no JSON object, or have a member twice.
    #[error("the token's claims are malformed")]
    Claims,
    /// It wants something to be understood that nobody here understands.
    #[error("the token has a critical extension")]
    Critical,
    /// It is not signed, or in a way that is not known or not safe.
    #[error("the token's algorithm is not accepted")]
    Algorithm,
    /// It is of a kind that is no access token.
    #[error("the token is of another type")]
    Type,
    /// Its key's id is too long, or no text.
    #[error("the token's key id is malformed")]
    KeyId,
    /// No provider that is configured has issued it.
    #[error("the token is of another issuer")]
    Issuer,
    /// Its provider has no key of this id.
    #[error("the token's key is not known")]
    UnknownKey,
    /// It names no key, and more than one could be meant, or none.
    #[error("the token names no key")]
    NoKeyId,
    /// Its key is for another algorithm.
    #[error("the token's key is for another algorithm")]
    KeyMismatch,
    /// Somebody else signed it, or it was changed.
    #[error("the token's signature is wrong")]
    Signature,
    /// It is for somebody else.
    #[error("the token is for another audience")]
    Audience,
    /// It has no end, or one of its times is no time.
    #[error("the token's times are malformed")]
    Time,
    /// It has ended.
    #[error("the token has expired")]
    Expired,
    /// It has not begun.
    #[error("the token is not valid yet")]
    NotYet,
    /// It says of itself that it is not for this use.
    #[error("the token is no access token")]
    Use,
    /// It is good only together with a proof of a key.
    #[error("the token is bound to a key")]
    Bound,
    /// It does not name its user.
    #[error("the token names no user")]
    User,
}

impl From<Bad> for Refusal {
    fn from(bad: Bad) -> Self {
        Self::Token(bad)
    }
}

/// All providers, and the tokens that were found good.
pub(super) struct Tokens {
    providers: Vec<Arc<Provider>>,
    roles: Arc<Roles>,
    verified: Arc<Verified>,
}

impl Tokens {
    pub(super) fn new(providers: Vec<Settings>, roles: Arc<Roles>) -> Self {
        let providers = providers.into_iter().map(Provider::new).collect();
        Self { providers, roles, verified: Arc::new(Verified::new(REMEMBERED)) }
    }

    /// Those of another configuration: a provider that stays as it is keeps its keys, and the tokens that were
    /// found good by them.
    pub(super) fn then(&self, providers: Vec<Settings>, roles: Arc<Roles>) -> Self {
        let provider = |settings: Settings| {
            let same = self.providers.iter().find(|known| known.settings == settings);
            same.map_or_else(|| Provider::new(settings), Arc::clone)
        };
        let providers = providers.into_iter().map(provider).collect();
        Self { providers, roles, verified: Arc::clone(&self.verified) }
    }

    /// Whether this is one of the providers, by its number.
    pub(super) fn has(&self, provider: u64) -> bool {
        self.providers.iter().any(|known| known.number == provider)
    }

    /// Whether no token can be good.
    pub(super) fn is_empty(&self) -> bool {
        self.providers.is_empty()
    }

    /// Starts a task per provider that keeps its keys, until `stop`, if it has none yet.
    pub(super) fn keep(
        &self,
        fetch: &Arc<dyn Fetch>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        for provider in &self.providers {
            let stop = stop.child_token();
            if provider.keeping.set(stop.clone()).is_ok() {
                tasks.spawn(Arc::clone(provider).run(Arc::clone(fetch), stop));
            }
        }
    }

    /// Ends the tasks of the providers that `next` does not have.
    pub(super) fn retire(&self, next: &Self) {
        let gone = self.providers.iter().filter(|provider| !next.has(provider.number));
        gone.filter_map(|provider| provider.keeping.get()).for_each(CancellationToken::cancel);
    }

    /// Tells who shows this token. May wait for a provider's keys, for a bounded time.
    pub(super) async fn find(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(Principal, Pass), Refusal> {
        let digest = Verified::digest(token);
        let holds = |good: &Good| {
            let issuer = self.providers.iter().find(|known| known.number == good.provider);
            now < good.until && issuer.is_some_and(|issuer| issuer.is_current(good.generation))
        };
        let good = match self.verified.find(&digest, holds) {
            Some(good) => good,
            None => {
                let good = self.verify(token, now).await?;
                self.verified.remember(digest, good.clone());
                good
            }
        };
        let pass = Pass::Token { provider: good.provider, until: good.until };
        Ok((good.principal, pass))
    }

    async fn verify(&self, token: &str, now: SystemTime) -> Result<Good, Refusal> {
        let token = Compact::parse(token)?;
        // Whom it says it is from only chooses the keys: nothing is believed before the signature is.
        let issuer = token.claims.get_string("iss").ok_or(Bad::Issuer)?;
        let mut providers = self.providers.iter();
        let found = providers.find(|provider| provider.settings.issuer == issuer);
        let provider = found.ok_or(Bad::Issuer)?;
        let settings = &provider.settings;
        if !settings.algorithms.contains(&token.algorithm) {
            return Err(Bad::Algorithm.into());
        }
        let (key, generation) = provider.key(token.key_id.as_deref(), token.algorithm).await?;
        if !key.has_signed(token.signed, &token.signature) {
            return Err(Bad::Signature.into());
        }
        let subject = claims::judge(settings, &token.claims, now)?;
        let role = self.roles.join(&subject.roles).ok_or(Refusal::TooManyRoles)?;
        let name = format!("{}/{}", settings.name, subject.user).into();
        // Under its provider's name: it says so itself, and must not be taken for somebody else.
        let application = subject.application.map(|it| format!("{}/{it}", settings.name).into());
        let principal = Principal { name, role, application };
        Ok(Good { principal, until: subject.until, provider: provider.number, generation })
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.providers.iter().map(|it| &it.settings.name)).finish()
    }
}

/// How many good tokens are remembered twice over.
const REMEMBERED: usize = 10_000;
