//! `weir serve`: serves clients over HTTP.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::SignalKind;
use tracing::{info, warn};

use crate::admin;
use crate::app::{App, ConfigFiles, Identity};
use crate::cli::exit::Failure;
use crate::cli::loading::{ConfigArgs, LoadedConfig, options};
use crate::cli::output::{self, progress};
use crate::cli::server::reload_triggers::{self, SighupStream};
use crate::cli::server::signals::{self, Signals};
use crate::cli::server::upgrade::{self, LaunchCommand};
use crate::cli::server::{audit_log, fd_limit, fleet, systemd, thread_check};
use weir_base::secrets::sealing::SealingKeys;
use weir_config::{self as config, Config, FleetConfig};
use weir_downstream::http::connection::tls::Tls;
use weir_downstream::http::{self, ListenSocket, ReplicaListener, Workers};
use weir_fleet::Fleet;
use weir_record::audit::{PolicyChange, PolicyEvent};
use weir_upstream::connect::system::System;

/// Arguments of `weir serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Accepts anonymous access on an address that others on the network can reach.
    #[arg(long)]
    allow_anonymous_network: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Serves until a stop signal arrives or until a successor process has taken over; then lets
/// requests in flight complete.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let launch = LaunchCommand::from_environment();
    let now = Some(std::time::SystemTime::now());
    let options = config::Options { now, ..options(args.allow_anonymous_network) };
    let (mut signals, sighups) = (Signals::new()?, SighupStream::new()?);
    let mut upgrades = signals::listen_for(SignalKind::user_defined2())?;
    let LoadedConfig { config, source, files } =
        signals.run_until_signal(args.config.load(&options)).await?;
    let file = source.file();
    let is_demo = file.is_none();
    crate::cli::server::log::start(&config.log, &config.warnings);
    let max_connections = fd_limit::limit_connections(config.server.max_connections);
    if max_connections < config.server.max_connections {
        info!(max_connections, "connection limit lowered: too few file descriptors");
    }
    // Files are opened on a blocking thread, so that this one can react to signals.
    let config = Arc::new(config);
    let settings = Arc::clone(&config);
    let hashes = files.as_ref().map(ConfigFiles::hashes).unwrap_or_default();
    let open_log = move || audit_log::open(&settings, settings.records_requests(), hashes);
    let log = signals.run_blocking(open_log).await?;
    let audit = log.as_ref().map(|(audit, _)| audit.clone()).unwrap_or_default();
    signals.record_in(audit.clone());
    let inherited = upgrade::inherited_sockets().map_err(socket_failure)?;
    let is_successor = inherited.is_some();
    let (socket, admin_listener) = match inherited {
        Some(inherited) => (inherited.socket, inherited.operators),
        None => (listen(&config, is_demo).await?, None),
    };
    let address = socket.address().unwrap_or(config.server.listen);
    let scheme = config.server.scheme();
    let endpoint = format!("{scheme}://{address}{}", config.server.path);

    let admin_listener = crate::cli::admin::listen(&config, admin_listener).await?;
    // A copy for a successor process.
    let inherited_admin_listener =
        admin_listener.as_ref().map(|listener| listener.as_fd().try_clone_to_owned());
    let inherited_admin_listener = inherited_admin_listener.transpose().map_err(socket_failure)?;
    let reloads = Arc::default();
    reload_triggers::record_active(&config, &reloads);
    let workers = Arc::new(
        Workers::start(thread_check::worker_count()).map_err(thread_check::start_failure)?,
    );
    let admin_listener = admin_listener.map(|listener| {
        let settings = admin::Settings {
            reloads: Arc::clone(&reloads),
            workers: Arc::clone(&workers),
            ..crate::cli::admin::settings(&config, &listener, file, &endpoint, audit)
        };
        let endpoint_file = crate::cli::admin::publish_endpoint(&config, &listener, file);
        (listener, settings, endpoint_file)
    });
    let settings = Arc::clone(&config);
    let open = move || {
        let tls = open_tls(&settings)?;
        let state = settings.state.dir.as_deref();
        let new = |it: &FleetConfig| Fleet::new(it.sealing_keys(), it.settings.clone(), state);
        let fleet = settings.fleet.as_ref().map(new);
        let identity = match &fleet {
            Some(fleet) => Identity::from(Arc::clone(fleet)),
            None => Identity::from(sealing_keys(&settings)?),
        };
        // The operator of a service chooses its search path.
        let connector = Arc::new(System::for_program().with_login_shell(state, false));
        let app = App::open_with(&settings, connector, identity, None, log);
        Ok((tls, app, fleet))
    };
    let (tls, app, fleet) = signals.run_blocking(open).await?;
    app.spawn_jwks_refreshers();
    let files = file.map(Path::to_owned).zip(files);
    let reloader =
        reload_triggers::start(&app, files, args.allow_anonymous_network, sighups, reloads, None);
    // The guard removes the file when this function returns.
    let _endpoint_file = admin_listener.map(|(listener, settings, endpoint_file)| {
        let settings = admin::Settings { tls: tls.clone(), ..settings };
        let actions = reload_triggers::actions(reloader, Arc::clone(&settings.reloads));
        app.serve_admin(listener, settings, actions);
        endpoint_file
    });
    if is_successor {
        // Until then the predecessor serves, with complete lists and upstreams that respond.
        let gateway = app.gateway();
        let ready =
            async { tokio::join!(gateway.wait_until_listed(), gateway.wait_until_started()) };
        let ready = tokio::time::timeout(LISTING_TIMEOUT, ready);
        let _ = signals.run_until_signal(async { Ok(ready.await) }).await?;
    }
    if let Some((fleet, settings)) = fleet.zip(config.fleet.as_ref()) {
        let (client_tls, running) = (tls.clone(), app.running_upstreams());
        let listener = ReplicaListener { fleet, client_tls, running };
        fleet::serve(&app, settings, listener, max_connections, &workers, is_successor).await?;
    }
    let server_state = Arc::clone(app.server_state());
    app.spawn_listener(http::accept_loop(
        socket.clone(),
        tls,
        max_connections,
        server_state,
        Arc::clone(&workers),
    ));
    let sse =
        config.protocol.legacy_sse.then(|| format!("{scheme}://{address}{}", http::STREAM_PATH));
    info!(%endpoint, sse, upstreams = config.upstreams.len(), "ready");
    systemd::notify_ready();
    upgrade::notify_ready_to_predecessor();
    let gateway = Arc::clone(app.gateway());
    let listing = async move {
        progress::show_startup(false, &gateway, gateway.wait_until_listed()).await;
    };
    if is_demo {
        // Printed below the log lines about the upstreams.
        listing.await;
        print_welcome(&endpoint);
    } else {
        app.spawn_background(listing);
    }

    let is_upgraded = loop {
        tokio::select! {
            _ = signals.next() => break false,
            _ = upgrades.recv() => {}
        }
        info!("upgrade requested, successor process starting");
        let operators = inherited_admin_listener.as_ref();
        match launch.start_successor(&socket, operators, signals.next()).await {
            Ok(None) => break false,
            Ok(Some(process_id)) => {
                info!(process = process_id, "upgrade finished, successor process serves");
                app.audit().record_policy(upgraded(Some(process_id), None));
                app.audit().set_stop_reason("upgrade");
                socket.share();
                app.server_state().set_has_successor();
                app.stop_admin();
                systemd::notify_main_pid(process_id);
                break true;
            }
            Err(why) => {
                warn!(%why, "upgrade failed, this process keeps serving");
                app.audit().record_policy(upgraded(None, Some(why)));
            }
        }
    };
    // A reload may have changed these values.
    let (grace, delay) = {
        let server = &app.config().server;
        (server.shutdown_grace, server.shutdown_delay.or(fleet::shutdown_delay(&config)))
    };
    if !is_upgraded {
        systemd::notify_stopping();
        signals.announce_shutdown(&app, delay).await;
    }
    // The socket closes once the accept loop drops its copy: clients would wait in vain on a socket
    // that is open but not accepted from.
    drop(socket);
    drop(inherited_admin_listener);
    signals.drain(&app, grace, app.wait_until_drained()).await;
    signals.close_app(app).await;
    info!("stopped");
    Ok(())
}

