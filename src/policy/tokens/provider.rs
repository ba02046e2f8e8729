//! One provider's keys: fetched, kept, and looked up.
//!
//! Promises: one fetch at a time, whoever asks; for a key that nobody knows at most one in
//! [`UNKNOWN_KEY_PAUSE`]; keys are renewed long before they are old. While the provider is away those that
//! are known go on for [`MAX_AGE`], and then none is: nothing is ever let in unchecked.
//! Knows nothing of: what tokens say.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::Uri;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::key::{Algorithm, Key};
use super::key_set::{Found, KeySet, LeftOut};
use super::{Bad, Fetch, Settings, discovery};
use crate::policy::Refusal;

/// A provider. The doors look keys up, one task fetches them.
pub(super) struct Provider {
    pub(super) settings: Settings,
    /// No other one ever has the same.
    pub(super) number: u64,
    /// What ends the task that keeps the keys, once there is one.
    pub(super) keeping: OnceLock<CancellationToken>,
    state: watch::Sender<State>,
    /// Somebody shows a key's id that is not known.
    wanted: Notify,
}

/// What is known at a moment.
#[derive(Clone, Default)]
struct State {
    held: Option<Held>,
    /// Grows with each set of keys that says something else than the one before.
    generation: u64,
    /// How many fetches have come to an end.
    fetches: u64,
    /// When the last one began.
    began: Option<Instant>,
    under_way: bool,
}

#[derive(Clone)]
struct Held {
    keys: Arc<KeySet>,
    since: Instant,
}

impl Provider {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (state, keeping) = (watch::Sender::default(), OnceLock::new());
        Arc::new(Self { settings, number, keeping, state, wanted: Notify::new() })
    }

    /// The key that a token names, and the generation of its set. Waits for a fetch that is under way or due.
    pub(super) async fn key(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(Arc<Key>, u64), Refusal> {
        let seen = self.state.borrow().clone();
        let found = seen.find(id, algorithm);
        let may_come =
            matches!(found, Err(Refusal::Unverifiable | Refusal::Token(Bad::UnknownKey)));
        if !may_come || !self.ask(&seen) {
            return found;
        }
        let mut state = self.state.subscribe();
        let fetched = async { state.wait_for(|now| now.fetches > seen.fetches).await.is_ok() };
        // Nobody fetches where no door is open; and a fetch has its own limits.
        let _ = timeout(PATIENCE, fetched).await;
        self.state.borrow().clone().find(id, algorithm)
    }

    /// Whether the keys of this generation are still those that count.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        let state = self.state.borrow();
        state.generation == generation && state.keys().is_some()
    }

    /// Asks for a fetch; false if none is under way and it is too early for another.
    fn ask(&self, seen: &State) -> bool {
        if seen.under_way {
            return true;
        }
        let due = seen.began.is_none_or(|began| began.elapsed() >= UNKNOWN_KEY_PAUSE);
        if due {
            self.wanted.notify_one();
        }
        due
    }

    /// Keeps the keys fresh. Ends only when `stop` fires.
    pub(super) async fn run(self: Arc<Self>, fetch: Arc<dyn Fetch>, stop: CancellationToken) {
        let mut keeper = Keeper { provider: &self, fetch: &*fetch, place: None, told: None };
        let mut pause = FIRST_PAUSE;
        loop {
            self.state.send_modify(|state| {
                state.under_way = true;
                state.began = Some(Instant::now());
            });
            let Some(done) = stop.run_until_cancelled(keeper.renew()).await else { return };
            self.state.send_modify(|state| {
                state.under_way = false;
                state.fetches += 1;
            });
            let rest = match done {
                true => {
                    pause = FIRST_PAUSE;
                    RENEWAL
                }
                false => {
                    let longer = (pause * 2).min(MAX_PAUSE);
                    std::mem::replace(&mut pause, longer)
                }
            };
            if stop.run_until_cancelled(self.rest(rest)).await.is_none() {
                return;
            }
        }
    }

    /// Waits for so long, or until somebody wants a key and it is not too early.
    async fn rest(&self, time: Duration) {
        let wanted = async {
            loop {
                self.wanted.notified().await;
                // Two may have asked for the fetch that is over now.
                let began = self.state.borrow().began;
                if began.is_none_or(|began| began.elapsed() >= UNKNOWN_KEY_PAUSE) {
                    return;
                }
            }
        };
        tokio::select! {
            () = wanted => {}
            () = sleep(time) => {}
        }
    }
}

impl State {
    /// The keys that are not too old.
    fn keys(&self) -> Option<&KeySet> {
        let held = self.held.as_ref()?;
        (held.since.elapsed() < MAX_AGE).then_some(&*held.keys)
    }

    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<(Arc<Key>, u64), Refusal> {
        match self.keys().ok_or(Refusal::Unverifiable)?.find(id, algorithm) {
            Found::Key(key) => Ok((key, self.generation)),
            Found::Unknown => Err(Bad::UnknownKey.into()),
            Found::OtherAlgorithm => Err(Bad::KeyMismatch.into()),
            Found::Ambiguous => Err(Bad::NoKeyId.into()),
        }
    }
}

