//! `weir pins`: what is different from the definitions that were approved, and approving it.

use std::io::Write;

use clap::ValueEnum;

use super::exit::Failure;
use super::output;
use crate::cli::query::oneshot::{ConfigArgs, House, options};
use crate::cli::query::render::{plain, shown_json};
use crate::cli::query::required_upstreams::Wanted;
use crate::cli::server::log;
use crate::config::Mode;
use crate::json::{self, Object};
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::pins::{BadLock, Change, Difference, Lock, PINNED};

/// What `weir pins` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to do: `diff` starts the upstreams and shows what is different from the lock file, `approve` writes that to it,
    /// `list` shows what it approves.
    #[arg(value_enum)]
    action: Action,
    /// All that an upstream lists, or one item of it by the upstream's own name; without any, everything.
    #[arg(value_name = "UPSTREAM[/ITEM]", value_hint = clap::ValueHint::Other)]
    items: Vec<String>,
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    Diff,
    Approve,
    List,
}

/// What is meant: an upstream, and one of its items.
type Meant<'a> = (&'a str, Option<&'a str>);

/// Compares, approves or lists.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_quietly();
    let meant: Vec<Meant<'_>> = args.items.iter().map(|item| split(item)).collect();
    if args.action == Action::List {
        return list(&args, &meant).await;
    }
    let mut names: Vec<String> = meant.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    names.dedup();
    let wanted = Wanted::Of(&names);
    // Nothing is held back, nothing is written, and all is kept to be compared.
    let review = |config: &mut crate::config::Config| {
        config.upstreams.iter_mut().for_each(|upstream| upstream.pinning = Mode::Review);
    };
    // Nobody else can come in, so whoever may listen on the network does not matter here.
    let options = options(true);
    let house = House::open_as(&args.config, args.json, None, wanted, options, review).await?;
    let done = compare(&args, &meant, &house);
    house.close().await;
    done
}

