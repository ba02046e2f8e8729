//! Which texts of definitions are stored, and the two texts of a difference.
//!
//! Invariants: a text that contains a secret of the upstream's configuration is not stored, and is
//! shown without it. A text that cannot be stored changes nothing else: the reason is logged once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::approved_texts::{ApprovedTexts, Importance, TextUnavailable};
use super::digest::{Digest, canonical};
use super::lock::{PinFile, Pinned, kind_index};
use super::state::ListedItems;
use super::{Change, Difference, Mode, Pins, State};
use weir_base::json;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_mcp::definition::item::Item;
use weir_mcp::name::UpstreamName;

/// Both texts of a definition that differs, as JSON in canonical form.
#[derive(Debug, Default)]
pub struct DefinitionTexts {
    /// Approved text, or the reason why it is unknown; `None` if nothing is approved.
    pub approved: Option<Result<String, TextUnavailable>>,
    /// True if nothing is approved, and the former text is the one that was seen first.
    pub is_first_seen: bool,
    /// Text that is listed now; `None` if nothing is listed.
    pub listed: Option<String>,
}

/// Texts that are to be stored, and what was seen first if that has changed.
#[derive(Default)]
pub(super) struct TextsToKeep {
    texts: Vec<(Digest, Vec<u8>)>,
    first_seen: Option<PinFile>,
}

/// State of what is stored.
#[derive(Default)]
pub(super) struct KeptTexts {
    /// Sizes of the stored texts.
    stored: HashMap<Digest, u64>,
    /// Definitions that were seen first of an upstream, in mode `alert`.
    first_seen: HashMap<UpstreamName, Pinned>,
    /// Reason why a text is not stored, which is logged once.
    last_problem: Option<String>,
    /// End of the pause after that.
    pause_ends: Option<Instant>,
}

/// Selects the texts of a list that are to be stored: those of approved definitions and, in
/// mode `alert`, those that were seen first.
pub(super) fn select_texts(
    pins: &Pins,
    state: &mut State,
    upstream: &UpstreamName,
    (at, items): (usize, &[Item]),
    listed: &ListedItems,
    approved: Option<&BTreeMap<String, Digest>>,
) -> TextsToKeep {
    let Some(texts) = &pins.texts else { return TextsToKeep::default() };
    let mut keep = TextsToKeep::default();
    let first_seen = match (approved, pins.mode(upstream)) {
        (None, Mode::Alert) => {
            let seen = load_first_seen(&mut state.kept, texts, upstream);
            keep.first_seen = add_first_seen(seen, upstream, |seen| {
                let seen = seen.kinds[at].get_or_insert_default();
                let new = listed.iter().filter(|(key, _)| !seen.contains_key(*key));
                let new: Vec<_> = new.take(MAX_FIRST_SEEN).collect();
                if seen.len() + new.len() > MAX_FIRST_SEEN {
                    seen.retain(|key, _| listed.contains_key(key));
                }
                let space = MAX_FIRST_SEEN.saturating_sub(seen.len());
                let added = new.iter().take(space);
                seen.extend(added.map(|(key, item)| ((*key).clone(), item.digest)));
                !new.is_empty() && space > 0
            });
            state.kept.first_seen.get(upstream).and_then(|seen| seen.kinds[at].clone())
        }
        _ => None,
    };
    let Some(wanted) = approved.or(first_seen.as_ref()) else { return keep };
    let mut bytes = 0;
    if state.kept.pause_ends.is_some_and(|end| Instant::now() < end) {
        return keep;
    }
    for item in items {
        let Some(seen) = listed.get(&*item.key) else { continue };
        if wanted.get(&*item.key) != Some(&seen.digest) {
            continue;
        }
        let stored = state.kept.stored.get(&seen.digest);
        if stored.is_none_or(|bytes| !texts.has(&seen.digest, *bytes)) {
            let text = canonical(&item.definition.to_bytes());
            bytes += text.len();
            keep.texts.push((seen.digest, text));
            // The next listing stores the others.
            if bytes > MAX_BATCH_BYTES {
                break;
            }
        }
    }
    keep
}

