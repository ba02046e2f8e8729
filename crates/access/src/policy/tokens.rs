//! Access tokens of identity providers: Weir as an OAuth 2.1 resource server.
//!
//! A token is signed by a configured provider, for a configured audience. [`Tokens`] returns its
//! principal. Weir issues no tokens and forwards none.
//!
//! Invariants: issuer and audience are compared exactly. A key verifies signatures of one
//! algorithm, which no token chooses. Nothing is accepted that cannot be verified. A verified token
//! is cached by its hash until it expires or the provider's keys change.
//!
//! Decision: docs/decisions/0014-identity-and-tokens.md

mod claims;
pub mod discovery;
mod generations;
mod jws;
mod key;
mod key_set;
mod preset;
mod provider;
mod seen_users;
#[cfg(test)]
mod tests;
mod token_cache;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use hyper::Uri;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::role::Roles;
use super::{AuthError, Principal, Refusal, Refusals, VerifiedCredential};
use jws::CompactJws;
pub(super) use jws::is_token;
pub use key::Algorithm;
pub use preset::Preset;
use provider::Provider;
use seen_users::SeenUsers;
pub use seen_users::{SeenUser, UserSearch};
use token_cache::{CachedToken, TokenCache};
use weir_base::net::http_send::HttpSend;

/// Settings of one identity provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Name in the configuration.
    pub name: String,
    /// Issuer of its tokens, compared character by character.
    pub issuer: String,
    /// Accepted audiences; a token must have one of them.
    pub audience: Vec<String>,
    /// Product of the provider.
    pub preset: Preset,
    /// Claim that names the user: its name, or a path separated by dots.
    pub user_claim: String,
    /// Claim with the values that are mapped to roles: its name, or a path separated by dots.
    pub role_claim: String,
    /// Roles by value of that claim.
    pub roles: BTreeMap<String, String>,
    /// Role of users without a mapped value; without it such a user may use nothing.
    pub default_role: Option<String>,
    /// Scopes that every token must have been granted.
    pub scopes_required: Vec<String>,
    /// Accepted signature algorithms.
    pub algorithms: Vec<Algorithm>,
    /// URL of its keys; discovered if it is `None`.
    pub jwks_uri: Option<Uri>,
}

impl Settings {
    /// Returns whether a token can give this role.
    pub fn can_grant(&self, role: &str) -> bool {
        let mut given = self.roles.values().chain(&self.default_role);
        given.any(|given| given == role)
    }

    /// Returns the roles of a user with these values of the claim: those that are mapped, or else
    /// the default one.
    pub fn roles_of<S: AsRef<str>>(&self, values: &[S]) -> BTreeSet<Arc<str>> {
        let mapped = values.iter().filter_map(|value| self.roles.get(value.as_ref()));
        let roles: BTreeSet<Arc<str>> = mapped.map(|role| role.as_str().into()).collect();
        match &self.default_role {
            Some(role) if roles.is_empty() => [role.as_str().into()].into(),
            _ => roles,
        }
    }
}

