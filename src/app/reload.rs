//! Reload: reads and checks the configuration, compares it with the active one, and replaces it.
//!
//! Invariants: an invalid configuration changes nothing. A request is served under one
//! configuration, never under both; a request that begins after the outcome of a reload is reported
//! is served under the new one. An upstream with unchanged settings, secrets included, is not
//! touched: it keeps its process, its connection and its lists. Reloads run one after another, and
//! requests for a reload during a reload are merged into one. Reading, which may run secret
//! commands, and building do not block other tasks, and a panic in them is a refusal.
//!
//! Decision: docs/decisions/0019-reload.md

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::changes::{self, Changes};
use super::{Components, settings};
use crate::config::{Config, ConfigReport, Severity, Warning};

/// Function that reads the configuration, and stops when the token fires.
pub(super) type ConfigLoader =
    dyn Fn(&CancellationToken) -> Result<Config, ConfigReport> + Send + Sync;

/// Callback for the outcome of each reload, with the configuration that is active then.
pub(super) type ReloadObserver = dyn Fn(&ReloadOutcome, &Config) + Send + Sync;

/// Handle that requests reloads. Cheap to clone.
#[derive(Clone)]
pub struct Reloader {
    requests: mpsc::Sender<oneshot::Sender<ReloadOutcome>>,
}

/// Outcome of a reload.
#[derive(Debug, Clone, PartialEq)]
pub enum ReloadOutcome {
    /// The new configuration is active.
    Applied {
        /// Differences as text, one line each.
        changes: Vec<String>,
        /// Changed keys that take effect after a restart.
        after_restart: Vec<&'static str>,
    },
    /// The configuration is unchanged.
    Unchanged,
    /// The configuration has errors, and the previous one stays active: the complete report of
    /// `weir check`.
    Refused(ConfigReport),
    /// The configuration could not be applied, and the previous one stays active: reason and
    /// remedy.
    Failed(String),
}

impl Reloader {
    /// Reloads the configuration, and returns the outcome. Requests during a reload share the next
    /// one.
    pub async fn reload(&self) -> ReloadOutcome {
        let stopping = || ReloadOutcome::Failed("Weir is stopping".to_owned());
        let (sender, outcome) = oneshot::channel();
        // A full queue makes this wait. If the task has ended, `send` returns the unsent value with
        // its sender, so awaiting the outcome would never end.
        if self.requests.send(sender).await.is_err() {
            return stopping();
        }
        outcome.await.unwrap_or_else(|_| stopping())
    }
}

/// Task that reloads.
pub(super) struct ReloadTask {
    components: Arc<Components>,
    read: Arc<ConfigLoader>,
    observer: Box<ReloadObserver>,
    requests: mpsc::Receiver<oneshot::Sender<ReloadOutcome>>,
}

impl ReloadTask {
    pub(super) fn new(
        components: Arc<Components>,
        read: Arc<ConfigLoader>,
        observer: Box<ReloadObserver>,
    ) -> (Reloader, Self) {
        let (sender, requests) = mpsc::channel(MAX_WAITING_REQUESTS);
        (Reloader { requests: sender }, Self { components, read, observer, requests })
    }

    /// Reloads on request. Ends when `stop` fires, or when the last [`Reloader`] is dropped.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        while let Some(Some(first)) = stop.run_until_cancelled(self.requests.recv()).await {
            let mut waiting = vec![first];
            while let Ok(another) = self.requests.try_recv() {
                waiting.push(another);
            }
            let Some(outcome) = stop.run_until_cancelled(self.reload(&stop)).await else { return };
            log_outcome(&outcome);
            (self.observer)(&outcome, &self.components.config());
            for sender in waiting {
                // The requester may have been cancelled.
                let _ = sender.send(outcome.clone());
            }
        }
    }

    async fn reload(&self, stop: &CancellationToken) -> ReloadOutcome {
        let (components, read, stop) =
            (Arc::clone(&self.components), Arc::clone(&self.read), stop.clone());
        let work = move || match read(&stop) {
            Ok(config) => apply(&components, config),
            Err(report) => ReloadOutcome::Refused(report),
        };
        spawn_blocking(work).await.unwrap_or_else(|bug| {
            ReloadOutcome::Failed(format!(
                "reading the configuration panicked, which is a bug in Weir: {bug}"
            ))
        })
    }
}

/// Replaces the active configuration by a checked one, which stays untouched until the last moment.
fn apply(components: &Components, next: Config) -> ReloadOutcome {
    let before = components.config();
    let (next, after_restart) =
        match changes::applicable(&before, next, components.starter.single_client.is_some()) {
            Ok(applicable) => applicable,
            Err(why) => return ReloadOutcome::Failed(why),
        };
    let running = components.gateway.upstreams();
    let mut changes = Changes::between(&before, &next);
    let budget = components.server_state.now().budget().clone();
    let upstreams = next.upstreams.iter().map(|upstream| {
        let settings = components.starter.settings(&next, upstream);
        let was = running.iter().find(|was| *was.name() == settings.name);
        match was {
            Some(was) if *was.settings() == settings => was.clone(),
            was => {
                changes.opened(upstream.name(), was.is_some());
                components.starter.start(&next, upstream, settings, was, &budget)
            }
        }
    });
    let upstreams = upstreams.collect();
    let changes = changes.lines();
    if changes.is_empty() && after_restart.is_empty() {
        return ReloadOutcome::Unchanged;
    }
    let parts = components.gateway.rules(|policy, catalog, inspectors| {
        let catalog = catalog.with_settings(settings::catalog(&next));
        settings::snapshot_parts(&next, upstreams, catalog, (policy, inspectors))
    });
    let generation = components.gateway.prepare(parts);
    let downstream = settings::downstream(&next);
    // Requests before streams: a client that requests a list after a notification must get the new
    // one.
    components.server_state.replace(Arc::clone(&generation), downstream);
    components.gateway.replace(generation, next.server.shutdown_grace);
    components.server_state.end_unauthorized_sessions();
    components.spawn_jwks_refreshers();
    for Warning { key, what, remedy, .. } in &next.warnings {
        warn!(key, what, remedy, "configuration warning");
    }
    components.set_config(next);
    ReloadOutcome::Applied { changes, after_restart }
}

/// Logs the outcome.
fn log_outcome(outcome: &ReloadOutcome) {
    match outcome {
        ReloadOutcome::Applied { changes, after_restart } => {
            let changes = changes.join("; ");
            info!(changes, "the configuration was reloaded");
            for key in after_restart {
                warn!(key, "changed key takes effect after a restart");
            }
        }
        ReloadOutcome::Unchanged => info!("the configuration was read again, nothing changed"),
        ReloadOutcome::Refused(report) => {
            let problems = report.problems().iter().filter(|it| it.severity == Severity::Error);
            for problem in problems.take(MAX_LOGGED_ERRORS) {
                let (at, key) = (problem.location(), &problem.key);
                let (what, remedy) = (&problem.what, &problem.remedy);
                error!(
                    at,
                    key,
                    what,
                    remedy,
                    "the configuration is refused, the previous one stays active"
                );
            }
        }
        ReloadOutcome::Failed(why) => {
            error!(why, "the configuration is refused, the previous one stays active")
        }
    }
}

/// Queued requests for the next reload; further ones wait before they are queued.
const MAX_WAITING_REQUESTS: usize = 64;
/// Most configuration errors that are logged; `weir check` shows all.
const MAX_LOGGED_ERRORS: usize = 20;
