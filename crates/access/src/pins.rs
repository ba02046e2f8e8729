//! Definition pinning: definitions that were reviewed once do not change unnoticed.
//!
//! A server may list harmless tools while they are reviewed, and others later. A [`Pins`] stores a
//! [`Digest`] of each definition of a tool, prompt or resource template, and of each upstream's
//! instructions, and compares lists with the approved digests. It filters lists before they reach
//! the catalog ([`Pins::filter_approved`]), so that no later code can omit the check.
//!
//! Approved digests are stored in a [`PinFile`] file. In mode `enforce`, an upstream's first list
//! of a kind is approved and written there; in `locked` only the operator writes. A first list is
//! not served before it is in the file, so that trust survives a restart.
//!
//! Texts of approved definitions are stored beside (`approved_texts`), so that a difference can be
//! shown.
//!
//! Invariants: in these two modes, whatever leaves [`Pins::filter_approved`] has a digest that is
//! approved at that moment. An unreadable lock file approves nothing new, and earlier approvals
//! stay valid.
//!
//! Decision: docs/decisions/0016-pinning.md

mod approved_texts;
mod definition_texts;
mod difference_log;
mod digest;
mod lock;
mod observer;
mod reload;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use approved_texts::ApprovedTexts;
pub use approved_texts::TextUnavailable;
pub use definition_texts::DefinitionTexts;
use definition_texts::KeptTexts;
use difference_log::{fingerprint, log_differences};
pub use digest::{BadDigest, Digest};
pub use lock::{BadLock, PINNED, PinFile, Pinned};
use lock::{Stamp, kind_index, stamp};
pub use observer::{ApprovalObserver, ObserveApproval};
pub use state::Change;
use state::ListedItems;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::tasks::cpu_bound;
use weir_base::tasks::sync::{Mutex, MutexGuard};
use weir_mcp::definition::item::Item;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// Treatment of definitions that were not approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// No check.
    Off,
    /// They are served, and stored for review.
    Review,
    /// They are served, and logged.
    Alert,
    /// They are not served; the first list of an upstream is approved.
    Enforce,
    /// They are not served, and only the operator approves.
    Locked,
}

/// Settings of pinning.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Mode of each upstream.
    pub modes: Vec<(UpstreamName, Mode)>,
    /// Lock file; with `None` approvals are in memory only.
    pub file: Option<PathBuf>,
    /// Folder for the texts of approved definitions; with `None` they are not stored.
    pub texts: Option<PathBuf>,
    /// Secrets of the configuration of each upstream, which its server knows and may repeat.
    pub secrets: Vec<(UpstreamName, Vec<Secret>)>,
    /// Callback for changes of the approvals.
    pub observer: ApprovalObserver,
}

/// Difference between a listed definition and the approved one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The upstream.
    pub upstream: UpstreamName,
    /// Kind of the item; `None` for instructions.
    pub kind: Option<Kind>,
    /// Name or URI template of the item at the upstream.
    pub key: String,
    /// The difference.
    pub change: Change,
}

/// Pinned definitions of all upstreams.
pub struct Pins {
    modes: HashMap<UpstreamName, Mode>,
    file: Option<PathBuf>,
    texts: Option<ApprovedTexts>,
    secrets: HashMap<UpstreamName, SecretPatterns>,
    no_secrets: SecretPatterns,
    observer: ApprovalObserver,
    shared: SharedState,
}

/// Part of the pins that those of the next configuration continue.
#[derive(Clone, Default)]
struct SharedState {
    lists: Arc<Mutex<State>>,
    /// Incremented when the approvals change.
    approved: watch::Sender<u64>,
    hasher: RandomState,
}

#[derive(Default)]
struct State {
    lock: PinFile,
    /// Identity of the file that the lock was read from.
    stamp: Option<Stamp>,
    /// Reason why the file cannot be used, which is logged once.
    last_problem: Option<String>,
    /// True if the same file may become usable again.
    may_recover: bool,
    kept: KeptTexts,
    upstreams: HashMap<UpstreamName, UpstreamLists>,
}

/// Last lists and instructions of one upstream.
#[derive(Default)]
struct UpstreamLists {
    instructions: Option<Option<Digest>>,
    /// Text of the instructions, stored in mode `review` only.
    instructions_text: Option<Arc<str>>,
    kinds: [Option<KindList>; 3],
}

struct KindList {
    listed: Arc<ListedItems>,
    /// Definitions, stored in mode `review` only.
    items: Vec<Item>,
    /// List at the time of the last match. It shows which members changed later; without a lock
    /// file it is the approved list.
    first: Arc<ListedItems>,
    /// Fingerprint of the last logged differences.
    logged: u64,
}

