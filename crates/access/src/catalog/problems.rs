//! Problems of lists: items that are excluded, altered, or listed to some clients only.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::item::ExportedItem;
use super::{CatalogSource, ExportRules};
use weir_mcp::definition::item::{Item, ItemDefect, MAX_URI_BYTES};
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// Problems of one list: excluded items with their reasons, and altered ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportProblems {
    /// Items that no client gets: defective ones, then the others in the order of the public keys.
    pub unlisted: ProblemList,
    /// The limit that truncated the list, if the upstream lists more than is read.
    pub cut: Option<Arc<str>>,
    /// Elements of the list without a name, and items that only some clients get.
    pub(crate) others: ProblemList,
    /// Items that are listed in another form than their upstream's.
    pub altered: ProblemList,
}

/// Problems of one sort. At most [`ExportProblems::MAX`] are recorded, the others are counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProblemList {
    /// The first problems.
    pub first: Vec<ExportProblem>,
    /// Number of further problems.
    pub(crate) more: usize,
}

impl ProblemList {
    pub(super) fn add(&mut self, reason: ExclusionReason, own: Box<str>, key: &str) {
        if self.first.len() < ExportProblems::MAX {
            self.first.push(ExportProblem { own, key: key.into(), reason });
        } else {
            self.more += 1;
        }
    }

    pub(super) fn extend(&mut self, others: &Self) {
        for problem in &others.first {
            self.add(problem.reason.clone(), problem.own.clone(), &problem.key);
        }
        self.more += others.more;
    }

    /// Whether there are no problems.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The problems of a list of this kind as text, one per line.
    pub fn lines(&self, kind: Kind) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.first.iter().map(move |problem| format!("{kind} {problem}")).chain(more)
    }
}

impl fmt::Display for ProblemList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.first.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "; " })?;
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        Ok(())
    }
}

/// An item that is excluded, altered, or listed to some clients only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportProblem {
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// The public name or URI that it would have.
    pub(crate) key: Box<str>,
    /// The problem.
    pub reason: ExclusionReason,
}

/// Reason for which an item is not listed to all clients in its upstream's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusionReason {
    /// The upstream lists it twice; the first one is used.
    Duplicate,
    /// Another item of the upstream would have the same public name; both are excluded.
    Clash,
    /// The public name exceeds the maximum length.
    TooLong,
    /// No client could use it.
    Defect(ItemDefect),
    /// It can be called as a task of 2025-11-25 only.
    TasksOnly,
    /// This upstream, which is first in the file, lists an item with the same public name.
    OwnedBy(UpstreamName),
    /// It is listed with these changes.
    Altered(Box<str>),
}

impl ExportProblems {
    /// Maximum number of recorded problems.
    pub const MAX: usize = 100;

    /// Whether there are no problems.
    pub(crate) fn is_empty(&self) -> bool {
        self.unlisted.is_empty()
            && self.cut.is_none()
            && self.others.is_empty()
            && self.altered.is_empty()
    }

    /// The items that not all clients get, and elements of the list without a name, as text, one
    /// per line; `kind` is that of the list.
    pub fn left_out(&self, kind: Kind) -> impl Iterator<Item = String> {
        self.unlisted.lines(kind).chain(self.others.lines(kind))
    }

    /// Number of elements of the list that no client gets.
    pub fn excluded(&self) -> usize {
        let is_defect = |it: &&ExportProblem| matches!(it.reason, ExclusionReason::Defect(_));
        let ProblemList { first, more } = &self.unlisted;
        first.len() + more + self.others.first.iter().filter(is_defect).count()
    }

    /// Adds what clients get in another form, or only some clients get.
    pub(super) fn add_alterations(&mut self, alterations: Option<Box<str>>, item: &ExportedItem) {
        if item.needs_task {
            self.others.add(ExclusionReason::TasksOnly, item.own.clone(), &item.key);
        }
        let of_older = item.lacks_output_schema().then(|| OLDER.to_owned());
        let texts: Vec<_> = alterations.map(String::from).into_iter().chain(of_older).collect();
        if !texts.is_empty() {
            let reason = ExclusionReason::Altered(texts.join("; ").into());
            self.altered.add(reason, item.own.clone(), &item.key);
        }
    }

    pub(super) fn add(&mut self, reason: ExclusionReason, key: &str, item: Item) {
        self.unlisted.add(reason, item.key, key);
    }
}

