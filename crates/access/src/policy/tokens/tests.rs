//! Tests of tokens, valid and invalid, and of providers that go online and offline.

mod accepted;
mod fetching;
mod mint;
mod refusals;
mod refused;
mod roles;
mod seen;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use strum::VariantArray;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Algorithm, Preset, Settings};
use crate::policy::role::Role;
use crate::policy::{AuthAttempt, AuthError, Credentials, Policy, Principal};
use hyper::{Method, Request, Response, StatusCode};
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::net::http_send::HttpSend;
use weir_base::tasks::sync::Mutex;

pub(super) const ISSUER: &str = "https://id.test/a";
pub(super) const AUDIENCE: &str = "https://weir.test/mcp";

/// Fake provider: its responses by URL, and the requests it has got.
#[derive(Clone, Default)]
struct FakeProvider {
    responses: Arc<Mutex<BTreeMap<String, Result<String, String>>>>,
    requests: Arc<Mutex<Vec<String>>>,
    /// Duration of a response.
    delay: Arc<Mutex<Duration>>,
}

impl FakeProvider {
    /// Creates a provider with these keys, at the usual URLs.
    fn with_keys(jwks: &str) -> Self {
        let fake = Self::default();
        let metadata = format!(r#"{{"issuer":"{ISSUER}","jwks_uri":"https://id.test/keys"}}"#);
        fake.set_response("https://id.test/a/.well-known/openid-configuration", Ok(&metadata));
        fake.set_response("https://id.test/keys", Ok(jwks));
        fake
    }

    fn set_response(&self, url: &str, answer: Result<&str, &str>) {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        self.responses.lock().insert(url.to_owned(), answer);
    }

    fn go_offline(&self) {
        self.responses.lock().clear();
    }

    /// Returns the URLs requested since the last call.
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock())
    }
}

impl HttpSend for FakeProvider {
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        limit: usize,
        allowed: Option<&'a AllowedAddresses>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, String>> {
        assert_eq!((request.method(), limit, allowed), (&Method::GET, 256 * 1024, None));
        async move {
            let url = request.uri().to_string();
            self.requests.lock().push(url.clone());
            let delay = *self.delay.lock();
            tokio::time::sleep(delay).await;
            let responses = self.responses.lock();
            let answer = responses.get(&url).cloned();
            let text = answer.unwrap_or_else(|| Err("nobody is there".to_owned()))?;
            // A status and a reason, in place of a document.
            let status = text.parse().unwrap_or(StatusCode::OK);
            let mut response = Response::new(Bytes::from(text));
            *response.status_mut() = status;
            Ok(response)
        }
        .boxed()
    }
}

/// Policy with one provider and its refresher task.
struct TestPolicy {
    policy: Policy,
    provider: FakeProvider,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl TestPolicy {
    /// Creates a policy with the mint's keys, which have been fetched.
    async fn open() -> Self {
        Self::open_with(settings()).await
    }

    async fn open_with(settings: Settings) -> Self {
        let fixture = Self::new(settings, FakeProvider::with_keys(&mint::jwks()));
        fixture.settle().await;
        fixture.provider.take_requests();
        fixture
    }

    fn new(settings: Settings, provider: FakeProvider) -> Self {
        let roles = ["dev", "ops", "all"].map(|name| (name.to_owned(), Role::default()));
        let settings = crate::policy::Settings {
            roles: roles.into(),
            providers: vec![settings],
            ..Default::default()
        };
        let policy = Policy::new(settings);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let fetch: Arc<dyn HttpSend> = Arc::new(provider.clone());
        policy.spawn_jwks_refreshers(&fetch, &tasks, &stop);
        Self { policy, provider, tracker: tasks, stop }
    }

    async fn authenticate(&self, token: &str) -> Result<Principal, AuthError> {
        self.authenticate_at(token, mint::now()).await
    }

    async fn authenticate_at(&self, token: &str, now: SystemTime) -> Result<Principal, AuthError> {
        let arrival =
            AuthAttempt { credentials: Credentials::Bearer(token), certificate: None, from: None };
        self.policy.authenticate(arrival, now).await.map(|(principal, _)| principal)
    }

    /// Lets all ready tasks run.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn close(self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
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
        algorithms: Algorithm::VARIANTS.to_vec(),
        jwks_uri: None,
    }
}
