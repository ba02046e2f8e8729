//! `weir stdio`: serves one client over standard input and output; the client starts it.
//!
//! Invariants: it opens no port, only a socket for operators of its own user, and only protocol
//! messages go to standard output.

use std::io::IsTerminal;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use crate::app::{App, ConfigFiles};
use crate::cli::admin;
use crate::cli::exit::Failure;
use crate::cli::loading::{self, ConfigArgs, LoadedConfig, check_client, options, unknown_client};
use crate::cli::output;
use crate::cli::server::audit_log;
use crate::cli::server::reload_triggers::{self, SighupStream, StandIn};
use crate::cli::server::signals::Signals;
use weir_base::secrets::sealing::SealingKeys;
use weir_config::Config;
use weir_downstream::{read_handshake, stdio};
use weir_record::audit::{Audit, FileHash, Writer};
use weir_upstream::connect::system::System;

/// Arguments of `weir stdio`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Serves the client under the policy of this configured client, instead of the anonymous role.
    #[arg(long = "as", value_name = "CLIENT", value_hint = clap::ValueHint::Other)]
    client: Option<String>,
    /// Ends if the configuration cannot be used, instead of serving a tool that tells why.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Serves until standard input ends or a stop signal arrives; requests in flight may complete.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    // No client on the network can connect to this process.
    let (mut signals, sighups) = (Signals::new()?, SighupStream::new()?);
    if std::io::stdin().is_terminal() {
        output::print_message(STARTED_BY_HAND);
    }
    let options = options(true);
    let client_name = args.client.as_deref();
    let loading = async {
        if !args.strict {
            return args.config.load_or_stand_in(&options, client_name).await;
        }
        let loaded = args.config.load(&options).await?;
        client_name.map_or(Ok(()), |client| check_client(&loaded.config, client))?;
        Ok(loaded)
    };
    let LoadedConfig { config, source, files } = signals.run_until_signal(loading).await?;
    crate::cli::server::log::start_for_stdio(&config.log, &config.warnings);
    if config.fleet.is_some() {
        tracing::info!("this process serves one client, and is no replica of the [fleet]");
    }
    // Files are opened on a blocking thread, so that this one can react to signals.
    let hashes = files.as_ref().map(ConfigFiles::hashes).unwrap_or_default();
    let stand_in = {
        let path = loading::path_to_read_again(&source, files.as_ref());
        let client_name = args.client.clone();
        move |why| loading::usable_or_stand_in(Err(why), &path, &options, client_name.as_deref()).0
    };
    let of_start = hashes.clone();
    let open_log = move || open_log(config, of_start, args.strict, stand_in);
    let (config, log) = signals.run_blocking(open_log).await?;
    let config = Arc::new(config);
    if let Some((audit, _)) = &log {
        signals.record_in(audit.clone());
        if let Some(why) = config.notice() {
            audit_log::record_refused_start(audit, hashes, why);
        }
    }
    // The client's first message decides how the upstreams are opened.
    let reading = read_handshake(tokio::io::stdin(), config.server.max_body);
    let (client_says, input) = tokio::select! {
        read = reading => read,
        _ = signals.next() => return Ok(()),
    };
    let (settings, file) = (Arc::clone(&config), source.file().map(Path::to_owned));
    let state = config.state.dir.as_deref();
    let host = Arc::new(System::for_program().with_login_shell(state, true));
    let open = move || {
        let socket = admin::open_socket(&settings, file.as_deref());
        let keys = SealingKeys::random();
        Ok((socket, App::open_with(&settings, host, keys, Some(&client_says), log)))
    };
    let (socket, app) = signals.run_blocking(open).await?;
    if config.is_stand_in() {
        // Its text is part of the first answer.
        app.gateway().wait_until_listed().await;
    }
    let client = match client_name {
        None => app.gateway().local_client(&config.auth.anonymous_role),
        Some(name) => {
            app.gateway().named_client(name).ok_or_else(|| unknown_client(&config, name))?
        }
    };
    let files = source.file().map(Path::to_owned).zip(files);
    let client_name = args.client.clone();
    let stand_in: StandIn = Box::new(move |read, path, options| {
        let read = read.map_err(Failure::Config);
        loading::usable_or_stand_in(read, path, options, client_name.as_deref()).0
    });
    let reloads = Arc::default();
    reload_triggers::record_active(&config, &reloads);
    let seen = Arc::clone(&reloads);
    let reloader = reload_triggers::start(&app, files, true, sighups, seen, Some(stand_in));
    if let Some((file, socket)) = source.file().zip(socket) {
        let settings = admin::socket_settings(file, app.audit().clone());
        let settings = crate::admin::Settings { reloads: Arc::clone(&reloads), ..settings };
        app.serve_admin_socket(socket, settings, reload_triggers::actions(reloader, reloads));
    }
    let server_state = Arc::clone(app.server_state());
    let mut serving = pin!(stdio::serve(server_state, client, input, tokio::io::stdout()));
    tokio::select! {
        () = &mut serving => app.audit().set_stop_reason("end of input"),
        _ = signals.next() => {
            signals.drain(&app, app.config().server.shutdown_grace, serving).await;
        }
    }
    signals.close_app(app).await;
    Ok(())
}

/// Opens the audit log. If that fails, the configuration cannot be used: unless `is_strict`, the
/// one of `stand_in` tells the client why, without a log. Blocks.
fn open_log(
    mut config: Config,
    hashes: Vec<FileHash>,
    is_strict: bool,
    stand_in: impl FnOnce(Failure) -> Config,
) -> Result<(Config, Option<(Audit, Writer)>), Failure> {
    // Files that are refused are no part of the first line.
    let hashes = if config.is_stand_in() { Vec::new() } else { hashes };
    let failure = match audit_log::open_log_for_stdio(&config, hashes) {
        Ok(log) => return Ok((config, log)),
        Err(failure) if is_strict => return Err(failure),
        Err(failure) => failure,
    };
    output::print_failure(&failure, false);
    // One that stands in already tells of another mistake.
    if !config.is_stand_in() {
        config = stand_in(Failure::NoConfig(format!("{failure}; {RESTART_THEN}")));
    }
    // A log is opened at a start only: no configuration that needs it may follow.
    config.audit.enabled = Some(false);
    Ok((config, None))
}

/// Last step after a mistake that a reload cannot remove.
const RESTART_THEN: &str = "then restart the client, which starts Weir";

/// Message for a user who typed the command.
const STARTED_BY_HAND: &str = "\
weir: an MCP client starts this command and sends its messages to standard input. `weir connect` \
prints the entry for a client, `weir check` reports on the servers; Ctrl-C ends this.";
