//! Account of Weir at one upstream: keeps its access token fresh.
//!
//! Invariants: at most one refresh runs at a time, and it does not end with the request that
//! started it. A sent refresh token is replaced in the vault before Weir stops. After a failure
//! nothing is requested until a pause has passed. A valid token is used if its refresh fails.

mod kept_sign_in;
mod refusals;
mod repetition;
mod scope_demand;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use hyper::header::HeaderValue;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access_token::{AccessToken, TokenFinders, token_finders, token_of};
use super::challenge::BearerChallenge;
use super::discovery::{Discovered, discover};
use super::step_up::StepUp;
use super::token_request::{IssuedToken, TokenGrant, TokenRequest};
use super::url_rules::OAuthClient;
use super::vault::{BoundClient, RecordVersion, SignInNumber, SignInRecord, binding};
use super::{Grant, OAuthError, Settings};
use kept_sign_in::LOOK_INTERVAL;
use refusals::RefusalPace;
use weir_base::net::http_send::HttpSend;
use weir_base::tasks::sync::Mutex;
use weir_base::time::backoff::Backoff;

/// Account at one upstream, which all requests to it use.
pub struct Account {
    /// Name of the upstream, for the log.
    name: String,
    settings: Settings,
    http: Arc<dyn HttpSend>,
    tracker: TaskTracker,
    /// Runtime that lives as long as the program: a request may come from one that ends earlier.
    runtime: Handle,
    stop: CancellationToken,
    state: Mutex<AccountState>,
    /// Whether the last refresh has failed, and no request was accepted since.
    has_failed: AtomicBool,
    outcome: watch::Sender<TokenOutcome>,
    /// Finders of the last two tokens: the former one may still be valid.
    finders: watch::Sender<TokenFinders>,
    /// Sign-in whose tokens are used; `None` if no user is signed in.
    sign_in: watch::Sender<Option<SignInNumber>>,
}

/// Outcome of the last request for a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TokenOutcome {
    /// None was requested yet.
    #[default]
    None,
    /// It was issued.
    Issued,
    /// It was not, for this reason.
    Failed(OAuthError),
}

struct AccountState {
    token: Option<AccessToken>,
    /// Last token, also if it was rejected: a sign-in with another one is new.
    last: Option<HeaderValue>,
    /// Last challenge of the upstream, with which its authorization server is discovered.
    challenge: Option<BearerChallenge>,
    /// Result of the discovery since that challenge.
    discovered: Option<Arc<Discovered>>,
    /// Issuers to which the credentials of clients belong, as far as that is known.
    bound: Vec<BoundClient>,
    /// Refresh that runs.
    refresh: Option<RunningRefresh>,
    /// Number of a token that the upstream has refused when it was new, and the time until which
    /// its refusals are not believed.
    rejected: Option<(u64, Instant)>,
    /// Number of the last token that the upstream has refused.
    refused: Option<u64>,
    /// Pause between refreshes because of refusals.
    pace: RefusalPace,
    failure: Option<RefreshFailure>,
    /// Time at which the sign-in in the vault is looked at again, and its version then.
    look: Option<Instant>,
    version: Option<RecordVersion>,
    /// Why the sign-in in the vault cannot be read: its tokens are not used.
    unreadable: Option<OAuthError>,
    /// Version of the sign-in that the refresh has written: it is no change by another process.
    written: Option<RecordVersion>,
    /// Sign-in whose refresh could not be written, before and after it.
    unwritten: Option<Box<(SignInRecord, SignInRecord)>>,
    backoff: Backoff,
    /// Scopes that were requested last, and those that the upstream has demanded since.
    scope: Option<String>,
    step_up: StepUp,
    /// Number of tokens so far.
    issued: u64,
}

/// Reason why no refresh is started until a time, unless the sign-in changes.
struct RefreshFailure {
    until: Instant,
    error: OAuthError,
    version: Option<RecordVersion>,
    /// Whether the upstream has accepted the token since.
    is_over: bool,
}

type RunningRefresh = Shared<BoxFuture<'static, Result<AccessToken, OAuthError>>>;

