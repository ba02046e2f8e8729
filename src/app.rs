//! Composition of the running gateway: builds the components, owns their tasks and stop tokens.
//!
//! Components are closed in the order of a request, from the client inward: listeners stop
//! accepting requests, requests in progress end, and only then the upstreams are disconnected.

mod changes;
mod reload;
mod settings;
mod token_audit;
mod upstream_runner;
mod upstream_starter;
mod watch;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::socket::AdminSocket;
use crate::admin::{self, Admin};
use weir_access::catalog::Catalog;
use weir_access::policy::Policy;
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::sealing::SealingKeys;
use weir_base::tasks::sync::Mutex;
use weir_config::{Config, ConfigReport};
use weir_downstream::http::RunningUpstreams;
use weir_downstream::{ServerParts, ServerStateCell};
use weir_fleet::Fleet;
use weir_gateway::{Gateway, Inspectors};
use weir_mcp::call::CallContext;
use weir_record::audit::{self, Audit, AuditTarget, FileHash};
use weir_upstream::connect::{Connect, HttpRequests};

use reload::ReloadTask;
pub use reload::{ReloadOutcome, ReloadTrigger, Reloader, UpstreamRestart};
use upstream_starter::{UpstreamStarter, observe_fleet};
pub use watch::{ConfigFiles, hash_files};

pub(crate) use settings::naming;

/// Running gateway.
pub struct App {
    components: Arc<Components>,
    /// Tasks of the admin listener, which end after those of the upstreams.
    admin_tasks: TaskTracker,
    stop_admin: CancellationToken,
    /// Task of the audit writer, which ends last.
    audit_tasks: TaskTracker,
    stop_audit: CancellationToken,
}

/// Keys that ids are sealed with, and the fleet whose replicas share them.
pub struct Identity {
    sealing_keys: SealingKeys,
    fleet: Option<Arc<Fleet>>,
    /// Whether its clients are the replicas of a fleet, for which it runs one upstream.
    serves_replicas: bool,
}

impl Identity {
    /// Keys of the gateway that runs an upstream for the replicas of a fleet.
    pub(crate) fn of_runner(sealing_keys: SealingKeys) -> Self {
        Self { sealing_keys, fleet: None, serves_replicas: true }
    }
}

impl From<SealingKeys> for Identity {
    /// Keys of a process that serves its clients alone.
    fn from(sealing_keys: SealingKeys) -> Self {
        Self { sealing_keys, fleet: None, serves_replicas: false }
    }
}

impl From<Arc<Fleet>> for Identity {
    /// Keys of a replica.
    fn from(fleet: Arc<Fleet>) -> Self {
        let sealing_keys = fleet.keys().clone();
        Self { sealing_keys, fleet: Some(fleet), serves_replicas: false }
    }
}

/// Components of the gateway, with the parts that building them needs: at the start, and again when
/// the configuration changes.
struct Components {
    gateway: Arc<Gateway>,
    server_state: Arc<ServerStateCell>,
    downstream_tasks: TaskTracker,
    draining: CancellationToken,
    stop_downstream: CancellationToken,
    starter: UpstreamStarter,
    /// Client for the keys of identity providers, set once a listener accepts tokens.
    provider_http: OnceLock<Arc<dyn HttpSend>>,
    /// Active configuration; keys that need a restart still have their old values.
    config: Mutex<Arc<Config>>,
}

impl Components {
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock())
    }

    fn set_config(&self, config: Config) {
        if let Some(fleet) = self.server_state.now().fleet() {
            fleet.set_configuration(settings::digest(&config));
        }
        *self.config.lock() = Arc::new(config);
    }

    fn spawn_jwks_refreshers(&self) {
        if let Some(http) = self.provider_http.get() {
            self.gateway.spawn_jwks_refreshers(http, &self.downstream_tasks, &self.stop_downstream);
        }
    }
}

impl App {
    /// Builds the components and returns immediately: upstreams are connected in the background.
    pub fn open(config: &Config, connector: Arc<dyn Connect>) -> Self {
        Self::open_with(config, connector, SealingKeys::random(), None, None)
    }

