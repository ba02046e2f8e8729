//! Pinning: definitions that were looked at once do not change unnoticed.
//!
//! A server may show harmless tools while they are reviewed, and others later. A [`Pins`] knows each definition of a tool,
//! prompt or resource template, and each upstream's instructions, by a [`Digest`], and holds what is listed to what was
//! approved. It stands before the catalog: [`Pins::screen`] is given whole lists and returns what may be published, so
//! nothing behind it could forget to ask.
//!
//! What was approved stands in a [`Lock`] file. In `enforce`, an upstream's first list of a kind approves itself, and is
//! written there; in `locked` only the operator writes. Until a first list is in the file it is not served: what is
//! trusted must be remembered.
//!
//! Promises: where it is enforced, what leaves [`Pins::screen`] has a digest that is approved at that moment; a lock file
//! that cannot be read approves nothing new, and what was approved before it broke stays so.
//!
//! Knows nothing of: the catalog, who sees what, and how lists come about.

mod digest;
mod lock;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cpu_bound;
use crate::mcp::definition::item::Item;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
pub use digest::{BadDigest, Digest};
pub use lock::{BadLock, Lock, PINNED, Pinned};
use lock::{Stamp, place_of, stamp};
pub use state::Change;
use state::Listed;

/// What happens to definitions that were not approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Nobody looks.
    Off,
    /// They are served, and kept to be compared: for whoever reviews them.
    Review,
    /// They are served, and the operator is told.
    Alert,
    /// They are not served; what an upstream lists first is approved.
    Enforce,
    /// They are not served, and only the operator approves.
    Locked,
}

/// What pinning is done with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// For each upstream.
    pub modes: Vec<(UpstreamName, Mode)>,
    /// The lock file; none keeps what is approved in memory.
    pub file: Option<PathBuf>,
}

/// A difference between what is listed and what was approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Whose.
    pub upstream: UpstreamName,
    /// Of which kind; the instructions have none.
    pub kind: Option<Kind>,
    /// The upstream's own name or URI template of the item.
    pub key: String,
    /// What is different.
    pub change: Change,
}

/// All that is pinned.
pub struct Pins {
    modes: HashMap<UpstreamName, Mode>,
    file: Option<PathBuf>,
    /// Goes over to whatever pins come next.
    state: Arc<Mutex<State>>,
    /// Ticks when something else is approved than before.
    approved: watch::Sender<u64>,
    hasher: RandomState,
}

#[derive(Default)]
struct State {
    lock: Lock,
    /// Which file that was read from.
    stamp: Option<Stamp>,
    /// Why the file cannot be used, if it cannot; told once.
    broken: Option<String>,
    /// Whether it may be of use again without being another file.
    may_recover: bool,
    upstreams: HashMap<UpstreamName, Sights>,
}

/// What was last seen of one upstream.
#[derive(Default)]
struct Sights {
    instructions: Option<Option<Digest>>,
    kinds: [Option<Sight>; 3],
}

struct Sight {
    listed: Arc<Listed>,
    /// Where somebody reviews them.
    items: Vec<Item>,
    /// As it was when nothing was different: which members changed later is told by that; where no file says what
    /// was approved, it is what counts.
    first: Arc<Listed>,
    /// What was last told, in short.
    told: u64,
}

impl Default for Pins {
    /// Nobody is pinned.
    fn default() -> Self {
        Self::open(Settings::default())
    }
}

impl Pins {
    /// Reads the lock file, if there is one and anybody is pinned.
    pub fn open(settings: Settings) -> Self {
        let modes = settings.modes.into_iter().filter(|(_, mode)| *mode != Mode::Off);
        let pins = Self {
            modes: modes.collect(),
            file: settings.file,
            state: Arc::default(),
            approved: watch::Sender::new(0),
            hasher: RandomState::new(),
        };
        if !pins.modes.is_empty() {
            pins.reload();
        }
        pins
    }

    /// Pins by other settings, which know what these have seen, if they are about the same file.
    pub fn then(&self, settings: Settings) -> Self {
        if settings.file != self.file {
            return Self::open(settings);
        }
        let modes = settings.modes.into_iter().filter(|(_, mode)| *mode != Mode::Off);
        let pins = Self {
            modes: modes.collect(),
            file: settings.file,
            state: Arc::clone(&self.state),
            approved: self.approved.clone(),
            hasher: self.hasher.clone(),
        };
        if !pins.modes.is_empty() {
            pins.reload();
        }
        pins
    }