impl Account {
    /// Creates the account at the upstream of this name. Refreshes run in the current runtime until
    /// `stop` fires.
    pub fn new(
        name: String,
        settings: Settings,
        http: Arc<dyn HttpSend>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let state = Mutex::new(AccountState {
            token: None,
            last: None,
            challenge: None,
            discovered: None,
            bound: Vec::new(),
            refresh: None,
            rejected: None,
            refused: None,
            pace: RefusalPace::default(),
            failure: None,
            look: None,
            version: None,
            unreadable: None,
            written: None,
            unwritten: None,
            backoff: BACKOFF,
            scope: None,
            step_up: StepUp::default(),
            issued: 0,
        });
        let outcome = watch::Sender::default();
        let (has_failed, finders) = (AtomicBool::new(false), watch::Sender::default());
        let sign_in = (!settings.grant.is_of_user()).then(SignInNumber::default);
        let sign_in = watch::Sender::new(sign_in);
        Arc::new(Self {
            name,
            settings,
            http,
            tracker,
            runtime: Handle::current(),
            stop,
            state,
            has_failed,
            outcome,
            finders,
            sign_in,
        })
    }

    /// Takes over from the account that this one replaces to which authorization server the
    /// credentials belong, and a refresh that could not be written.
    pub fn succeed(&self, before: &Self) {
        let (bound, unwritten) = {
            let mut before = before.state.lock();
            (before.bound.clone(), before.unwritten.take())
        };
        let mut state = self.state.lock();
        (state.bound, state.unwritten) = (bound, unwritten);
    }

    /// Whether a user signs in for it.
    pub fn is_of_user(&self) -> bool {
        self.settings.grant.is_of_user()
    }

    /// Returns a token for the next request; `None` if the upstream has not demanded one yet.
    ///
    /// # Errors
    ///
    /// There is no valid token, and none can be obtained now.
    pub async fn token(self: &Arc<Self>) -> Result<Option<AccessToken>, OAuthError> {
        let refresh = {
            let mut state = self.state.lock();
            let now = Instant::now();
            self.look(&mut state, now);
            if let Some(error) = state.unreadable.clone() {
                self.publish(TokenOutcome::Failed(error.clone()));
                return Err(error);
            }
            match &state.token {
                Some(token) => match token.times {
                    Some((_, expires)) if expires <= now => self.running_refresh(&mut state)?,
                    Some((refresh, _)) if refresh <= now => {
                        let token = token.clone();
                        // A failure is logged, and the token is still valid.
                        let _ = self.running_refresh(&mut state);
                        return Ok(Some(token));
                    }
                    _ => return Ok(Some(token.clone())),
                },
                None if state.challenge.is_none() && !self.can_start() => return Ok(None),
                None => self.running_refresh(&mut state)?,
            }
        };
        refresh.await.map(Some)
    }

    /// Returns a token for a request that the upstream has refused with this challenge: another
    /// one than `refused`, which the request had. If the challenge demands scopes, the token has
    /// them.
    ///
    /// # Errors
    ///
    /// No other token can be obtained now, or `refused` was refused when it was new: then the
    /// upstream does not refuse the token, but the request.
    pub async fn refresh(
        self: &Arc<Self>,
        refused: Option<&AccessToken>,
        challenge: BearerChallenge,
    ) -> Result<AccessToken, OAuthError> {
        if let Some(token) = self.state.lock().token_other_than(refused) {
            return Ok(token);
        }
        if challenge.demands_scope()
            && let Some(token) = self.follow(refused, &challenge).await?
        {
            return Ok(token);
        }
        let refresh = {
            let mut state = self.state.lock();
            if state.token.as_ref().is_some_and(|token| state.is_rejected(token)) {
                return Err(self.rejected());
            }
            if !challenge.demands_scope() {
                let is_begun = state.refresh.is_some();
                if refused.is_some() && !is_begun && !state.pace.allows(Instant::now()) {
                    return Err(self.rejected());
                }
                state.challenge = Some(challenge);
                state.discovered = None;
                state.refused = refused.map(|token| token.number);
            }
            self.running_refresh(&mut state)?
        };
        refresh.await
    }

    /// Returns whether a token can be obtained before the upstream has been asked.
    fn can_start(&self) -> bool {
        self.settings.grant.is_of_user() || self.settings.token_url.is_some()
    }

    /// Returns why a user has to sign in before the upstream can be used, as a text for the
    /// operator.
    pub fn sign_in_needed(&self) -> Option<String> {
        let state = self.state.lock();
        if state.token.as_ref().is_some_and(|token| state.is_good_for_now(token)) {
            return None;
        }
        match &state.failure {
            Some(RefreshFailure {
                error: OAuthError::SignInNeeded(text), is_over: false, ..
            }) => Some(text.clone()),
            _ => None,
        }
    }

