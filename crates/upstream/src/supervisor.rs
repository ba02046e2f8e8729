//! Supervisor of one upstream: the task that keeps its main connection open.
//!
//! It opens the connection, follows its notifications, and reconnects with growing pauses after a
//! loss. It alone changes the upstream's status. Calls read the connection from a `watch` and
//! report faults to the supervisor. An on-demand upstream is connected on first use and closed
//! after its idle timeout.

pub(crate) mod library_upstream;
pub(crate) mod notice_upstream;
pub(crate) mod state_publisher;
pub(crate) mod unresolved_upstream;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::subscriptions::SubscriptionRegistry;
use super::{ConnectionInfo, Settings, Sharing, UpstreamSource};
use crate::health::crash_loop::{CRASH_LOOP_WINDOW, CrashLoopDetector};
use crate::health::on_demand::OnDemand;
use crate::session::connection::{McpSession, UpstreamConnection};
use crate::session::connector::{ConnectError, ConnectRequest, Connector};
use crate::session::session_check::GiveUpBackoff;
use crate::session::session_pool::SessionPool;
use crate::supervisor::state_publisher::StatePublisher;
use crate::transport::dispatcher::ConnectionClients;
use weir_base::tasks::fairness::promptly;

/// Lifetime after which a connection counts as stable: the back-off is reset.
const STABLE_AFTER: Duration = Duration::from_secs(30);
/// A connection that has to be replaced after a shorter life waits for the back-off.
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// Time for which the detected protocol is kept in spite of contrary evidence.
const DETECTION_TTL: Duration = Duration::from_secs(60);

/// Supervisor task of one upstream.
pub(super) struct Supervisor {
    pub(super) settings: Arc<Settings>,
    pub(super) connector: Arc<Connector>,
    /// Additional sessions, which end with the main connection.
    pub(super) session_pool: Arc<SessionPool>,
    pub(super) state: StatePublisher,
    pub(super) subscriptions: Arc<SubscriptionRegistry>,
    pub(super) on_demand: Arc<OnDemand>,
    pub(super) fault_reports: mpsc::Receiver<FaultReport>,
    /// Back-off of the connections that were given up.
    pub(super) give_ups: GiveUpBackoff,
    /// Number of the last connection.
    pub(super) epoch: u64,
    /// First connection to an HTTP server, which shows its protocol, and the time of detection. A
    /// child process is negotiated with at each start.
    pub(super) detected: Option<(Arc<ConnectionInfo>, Instant)>,
}

/// Report by a call that the connection does not work.
#[derive(Debug)]
pub(super) struct FaultReport {
    /// Number of the faulty connection.
    pub(super) epoch: u64,
    pub(super) kind: FaultKind,
}

/// Kind of fault.
#[derive(Debug)]
pub(super) enum FaultKind {
    /// The session is gone; a new connection is possible at once.
    SessionLost(String),
    /// The server cannot be reached.
    Unreachable(String),
}

/// Reason for the end of a connection.
enum Event {
    Stop,
    Idle,
    Fault(FaultKind),
    Ended(String),
}