impl Default for Pins {
    /// Creates pins without any upstream.
    fn default() -> Self {
        Self::open(Settings::default())
    }
}

impl Pins {
    /// Reads the lock file, if there is one and any upstream is pinned.
    pub(crate) fn open(settings: Settings) -> Self {
        Self::with_state(settings, SharedState::default())
    }

    /// Creates the pins of other settings, with the state of these ones if the file is the same.
    pub fn with_settings(&self, settings: Settings) -> Self {
        let texts = settings.texts.clone().map(ApprovedTexts::new);
        let is_same_file = settings.file == self.file && texts == self.texts;
        let shared = if is_same_file { self.shared.clone() } else { SharedState::default() };
        Self::with_state(settings, shared)
    }

    fn with_state(settings: Settings, shared: SharedState) -> Self {
        let Settings { modes, file, texts, secrets, observer } = settings;
        let modes = modes.into_iter().filter(|(_, mode)| *mode != Mode::Off);
        let secrets = secrets.into_iter().map(|(upstream, secrets)| {
            let long = secrets.iter().map(Secret::expose);
            let long = long.filter(|secret| secret.len() >= MIN_SECRET_BYTES);
            (upstream, SecretPatterns::new(long))
        });
        let pins = Self {
            modes: modes.collect(),
            file,
            texts: texts.map(ApprovedTexts::new),
            secrets: secrets.collect(),
            no_secrets: SecretPatterns::default(),
            observer,
            shared,
        };
        if !pins.modes.is_empty() {
            reload::reload(&pins);
        }
        pins
    }

    /// Returns whether unapproved definitions of this upstream are withheld.
    pub fn enforces(&self, upstream: &UpstreamName) -> bool {
        self.mode(upstream) >= Mode::Enforce
    }

    /// Returns a receiver that changes with the approvals: lists must then be filtered again.
    pub fn subscribe_approvals(&self) -> watch::Receiver<u64> {
        self.shared.approved.subscribe()
    }

    /// Compares a complete list with the approvals, and returns the items that may be served.
    pub fn filter_approved(
        &self,
        upstream: &UpstreamName,
        kind: Kind,
        items: Vec<Item>,
    ) -> Vec<Item> {
        let (mode, Some(at)) = (self.mode(upstream), kind_index(kind)) else { return items };
        if mode == Mode::Off {
            return items;
        }
        let mut guard = self.lock();
        let state = &mut *guard;
        let lists = state.upstreams.entry(upstream.clone()).or_default();
        let before = lists.kinds[at].take();
        let listed =
            state::digest_list(&items, before.as_ref().map(|it| &*it.listed), &self.shared.hasher);
        let listed = Arc::new(listed);
        let digests = || listed.iter().map(|(key, seen)| (key.clone(), seen.digest)).collect();
        let pinned = |lock: &PinFile| lock.upstreams.get(upstream.as_str())?.kinds[at].clone();
        let mut approved: Option<BTreeMap<String, Digest>> = pinned(&state.lock);
        if approved.is_none() && mode == Mode::Enforce {
            let trust = |pinned: &mut Pinned| pinned.kinds[at] = Some(digests());
            if self.update_lock(state, upstream, trust) {
                tracing::info!(%upstream, %kind, items = listed.len(), "first list approved");
            }
            approved = pinned(&state.lock);
        }
        let first = before.as_ref().map_or_else(|| Arc::clone(&listed), |it| Arc::clone(&it.first));
        let found = match (&approved, mode) {
            (Some(approved), _) => state::differences(&listed, approved, Some(&first), &items),
            (None, Mode::Off | Mode::Review | Mode::Alert) => {
                let approved = first.iter().map(|(key, seen)| (key.clone(), seen.digest)).collect();
                state::differences(&listed, &approved, Some(&first), &items)
            }
            (None, _) => state::differences(&listed, &BTreeMap::new(), None, &items),
        };
        let logged = fingerprint(&found);
        if before.as_ref().map_or(0, |it| it.logged) != logged
            && logged != 0
            && mode != Mode::Review
        {
            log_differences(upstream, kind, &found, mode);
        }
        // Further changes are reported relative to the approved list or, without a file, to the
        // last reported one.
        let (first, logged) = match approved {
            None if mode == Mode::Alert => (Arc::clone(&listed), 0),
            _ if found.is_empty() => (Arc::clone(&listed), 0),
            _ => (first, logged),
        };
        let stored = if mode == Mode::Review { items.clone() } else { Vec::new() };
        let may_be_served = |item: &Item| match (mode, &approved) {
            (Mode::Off | Mode::Review | Mode::Alert, _) => true,
            (Mode::Enforce | Mode::Locked, None) => false,
            (Mode::Enforce | Mode::Locked, Some(approved)) => {
                // Each item is compared by its own text: of a name that is listed twice, only the
                // first was digested.
                let digest = state::digest(item, &listed, &self.shared.hasher);
                approved.get(&*item.key) == Some(&digest)
            }
        };
        let keep = definition_texts::select_texts(
            self,
            state,
            upstream,
            (at, &items),
            &listed,
            approved.as_ref(),
        );
        let served = items.into_iter().filter(may_be_served).collect();
        let lists = state.upstreams.entry(upstream.clone()).or_default();
        lists.kinds[at] = Some(KindList { listed, items: stored, first, logged });
        drop(guard);
        definition_texts::store_texts(self, upstream, keep);
        served
    }

