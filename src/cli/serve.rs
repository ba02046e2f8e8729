//! `weir serve`: clients over HTTP.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::failure::Failure;
use super::house::{ConfigArgs, Loaded};
use crate::app::App;
use crate::config::{Config, Options};
use crate::downstream::http;
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
    let options = Options { allow_anonymous_network: args.allow_anonymous_network };
    let Loaded { config, demo } = args.config.load(&options).await?;
    super::log::start(&config.log);
    let mut signals = Signals::new()?;
    let listener = listen(&config).await?;
    let address = listener.local_addr().unwrap_or(config.server.listen);
    let endpoint = format!("http://{address}{}", config.server.path);

    let app = App::open(&config, Arc::new(Host::new()));
    app.spawn_door(http::accept_loop(listener, Arc::clone(app.door())));
    info!(%endpoint, upstreams = config.upstreams.len(), "ready");
    if demo.is_some() {
        welcome(&endpoint);
    }

    signals.next().await;
    info!(grace = ?config.server.shutdown_grace, "stopping: what is under way may end");
    app.stop_doors();
    tokio::select! {
        drained = tokio::time::timeout(config.server.shutdown_grace, app.drained()) => {
            if drained.is_err() {
                warn!("stopped with requests under way: the grace time is over");
            }
        }
        () = signals.next() => warn!("stopped with requests under way: told twice"),
    }
    signals.close(app).await;
    info!("stopped");
    Ok(())
}

async fn listen(config: &Config) -> Result<TcpListener, Failure> {
    let address = config.server.listen;
    TcpListener::bind(address).await.map_err(|error| {
        let remedy = if error.kind() == std::io::ErrorKind::AddrInUse {
            "stop whatever listens there, or set another `listen` under [server]"
        } else {
            "set another `listen` under [server]"
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
    anstream::println!(
        r#"
Weir is running. Its endpoint, for any MCP client of any revision:

    {endpoint}

The entry to paste into a client's configuration:

    {{ "mcpServers": {{ "weir": {{ "type": "http", "url": "{endpoint}" }} }} }}

Three things to try in a second terminal, in this folder:

    {program} list --demo
    {program} get --demo engineering__commit-message diff="rename fetch to load"
    {program} check --demo

Edit a file in prompts/ and a connected client's list changes. Stop with Ctrl-C.
"#
    );
}

/// The signals that mean stop.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::Unreachable(format!("no signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Closes the house. Whoever tells again does not wait for upstreams that end slowly: they are
    /// killed as the program ends, where otherwise it would be killed itself and leave them behind.
    pub(super) async fn close(&mut self, app: App) {
        tokio::select! {
            () = app.close() => {}
            () = self.next() => warn!("stopped without waiting for the upstreams: told again"),
        }
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