    /// Like [`App::open`] for a single client, if `single_client` is one: upstreams are connected
    /// with its capabilities. Ids are sealed with the keys of `identity`, and requests are recorded
    /// in `audit_log`.
    pub fn open_with(
        config: &Config,
        connector: Arc<dyn Connect>,
        identity: impl Into<Identity>,
        single_client: Option<&CallContext>,
        audit_log: Option<(Audit, audit::Writer)>,
    ) -> Self {
        let Identity { sealing_keys, fleet, serves_replicas } = identity.into();
        let draining = CancellationToken::new();
        let (downstream_tasks, stop_downstream) = (TaskTracker::new(), CancellationToken::new());
        let (upstream_tasks, stop_upstreams) = (TaskTracker::new(), CancellationToken::new());
        if let Some(fleet) = &fleet {
            fleet.set_configuration(settings::digest(config));
        }
        let budget = settings::memory_budget(config);
        let audit = audit_log.as_ref().map(|(audit, _)| audit.clone()).unwrap_or_default();
        let starter = UpstreamStarter {
            audit,
            connector,
            instance: sealing_keys.instance(),
            tasks: upstream_tasks.clone(),
            stop: stop_upstreams.clone(),
            draining: draining.clone(),
            single_client: single_client.cloned(),
            fleet: fleet
                .clone()
                .or_else(|| observe_fleet(config, &upstream_tasks, &stop_upstreams)),
            running: Arc::default(),
        };
        let start = |it| starter.start(config, it, starter.settings(config, it), None, &budget);
        let upstreams = config.upstreams.iter().map(start);
        let catalog = Catalog::new(settings::catalog(config));
        let limits = fleet.as_ref().map(|fleet| Arc::clone(fleet.limits()));
        let nothing = (&Policy::in_fleet(limits), &Inspectors::default());
        let parts = settings::snapshot_parts(
            config,
            upstreams.collect(),
            catalog,
            nothing,
            starter.audit.clone(),
        );
        let gateway = Gateway::open(parts, sealing_keys, &upstream_tasks, &stop_upstreams);
        if serves_replicas {
            // They have listed the server before, in another run of it.
            gateway.wait_for_upstreams();
        }
        let (audit_tasks, stop_audit) = (TaskTracker::new(), CancellationToken::new());
        if let Some((_, writer)) = audit_log {
            audit_tasks.spawn(writer.run(stop_audit.clone()));
        }
        let server_parts = ServerParts {
            gateway: Arc::clone(&gateway),
            fleet,
            serves_replicas,
            budget,
            audit: starter.audit.clone(),
            tasks: downstream_tasks.clone(),
            stop: stop_downstream.clone(),
        };
        let server_state = ServerStateCell::new(server_parts, settings::downstream(config));
        server_state.follow_fleet(&upstream_tasks, stop_upstreams.clone());
        let components = Components {
            gateway,
            server_state,
            downstream_tasks,
            draining,
            stop_downstream,
            starter,
            provider_http: OnceLock::new(),
            config: Mutex::new(Arc::new(config.clone())),
        };
        let (admin_tasks, stop_admin) = (TaskTracker::new(), CancellationToken::new());
        Self { components: Arc::new(components), admin_tasks, stop_admin, audit_tasks, stop_audit }
    }

    /// Starts the task that reloads the configuration, with the result of `read`, until the
    /// downstream side stops. `observer` is called with the outcome of each reload.
    pub fn reloader(
        &self,
        read: impl Fn(&CancellationToken) -> Result<Config, ConfigReport> + Send + Sync + 'static,
        observer: impl Fn(&ReloadOutcome, &Config) + Send + Sync + 'static,
    ) -> Reloader {
        self.reloader_of_files(read, (Vec::new(), Vec::new), observer)
    }

    /// Like [`Self::reloader`], for a configuration in files: those that are active, and a function
    /// that lists the present ones. Changes are recorded with them.
    pub fn reloader_of_files(
        &self,
        read: impl Fn(&CancellationToken) -> Result<Config, ConfigReport> + Send + Sync + 'static,
        (active, files): (Vec<FileHash>, impl Fn() -> Vec<FileHash> + Send + Sync + 'static),
        observer: impl Fn(&ReloadOutcome, &Config) + Send + Sync + 'static,
    ) -> Reloader {
        let (components, files) = (Arc::clone(&self.components), (active, Arc::new(files) as _));
        let (reloader, task) =
            ReloadTask::new(components, Arc::new(read), files, Box::new(observer));
        self.spawn_background(task.run(self.components.stop_downstream.clone()));
        reloader
    }

    /// Reloads the configuration whenever its files have changed, until the downstream side stops.
    pub fn watch_files(&self, files: ConfigFiles, reloader: &Reloader) {
        let (components, stop) =
            (Arc::clone(&self.components), self.components.stop_downstream.clone());
        self.spawn_background(files.follow(components, reloader.clone(), stop));
    }

    /// Runs background work that is cancelled when the downstream side stops.
    pub fn spawn_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.components.stop_downstream.clone();
        self.components.starter.tasks.spawn(async move {
            let _: Option<()> = stop.run_until_cancelled(work).await;
        });
    }

    /// Returns the active configuration; keys that need a restart have their old values.
    pub fn config(&self) -> Arc<Config> {
        self.components.config()
    }

    /// Opens the audit log of a configuration and writes its first line, so that an error is
    /// reported at the start. The error text says what to do.
    pub fn open_audit_log(config: &Config) -> Result<(Audit, audit::Writer), String> {
        Self::open_audit_log_with(config, Vec::new())
    }

