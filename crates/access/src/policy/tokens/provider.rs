//! Keys of one provider: fetched by a task, cached, and looked up.
//!
//! Invariants: one fetch at a time, however many requests need it; because of unknown keys at most
//! one per [`UNKNOWN_KEY_REFETCH_INTERVAL`]. Keys are renewed long before they expire. While the
//! provider is unreachable, known keys remain valid for [`MAX_KEY_AGE`], and afterwards none is:
//! nothing is accepted unverified.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode, Uri};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::key::{Algorithm, VerificationKey};
use super::key_set::{KeySet, SkippedKey};
use super::{Settings, TokenError, discovery};
use crate::policy::AuthError;
use weir_base::net::http_send::HttpSend;
use weir_base::time::backoff::Backoff;

/// Identity provider. Requests look keys up, one task fetches them.
pub(super) struct Provider {
    pub(super) settings: Settings,
    /// Unique number, which is never reused.
    pub(super) number: u64,
    /// Token that stops the refresher task, once the task exists.
    pub(super) refresher_stop: OnceLock<CancellationToken>,
    state: watch::Sender<State>,
    /// Notified when a request has an unknown key id.
    refresh_requested: Notify,
}

/// Current keys and state of the fetches.
#[derive(Clone, Default)]
struct State {
    /// Keys, and the time of their last fetch.
    cached: Option<(Arc<KeySet>, Instant)>,
    /// Incremented with each key set that differs from the previous one.
    generation: u64,
    /// Number of completed fetches.
    fetches: u64,
    /// Start of the last fetch.
    fetch_began: Option<Instant>,
    is_fetching: bool,
}

impl Provider {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (state, refresher_stop) = (watch::Sender::default(), OnceLock::new());
        Arc::new(Self { settings, number, refresher_stop, state, refresh_requested: Notify::new() })
    }

    /// Returns the key that a token names, and the generation of its set. Waits for a fetch that is
    /// in progress or due.
    pub(super) async fn key(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(Arc<VerificationKey>, u64), AuthError> {
        let snapshot = self.state.borrow().clone();
        let found = snapshot.find(id, algorithm);
        let may_come = matches!(
            found,
            Err(AuthError::Unverifiable | AuthError::Token(TokenError::UnknownKey))
        );
        if !may_come || !self.request_fetch(&snapshot) {
            return found;
        }
        let mut state = self.state.subscribe();
        let fetched = async { state.wait_for(|now| now.fetches > snapshot.fetches).await.is_ok() };
        // Without a client listener no task fetches keys; and a fetch has its own limits.
        let _ = timeout(FETCH_WAIT, fetched).await;
        self.state.borrow().clone().find(id, algorithm)
    }

    /// Returns whether this generation of keys is current.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        let state = self.state.borrow();
        state.generation == generation && state.keys().is_some()
    }

    /// Requests a fetch; false if none is in progress and it is too early for another one.
    fn request_fetch(&self, snapshot: &State) -> bool {
        if snapshot.is_fetching {
            return true;
        }
        let due = snapshot.is_fetch_due();
        if due {
            self.refresh_requested.notify_one();
        }
        due
    }

    /// Refreshes the keys. Ends only when `stop` fires.
    pub(super) async fn run(self: Arc<Self>, http: Arc<dyn HttpSend>, stop: CancellationToken) {
        let mut refresher =
            JwksRefresher { provider: &self, http: &*http, jwks_uri: None, last_problem: None };
        let mut backoff = FETCH_BACKOFF;
        loop {
            self.state.send_modify(|state| {
                state.is_fetching = true;
                state.fetch_began = Some(Instant::now());
            });
            let Some(done) = stop.run_until_cancelled(refresher.renew()).await else { return };
            self.state.send_modify(|state| {
                state.is_fetching = false;
                state.fetches += 1;
            });
            let pause = match done {
                true => {
                    backoff.reset();
                    RENEWAL_INTERVAL
                }
                false => backoff.next_pause(),
            };
            if stop.run_until_cancelled(self.pause(pause)).await.is_none() {
                return;
            }
        }
    }

    /// Waits for this time, or until a fetch is requested and due.
    async fn pause(&self, time: Duration) {
        let refresh_requested = async {
            loop {
                self.refresh_requested.notified().await;
                // Several requests may have caused the fetch that has just ended.
                if self.state.borrow().is_fetch_due() {
                    return;
                }
            }
        };
        tokio::select! {
            () = refresh_requested => {}
            () = sleep(time) => {}
        }
    }
}

impl State {
    /// Returns the keys if they are not too old.
    fn keys(&self) -> Option<&KeySet> {
        let (keys, since) = self.cached.as_ref()?;
        (since.elapsed() < MAX_KEY_AGE).then_some(&**keys)
    }

    fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(Arc<VerificationKey>, u64), AuthError> {
        let key = self.keys().ok_or(AuthError::Unverifiable)?.find(id, algorithm)?;
        Ok((key, self.generation))
    }

    /// Returns whether keys may be fetched again because of an unknown one.
    fn is_fetch_due(&self) -> bool {
        self.fetch_began.is_none_or(|began| began.elapsed() >= UNKNOWN_KEY_REFETCH_INTERVAL)
    }
}

