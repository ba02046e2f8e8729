//! `weir check`: checks the configuration, then starts, lists and reports each upstream.

pub(super) mod survey;
mod table;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::exit::{Failure, ProblemReport, problems};
use super::output;
use crate::admin::notes::NoteStatus;
use crate::admin::status::held_back_lines;
use crate::app;
use crate::cli::instance::fleet::check_store;
use crate::cli::loading::{ConfigArgs, options, print_warnings};
use crate::cli::output::render::sanitize_line;
use crate::cli::output::trace::TraceArgs;
use crate::cli::query::first_pages::find_cut_lists;
use crate::cli::query::oneshot::{OneShotGateway, describe_connection};
use crate::cli::query::required_upstreams::UpstreamSelection;
use crate::cli::server::log::{self, ReportedWarning};
use table::format_table;
use weir_access::catalog::{ExportProblems, ExportedItem, RoleView};
use weir_config::{self as config, Config, Options, owner_of};
use weir_mcp::kind::Kind;
use weir_mcp::pattern::Pattern;
use weir_upstream::health::status_report::State;
use weir_upstream::{ConnectionStatus, Upstream};

/// Arguments of `weir check`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Checks the configuration only and starts nothing.
    #[arg(long)]
    offline: bool,
    /// Prints the report as JSON, with the configuration's warnings; everything else is lines of
    /// JSON on standard error.
    #[arg(long)]
    json: bool,
    /// Accepts anonymous access on an address that others on the network can reach.
    #[arg(long)]
    allow_anonymous_network: bool,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// JSON form of the report.
#[derive(Serialize)]
struct CheckReport<'a> {
    /// `None` with `--offline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstreams: Option<&'a [CheckRow]>,
    /// Names of the upstreams that the configuration disables; missing if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disabled: Vec<String>,
    warnings: Vec<ProblemReport>,
}

/// Report about one upstream.
#[derive(Default, Serialize)]
pub(super) struct CheckRow {
    pub(super) name: String,
    pub(super) ok: bool,
    /// Whether a user has to sign in first; missing if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) needs_sign_in: bool,
    /// Whether it is connected, and clients do not get all of it; missing if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) incomplete: bool,
    /// Whether the configuration disables it; such a row is only shown.
    #[serde(skip)]
    disabled: bool,
    /// Description of the connection, or the reason why there is none.
    pub(super) state: String,
    prompts: usize,
    tools: usize,
    resources: usize,
    #[serde(rename = "resourceTemplates")]
    templates: usize,
    /// Number of those tools that can be called only as a task.
    #[serde(skip)]
    task_tools: usize,
    problems: Vec<String>,
    /// Names and definitions that clients see in another form.
    altered: Vec<String>,
    /// Mistakes of the server, for its author; missing if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<NoteStatus>,
    /// Further warnings, which are lines of the log if the report is JSON.
    #[serde(skip)]
    warnings: Vec<String>,
}

impl CheckRow {
    /// Creates the row of an upstream that is disabled.
    fn disabled(name: &str) -> Self {
        let state = format!("`weir enable {name}` enables it");
        Self { name: name.to_owned(), disabled: true, state, ..Self::default() }
    }
}