    /// Like [`Self::open_audit_log`]; the first line has the files of the configuration.
    pub fn open_audit_log_with(
        config: &Config,
        files: Vec<FileHash>,
    ) -> Result<(Audit, audit::Writer), String> {
        let settings = settings::audit(config)?;
        let opened = Audit::open(&settings).and_then(|(audit, mut writer)| {
            writer.set_files(files);
            writer.write_first()?;
            Ok((audit, writer))
        });
        opened.map_err(|error| error.to_string())
    }

    /// Returns the path of the audit log of a configuration; `None` for standard output.
    pub fn audit_log_path(config: &Config) -> Result<Option<PathBuf>, String> {
        Ok(match settings::audit(config)?.target {
            AuditTarget::File(path) => Some(path),
            AuditTarget::Stdout => None,
        })
    }

    /// Fetches the keys of the identity providers, and refreshes them until the downstream side
    /// stops. Needed by listeners that accept tokens; without it no token is accepted.
    pub fn spawn_jwks_refreshers(&self) {
        let http = || {
            let connect = Arc::clone(&self.components.starter.connector);
            let egress = self.components.config().egress.clone();
            Arc::new(HttpRequests { connect, egress }) as Arc<dyn HttpSend>
        };
        self.components.provider_http.get_or_init(http);
        self.components.spawn_jwks_refreshers();
    }

    /// Serves operators until the last upstream is closed.
    pub fn serve_admin(
        &self,
        listener: TcpListener,
        settings: admin::Settings,
        actions: admin::reload::Actions,
    ) {
        let (tasks, stop) = (self.admin_tasks.clone(), self.stop_admin.clone());
        let admin = self.admin(settings, actions);
        self.admin_tasks.spawn(admin::serve(listener, admin, tasks, stop));
    }

    /// Serves operators at a socket until the last upstream is closed.
    pub fn serve_admin_socket(
        &self,
        socket: AdminSocket,
        settings: admin::Settings,
        actions: admin::reload::Actions,
    ) {
        let (tasks, stop) = (self.admin_tasks.clone(), self.stop_admin.clone());
        self.admin_tasks.spawn(socket.serve(self.admin(settings, actions), tasks, stop));
    }

    fn admin(&self, settings: admin::Settings, actions: admin::reload::Actions) -> Arc<Admin> {
        let (gateway, server_state) =
            (Arc::clone(&self.components.gateway), Arc::clone(&self.components.server_state));
        let draining = self.components.draining.clone();
        Admin::new(gateway, server_state, draining, actions, settings)
    }

    /// Stops the admin listener, because another process has taken over.
    pub fn stop_admin(&self) {
        self.stop_admin.cancel();
    }

    /// Returns the audit log.
    pub fn audit(&self) -> &Audit {
        &self.components.starter.audit
    }

    /// Returns the gateway.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.components.gateway
    }

    /// Returns the state that client connections share.
    pub fn server_state(&self) -> &Arc<ServerStateCell> {
        &self.components.server_state
    }

    /// Returns the upstreams that this replica runs for all.
    pub fn running_upstreams(&self) -> Arc<RunningUpstreams> {
        Arc::clone(&self.components.starter.running)
    }

    /// Runs a listener until [`App::stop_downstream`]; [`App::wait_until_drained`] waits for it.
    pub fn spawn_listener(&self, listener: impl Future<Output = ()> + Send + 'static) {
        self.components.downstream_tasks.spawn(listener);
    }

    /// Marks the process as draining, and so not ready for new clients; it serves requests as
    /// before.
    pub fn mark_draining(&self) {
        self.components.draining.cancel();
        self.components.server_state.drain();
    }

    /// Stops the downstream side: no new requests; requests in progress continue until
    /// [`App::close`].
    pub fn stop_downstream(&self) {
        self.mark_draining();
        self.components.stop_downstream.cancel();
    }

    /// Waits until the last request has ended. Never ends before [`App::stop_downstream`] was
    /// called.
    pub async fn wait_until_drained(&self) {
        self.components.downstream_tasks.close();
        self.components.downstream_tasks.wait().await;
    }

    /// Stops every upstream and waits for the last task of each. Requests in progress end with an
    /// error, and the responses get a moment to be sent.
    pub async fn close(self) {
        self.stop_downstream();
        self.components.starter.stop.cancel();
        self.components.starter.tasks.close();
        self.components.starter.tasks.wait().await;
        let _ = tokio::time::timeout(LAST_RESPONSES, self.wait_until_drained()).await;
        self.components.server_state.record_sessions().await;
        self.stop_admin.cancel();
        self.admin_tasks.close();
        self.admin_tasks.wait().await;
        self.stop_audit.cancel();
        self.audit_tasks.close();
        self.audit_tasks.wait().await;
    }
}

/// Time for sending the last responses.
const LAST_RESPONSES: Duration = Duration::from_secs(1);
