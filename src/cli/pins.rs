//! `weir pins`: compares definitions with the approved ones, and approves them.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::exit::Failure;
use super::output;
use crate::cli::loading::{ReportArgs, options};
use crate::cli::output::definition_diff;
use crate::cli::output::render::sanitize_line;
use crate::cli::query::oneshot::OneShotGateway;
use crate::cli::query::required_upstreams::UpstreamSelection;
use crate::cli::server::audit_log::CommandLog;
use crate::cli::server::log;
use weir_access::pins::Mode;
use weir_access::pins::{BadLock, Change, DefinitionTexts, Difference, PINNED, PinFile, Pins};
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_record::audit::{PolicyChange, PolicyEvent};

/// Arguments of `weir pins`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// `diff` starts the upstreams and shows differences from the lock file, with the approved text
    /// and the one that is listed now; `approve` writes them to it; `list` shows the approved
    /// items.
    #[arg(value_enum)]
    action: PinsAction,
    /// All items of an upstream, or one item by the upstream's own name; default: everything.
    #[arg(value_name = "UPSTREAM[/ITEM]", value_hint = clap::ValueHint::Other)]
    items: Vec<String>,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PinsAction {
    Diff,
    Approve,
    List,
}

/// Selected upstream, and one of its items if only that is selected.
type PinSelection<'a> = (&'a str, Option<&'a str>);

/// Compares, approves or lists.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_errors_only();
    let selected: Vec<PinSelection<'_>> = args.items.iter().map(|item| split_item(item)).collect();
    if args.action == PinsAction::List {
        return list(&args, &selected).await;
    }
    let mut names: Vec<String> = selected.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    names.dedup();
    let selection = UpstreamSelection::Named(&names);
    // In this mode nothing is hidden and nothing is written, and all definitions are compared.
    let review = |config: &mut weir_config::Config| {
        config.upstreams.iter_mut().for_each(|upstream| upstream.pinning = Mode::Review);
    };
    // This process opens no listener, so anonymous access from the network does not matter.
    let (options, ReportArgs { json, config }) = (options(true), &args.report);
    let oneshot = OneShotGateway::open(config, *json, None, selection, options, review).await?;
    let done = compare(&args, &selected, &oneshot);
    oneshot.close().await;
    done
}

