//! `weir pins`: compares definitions with the approved ones, and approves them.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::exit::Failure;
use super::output;
use crate::cli::loading::{ReportArgs, options};
use crate::cli::output::render::sanitize_line;
use crate::cli::query::oneshot::OneShotGateway;
use crate::cli::query::required_upstreams::UpstreamSelection;
use crate::cli::server::log;
use crate::config::Mode;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::pins::{BadLock, Difference, PINNED, PinFile};

/// Arguments of `weir pins`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// `diff` starts the upstreams and shows differences from the lock file, `approve` writes them
    /// to it, `list` shows the approved items.
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
    let review = |config: &mut crate::config::Config| {
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
        let everything: Vec<PinSelection<'_>> =
            names.iter().map(|name| (name.as_str(), None)).collect();
        for (name, item) in if selected.is_empty() { &everything } else { selected } {
            let name = names.iter().find(|known| known.as_str() == *name);
            let Some(name) = name else { continue };
            found.extend(pins.approve(name, *item).map_err(unwritten)?);
        }
        return show(args, &found);
    }
    show(args, &found)?;
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
    let loaded = args.report.config.load(&crate::config::Options { only, ..options(true) }).await?;
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

fn show(args: &Args, found: &[Difference]) -> Result<(), Failure> {
    let row = |it: &Difference| PinRow {
        change: Some(it.change.to_string()),
        was: it.change.former_name().map(str::to_owned),
        ..PinRow::new(it.upstream.as_str(), it.kind, &it.key)
    };
    print(args, "differences", &found.iter().map(row).collect::<Vec<_>>())
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
}

impl PinRow {
    fn new(upstream: &str, kind: Option<Kind>, key: &str) -> Self {
        let upstream = upstream.to_owned();
        let item = (!key.is_empty()).then(|| key.to_owned());
        let kind = kind.map_or_else(|| "instructions".to_owned(), |kind| kind.to_string());
        Self { upstream, kind, item, ..Self::default() }
    }
}

impl fmt::Display for PinRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, kind, item, digest, change, was } = self;
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
        was.iter().try_for_each(|was| write!(f, ", was {}", sanitize_line(was)))
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