impl fmt::Display for ExportProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_list = |list: &ProblemList| (!list.is_empty()).then(|| list.to_string());
        let cut = self.cut.as_ref();
        let cut = cut.map(|cut| format!("the upstream lists more than is read: {cut}"));
        let parts = [of_list(&self.unlisted), cut, of_list(&self.others)];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

impl fmt::Display for ExportProblem {
    // Names come from an upstream: they are quoted, so that none can break a line of a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, key, reason } = self;
        match reason {
            ExclusionReason::Duplicate => {
                write!(f, "{own:?} is listed twice, the first one is used")
            }
            ExclusionReason::Clash => {
                write!(f, "{own:?} would be {key:?} like another, rename one of them")
            }
            ExclusionReason::TooLong => {
                write!(f, "{own:?} has a name of more than {MAX_KEY_BYTES} bytes")
            }
            ExclusionReason::Defect(defect @ ItemDefect::Unnamed(_)) => {
                write!(f, "{own} cannot be used: {defect}")
            }
            ExclusionReason::Defect(defect) => write!(f, "{own:?} cannot be used: {defect}"),
            ExclusionReason::TasksOnly => write!(
                f,
                "{own:?} can be called only as a task, so only clients of 2025-11-25 see it"
            ),
            ExclusionReason::OwnedBy(owner) => write!(
                f,
                "{own:?} is listed by {owner}, too, which comes first in the file: clients get \
                 that one"
            ),
            ExclusionReason::Altered(alterations) => write!(f, "{own:?}: {alterations}"),
        }
    }
}

/// Alteration for clients of older revisions.
const OLDER: &str =
    "`outputSchema` is left out for clients before 2026-07-28, some of which cannot read it";

/// Returns the excluded items of these upstreams with the reasons, by upstream in the order of the
/// configuration file and by kind. Upstreams and kinds without problems are omitted.
pub(super) fn of_all(
    exports: &[ExportRules],
    sources: &[CatalogSource],
) -> Vec<(UpstreamName, Kind, ExportProblems)> {
    let mut found = Vec::new();
    for (export, source) in exports.iter().zip(sources) {
        for (kind, exported) in Kind::ALL.into_iter().zip(&source.exported) {
            let Some(exported) = exported else { continue };
            let mut problems = exported.problems.clone();
            problems.others.extend(&source.owned_by_others[kind.index()]);
            if !problems.is_empty() {
                found.push((export.name.clone(), kind, problems));
            }
        }
    }
    found
}

/// Finds the items of a kind that several upstreams list under the same URI.
pub(super) fn find_owned_by_others(
    exports: &[ExportRules],
    sources: &mut [CatalogSource],
    kind: Kind,
) {
    let names = || exports.iter().map(|export| &export.name);
    let lists = sources.iter().map(|source| source.exported(kind));
    let lists = lists.map(|exported| exported.map_or(&[][..], |it| &it.items));
    let found = owned_by_others(&names().zip(lists).collect::<Vec<_>>());
    for ((upstream, source), problems) in names().zip(sources).zip(found) {
        let known = &mut source.owned_by_others[kind.index()];
        if !problems.is_empty() && *known != problems {
            tracing::warn!(%upstream, %kind, %problems, "items of several upstreams");
        }
        *known = problems;
    }
}

/// Returns for each of these lists, in the order of the file, the items whose URI an upstream
/// before it lists as well: clients that may see both get that of the first.
fn owned_by_others(lists: &[(&UpstreamName, &[Arc<ExportedItem>])]) -> Vec<ProblemList> {
    let mut found = vec![ProblemList::default(); lists.len()];
    if lists.iter().filter(|(_, items)| !items.is_empty()).count() < 2 {
        return found;
    }
    let mut owners = HashMap::new();
    for ((upstream, items), found) in lists.iter().zip(&mut found) {
        for item in *items {
            let owner: &UpstreamName = owners.entry(&*item.key).or_insert(upstream);
            if owner != *upstream {
                let reason = ExclusionReason::OwnedBy(owner.clone());
                found.add(reason, item.own.clone(), &item.key);
            }
        }
    }
    found
}

/// The longest public key, in bytes, so that a cursor with it stays within its own limit.
pub(super) const MAX_KEY_BYTES: usize = MAX_URI_BYTES;
