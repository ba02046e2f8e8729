//! `weir serve` as a replica of a fleet.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::app::App;
use crate::cli::exit::Failure;
use weir_config::{Config, FleetConfig};
use weir_downstream::http::{self, ListenerPeers, ReplicaListener, Workers};

/// Accepts connections of the other replicas until shutdown. The process that this one replaces, if
/// there is one, still listens: then this one begins later.
pub(super) async fn serve(
    app: &App,
    config: &FleetConfig,
    listener: ReplicaListener,
    max_connections: usize,
    workers: &Arc<Workers>,
    is_successor: bool,
) -> Result<(), Failure> {
    let address = config.listen;
    let (server_state, workers) = (Arc::clone(app.server_state()), Arc::clone(workers));
    let accept = move |bound: TcpListener| {
        let peers = ListenerPeers::Replicas(listener);
        http::accept_loop(bound, peers, max_connections, server_state, workers)
    };
    match TcpListener::bind(address).await {
        Ok(bound) => app.spawn_listener(accept(bound)),
        Err(error) if is_successor && error.kind() == ErrorKind::AddrInUse => {
            app.spawn_background(async move {
                loop {
                    sleep(BIND_INTERVAL).await;
                    if let Ok(bound) = TcpListener::bind(address).await {
                        return accept(bound).await;
                    }
                }
            });
        }
        Err(error) => {
            return Err(Failure::Unreachable(format!(
                "cannot listen on {address} for other replicas: {error}; set another `listen` \
                 under [fleet]"
            )));
        }
    }
    Ok(())
}

/// Returns how long a replica goes on serving after a stop signal, unless the configuration says
/// it: longer than load balancers keep connections and take to notice, so that other replicas get
/// the requests of its clients meanwhile.
pub(super) fn shutdown_delay(config: &Config) -> Option<Duration> {
    config.fleet.as_ref().map(|_| SHUTDOWN_DELAY)
}

const SHUTDOWN_DELAY: Duration = Duration::from_secs(15);
/// Interval of the attempts to listen, while the process before still does.
const BIND_INTERVAL: Duration = Duration::from_millis(50);
