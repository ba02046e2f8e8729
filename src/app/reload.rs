//! Reload: reads and checks the configuration, compares it with the active one, and replaces it.
//!
//! Invariants: an invalid configuration changes nothing, and neither does one that lacks a value of
//! an upstream that was started. A request is served under one configuration, never under both; a
//! request that begins after the outcome of a reload is reported is served under the new one. An
//! upstream with unchanged settings, secrets included, is not touched: it keeps its process, its
//! connection and its lists. Reloads run one after another, and requests for a reload during a
//! reload are merged into one. Reading, which may run secret commands, and building do not block
//! other tasks, and a panic in them is a refusal.
//!
//! Decision: docs/decisions/0019-reload.md

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::changes::{self, Changes};
use super::{Components, settings};
use weir_base::secrets::sha256::sha256;
use weir_config::{Config, ConfigReport, Replicas, Severity, UpstreamConfig, Warning};
use weir_record::audit::{FileHash, PolicyChange, PolicyEvent};
use weir_upstream::Upstream;

/// Function that reads the configuration, and stops when the token fires.
pub(super) type ConfigLoader =
    dyn Fn(&CancellationToken) -> Result<Config, ConfigReport> + Send + Sync;

/// Function that lists the files of the configuration with their hashes.
pub(super) type FileHasher = dyn Fn() -> Vec<FileHash> + Send + Sync;

/// Callback for the outcome of each reload, with the configuration that is active then.
pub(super) type ReloadObserver = dyn Fn(&ReloadOutcome, &Config) + Send + Sync;

/// Handle that requests reloads. Cheap to clone.
#[derive(Clone)]
pub struct Reloader {
    requests: mpsc::Sender<ReloadRequest>,
}

/// Request, with the sender for its outcome.
enum ReloadRequest {
    Reload(ReloadTrigger, oneshot::Sender<ReloadOutcome>),
    Restart(UpstreamRestart, oneshot::Sender<ReloadOutcome>),
}

/// Request of an operator to start an upstream again, with its present settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRestart {
    /// Name of the upstream.
    pub upstream: String,
    /// Time that calls in flight may take, after which the former process is stopped.
    pub grace: Duration,
}

/// Origin of a request for a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadTrigger {
    /// A file has changed.
    File,
    /// A signal.
    Signal,
    /// A command of an operator, through the admin listener.
    Command,
}

impl ReloadTrigger {
    fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Signal => "signal",
            Self::Command => "command",
        }
    }
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
    /// Reloads the configuration for an operator, and returns the outcome.
    pub async fn reload(&self) -> ReloadOutcome {
        self.reload_because_of(ReloadTrigger::Command).await
    }

    /// Reloads the configuration, and returns the outcome. Requests during a reload share the next
    /// one.
    pub async fn reload_because_of(&self, trigger: ReloadTrigger) -> ReloadOutcome {
        self.request(|sender| ReloadRequest::Reload(trigger, sender)).await
    }

    /// Starts an upstream again for an operator, and returns the outcome. Its lists stay published,
    /// and new requests wait for it.
    pub async fn restart(&self, restart: UpstreamRestart) -> ReloadOutcome {
        self.request(|sender| ReloadRequest::Restart(restart, sender)).await
    }

    async fn request(
        &self,
        request: impl FnOnce(oneshot::Sender<ReloadOutcome>) -> ReloadRequest,
    ) -> ReloadOutcome {
        let stopping = || ReloadOutcome::Failed("Weir is stopping".to_owned());
        let (sender, outcome) = oneshot::channel();
        // A full queue makes this wait. If the task has ended, `send` returns the unsent value with
        // its sender, so awaiting the outcome would never end.
        if self.requests.send(request(sender)).await.is_err() {
            return stopping();
        }
        outcome.await.unwrap_or_else(|_| stopping())
    }
}

/// Task that reloads.
pub(super) struct ReloadTask {
    components: Arc<Components>,
    read: Arc<ConfigLoader>,
    hash_files: Arc<FileHasher>,
    observer: Box<ReloadObserver>,
    requests: mpsc::Receiver<ReloadRequest>,
    /// Files of the active configuration.
    active: Vec<FileHash>,
    /// Recorded refusals since the last configuration that was taken up; at most
    /// [`MAX_KNOWN_REFUSALS`].
    refused: Vec<[u8; 32]>,
}

impl ReloadTask {
    pub(super) fn new(
        components: Arc<Components>,
        read: Arc<ConfigLoader>,
        (active, hash_files): (Vec<FileHash>, Arc<FileHasher>),
        observer: Box<ReloadObserver>,
    ) -> (Reloader, Self) {
        let (sender, requests) = mpsc::channel(MAX_WAITING_REQUESTS);
        let refused = Vec::new();
        let task = Self { components, read, hash_files, observer, requests, active, refused };
        (Reloader { requests: sender }, task)
    }

