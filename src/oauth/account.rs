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
use zeroize::Zeroizing;

use super::challenge::BearerChallenge;
use super::discovery::{Discovered, changed, discover};
use super::token_request::{IssuedToken, TokenGrant, TokenRequest, sensitive};
use super::url_rules::OAuthClient;
use super::vault::Vault;
use super::{Grant, OAuthError, OAuthHttp, RegisteredClient, Settings};
use crate::backoff::Backoff;
use crate::secret::Secret;
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
    /// Last token, also if it was rejected: a sign-in with another one is new.
    last: Option<HeaderValue>,
    /// Last challenge of the upstream, with which its authorization server is discovered.
    challenge: Option<BearerChallenge>,
    /// Result of the discovery since that challenge.
    discovered: Option<Arc<Discovered>>,
    /// Issuer that was discovered first: the credentials are bound to it.
    issuer: Option<String>,
    /// Renewal that runs.
    renewal: Option<Renewal>,
    /// Number of a token that the upstream has refused when it was new, and the time until which
    /// its refusals are not believed.
    rejected: Option<(u64, Instant)>,
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
            last: None,
            challenge: None,
            discovered: None,
            issuer: None,
            renewal: None,
            rejected: None,
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
                None if state.challenge.is_none() && !self.can_start() => return Ok(None),
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
    /// No other token can be obtained now, or `refused` was refused when it was new: then the
    /// upstream does not refuse the token, but the request.
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
                Some(token) if state.is_rejected(token) => return Err(rejected()),
                _ => {
                    state.challenge = Some(challenge);
                    state.discovered = None;
                    self.renewal(&mut state)?
                }
            }
        };
        renewal.await
    }

    /// Returns whether a token can be obtained before the upstream has been asked.
    fn can_start(&self) -> bool {
        let is_user = matches!(self.settings.grant, Grant::AuthorizationCode { .. });
        is_user || self.settings.token_url.is_some()
    }

    /// Records that the upstream has refused a token that had just been issued, and returns the
    /// error for that request. For a while no other one is requested because of such refusals.
    pub fn reject(&self, token: &AccessToken) -> OAuthError {
        self.state.lock().rejected = Some((token.number, Instant::now() + REJECTED_PAUSE));
        rejected()
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
                state.last = Some(token.authorization());
                state.token = Some(token.clone());
            }
            Err(error) => self.fail(&mut state, error.clone()),
        }
        token
    }

    async fn request_token(&self) -> Result<IssuedToken, OAuthError> {
        let settings = &self.settings;
        let client = OAuthClient::new(&*self.http, settings);
        let (grant, registered) = match &settings.grant {
            Grant::AuthorizationCode { client: configured } => {
                return self.renew_sign_in(&client, configured.as_ref()).await;
            }
            Grant::ClientCredentials(client) => (TokenGrant::ClientCredentials, Some(client)),
            Grant::JwtBearer { assertion } => (TokenGrant::JwtBearer(assertion), None),
        };
        let known = self.state.lock().discovered.clone();
        let discovered = match known {
            Some(known) => known,
            None => self.discover(&client).await?,
        };
        let (resource, scope) = (discovered.resource(settings), discovered.scope(settings));
        let request = TokenRequest {
            grant,
            client: registered,
            server: &discovered.server,
            resource: resource.as_deref(),
            scope: scope.as_deref(),
        };
        request.send(&client).await
    }

    /// Returns the token of the user's sign-in. If it is the last one, it is renewed first: another
    /// process may have done that already.
    async fn renew_sign_in(
        &self,
        client: &OAuthClient<'_>,
        configured: Option<&RegisteredClient>,
    ) -> Result<IssuedToken, OAuthError> {
        let name = &*self.name;
        let needed = || OAuthError::SignInNeeded(format!("sign in with `weir login {name}`"));
        let vault = self.settings.state.as_deref().map(Vault::open_existing);
        let vault = vault.transpose()?.flatten().ok_or_else(needed)?;
        let lock = vault.lock(name).await?;
        let record = vault.read(name)?.filter(|record| record.is_of(&self.settings));
        let mut record = record.ok_or_else(needed)?;
        let is_new = {
            let state = self.state.lock();
            state.last.as_ref() != Some(&authorization(&record.access_token)?)
        };
        if is_new && record.is_fresh() {
            let (lifetime, token) = (record.rest(), record.access_token);
            return Ok(IssuedToken { token, refresh_token: None, lifetime });
        }
        let refresh_token = record.refresh_token.take().ok_or_else(needed)?;
        let registered = match configured {
            Some(configured) => configured.clone(),
            None => record.client(),
        };
        let server = record.server();
        let request = TokenRequest {
            grant: TokenGrant::Refresh(&refresh_token),
            client: Some(&registered),
            server: &server,
            resource: record.resource.as_deref(),
            scope: None,
        };
        match request.send(client).await {
            Ok(issued) => {
                record.renew(&issued, refresh_token);
                vault.write(name, &record, &lock)?;
                Ok(issued)
            }
            Err(OAuthError::SignInNeeded(text)) => {
                tracing::warn!(upstream = name, reason = text, "sign-in ended");
                vault.remove(name, &lock)?;
                Err(needed())
            }
            Err(error) => Err(error),
        }
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
            // The vault is read again.
            OAuthError::SignInNeeded(_) => SIGN_IN_PAUSE,
        };
        if state.failure.as_ref().is_none_or(|(_, last)| *last != error) {
            tracing::warn!(upstream = self.name, %error, ?pause, "no access token");
        }
        state.failure = Some((Instant::now() + pause, error));
    }
}