/// Selects the text of an upstream's instructions, like [`select_texts`].
pub(super) fn select_instructions(
    pins: &Pins,
    state: &mut State,
    upstream: &UpstreamName,
    text: Option<&Arc<str>>,
    approved: Option<Option<Digest>>,
) -> TextsToKeep {
    let Some(texts) = &pins.texts else { return TextsToKeep::default() };
    let digest = text.map(|text| Digest::of_text(text));
    let is_approved = state.lock.upstreams.contains_key(upstream.as_str());
    let mut keep = TextsToKeep::default();
    let wanted = match (is_approved, pins.mode(upstream)) {
        (false, Mode::Alert) => {
            let seen = load_first_seen(&mut state.kept, texts, upstream);
            keep.first_seen = add_first_seen(seen, upstream, |seen| {
                let is_first = seen.instructions.is_none();
                seen.instructions.get_or_insert(digest);
                is_first
            });
            state.kept.first_seen.get(upstream).and_then(|seen| seen.instructions)
        }
        _ => approved.filter(|_| is_approved),
    };
    if let (Some(text), Some(digest)) = (text, digest)
        && wanted == Some(Some(digest))
    {
        keep.texts.push((digest, canonical(&json::quote(text))));
    }
    keep
}

/// Selects the texts of all lists of an upstream after an approval, in mode `review`.
pub(super) fn select_approved(
    pins: &Pins,
    state: &mut State,
    upstream: &UpstreamName,
) -> Vec<TextsToKeep> {
    let Some(pinned) = state.lock.upstreams.get(upstream.as_str()).cloned() else {
        return Vec::new();
    };
    let Some(lists) = state.upstreams.get(upstream) else { return Vec::new() };
    let text = lists.instructions_text.clone();
    let lists: Vec<_> = lists
        .kinds
        .iter()
        .map(|list| list.as_ref().map(|it| (Arc::clone(&it.listed), it.items.clone())))
        .collect();
    let mut all =
        vec![select_instructions(pins, state, upstream, text.as_ref(), pinned.instructions)];
    for (at, list) in lists.into_iter().enumerate() {
        let Some((listed, items)) = list else { continue };
        let approved = pinned.kinds[at].as_ref();
        all.push(select_texts(pins, state, upstream, (at, &items), &listed, approved));
    }
    all
}

/// Stores texts. Blocks, and must not be called under the mutex.
pub(super) fn store_texts(pins: &Pins, upstream: &UpstreamName, keep: TextsToKeep) {
    let TextsToKeep { mut texts, first_seen } = keep;
    let Some(folder) = &pins.texts else { return };
    let secrets = secrets_of(pins, upstream);
    texts.retain(|(_, text)| !secrets.are_in(text));
    if texts.is_empty() && first_seen.is_none() {
        return;
    }
    let importance = importances(pins);
    let (stored, mut problem) = weir_base::tasks::cpu_bound::run_long(|| {
        let (stored, problem) = folder
            .write(texts, |digest| importance.get(digest).copied().unwrap_or(Importance::Former));
        let written =
            first_seen.map_or(Ok(()), |seen| folder.write_first_seen(upstream.as_str(), &seen));
        (stored, problem.or(written.err()))
    });
    let kept = &mut pins.lock().kept;
    kept.stored.retain(|digest, _| importance.contains_key(digest));
    kept.stored.extend(stored);
    let why = problem.take().map(|error| error.to_string());
    if let Some(why) = why.as_ref().filter(|why| kept.last_problem.as_ref() != Some(*why)) {
        tracing::warn!(%upstream, why, "approved texts cannot be stored");
    }
    kept.pause_ends = why.as_ref().map(|_| Instant::now() + PAUSE);
    kept.last_problem = why.or(kept.last_problem.take());
}