/// Checks the configuration and every upstream of it.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_for_report(args.json);
    if args.offline {
        return offline(&args).await;
    }
    args.trace.apply();
    // This process opens no listener, so anonymous access from the network does not matter.
    let options = with_key_warnings(options(true));
    let oneshot = OneShotGateway::open(
        &args.config,
        args.json,
        None,
        UpstreamSelection::Named(&[]),
        options,
        |_| {},
    )
    .await?;
    let mut rows = rows(&oneshot);
    let other_warnings = add_logged_warnings(&mut rows, log::take_warnings());
    let mut warnings = problems(&oneshot.config.warnings);
    let printed_before = warnings.len();
    warnings.extend(find_idle_patterns(&oneshot.config, &oneshot.operator_context.view()));
    warnings.extend(find_cut_lists(&oneshot));
    let store = check_store(&oneshot.config).await;
    warnings.extend(store.as_ref().into_iter().flatten().cloned());
    let disabled = oneshot.config.disabled_upstreams();
    let count = rows.len();
    rows.extend(disabled.iter().map(|name| CheckRow::disabled(name)));
    let (shown, rows) = (&rows, &rows[..count]);
    let report = CheckReport { upstreams: Some(rows), disabled, warnings };
    let printed = output::print_report(args.json, &report, |out| {
        out.write_all(format_table(shown, output::stdout_text()).as_bytes())
    });
    if !args.json {
        other_warnings.iter().for_each(|it| output::print_message(&format!("warning: {it}")));
        for it in report.warnings.iter().skip(printed_before) {
            output::print_message(&format!("warning: {}: {}", it.key, it.what));
        }
    }
    oneshot.close().await;
    printed?;
    store?;
    let describe = |what: &str, is_such: fn(&CheckRow) -> bool| {
        let names = rows.iter().filter(|row| is_such(row)).map(|row| row.name.as_str());
        let names: Vec<_> = names.collect();
        let (some, all) = (names.len(), rows.len());
        (some > 0).then(|| format!("{some} of {all} upstreams {what}: {}", names.join(", ")))
    };
    let unusable = describe("cannot be used", |row| !row.ok && !row.incomplete);
    let incomplete = describe("incomplete", |row| row.incomplete);
    let failures: Vec<_> = unusable.into_iter().chain(incomplete).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Unreachable(failures.join("; "))),
    }
}

/// Starts and lists one upstream of a configuration file, and fills its cache of lists.
pub(super) async fn check_upstream(
    path: &Path,
    name: &str,
    json: bool,
) -> Result<CheckRow, Failure> {
    let (args, names) = (ConfigArgs::of_file(path.to_owned()), [name.to_owned()]);
    let selection = UpstreamSelection::Named(&names);
    let oneshot = OneShotGateway::open(&args, json, None, selection, options(true), |_| {}).await?;
    let row = rows(&oneshot).into_iter().find(|row| row.name == name);
    oneshot.close().await;
    row.ok_or_else(|| Failure::Usage(format!("no upstream `{name}` in {}", path.display())))
}

/// Lists every upstream, which fills the cache of lists, and reports them on standard error.
/// Upstreams that have not been listed when `patience` ends count as down.
pub(super) async fn list_upstreams(
    config: &ConfigArgs,
    patience: Duration,
) -> Result<Vec<CheckRow>, Failure> {
    log::start_errors_only();
    let selection = UpstreamSelection::Named(&[]);
    let options = options(true);
    let oneshot =
        OneShotGateway::open_within(config, false, None, selection, options, |_| {}, patience)
            .await?;
    let rows = rows(&oneshot);
    oneshot.close().await;
    output::print_stderr(format_table(&rows, output::stderr_text()).trim_end());
    Ok(rows)
}

/// Prints rows for people.
pub(super) fn print_rows(rows: &[CheckRow]) -> Result<(), Failure> {
    output::print(|out| out.write_all(format_table(rows, output::stdout_text()).as_bytes()))
}

/// Checks only the configuration.
async fn offline(args: &Args) -> Result<(), Failure> {
    let options = with_key_warnings(options(args.allow_anonymous_network));
    let warnings = args.config.check(&options).await?;
    if args.json {
        let (disabled, warnings) = (Vec::new(), problems(&warnings));
        let report = CheckReport { upstreams: None, disabled, warnings };
        return output::print(|out| writeln!(out, "{}", output::to_json(&report)));
    }
    print_warnings(&warnings);
    output::print_stderr("the configuration is valid");
    Ok(())
}

/// Adds the current time to the options, so that keys that expire soon cause warnings.
fn with_key_warnings(options: Options) -> Options {
    Options { now: Some(SystemTime::now()), ..options }
}

