//! `weir fleet`: the replicas of a fleet, as its store knows them, and keys for a new fleet.
//!
//! It reads the store directly, so that it also works where no replica runs.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde::Serialize;

use crate::cli::exit::{Failure, ProblemReport};
use crate::cli::loading::{ConfigArgs, options};
use crate::cli::output;
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::reference::help;
use weir_base::files::private_file;
use weir_base::secrets::secret::random_token;
use weir_base::time::timestamp::format_rfc3339;
use weir_config::{self as config, Config, FleetConfig};
use weir_fleet::{FleetReport, KeyStatus, Replica, StoreAbout, StoreKind};

/// Arguments of `weir fleet`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(subcommand)]
    command: Option<FleetCommand>,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Makes a key for `keys` of `[fleet]`, and writes it to a new file; or shows the state of
    /// those that there are.
    #[command(after_help = help::FLEET_KEY)]
    Key(KeyArgs),
}

#[derive(Debug, clap::Args)]
struct KeyArgs {
    /// The new file, which only its owner can read; `-` is standard output.
    #[arg(value_name = "FILE", required_unless_present = "status")]
    #[arg(conflicts_with_all = ["status", "config", "demo", "json"])]
    file: Option<PathBuf>,
    /// Shows for each key of the configuration which replicas seal with it, and until when it has
    /// to open what it has sealed.
    #[arg(long)]
    status: bool,
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// JSON form of the report.
#[derive(Serialize)]
struct ReportJson<'a> {
    fleet: &'a str,
    members: Vec<MemberRow<'a>>,
    /// Processes that were killed, and whose records the store has still, beside their successors.
    replaced: Vec<MemberRow<'a>>,
    claims: usize,
    differences: Vec<String>,
}

#[derive(Serialize)]
struct MemberRow<'a> {
    name: &'a str,
    instance: String,
    address: &'a str,
    version: &'a str,
    configuration: &'a str,
    draining: bool,
    sessions: usize,
    /// Upstreams that run on this replica only.
    running: Vec<&'a str>,
    seconds: u64,
}

/// JSON form of the state of the keys.
#[derive(Serialize)]
struct KeysJson<'a> {
    keys: Vec<KeyRow<'a>>,
    differences: &'a [String],
}

#[derive(Serialize)]
struct KeyRow<'a> {
    key: String,
    /// Replicas that seal with it, and those that do not have it.
    sealing: &'a [String],
    missing: &'a [String],
    /// Time at which a replica sealed with it, at the latest.
    last_sealed: String,
    /// Time at which all that it has sealed has ended; `null` while a replica seals with it.
    needed_until: Option<String>,
    /// All of it in words.
    state: String,
}

/// Prints the members of a fleet, makes a key, or prints the state of the keys.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let key = args.command.map(|FleetCommand::Key(key)| key);
    if let Some(file) = key.as_ref().and_then(|key| key.file.as_ref()) {
        return make_key(file);
    }
    let options = config::Options { only: Some(Vec::new()), ..options(true) };
    let config = key.as_ref().map_or(&args.config, |key| &key.config).load(&options).await?.config;
    let fleet = require_fleet(&config)?;
    let report = look(&config, fleet).await?;
    if let Some(key) = key {
        return show_keys(key.json, &report);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let json = ReportJson {
        fleet: &fleet.settings.name,
        differences: report.differences,
        members: rows(&report.replicas, now),
        replaced: rows(&report.replaced, now),
        claims: report.claims,
    };
    output::print_report(args.json, &json, |out| write_table(out, &json))
}

fn require_fleet(config: &Config) -> Result<&FleetConfig, Failure> {
    let text = "this configuration has no [fleet]: add one with store, keys and listen";
    config.fleet.as_ref().ok_or_else(|| Failure::Usage(text.to_owned()))
}

/// Reads what the store knows of a fleet.
async fn look(config: &Config, fleet: &FleetConfig) -> Result<FleetReport, Failure> {
    let (keys, max_age) = (fleet.sealing_keys(), config.server.session_max_age);
    FleetReport::read(&keys, &fleet.settings, max_age).await.map_err(|error| {
        Failure::Unreachable(format!(
            "the store cannot be used: {error}; check fleet.store, and that the store runs"
        ))
    })
}

/// Reports what an operator should know of the store of a configuration, if it has a fleet.
pub(crate) async fn check_store(config: &Config) -> Result<Vec<ProblemReport>, Failure> {
    let Some(fleet) = &config.fleet else { return Ok(Vec::new()) };
    let report = look(config, fleet).await?;
    let mut problems = report.differences;
    let StoreAbout { version, eviction, is_persistent, is_cluster } = &report.store;
    match (&fleet.settings.store.kind, is_cluster) {
        (StoreKind::Cluster, false) => {
            problems.push("the store is no cluster: remove fleet.store.cluster".to_owned());
        }
        (StoreKind::Server, true) => problems.push(
            "the store is a node of a cluster, which may give its keys to another one: add \
             cluster = true to fleet.store"
                .to_owned(),
        ),
        _ => {}
    }
    if !matches!(eviction.as_str(), "noeviction" | "") {
        problems.push(format!(
            "the store may drop keys ({}): set its maxmemory-policy to noeviction",
            sanitize_line(eviction)
        ));
    }
    if !is_persistent {
        problems.push(
            "the store forgets everything when it restarts, and so which sessions have ended: \
             enable its append-only file"
                .to_owned(),
        );
    }
    let numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if numbers.take(2).lt([6, 2]) {
        let version = sanitize_line(version);
        return Err(Failure::Unreachable(format!(
            "the store has version {version}: fleet.store needs Valkey, or Redis from 6.2 on"
        )));
    }
    let warning = |what| ProblemReport {
        severity: "warning",
        key: "fleet.store".to_owned(),
        what,
        ..ProblemReport::default()
    };
    Ok(problems.into_iter().map(warning).collect())
}

