//! The listener for operators, as `weir serve` opens it: its address, its token, and what it tells of itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tracing::{debug, info, warn};

use super::exit::Failure;
use crate::admin::discovery::{self, Told};
use crate::admin::{self, token};
use crate::audit::Audit;
use crate::config::Config;

/// Listens where the configuration says, with the socket that was handed over if that is there; `None` where it says
/// not to, or where nothing is said and somebody else has the usual address.
pub(super) async fn listen(
    config: &Config,
    handed: Option<std::net::TcpListener>,
) -> Result<Option<TcpListener>, Failure> {
    let admin = &config.admin;
    if !admin.enabled {
        return Ok(None);
    }
    let address = admin.address();
    let is_there =
        |socket: &std::net::TcpListener| socket.local_addr().is_ok_and(|it| it == address);
    if let Some(socket) = handed.filter(is_there) {
        let taken = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return taken.map(Some).map_err(|error| {
            Failure::Unreachable(format!("the socket for operators that was handed over: {error}"))
        });
    }
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if admin.listen.is_none() => {
            warn!(
                %address, %error,
                "nothing listens for operators: set `listen` under [admin] for `weir status` and metrics"
            );
            Ok(None)
        }
        Err(error) => Err(Failure::Unreachable(format!(
            "cannot listen on {address} for operators: {error}; set another `listen` under [admin]"
        ))),
    }
}

/// What the listener is made with. Where no token can be kept it goes without one, and what needs one is for nobody.
pub(super) fn settings(
    config: &Config,
    listener: &TcpListener,
    file: Option<&Path>,
    endpoint: &str,
    audit: Audit,
) -> admin::Settings {
    let token = match (&config.admin.token, &config.state.dir) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(dir)) => token::keep(dir).map_or_else(
            |error| {
                let path = token::path(dir);
                warn!(
                    path = %path.display(), %error,
                    "no token can be kept, so nobody sees what needs one: set `token` under [admin]"
                );
                None
            },
            Some,
        ),
        (None, None) => {
            warn!(
                "no token can be kept without a folder, so nobody sees what needs one: set `token` under [admin]"
            );
            None
        }
    };
    let address = listener.local_addr().unwrap_or(config.admin.address());
    info!(address = %address, "operators may look at http://{address}");
    let hosts = config.server.allowed_hosts.iter().filter_map(|host| host.parse().ok());
    admin::Settings {
        loopback: config.admin.is_loopback(),
        allowed_hosts: hosts.collect(),
        token,
        configuration: file.map(whole),
        endpoint: endpoint.to_owned(),
        audit,
        reloads: Arc::default(),
        workers: Arc::default(),
    }
}

/// Tells `weir status` and others where this process can be asked, until what is returned is dropped.
pub(super) fn tell(config: &Config, listener: &TcpListener, file: Option<&Path>) -> Option<Told> {
    let (state, file) = (config.state.dir.as_deref()?, whole(file?));
    let address = listener.local_addr().ok()?;
    let told = discovery::tell(state, &file, address);
    // They look where the configuration says, too.
    told.map_err(|error| debug!(%error, "where operators are answered is not kept")).ok()
}

/// A path from the root, by which two that are written otherwise are known to be one.
pub(super) fn whole(path: &Path) -> String {
    let whole: PathBuf = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    whole.display().to_string()
}
