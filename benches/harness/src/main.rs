//! `./dev bench`: Weir between a load and a fixture, in turn with other programs in the same place.
//!
//! One program with three commands, so that nothing else has to be installed: the harness (`run`),
//! which starts and measures; the fixture (`fixture`), which responds; and the floor (`forward`),
//! the cost of hyper without a gateway. `benches/README.md` is the introduction.

#![allow(clippy::disallowed_types, reason = "a client reads what it was sent, as values")]
#![allow(
    clippy::disallowed_methods,
    reason = "a serving process is killed, and its tasks are not awaited"
)]

mod clock;
mod count;
mod fixture;
mod forward;
mod load;
#[path = "../../../tests/lab/ports.rs"]
mod ports;
mod process;
mod report;
mod results;
mod subject;
mod workload;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use report::{Machine, Run};
use results::Results;
use subject::{Programs, Subject};
use workload::Bench;

#[derive(Debug, Parser)]
#[command(about = "Weir between a load and a fixture, beside others")]
enum Face {
    /// Measures
    Run(Arguments),
    /// Writes the document and the plot again from the figures of a run, without measuring
    Report(ReportArguments),
    /// Lists the workloads
    List,
    /// Counts the instructions and allocations of a call
    #[command(hide = true)]
    Count(count::Arguments),
    #[command(hide = true)]
    Fixture(fixture::Settings),
    #[command(hide = true)]
    Forward(forward::Settings),
}

/// Arguments of a run.
#[derive(Debug, clap::Args)]
struct Arguments {
    /// Only workloads whose names begin with one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these subjects
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// Number of turns of each subject
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// Length of a turn in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Writes summary and tables into this document, and the plot beside it
    #[arg(long)]
    document: Option<PathBuf>,
    /// Writes every figure of every turn into this file
    #[arg(long)]
    json: Option<PathBuf>,
    #[arg(long, hide = true)]
    weir: PathBuf,
    #[arg(long, hide = true)]
    parts: PathBuf,
    #[arg(long, hide = true)]
    gateways: PathBuf,
}

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
struct ReportArguments {
    /// The figures of a run
    #[arg(long, default_value = "docs/performance.json")]
    json: PathBuf,
    /// The document; the plot has its name and ends in .svg
    #[arg(long, default_value = "docs/performance.md")]
    document: PathBuf,
}

fn main() -> io::Result<()> {
    match Face::parse() {
        Face::Fixture(settings) => {
            allow_files();
            fixture::run(&settings)
        }
        Face::Forward(settings) => forward::run(&settings),
        Face::Report(ReportArguments { json, document }) => Run::read(&json)?.write_into(&document),
        Face::List => {
            for (name, what) in workload::ALL {
                println!("{name:14} {what}");
            }
            Ok(())
        }
        Face::Run(arguments) => {
            allow_files();
            runtime()?.block_on(run(arguments))
        }
        Face::Count(arguments) => runtime()?.block_on(count::run(&arguments)),
    }
}

/// One thread: cheap for this work, and never on more than one processor.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn run(arguments: Arguments) -> io::Result<()> {
    let Arguments { only, subjects, turns, seconds, document, json, weir, parts, gateways } =
        arguments;
    let unknown = only.iter().find(|only| {
        let known =
            |(name, _): &(&str, &str)| name.starts_with(only.as_str()) || only.starts_with(name);
        !workload::ALL.iter().any(known)
    });
    if let Some(unknown) = unknown {
        return Err(io::Error::other(format!(
            "no workload is called '{unknown}': see ./dev bench --list"
        )));
    }
    if turns == 0 || !(0.05..=600.0).contains(&seconds) {
        return Err(io::Error::other("--turns is at least 1, --seconds from 0.05 to 600"));
    }
    let subjects = if subjects.is_empty() { Subject::ALL.to_vec() } else { subjects };
    let programs = Programs { weir, parts, gateways };
    let (command, machine) =
        (command(&only, &subjects, turns, seconds), Machine::here(&programs).to_string());
    let folder = tempfile::tempdir()?;
    let mut bench = Bench {
        only,
        subjects,
        turns,
        turn: Duration::from_secs_f64(seconds),
        programs,
        folder: folder.path().to_owned(),
        results: Results::default(),
        begin: Instant::now(),
    };
    // On SIGTERM the future is dropped, which ends all started processes.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        done = bench.run() => done?,
        _ = tokio::signal::ctrl_c() => return Err(io::ErrorKind::Interrupted.into()),
        _ = terminated.recv() => return Err(io::ErrorKind::Interrupted.into()),
    }
    bench.report_progress("done\n");
    let run = Run { command, turns, seconds, machine, results: bench.results };
    print!("{}", run.tables());
    if let Some(file) = json {
        std::fs::write(file, run.as_json()?)?;
    }
    if let Some(file) = document {
        run.write_into(&file)?;
    }
    let goals = report::checked(&run.results);
    let measured = goals.iter().filter(|goal| goal.is.is_some()).count();
    let missed = goals.iter().filter(|goal| goal.missed_by().is_some()).count();
    eprintln!("{} of {measured} measured goals reached", measured - missed);
    Ok(())
}

/// Command that repeats this run.
fn command(only: &[String], subjects: &[Subject], turns: usize, seconds: f64) -> String {
    let mut command = "./dev bench".to_owned();
    if !only.is_empty() {
        command.push_str(&format!(" --only {}", only.join(",")));
    }
    if subjects.len() < Subject::ALL.len() {
        let names: Vec<_> = subjects.iter().map(|subject| subject.name()).collect();
        command.push_str(&format!(" --subjects {}", names.join(",")));
    }
    format!("{command} --turns {turns} --seconds {seconds}")
}

/// Raises the limit of open files to the maximum: ten thousand streams are as many on either side.
fn allow_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If that is refused, the workload with 10 000 streams fails with a message.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Name of a fixture's item: its kind and number, in six characters.
pub(crate) fn fixture_name(kind: char, number: usize) -> String {
    format!("{kind}{number:05}")
}