fn compare(
    args: &Args,
    selected: &[PinSelection<'_>],
    oneshot: &OneShotGateway,
) -> Result<(), Failure> {
    let inspectors = oneshot.app.gateway().inspectors();
    let pins = &inspectors.pins;
    let names = oneshot.config.upstreams.iter();
    let names: Vec<&UpstreamName> = names.map(|it| &it.settings.name).collect();
    let unlisted = names.iter().filter(|name| !pins.is_listed(name));
    let unlisted: Vec<_> = unlisted.map(|name| format!("`{name}`")).collect();
    let unlisted = (!unlisted.is_empty()).then(|| {
        let unlisted = unlisted.join(", ");
        Failure::Unreachable(format!("could not be listed, and was not compared: {unlisted}"))
    });
    let all = pins.differences();
    for (name, item) in selected.iter().filter_map(|(name, item)| Some((name, (*item)?))) {
        let is_approved = pins.approved().upstreams.get(*name).is_some_and(|pinned| {
            pinned.kinds.iter().flatten().any(|items| items.contains_key(item))
        });
        if !is_approved && !all.iter().any(|it| is_selected(it, &[(name, Some(item))])) {
            let text =
                format!("`{name}` lists no `{}`, and none was approved", sanitize_line(item));
            return Err(unlisted.unwrap_or(Failure::Usage(text)));
        }
    }
    let mut found: Vec<Difference> =
        all.into_iter().filter(|it| is_selected(it, selected)).collect();
    if args.action == PinsAction::Approve {
        // Definitions that were not listed cannot be approved, and a partial approval is refused.
        if let Some(failure) = unlisted {
            return Err(failure);
        }
        let unwritten = |bad: BadLock| {
            let path = oneshot.config.lock_file.display();
            Failure::Output(std::io::Error::other(format!("{path}: {bad}")))
        };
        found.clear();
        let mut log = CommandLog::open(&oneshot.config, false)?;
        let everything: Vec<PinSelection<'_>> =
            names.iter().map(|name| (name.as_str(), None)).collect();
        for (name, item) in if selected.is_empty() { &everything } else { selected } {
            let name = names.iter().find(|known| known.as_str() == *name);
            let Some(name) = name else { continue };
            let is_meant = |it: &&Difference| is_selected(it, &[(name.as_str(), *item)]);
            let kind = PolicyChange::Pins { upstream: name.to_string() };
            let event = PolicyEvent {
                changes: pins.differences().iter().filter(is_meant).map(describe).collect(),
                ..PolicyEvent::new(kind, "command")
            };
            let approve = || pins.approve(name, *item).map_err(unwritten);
            found.extend(match event.changes.is_empty() {
                true => approve()?,
                false => log.record(event, approve)?,
            });
        }
        let rows: Vec<_> = found.iter().map(PinRow::of_difference).collect();
        return print(args, "differences", &rows);
    }
    let rows: Vec<_> = found.iter().map(|it| PinRow::with_texts(it, pins, selected)).collect();
    print(args, "differences", &rows)?;
    match (unlisted, found.len()) {
        (Some(failure), _) => Err(failure),
        (None, 0) => Ok(()),
        (None, count) => {
            let text =
                format!("{count} different from what was approved; `weir pins approve` accepts it");
            Err(Failure::CheckFailed(text))
        }
    }
}

/// Shows the items in the lock file; starts nothing.
async fn list(args: &Args, selected: &[PinSelection<'_>]) -> Result<(), Failure> {
    let only = Some(Vec::new());
    let loaded = args.report.config.load(&weir_config::Options { only, ..options(true) }).await?;
    let path = &loaded.config.lock_file;
    let lock = PinFile::load(path)
        .map_err(|bad| Failure::NoConfig(format!("{}: {bad}", path.display())))?;
    let mut rows = Vec::new();
    for (name, pinned) in lock.unwrap_or_default().upstreams {
        let is_selected = |key: &str| selects(selected, &name, |item| item == key);
        let row = |kind, key: &str, digest| PinRow {
            digest: Some(digest),
            ..PinRow::new(&name, kind, key)
        };
        if let Some(digest) = pinned.instructions.filter(|_| is_selected("")) {
            let digest = digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
            rows.push(row(None, "", digest));
        }
        for ((kind, _), items) in PINNED.iter().zip(pinned.kinds) {
            let items = items.into_iter().flatten().filter(|(key, _)| is_selected(key));
            rows.extend(items.map(|(key, digest)| row(Some(*kind), &key, digest.to_string())));
        }
    }
    print(args, "approved", &rows)
}

/// Describes a difference for the audit log.
fn describe(difference: &Difference) -> String {
    let Difference { kind, key, change, .. } = difference;
    match kind {
        Some(kind) => format!("{change} {kind} {key}"),
        None => format!("{change} instructions"),
    }
}

fn print(args: &Args, member: &str, rows: &[PinRow]) -> Result<(), Failure> {
    output::print_report(args.report.json, &BTreeMap::from([(member, rows)]), |out| {
        rows.iter().try_for_each(|row| writeln!(out, "{row}"))
    })
}

/// Approved definition, or difference from the approved ones.
#[derive(Default, Serialize)]
struct PinRow {
    upstream: String,
    /// Kind of the item, or `instructions`.
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<String>,
    /// Hash of the approved definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    /// Former name of a renamed item.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<String>,
    /// Approved definition, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    approved_text: Option<String>,
    /// Definition that was seen first, if none is approved and it is not the listed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_text: Option<String>,
    /// Definition that is listed now, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    listed_text: Option<String>,
    /// Reason why the former text is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    text_problem: Option<String>,
    /// Lines that show the texts.
    #[serde(skip)]
    lines: Vec<String>,
}

impl PinRow {
    fn new(upstream: &str, kind: Option<Kind>, key: &str) -> Self {
        let upstream = upstream.to_owned();
        let item = (!key.is_empty()).then(|| key.to_owned());
        let kind = kind.map_or_else(|| "instructions".to_owned(), |kind| kind.to_string());
        Self { upstream, kind, item, ..Self::default() }
    }

    fn of_difference(difference: &Difference) -> Self {
        let Difference { upstream, kind, key, change } = difference;
        Self {
            change: Some(change.to_string()),
            was: change.former_name().map(str::to_owned),
            ..Self::new(upstream.as_str(), *kind, key)
        }
    }

    /// Adds the texts of a difference. If nothing of an upstream is approved, each of its items
    /// differs, and is shown by name only, unless it is selected.
    fn with_texts(difference: &Difference, pins: &Pins, selected: &[PinSelection<'_>]) -> Self {
        let DefinitionTexts { approved, is_first_seen, listed } = pins.texts(difference);
        let is_known = pins.approved().upstreams.contains_key(difference.upstream.as_str());
        let is_shown = is_known || selected.iter().any(|(_, item)| item.is_some());
        let (former, problem) = match approved.transpose() {
            Ok(former) => (former, None),
            Err(problem) => (None, Some(problem.to_string())),
        };
        let mut lines = match (&former, &listed) {
            (Some(former), Some(listed)) => definition_diff::changed_lines(former, listed),
            (None, Some(listed)) if is_shown => definition_diff::all_lines('+', listed),
            (Some(former), None) if difference.change == Change::Missing => {
                definition_diff::all_lines('-', former)
            }
            _ => Vec::new(),
        };
        let former_word = if is_first_seen { "seen first" } else { "approved" };
        if let Some(problem) = &problem {
            lines.insert(0, format!("{former_word}: {}", sanitize_line(problem)));
        } else if former.is_some() && listed.is_some() {
            lines.insert(0, format!("- {former_word}, + listed now"));
        }
        let (approved_text, first_text) =
            if is_first_seen { (None, former) } else { (former, None) };
        Self {
            approved_text,
            first_text,
            listed_text: listed,
            text_problem: problem,
            lines,
            ..Self::of_difference(difference)
        }
    }
}

impl fmt::Display for PinRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, kind, item, digest, change, was, lines, .. } = self;
        if let Some(digest) = digest {
            write!(f, "{digest:67}  ")?;
        }
        if let Some(change) = change {
            write!(f, "{change:7}  ")?;
        }
        match item {
            None => write!(f, "{upstream}: {kind}")?,
            Some(item) => write!(f, "{upstream}/{} ({kind})", sanitize_line(item))?,
        }
        was.iter().try_for_each(|was| write!(f, ", was {}", sanitize_line(was)))?;
        lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

fn is_selected(difference: &Difference, selected: &[PinSelection<'_>]) -> bool {
    let was = difference.change.former_name();
    selects(selected, difference.upstream.as_str(), |item| {
        difference.kind.is_some() && (difference.key == item || was == Some(item))
    })
}

/// Returns whether a whole upstream is selected, or an item of it that `is_item` accepts.
fn selects(
    selected: &[PinSelection<'_>],
    upstream: &str,
    is_item: impl Fn(&str) -> bool + Copy,
) -> bool {
    selected.is_empty()
        || selected.iter().any(|(name, item)| *name == upstream && item.is_none_or(is_item))
}

fn split_item(item: &str) -> PinSelection<'_> {
    match item.split_once('/') {
        Some((upstream, item)) => (upstream, Some(item)),
        None => (item, None),
    }
}
