//! `./dev bench`: Weir between a load and a fixture, in turn with others that stand in the same place.
//!
//! One program with three faces, so that there is nothing to install beside it: the harness (`run`), which starts and
//! measures; the fixture (`fixture`), which answers; and the floor (`forward`), what hyper costs without a gateway.
//! `benches/README.md` is the way in.

#![allow(clippy::disallowed_types, reason = "a client reads what it was sent, as values")]
#![allow(
    clippy::disallowed_methods,
    reason = "what serves here is killed, and nobody waits for its tasks"
)]

mod clock;
mod fixture;
mod forward;
mod load;
mod process;
mod report;
mod results;
mod subject;
mod workload;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use report::{Machine, Made};
use results::Results;
use subject::{Programs, Subject};
use workload::Bench;

#[derive(Debug, Parser)]
#[command(about = "Weir between a load and a fixture, beside others")]
enum Face {
    /// Measures
    Run(Arguments),
    /// Says which workloads there are
    List,
    #[command(hide = true)]
    Fixture(fixture::Settings),
    #[command(hide = true)]
    Forward(forward::Settings),
}

/// What a run takes.
#[derive(Debug, clap::Args)]
struct Arguments {
    /// Only workloads whose names begin with one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only these subjects
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// How often each has its turn
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// How long a turn is
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Writes the tables between the marks of this document
    #[arg(long)]
    document: Option<PathBuf>,
    /// Writes every figure of every turn there
    #[arg(long)]
    json: Option<PathBuf>,
    #[arg(long, hide = true)]
    weir: PathBuf,
    #[arg(long, hide = true)]
    parts: PathBuf,
    #[arg(long, hide = true)]
    gateways: PathBuf,
}

fn main() -> io::Result<()> {
    match Face::parse() {
        Face::Fixture(settings) => {
            allow_files();
            fixture::run(&settings)
        }
        Face::Forward(settings) => forward::run(&settings),
        Face::List => {
            for (name, what) in workload::ALL {
                println!("{name:14} {what}");
            }
            Ok(())
        }
        Face::Run(arguments) => {
            allow_files();
            // One thread: cheap for what it does, and never in the way of more than one processor.
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(run(arguments))
        }
    }
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
    let made = Made {
        command: command(&only, &subjects, turns, seconds),
        turns,
        seconds,
        machine: Machine::here(&programs),
    };
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
    // Whoever is interrupted ends what it started: dropping it does.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        done = bench.run() => done?,
        _ = tokio::signal::ctrl_c() => return Err(io::ErrorKind::Interrupted.into()),
        _ = terminated.recv() => return Err(io::ErrorKind::Interrupted.into()),
    }
    bench.say("done\n");
    let text = report::markdown(&bench.results, &made);
    print!("{text}");
    if let Some(file) = json {
        std::fs::write(file, report::as_json(&bench.results, &made))?;
    }
    if let Some(file) = document {
        report::write_into(&file, &text)?;
    }
    let goals = report::checked(&bench.results);
    let measured = goals.iter().filter(|goal| goal.is.is_some()).count();
    let missed = goals.iter().filter(|goal| goal.missed_by().is_some()).count();
    eprintln!("{} of {measured} measured goals reached", measured - missed);
    Ok(())
}

/// The command that makes this run again.
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

/// As many open files as the system gives: ten thousand streams are as many on either side.
fn allow_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, the workload with 10 000 streams says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The name of a fixture's item: which one of which kind, in six characters.
pub(crate) fn fixture_name(kind: char, number: usize) -> String {
    format!("{kind}{number:05}")
}
