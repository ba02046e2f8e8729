//! `weir reload`: makes the running Weir of a configuration reload it.
//!
//! Invariant: the exit code is 0 if the configuration is active, 1 if it was rejected and the
//! previous one stays active, 3 if the token is rejected, 4 if no instance is running.

use crate::admin::reload::ReloadReport;
use crate::cli::exit::Failure;
use crate::cli::instance::status::connect;
use crate::cli::loading::ReportArgs;
use crate::cli::output;
use crate::cli::output::render::sanitize_text;

/// Requests the reload, waits, and prints the result.
pub(crate) async fn run(args: ReportArgs) -> Result<(), Failure> {
    let reloaded = connect(&args.config).await?.reload().await?;
    output::print_report(args.json, &reloaded, |out| match &reloaded {
        ReloadReport::Refused { .. } => Ok(()),
        ReloadReport::Unchanged => writeln!(out, "the configuration is unchanged"),
        ReloadReport::Applied { changes, after_restart } => {
            writeln!(out, "the configuration was reloaded")?;
            changes.iter().try_for_each(|change| writeln!(out, "  {}", sanitize_text(change)))?;
            after_restart.iter().try_for_each(|key| {
                writeln!(out, "  {} takes effect after a restart", sanitize_text(key))
            })
        }
    })?;
    match reloaded {
        ReloadReport::Applied { .. } | ReloadReport::Unchanged => Ok(()),
        ReloadReport::Refused { why, problems } if problems.is_empty() => {
            Err(Failure::CheckFailed(why))
        }
        ReloadReport::Refused { why, .. } => {
            if !args.json {
                output::print_stderr(&sanitize_text(&why));
            }
            Err(Failure::CheckFailed(
                "the configuration was rejected, the previous one stays active".to_owned(),
            ))
        }
    }
}
