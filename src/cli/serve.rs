//! `weir serve`: clients over HTTP.

use std::sync::Arc;

use tokio::net::TcpListener;
use tracing::info;

use super::failure::Failure;
use super::house::{ConfigArgs, Loaded, options};
use super::output;
use super::reloading::{self, Hangups};
use super::sealing;
use super::signals::Signals;
use crate::app::App;
use crate::config::{self, Config};
use crate::downstream::http::{self, tls::Tls};
use crate::upstream::host::Host;

/// What `weir serve` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Accepts anonymous access on an address that others on the network can reach.
    #[arg(long)]
    allow_anonymous_network: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Serves until a signal says stop, then lets what is under way end.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    sealing::seal();
    let now = Some(std::time::SystemTime::now());
    let options = config::Options { now, ..options(args.allow_anonymous_network) };
    let (mut signals, hangups) = (Signals::new()?, Hangups::new()?);
    let Loaded { config, file, demo, files } = signals.end(args.config.load(&options)).await?;
    super::log::start(&config.log, &config.warnings);
    let log = super::audit::open(&config, config.records())?;
    let listener = listen(&config, demo.is_some()).await?;
    let address = listener.local_addr().unwrap_or(config.server.listen);
    let scheme = config.server.scheme();
    let endpoint = format!("{scheme}://{address}{}", config.server.path);

    let operators = super::admin::listen(&config).await?;
    let audit = log.as_ref().map(|(audit, _)| audit.clone()).unwrap_or_default();
    let operators = operators.map(|listener| {
        let settings =
            super::admin::settings(&config, &listener, file.as_deref(), &endpoint, audit);
        (listener, settings)
    });
    let tls = secured(&config)?;
    let app = App::open_for(&config, Arc::new(Host::new()), None, log);
    app.keep_keys();
    if let Some((listener, settings)) = operators {
        app.show(listener, settings);
    }
    app.spawn_door(http::accept_loop(listener, tls, Arc::clone(app.door())));
    let sse =
        config.protocol.legacy_sse.then(|| format!("{scheme}://{address}{}", http::STREAM_PATH));
    reloading::follow(&app, files, args.allow_anonymous_network, Some(hangups));
    info!(%endpoint, sse, upstreams = config.upstreams.len(), "ready");
    if demo.is_some() {
        // Below the lines that tell of its upstreams.
        app.gateway().listed().await;
        welcome(&endpoint);
    }

    signals.next().await;
    signals.drain(&app, app.config().server.shutdown_grace, app.drained()).await;
    signals.close(app).await;
    info!("stopped");
    Ok(())
}

fn secured(config: &Config) -> Result<Option<Arc<Tls>>, Failure> {
    let files = config.server.tls.clone();
    let opened = files.map(Tls::open).transpose();
    // They were good when the configuration was read.
    let opened = opened.map_err(|broken| Failure::Unreachable(broken.to_string()))?;
    Ok(opened.map(Arc::new))
}

async fn listen(config: &Config, is_demo: bool) -> Result<TcpListener, Failure> {
    let address = config.server.listen;
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::AddrInUse if is_demo => {
                "stop whatever listens there, perhaps another demonstration"
            }
            std::io::ErrorKind::AddrInUse => {
                "stop whatever listens there, or set another `listen` under [server]"
            }
            _ => "set another `listen` under [server]",
        };
        Failure::Unreachable(format!("cannot listen on {address}: {error}; {remedy}"))
    })
}

/// What somebody who has never seen Weir needs next.
fn welcome(endpoint: &str) {
    let program = std::env::current_exe().ok();
    let folder = std::env::current_dir().unwrap_or_default();
    let program = program.map(|program| {
        program
            .strip_prefix(&folder)
            .map(|short| format!("./{}", short.display()))
            .unwrap_or_else(|_| program.display().to_string())
    });
    let program = program.unwrap_or_else(|| "weir".to_owned());
    let text = format!(
        r#"
Weir is running. Its endpoint, for any MCP client of any revision:

    {endpoint}

The entry to paste into a client's configuration:

    {{ "mcpServers": {{ "weir": {{ "type": "http", "url": "{endpoint}" }} }} }}

Three things to try in a second terminal, in this folder; each starts a fleet of its own:

    {program} list --demo
    {program} get --demo engineering__commit-message diff="rename fetch to load"
    {program} check --demo

Edit a file in prompts/ and a connected client's list changes. Stop with Ctrl-C.
"#
    );
    // Whoever does not read it is served all the same.
    let _ = output::print(|out| writeln!(out, "{text}"));
}
