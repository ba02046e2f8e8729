//! `weir fleet`: the replicas of a fleet, as its store knows them, and keys for a new fleet.
//!
//! It reads the store directly, so that it also works where no replica runs.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde::Serialize;

use crate::cli::exit::{Failure, ProblemReport};
use crate::cli::loading::{ConfigArgs, options};
use crate::cli::output;
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::reference::help;
use crate::config::{self, Config, FleetConfig};
use crate::fleet::{FleetReport, Replica, StoreAbout};
use crate::private_file;
use crate::secret::random_token;

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
    /// Makes a key for `keys` of `[fleet]`, and writes it to a new file.
    #[command(after_help = help::FLEET_KEY)]
    Key(KeyArgs),
}

#[derive(Debug, clap::Args)]
struct KeyArgs {
    /// The new file, which only its owner can read; `-` is standard output.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// JSON form of the report.
#[derive(Serialize)]
struct ReportJson<'a> {
    fleet: &'a str,
    members: Vec<MemberRow<'a>>,
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
    seconds: u64,
}

/// Prints the members of a fleet, or makes a key.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if let Some(FleetCommand::Key(key)) = &args.command {
        return make_key(&key.file);
    }
    let options = config::Options { only: Some(Vec::new()), ..options(true) };
    let config = args.config.load(&options).await?.config;
    let fleet = require_fleet(&config)?;
    let report = look(fleet).await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut members: Vec<_> = report.members.iter().map(|member| row(member, now)).collect();
    members.sort_by_key(|row| (row.name, row.seconds));
    let json = ReportJson {
        fleet: &fleet.settings.name,
        differences: report.differences,
        members,
        claims: report.claims,
    };
    output::print_report(args.json, &json, |out| write_table(out, &json))
}

fn require_fleet(config: &Config) -> Result<&FleetConfig, Failure> {
    let text = "this configuration has no [fleet]: add one with store, keys and listen";
    config.fleet.as_ref().ok_or_else(|| Failure::Usage(text.to_owned()))
}

/// Reads what the store knows of a fleet.
async fn look(fleet: &FleetConfig) -> Result<FleetReport, Failure> {
    FleetReport::read(&fleet.sealing_keys(), &fleet.settings).await.map_err(|error| {
        Failure::Unreachable(format!(
            "the store cannot be used: {error}; check fleet.store, and that the store runs"
        ))
    })
}

/// Reports what an operator should know of the store of a configuration, if it has a fleet.
pub(crate) async fn check_store(config: &Config) -> Result<Vec<ProblemReport>, Failure> {
    let Some(fleet) = &config.fleet else { return Ok(Vec::new()) };
    let report = look(fleet).await?;
    let mut problems = report.differences;
    let StoreAbout { version, eviction, is_persistent } = &report.store;
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
        seconds: now.as_secs().saturating_sub(record.started),
    }
}

fn write_table(out: &mut dyn Write, report: &ReportJson<'_>) -> std::io::Result<()> {
    let rows = || report.members.iter();
    let name = rows().map(|row| row.name.len()).max().unwrap_or(0);
    let address = rows().map(|row| row.address.len()).max().unwrap_or(0);
    for row in &report.members {
        let state = if row.draining { "draining" } else { "serving" };
        writeln!(
            out,
            "{state:8}  {:name$}  {:address$}  {}  version {}, configuration {}, {}, up {} s",
            sanitize_line(row.name),
            sanitize_line(row.address),
            row.instance,
            sanitize_line(row.version),
            sanitize_line(row.configuration),
            counted(row.sessions as u64, "session"),
            row.seconds,
        )?;
    }
    writeln!(
        out,
        "fleet {}: {}, {} taken over or ended",
        report.fleet,
        counted(report.members.len() as u64, "replica"),
        counted(report.claims as u64, "session")
    )?;
    report.differences.iter().try_for_each(|it| writeln!(out, "warning: {}", sanitize_line(it)))
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
