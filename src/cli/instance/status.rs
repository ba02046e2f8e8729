//! `weir status`: how the running Weir of a configuration is doing.
//!
//! Promise: the exit code says whether all is well, so a script need not read the text: 0 it is, 1 it serves and
//! something is wrong, 3 it does not take the token, 4 nothing serves.

mod page;

use crate::admin::status::Status;
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::Running;
use crate::cli::output;
use crate::cli::query::oneshot::{ConfigArgs, Loaded, options};
use crate::cli::query::render::shown_json;
use page::Page;
pub(crate) use page::lasted;

/// What `weir status` and `weir reload` take.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prints JSON; a failure is one line of JSON on standard error.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Asks, and prints what is told.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let status = ask(&args.config).await?.status().await?;
    output::print(|out| match args.json {
        true => writeln!(out, "{}", shown_json(&status.to_json(), output::is_terminal())),
        false => out.write_all(
            Page::new(output::columns(), output::Color::on_stdout()).of(&status).as_bytes(),
        ),
    })?;
    judge(&status)
}

/// Where the Weir of a configuration is to be asked.
pub(crate) async fn ask(config: &ConfigArgs) -> Result<Running, Failure> {
    // Whoever asks reaches nobody else, so it does not matter who may come in there.
    let Loaded { config, file, .. } = config.load_alone(&options(true)).await?;
    Ok(Running::of(&config, file.as_deref())?)
}

/// Whether all is well.
fn judge(status: &Status) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    if status.draining {
        wrong.push("it is stopping".to_owned());
    }
    let is_well = |state: &str| matches!(state, "up" | "half-open" | "asleep");
    let down = status.upstreams.iter().filter(|it| !is_well(&it.state));
    let down: Vec<_> = down.map(|it| it.name.as_str()).collect();
    if !down.is_empty() {
        let (some, all) = (down.len(), status.upstreams.len());
        wrong.push(format!("{some} of {all} upstreams not up: {}", down.join(", ")));
    }
    if status.refused.is_some() {
        wrong.push("the configuration of the files is refused".to_owned());
    }
    if status.audit.as_ref().is_some_and(|audit| audit.failing) {
        wrong.push("the audit log cannot be written".to_owned());
    }
    if !status.ready && wrong.is_empty() {
        wrong.push("it is still starting".to_owned());
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Differs(wrong.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use crate::admin::status::Upstream;
    use crate::cli::instance::status::*;

    #[test]
    fn all_is_well_where_each_upstream_is_up_half_open_or_asleep() {
        for (state, is_well) in [
            ("up", true),
            ("half-open", true),
            ("asleep", true),
            ("starting", false),
            ("open", false),
            ("down", false),
            ("crash-loop", false),
        ] {
            let upstream = Upstream { state: state.to_owned(), ..Upstream::default() };
            let status = Status { ready: true, upstreams: vec![upstream], ..Status::default() };
            assert_eq!(judge(&status).is_ok(), is_well, "{state}");
        }
    }
}
