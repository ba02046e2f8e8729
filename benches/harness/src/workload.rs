//! The workloads, in the order in which they run.
//!
//! Each group starts its programs, measures them in turns whose order rotates, and ends them again,
//! so that no group is affected by another's leftovers.

mod growth;
mod replicas;
pub(crate) mod requests;
mod starting;
mod streams;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::load::drive::{Client, Length, drive};
use crate::process;
use crate::results::Results;
use crate::subject::{Programs, Subject};

/// State and options of a run.
pub(crate) struct Bench {
    pub(crate) only: Vec<String>,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) turns: usize,
    pub(crate) turn: Duration,
    pub(crate) programs: Programs,
    pub(crate) folder: PathBuf,
    pub(crate) results: Results,
    pub(crate) begin: Instant,
}

/// All workloads: name and description.
pub(crate) const ALL: [(&str, &str); 16] = [
    ("get-1k", "prompts/get of 1 KiB, both eras, 1, 32 and 256 connections"),
    ("call-1k", "tools/call of 1 KiB, both eras, 1, 32 and 256 connections"),
    ("get-256k", "prompts/get of 256 KiB, 8 connections"),
    ("call-256k", "tools/call of 256 KiB, 8 connections"),
    ("get-1m", "prompts/get of 1 MiB, 8 connections"),
    ("call-1m", "tools/call of 1 MiB, 8 connections"),
    ("stdio", "tools/call of 1 KiB of a server over stdio, 32 connections"),
    ("mixed", "tools/call of 1 KiB, client and server of different eras, 32 connections"),
    ("list-one", "prompts/list of 10 servers x 100, both eras, in one page, 8 connections"),
    ("list-200", "the same in pages of 200"),
    ("fanout-200", "one change of a list, sent to 200 streams"),
    ("fanout-10000", "the same to 10 000 streams, and what they take"),
    ("memory", "memory when idle, and with 256 connections"),
    ("start", "from the start to the first full list of ten servers, and the memory after it"),
    ("growth", "the cost of a request with 100 servers, 100 000 items, 1 000 roles"),
    ("fleet", "several replicas: hops, limits in the store, and sessions that are taken over"),
];

impl Bench {
    /// Runs all selected workloads. A failure is recorded, and the others run.
    pub(crate) async fn run(&mut self) -> io::Result<()> {
        requests::run(self).await?;
        streams::run(self).await?;
        starting::run(self).await?;
        growth::run(self).await?;
        replicas::run(self).await
    }

    /// Whether a workload of this name is selected: all are, unless some are named.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    /// Selected ones of these subjects.
    pub(crate) fn of(&self, subjects: &[Subject]) -> Vec<Subject> {
        subjects.iter().copied().filter(|subject| self.subjects.contains(subject)).collect()
    }

    /// Reports the current step: on one line of a terminal, else on a line each.
    pub(crate) fn report_progress(&self, what: &str) {
        let seconds = self.begin.elapsed().as_secs();
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let mut out = io::stderr().lock();
        let _ = match out.is_terminal() {
            true => write!(out, "\r\x1b[2K{minutes:2}:{seconds:02}  {what}"),
            false => writeln!(out, "{minutes:2}:{seconds:02}  {what}"),
        };
        let _ = out.flush();
    }

    /// Gives each entry its turns at this workload, in every turn in another order.
    pub(crate) async fn take_turns(&mut self, workload: &str, entries: &[Entry]) -> io::Result<()> {
        for turn in 0..self.turns {
            self.report_progress(&format!("{workload}: turn {} of {}", turn + 1, self.turns));
            for at in 0..entries.len() {
                let entry = &entries[(at + turn) % entries.len()];
                if self.results.has_failed(workload, &entry.label) {
                    continue;
                }
                let processes = &entry.processes;
                process::forget_peak(processes);
                let mut before = 0.0;
                let begin = || before = process::cpu_seconds(processes);
                let driven = drive(&entry.clients, Length::Time(self.turn), begin).await;
                let cpu = process::cpu_seconds(processes) - before;
                let driven = match driven {
                    Ok(driven) => driven,
                    Err(error) => {
                        self.results.fail(
                            workload,
                            &entry.label,
                            &format!("no connection: {error}"),
                        );
                        continue;
                    }
                };
                if driven.wrong > 0 || driven.times.is_empty() {
                    let reason =
                        driven.first_wrong.clone().unwrap_or("nothing was answered".into());
                    let all = driven.wrong + driven.times.len();
                    let reason = format!("{} of {all} replies were wrong: {reason}", driven.wrong);
                    self.results.fail(workload, &entry.label, &reason);
                    continue;
                }
                let mut note =
                    |figure, value| self.results.note(workload, &entry.label, figure, value);
                note("per_s", driven.rate());
                note("p50_us", driven.micros(0.50));
                note("p99_us", driven.micros(0.99));
                note("p99.9_us", driven.micros(0.999));
                if !processes.is_empty() {
                    note("cpu_us", cpu * 1e6 / driven.times.len() as f64);
                    note("peak_mib", process::memory_kib(processes, "VmHWM") / 1024.0);
                }
            }
        }
        Ok(())
    }
}

/// A participant of a workload: its name, its clients, and the processes whose processor time
/// counts.
pub(crate) struct Entry {
    pub(crate) label: String,
    pub(crate) clients: Vec<Client>,
    pub(crate) processes: Vec<u32>,
}
