//! Account of Weir at one upstream: keeps its access token fresh.
//!
//! Invariants: at most one renewal runs at a time, and it does not end with the request that
//! started it. After a failure nothing is requested until a pause has passed. A token that is still
//! valid is used whatever happens to its renewal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use hyper::header::HeaderValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use zeroize::Zeroizing;

use super::challenge::BearerChallenge;
use super::discovery::{Discovered, changed, discover};
use super::token_request::{IssuedToken, TokenRequest, sensitive};
use super::url_rules::OAuthClient;
use super::{OAuthError, OAuthHttp, ResourceIndicator, Settings};
use crate::backoff::Backoff;
use crate::sync::Mutex;

/// Account at one upstream, which all requests to it use.
pub struct Account {
    /// Name of the upstream, for the log.
    name: String,
    settings: Settings,
    http: Arc<dyn OAuthHttp>,
    tracker: TaskTracker,
    stop: CancellationToken,
    state: Mutex<AccountState>,
}

struct AccountState {
    token: Option<AccessToken>,
    /// Last challenge of the upstream, with which its authorization server is discovered.
    challenge: Option<BearerChallenge>,
    /// Result of the discovery since that challenge.
    discovered: Option<Arc<Discovered>>,
    /// Issuer that was discovered first: the credentials are bound to it.
    issuer: Option<String>,
    /// Renewal that runs.
    renewal: Option<Renewal>,
    /// Reason why no renewal is started until this time.
    failure: Option<(Instant, OAuthError)>,
    backoff: Backoff,
    /// Number of tokens so far.
    issued: u64,
}

type Renewal = Shared<BoxFuture<'static, Result<AccessToken, OAuthError>>>;

/// Access token. Cheap to clone.
#[derive(Clone)]
pub struct AccessToken {
    authorization: HeaderValue,
    /// Times after which it is renewed, and no longer used; `None` if it does not expire.
    times: Option<(Instant, Instant)>,
    number: u64,
}

impl AccessToken {
    /// Value of the `Authorization` header; sensitive.
    pub fn authorization(&self) -> HeaderValue {
        self.authorization.clone()
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessToken").field(&self.number).finish()
    }
}

impl Account {
    /// Creates the account at the upstream of this name. Renewals run until `stop` fires.
    pub fn new(
        name: String,
        settings: Settings,
        http: Arc<dyn OAuthHttp>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let state = Mutex::new(AccountState {
            token: None,
            challenge: None,
            discovered: None,
            issuer: None,
            renewal: None,
            failure: None,
            backoff: BACKOFF,
            issued: 0,
        });
        Arc::new(Self { name, settings, http, tracker, stop, state })
    }

    /// Returns a token for the next request; `None` if the upstream has not demanded one yet.
    ///
    /// # Errors
    ///
    /// There is no valid token, and none can be obtained now.
    pub async fn token(self: &Arc<Self>) -> Result<Option<AccessToken>, OAuthError> {
        let renewal = {
            let mut state = self.state.lock();
            let now = Instant::now();
            match &state.token {
                Some(token) => match token.times {
                    Some((_, expires)) if expires <= now => self.renewal(&mut state)?,
                    Some((renew, _)) if renew <= now => {
                        let token = token.clone();
                        // A failure is logged, and the token is still valid.
                        let _ = self.renewal(&mut state);
                        return Ok(Some(token));
                    }
                    _ => return Ok(Some(token.clone())),
                },
                None if state.challenge.is_none() && self.settings.token_url.is_none() => {
                    return Ok(None);
                }
                None => self.renewal(&mut state)?,
            }
        };
        renewal.await.map(Some)
    }

    /// Returns a token for a request that the upstream has refused with this challenge: another
    /// one than `refused`, which the request had.
    ///
    /// # Errors
    ///
    /// No other token can be obtained now.
    pub async fn renew(
        self: &Arc<Self>,
        refused: Option<&AccessToken>,
        challenge: BearerChallenge,
    ) -> Result<AccessToken, OAuthError> {
        let renewal = {
            let mut state = self.state.lock();
            match &state.token {
                Some(token) if refused.is_none_or(|it| it.number != token.number) => {
                    return Ok(token.clone());
                }
                _ => {
                    state.challenge = Some(challenge);
                    state.discovered = None;
                    self.renewal(&mut state)?
                }
            }
        };
        renewal.await
    }

