//! `weir check`: the configuration, then each upstream started, listed and reported.

use std::io::Write;
use std::time::SystemTime;

use super::exit::{Failure, problems};
use super::output;
use crate::app;
use crate::catalog::{Problems, View};
use crate::cli::query::oneshot::{ConfigArgs, House, options};
use crate::cli::query::render::plain;
use crate::cli::query::required_upstreams::Wanted;
use crate::cli::server::log;
use crate::config::{self, Config, Options};
use crate::json::{self, Object};
use crate::mcp::kind::Kind;
use crate::mcp::pattern::Pattern;
use crate::upstream::{Status, Upstream};

/// What `weir check` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Checks the configuration only and starts nothing.
    #[arg(long)]
    offline: bool,
    /// Prints the report as JSON, the configuration's warnings in it; all else is lines of JSON on
    /// standard error.
    #[arg(long)]
    json: bool,
    /// Accepts anonymous access on an address that others on the network can reach.
    #[arg(long)]
    allow_anonymous_network: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What is told of one upstream.
struct Row {
    name: String,
    /// How it is connected, or why it is not.
    state: Result<String, String>,
    counts: [usize; 4],
    problems: Vec<String>,
    /// Names that are altered for clients.
    altered: Vec<String>,
}

/// Checks the configuration and every upstream in it.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_for_a_report(args.json);
    if args.offline {
        return offline(&args).await;
    }
    // Nobody else can come in, so whoever may listen on the network does not matter here.
    let options = told_of_keys(options(true));
    let house = House::open(&args.config, args.json, None, Wanted::Of(&[]), options).await?;
    let rows = rows(&house);
    let idle = idle_patterns(house.config(), &house.everything().view());
    let warnings = problems(&house.config().warnings);
    let printed = output::print(|out| match args.json {
        true => write_json(out, &rows, &with_idle(&warnings, &idle)),
        false => write_table(out, &rows),
    });
    if !args.json {
        idle.iter().for_each(|it| output::tell(&format!("warning: {}: {}", it.key, it.what)));
    }
    house.close().await;
    printed?;
    let down: Vec<_> =
        rows.iter().filter(|row| row.state.is_err()).map(|row| row.name.as_str()).collect();
    if down.is_empty() {
        return Ok(());
    }
    Err(Failure::Unreachable(format!(
        "{} of {} upstreams cannot be used: {}",
        down.len(),
        rows.len(),
        down.join(", ")
    )))
}

/// Checks the configuration alone.
async fn offline(args: &Args) -> Result<(), Failure> {
    let options = told_of_keys(options(args.allow_anonymous_network));
    let warnings = args.config.check(&options).await?;
    if args.json {
        let warnings = problems(&warnings);
        return output::print(|out| writeln!(out, "{{\"warnings\":{warnings}}}"));
    }
    warnings.iter().for_each(|warning| output::tell(&warning.draw(true)));
    output::tell("the configuration is good");
    Ok(())
}

/// Options with which keys that expire soon are told of.
fn told_of_keys(options: Options) -> Options {
    Options { now: Some(SystemTime::now()), ..options }
}

/// A pattern of a role that matches nothing that is listed.
struct IdlePattern {
    key: String,
    what: String,
}

/// Patterns that match nothing of what their upstreams list. Of resources not all are listed, so there only those
/// are told whose upstreams list none.
fn idle_patterns(config: &Config, everything: &View) -> Vec<IdlePattern> {
    let kinds: [(&str, &[Kind]); 3] = [
        ("prompts", &[Kind::Prompt]),
        ("tools", &[Kind::Tool]),
        ("resources", &[Kind::Resource, Kind::Template]),
    ];
    let mut idle = Vec::new();
    for (role, rules) in &config.roles {
        let table = match role.strip_prefix("client:") {
            Some(client) => format!("clients.{client}"),
            None => format!("roles.{role}"),
        };
        let rules = [&rules.prompts, &rules.tools, &rules.resources];
        for ((name, kinds), rules) in kinds.into_iter().zip(rules) {
            for (list, patterns) in [("allow", &rules.allow), ("deny", &rules.deny)] {
                // All of an upstream, or of all, is meant for what is yet to come, too.
                let patterns = patterns.iter().filter(|pattern| {
                    *pattern != "*" && pattern.split_once('/').is_none_or(|(_, own)| own != "*")
                });
                let unmatched = patterns.filter(|text| is_idle(text, kinds, config, everything));
                idle.extend(unmatched.map(|text| IdlePattern {
                    key: format!("{table}.{name}.{list}"),
                    what: format!("{} matches none of the {name} that are listed", plain(text)),
                }));
            }
        }
    }
    idle
}