fn rows(replicas: &[Arc<Replica>], now: Duration) -> Vec<MemberRow<'_>> {
    let mut rows: Vec<_> = replicas.iter().map(|replica| row(replica, now)).collect();
    rows.sort_by_key(|row| (row.name, row.seconds));
    rows
}

fn row(member: &Replica, now: Duration) -> MemberRow<'_> {
    let record = &member.record;
    MemberRow {
        name: &record.name,
        instance: member.instance.to_string(),
        address: &record.address,
        version: &record.version,
        configuration: &record.configuration,
        draining: record.draining,
        sessions: record.sessions,
        running: record.running.keys().map(String::as_str).collect(),
        seconds: now.as_secs().saturating_sub(record.started),
    }
}

fn write_table(out: &mut dyn Write, report: &ReportJson<'_>) -> std::io::Result<()> {
    let serving = report.members.iter().map(|row| (row, "serving"));
    let rows = || serving.clone().chain(report.replaced.iter().map(|row| (row, "replaced")));
    let name = rows().map(|(row, _)| row.name.len()).max().unwrap_or(0);
    let address = rows().map(|(row, _)| row.address.len()).max().unwrap_or(0);
    for (row, state) in rows() {
        let state = if row.draining && state == "serving" { "draining" } else { state };
        let runs = match row.running.is_empty() {
            true => String::new(),
            false => format!(", runs {}", row.running.join(", ")),
        };
        writeln!(
            out,
            "{state:8}  {:name$}  {:address$}  {}  version {}, configuration {}, {}, up {} s{}",
            sanitize_line(row.name),
            sanitize_line(row.address),
            row.instance,
            sanitize_line(row.version),
            sanitize_line(row.configuration),
            counted(row.sessions as u64, "session"),
            row.seconds,
            sanitize_line(&runs),
        )?;
    }
    writeln!(
        out,
        "fleet {}: {}, {} taken over",
        report.fleet,
        counted(report.members.len() as u64, "replica"),
        counted(report.claims as u64, "session")
    )?;
    report.differences.iter().try_for_each(|it| writeln!(out, "warning: {}", sanitize_line(it)))
}

/// Prints the state of the keys of a configuration.
fn show_keys(json: bool, report: &FleetReport) -> Result<(), Failure> {
    let keys: Vec<_> = report.keys.iter().map(key_row).collect();
    let json_report = KeysJson { keys, differences: &report.differences };
    output::print_report(json, &json_report, |out| {
        for row in &json_report.keys {
            writeln!(out, "{}  {}", row.key, sanitize_line(&row.state))?;
        }
        report.differences.iter().try_for_each(|it| writeln!(out, "warning: {}", sanitize_line(it)))
    })
}

fn key_row(key: &KeyStatus) -> KeyRow<'_> {
    let now = SystemTime::now();
    let last_sealed = format_rfc3339(now - key.unused);
    let needed_until = key.sealing.is_empty().then(|| format_rfc3339(now + key.needed));
    let state = match &needed_until {
        None => format!("seals on {}", key.sealing.join(", ")),
        Some(_) if !key.missing.is_empty() => {
            format!("does not seal, and is not on {}", key.missing.join(", "))
        }
        Some(_) if key.needed.is_zero() => {
            format!(
                "has sealed nothing since {last_sealed}, and nothing needs it: it can be dropped"
            )
        }
        Some(until) => format!(
            "has sealed nothing since {last_sealed}; what it sealed until then is good until \
             {until}, and it can be dropped after that"
        ),
    };
    let (sealing, missing) = (&key.sealing, &key.missing);
    KeyRow { key: key.id.to_string(), sealing, missing, last_sealed, needed_until, state }
}

fn make_key(path: &Path) -> Result<(), Failure> {
    let key = random_token();
    if path == Path::new("-") {
        return output::print(|out| writeln!(out, "{key}"));
    }
    private_file::create(path, &key).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::AlreadyExists => "it exists; a key is never replaced".to_owned(),
            _ => error.to_string(),
        };
        Failure::Usage(format!("{} cannot be written: {why}", path.display()))
    })?;
    let shown = path.display();
    output::print_stderr(&format!(
        "{shown} has a new key: give it to all replicas, with keys = {{ file = \"{shown}\" }}"
    ));
    Ok(())
}
