//! Tokens that this room is shown, good and bad, and providers that come and go.

mod accepted;
mod fetching;
mod mint;
mod refused;
mod roles;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Algorithm, Fetch, Preset, Settings};
use crate::policy::role::Role;
use crate::policy::{Arrival, Credentials, Policy, Principal, Refusal};

pub(super) const ISSUER: &str = "https://id.test/a";
pub(super) const AUDIENCE: &str = "https://weir.test/mcp";

/// A provider that a test plays: what it answers by URL, and what it was asked for.
#[derive(Clone, Default)]
struct Played {
    answers: Arc<Mutex<BTreeMap<String, Result<String, String>>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// How long an answer takes.
    delay: Arc<Mutex<Duration>>,
}

impl Played {
    /// One with these keys, at the usual places.
    fn with_keys(jwks: &str) -> Self {
        let played = Self::default();
        let metadata = format!(r#"{{"issuer":"{ISSUER}","jwks_uri":"https://id.test/keys"}}"#);
        played.answers("https://id.test/a/.well-known/openid-configuration", Ok(&metadata));
        played.answers("https://id.test/keys", Ok(jwks));
        played
    }

    fn answers(&self, url: &str, answer: Result<&str, &str>) {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        self.answers.lock().unwrap().insert(url.to_owned(), answer);
    }

    fn is_away(&self) {
        self.answers.lock().unwrap().clear();
    }

    /// What it was asked for since the last time, without the place before the path.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Fetch for Played {
    fn fetch<'a>(&'a self, url: &'a Uri, limit: usize) -> BoxFuture<'a, Result<Bytes, String>> {
        assert_eq!(limit, 256 * 1024);
        async move {
            self.asked.lock().unwrap().push(url.to_string());
            let delay = *self.delay.lock().unwrap();
            tokio::time::sleep(delay).await;
            let answers = self.answers.lock().unwrap();
            let answer = answers.get(&url.to_string()).cloned();
            answer.unwrap_or_else(|| Err("nobody is there".to_owned())).map(Bytes::from)
        }
        .boxed()
    }
}

/// A policy with one provider, whose keys it keeps.
struct House {
    policy: Policy,
    provider: Played,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl House {
    /// With the mint's keys, and at work: they have been fetched.
    async fn open() -> Self {
        Self::open_with(settings()).await
    }

    async fn open_with(settings: Settings) -> Self {
        let house = Self::new(settings, Played::with_keys(&mint::jwks()));
        house.settle().await;
        house.provider.asked();
        house
    }

    fn new(settings: Settings, provider: Played) -> Self {
        let roles = ["dev", "ops", "all"].map(|name| (name.to_owned(), Role::default()));
        let settings = crate::policy::Settings {
            roles: roles.into(),
            providers: vec![settings],
            ..Default::default()
        };
        let policy = Policy::new(settings);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let fetch: Arc<dyn Fetch> = Arc::new(provider.clone());
        policy.keep_keys(&fetch, &tasks, &stop);
        Self { policy, provider, tasks, stop }
    }

    async fn enter(&self, token: &str) -> Result<Principal, Refusal> {
        self.enter_at(token, mint::now()).await
    }

    async fn enter_at(&self, token: &str, now: SystemTime) -> Result<Principal, Refusal> {
        let arrival =
            Arrival { credentials: Credentials::Bearer(token), certificate: None, from: None };
        self.policy.enter(arrival, now).await.map(|(principal, _)| principal)
    }

    /// Lets everything run that waits for nothing but its turn.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn close(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn settings() -> Settings {
    let preset = Preset::Generic;
    Settings {
        name: "corp".into(),
        issuer: ISSUER.into(),
        audience: vec![AUDIENCE.into(), "api://weir".into()],
        preset,
        user_claim: preset.user_claim().into(),
        role_claim: preset.role_claim().into(),
        roles: [("devs", "dev"), ("operators", "ops")]
            .map(|(value, role)| (value.to_owned(), role.to_owned()))
            .into(),
        default_role: None,
        scopes_required: Vec::new(),
        algorithms: Algorithm::NAMED.map(|(_, algorithm)| algorithm).into(),
        jwks_uri: None,
    }
}
