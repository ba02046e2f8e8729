//! `weir stdio`: one client over standard input and output, as an IDE starts it.
//!
//! Opens no listener, and nothing but protocol goes to standard output.

use std::pin::pin;
use std::sync::Arc;

use crate::app::App;
use crate::cli::exit::Failure;
use crate::cli::query::oneshot::{ConfigArgs, Loaded, is_welcome, nobody, options};
use crate::cli::server::hardening;
use crate::cli::server::reload_triggers::{self, Hangups};
use crate::cli::server::signals::Signals;
use crate::downstream::{introduction, stdio};
use crate::upstream::system::Host;

/// What `weir stdio` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Serves the client under the policy of this one, instead of the anonymous role.
    #[arg(long = "as", value_name = "CLIENT", value_hint = clap::ValueHint::Other)]
    client: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Serves until standard input ends or a signal says stop; then what is under way ends first.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    hardening::seal();
    // Nobody on a network can come in this way.
    let (mut signals, hangups) = (Signals::new()?, Hangups::new()?);
    let options = options(true);
    let Loaded { config, demo: _demo, files, .. } = signals.end(args.config.load(&options)).await?;
    if let Some(client) = &args.client {
        is_welcome(&config, client)?;
    }
    crate::cli::server::log::start(&config.log, &config.warnings);
    // Files are opened beside this thread, which listens to the signals.
    let config = Arc::new(config);
    let settings = Arc::clone(&config);
    let log = signals.end_blocking(move || crate::cli::audit::open_for_stdio(&settings)).await?;
    // What upstreams are opened with depends on what the client says first.
    let reading = introduction(tokio::io::stdin(), config.server.max_body);
    let (client_says, input) = tokio::select! {
        read = reading => read,
        _ = signals.next() => return Ok(()),
    };
    let settings = Arc::clone(&config);
    let host = Arc::new(Host::of_the_program());
    let open = move || Ok(App::open_for(&settings, host, Some(&client_says), log));
    let app = signals.end_blocking(open).await?;
    let guest = match &args.client {
        None => app.gateway().enter_locally(&config.auth.anonymous_role),
        Some(name) => app.gateway().enter_as(name).ok_or_else(|| nobody(&config, name))?,
    };
    reload_triggers::follow(&app, files, true, hangups, Arc::default());
    let door = Arc::clone(app.door());
    let mut serving = pin!(stdio::serve(door, guest, input, tokio::io::stdout()));
    tokio::select! {
        () = &mut serving => {}
        _ = signals.next() => {
            signals.drain(&app, app.config().server.shutdown_grace, serving).await;
        }
    }
    signals.close(app).await;
    Ok(())
}