fn compare(args: &Args, meant: &[Meant<'_>], house: &House) -> Result<(), Failure> {
    let sentries = house.app().gateway().sentries();
    let pins = &sentries.pins;
    let names = house.config().upstreams.iter();
    let names: Vec<UpstreamName> = names.filter_map(|it| it.name.parse().ok()).collect();
    let unlisted: Vec<_> = names.iter().filter(|name| !pins.is_listed(name)).collect();
    let unlisted = unlisted.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let unlisted = (!unlisted.is_empty()).then(|| {
        Failure::Unreachable(format!("could not be listed, and was not compared: {unlisted}"))
    });
    let all = pins.differences();
    for (name, item) in meant.iter().filter_map(|(name, item)| Some((name, (*item)?))) {
        let is_approved = pins.approved().upstreams.get(*name).is_some_and(|pinned| {
            pinned.kinds.iter().flatten().any(|items| items.contains_key(item))
        });
        if !is_approved && !all.iter().any(|it| is_meant(it, &[(name, Some(item))])) {
            let text = format!("`{name}` lists no `{}`, and none was approved", plain(item));
            return Err(unlisted.unwrap_or(Failure::Usage(text)));
        }
    }
    let mut found: Vec<Difference> = all.into_iter().filter(|it| is_meant(it, meant)).collect();
    if args.action == Action::Approve {
        // What was not seen is not approved, and half an approval is none.
        if let Some(failure) = unlisted {
            return Err(failure);
        }
        let unwritten = |bad: BadLock| {
            let path = house.config().lock_file.display();
            Failure::Output(std::io::Error::other(format!("{path}: {bad}")))
        };
        found.clear();
        let everything: Vec<Meant<'_>> = names.iter().map(|name| (name.as_str(), None)).collect();
        for (name, item) in if meant.is_empty() { &everything } else { meant } {
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
            Err(Failure::Differs(text))
        }
    }
}

/// Shows what the lock file approves; starts nothing.
async fn list(args: &Args, meant: &[Meant<'_>]) -> Result<(), Failure> {
    let only = Some(Vec::new());
    let loaded = args.config.load(&crate::config::Options { only, ..options(true) }).await?;
    let path = &loaded.config.lock_file;
    let lock =
        Lock::load(path).map_err(|bad| Failure::NoConfig(format!("{}: {bad}", path.display())))?;
    let mut rows = Vec::new();
    for (name, pinned) in lock.unwrap_or_default().upstreams {
        let is_meant = |key: &str| {
            meant.is_empty()
                || meant.iter().any(|(it, item)| *it == name && item.is_none_or(|item| item == key))
        };
        if let Some(digest) = pinned.instructions.filter(|_| is_meant("")) {
            let digest = digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
            rows.push((name.clone(), None, String::new(), digest));
        }
        for ((kind, _), items) in PINNED.iter().zip(pinned.kinds) {
            let items = items.into_iter().flatten().filter(|(key, _)| is_meant(key));
            rows.extend(
                items.map(|(key, digest)| (name.clone(), Some(*kind), key, digest.to_string())),
            );
        }
    }
    output::print(|out| match args.json {
        true => {
            let rows = rows.iter().map(|(name, kind, key, digest)| {
                let mut object = object(name, *kind, key);
                object.set("digest", json::quote(digest));
                object
            });
            write_json(out, "approved", rows)
        }
        false => rows.iter().try_for_each(|(name, kind, key, digest)| {
            writeln!(out, "{digest:67}  {}", place(name, *kind, key))
        }),
    })
}

fn show(args: &Args, found: &[Difference]) -> Result<(), Failure> {
    output::print(|out| match args.json {
        true => {
            let rows = found.iter().map(|it| {
                let mut object = object(it.upstream.as_str(), it.kind, &it.key);
                object.set("change", json::quote(&it.change.to_string()));
                if let Change::Renamed(was) = &it.change {
                    object.set("was", json::quote(was));
                }
                object
            });
            write_json(out, "differences", rows)
        }
        false => found.iter().try_for_each(|it| {
            let was = match &it.change {
                Change::Renamed(was) => format!(", was {}", plain(was)),
                _ => String::new(),
            };
            let place = place(it.upstream.as_str(), it.kind, &it.key);
            writeln!(out, "{:7}  {place}{was}", it.change.to_string())
        }),
    })
}

fn write_json(
    out: &mut dyn Write,
    member: &str,
    rows: impl Iterator<Item = Object>,
) -> std::io::Result<()> {
    let rows: Vec<_> =
        rows.map(|row| String::from_utf8_lossy(&row.to_bytes()).into_owned()).collect();
    let text = format!("{{\"{member}\":[{}]}}", rows.join(","));
    writeln!(out, "{}", shown_json(&text, false))
}

fn object(upstream: &str, kind: Option<Kind>, key: &str) -> Object {
    let mut object = Object::new();
    object.set("upstream", json::quote(upstream));
    let kind = kind.map_or_else(|| "instructions".to_owned(), |kind| kind.to_string());
    object.set("kind", json::quote(&kind));
    if !key.is_empty() {
        object.set("item", json::quote(key));
    }
    object
}

/// Where an item belongs, for people.
fn place(upstream: &str, kind: Option<Kind>, key: &str) -> String {
    match kind {
        None => format!("{upstream}: instructions"),
        Some(kind) => format!("{upstream}/{} ({kind})", plain(key)),
    }
}

fn is_meant(difference: &Difference, meant: &[Meant<'_>]) -> bool {
    let is = |(name, item): &Meant<'_>| {
        let was = match &difference.change {
            Change::Renamed(was) => Some(was.as_str()),
            _ => None,
        };
        let is_item =
            |item: &str| difference.kind.is_some() && (difference.key == item || was == Some(item));
        difference.upstream.as_str() == *name && item.is_none_or(is_item)
    };
    meant.is_empty() || meant.iter().any(is)
}

fn split(item: &str) -> Meant<'_> {
    match item.split_once('/') {
        Some((upstream, item)) => (upstream, Some(item)),
        None => (item, None),
    }
}