/// Finds patterns that match no item in the lists of their upstreams. Not all resources are
/// listed, so a pattern for resources is reported only if its upstreams list none.
fn find_idle_patterns(config: &Config, everything: &RoleView) -> Vec<ProblemReport> {
    let mut idle = Vec::new();
    for (role, rules) in &config.roles {
        let table = match owner_of(role) {
            Some(client) => format!("clients.{client}"),
            None => format!("roles.{role}"),
        };
        for kind in [Kind::Prompt, Kind::Tool, Kind::Resource] {
            let (name, rules) = (kind.topic().capability(), rules.rules(kind));
            for (list, patterns) in [("allow", &rules.allow), ("deny", &rules.deny)] {
                // A pattern for everything also covers future items.
                let patterns = patterns.iter().map(Pattern::as_str).filter(|pattern| {
                    *pattern != "*" && pattern.split_once('/').is_none_or(|(_, own)| own != "*")
                });
                let unmatched = patterns.filter(|text| is_idle(text, kind, config, everything));
                idle.extend(unmatched.map(|text| ProblemReport {
                    severity: "warning",
                    key: format!("{table}.{name}.{list}"),
                    what: format!(
                        "{} matches none of the {name} that are listed",
                        sanitize_line(text)
                    ),
                    remedy: "correct the name, or remove the pattern".to_owned(),
                    ..ProblemReport::default()
                }));
            }
        }
    }
    idle
}

fn is_idle(text: &str, kind: Kind, config: &Config, everything: &RoleView) -> bool {
    let pattern = Pattern::new(text);
    let kinds = Kind::ALL.into_iter().filter(|it| it.topic() == kind.topic());
    // An upstream whose lists were not read may have a matching item.
    let upstreams = config.summaries.iter().map(|summary| summary.name.as_str());
    let mut candidates = upstreams.filter(|name| may_match_upstream(text, name)).peekable();
    let is_read = |name: &str| {
        let missing = |kind| everything.missing(kind).iter().any(|it| it.as_str() == name);
        config.upstreams.iter().any(|it| it.name() == name) && !kinds.clone().any(missing)
    };
    // A pattern for an unknown upstream has a warning of its own.
    if candidates.peek().is_none() || !candidates.all(is_read) {
        return false;
    }
    let mut listed = kinds.clone().flat_map(|kind| everything.items(kind));
    !listed.any(|target| match kind.has_name() {
        true => pattern.matches(&format!("{}/{}", target.upstream, target.own)),
        false => may_match_upstream(text, target.upstream.as_str()),
    })
}

/// Returns whether a pattern can match an item of this upstream.
fn may_match_upstream(pattern: &str, upstream: &str) -> bool {
    let upstream_part = pattern.split_once('/').map_or(pattern, |(upstream, _)| upstream);
    match upstream_part.split_once('*') {
        Some((head, _)) => upstream.starts_with(head) || head.starts_with(upstream),
        None => upstream_part == upstream,
    }
}