    /// Records that the upstream has refused a token that had just been issued. For a while no
    /// request is sent then.
    pub fn reject(&self, token: &AccessToken) -> OAuthError {
        let error = OAuthError::Refused("the upstream refuses an access token that is new".into());
        let mut state = self.state.lock();
        if state.token.take_if(|it| it.number == token.number).is_some() {
            self.fail(&mut state, error.clone());
        }
        error
    }

    /// Returns the renewal that runs, or starts one.
    fn renewal(self: &Arc<Self>, state: &mut AccountState) -> Result<Renewal, OAuthError> {
        if let Some(renewal) = &state.renewal {
            return Ok(renewal.clone());
        }
        if let Some((until, error)) = &state.failure
            && *until > Instant::now()
        {
            return Err(error.clone());
        }
        let account = Arc::clone(self);
        let renewal = self.tracker.spawn(async move { account.run_renewal().await });
        let renewal = renewal.map(|ended| ended.unwrap_or_else(|_| Err(stopping())));
        let renewal = renewal.boxed().shared();
        state.renewal = Some(renewal.clone());
        Ok(renewal)
    }

    async fn run_renewal(&self) -> Result<AccessToken, OAuthError> {
        let issued = self.stop.run_until_cancelled(self.request_token()).await;
        let issued = issued.unwrap_or_else(|| Err(stopping()));
        let mut state = self.state.lock();
        state.renewal = None;
        let number = state.issued + 1;
        let token = issued.and_then(|issued| AccessToken::new(&issued, number));
        match &token {
            Ok(token) => {
                tracing::debug!(upstream = self.name, "access token issued");
                state.issued = number;
                state.failure = None;
                state.backoff.reset();
                state.token = Some(token.clone());
            }
            Err(error) => self.fail(&mut state, error.clone()),
        }
        token
    }

    async fn request_token(&self) -> Result<IssuedToken, OAuthError> {
        let settings = &self.settings;
        let (upstream, allowed) = (&settings.upstream, &settings.allowed);
        let client = OAuthClient { http: &*self.http, upstream, allowed };
        let known = self.state.lock().discovered.clone();
        let discovered = match known {
            Some(known) => known,
            None => self.discover(&client).await?,
        };
        let resource = match &settings.resource {
            ResourceIndicator::Auto => {
                Some(discovered.resource.clone().unwrap_or_else(|| name(upstream)))
            }
            ResourceIndicator::None => None,
            ResourceIndicator::Named(resource) => Some(resource.clone()),
        };
        let scope = match &settings.scopes {
            Some(scopes) => Some(scopes.join(" ")),
            None => discovered.scope.clone(),
        };
        let request = TokenRequest {
            grant: &settings.grant,
            server: &discovered.server,
            resource: resource.as_deref(),
            scope: scope.as_deref().filter(|scope| !scope.is_empty()),
        };
        request.send(&client).await
    }

    /// Discovers the authorization server, which must be the one that was discovered first: the
    /// credentials belong to it (spec 2026-07-28, authorization, authorization server binding).
    async fn discover(&self, client: &OAuthClient<'_>) -> Result<Arc<Discovered>, OAuthError> {
        let challenge = self.state.lock().challenge.clone().unwrap_or_default();
        let found = Arc::new(discover(client, &self.settings, &challenge).await?);
        let mut state = self.state.lock();
        let issuer = state.issuer.get_or_insert_with(|| found.server.issuer.clone());
        if *issuer != found.server.issuer {
            let text = changed(issuer, &found.server.issuer);
            let text = format!("{text}: if that is right, set auth.issuer");
            return Err(OAuthError::Refused(text));
        }
        state.discovered = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Records a failure, and starts the pause after it.
    fn fail(&self, state: &mut AccountState, error: OAuthError) {
        let pause = match error {
            OAuthError::Unavailable(_) => state.backoff.next_pause(),
            // Only the operator can change that.
            OAuthError::Refused(_) => state.backoff.longest_pause(),
        };
        tracing::warn!(upstream = self.name, %error, ?pause, "no access token");
        state.failure = Some((Instant::now() + pause, error));
    }
}

impl AccessToken {
    fn new(issued: &IssuedToken, number: u64) -> Result<Self, OAuthError> {
        let text = Zeroizing::new(format!("Bearer {}", issued.token.expose()));
        let times = issued.lifetime.map(|lifetime| {
            let now = Instant::now();
            // A token that lives shorter is renewed at most once a second.
            let lifetime = lifetime.max(MIN_LIFETIME);
            (now + lifetime.mul_f64(RENEWED_AT), now + lifetime)
        });
        Ok(Self { authorization: sensitive(&text)?, times, number })
    }
}

fn stopping() -> OAuthError {
    OAuthError::Unavailable("Weir is stopping".into())
}

/// Returns the identifier of the upstream as a resource, if it has no metadata (spec 2026-07-28,
/// authorization, canonical server URI).
fn name(upstream: &Url) -> String {
    let origin = upstream.origin().ascii_serialization();
    match upstream.path() {
        "/" => origin,
        path => origin + path,
    }
}

/// Pauses after failures.
const BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(true);
/// Part of its lifetime after which a token is renewed.
const RENEWED_AT: f64 = 0.8;
const MIN_LIFETIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::testing::{Script, settings};
    use hyper::Uri;