impl Supervisor {
    /// Keeps the upstream connected. Ends only when `stop` fires, and then leaves nothing running.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut backoff = self.settings.retry.start();
        let mut crashes = CrashLoopDetector::default();
        let mut has_run = false;
        if self.subscriptions.is_needed() {
            self.on_demand.request_start();
        }
        loop {
            if self.on_demand.is_asleep() {
                if stop.run_until_cancelled(self.on_demand.wait_until_needed()).await.is_none() {
                    break;
                }
                self.state.publish_starting();
                if has_run {
                    self.state.health.retry_started();
                }
            }
            has_run = true;
            let opened = Instant::now();
            // Dropping a half-open connection ends it: the transport ends its child process.
            match self.open().with_cancellation_token(&stop).await {
                None => break,
                Some(Err(failed)) => {
                    if failed.has_ended {
                        self.record_process_end(&mut crashes, opened, &failed.reason);
                    }
                    self.state.publish_disconnected(&failed.reason, crashes.is_loop());
                    if let Some(transport) = failed.transport {
                        transport.close().await;
                    }
                }
                Some(Ok(connection)) => {
                    let since = Instant::now();
                    let event = self.serve_connection(&connection, &stop).await;
                    if since.elapsed()
                        >= if crashes.is_loop() { CRASH_LOOP_WINDOW } else { STABLE_AFTER }
                    {
                        backoff.reset();
                    }
                    match event {
                        Event::Stop => {
                            self.state.publish_stopped();
                            connection.close().await;
                            break;
                        }
                        Event::Idle => {
                            let upstream = &self.settings.name;
                            tracing::info!(%upstream, "idle timeout, process stopped");
                            connection.close().await;
                            continue;
                        }
                        Event::Fault(FaultKind::SessionLost(reason)) => {
                            self.state.publish_session_lost(&reason);
                            // Another server may have taken its place.
                            self.forget_detection();
                            connection.abandon().await;
                            // The calls that reported the fault wait for the next connection.
                            if since.elapsed() >= MIN_LIFETIME {
                                continue;
                            }
                        }
                        Event::Fault(FaultKind::Unreachable(reason)) | Event::Ended(reason) => {
                            if let UpstreamSource::Process(_) = self.settings.source {
                                self.record_process_end(&mut crashes, since, &reason);
                            }
                            self.state.publish_disconnected(&reason, crashes.is_loop());
                            connection.abandon().await;
                        }
                    }
                }
            }
            let pause =
                if crashes.is_loop() { backoff.longest_pause() } else { backoff.next_pause() };
            self.state.health.retry_scheduled(pause);
            let pause = async {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.connector.sign_in_made() => {}
                }
            };
            if stop.run_until_cancelled(pause).await.is_none() {
                break;
            }
            self.state.health.retry_started();
        }
        self.state.publish_stopped();
        self.session_pool.close().await;
        self.connector.close();
    }

    /// Records the end of the child process that was started at `since`. The start of a crash loop
    /// is logged once.
    fn record_process_end(&self, crashes: &mut CrashLoopDetector, since: Instant, reason: &str) {
        let before = crashes.is_loop();
        crashes.record_end(since.elapsed(), Instant::now());
        if crashes.is_loop() && !before {
            let (upstream, longest) = (&self.settings.name, self.settings.retry.max_backoff);
            let text = "crash loop detected, process restarted at the longest back-off";
            tracing::error!(%upstream, reason, ?longest, "{text}");
        }
    }

    /// Serves an open connection until an event ends it.
    async fn serve_connection(
        &mut self,
        connection: &Arc<McpSession>,
        stop: &CancellationToken,
    ) -> Event {
        let dispatcher = connection.dispatcher();
        let mut listen = std::pin::pin!(Arc::clone(connection).listen(&self.subscriptions));
        let mut listen_end = None;
        {
            let mut listen_ready =
                std::pin::pin!(dispatcher.wait_for_listen_ack(connection.announced_topics));
            loop {
                tokio::select! {
                    biased;
                    over = &mut listen, if listen_end.is_none() => listen_end = Some(over),
                    () = promptly(&mut listen_ready) => break,
                }
            }
        }
        self.on_demand.mark_started();
        self.state.publish_connected(UpstreamConnection::Session(Arc::clone(connection)));
        loop {
            if let Some(Some(reason)) = listen_end.take_if(|over| over.is_some()) {
                return Event::Fault(FaultKind::SessionLost(reason));
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Event::Stop,
                reason = connection.ended() => return Event::Ended(reason),
                Some(report) = self.fault_reports.recv() => {
                    // A report about an earlier connection has been handled.
                    if report.epoch == connection.about.epoch {
                        return Event::Fault(report.kind);
                    }
                }
                over = &mut listen, if listen_end.is_none() => listen_end = Some(over),
                () = promptly(self.on_demand.wait_until_idle()) => {
                    // Subscriptions that were taken over from a predecessor have registered no use
                    // here.
                    if dispatcher.has_tasks() || self.subscriptions.is_needed() {
                        self.on_demand.mark_started();
                    } else if self.on_demand.stop_if_idle(|| self.state.publish_idle_stop()) {
                        return Event::Idle;
                    }
                }
            }
        }
    }

    /// Opens the connection and records the detected protocol. A child process is negotiated with
    /// at each start.
    async fn open(&mut self) -> Result<Arc<McpSession>, ConnectError> {
        let epoch = self.epoch + 1;
        let request = ConnectRequest {
            epoch,
            detected: self.detected.as_ref().map(|(about, _)| Arc::clone(about)),
            declared: None,
            clients: match self.settings.sharing {
                Sharing::Sole(_) => ConnectionClients::Single,
                Sharing::Shared | Sharing::Client => ConnectionClients::Many,
            },
            changes: self.state.changes.clone(),
            registry: Arc::clone(&self.subscriptions),
            give_ups: Arc::clone(&self.give_ups),
        };
        match self.connector.open(&request).await {
            Ok(connection) => {
                self.epoch = epoch;
                let about = Arc::clone(&connection.about);
                if matches!(self.settings.source, UpstreamSource::Http { .. })
                    && about.is_era_certain
                {
                    self.detected.get_or_insert((about, Instant::now()));
                }
                Ok(connection)
            }
            Err(failed) => {
                if failed.contradicts {
                    self.forget_detection();
                }
                Err(failed)
            }
        }
    }

    /// Forgets the detected protocol after contrary evidence, at most once a minute.
    fn forget_detection(&mut self) {
        self.detected.take_if(|(_, detected)| detected.elapsed() >= DETECTION_TTL);
    }
}
