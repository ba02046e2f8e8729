//! Start of the upstreams of a configuration.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::settings;
use super::token_audit::record_tokens;
use super::upstream_runner::{ConnectToRunner, UpstreamRunner};
use weir_base::memory::memory_budget::MemoryBudget;
use weir_base::secrets::sealing::InstanceId;
use weir_config::{Config, Replicas, UpstreamConfig};
use weir_downstream::http::RunningUpstreams;
use weir_fleet::{Condition, Fleet};
use weir_mcp::call::CallContext;
use weir_record::audit::Audit;
use weir_upstream::connect::Connect;
use weir_upstream::{self as upstream, Upstream};

/// Starts upstreams, at the start and when the configuration changes.
pub(super) struct UpstreamStarter {
    pub(super) connector: Arc<dyn Connect>,
    /// Number of this process.
    pub(super) instance: InstanceId,
    pub(super) tasks: TaskTracker,
    /// Stops all of them.
    pub(super) stop: CancellationToken,
    pub(super) draining: CancellationToken,
    /// Capabilities of the client, if the process serves a single one.
    pub(super) single_client: Option<CallContext>,
    /// The fleet, also if this process is no replica of it.
    pub(super) fleet: Option<Arc<Fleet>>,
    /// Upstreams that this replica runs for all.
    pub(super) running: Arc<RunningUpstreams>,
    pub(super) audit: Audit,
}

impl UpstreamStarter {
    /// Returns the settings under which an upstream of this configuration is started.
    pub(super) fn settings(
        &self,
        config: &Config,
        upstream: &UpstreamConfig,
    ) -> upstream::Settings {
        let client = self.single_client.as_ref();
        let settings = settings::upstream(upstream, client, &config.state);
        let settings = upstream::Settings { instance: Some(self.instance), ..settings };
        match self.runs_once(upstream) {
            Some(_) => settings::on_one_replica(settings),
            None => settings,
        }
    }

    /// Starts an upstream with these settings, which replaces the one before.
    pub(super) fn start(
        &self,
        config: &Config,
        upstream: &UpstreamConfig,
        settings: upstream::Settings,
        before: Option<&Upstream>,
        budget: &MemoryBudget,
    ) -> Upstream {
        let Some(fleet) = self.runs_once(upstream) else {
            let connector = Arc::clone(&self.connector);
            let (tasks, stop) = (&self.tasks, &self.stop);
            let started = Upstream::start_after(before, settings, connector, budget, tasks, stop);
            record_tokens(&started, &self.audit, tasks);
            return started;
        };
        let connector = Arc::new(ConnectToRunner {
            name: upstream.name().to_owned(),
            fleet: Arc::clone(fleet),
            running: Arc::clone(&self.running),
        });
        let started =
            Upstream::start_after(before, settings, connector, budget, &self.tasks, &self.stop);
        if let Some(lease) = fleet.lease(upstream.name()) {
            let (running, connector) = (&self.running, &self.connector);
            let keys = fleet.keys();
            let runner = UpstreamRunner::new(config, upstream, lease, keys, running, connector);
            self.tasks.spawn(runner.run(started.stop_token(), self.draining.clone()));
        }
        started
    }

    /// Returns the fleet of which one replica at a time runs this upstream, if it is such a one. A
    /// replica on which a value of it is missing leaves it to the others.
    fn runs_once(&self, upstream: &UpstreamConfig) -> Option<&Arc<Fleet>> {
        let runs_once = upstream.replicas == Replicas::One && upstream.unresolved().is_none();
        self.fleet.as_ref().filter(|_| runs_once)
    }
}

/// Follows the fleet of a configuration without being a replica of it, until `stop` fires; `None`
/// if no upstream needs that.
pub(super) fn observe_fleet(
    config: &Config,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Option<Arc<Fleet>> {
    let is_needed = config.upstreams.iter().any(|it| it.replicas == Replicas::One);
    let settings = config.fleet.as_ref().filter(|_| is_needed)?;
    let fleet = Fleet::observer(settings.sealing_keys(), settings.settings.clone());
    let (observing, stop) = (Arc::clone(&fleet), stop.clone());
    tasks.spawn(async move { observing.run(&stop, Condition::default, || {}).await });
    Some(fleet)
}