    /// Whether what is not approved of this upstream is held back.
    pub fn holds(&self, upstream: &UpstreamName) -> bool {
        self.mode(upstream) >= Mode::Enforce
    }

    /// Ticks when something else is approved than before: then what is held has to be screened again.
    pub fn approvals(&self) -> watch::Receiver<u64> {
        self.approved.subscribe()
    }

    /// Holds a whole list to what was approved, and returns what may be served of it.
    pub fn screen(&self, upstream: &UpstreamName, kind: Kind, items: Vec<Item>) -> Vec<Item> {
        let (mode, Some(at)) = (self.mode(upstream), place_of(kind)) else { return items };
        if mode == Mode::Off {
            return items;
        }
        let state = &mut *self.lock();
        let sights = state.upstreams.entry(upstream.clone()).or_default();
        let before = sights.kinds[at].take();
        let listed = state::read(&items, before.as_ref().map(|it| &*it.listed), &self.hasher);
        let listed = Arc::new(listed);
        let digests = || listed.iter().map(|(key, seen)| (key.clone(), seen.digest)).collect();
        let pinned = |lock: &Lock| lock.upstreams.get(upstream.as_str())?.kinds[at].clone();
        let mut approved: Option<BTreeMap<String, Digest>> = pinned(&state.lock);
        if approved.is_none() && mode == Mode::Enforce {
            let trust = |pinned: &mut Pinned| pinned.kinds[at] = Some(digests());
            if self.write(state, upstream, trust) {
                tracing::info!(%upstream, %kind, items = listed.len(), "approved at first sight");
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
        let told = fingerprint(&found);
        if before.as_ref().map_or(0, |it| it.told) != told && told != 0 && mode != Mode::Review {
            tell(upstream, kind, &found, mode);
        }
        // What was approved, or told once without a file, is what further changes are told against.
        let (first, told) = match approved {
            None if mode == Mode::Alert => (Arc::clone(&listed), 0),
            _ if found.is_empty() => (Arc::clone(&listed), 0),
            _ => (first, told),
        };
        let kept = if mode == Mode::Review { items.clone() } else { Vec::new() };
        let may_be_served = |item: &Item| match (mode, &approved) {
            (Mode::Off | Mode::Review | Mode::Alert, _) => true,
            (Mode::Enforce | Mode::Locked, None) => false,
            (Mode::Enforce | Mode::Locked, Some(approved)) => {
                // Each by its own text: of a name that is listed twice, only the first was looked at.
                let digest = state::digest(item, &listed, &self.hasher);
                approved.get(&*item.key) == Some(&digest)
            }
        };
        let served = items.into_iter().filter(may_be_served).collect();
        let sights = state.upstreams.entry(upstream.clone()).or_default();
        sights.kinds[at] = Some(Sight { listed, items: kept, first, told });
        served
    }

    /// Holds what an upstream tells models about its use to what was approved.
    pub fn introduce(&self, upstream: &UpstreamName, text: Option<Arc<str>>) -> Option<Arc<str>> {
        let mode = self.mode(upstream);
        if mode == Mode::Off {
            return text;
        }
        let digest = text.as_deref().map(Digest::of_text);
        let state = &mut *self.lock();
        let before = {
            let sights = state.upstreams.entry(upstream.clone()).or_default();
            sights.instructions.replace(digest)
        };
        if mode == Mode::Enforce && !state.lock.upstreams.contains_key(upstream.as_str()) {
            self.write(state, upstream, |pinned| pinned.instructions = Some(digest));
        }
        let pinned = state.lock.upstreams.get(upstream.as_str());
        let approved = match pinned {
            Some(pinned) => pinned.instructions,
            None if mode <= Mode::Alert => before.or(Some(digest)),
            None => None,
        };
        if approved == Some(digest) || text.is_none() {
            return text;
        }
        if before != Some(digest) && mode != Mode::Review {
            tracing::warn!(%upstream, ?mode, "the instructions are not those that were approved");
        }
        text.filter(|_| mode <= Mode::Alert)
    }

    /// What is different at this moment from what the lock file approves, of the upstreams that were listed: by
    /// upstream, kind and name.
    pub fn differences(&self) -> Vec<Difference> {
        Self::compare(&self.lock())
    }

    fn compare(state: &State) -> Vec<Difference> {
        let mut all = Vec::new();
        for (upstream, sights) in &state.upstreams {
            let none = Pinned::default();
            let pinned = state.lock.upstreams.get(upstream.as_str()).unwrap_or(&none);
            let mut note = |kind, key: &str, change| {
                let (upstream, key) = (upstream.clone(), key.to_owned());
                all.push(Difference { upstream, kind, key, change });
            };
            match (sights.instructions, pinned.instructions) {
                (Some(is), Some(was)) if is == was => {}
                (None, _) | (Some(None), None) => {}
                (Some(_), None) => note(None, "", Change::New),
                (Some(None), Some(_)) => note(None, "", Change::Missing),
                (Some(Some(_)), Some(_)) => note(None, "", Change::Changed(Vec::new())),
            }
            for (((kind, _), sight), approved) in
                PINNED.iter().zip(&sights.kinds).zip(&pinned.kinds)
            {
                let (Some(sight), empty) = (sight, BTreeMap::new()) else { continue };
                let approved = approved.as_ref().unwrap_or(&empty);
                let found = state::differences(&sight.listed, approved, None, &sight.items);
                found.into_iter().for_each(|(key, change)| note(Some(*kind), &key, change));
            }
        }
        fn order(it: &Difference) -> (&str, Option<Kind>, &str) {
            (it.upstream.as_str(), it.kind, &it.key)
        }
        all.sort_by(|one, other| order(one).cmp(&order(other)));
        all
    }

    /// The kinds of an upstream that have been listed since the start.
    pub fn is_listed(&self, upstream: &UpstreamName) -> bool {
        let state = self.lock();
        let sights = state.upstreams.get(upstream);
        sights.is_some_and(|sights| sights.kinds.iter().all(Option::is_some))
    }

    /// Approves what is listed at this moment: all that an upstream lists, or one item of it, of whatever kind. Tells
    /// what was different from what the lock file says at this moment; one that cannot be read stays as it is.
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
        // Under one guard: no list comes between what is told and what is approved.
        let state = &mut *self.lock();
        if let Some(path) = &self.file {
            self.catch_up(state, path)?;
        }
        let differences: Vec<_> = Self::compare(state).into_iter().filter(is_meant).collect();
        let Some(sights) = state.upstreams.get(upstream) else { return Ok(differences) };
        let mut lock = state.lock.clone();
        let pinned = lock.upstreams.entry(upstream.to_string()).or_default();
        if item.is_none() {
            pinned.instructions = sights.instructions.or(pinned.instructions);
        }
        for (at, sight) in sights.kinds.iter().enumerate() {
            let Some(sight) = sight else { continue };
            // With one item approved, the others are not: not at first sight either.
            let table = pinned.kinds[at].get_or_insert_default();
            let changes = differences.iter().filter(|it| it.kind == Some(PINNED[at].0));
            for difference in changes {
                if let Change::Renamed(was) = &difference.change {
                    table.remove(was);
                }
                match sight.listed.get(&difference.key) {
                    Some(seen) => table.insert(difference.key.clone(), seen.digest),
                    None => table.remove(&difference.key),
                };
            }
        }
        if let Some(path) = &self.file {
            lock.save(path)?;
            (state.stamp, state.broken, state.may_recover) = (stamp(path), None, false);
        }
        state.lock = lock;
        self.approved.send_modify(|tick| *tick += 1);
        Ok(differences)
    }

    /// What the lock file approves.
    pub fn approved(&self) -> Lock {
        self.lock().lock.clone()
    }

    /// Reads the lock file again whenever it has changed, until `stop`; not one that was not there at the start and
    /// that nobody enforces.
    pub async fn follow(&self, stop: &CancellationToken) {
        let enforces = self.modes.values().any(|mode| *mode >= Mode::Enforce);
        if self.file.is_none() || !(enforces || self.lock().stamp.is_some()) {
            return;
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_AGAIN) => self.reload(),
            }
        }
    }

    /// Reads the lock file, if it is another one than before.
    pub fn reload(&self) {
        let Some(path) = &self.file else { return };
        let now = stamp(path);
        let is_as_it_was = {
            let state = self.lock();
            // One that is gone, or that could not be read, may be there again without being another.
            now.is_some() && now == state.stamp && !state.may_recover
        };
        if is_as_it_was {
            return;
        }
        // Without the lock, which every list that is read waits for.
        let bytes = now.map_or(0, |(_, bytes, _)| usize::try_from(bytes).unwrap_or(usize::MAX));
        let loaded = cpu_bound::run_on_bytes(bytes, || Lock::load(path));
        let state = &mut *self.lock();
        if stamp(path) != now {
            // It has been written meanwhile: the next look reads it.
            return;
        }
        let why = match loaded {
            // That it is gone does not say that all is approved again at first sight.
            Ok(None) if state.stamp.is_none() => return,
            Ok(None) => {
                state.may_recover = true;
                "is gone: what it approved stays so".to_owned()
            }
            Ok(Some(lock)) => {
                (state.stamp, state.broken, state.may_recover) = (now, None, false);
                if lock != state.lock {
                    state.lock = lock;
                    self.approved.send_modify(|tick| *tick += 1);
                }
                return;
            }
            Err(error) => {
                (state.stamp, state.may_recover) = (now, matches!(error, BadLock::Io(_)));
                format!("cannot be used: nothing new is approved: {error}")
            }
        };
        if state.broken.as_ref() != Some(&why) {
            tracing::error!("the lock file {} {why}", path.display());
            state.broken = Some(why);
        }
    }

    /// Changes what is approved of an upstream, in the file first; tells whether that could be done.
    fn write(
        &self,
        state: &mut State,
        upstream: &UpstreamName,
        change: impl Fn(&mut Pinned),
    ) -> bool {
        let Some(path) = &self.file else {
            change(state.lock.upstreams.entry(upstream.to_string()).or_default());
            return true;
        };
        if state.broken.is_some() || self.catch_up(state, path).is_err() {
            return false;
        }
        let mut lock = state.lock.clone();
        change(lock.upstreams.entry(upstream.to_string()).or_default());
        if let Err(error) = lock.save(path) {
            let shown = path.display();
            tracing::error!(%upstream, %error, "the lock file {shown} cannot be written: nothing is approved");
            return false;
        }
        state.stamp = stamp(path);
        state.lock = lock;
        true
    }

    /// Takes over what somebody else may have written to the file in the meantime; one that is gone changes nothing.
    fn catch_up(&self, state: &mut State, path: &Path) -> Result<(), BadLock> {
        if let Some(lock) = Lock::load(path)?.filter(|lock| *lock != state.lock) {
            state.lock = lock;
            self.approved.send_modify(|tick| *tick += 1);
        }
        Ok(())
    }

    fn mode(&self, upstream: &UpstreamName) -> Mode {
        self.modes.get(upstream).copied().unwrap_or(Mode::Off)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        cpu_bound::lock(&self.state)
    }
}