fn is_idle(text: &str, kinds: &[Kind], config: &Config, everything: &View) -> bool {
    let pattern = Pattern::new(text);
    // What is not there now may have it: nothing is told of what nobody has read.
    let upstreams = config.outlines.iter().map(|outline| outline.name.as_str());
    let mut meant = upstreams.filter(|name| may_begin(text, name)).peekable();
    let is_read = |name: &str| {
        let missing = |kind: &Kind| everything.missing(*kind).iter().any(|it| it.as_str() == name);
        config.upstreams.iter().any(|it| it.name == name) && !kinds.iter().any(missing)
    };
    // One that does not exist is told elsewhere.
    if meant.peek().is_none() || !meant.all(is_read) {
        return false;
    }
    let mut listed = kinds.iter().flat_map(|kind| everything.targets(*kind));
    let is_about_resources = kinds.contains(&Kind::Resource);
    !listed.any(|target| match is_about_resources {
        true => may_begin(text, target.upstream.as_str()),
        false => pattern.matches(&format!("{}/{}", target.upstream, target.own)),
    })
}

/// Whether a pattern can match an item of this upstream.
fn may_begin(pattern: &str, upstream: &str) -> bool {
    let upstream_part = pattern.split_once('/').map_or(pattern, |(upstream, _)| upstream);
    match upstream_part.split_once('*') {
        Some((head, _)) => upstream.starts_with(head) || head.starts_with(upstream),
        None => upstream_part == upstream,
    }
}

/// The warnings as a JSON array, with these.
fn with_idle(warnings: &str, idle: &[IdlePattern]) -> String {
    let idle = idle.iter().map(|IdlePattern { key, what }| {
        let mut object = Object::new();
        object.set("severity", "\"warning\"");
        object.set("key", json::quote(key));
        object.set("what", json::quote(what));
        object.set("remedy", json::quote("correct the name, or remove the pattern"));
        String::from_utf8_lossy(&object.to_bytes()).into_owned()
    });
    let inner = warnings.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.unwrap_or_default().to_owned();
    let all = (!inner.is_empty()).then_some(inner).into_iter().chain(idle);
    format!("[{}]", all.collect::<Vec<_>>().join(","))
}

fn rows(house: &House) -> Vec<Row> {
    let view = house.everything().view();
    let problems = house.app().gateway().problems();
    let row = |configured: &config::Upstream| {
        let upstreams = house.app().gateway().upstreams();
        let upstream = upstreams.iter().filter(|one| one.name().as_str() == configured.name).last();
        let count = |kind| {
            let targets = view.targets(kind).iter();
            targets.filter(|target| target.upstream.as_str() == configured.name).count()
        };
        let problems =
            problems.iter().filter(|(upstream, ..)| upstream.as_str() == configured.name);
        Row {
            name: configured.name.clone(),
            state: upstream
                .map_or_else(|| Err("not started".to_owned()), state)
                .and_then(|state| listed(&view, &configured.name, state)),
            counts: Kind::ALL.map(count),
            problems: problems.flat_map(|(_, kind, problems)| told(*kind, problems)).collect(),
            altered: altered(house.config(), configured, &view),
        }
    };
    house.config().upstreams.iter().map(row).collect()
}

