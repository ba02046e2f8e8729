//! `weir restart`: starts an upstream of the running Weir of a configuration again.
//!
//! Invariant: the exit code is 0 if each running process has started the upstream again, 1 if one
//! has refused, 2 if there is no such upstream, 3 if the token is rejected, 4 if none is running.

use crate::admin::reload::{ReloadReport, RestartQuery};
use crate::cli::exit::Failure;
use crate::cli::instance::status::connect_to_all;
use crate::cli::loading::ConfigArgs;
use crate::cli::output;
use crate::cli::output::render::sanitize_line;

/// Arguments of `weir restart`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Upstream to start again.
    #[arg(value_name = "UPSTREAM", value_hint = clap::ValueHint::Other)]
    upstream: String,
    /// Seconds that calls in flight may take, before the former process is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=MAX_GRACE))]
    grace: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Requests the restart of each running process, and prints the results.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let name = &args.upstream;
    let found = connect_to_all(&args.config, name).await?;
    let query = RestartQuery { upstream: name.clone(), grace: args.grace };
    let mut refusals = Vec::new();
    for running in &found {
        let process = running.status.process;
        match running.restart(&query).await? {
            ReloadReport::Applied { .. } | ReloadReport::Unchanged => output::print(|out| {
                writeln!(out, "{name} is started again (process {process} of Weir)")
            })?,
            ReloadReport::Refused { why, .. } => {
                refusals.push(format!("process {process}: {}", sanitize_line(&why)));
            }
        }
    }
    match refusals.is_empty() {
        true => Ok(()),
        false => Err(Failure::CheckFailed(refusals.join("; "))),
    }
}

/// Most seconds of grace: the longest total time of a call by default is less.
const MAX_GRACE: u64 = 3_600;