/// What was found, in short; nothing is nothing.
fn fingerprint(found: &[(String, Change)]) -> u64 {
    let mut digest = DefaultHasher::new();
    found.hash(&mut digest);
    if found.is_empty() { 0 } else { digest.finish().max(1) }
}

/// Tells the operator what is different. Names come from an upstream: they are quoted.
fn tell(upstream: &UpstreamName, kind: Kind, found: &[(String, Change)], mode: Mode) {
    let first = found.iter().take(MAX_TOLD).map(|(key, change)| match change {
        Change::Changed(members) if !members.is_empty() => {
            format!(
                "{key:?} changed: {}",
                members.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(", ")
            )
        }
        Change::Renamed(was) => format!("{key:?} renamed from {was:?}"),
        change => format!("{key:?} {change}"),
    });
    let first = first.collect::<Vec<_>>().join("; ");
    let (items, served) = (found.len(), mode == Mode::Alert);
    let is_harmless =
        |(_, change): &(String, Change)| matches!(change, Change::New | Change::Missing);
    match served && found.iter().all(is_harmless) {
        true => tracing::info!(%upstream, %kind, items, served, first, "definitions came or went"),
        false => {
            tracing::warn!(%upstream, %kind, items, served, first, "definitions are not those that were approved");
        }
    }
}

/// How many items one line of the log names.
const MAX_TOLD: usize = 10;
/// How often the lock file is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