/// Reason why a token is refused. Its sender only learns that it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum TokenError {
    /// The token is larger than 16 KiB.
    #[error("the token is too long")]
    #[strum(serialize = "too_long")]
    TooLong,
    /// The token is encrypted (RFC 7516): it has five parts.
    #[error("the token is encrypted")]
    #[strum(serialize = "encrypted")]
    Encrypted,
    /// The token is not three parts of base64url.
    #[error("the token is malformed")]
    #[strum(serialize = "form")]
    Form,
    /// The header is not a JSON object, or has a duplicate member.
    #[error("the token's header is malformed")]
    #[strum(serialize = "header")]
    Header,
    /// The claims are not a JSON object, or have a duplicate member.
    #[error("the token's claims are malformed")]
    #[strum(serialize = "claims")]
    Claims,
    /// The header requires an extension that is not supported.
    #[error("the token has a critical extension")]
    #[strum(serialize = "crit")]
    Critical,
    /// The token is unsigned, or its algorithm is unknown or unsafe.
    #[error("the token's algorithm is not accepted")]
    #[strum(serialize = "alg")]
    Algorithm,
    /// The token's type is not that of an access token.
    #[error("the token is of another type")]
    #[strum(serialize = "typ")]
    Type,
    /// The key id is too long, or not a string.
    #[error("the token's key id is malformed")]
    #[strum(serialize = "kid")]
    KeyId,
    /// No configured provider has issued the token.
    #[error("the token is of another issuer")]
    #[strum(serialize = "iss")]
    Issuer,
    /// The provider has no key of this id.
    #[error("the token's key is unknown")]
    #[strum(serialize = "unknown_kid")]
    UnknownKey,
    /// The token names no key, and none or several could be meant.
    #[error("the token names no key")]
    #[strum(serialize = "no_kid")]
    NoKeyId,
    /// The key is for another algorithm.
    #[error("the token's key is for another algorithm")]
    #[strum(serialize = "kid_alg")]
    KeyMismatch,
    /// The signature is not one of the provider's, or the token was changed.
    #[error("the token's signature is wrong")]
    #[strum(serialize = "signature")]
    Signature,
    /// The token is for another audience.
    #[error("the token is for another audience")]
    #[strum(serialize = "aud")]
    Audience,
    /// The token has no expiry, or one of its times is malformed.
    #[error("the token's times are malformed")]
    #[strum(serialize = "times")]
    Time,
    /// The token has expired.
    #[error("the token has expired")]
    #[strum(serialize = "exp")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    #[strum(serialize = "nbf")]
    NotYet,
    /// The token's claims say that it is not for this use.
    #[error("the token is not an access token")]
    #[strum(serialize = "use")]
    Use,
    /// The token is only valid together with a proof of possession of a key.
    #[error("the token is bound to a key")]
    #[strum(serialize = "cnf")]
    Bound,
    /// The token does not name its user.
    #[error("the token names no user")]
    #[strum(serialize = "user")]
    User,
    /// The token is valid, and refused by the configuration.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<TokenError> for AuthError {
    fn from(bad: TokenError) -> Self {
        Self::Token(bad)
    }
}

/// All providers, and the cache of verified tokens.
pub(super) struct Tokens {
    providers: Vec<Arc<Provider>>,
    refusals: Refusals,
    roles: Arc<Roles>,
    verified: Arc<TokenCache>,
    seen: Arc<SeenUsers>,
}

impl Default for Tokens {
    fn default() -> Self {
        let verified = Arc::new(TokenCache::new(CACHED_TOKENS));
        Self {
            providers: Vec::new(),
            refusals: Refusals::default(),
            roles: Arc::default(),
            verified,
            seen: Arc::default(),
        }
    }
}

impl Tokens {
    /// Creates the tokens of another configuration: an unchanged provider keeps its keys, and the
    /// tokens verified with them.
    pub(super) fn with_providers(
        &self,
        providers: Vec<Settings>,
        refusals: Refusals,
        roles: Arc<Roles>,
    ) -> Self {
        let provider = |settings: Settings| {
            let same = self.providers.iter().find(|known| known.settings == settings);
            same.map_or_else(|| Provider::new(settings), Arc::clone)
        };
        let providers = providers.into_iter().map(provider).collect();
        let (verified, seen) = (Arc::clone(&self.verified), Arc::clone(&self.seen));
        Self { providers, refusals, roles, verified, seen }
    }

    /// Returns whether this is the number of one of the providers.
    pub(super) fn has(&self, provider: u64) -> bool {
        self.issuer(provider).is_some()
    }

    /// Refuses a verified token of a provider that there is no more, or of a refused user.
    pub(super) fn check_refusals(
        &self,
        provider: u64,
        principal: &Principal,
        issued_at: Option<SystemTime>,
    ) -> Result<(), TokenError> {
        let issuer = self.issuer(provider).ok_or(TokenError::Issuer)?;
        Ok(self.refusals.check(&issuer.settings.name, &principal.name, issued_at)?)
    }

    /// Finds a provider by its number.
    fn issuer(&self, number: u64) -> Option<&Arc<Provider>> {
        self.providers.iter().find(|known| known.number == number)
    }

    /// Returns whether there are no providers.
    pub(super) fn is_empty(&self) -> bool {
        self.providers.is_empty()
    }