    /// Reloads on request. Ends when `stop` fires, or when the last [`Reloader`] is dropped.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut next = None;
        loop {
            let request = match next.take() {
                Some(request) => request,
                None => match stop.run_until_cancelled(self.requests.recv()).await {
                    Some(Some(request)) => request,
                    Some(None) | None => return,
                },
            };
            let (trigger, mut waiting) = match request {
                ReloadRequest::Reload(trigger, sender) => (trigger, vec![sender]),
                ReloadRequest::Restart(restart, sender) => {
                    let restarting = self.restart(restart);
                    let Some(outcome) = stop.run_until_cancelled(restarting).await else { return };
                    let _ = sender.send(outcome);
                    continue;
                }
            };
            while let Ok(another) = self.requests.try_recv() {
                match another {
                    ReloadRequest::Reload(_, sender) => waiting.push(sender),
                    ReloadRequest::Restart(..) => {
                        next = Some(another);
                        break;
                    }
                }
            }
            let by = trigger.as_str();
            let reloading = self.reload(by, &stop);
            let Some((outcome, files)) = stop.run_until_cancelled(reloading).await else { return };
            log_outcome(&outcome);
            self.record(&outcome, files, by);
            (self.observer)(&outcome, &self.components.config());
            for sender in waiting {
                // The requester may have been cancelled.
                let _ = sender.send(outcome.clone());
            }
        }
    }

    /// Starts an upstream of the active configuration again.
    async fn restart(&self, restart: UpstreamRestart) -> ReloadOutcome {
        let config = self.components.config();
        let Some(upstream) = config.upstreams.iter().find(|it| it.name() == restart.upstream)
        else {
            return ReloadOutcome::Failed(format!("no upstream `{}`", restart.upstream));
        };
        if config.fleet.is_some() && upstream.replicas == Replicas::One {
            let text = "one replica runs this upstream for all, and starts it again if it ends";
            return ReloadOutcome::Failed(text.to_owned());
        }
        if let Some(reason) = upstream.unresolved() {
            return ReloadOutcome::Failed(reason.to_owned());
        }
        let (components, active) = (Arc::clone(&self.components), self.active.clone());
        let by = ReloadTrigger::Command.as_str();
        let work = move || apply(&components, (*config).clone(), (&active, by), Some(&restart));
        spawn_blocking(work).await.unwrap_or_else(|bug| {
            ReloadOutcome::Failed(format!("the restart panicked, which is a bug in Weir: {bug}"))
        })
    }

    /// Reloads; returns the outcome, and the files as they were before they were read.
    async fn reload(
        &self,
        by: &'static str,
        stop: &CancellationToken,
    ) -> (ReloadOutcome, Vec<FileHash>) {
        let (components, read, stop) =
            (Arc::clone(&self.components), Arc::clone(&self.read), stop.clone());
        let hash_files = Arc::clone(&self.hash_files);
        let work = move || {
            let files = hash_files();
            let outcome = match read(&stop) {
                Ok(config) => apply(&components, config, (&files, by), None),
                Err(report) => ReloadOutcome::Refused(report),
            };
            (outcome, files)
        };
        spawn_blocking(work).await.unwrap_or_else(|bug| {
            let text = format!("reading the configuration panicked, which is a bug in Weir: {bug}");
            (ReloadOutcome::Failed(text), Vec::new())
        })
    }

    /// Records what was not recorded before it took effect: refusals, each content of the files
    /// once, and files that have changed without another meaning.
    fn record(&mut self, outcome: &ReloadOutcome, files: Vec<FileHash>, by: &'static str) {
        let refusal = match outcome {
            ReloadOutcome::Applied { .. } => {
                (self.active, self.refused) = (files, Vec::new());
                return;
            }
            ReloadOutcome::Unchanged if files == self.active => return,
            ReloadOutcome::Unchanged => {
                (self.active, self.refused) = (files.clone(), Vec::new());
                // A configuration in the place of a file with mistakes is not that of the file.
                self.components.config().notice().map(str::to_owned)
            }
            ReloadOutcome::Refused(report) => Some(describe_refusal(report)),
            ReloadOutcome::Failed(why) => Some(why.clone()),
        };
        if let Some(why) = &refusal {
            let content = sha256(format!("{files:?} {why}"));
            if self.refused.contains(&content) {
                return;
            }
            if self.refused.len() == MAX_KNOWN_REFUSALS {
                self.refused.remove(0);
            }
            self.refused.push(content);
        }
        let kind = PolicyChange::Config { files, after_restart: Vec::new() };
        self.components
            .starter
            .audit
            .record_policy(PolicyEvent { refusal, ..PolicyEvent::new(kind, by) });
    }
}