/// Names of an upstream that clients know in another form, a line each.
fn altered(config: &Config, configured: &config::Upstream, view: &View) -> Vec<String> {
    let (naming, outlet) = (app::naming(&config.naming), app::outlet(configured));
    let listed = Kind::ALL.into_iter().flat_map(|kind| view.targets(kind));
    let lines = listed.filter(|target| target.upstream.as_str() == configured.name);
    let mut lines = lines.filter_map(|target| {
        let (_, reason) = outlet.altered(&naming, target.kind, &target.own)?;
        Some(format!("{} {:?} is {} for clients: {reason}", target.kind, target.own, target.key))
    });
    let mut first: Vec<_> = lines.by_ref().take(Problems::MAX).collect();
    let more = lines.count();
    first.extend((more > 0).then(|| format!("and {more} more")));
    first
}

/// Passes the state on if every list was read: an upstream may be up and fail to list.
fn listed(view: &View, name: &str, state: String) -> Result<String, String> {
    let is_missing = |kind: &Kind| view.missing(*kind).iter().any(|one| one.as_str() == name);
    let unread: Vec<_> = Kind::ALL.into_iter().filter(is_missing).map(Kind::list_method).collect();
    if unread.is_empty() {
        return Ok(state);
    }
    Err(format!("{state}, but could not be listed: {}", unread.join(", ")))
}

/// What was left out of a list, a line each.
fn told(kind: Kind, problems: &Problems) -> Vec<String> {
    let first = problems.first.iter().map(|problem| format!("{kind} {problem}"));
    let more = (problems.more > 0).then(|| format!("and {} more", problems.more));
    first.chain(more).collect()
}

fn state(upstream: &Upstream) -> Result<String, String> {
    match &*upstream.status().borrow() {
        Status::Starting => Err("still starting".to_owned()),
        Status::Asleep => Ok("asleep".to_owned()),
        // Nothing is spoken with a folder, so it has no revision.
        Status::Up(about) if about.wire == "library" => Ok(about.wire.to_owned()),
        Status::Up(about) => Ok(format!("{} {}", about.wire, about.revision)),
        Status::Down { reason, .. } => Err(reason.clone()),
    }
}

fn write_table(out: &mut dyn Write, rows: &[Row]) -> std::io::Result<()> {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for row in rows {
        match &row.state {
            Ok(state) => {
                let counts = Kind::ALL.iter().zip(row.counts).map(|(kind, count)| {
                    let plural = if count == 1 { "" } else { "s" };
                    format!("{count} {kind}{plural}")
                });
                let counts: Vec<_> = counts.collect();
                writeln!(out, "ok    {:width$}  {state}  {}", row.name, counts.join(", "))?;
            }
            Err(reason) => writeln!(out, "down  {:width$}  {}", row.name, plain(reason))?,
        }
        for problem in &row.problems {
            writeln!(out, "      {:width$}  left out: {}", "", plain(problem))?;
        }
        for altered in &row.altered {
            writeln!(out, "      {:width$}  altered: {}", "", plain(altered))?;
        }
    }
    Ok(())
}

fn write_json(out: &mut dyn Write, rows: &[Row], warnings: &str) -> std::io::Result<()> {
    let rows = rows.iter().map(|row| {
        let mut object = Object::new();
        object.set("name", json::quote(&row.name));
        object.set("ok", row.state.is_ok().to_string());
        let (Ok(state) | Err(state)) = &row.state;
        object.set("state", json::quote(state));
        for (kind, count) in Kind::ALL.into_iter().zip(row.counts) {
            object.set(kind.list_member(), count.to_string());
        }
        for (member, lines) in [("problems", &row.problems), ("altered", &row.altered)] {
            let lines: Vec<_> = lines.iter().map(|line| json::quote(line)).collect();
            object.set(member, [b"[", lines.join(&b","[..]).as_slice(), b"]"].concat());
        }
        object.to_bytes()
    });
    let rows: Vec<_> = rows.collect();
    let rows = rows.join(&b","[..]);
    let rows = String::from_utf8_lossy(&rows);
    writeln!(out, "{{\"upstreams\":[{rows}],\"warnings\":{warnings}}}")
}
