//! Listener for operators: health, status, metrics, reload, remaining quota, roles of users, logs
//! of upstreams.
//!
//! It has a port of its own, beside the client listener. The numbers of the other modules are read
//! when a request asks for them. The actions are a reload of the configuration and a restart of an
//! upstream, which require the token. A process without a port has a socket in the state folder.
//!
//! Invariants: it responds while the client listener is overloaded, and until the last upstream is
//! closed. Responses that name an upstream or contain numbers are only for local clients, or for
//! requests with the token. The number of time series is bounded by the configuration, not by what
//! clients send.

mod connections;
pub mod discovery;
mod handler;
mod health;
mod listener;
pub mod logs;
mod metrics;
pub mod notes;
mod process;
pub mod reload;
pub mod remaining_quota;
pub mod socket;
pub mod status;
pub mod token;
pub mod users;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use handler::Route;
pub(crate) use handler::TOKEN_NEEDED;
pub use listener::serve;
use reload::{Actions, LastReload};
use weir_base::secrets::secret::Secret;
use weir_downstream::host_check::AllowedHost;
use weir_downstream::http::{Tls, Workers};
use weir_downstream::{self as downstream, ServerStateCell};
use weir_gateway::Gateway;
use weir_record::audit::Audit;

/// Settings of the listener.
#[derive(Debug, Clone)]
pub struct Settings {
    /// True if only this machine can connect; then metrics need no token.
    pub loopback: bool,
    /// Accepted values of `Host`, besides IP addresses.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Token that protected routes require; without one they refuse every request.
    pub token: Option<Secret>,
    /// Absolute path of the configuration file, if there is one.
    pub configuration: Option<String>,
    /// URL of the MCP endpoint.
    pub endpoint: String,
    /// Audit log, for its state.
    pub audit: Audit,
    /// Outcome of the last reload.
    pub reloads: Arc<LastReload>,
    /// Worker threads of client connections.
    pub workers: Arc<Workers>,
    /// Certificates of the endpoint, for their expiry.
    pub tls: Option<Arc<Tls>>,
}

/// State that the routes read.
pub struct Admin {
    gateway: Arc<Gateway>,
    server_state: Arc<ServerStateCell>,
    /// Fires when the process starts to drain.
    draining: CancellationToken,
    /// Actions of operators.
    actions: Actions,
    settings: Settings,
    /// Settings of the Host and Origin check.
    hosts: downstream::Settings,
    started_at: Instant,
    started: SystemTime,
}

impl Admin {
    /// Creates the state for a gateway that has just started. It is not ready any more once
    /// `draining` fires.
    pub fn new(
        gateway: Arc<Gateway>,
        server_state: Arc<ServerStateCell>,
        draining: CancellationToken,
        actions: Actions,
        settings: Settings,
    ) -> Arc<Self> {
        let hosts = downstream::Settings {
            loopback: settings.loopback,
            allowed_hosts: settings.allowed_hosts.clone(),
            ..downstream::Settings::default()
        };
        let (started_at, started) = (Instant::now(), SystemTime::now());
        Arc::new(Self {
            gateway,
            server_state,
            draining,
            actions,
            settings,
            hosts,
            started_at,
            started,
        })
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}
