//! Upstreams with `replicas = "one"`: each runs on one replica of the fleet at a time.
//!
//! A replica that has the lease of such an upstream runs it in a gateway of its own, which has this
//! upstream only and no policy. All replicas, this one too, use that gateway as an upstream over
//! HTTP, in the era of the server itself: so lists, subscriptions, tasks, input requests and time
//! limits are as for any other, and the replica that a client asks decides what the client may do.
//!
//! Invariants: an upstream runs only while the lease may be used. Its connections belong to one run
//! and end with it. A replica that stops gives the lease back after the last request has ended, if
//! another one is there to take it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::duplex;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{App, Identity, settings};
use weir_base::net::http_connection::ByteStream;
use weir_base::secrets::sealing::SealingKeys;
use weir_config::{Config, UpstreamConfig};
use weir_downstream::http::{RunningUpstream, RunningUpstreams, serve_connection};
use weir_fleet::{Fleet, HeldLease, UpstreamLease};
use weir_upstream::connect::{Child, ChildCommand, Connect, Deadline, Destination};

/// Task that runs an upstream whenever this replica has its lease.
pub(super) struct UpstreamRunner {
    name: String,
    /// Configuration with this upstream only.
    config: Config,
    lease: UpstreamLease,
    keys: SealingKeys,
    running: Arc<RunningUpstreams>,
    connector: Arc<dyn Connect>,
    /// Longest wait for the last requests.
    grace: Duration,
}

impl UpstreamRunner {
    pub(super) fn new(
        config: &Config,
        upstream: &UpstreamConfig,
        lease: UpstreamLease,
        keys: &SealingKeys,
        running: &Arc<RunningUpstreams>,
        connector: &Arc<dyn Connect>,
    ) -> Self {
        Self {
            name: upstream.name().to_owned(),
            config: settings::of_one_upstream(config, upstream),
            lease,
            keys: keys.clone(),
            running: Arc::clone(running),
            connector: Arc::clone(connector),
            grace: config.server.shutdown_grace,
        }
    }

    /// Runs the upstream whenever this replica has its lease, until `stop` fires, or until
    /// `draining` has fired and another replica is there.
    pub(super) async fn run(self, stop: CancellationToken, draining: CancellationToken) {
        let leave = stop.child_token();
        let follow_drain = async {
            draining.cancelled().await;
            self.lease.wait_for_others().await;
            leave.cancel();
            std::future::pending().await
        };
        let work = async {
            while let Some(held) = leave.run_until_cancelled(self.lease.acquire()).await {
                self.run_once(held, &leave).await;
            }
        };
        tokio::select! {
            () = follow_drain => {}
            () = work => {}
        }
    }

    /// Runs the upstream until the lease is lost or `leave` fires.
    async fn run_once(&self, held: HeldLease, leave: &CancellationToken) {
        let upstream = &self.name;
        let deadline = match Deadline::new(held.until) {
            Ok(deadline) => deadline,
            Err(error) => {
                return warn!(upstream, %error, "no memory for the deadline of a child");
            }
        };
        let extend = |until| {
            if let Err(error) = deadline.extend(until) {
                warn!(upstream, %error, "the deadline of a child cannot be extended");
            }
        };
        let mut kept = std::pin::pin!(self.lease.keep(&held, extend).fuse());
        tokio::select! {
            () = &mut kept => return,
            () = leave.cancelled() => return,
            () = sleep(held.wait) => {}
        }
        let app = self.open(held.number, &deadline);
        info!(upstream, "this replica runs the upstream for all");
        let mut is_lost = tokio::select! {
            () = &mut kept => true,
            () = leave.cancelled() => false,
        };
        self.running.remove(&self.name);
        self.lease.set_running(None);
        // Requests on open connections are served once more; the next ones go elsewhere.
        app.server_state().set_has_successor();
        app.stop_downstream();
        if !is_lost {
            is_lost = tokio::select! {
                () = &mut kept => true,
                _ = timeout(self.grace, app.wait_until_drained()) => false,
            };
        }
        if is_lost {
            warn!(upstream, "this replica may not run the upstream any more, and stops it");
        }
        let mut closed = std::pin::pin!(app.close());
        tokio::select! {
            () = &mut closed => if !is_lost { self.lease.release(&held).await },
            () = &mut kept => closed.await,
        }
    }

    /// Opens the gateway that runs the upstream, and tells the other replicas.
    fn open(&self, number: u64, deadline: &Arc<Deadline>) -> App {
        let (connect, until) = (Arc::clone(&self.connector), Arc::clone(deadline));
        let connector = Arc::new(ConnectUntil { connect, until });
        // With a number of its own: what it names with that is not of the gateway for clients.
        let identity = Identity::of_runner(self.keys.of_another_process());
        let app = App::open_with(&self.config, connector, identity, None, None);
        let running = RunningUpstream {
            server: Arc::clone(app.server_state()),
            connections: app.components.downstream_tasks.clone(),
            deadline: Arc::clone(deadline),
        };
        self.running.insert(&self.name, running);
        self.lease.set_running(Some(number));
        app
    }
}

/// Starts processes that end at a deadline.
struct ConnectUntil {
    connect: Arc<dyn Connect>,
    until: Arc<Deadline>,
}

impl Connect for ConnectUntil {
    fn connect<'a>(
        &'a self,
        to: Destination<'a>,
    ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        self.connect.connect(to)
    }

    fn spawn(&self, command: &ChildCommand) -> io::Result<Child> {
        self.connect.spawn_until(command, &self.until)
    }

    fn login_path<'a>(&'a self, command: &'a ChildCommand) -> BoxFuture<'a, Option<String>> {
        self.connect.login_path(command)
    }
}

/// Connects to an upstream on the replica that runs it.
pub(super) struct ConnectToRunner {
    pub(super) name: String,
    pub(super) fleet: Arc<Fleet>,
    pub(super) running: Arc<RunningUpstreams>,
}

impl ConnectToRunner {
    async fn open(&self, time: Duration) -> io::Result<Box<dyn ByteStream>> {
        let until = Instant::now() + time;
        let mut failed = io::Error::other("no replica runs it at present");
        loop {
            if let Some(RunningUpstream { server, connections, .. }) = self.running.find(&self.name)
            {
                let (near, far) = duplex(PIPE_BYTES);
                connections.spawn(serve_connection(server, far, None).boxed());
                return Ok(Box::new(near));
            }
            if let Some(runner) = self.fleet.runner_of(&self.name) {
                match self.fleet.client().connect_to(&runner, &self.name).await {
                    Ok(stream) => return Ok(Box::new(stream)),
                    Err(error) => {
                        failed = io::Error::other(format!("{}: {error}", runner.record.name));
                    }
                }
            }
            if timeout_at(until, self.fleet.next_heartbeat()).await.is_err() {
                return Err(failed);
            }
        }
    }
}

impl Connect for ConnectToRunner {
    /// Waits for a replica that runs the upstream, for as long as the timeout says.
    fn connect<'a>(
        &'a self,
        to: Destination<'a>,
    ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        self.open(to.timeout).boxed()
    }

    fn spawn(&self, _: &ChildCommand) -> io::Result<Child> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Buffer of a connection within the process.
const PIPE_BYTES: usize = 64 * 1024;