impl AccountState {
    fn is_rejected(&self, token: &AccessToken) -> bool {
        let is_it = |(number, until)| number == token.number && until > Instant::now();
        self.rejected.is_some_and(is_it)
    }
}

fn rejected() -> OAuthError {
    OAuthError::Refused("the upstream refuses an access token that is new".into())
}

impl AccessToken {
    fn new(issued: &IssuedToken, number: u64) -> Result<Self, OAuthError> {
        let times = issued.lifetime.map(|lifetime| {
            let now = Instant::now();
            // A token that lives shorter is renewed at most once a second.
            let lifetime = lifetime.max(MIN_LIFETIME);
            (now + lifetime.mul_f64(RENEWED_AT), now + lifetime)
        });
        Ok(Self { authorization: authorization(&issued.token)?, times, number })
    }
}

fn stopping() -> OAuthError {
    OAuthError::Unavailable("Weir is stopping".into())
}

/// Makes the `Authorization` header of an access token.
fn authorization(token: &Secret) -> Result<HeaderValue, OAuthError> {
    let text = Zeroizing::new(format!("Bearer {}", token.expose()));
    sensitive(&text)
}

/// Pauses after failures.
const BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(true);
/// Part of its lifetime after which a token is renewed.
const RENEWED_AT: f64 = 0.8;
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// Time for which a token that was refused when it was new is not replaced because of refusals.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);
/// Pause until the vault is read again for a sign-in.
const SIGN_IN_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use hyper::Uri;

    use super::*;
    use crate::oauth::testing::{Script, settings};
    use crate::oauth::vault::tests::record;
    use crate::oauth::{ClientCredential, ResourceIndicator, SignInRecord};
    use crate::timestamp::unix_time;

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
        assert_eq!(account.reject(&second), rejected());
        let renewed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert_eq!(renewed.map(|token| sent(&token)), Err(rejected()));
        assert_eq!(token(&account).await, Ok(Some("Bearer second".into())), "for other requests");
        assert!(script.requests().is_empty());
        tokio::time::advance(REJECTED_PAUSE).await;
        issue(&script, "third", 100);
        let renewed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert_eq!(renewed.map(|token| sent(&token)), Ok("Bearer third".into()));
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

    #[tokio::test(start_paused = true)]
    async fn a_sign_in_is_used_and_renewed_and_what_is_renewed_is_kept() {
        let state = tempfile::tempdir().expect("a folder");
        let open_account = || {
            open(Settings {
                grant: Grant::AuthorizationCode { client: None },
                state: Some(state.path().into()),
                ..settings()
            })
        };
        let (account, script) = open_account();
        let needed = || Err(OAuthError::SignInNeeded("sign in with `weir login hub`".into()));
        assert_eq!(token(&account).await, needed());
        assert!(!state.path().join("sign-in").exists(), "nothing is made before a sign-in");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        let expires = Some(unix_time().as_secs() + 1_000);
        let signed_in = SignInRecord { expires, ..record() };
        vault.write("hub", &signed_in, &lock).expect("written");
        drop(lock);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
        assert!(script.requests().is_empty());

        // Its token is refused: the refresh token is replaced, or stays.
        let response = r#"{"access_token":"second","token_type":"Bearer","expires_in":1000,"refresh_token":"next"}"#;
        script.document(TOKEN_URL, response);
        let first = account.token().await.expect("there").expect("a token");
        let second = account.renew(Some(&first), BearerChallenge::default()).await.expect("issued");
        assert_eq!(sent(&second), "Bearer second");
        let request = script.take_requests().pop().expect("a request");
        assert_eq!(request.uri(), TOKEN_URL);
        let form: Vec<_> = url::form_urlencoded::parse(request.body()).into_owned().collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            form,
            [
                pair("grant_type", "refresh_token"),
                pair("refresh_token", "hunter3"),
                pair("resource", "https://mcp.test/mcp")
            ]
        );
        let renewed = vault.read("hub").expect("readable").expect("a record");
        assert_eq!((renewed.generation, renewed.refresh_token), (5, Some("next".into())));
        // Another process uses what this one has renewed.
        let (other, other_script) = open_account();
        assert_eq!(token(&other).await, Ok(Some("Bearer second".into())));
        assert!(other_script.requests().is_empty());

        // A server that fails does not end the sign-in; one that refuses the refresh token does.
        script.fail(TOKEN_URL);
        let failed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
        assert!(vault.read("hub").expect("readable").is_some());
        tokio::time::advance(Duration::from_secs(75)).await;
        script.respond(TOKEN_URL, 400, r#"{"error":"invalid_grant"}"#);
        let failed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert_eq!(
            failed.map(|token| sent(&token)),
            needed().map(|_: Option<String>| String::new())
        );
        assert_eq!(vault.read("hub"), Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_in_for_another_url_or_issuer_is_not_used() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        let elsewhere = [
            SignInRecord { upstream: "https://mcp.test/other".into(), ..record() },
            SignInRecord { issuer: "https://evil.test".into(), ..record() },
            SignInRecord { client_id: "other".into(), ..record() },
        ];
        drop(lock);
        for signed_in in elsewhere {
            let lock = vault.lock("hub").await.expect("locked");
            vault.write("hub", &signed_in, &lock).expect("written");
            drop(lock);
            let client = RegisteredClient { id: "weir".into(), credential: ClientCredential::None };
            let (account, script) = open(Settings {
                grant: Grant::AuthorizationCode { client: Some(client) },
                issuer: Some("https://id.test".into()),
                state: Some(state.path().into()),
                ..settings()
            });
            assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
            assert!(script.requests().is_empty());
        }
    }
}