fn rows(oneshot: &OneShotGateway) -> Vec<CheckRow> {
    let view = oneshot.operator_context.view();
    let problems = oneshot.app.gateway().problems();
    let withheld = oneshot.app.gateway().awaiting_approval();
    let row = |configured: &config::UpstreamConfig| {
        let of_it = |it: &&Arc<ExportedItem>| it.upstream.as_str() == configured.name();
        let count = |kind| view.items(kind).iter().filter(of_it).count();
        let problems =
            problems.iter().filter(|(upstream, ..)| upstream.as_str() == configured.name());
        let upstream = oneshot.find_upstream(configured.name());
        let report = upstream.as_ref().map(Upstream::report);
        let needs_sign_in = report.is_some_and(|report| report.state == State::NeedsSignIn);
        let mistakes = upstream.as_ref().map(Upstream::file_mistakes).unwrap_or_default();
        let notes = upstream.as_ref().map(NoteStatus::all).unwrap_or_default();
        let state =
            upstream.map_or_else(|| Err("not started".to_owned()), |upstream| state(&upstream));
        let is_connected = state.is_ok();
        let state = state.and_then(|state| require_complete_lists(&view, configured.name(), state));
        let [prompts, tools, resources, templates] = Kind::ALL.map(count);
        let task_tools = view.items(Kind::Tool).iter().filter(of_it).filter(|it| it.needs_task);
        let name = &configured.settings.name;
        let mine = withheld.iter().filter(|(upstream, ..)| upstream == name);
        let mine = mine.map(|(_, kind, own)| (*kind, &**own));
        let ok = state.is_ok() && mistakes.is_empty();
        let (Ok(state) | Err(state)) = state;
        CheckRow {
            name: configured.name().to_owned(),
            ok,
            needs_sign_in,
            incomplete: is_connected && !ok && !needs_sign_in,
            disabled: false,
            state,
            prompts,
            tools,
            resources,
            templates,
            task_tools: task_tools.count(),
            problems: mistakes
                .into_iter()
                .map(|mistake| format!("file {mistake}"))
                .chain(problems.clone().flat_map(|(_, kind, problems)| problems.left_out(*kind)))
                .chain(held_back_lines(name, mine).1)
                .collect(),
            altered: altered(&oneshot.config, configured, &view)
                .into_iter()
                .chain(problems.flat_map(|(_, kind, problems)| problems.altered.lines(*kind)))
                .collect(),
            notes,
            warnings: Vec::new(),
        }
    };
    oneshot.config.upstreams.iter().map(row).collect()
}

/// Adds logged warnings to the rows of their upstreams, and returns the others. The mistakes in
/// prompt files, which name no upstream, are in the rows already.
fn add_logged_warnings(rows: &mut [CheckRow], logged: Vec<ReportedWarning>) -> Vec<String> {
    let mut others = Vec::new();
    for ReportedWarning { upstream, text } in logged {
        if let Some(row) = rows.iter_mut().find(|row| upstream.as_deref() == Some(&*row.name)) {
            row.warnings.push(text);
            continue;
        }
        let mut known = rows.iter().flat_map(|row| &row.problems);
        let is_known = known.any(|problem| {
            problem.strip_prefix("file ").is_some_and(|mistake| text.contains(mistake))
        });
        if !is_known {
            others.push(text);
        }
    }
    others
}

/// Describes names of an upstream that clients see in another form, one per line.
fn altered(config: &Config, configured: &config::UpstreamConfig, view: &RoleView) -> Vec<String> {
    let (naming, exports) = (app::naming(&config.naming), &configured.exports);
    let listed = Kind::ALL.into_iter().flat_map(|kind| view.items(kind));
    let lines = listed.filter(|target| target.upstream.as_str() == configured.name());
    let mut lines = lines.filter_map(|target| {
        let (_, reason) = exports.altered(&naming, target.kind, &target.own)?;
        Some(format!("{} {:?} is {} for clients: {reason}", target.kind, target.own, target.key))
    });
    let mut first: Vec<_> = lines.by_ref().take(ExportProblems::MAX).collect();
    let more = lines.count();
    first.extend((more > 0).then(|| format!("and {more} more")));
    first
}

/// Returns the state if every list was read: an upstream may be up and fail to list.
fn require_complete_lists(view: &RoleView, name: &str, state: String) -> Result<String, String> {
    let is_missing = |kind: &Kind| view.missing(*kind).iter().any(|one| one.as_str() == name);
    let unread: Vec<_> = Kind::ALL.into_iter().filter(is_missing).map(Kind::list_method).collect();
    if unread.is_empty() {
        return Ok(state);
    }
    Err(format!("{state}, but could not be listed: {}", unread.join(", ")))
}

fn state(upstream: &Upstream) -> Result<String, String> {
    match &*upstream.status().borrow() {
        ConnectionStatus::Starting => Err("still starting".to_owned()),
        ConnectionStatus::Asleep => Ok("asleep".to_owned()),
        ConnectionStatus::Up(about) => Ok(describe_connection(about)),
        ConnectionStatus::Down { reason, .. } => Err(reason.clone()),
    }
}
