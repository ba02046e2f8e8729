//! Access for operators: the listener of `weir serve` with its address, its token, and the file
//! that announces it; and the socket of `weir stdio`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tracing::{debug, info, warn};

use super::exit::Failure;
use crate::admin::discovery::{self, AdminEndpointFileGuard};
use crate::admin::socket::AdminSocket;
use crate::admin::{self, token};
use weir_config::Config;
use weir_record::audit::Audit;

/// Binds the configured address, or takes the inherited socket if it has that address. `None` if
/// the listener is disabled, or if no address is configured and the default one is taken.
pub(super) async fn listen(
    config: &Config,
    inherited: Option<std::net::TcpListener>,
) -> Result<Option<TcpListener>, Failure> {
    let admin = &config.admin;
    if !admin.enabled {
        return Ok(None);
    }
    let address = admin.address();
    let has_address =
        |socket: &std::net::TcpListener| socket.local_addr().is_ok_and(|it| it == address);
    if let Some(socket) = inherited.filter(has_address) {
        let taken = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return taken.map(Some).map_err(|error| {
            Failure::Unreachable(format!("the inherited admin socket cannot be used: {error}"))
        });
    }
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if admin.listen.is_none() => {
            warn!(
                %address, %error,
                "admin listener not started: set `listen` under [admin] for `weir status` and \
                 metrics"
            );
            Ok(None)
        }
        Err(error) => Err(Failure::Unreachable(format!(
            "cannot listen on {address} for operators: {error}; set another `listen` under [admin]"
        ))),
    }
}

/// Settings of the admin listener. If no token can be stored, the routes that need one are
/// unavailable.
pub(super) fn settings(
    config: &Config,
    listener: &TcpListener,
    file: Option<&Path>,
    endpoint: &str,
    audit: Audit,
) -> admin::Settings {
    let token = match (&config.admin.token, &config.state.dir) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(dir)) => {
            let stored = token::load_or_create(dir).inspect_err(|error| {
                warn!(
                    path = %token::path(dir).display(), %error,
                    "admin token cannot be stored, routes that need it are unavailable: \
                     set `token` under [admin]"
                );
            });
            stored.ok()
        }
        (None, None) => {
            warn!(
                "no folder for an admin token, routes that need one are unavailable: \
                 set `token` under [admin]"
            );
            None
        }
    };
    let address = listener.local_addr().unwrap_or(config.admin.address());
    info!(address = %address, "admin listener started at http://{address}");
    let hosts = config.server.allowed_hosts.iter().filter_map(|host| host.parse().ok());
    admin::Settings {
        loopback: config.admin.is_loopback(),
        allowed_hosts: hosts.collect(),
        token,
        configuration: file.map(absolute_path),
        endpoint: endpoint.to_owned(),
        audit,
        reloads: Arc::default(),
        workers: Arc::default(),
        tls: None,
    }
}

/// Opens the socket of this process for operators; `None` if it has no file, or if the state folder
/// cannot be used for that. Blocks.
pub(super) fn open_socket(config: &Config, file: Option<&Path>) -> Option<AdminSocket> {
    let (state, file) = (config.state.dir.as_deref()?, absolute_path(file?));
    let opened = AdminSocket::open(state, &file);
    // Not fatal: only commands that query or control this process need it.
    opened.map_err(|error| info!(%error, "no socket for `weir status` and other commands")).ok()
}

/// Settings of the socket.
pub(super) fn socket_settings(file: &Path, audit: Audit) -> admin::Settings {
    admin::Settings {
        loopback: true,
        allowed_hosts: Vec::new(),
        token: None,
        configuration: Some(absolute_path(file)),
        endpoint: "standard input and output".to_owned(),
        audit,
        reloads: Arc::default(),
        workers: Arc::default(),
        tls: None,
    }
}

/// Writes the file that tells `weir status` and other commands the address of this process; the
/// file is removed when the guard is dropped.
pub(super) fn publish_endpoint(
    config: &Config,
    listener: &TcpListener,
    file: Option<&Path>,
) -> Option<AdminEndpointFileGuard> {
    let (state, file) = (config.state.dir.as_deref()?, absolute_path(file?));
    let address = listener.local_addr().ok()?;
    let published = discovery::publish(state, &file, address);
    // Not fatal: those commands also try the configured address.
    published.map_err(|error| debug!(%error, "admin endpoint file not written")).ok()
}

/// Canonical form of a path, so that two spellings of one path compare equal.
pub(super) fn absolute_path(path: &Path) -> String {
    let path: PathBuf = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    path.display().to_string()
}
