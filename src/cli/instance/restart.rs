//! `weir restart`: starts an upstream of the running Weir of a configuration again.
//!
//! Invariant: the exit code is 0 if each running process has started the upstream again, 1 if one
//! has refused, 2 if there is no such upstream, 3 if the token is rejected, 4 if none is running.

use crate::admin::reload::{ReloadReport, RestartQuery};
use crate::cli::exit::Failure;
use crate::cli::instance::status::{find_instance, or_mistakes};
use crate::cli::loading::ConfigArgs;
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use weir_config::nearest;

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
    let found = match find_instance(&args.config).await?.connect_to_all().await {
        Err(failure) => return Err(or_mistakes(&args.config, failure).await),
        Ok(found) => found,
    };
    let name = &args.upstream;
    let mut names: Vec<&str> = Vec::new();
    for upstream in found.iter().flat_map(|running| &running.status.upstreams) {
        names.push(&upstream.name);
    }
    if !names.contains(&&**name) {
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`weir status` shows which there are".to_owned(),
        };
        return Err(Failure::Usage(format!("no upstream `{}`; {hint}", sanitize_line(name))));
    }
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