/// Describes the first error of a report, and counts the others.
fn describe_refusal(report: &ConfigReport) -> String {
    let mut errors = report.problems().iter().filter(|it| it.severity == Severity::Error);
    let Some(first) = errors.next() else { return String::new() };
    let (at, separator) = (first.location(), if first.key.is_empty() { "" } else { ": " });
    let text = format!("{at}: {}{separator}{}", first.key, first.what);
    match errors.count() {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// Replaces the active configuration by a checked one, which stays untouched until the last moment.
/// An upstream that is to be restarted is started again even if its settings are the same. The
/// change is recorded before it takes effect, and does not if it cannot be recorded where the audit
/// log is mandatory.
fn apply(
    components: &Components,
    next: Config,
    (files, by): (&[FileHash], &'static str),
    restart: Option<&UpstreamRestart>,
) -> ReloadOutcome {
    let before = components.config();
    if let Some(report) = refuse_lost_values(&before, &next) {
        return ReloadOutcome::Refused(report);
    }
    let (next, after_restart) =
        match changes::applicable(&before, next, components.starter.single_client.is_some()) {
            Ok(applicable) => applicable,
            Err(why) => return ReloadOutcome::Failed(why),
        };
    let running = components.gateway.upstreams();
    let mut changes = Changes::between(&before, &next);
    let budget = components.server_state.now().budget().clone();
    let plan: Vec<_> = next
        .upstreams
        .iter()
        .map(|upstream| {
            let settings = components.starter.settings(&next, upstream);
            let was = running.iter().find(|was| *was.name() == settings.name);
            let is_kept = was.is_some_and(|was| *was.settings() == settings)
                && restart.is_none_or(|restart| restart.upstream != upstream.name());
            if !is_kept {
                changes.opened(upstream.name(), was.is_some());
            }
            (upstream, settings, was, is_kept)
        })
        .collect();
    let changes = changes.lines();
    if changes.is_empty() && after_restart.is_empty() {
        return ReloadOutcome::Unchanged;
    }
    let kind = PolicyChange::Config { files: files.to_vec(), after_restart: after_restart.clone() };
    let event = PolicyEvent {
        changes: changes.clone(),
        refusal: next.notice().map(str::to_owned),
        ..PolicyEvent::new(kind, by)
    };
    if Handle::current().block_on(components.starter.audit.record_policy_first(event)).is_err() {
        let why = "the change cannot be recorded in the audit log, which is mandatory \
                   (`on_error = \"refuse\"` under [audit])";
        return ReloadOutcome::Failed(why.to_owned());
    }
    let start = |(upstream, settings, was, is_kept): (_, _, Option<&Upstream>, bool)| match was {
        Some(was) if is_kept => was.clone(),
        was => components.starter.start(&next, upstream, settings, was, &budget),
    };
    let upstreams = plan.into_iter().map(start).collect();
    let parts = components.gateway.rules(|policy, catalog, inspectors| {
        let catalog = catalog.with_settings(settings::catalog(&next));
        let audit = components.starter.audit.clone();
        settings::snapshot_parts(&next, upstreams, catalog, (policy, inspectors), audit)
    });
    let snapshot = components.gateway.prepare(parts);
    let downstream = settings::downstream(&next);
    // Requests before streams: a client that requests a list after a notification must get the new
    // one.
    components.server_state.replace(Arc::clone(&snapshot), downstream);
    let grace = restart.map_or(next.server.shutdown_grace, |restart| restart.grace);
    components.gateway.replace(snapshot, grace);
    components.server_state.end_unauthorized_sessions();
    components.spawn_jwks_refreshers();
    for Warning { key, what, remedy, .. } in &next.warnings {
        warn!(key, what, remedy, "configuration warning");
    }
    components.set_config(next);
    ReloadOutcome::Applied { changes, after_restart }
}

/// Refuses a configuration in which values of upstreams are missing that could be started before:
/// a mistake in a file stops nothing that runs.
fn refuse_lost_values(before: &Config, next: &Config) -> Option<ConfigReport> {
    let was_complete = |name: &str| {
        before.upstreams.iter().any(|was| was.name() == name && was.unresolved().is_none())
    };
    let lost = next.upstreams.iter().filter(|it| it.unresolved().is_some());
    let lost: Vec<_> = lost.map(UpstreamConfig::name).filter(|name| was_complete(name)).collect();
    ConfigReport::of_missing_values(&next.warnings, &lost)
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
/// Refused contents that are remembered: an editor may save many attempts.
const MAX_KNOWN_REFUSALS: usize = 64;
/// Most configuration errors that are logged; `weir check` shows all.
const MAX_LOGGED_ERRORS: usize = 20;