    /// Compares an upstream's instructions with the approvals, and returns them if they may be
    /// served.
    pub fn filter_instructions(
        &self,
        upstream: &UpstreamName,
        text: Option<Arc<str>>,
    ) -> Option<Arc<str>> {
        let mode = self.mode(upstream);
        if mode == Mode::Off {
            return text;
        }
        let digest = text.as_deref().map(Digest::of_text);
        let mut guard = self.lock();
        let state = &mut *guard;
        let before = {
            let lists = state.upstreams.entry(upstream.clone()).or_default();
            lists.instructions_text = text.clone().filter(|_| mode == Mode::Review);
            lists.instructions.replace(digest)
        };
        if mode == Mode::Enforce && !state.lock.upstreams.contains_key(upstream.as_str()) {
            self.update_lock(state, upstream, |pinned| pinned.instructions = Some(digest));
        }
        let pinned = state.lock.upstreams.get(upstream.as_str());
        let approved = match pinned {
            Some(pinned) => pinned.instructions,
            None if mode <= Mode::Alert => before.or(Some(digest)),
            None => None,
        };
        let keep =
            definition_texts::select_instructions(self, state, upstream, text.as_ref(), approved);
        drop(guard);
        definition_texts::store_texts(self, upstream, keep);
        if approved == Some(digest) || text.is_none() {
            return text;
        }
        if before != Some(digest) && mode != Mode::Review {
            tracing::warn!(%upstream, ?mode, "instructions differ from the approved ones");
        }
        text.filter(|_| mode <= Mode::Alert)
    }

    /// Returns the current differences from the lock file, of the upstreams that were listed,
    /// sorted by upstream, kind and name.
    pub fn differences(&self) -> Vec<Difference> {
        Self::compare(&self.lock())
    }

    fn compare(state: &State) -> Vec<Difference> {
        let mut all = Vec::new();
        for (upstream, lists) in &state.upstreams {
            let none = Pinned::default();
            let pinned = state.lock.upstreams.get(upstream.as_str()).unwrap_or(&none);
            let mut note = |kind, key: &str, change| {
                let (upstream, key) = (upstream.clone(), key.to_owned());
                all.push(Difference { upstream, kind, key, change });
            };
            match (lists.instructions, pinned.instructions) {
                (Some(is), Some(was)) if is == was => {}
                (None, _) | (Some(None), None) => {}
                (Some(_), None) => note(None, "", Change::New),
                (Some(None), Some(_)) => note(None, "", Change::Missing),
                (Some(Some(_)), Some(_)) => note(None, "", Change::Changed(Vec::new())),
            }
            for (((kind, _), kind_list), approved) in
                PINNED.iter().zip(&lists.kinds).zip(&pinned.kinds)
            {
                let (Some(kind_list), empty) = (kind_list, BTreeMap::new()) else { continue };
                let approved = approved.as_ref().unwrap_or(&empty);
                let found = state::differences(&kind_list.listed, approved, None, &kind_list.items);
                found.into_iter().for_each(|(key, change)| note(Some(*kind), &key, change));
            }
        }
        fn order(it: &Difference) -> (&str, Option<Kind>, &str) {
            (it.upstream.as_str(), it.kind, &it.key)
        }
        all.sort_by(|one, other| order(one).cmp(&order(other)));
        all
    }

    /// Returns whether all pinned kinds of an upstream have been listed since the start.
    pub fn is_listed(&self, upstream: &UpstreamName) -> bool {
        let state = self.lock();
        let lists = state.upstreams.get(upstream);
        lists.is_some_and(|lists| lists.kinds.iter().all(Option::is_some))
    }