    /// Starts a task per provider that refreshes its keys until `stop`, unless it has one.
    pub(super) fn spawn_refreshers(
        &self,
        http: &Arc<dyn HttpSend>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        for provider in &self.providers {
            let stop = stop.child_token();
            if provider.refresher_stop.set(stop.clone()).is_ok() {
                tasks.spawn(Arc::clone(provider).run(Arc::clone(http), stop));
            }
        }
    }

    /// Finds a user of a provider by the name of the principal.
    pub(super) fn find_user(&self, name: &str) -> UserSearch {
        self.seen.find(name, &self.providers)
    }

    /// Returns the number of users without a role, by provider.
    pub(super) fn users_without_role(&self) -> BTreeMap<String, usize> {
        self.seen.without_role(&self.providers)
    }

    /// Ends the tasks of the providers that `next` does not have, and forgets their users.
    pub(super) fn stop_removed(&self, next: &Self) {
        let gone = self.providers.iter().filter(|provider| !next.has(provider.number));
        gone.filter_map(|provider| provider.refresher_stop.get())
            .for_each(CancellationToken::cancel);
        self.seen.retain(&next.providers);
    }

    /// Returns the principal of a token. May wait for a provider's keys, for a bounded time.
    pub(super) async fn find(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(Principal, VerifiedCredential), AuthError> {
        let digest = TokenCache::digest(token);
        let holds = |good: &CachedToken| {
            let issuer = self.issuer(good.provider);
            now < good.expires_at && issuer.is_some_and(|issuer| issuer.is_current(good.generation))
        };
        let good = match self.verified.find(&digest, holds) {
            Some(good) => good,
            None => {
                let good = self.verify(token, now).await?;
                self.verified.insert(digest, good.clone());
                good
            }
        };
        let CachedToken { principal, expires_at: until, issued_at, provider, .. } = good;
        self.check_refusals(provider, &principal, issued_at)?;
        if let Some(issuer) = self.issuer(provider)
            && self.seen.record(issuer, &principal, now)
        {
            tracing::warn!(
                user = %principal.name,
                claim = issuer.settings.role_claim,
                "user has no role and may use nothing"
            );
        }
        Ok((principal, VerifiedCredential::Token { provider, until, issued_at }))
    }

    /// Returns the user that a token names, of which nothing was verified.
    pub(super) fn claimed_user(&self, token: &str) -> Option<String> {
        let claims = jws::unverified_claims(token)?;
        let issuer = claims.get_string("iss");
        let issuer = issuer
            .and_then(|issuer| self.providers.iter().find(|known| known.settings.issuer == issuer));
        let claim = issuer.map_or("sub", |issuer| &*issuer.settings.user_claim);
        claims::user(&claims, claim)
    }

    async fn verify(&self, token: &str, now: SystemTime) -> Result<CachedToken, AuthError> {
        let token = CompactJws::parse(token)?;
        // The unverified issuer only selects the keys: nothing is trusted before the signature is
        // verified.
        let issuer = token.claims.get_string("iss").ok_or(TokenError::Issuer)?;
        let mut providers = self.providers.iter();
        let found = providers.find(|provider| provider.settings.issuer == issuer);
        let provider = found.ok_or(TokenError::Issuer)?;
        let settings = &provider.settings;
        if !settings.algorithms.contains(&token.algorithm) {
            return Err(TokenError::Algorithm.into());
        }
        let (key, generation) = provider.key(token.key_id.as_deref(), token.algorithm).await?;
        if !key.has_signed(token.signed, &token.signature) {
            return Err(TokenError::Signature.into());
        }
        let subject = claims::validate(settings, &token.claims, now)?;
        let role = self.roles.combine(&subject.roles).ok_or(AuthError::TooManyRoles)?;
        let name = format!("{}/{}", settings.name, subject.user).into();
        // Prefixed with the provider's name, because the token itself names the application, which
        // must not be mistaken for another client.
        let application = subject.application.map(|it| format!("{}/{it}", settings.name).into());
        let principal = Principal { name, role, application };
        Ok(CachedToken {
            principal,
            expires_at: subject.expires_at,
            issued_at: subject.issued_at,
            provider: provider.number,
            generation,
        })
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.providers.iter().map(|it| &it.settings.name)).finish()
    }
}

/// Capacity of the token cache; up to twice as many are stored.
const CACHED_TOKENS: usize = 10_000;
