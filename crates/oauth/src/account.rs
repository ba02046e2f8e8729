//! Account of Weir at one upstream: keeps its access token fresh.
//!
//! `token_state` decides, and the account does it: it has the lock, the refresh that runs, and the
//! watches.
//!
//! Invariants: a refresh does not end with the request that started it. Weir waits for the response
//! to a refresh token that was sent before it stops, for ten seconds at most.

mod client;
mod client_refresh;
mod refusals;
mod scope_demand;
mod scopes;
mod server_binding;
mod sign_in_refresh;
mod sign_in_state;
#[cfg(test)]
mod tests;
mod token_refresh;
mod token_state;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access_token::{AccessToken, TokenFinders, token_finders};
use super::challenge::BearerChallenge;
use super::vault::SignInNumber;
use super::{OAuthError, Settings};
use client::{AccountClient, stopping};
use scopes::Scopes;
use server_binding::ServerBinding;
use sign_in_state::{CHECK_INTERVAL, SignInState};
use token_refresh::TokenRefresh;
use token_state::{Action, Event, TokenState};
use watches::AccountWatches;
pub use watches::TokenOutcome;
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::secret::Secret;
use weir_base::tasks::sync::Mutex;
use weir_base::time::backoff::Backoff;

/// Account at one upstream, which all requests to it use.
pub struct Account {
    client: Arc<AccountClient>,
    state: Mutex<AccountState>,
    /// Whether the last refresh has failed, and no request was accepted since: only then does an
    /// accepted request need the lock.
    has_failed: AtomicBool,
    watches: AccountWatches,
}

struct AccountState {
    tokens: TokenState,
    /// Refresh that runs.
    running: Option<RunningRefresh>,
    server: ServerBinding,
    scopes: Scopes,
    sign_in: SignInState,
}

type RunningRefresh = Shared<BoxFuture<'static, Result<AccessToken, OAuthError>>>;