    /// Approves the current list: all items of an upstream, or one item of any kind. Returns what
    /// differed from the lock file; an unreadable lock file is not changed.
    pub fn approve(
        &self,
        upstream: &UpstreamName,
        item: Option<&str>,
    ) -> Result<Vec<Difference>, BadLock> {
        let is_meant = |it: &Difference| {
            it.upstream == *upstream
                && item.is_none_or(|item| {
                    it.kind.is_some() && (it.key == item || it.change.former_name() == Some(item))
                })
        };
        // One lock guard for all, so that no list changes between the returned differences and the
        // approval.
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(path) = &self.file {
            self.merge_file(state, path)?;
        }
        let differences: Vec<_> = Self::compare(state).into_iter().filter(is_meant).collect();
        let Some(lists) = state.upstreams.get(upstream) else { return Ok(differences) };
        let mut lock = state.lock.clone();
        let pinned = lock.upstreams.entry(upstream.to_string()).or_default();
        if item.is_none() {
            pinned.instructions = lists.instructions.or(pinned.instructions);
        }
        for (at, kind_list) in lists.kinds.iter().enumerate() {
            let Some(kind_list) = kind_list else { continue };
            // If only one item is approved, the others are not, and a later first list does not
            // approve them.
            let table = pinned.kinds[at].get_or_insert_default();
            let changes = differences.iter().filter(|it| it.kind == Some(PINNED[at].0));
            for difference in changes {
                if let Change::Renamed(was) = &difference.change {
                    table.remove(was);
                }
                match kind_list.listed.get(&difference.key) {
                    Some(seen) => table.insert(difference.key.clone(), seen.digest),
                    None => table.remove(&difference.key),
                };
            }
        }
        if let Some(path) = &self.file {
            lock.save(path)?;
            (state.stamp, state.last_problem, state.may_recover) = (stamp(path), None, false);
        }
        state.lock = lock;
        self.shared.approved.send_modify(|tick| *tick += 1);
        let keep = definition_texts::select_approved(self, state, upstream);
        drop(guard);
        keep.into_iter().for_each(|keep| definition_texts::store_texts(self, upstream, keep));
        Ok(differences)
    }

    /// Returns both texts of a difference, without secrets of the configuration. The text that is
    /// listed is known in mode `review` only.
    pub fn texts(&self, difference: &Difference) -> DefinitionTexts {
        definition_texts::texts_of(self, difference)
    }

    /// Reads the lock file again whenever it has changed, until `stop`. A file that did not exist
    /// at the start is ignored if no upstream is in mode `enforce` or `locked`.
    pub async fn follow(&self, stop: &CancellationToken) {
        reload::follow(self, stop).await;
    }

    /// Returns the approvals.
    pub fn approved(&self) -> PinFile {
        self.lock().lock.clone()
    }

    /// Changes the approvals of an upstream, in the file first; returns whether that succeeded.
    fn update_lock(
        &self,
        state: &mut State,
        upstream: &UpstreamName,
        change: impl Fn(&mut Pinned),
    ) -> bool {
        let Some(path) = &self.file else {
            change(state.lock.upstreams.entry(upstream.to_string()).or_default());
            return true;
        };
        if state.last_problem.is_some() || self.merge_file(state, path).is_err() {
            return false;
        }
        let mut lock = state.lock.clone();
        change(lock.upstreams.entry(upstream.to_string()).or_default());
        if let Err(error) = lock.save(path) {
            let path = path.display();
            tracing::error!(
                %upstream, %path, %error,
                "lock file cannot be written, nothing is approved"
            );
            return false;
        }
        self.observer.notify("first list", &state.lock, &lock);
        state.stamp = stamp(path);
        state.lock = lock;
        true
    }

    /// Takes over changes that were written to the file in the meantime; a missing file changes
    /// nothing.
    fn merge_file(&self, state: &mut State, path: &Path) -> Result<(), BadLock> {
        if let Some(lock) = PinFile::load(path)?.filter(|lock| *lock != state.lock) {
            self.observer.notify("file", &state.lock, &lock);
            state.lock = lock;
            self.shared.approved.send_modify(|tick| *tick += 1);
        }
        Ok(())
    }

    fn mode(&self, upstream: &UpstreamName) -> Mode {
        self.modes.get(upstream).copied().unwrap_or(Mode::Off)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        cpu_bound::lock(&self.shared.lists)
    }
}

/// Shortest secret that is searched for in texts: a shorter value is a setting like `true`, and may
/// be a part of any text.
const MIN_SECRET_BYTES: usize = 8;
