//! `weir serve`: clients over HTTP.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tracing::{info, warn};

use crate::admin;
use crate::app::App;
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::query::oneshot::{ConfigArgs, Loaded, options};
use crate::cli::server::reload_triggers::{self, Hangups};
use crate::cli::server::signals::{self, Signals};
use crate::cli::server::upgrade::{self, Start};
use crate::cli::server::{fd_limit, hardening, systemd, thread_check};
use crate::config::{self, Config};
use crate::downstream::http::connection::tls::Tls;
use crate::downstream::http::{self, Socket, Workers};
use crate::upstream::system::Host;

/// What `weir serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Accepts anonymous access on an address that others on the network can reach.
    #[arg(long)]
    allow_anonymous_network: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Serves until a signal says stop, or until a new program has taken over; then lets what is under way end.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let start = Start::of_this();
    hardening::seal();
    let now = Some(std::time::SystemTime::now());
    let options = config::Options { now, ..options(args.allow_anonymous_network) };
    let (mut signals, hangups) = (Signals::new()?, Hangups::new()?);
    let mut upgrades = signals::listen(SignalKind::user_defined2())?;
    let Loaded { config, file, demo, files } = signals.end(args.config.load(&options)).await?;
    crate::cli::server::log::start(&config.log, &config.warnings);
    let places = fd_limit::room_for(config.server.max_connections);
    if places < config.server.max_connections {
        info!(
            max_connections = places,
            "fewer connections than max_connections: there are too few file descriptors"
        );
    }
    // Files are opened beside this thread, which listens to the signals.
    let config = Arc::new(config);
    let settings = Arc::clone(&config);
    let open_log = move || crate::cli::audit::open(&settings, settings.records());
    let log = signals.end_blocking(open_log).await?;
    let handed = upgrade::taken_over().map_err(not_usable)?;
    let is_handed = handed.is_some();
    let (socket, operators) = match handed {
        Some(handed) => (handed.socket, handed.operators),
        None => (listen(&config, demo.is_some()).await?, None),
    };
    let address = socket.address().unwrap_or(config.server.listen);
    let scheme = config.server.scheme();
    let endpoint = format!("{scheme}://{address}{}", config.server.path);

    let operators = crate::cli::admin::listen(&config, operators).await?;
    // Kept for the one that will take over.
    let for_operators = operators.as_ref().map(|listener| listener.as_fd().try_clone_to_owned());
    let for_operators = for_operators.transpose().map_err(not_usable)?;
    let reloads = Arc::default();
    let workers =
        Arc::new(Workers::start(thread_check::workers()).map_err(thread_check::not_started)?);
    let audit = log.as_ref().map(|(audit, _)| audit.clone()).unwrap_or_default();
    let operators = operators.map(|listener| {
        let settings = admin::Settings {
            reloads: Arc::clone(&reloads),
            workers: Arc::clone(&workers),
            ..crate::cli::admin::settings(&config, &listener, file.as_deref(), &endpoint, audit)
        };
        let told = crate::cli::admin::tell(&config, &listener, file.as_deref());
        (listener, settings, told)
    });
    let settings = Arc::clone(&config);
    let open = move || {
        let tls = secured(&settings)?;
        Ok((tls, App::open_for(&settings, Arc::new(Host::of_the_program()), None, log)))
    };
    let (tls, app) = signals.end_blocking(open).await?;
    app.keep_keys();
    let reloader =
        reload_triggers::follow(&app, files, args.allow_anonymous_network, hangups, reloads);
    // Until this function ends.
    let _told = operators.map(|(listener, settings, told)| {
        app.show(listener, settings, reload_triggers::asked(reloader));
        told
    });
    if is_handed {
        // Until then the one before us serves, with all that it has listed.
        let listed = tokio::time::timeout(LISTED, app.gateway().listed());
        let _ = signals.end(async { Ok(listed.await) }).await?;
    }
    let doors = Arc::clone(app.door());
    app.spawn_door(http::accept_loop(socket.clone(), tls, places, doors, Arc::clone(&workers)));
    let sse =
        config.protocol.legacy_sse.then(|| format!("{scheme}://{address}{}", http::STREAM_PATH));
    info!(%endpoint, sse, upstreams = config.upstreams.len(), "ready");
    systemd::ready();
    upgrade::tell_ready();
    if demo.is_some() {
        // Below the lines that tell of its upstreams.
        app.gateway().listed().await;
        welcome(&endpoint);
    }

    let is_handed_on = loop {
        tokio::select! {
            _ = signals.next() => break false,
            _ = upgrades.recv() => {}
        }
        info!("starting the program anew, to hand over to it");
        let number = tokio::select! {
            _ = signals.next() => break false,
            started = start.anew(&socket, for_operators.as_ref()) => started,
        };
        match number {
            Ok(number) => {
                info!(process = number, "handed over");
                socket.share();
                app.door().succeed();
                app.show_no_more();
                systemd::handed_to(number);
                break true;
            }
            Err(why) => warn!(%why, "not handed over: serving on"),
        }
    };
    // As the configuration says by now.
    let (grace, delay) = {
        let server = &app.config().server;
        (server.shutdown_grace, server.shutdown_delay)
    };
    if !is_handed_on {
        systemd::stopping();
        signals.leave(&app, delay).await;
    }
    // With the doors' own it closes; a socket that is open and accepts nobody lets clients wait for nothing.
    drop(socket);
    drop(for_operators);
    signals.drain(&app, grace, app.drained()).await;
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

fn not_usable(error: std::io::Error) -> Failure {
    Failure::Unreachable(format!("the socket that was handed over: {error}"))
}

/// The socket to listen at.
async fn listen(config: &Config, is_demo: bool) -> Result<Socket, Failure> {
    if let Some(listener) = systemd::activated().map_err(not_usable)? {
        let socket = Socket::from_std(listener).map_err(not_usable)?;
        // Whoever waits there while we end is for the one that is started next.
        socket.share();
        return Ok(socket);
    }
    let address = config.server.listen;
    let bound = TcpListener::bind(address).await.map_err(|error| {
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
    })?;
    Ok(bound.into())
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

/// How long a program that takes over waits for its upstreams before it serves.
const LISTED: Duration = Duration::from_secs(10);