// === JwksRefresher ===

/// State of the refresher task beside the keys.
struct JwksRefresher<'a> {
    provider: &'a Provider,
    http: &'a dyn HttpSend,
    /// Discovered URL of the keys, and the time of its discovery.
    jwks_uri: Option<(Uri, Instant)>,
    /// Last logged problem, which is not logged again.
    last_problem: Option<String>,
}

impl JwksRefresher<'_> {
    /// Fetches the keys. Returns whether that succeeded, with new keys or the same ones.
    async fn renew(&mut self) -> bool {
        let name = &self.provider.settings.name;
        match self.fetch_keys().await {
            Ok((keys, skipped)) => {
                self.publish(keys);
                let malformed = describe(skipped.iter().filter(|key| key.is_malformed));
                let complaint = (!malformed.is_empty()).then_some(malformed);
                if self.last_problem == complaint {
                    return true;
                }
                match &complaint {
                    Some(skipped) => {
                        warn!(
                            provider = %name, %skipped,
                            "keys of the identity provider are malformed and ignored"
                        );
                    }
                    None => {
                        info!(
                            provider = %name,
                            "the keys of the identity provider can be used again"
                        )
                    }
                }
                self.last_problem = complaint;
                true
            }
            Err(why) => {
                // The URL of the keys may have changed.
                self.jwks_uri = None;
                if self.last_problem.as_ref() == Some(&why) {
                    debug!(
                        provider = %name, %why,
                        "the keys of the identity provider cannot be fetched"
                    );
                } else {
                    warn!(
                        provider = %name, %why,
                        "the keys of the identity provider cannot be fetched"
                    );
                }
                self.last_problem = Some(why);
                false
            }
        }
    }

    async fn fetch_keys(&mut self) -> Result<(KeySet, Vec<SkippedKey>), String> {
        let jwks_uri = self.jwks_uri().await?;
        let text = self.get(&jwks_uri).await?;
        let at_uri = |why: &str| format!("{jwks_uri}: {why}");
        let read = KeySet::parse(text, &self.provider.settings.algorithms);
        let (keys, skipped) = read.map_err(at_uri)?;
        match keys.is_empty() {
            true if skipped.is_empty() => Err(at_uri("there are no keys")),
            true => Err(at_uri(&format!("no key can be used: {}", describe(&skipped)))),
            false => Ok((keys, skipped)),
        }
    }

    async fn jwks_uri(&mut self) -> Result<Uri, String> {
        let Settings { issuer, jwks_uri, .. } = &self.provider.settings;
        if let Some(jwks_uri) = jwks_uri {
            return Ok(jwks_uri.clone());
        }
        if let Some((jwks_uri, since)) = &self.jwks_uri
            && since.elapsed() < JWKS_URI_MAX_AGE
        {
            return Ok(jwks_uri.clone());
        }
        let mut first = None;
        for url in discovery::metadata_urls(issuer)? {
            let read = self.get(&url).await.and_then(|document| {
                discovery::jwks_uri_from(issuer, document).map_err(|why| format!("{url}: {why}"))
            });
            match read {
                Ok(found) => {
                    self.jwks_uri = Some((found.clone(), Instant::now()));
                    return Ok(found);
                }
                Err(why) => _ = first.get_or_insert(why),
            }
        }
        Err(first.unwrap_or_default())
    }

    async fn get(&self, url: &Uri) -> Result<Bytes, String> {
        let got = timeout(FETCH_TIMEOUT, fetch(self.http, url)).await;
        let got = got
            .unwrap_or_else(|_| Err(format!("no response within {} s", FETCH_TIMEOUT.as_secs())));
        got.map_err(|why| format!("{url}: {why}"))
    }

    fn publish(&self, keys: KeySet) {
        self.provider.state.send_modify(|state| {
            let same = state.cached.take().map(|(known, _)| known);
            let same = same.filter(|known| known.equals(&keys));
            if same.is_none() {
                state.generation += 1;
            }
            state.cached = Some((same.unwrap_or_else(|| Arc::new(keys)), Instant::now()));
        });
    }
}

/// Fetches a document. The operator has configured the provider, which may be in a private network.
async fn fetch(http: &dyn HttpSend, url: &Uri) -> Result<Bytes, String> {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = url.clone();
    let response = http.send(request, MAX_DOCUMENT_BYTES, None).await?;
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        status => Err(format!("the response status is {status}")),
    }
}

fn describe<'a>(keys: impl IntoIterator<Item = &'a SkippedKey>) -> String {
    keys.into_iter().map(|key| key.what.as_str()).collect::<Vec<_>>().join("; ")
}

/// Interval at which keys are renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Shortest interval between fetches for unknown keys: a client may invent key ids.
pub(super) const UNKNOWN_KEY_REFETCH_INTERVAL: Duration = Duration::from_secs(30);
/// Age up to which keys that cannot be renewed remain valid.
pub(super) const MAX_KEY_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Age up to which the discovered URL is used.
const JWKS_URI_MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Pauses after failed fetches.
const FETCH_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Time limit per document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a request waits for a fetch: longer than all its documents may take.
const FETCH_WAIT: Duration = Duration::from_secs(16);
/// Largest document.
pub(super) const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