/// Creates the audit event of an upgrade.
fn upgraded(process: Option<u32>, refusal: Option<String>) -> PolicyEvent {
    PolicyEvent { refusal, ..PolicyEvent::new(PolicyChange::Upgrade { process }, "signal") }
}

/// Reads the keys in the state folder, or creates them.
fn sealing_keys(config: &Config) -> Result<SealingKeys, Failure> {
    let Some(state) = &config.state.dir else {
        warn!(
            "no folder for sealing keys, sessions and task handles end with this process: set \
             `dir` under [state]"
        );
        return Ok(SealingKeys::random());
    };
    SealingKeys::load_or_create(state).or_else(|error| {
        let path = SealingKeys::path(state);
        if error.kind() == std::io::ErrorKind::InvalidData {
            return Err(Failure::Usage(format!(
                "{} cannot be used: {error}; restore it, or remove it, and all sessions end",
                path.display()
            )));
        }
        // As with the admin token, a folder that cannot be written does not prevent a start.
        warn!(
            path = %path.display(), %error,
            "sealing keys cannot be stored, sessions and task handles end with this process: set \
             `dir` under [state]"
        );
        Ok(SealingKeys::random())
    })
}

fn open_tls(config: &Config) -> Result<Option<Arc<Tls>>, Failure> {
    let files = config.server.tls.clone();
    let opened = files.map(Tls::open).transpose();
    // The files were valid when the configuration was read; they may have changed since.
    let opened = opened.map_err(|broken| Failure::Unreachable(broken.to_string()))?;
    Ok(opened.map(Arc::new))
}