    /// Records that the upstream has accepted a token: if it was to be refreshed because the upstream
    /// had refused another request, then that request was the reason.
    pub fn accept(&self, token: &AccessToken) {
        if !self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let is_due = token.times.is_some_and(|(refresh, _)| refresh <= Instant::now());
        let is_current = state.token.as_ref().is_some_and(|it| it.number == token.number);
        if let Some(failure) = &mut state.failure
            && is_current
            && !is_due
        {
            failure.is_over = true;
            self.has_failed.store(false, Ordering::Relaxed);
        }
    }

    /// Finders of the tokens that servers must not show to others, whenever these change.
    pub fn token_finders(&self) -> watch::Receiver<TokenFinders> {
        self.finders.subscribe()
    }

    /// Returns the refresh that runs, or starts one.
    fn running_refresh(self: &Arc<Self>, state: &mut AccountState) -> Result<RunningRefresh, OAuthError> {
        if let Some(refresh) = &state.refresh {
            return Ok(refresh.clone());
        }
        if let Some(failure) = &state.failure
            && failure.until > Instant::now()
            && failure.version == state.version
        {
            return Err(failure.error.clone());
        }
        let account = Arc::clone(self);
        let version = state.version;
        // The program waits for the exchanges of users' sign-ins at its very end, and says so.
        let tasks = match self.settings.grant.is_of_user() {
            true => TaskTracker::new(),
            false => self.tracker.clone(),
        };
        let refresh = async move { account.run_refresh(version).await };
        let refresh = tasks.spawn_on(refresh, &self.runtime);
        let refresh = refresh.map(|ended| ended.unwrap_or_else(|_| Err(stopping())));
        let refresh = refresh.boxed().shared();
        state.refresh = Some(refresh.clone());
        Ok(refresh)
    }

    /// Requests a token. `version` is that of the sign-in before.
    async fn run_refresh(&self, version: Option<RecordVersion>) -> Result<AccessToken, OAuthError> {
        let issued = match self.settings.grant.is_of_user() {
            // It stops by itself, unless the server may have replaced the refresh token.
            true => self.request_token().await,
            false => self.unless_stopping(self.request_token()).await,
        };
        let issued = issued.map_err(|error| self.without_secrets(error));
        let mut state = self.state.lock();
        state.refresh = None;
        // The user may have signed in or out in the meantime.
        state.look = None;
        self.look(&mut state, Instant::now());
        let version = state.written.take().or(version);
        let number = state.issued + 1;
        let token = issued.and_then(|(issued, sign_in)| match *self.sign_in.borrow() {
            Some(present) if present == sign_in => AccessToken::new(&issued, sign_in, number),
            _ => Err(sign_in_replaced()),
        });
        match &token {
            Ok(token) => {
                tracing::debug!(upstream = self.name, "access token issued");
                state.issued = number;
                state.failure = None;
                state.pace.issued(Instant::now());
                self.has_failed.store(false, Ordering::Relaxed);
                state.backoff.reset();
                let last = state.last.replace(token.authorization());
                let tokens = [state.last.as_ref(), last.as_ref()];
                let tokens = tokens.into_iter().flatten().filter_map(token_of);
                self.finders.send_replace(token_finders(tokens));
                state.token = Some(token.clone());
                self.publish(TokenOutcome::Issued);
            }
            Err(error) => self.fail(&mut state, error.clone(), version),
        }
        token
    }

    async fn unless_stopping<T>(
        &self,
        work: impl Future<Output = Result<T, OAuthError>>,
    ) -> Result<T, OAuthError> {
        self.stop.run_until_cancelled(work).await.unwrap_or_else(|| Err(stopping()))
    }

    /// Requests a token, and returns it with the sign-in to which it belongs.
    async fn request_token(&self) -> Result<(IssuedToken, SignInNumber), OAuthError> {
        let settings = &self.settings;
        let client = OAuthClient::new(&*self.http, settings);
        let (grant, registered) = match &settings.grant {
            Grant::AuthorizationCode { client: configured } => {
                return self.refresh_sign_in(configured.as_ref()).await;
            }
            Grant::ClientCredentials(client) => (TokenGrant::ClientCredentials, Some(client)),
            Grant::JwtBearer { assertion } => (TokenGrant::JwtBearer(assertion), None),
        };
        let known = self.state.lock().discovered.clone();
        let discovered = match known {
            Some(known) => known,
            None => self.discover(&client).await?,
        };
        let resource = discovered.resource(settings);
        let scope = {
            let state = self.state.lock();
            state.step_up.widen(discovered.scope(settings), state.scope.as_deref())
        };
        let request = TokenRequest {
            grant,
            client: registered,
            server: &discovered.server,
            resource: resource.as_deref(),
            scope: scope.as_deref(),
        };
        let issued = request.send(&client).await;
        if issued.is_ok() {
            // From now on the credentials belong to this server.
            let (name, issuer) = (&*self.name, &discovered.server.issuer);
            if let Some(bound) = binding::note(name, settings, issuer).await {
                bound.keep_in(&mut self.state.lock().bound);
            }
        }
        let mut state = self.state.lock();
        match &issued {
            Ok(_) => state.scope = scope,
            Err(error) => {
                // The server may have moved.
                state.discovered = None;
                if let OAuthError::Refused(_) = error {
                    // Without the scopes that the upstream has demanded there is a token, perhaps.
                    let AccountState { scope, step_up, .. } = &mut *state;
                    step_up.forget(scope.as_deref());
                }
            }
        }
        drop(state);
        issued.map(|issued| (issued, SignInNumber::default()))
    }