/// Token for a request, now or later.
enum Obtained {
    /// `None` if the request is sent without one.
    Now(Option<AccessToken>),
    Later(RunningRefresh),
}

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
        let runtime = Handle::current();
        let client = AccountClient { name, settings, http, tracker, runtime, stop };
        let sign_in = (!client.is_of_user()).then(SignInNumber::default);
        Arc::new(Self {
            client: Arc::new(client),
            state: Mutex::new(AccountState {
                tokens: TokenState::new(BACKOFF),
                running: None,
                server: ServerBinding::default(),
                scopes: Scopes::default(),
                sign_in: SignInState::default(),
            }),
            has_failed: AtomicBool::new(false),
            watches: AccountWatches::new(sign_in),
        })
    }

    /// Takes over from the account that this one replaces to which authorization server the
    /// credentials belong, and a refresh that could not be written.
    pub fn succeed(&self, before: &Self) {
        let (server, unwritten) = {
            let mut before = before.state.lock();
            (ServerBinding::succeed(&before.server), before.sign_in.take_unwritten())
        };
        let mut state = self.state.lock();
        state.server = server;
        state.sign_in.keep_unwritten(unwritten);
    }

    /// Returns whether a user signs in for it.
    pub fn is_of_user(&self) -> bool {
        self.client.is_of_user()
    }

    // === Tokens ===

    /// Returns a token for the next request; `None` if the upstream has not demanded one yet.
    ///
    /// # Errors
    ///
    /// There is no valid token, and none can be obtained now.
    pub async fn token(self: &Arc<Self>) -> Result<Option<AccessToken>, OAuthError> {
        let obtained = {
            let mut state = self.state.lock();
            let now = Instant::now();
            self.check_sign_in(&mut state, now);
            if let Some(error) = state.sign_in.unreadable().cloned() {
                self.watches.publish(TokenOutcome::Failed(error.clone()));
                return Err(error);
            }
            let can_request = self.client.can_begin() || state.server.challenge.is_some();
            let action = state.tokens.apply(Event::Needed { can_request }, now);
            self.obtain(&mut state, action)?
        };
        match obtained {
            Obtained::Now(token) => Ok(token),
            Obtained::Later(refresh) => refresh.await.map(Some),
        }
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
        let refused = refused.map(AccessToken::number);
        let demands_scope = challenge.demands_scope();
        if demands_scope
            && let Some(token) = scope_demand::follow(self, refused, &challenge).await?
        {
            return Ok(token);
        }
        let obtained = {
            let mut state = self.state.lock();
            let event = match demands_scope {
                true => Event::ScopesDemanded,
                false => Event::Refused(refused),
            };
            let action = state.tokens.apply(event, Instant::now());
            let is_believed = !matches!(action, Action::Use(_) | Action::RefuseRequest);
            if is_believed && !demands_scope {
                state.server.on_challenge(challenge);
            }
            self.obtain(&mut state, action)?
        };
        match obtained {
            Obtained::Now(token) => token.ok_or_else(|| self.client.token_refused()),
            Obtained::Later(refresh) => refresh.await,
        }
    }

    /// Records that the upstream has refused a token that [`Account::refresh`] has just returned,
    /// and returns the error for that request. For a while no other one is requested because of
    /// such refusals.
    pub async fn reject(&self, token: &AccessToken, challenge: &BearerChallenge) -> OAuthError {
        let error = if challenge.demands_scope() {
            let demanded = scope_demand::record(self, challenge).await;
            demanded.err().unwrap_or_else(|| self.client.token_refused())
        } else {
            let event = Event::RefusedWhenNew(token.number());
            self.state.lock().tokens.apply(event, Instant::now());
            self.client.token_refused()
        };
        self.watches.publish(TokenOutcome::Failed(error.clone()));
        error
    }

    /// Records that the upstream has accepted a token: if it was to be refreshed because the
    /// upstream had refused another request, then that request was the reason.
    pub fn accept(&self, token: &AccessToken) {
        if !self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        state.tokens.apply(Event::Accepted(token.number()), Instant::now());
        self.has_failed.store(state.tokens.has_failed(), Ordering::Relaxed);
    }

    /// Does what the state of the token demands.
    fn obtain(
        self: &Arc<Self>,
        state: &mut AccountState,
        action: Action,
    ) -> Result<Obtained, OAuthError> {
        match action {
            Action::None | Action::SendWithout => Ok(Obtained::Now(None)),
            Action::Use(token) => Ok(Obtained::Now(Some(token))),
            Action::UseAndRefresh(token) => {
                // A failure is logged, and the token is still valid.
                drop(self.start_or_join(state));
                Ok(Obtained::Now(Some(token)))
            }
            Action::Refresh | Action::Join => Ok(Obtained::Later(self.start_or_join(state))),
            Action::Fail(error) => Err(error),
            Action::RefuseRequest => Err(self.client.token_refused()),
        }
    }

    // === Refresh ===

    /// Starts a refresh, or returns the one that runs.
    fn start_or_join(self: &Arc<Self>, state: &mut AccountState) -> RunningRefresh {
        if let Some(running) = &state.running {
            return running.clone();
        }
        let (account, client) = (Arc::clone(self), &self.client);
        // The program waits for the exchanges of users' sign-ins at its very end, and says so.
        let tasks = match client.is_of_user() {
            true => TaskTracker::new(),
            false => client.tracker.clone(),
        };
        let refresh = TokenRefresh { account, sign_in: state.tokens.sign_in() }.run();
        let refresh = tasks.spawn_on(refresh, &client.runtime);
        let refresh = refresh.map(|ended| ended.unwrap_or_else(|_| Err(stopping())));
        let refresh = refresh.boxed().shared();
        state.running = Some(refresh.clone());
        refresh
    }

    // === Sign-in ===

    /// Returns the sign-in whose tokens are used; `None` if no user is signed in.
    pub fn sign_in(&self) -> Option<SignInNumber> {
        self.check_sign_in(&mut self.state.lock(), Instant::now());
        self.watches.sign_in()
    }

    /// Waits until another sign-in than this one is used, and returns it.
    pub async fn sign_in_other_than(&self, known: Option<SignInNumber>) -> Option<SignInNumber> {
        let mut changes = self.watches.sign_in_changes();
        loop {
            let present = self.sign_in();
            if present != known {
                return present;
            }
            match self.is_of_user() {
                true => tokio::select! {
                    _ = changes.changed() => {}
                    () = sleep(CHECK_INTERVAL) => {}
                },
                false => std::future::pending().await,
            }
        }
    }

    /// Waits until a user has signed in, if the account needs that; otherwise for ever.
    pub async fn sign_in_made(&self) {
        loop {
            sleep(CHECK_INTERVAL).await;
            let mut state = self.state.lock();
            self.check_sign_in(&mut state, Instant::now());
            if state.tokens.has_new_sign_in() {
                return;
            }
        }
    }

    /// Returns why a user has to sign in before the upstream can be used, as a text for the
    /// operator.
    pub fn sign_in_needed(&self) -> Option<String> {
        let state = self.state.lock();
        state.tokens.sign_in_needed(Instant::now()).map(str::to_owned)
    }

    /// Checks, once in a while, whether another process has changed the user's sign-in: the token
    /// of one that was removed or replaced is not used any more.
    fn check_sign_in(&self, state: &mut AccountState, now: Instant) {
        let known = state.tokens.sign_in();
        let Some(change) = state.sign_in.check(&self.client, known, now) else { return };
        let (version, token) = (change.version, change.token);
        state.tokens.apply(Event::SignInChanged { version, token }, now);
        self.watches.publish_sign_in(change.number);
    }

    // === Outcomes and secrets ===

    /// Watches the outcome of requests for tokens; equal ones count once.
    pub fn outcomes(&self) -> watch::Receiver<TokenOutcome> {
        self.watches.outcomes()
    }

    /// Finders of the tokens that servers must not show to others, whenever these change.
    pub fn token_finders(&self) -> watch::Receiver<TokenFinders> {
        self.watches.token_finders()
    }

    /// Returns whether a text of the upstream repeats a token, or the secret of the client.
    pub fn is_repeated_in(&self, text: &str) -> bool {
        let secret = token_finders(self.client.secret().map(Secret::expose));
        self.watches.finds_token_in(text) || secret.are_in(text.as_bytes())
    }
}

/// Pauses after failures.
const BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(true);