// === Keeper ===

/// What the one task knows beside the keys.
struct Keeper<'a> {
    provider: &'a Provider,
    fetch: &'a dyn Fetch,
    /// Where the keys are, and since when that is known.
    place: Option<(Uri, Instant)>,
    /// What was said last: the same is not said again.
    told: Option<String>,
}

impl Keeper<'_> {
    /// Fetches the keys. Returns whether there are new ones, or the same anew.
    async fn renew(&mut self) -> bool {
        let name = &self.provider.settings.name;
        match self.fetch_keys().await {
            Ok((keys, left_out)) => {
                self.publish(keys);
                let junk = told(left_out.iter().filter(|key| key.is_junk));
                let complaint = (!junk.is_empty()).then_some(junk);
                if self.told == complaint {
                    return true;
                }
                match &complaint {
                    Some(left_out) => {
                        warn!(provider = %name, %left_out, "some keys of the identity provider cannot be used");
                    }
                    None => {
                        info!(provider = %name, "the keys of the identity provider are good again")
                    }
                }
                self.told = complaint;
                true
            }
            Err(why) => {
                // It may have moved.
                self.place = None;
                if self.told.as_ref() == Some(&why) {
                    debug!(provider = %name, %why, "the keys of the identity provider cannot be fetched");
                } else {
                    warn!(provider = %name, %why, "the keys of the identity provider cannot be fetched");
                }
                self.told = Some(why);
                false
            }
        }
    }

    async fn fetch_keys(&mut self) -> Result<(KeySet, Vec<LeftOut>), String> {
        let place = self.place().await?;
        let text = self.get(&place).await?;
        let said = |why: &str| format!("{place}: {why}");
        let read = KeySet::parse(text, &self.provider.settings.algorithms);
        let (keys, left_out) = read.map_err(said)?;
        match keys.is_empty() {
            true if left_out.is_empty() => Err(said("there are no keys")),
            true => Err(said(&format!("no key can be used: {}", told(&left_out)))),
            false => Ok((keys, left_out)),
        }
    }

    async fn place(&mut self) -> Result<Uri, String> {
        let Settings { issuer, jwks_uri, .. } = &self.provider.settings;
        if let Some(place) = jwks_uri {
            return Ok(place.clone());
        }
        if let Some((place, since)) = &self.place
            && since.elapsed() < PLACE_AGE
        {
            return Ok(place.clone());
        }
        let mut first = None;
        for place in discovery::places(issuer)? {
            let read = self.get(&place).await.and_then(|document| {
                discovery::read(issuer, document).map_err(|why| format!("{place}: {why}"))
            });
            match read {
                Ok(found) => {
                    self.place = Some((found.clone(), Instant::now()));
                    return Ok(found);
                }
                Err(why) => _ = first.get_or_insert(why),
            }
        }
        Err(first.unwrap_or_default())
    }

    async fn get(&self, place: &Uri) -> Result<Bytes, String> {
        let got = timeout(FETCH, self.fetch.fetch(place, MAX_DOCUMENT_BYTES)).await;
        let got = got.unwrap_or_else(|_| Err(format!("no answer within {} s", FETCH.as_secs())));
        got.map_err(|why| format!("{place}: {why}"))
    }

    fn publish(&self, keys: KeySet) {
        self.provider.state.send_modify(|state| {
            let same = state.held.take().filter(|held| held.keys.equals(&keys));
            if same.is_none() {
                state.generation += 1;
            }
            let keys = same.map_or_else(|| Arc::new(keys), |held| held.keys);
            state.held = Some(Held { keys, since: Instant::now() });
        });
    }
}

fn told<'a>(keys: impl IntoIterator<Item = &'a LeftOut>) -> String {
    keys.into_iter().map(|key| key.what.as_str()).collect::<Vec<_>>().join("; ")
}

/// How often keys are fetched anew.
const RENEWAL: Duration = Duration::from_secs(5 * 60);
/// How often at most they are fetched for the sake of a key that nobody knows: who shows one may make it up.
pub(super) const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(30);
/// How long keys count that cannot be renewed.
pub(super) const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the place of the keys is not asked for again.
const PLACE_AGE: Duration = Duration::from_secs(60 * 60);
/// The pauses after fetches in vain.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// How long a document may take.
const FETCH: Duration = Duration::from_secs(5);
/// How long a request waits for a fetch: longer than all its documents may take.
const PATIENCE: Duration = Duration::from_secs(16);
/// The largest document.
pub(super) const MAX_DOCUMENT_BYTES: usize = 256 * 1024;