    /// Discovers the authorization server, which must be the one to which the credentials belong.
    async fn discover(&self, client: &OAuthClient<'_>) -> Result<Arc<Discovered>, OAuthError> {
        let challenge = self.state.lock().challenge.clone().unwrap_or_default();
        let found = Arc::new(discover(client, &challenge).await?);
        let (name, settings, issuer) = (&*self.name, &self.settings, &found.server.issuer);
        let known = self.state.lock().bound.clone();
        binding::check(name, settings, &known, issuer)?;
        let mut state = self.state.lock();
        state.discovered = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Records a failure, and starts the pause after it.
    fn fail(&self, state: &mut AccountState, error: OAuthError, version: Option<RecordVersion>) {
        let pause = match error {
            OAuthError::Unavailable(_) => state.backoff.next_pause(),
            // Only the operator can change that.
            OAuthError::Refused(_) => state.backoff.longest_pause(),
            // The vault is read again.
            OAuthError::SignInNeeded(_) => LOOK_INTERVAL,
        };
        if self.publish(TokenOutcome::Failed(error.clone())) {
            tracing::warn!(upstream = self.name, %error, ?pause, "no access token");
        }
        self.has_failed.store(true, Ordering::Relaxed);
        let until = Instant::now() + pause;
        state.failure = Some(RefreshFailure { until, error, version, is_over: false });
    }

    /// Publishes an outcome, and returns whether it differs from the last one.
    fn publish(&self, outcome: TokenOutcome) -> bool {
        self.outcome.send_if_modified(|last| {
            let is_new = *last != outcome;
            *last = outcome;
            is_new
        })
    }

    /// Watches the outcome of requests for tokens; equal ones count once.
    pub fn outcomes(&self) -> watch::Receiver<TokenOutcome> {
        self.outcome.subscribe()
    }
}

impl AccountState {
    /// Returns the token, if it is not the one that was refused.
    fn token_other_than(&self, refused: Option<&AccessToken>) -> Option<AccessToken> {
        let is_other = |token: &&AccessToken| refused.is_none_or(|it| it.number != token.number);
        self.token.as_ref().filter(is_other).cloned()
    }

    /// Returns whether a token is still accepted, although it was to be refreshed.
    fn is_good_for_now(&self, token: &AccessToken) -> bool {
        let now = Instant::now();
        let is_due = token.times.is_some_and(|(refresh, expires)| refresh <= now && now < expires);
        is_due && self.refused != Some(token.number)
    }

    fn is_rejected(&self, token: &AccessToken) -> bool {
        let is_it = |(number, until)| number == token.number && until > Instant::now();
        self.rejected.is_some_and(is_it)
    }
}

fn sign_in_replaced() -> OAuthError {
    OAuthError::Unavailable("a user has signed in or out in the meantime".into())
}

fn stopping() -> OAuthError {
    OAuthError::Unavailable("Weir is stopping".into())
}

/// Pauses after failures.
const BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(true);

#[cfg(test)]
pub(super) mod tests {
    use hyper::Uri;

    use super::refusals::{MAX_REFUSAL_PAUSE, REJECTED_PAUSE};
    use super::*;
    use crate::testing::{Script, settings};
    use crate::{ClientCredential, RegisteredClient, ResourceIndicator};

    pub(super) const TOKEN_URL: &str = "https://id.test/token";

    /// Account with a configured token endpoint, and its network.
    fn account() -> (Arc<Account>, Arc<Script>) {
        let token_url = Some(Uri::from_static(TOKEN_URL));
        open(Settings { token_url, ..settings() })
    }

    pub(super) fn open(settings: Settings) -> (Arc<Account>, Arc<Script>) {
        let script = Arc::new(Script::default());
        let (http, tracker) = (Arc::clone(&script), TaskTracker::new());
        let (name, stop) = ("hub".to_owned(), CancellationToken::new());
        (Account::new(name, settings, http, tracker, stop), script)
    }