/// Returns how important the texts of the present approvals are.
fn importances(pins: &Pins) -> HashMap<Digest, Importance> {
    let state = pins.lock();
    let all = |pinned: &Pinned| {
        let items = pinned.kinds.iter().flatten().flat_map(BTreeMap::values).copied();
        items.chain(pinned.instructions.flatten()).collect::<Vec<_>>()
    };
    let seen = state.kept.first_seen.values().flat_map(all);
    let seen = seen.map(|digest| (digest, Importance::FirstSeen));
    let approved = state.lock.upstreams.values().flat_map(all);
    seen.chain(approved.map(|digest| (digest, Importance::Approved))).collect()
}

/// Returns both texts of a difference: see [`Pins::texts`].
pub(super) fn texts_of(pins: &Pins, difference: &Difference) -> DefinitionTexts {
    let Difference { upstream, kind, key, change } = difference;
    let at = kind.and_then(kind_index);
    let was = change.former_name().unwrap_or(key);
    let digest_in = |pinned: &Pinned| match at {
        Some(at) => pinned.kinds[at].as_ref()?.get(was).copied(),
        None => pinned.instructions.flatten(),
    };
    let (listed, approved) = {
        let state = pins.lock();
        let lists = state.upstreams.get(upstream);
        let listed = match at {
            Some(at) => lists.and_then(|lists| {
                let items = &lists.kinds[at].as_ref()?.items;
                let item = items.iter().find(|item| *item.key == **key)?;
                Some(canonical(&item.definition.to_bytes()))
            }),
            None => lists
                .and_then(|lists| lists.instructions_text.as_ref())
                .map(|text| canonical(&json::quote(text))),
        };
        (listed, state.lock.upstreams.get(upstream.as_str()).and_then(digest_in))
    };
    let seen = || {
        let seen = pins.texts.as_ref()?.read_first_seen(upstream.as_str());
        let digest = digest_in(seen.upstreams.get(upstream.as_str())?)?;
        // What has not changed since needs no comparison.
        let is_listed = listed.as_ref().is_some_and(|text| Digest::of_canonical(text) == digest);
        (!is_listed).then_some(digest)
    };
    let is_first_seen = approved.is_none();
    let digest = approved.or_else(|| (*change == Change::New).then(seen).flatten());
    let secrets = secrets_of(pins, upstream);
    let text = |digest| match &pins.texts {
        Some(texts) => texts.read(&digest).map(|text| secrets.redact(&text)),
        None => Err(TextUnavailable::NoFolder),
    };
    let approved = digest.map(text);
    let listed = listed.map(|text| secrets.redact(&String::from_utf8_lossy(&text)));
    DefinitionTexts { is_first_seen: is_first_seen && approved.is_some(), approved, listed }
}

fn secrets_of<'p>(pins: &'p Pins, upstream: &UpstreamName) -> &'p SecretPatterns {
    pins.secrets.get(upstream).unwrap_or(&pins.no_secrets)
}

fn load_first_seen<'s>(
    kept: &'s mut KeptTexts,
    texts: &ApprovedTexts,
    upstream: &UpstreamName,
) -> &'s mut Pinned {
    kept.first_seen.entry(upstream.clone()).or_insert_with(|| {
        let mut file = texts.read_first_seen(upstream.as_str());
        file.upstreams.remove(upstream.as_str()).unwrap_or_default()
    })
}

/// Adds to what was seen first; returns the new content of the file if it has changed.
fn add_first_seen(
    seen: &mut Pinned,
    upstream: &UpstreamName,
    add: impl FnOnce(&mut Pinned) -> bool,
) -> Option<PinFile> {
    add(seen).then(|| PinFile { upstreams: [(upstream.to_string(), seen.clone())].into() })
}

/// Bytes of texts that are stored at a listing.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Pause of storing after an error.
const PAUSE: Duration = Duration::from_secs(60);
/// Most definitions of one kind that count as seen first. Those that are not listed any more make
/// space for others.
const MAX_FIRST_SEEN: usize = 4_096;