    const TOKEN_URL: &str = "https://id.test/token";

    /// Account with a configured token endpoint, and its network.
    fn account() -> (Arc<Account>, Arc<Script>) {
        let token_url = Some(Uri::from_static(TOKEN_URL));
        open(Settings { token_url, ..settings() })
    }

    fn open(settings: Settings) -> (Arc<Account>, Arc<Script>) {
        let script = Arc::new(Script::default());
        let (http, tracker) = (Arc::clone(&script), TaskTracker::new());
        let (name, stop) = ("hub".to_owned(), CancellationToken::new());
        (Account::new(name, settings, http, tracker, stop), script)
    }

    fn issue(script: &Script, token: &str, seconds: u64) {
        let text =
            format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{seconds}}}"#);
        script.document(TOKEN_URL, &text);
    }

    fn sent(token: &AccessToken) -> String {
        assert!(token.authorization().is_sensitive());
        token.authorization().to_str().expect("text").to_owned()
    }

    async fn token(account: &Arc<Account>) -> Result<Option<String>, OAuthError> {
        account.token().await.map(|token| token.as_ref().map(sent))
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_renewed_before_it_expires_and_no_request_waits_for_that() {
        let (account, script) = account();
        issue(&script, "first", 100);
        let all = futures::future::join_all((0..50).map(|_| token(&account))).await;
        assert!(all.iter().all(|it| it == &Ok(Some("Bearer first".into()))), "{all:?}");
        assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
        issue(&script, "second", 100);
        tokio::time::advance(Duration::from_secs(79)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer first".into())));
        assert!(script.requests().is_empty());
        tokio::time::advance(Duration::from_secs(2)).await;
        let all = futures::future::join_all((0..50).map(|_| token(&account))).await;
        assert!(all.iter().all(|it| it == &Ok(Some("Bearer first".into()))), "{all:?}");
        let renewal = account.state.lock().renewal.clone().expect("it runs");
        renewal.await.expect("renewed");
        assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
        assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
        // Nothing was requested for so long that it has expired.
        issue(&script, "third", 100);
        tokio::time::advance(Duration::from_secs(200)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer third".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_valid_token_outlives_an_hour_of_errors_and_an_expired_one_fails_fast() {
        let (account, script) = account();
        issue(&script, "first", 5_000);
        token(&account).await.expect("issued");
        script.requests();
        script.fail(TOKEN_URL);
        tokio::time::advance(Duration::from_secs(4_001)).await;
        for _ in 0..900 {
            assert_eq!(token(&account).await, Ok(Some("Bearer first".into())));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((15..40).contains(&script.requests().len()));
        tokio::time::advance(Duration::from_secs(100)).await;
        let expected = format!("{TOKEN_URL}: the response status is 503 Service Unavailable");
        for _ in 0..2_700 {
            assert_eq!(token(&account).await, Err(OAuthError::Unavailable(expected.clone())));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((40..80).contains(&script.requests().len()));
        issue(&script, "second", 100);
        tokio::time::advance(Duration::from_secs(75)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_renewed_once_for_all_requests_that_had_it() {
        let (account, script) = account();
        issue(&script, "first", 100);
        let first = account.token().await.expect("issued").expect("a token");
        script.requests();
        issue(&script, "second", 100);
        let renewals = (0..50).map(|_| account.renew(Some(&first), BearerChallenge::default()));
        let all = futures::future::join_all(renewals).await;
        assert!(all.iter().all(|it| it.as_ref().map(sent) == Ok("Bearer second".into())));
        assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
        // The upstream refuses the new one, too.
        let second = account.token().await.expect("issued").expect("a token");
        account.reject(&second);
        let expected =
            OAuthError::Refused("the upstream refuses an access token that is new".into());
        assert_eq!(account.reject(&second), expected);
        assert_eq!(token(&account).await, Err(expected.clone()));
        let renewed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert_eq!(renewed.map(|token| sent(&token)), Err(expected));
        assert!(script.requests().is_empty());
        tokio::time::advance(Duration::from_secs(75)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_go_to_the_first_authorization_server_only() {
        let (account, script) = open(settings());
        assert_eq!(token(&account).await, Ok(None));
        let place = "https://mcp.test/.well-known/oauth-protected-resource/mcp";
        let resource = |issuer: &str| {
            format!(r#"{{"resource":"https://mcp.test/mcp","authorization_servers":["{issuer}"]}}"#)
        };
        let server = |issuer: &str| {
            let metadata = format!(r#"{{"issuer":"{issuer}","token_endpoint":"{issuer}/token"}}"#);
            script.document(&format!("{issuer}/.well-known/oauth-authorization-server"), &metadata);
        };
        server("https://id.test");
        server("https://evil.test");
        script.document(place, &resource("https://id.test"));
        issue(&script, "first", 100);
        let first = account.renew(None, BearerChallenge::default()).await.expect("issued");
        assert_eq!(sent(&first), "Bearer first");
        script.requests();
        script.document(place, &resource("https://evil.test"));
        let renewed = account.renew(Some(&first), BearerChallenge::default()).await;
        let error = "the upstream names the authorization server https://evil.test instead of \
                     https://id.test: if that is right, set auth.issuer";
        assert_eq!(renewed.map(|token| sent(&token)), Err(OAuthError::Refused(error.into())));
        let requests = script.requests();
        assert!(requests.iter().all(|request| request.starts_with("GET ")), "{requests:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_names_the_configured_scopes_and_resource_or_those_of_the_upstream() {
        let place = "https://mcp.test/.well-known/oauth-protected-resource";
        let metadata = r#"{"resource":"https://mcp.test","authorization_servers":[],"scopes_supported":["x","y"]}"#;
        let scope = |text: &str| Some(("scope".to_owned(), text.to_owned()));
        let resource = |text: &str| Some(("resource".to_owned(), text.to_owned()));
        let named = ResourceIndicator::Named("urn:x".into());
        let configured = Some(vec!["a".to_owned(), "b".to_owned()]);
        for (has_metadata, settings, expected) in [
            (true, settings(), [resource("https://mcp.test"), scope("x y")]),
            (false, settings(), [resource("https://mcp.test/mcp"), None]),
            (
                true,
                Settings { resource: named, scopes: configured, ..settings() },
                [resource("urn:x"), scope("a b")],
            ),
            (
                true,
                Settings { resource: ResourceIndicator::None, scopes: Some(vec![]), ..settings() },
                [None, None],
            ),
        ] {
            let (account, script) = open(settings);
            if has_metadata {
                script.document(place, metadata);
            }
            script.document(
                "https://mcp.test/token",
                r#"{"access_token":"x","token_type":"Bearer"}"#,
            );
            account.renew(None, BearerChallenge::default()).await.expect("issued");
            let request = script.take_requests().pop().expect("a request");
            let form = url::form_urlencoded::parse(request.body()).into_owned();
            let grant = ("grant_type".to_owned(), "client_credentials".to_owned());
            let expected: Vec<_> = [Some(grant)].into_iter().chain(expected).flatten().collect();
            assert_eq!(form.collect::<Vec<_>>(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_outlives_the_request_that_started_it_and_ends_with_weir() {
        let (account, script) = account();
        issue(&script, "first", 100);
        let mut request = std::pin::pin!(account.token());
        assert!(futures::poll!(&mut request).is_pending());
        let renewal = account.state.lock().renewal.clone().expect("it runs");
        // The request is not polled any more.
        assert_eq!(renewal.await.as_ref().map(sent), Ok("Bearer first".into()));
        let (account, _) = super::tests::account();
        account.stop.cancel();
        assert_eq!(token(&account).await, Err(stopping()));
    }

    #[test]
    fn an_upstream_without_metadata_is_named_by_its_url() {
        for (url, expected) in [
            ("HTTPS://Mcp.Test:443/", "https://mcp.test"),
            ("https://mcp.test/mcp", "https://mcp.test/mcp"),
            ("http://mcp.test:8080/a/", "http://mcp.test:8080/a/"),
        ] {
            assert_eq!(name(&Url::parse(url).expect("a URL")), expected);
        }
    }
}