    pub(super) fn issue(script: &Script, token: &str, seconds: u64) {
        let text =
            format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{seconds}}}"#);
        script.document(TOKEN_URL, &text);
    }

    pub(super) fn sent(token: &AccessToken) -> String {
        assert!(token.authorization().is_sensitive());
        token.authorization().to_str().expect("text").to_owned()
    }

    pub(super) async fn token(account: &Arc<Account>) -> Result<Option<String>, OAuthError> {
        account.token().await.map(|token| token.as_ref().map(sent))
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_refreshed_before_it_expires_and_no_request_waits_for_that() {
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
        let refresh = account.state.lock().refresh.clone().expect("it runs");
        refresh.await.expect("refreshed");
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
    async fn a_refused_token_is_refreshed_once_for_all_requests_that_had_it() {
        let (account, script) = account();
        issue(&script, "first", 100);
        let first = account.token().await.expect("issued").expect("a token");
        script.requests();
        issue(&script, "second", 100);
        let refreshes = (0..50).map(|_| account.refresh(Some(&first), BearerChallenge::default()));
        let all = futures::future::join_all(refreshes).await;
        assert!(all.iter().all(|it| it.as_ref().map(sent) == Ok("Bearer second".into())));
        assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
        // The upstream refuses the new one, too.
        let second = account.token().await.expect("issued").expect("a token");
        assert_eq!(account.reject(&second, &BearerChallenge::default()).await, account.rejected());
        let refreshed = account.refresh(Some(&second), BearerChallenge::default()).await;
        assert_eq!(refreshed.map(|token| sent(&token)), Err(account.rejected()));
        assert_eq!(token(&account).await, Ok(Some("Bearer second".into())), "for other requests");
        assert!(script.requests().is_empty());
        tokio::time::advance(REJECTED_PAUSE).await;
        issue(&script, "third", 100);
        let refreshed = account.refresh(Some(&second), BearerChallenge::default()).await;
        assert_eq!(refreshed.map(|token| sent(&token)), Ok("Bearer third".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn refreshes_because_of_refusals_have_a_pace_and_each_caller_a_response_at_once() {
        let (account, script) = account();
        issue(&script, "first", 100_000);
        let mut last = account.token().await.expect("issued").expect("a token");
        script.requests();
        // Each token is refused at its first use, and the next one is accepted.
        let (mut refreshed, mut refused) = (0, 0);
        for _ in 0..1_200 {
            match account.refresh(Some(&last), BearerChallenge::default()).await {
                Ok(next) => (last, refreshed) = (next, refreshed + 1),
                Err(error) => {
                    assert_eq!(error, account.rejected());
                    refused += 1;
                }
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(script.requests().len(), refreshed);
        assert!((5..=10).contains(&refreshed), "{refreshed} refreshes in 2 min, {refused} refused");
        assert_eq!(token(&account).await, Ok(Some("Bearer first".into())), "for other requests");
        // One that has lived for long is refreshed at once.
        tokio::time::advance(MAX_REFUSAL_PAUSE).await;
        let refreshed = account.refresh(Some(&last), BearerChallenge::default()).await;
        refreshed.expect("refreshed");
    }

    #[tokio::test(start_paused = true)]
    async fn the_binding_of_credentials_outlives_a_restart_and_changes_with_the_configuration() {
        let state = tempfile::tempdir().expect("a folder");
        let kept = Settings { state: Some(state.path().into()), ..settings() };
        let place = "https://mcp.test/.well-known/oauth-protected-resource/mcp";
        let begin = async |settings: Settings, issuer: &str| {
            let (account, script) = open(settings);
            let resource = format!(
                r#"{{"resource":"https://mcp.test/mcp","authorization_servers":["{issuer}"]}}"#
            );
            script.document(place, &resource);
            let metadata = format!(r#"{{"issuer":"{issuer}","token_endpoint":"{TOKEN_URL}"}}"#);
            script.document(&format!("{issuer}/.well-known/oauth-authorization-server"), &metadata);
            issue(&script, "token", 100);
            let issued = account.refresh(None, BearerChallenge::default()).await;
            let posts = script.requests().iter().filter(|it| it.starts_with("POST")).count();
            (issued.map(|token| sent(&token)), posts)
        };
        let of_client = |id: &str| Settings {
            grant: Grant::ClientCredentials(RegisteredClient {
                id: id.into(),
                credential: ClientCredential::Secret("hunter2".into()),
            }),
            ..kept.clone()
        };
        let issued = || (Ok("Bearer token".to_owned()), 1);
        let error = |issuer: &str, before: &str| {
            let text = format!(
                "the upstream names the authorization server {issuer} instead of {before}: if that \
                 is right, set auth.issuer"
            );
            (Err(OAuthError::Refused(text)), 0)
        };
        let (first, other) = ("https://id.test", "https://evil.test");
        assert_eq!(begin(of_client("weir"), first).await, issued());
        assert_eq!(begin(of_client("weir"), other).await, error(other, first));
        // The call limit, or the URL, is another one.
        let elsewhere = Settings { url_hash: "another".into(), ..of_client("weir") };
        assert_eq!(begin(elsewhere, other).await, error(other, first));
        let pinned = Settings { issuer: Some(other.into()), ..of_client("weir") };
        assert_eq!(begin(pinned, other).await, issued());
        assert_eq!(begin(of_client("weir"), first).await, error(first, other));
        assert_eq!(begin(of_client("next"), first).await, issued());
        assert_eq!(begin(of_client("next"), other).await, error(other, first));
        // Those of the former client are still bound.
        assert_eq!(begin(of_client("weir"), first).await, error(first, other));
        // Without a state folder the account that replaces another one knows it.
        let (before, _) = open(settings());
        for (id, issuer) in [("weir", first), ("next", other)] {
            let bound = BoundClient { client_id: Some(id.into()), issuer: issuer.into() };
            bound.keep_in(&mut before.state.lock().bound);
        }
        let (after, script) = open(settings());
        after.succeed(&before);
        script.document(
            "https://mcp.test/.well-known/oauth-authorization-server",
            r#"{"issuer":"https://mcp.test","token_endpoint":"https://mcp.test/token"}"#,
        );
        let refused = after.refresh(None, BearerChallenge::default()).await;
        let text = error("https://mcp.test", first).0;
        assert_eq!(refused.map(|token| sent(&token)), text);
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_metadata_repeat_is_not_shown() {
        let (secret, access_token) = ("canary-of-a-client-secret", "canary-of-an-access-token");
        let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let own = "https://mcp.test/.well-known/oauth-protected-resource/mcp";
        let place = "https://id.test/.well-known/oauth-authorization-server";
        let resource =
            r#"{"resource":"https://mcp.test/mcp","authorization_servers":["https://id.test"]}"#;
        let server = r#"{"issuer":"https://id.test","token_endpoint":"https://id.test/token"}"#;
        for canary in [secret.to_owned(), access_token.to_owned(), percent(secret)] {
            for (url, document) in [
                (own, resource.replace("mcp.test/mcp", &format!("mcp.test/{canary}"))),
                (own, resource.replace("id.test", &format!("evil.test/{canary}"))),
                (own, resource.replace(r#"["https://id.test"]"#, &format!("\"{canary}\""))),
                (place, server.replace("id.test\"", &format!("id.test/{canary}\""))),
                (place, server.replace("https://id.test/token", &canary)),
                (place, server.replace("/token", &format!("/{canary}"))),
            ] {
                let credential = ClientCredential::Secret(secret.into());
                let client = RegisteredClient { id: "weir".into(), credential };
                let grant = Grant::ClientCredentials(client);
                let (account, script) = open(Settings { grant, ..settings() });
                script.document(own, resource);
                script.document(place, server);
                issue(&script, access_token, 100);
                let issued = account.refresh(None, BearerChallenge::default()).await;
                script.document(url, &document);
                let failed = account.refresh(issued.as_ref().ok(), BearerChallenge::default()).await;
                let error = failed.expect_err(&document).to_string();
                assert!(error.contains("***") && !error.contains(&canary), "{error}");
                assert!(account.is_repeated_in(&canary));
                let outcome = format!("{:?}", *account.outcomes().borrow());
                assert!(!outcome.contains(&canary), "{outcome}");
            }
        }
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
        let first = account.refresh(None, BearerChallenge::default()).await.expect("issued");
        assert_eq!(sent(&first), "Bearer first");
        script.requests();
        script.document(place, &resource("https://evil.test"));
        let refreshed = account.refresh(Some(&first), BearerChallenge::default()).await;
        let error = "the upstream names the authorization server https://evil.test instead of \
                     https://id.test: if that is right, set auth.issuer";
        assert_eq!(refreshed.map(|token| sent(&token)), Err(OAuthError::Refused(error.into())));
        let requests = script.requests();
        assert!(requests.iter().all(|request| request.starts_with("GET ")), "{requests:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_moved_is_found_after_a_failure() {
        let (account, script) = open(settings());
        let place = "https://mcp.test/.well-known/oauth-authorization-server";
        let moved = |to: &str| {
            format!(r#"{{"issuer":"https://mcp.test","token_endpoint":"https://mcp.test/{to}"}}"#)
        };
        script.document(place, &moved("token"));
        let issued = r#"{"access_token":"x","token_type":"Bearer","expires_in":10}"#;
        script.document("https://mcp.test/token", issued);
        account.refresh(None, BearerChallenge::default()).await.expect("issued");
        script.respond("https://mcp.test/token", 404, "");
        script.document(place, &moved("new"));
        script.document("https://mcp.test/new", issued);
        tokio::time::advance(Duration::from_secs(11)).await;
        token(&account).await.expect_err("the former endpoint is gone");
        tokio::time::advance(Duration::from_secs(75)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer x".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_names_the_configured_scopes_and_resource_or_those_of_the_upstream() {
        let place = "https://mcp.test/.well-known/oauth-protected-resource";
        let metadata = r#"{"resource":"https://mcp.test","authorization_servers":["https://mcp.test"],"scopes_supported":["x","y"]}"#;
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
            (
                true,
                Settings {
                    resource: ResourceIndicator::None,
                    scopes: Some(vec![]),
                    params: vec![("audience".into(), "urn:y".into())],
                    ..settings()
                },
                [Some(("audience".to_owned(), "urn:y".to_owned())), None],
            ),
        ] {
            let (account, script) = open(settings);
            if has_metadata {
                script.document(place, metadata);
            }
            script.document(
                "https://mcp.test/.well-known/oauth-authorization-server",
                r#"{"issuer":"https://mcp.test","token_endpoint":"https://mcp.test/token"}"#,
            );
            script.document(
                "https://mcp.test/token",
                r#"{"access_token":"x","token_type":"Bearer"}"#,
            );
            account.refresh(None, BearerChallenge::default()).await.expect("issued");
            let request = script.take_requests().pop().expect("a request");
            let form = url::form_urlencoded::parse(request.body()).into_owned();
            let grant = ("grant_type".to_owned(), "client_credentials".to_owned());
            let expected: Vec<_> = [Some(grant)].into_iter().chain(expected).flatten().collect();
            assert_eq!(form.collect::<Vec<_>>(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_outlives_the_request_that_started_it_and_ends_with_weir() {
        let (account, script) = account();
        issue(&script, "first", 100);
        let mut request = std::pin::pin!(account.token());
        assert!(futures::poll!(&mut request).is_pending());
        let refresh = account.state.lock().refresh.clone().expect("it runs");
        // The request is not polled any more.
        assert_eq!(refresh.await.as_ref().map(sent), Ok("Bearer first".into()));
        let (account, _) = super::tests::account();
        account.stop.cancel();
        assert_eq!(token(&account).await, Err(stopping()));
    }

    #[test]
    fn a_refresh_outlives_the_runtime_of_the_request_that_started_it() {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().expect("a runtime")
        };
        let (program, worker) = (runtime(), runtime());
        let (account, script) = program.block_on(async { account() });
        issue(&script, "first", 100);
        worker.block_on(async { assert!(account.token().now_or_never().is_none()) });
        drop(worker);
        assert_eq!(program.block_on(token(&account)), Ok(Some("Bearer first".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_follows_a_demand_for_scopes_and_keeps_them() {
        let (account, script) = account();
        let demand = |scope: &str| BearerChallenge {
            scope: Some(scope.into()),
            error: Some("insufficient_scope".into()),
            ..BearerChallenge::default()
        };
        let requested = || {
            let request = script.take_requests().pop().expect("a request");
            let form = url::form_urlencoded::parse(request.body()).into_owned();
            form.into_iter().find(|(name, _)| name == "scope").map(|(_, scope)| scope)
        };
        issue(&script, "first", 100);
        let first = account.token().await.expect("issued").expect("a token");
        assert_eq!(requested(), None);
        issue(&script, "second", 100);
        let refreshes = (0..50).map(|_| account.refresh(Some(&first), demand("a b")));
        let all = futures::future::join_all(refreshes).await;
        assert!(all.iter().all(|it| it.as_ref().map(sent) == Ok("Bearer second".into())));
        assert_eq!(requested().as_deref(), Some("a b"));
        let second = account.token().await.expect("issued").expect("a token");
        // What was requested does not help; something else is requested with it.
        let refused = account.reject(&second, &demand("b")).await;
        let expected = "the upstream demands b, a scope that was requested, and was not granted or \
                        is not enough";
        assert_eq!(refused.to_string(), expected);
        let refused = account.refresh(Some(&second), demand("b")).await.map(|token| sent(&token));
        assert_eq!(refused, Err(OAuthError::Refused(expected.into())));
        assert!(script.requests().is_empty());
        issue(&script, "third", 100);
        let third = account.refresh(Some(&second), demand("c")).await.expect("issued");
        assert_eq!(requested().as_deref(), Some("a b c"));
        let refused = account.refresh(Some(&third), demand("d")).await;
        assert!(refused.is_err_and(|error| error.to_string().ends_with("try again in 10 min")));
        tokio::time::advance(Duration::from_secs(81)).await;
        issue(&script, "fourth", 100);
        token(&account).await.expect("valid");
        let refresh = account.state.lock().refresh.clone().expect("it runs");
        refresh.await.expect("refreshed");
        assert_eq!(requested().as_deref(), Some("a b c"));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_with_the_same_demand_share_a_token_and_none_joins_a_refresh_without_it() {
        let (account, script) = account();
        let demand = BearerChallenge {
            scope: Some("c".into()),
            error: Some("insufficient_scope".into()),
            ..BearerChallenge::default()
        };
        issue(&script, "first", 100);
        let first = account.token().await.expect("issued").expect("a token");
        tokio::time::advance(Duration::from_secs(85)).await;
        script.requests();
        issue(&script, "second", 100);
        account.token().await.expect("still valid");
        let (one, other) = tokio::join!(
            account.refresh(Some(&first), demand.clone()),
            account.refresh(Some(&first), demand.clone())
        );
        let [one, other] = [one, other].map(|refreshed| refreshed.expect("issued").number);
        assert_eq!((one, other), (3, 3));
        let requests = script.take_requests();
        let scopes: Vec<_> = requests
            .iter()
            .map(|request| String::from_utf8_lossy(request.body()).contains("scope=c"))
            .collect();
        assert_eq!(scopes, [false, true]);
        // What cannot be followed is recorded once.
        let third = account.token().await.expect("there").expect("a token");
        let mut outcomes = account.outcomes();
        for is_new in [true, false] {
            account.reject(&third, &demand).await;
            assert_eq!(outcomes.has_changed().expect("open"), is_new);
            outcomes.mark_unchanged();
        }
        assert!(matches!(*outcomes.borrow(), TokenOutcome::Failed(OAuthError::Refused(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn scopes_that_the_authorization_server_refuses_do_not_end_the_account() {
        let (account, script) = account();
        issue(&script, "first", 100);
        let first = account.token().await.expect("issued").expect("a token");
        script.respond(TOKEN_URL, 400, r#"{"error":"invalid_scope"}"#);
        let demand = BearerChallenge {
            scope: Some("unknown".into()),
            error: Some("insufficient_scope".into()),
            ..BearerChallenge::default()
        };
        let refused = account.refresh(Some(&first), demand).await;
        assert!(matches!(refused, Err(OAuthError::Refused(_))), "{refused:?}");
        assert_eq!(token(&account).await, Ok(Some("Bearer first".into())));
        script.requests();
        issue(&script, "second", 100);
        tokio::time::advance(Duration::from_secs(81)).await;
        token(&account).await.expect("valid");
        let refresh = account.state.lock().refresh.clone().expect("it runs");
        assert_eq!(refresh.await.as_ref().map(sent), Ok("Bearer second".into()));
        let request = script.take_requests().pop().expect("a request");
        let mut form = url::form_urlencoded::parse(request.body());
        assert!(form.all(|(name, _)| name != "scope"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_credentials_belong_to_the_first_server_that_has_issued_a_token() {
        let (account, script) = open(settings());
        let place = "https://mcp.test/.well-known/oauth-protected-resource";
        let name_server = |issuer: &str| {
            let text = format!(
                r#"{{"resource":"https://mcp.test/mcp","authorization_servers":["{issuer}"]}}"#
            );
            script.document(place, &text);
            let text =
                format!(r#"{{"issuer":"{issuer}","token_endpoint":"https://id.test/token"}}"#);
            script.document(&format!("{issuer}/.well-known/oauth-authorization-server"), &text);
        };
        name_server("https://down.test");
        script.fail(TOKEN_URL);
        let failed = account.refresh(None, BearerChallenge::default()).await;
        assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
        name_server("https://id.test");
        issue(&script, "first", 100);
        tokio::time::advance(Duration::from_secs(5)).await;
        let issued = account.refresh(None, BearerChallenge::default()).await;
        assert_eq!(issued.as_ref().map(sent), Ok("Bearer first".into()));
    }
}
