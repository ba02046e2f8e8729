//! What an operator sees of a running Weir: a listener of its own, beside the doors.
//!
//! It tells whether the process lives and is ready, exports metrics, and says in full how everything is doing. What
//! the other rooms count and know is looked at when somebody asks. The one thing that it does is to have the
//! configuration read again, for whoever shows the token.
//!
//! Promises: it answers while the doors are full, and until the last room is closed; what names an upstream or counts
//! anything is for this machine, or for whoever shows the token; the number of series is bounded by the configuration,
//! not by what clients send.
//!
//! Knows nothing of: where its settings come from, and how what it tells is shown.

mod connections;
pub mod discovery;
mod handler;
mod health;
mod listener;
mod metrics;
mod process;
pub mod reload;
pub mod remaining_quota;
pub mod status;
pub mod token;

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::audit::Audit;
use crate::downstream::host_check::AllowedHost;
use crate::downstream::http::Workers;
use crate::downstream::{self, Doors};
use crate::gateway::Gateway;
use crate::secret::Secret;
pub use handler::Route;
pub use listener::serve;
use reload::{Reload, Reloads};

/// What the listener is made with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether only this machine can connect: then the metrics are for everybody who can.
    pub loopback: bool,
    /// Hosts that requests may be addressed to, beside addresses.
    pub allowed_hosts: Vec<AllowedHost>,
    /// What has to be shown to see everything; without one nobody does.
    pub token: Option<Secret>,
    /// The configuration's file, as an absolute path, if there is one.
    pub configuration: Option<String>,
    /// Where clients connect.
    pub endpoint: String,
    /// Where requests are recorded.
    pub audit: Audit,
    /// What became of the last reload.
    pub reloads: Arc<Reloads>,
    /// Who serves clients' connections.
    pub workers: Arc<Workers>,
}

/// Everything that is looked at.
pub struct Ops {
    gateway: Arc<Gateway>,
    door: Arc<Doors>,
    /// Fires when the house is about to close.
    leaving: CancellationToken,
    /// What has the configuration read again.
    reload: Reload,
    settings: Settings,
    /// What Host and Origin are judged by.
    hosts: downstream::Settings,
    begun: Instant,
    started: SystemTime,
}

impl Ops {
    /// Begins to look at a house that has just been opened. It is not ready any more once `leaving` fires.
    pub fn new(
        gateway: Arc<Gateway>,
        door: Arc<Doors>,
        leaving: CancellationToken,
        reload: Reload,
        settings: Settings,
    ) -> Arc<Self> {
        let hosts = downstream::Settings {
            loopback: settings.loopback,
            allowed_hosts: settings.allowed_hosts.clone(),
            ..downstream::Settings::default()
        };
        let (begun, started) = (Instant::now(), SystemTime::now());
        Arc::new(Self { gateway, door, leaving, reload, settings, hosts, begun, started })
    }
}