fn socket_failure(error: std::io::Error) -> Failure {
    Failure::Unreachable(format!("the inherited socket cannot be used: {error}"))
}

/// Takes the socket from systemd, or binds the configured address.
async fn listen(config: &Config, is_demo: bool) -> Result<ListenSocket, Failure> {
    if let Some(listener) = systemd::activated_socket().map_err(socket_failure)? {
        let socket = ListenSocket::from_std(listener).map_err(socket_failure)?;
        // Connections that wait in the queue when this process ends belong to the next one.
        socket.share();
        return Ok(socket);
    }
    let address = config.server.listen;
    let bound = TcpListener::bind(address).await.map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::AddrInUse if is_demo => {
                "stop the process that listens there, perhaps another demonstration"
            }
            std::io::ErrorKind::AddrInUse => {
                "stop the process that listens there, or set another `listen` under [server]"
            }
            _ => "set another `listen` under [server]",
        };
        Failure::Unreachable(format!("cannot listen on {address}: {error}; {remedy}"))
    })?;
    Ok(bound.into())
}

/// Prints the endpoint of the demonstration and the next steps for a new user.
fn print_welcome(endpoint: &str) {
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

Three things to try in a second terminal, in this folder; each starts its own servers:

    {program} list --demo
    {program} get --demo engineering__commit-message diff="rename fetch to load"
    {program} check --demo

Edit a file in prompts/ and a connected client's list changes. Stop with Ctrl-C.
"#
    );
    // If standard output is closed, clients are served all the same.
    let _ = output::print(|out| writeln!(out, "{text}"));
}

/// Longest time that a successor process waits for its upstreams before it serves.
const LISTING_TIMEOUT: Duration = Duration::from_secs(10);
