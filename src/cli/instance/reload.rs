//! `weir reload`: has the running Weir of a configuration read it again.
//!
//! Promise: the exit code says what became of that: 0 the configuration holds, 1 it is refused and the former one holds,
//! 3 it does not take the token, 4 nothing runs there.

use crate::admin::reload::Reloaded;
use crate::cli::exit::Failure;
pub(crate) use crate::cli::instance::status::Args;
use crate::cli::instance::status::ask;
use crate::cli::output;
use crate::cli::query::render::{lines, shown_json};
use crate::cli::server::reload_triggers::refused;

/// Asks for it, waits, and prints what is told.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let reloaded = match ask(&args.config).await {
        // What cannot be read here says neither where to ask nor anything that would be taken up there.
        Err(Failure::Config(report)) => refused(&report),
        running => running?.confirm().await?.reload().await?,
    };
    if args.json {
        output::print(|out| {
            writeln!(out, "{}", shown_json(&reloaded.to_json(), output::is_terminal()))
        })?;
    }
    match reloaded {
        Reloaded::Refused { why, problems } if problems.is_empty() => Err(Failure::Differs(why)),
        Reloaded::Refused { why, .. } => {
            if !args.json {
                output::tell(&lines(&why));
            }
            Err(Failure::Differs("the configuration is refused, the former one holds".to_owned()))
        }
        Reloaded::Applied { .. } | Reloaded::Unchanged if args.json => Ok(()),
        Reloaded::Unchanged => {
            output::print(|out| writeln!(out, "the configuration says the same as before"))
        }
        Reloaded::Applied { changes, after_restart } => output::print(|out| {
            writeln!(out, "the configuration was reloaded")?;
            changes.iter().try_for_each(|change| writeln!(out, "  {}", lines(change)))?;
            after_restart
                .iter()
                .try_for_each(|key| writeln!(out, "  {} takes effect after a restart", lines(key)))
        }),
    }
}
