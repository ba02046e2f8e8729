//! Builds the rooms, owns their tasks and the tokens that stop them.
//!
//! The order of closing is the order of a request, from the door inward: doors stop taking requests,
//! what is under way ends, and only then do the upstreams lose their connections.

mod changes;
mod fetch;
mod reload;
mod settings;
mod watch;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, Ops};
use crate::audit::{self, Audit, Target};
use crate::catalog::Catalog;
use crate::config::{Config, Report};
use crate::downstream::Doors;
use crate::gateway::Gateway;
use crate::mcp::call::Caller;
use crate::policy::Policy;
use crate::policy::tokens::Fetch;
use crate::upstream::Upstream;
use crate::upstream::connect::Dial;

use reload::Reload;
pub use reload::{Outcome, Reloader};
pub use watch::Files;

pub(crate) use settings::{naming, outlet, role, rules};

/// The running house.
pub struct App {
    rooms: Arc<Rooms>,
    /// Tells operators until all else has ended.
    ops: TaskTracker,
    stop_ops: CancellationToken,
    /// Writes until all else has ended.
    log: TaskTracker,
    stop_log: CancellationToken,
}

/// The rooms, and what they are built with: once, and again where the configuration changes.
struct Rooms {
    gateway: Arc<Gateway>,
    door: Arc<Doors>,
    doors: TaskTracker,
    leaving: CancellationToken,
    stop_doors: CancellationToken,
    upstreams: TaskTracker,
    stop_upstreams: CancellationToken,
    dial: Arc<dyn Dial>,
    /// What the one client declared, where there is one in all.
    sole: Option<Caller>,
    /// Where keys of identity providers are fetched with, once a door is open at which tokens are shown.
    fetch: OnceLock<Arc<dyn Fetch>>,
    /// What holds: as far as it could be taken up.
    config: Mutex<Arc<Config>>,
}

impl Rooms {
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn hold(&self, config: Config) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    fn keep_keys(&self) {
        if let Some(fetch) = self.fetch.get() {
            self.gateway.keep_keys(fetch, &self.doors, &self.stop_doors);
        }
    }
}

impl App {
    /// Opens the rooms and returns at once: upstreams are connected in the background.
    pub fn open(config: &Config, dial: Arc<dyn Dial>) -> Self {
        Self::open_for(config, dial, None, None)
    }

    /// The same for a single client, if `sole` is one: upstreams are opened with what it declared. With a log
    /// requests are recorded there.
    pub fn open_for(
        config: &Config,
        dial: Arc<dyn Dial>,
        sole: Option<&Caller>,
        log: Option<(Audit, audit::Writer)>,
    ) -> Self {
        let leaving = CancellationToken::new();
        let (doors, stop_doors) = (TaskTracker::new(), CancellationToken::new());
        let (upstreams, stop_upstreams) = (TaskTracker::new(), CancellationToken::new());
        let mut settings = settings::downstream(config);
        let budget = settings.held.budget.clone();
        let start = |settings| {
            let (dial, stop) = (Arc::clone(&dial), stop_upstreams.clone());
            Upstream::start(settings, dial, &budget, &upstreams, stop)
        };
        let gateway = Gateway::open(
            Policy::new(settings::policy(config)),
            Catalog::new(settings::catalog(config)),
            config
                .upstreams
                .iter()
                .map(|it| start(settings::upstream(it, sole, config.state.catalog_folder())))
                .collect(),
            settings::sentries(config),
            &upstreams,
            &stop_upstreams,
        );
        let (log_task, stop_log) = (TaskTracker::new(), CancellationToken::new());
        if let Some((audit, writer)) = log {
            settings.audit = audit;
            log_task.spawn(writer.run(stop_log.clone()));
        }
        let door = Doors::new(Arc::clone(&gateway), settings, doors.clone(), stop_doors.clone());
        let rooms = Rooms {
            gateway,
            door,
            doors,
            leaving,
            stop_doors,
            upstreams,
            stop_upstreams,
            dial,
            sole: sole.cloned(),
            fetch: OnceLock::new(),
            config: Mutex::new(Arc::new(config.clone())),
        };
        let (ops, stop_ops) = (TaskTracker::new(), CancellationToken::new());
        Self { rooms: Arc::new(rooms), ops, stop_ops, log: log_task, stop_log }
    }

    /// Makes it possible to reload the configuration, by what `read` gives, until the doors end. What became of each
    /// reload is told to `told`.
    pub fn reloader(
        &self,
        read: impl Fn(&CancellationToken) -> Result<Config, Report> + Send + Sync + 'static,
        told: impl Fn(&Outcome) + Send + Sync + 'static,
    ) -> Reloader {
        let (reloader, task) = Reload::new(Arc::clone(&self.rooms), Arc::new(read), Box::new(told));
        self.spawn_beside(task.run(self.rooms.stop_doors.clone()));
        reloader
    }

    /// Reloads the configuration whenever its files have changed, until the doors end.
    pub fn follow(&self, files: Files, reloader: &Reloader) {
        let (rooms, stop) = (Arc::clone(&self.rooms), self.rooms.stop_doors.clone());
        self.spawn_beside(files.follow(rooms, reloader.clone(), stop));
    }

    /// Runs something beside the doors until they end; nobody waits for it.
    pub fn spawn_beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.rooms.stop_doors.clone();
        self.rooms.upstreams.spawn(async move {
            let _: Option<()> = stop.run_until_cancelled(work).await;
        });
    }

    /// The configuration that holds, as far as it could be taken up without a restart.
    pub fn config(&self) -> Arc<Config> {
        self.rooms.config()
    }

    /// Opens the audit log of a configuration, and writes its first line: whoever starts should hear of it if that
    /// cannot be. The text says what to do.
    pub fn open_log(config: &Config) -> Result<(Audit, audit::Writer), String> {
        let settings = settings::audit(config)?;
        let opened = Audit::open(&settings).and_then(|(audit, mut writer)| {
            writer.begin()?;
            Ok((audit, writer))
        });
        opened.map_err(|error| error.to_string())
    }

    /// Where the audit log of a configuration is; `None` if it is no file.
    pub fn log_path(config: &Config) -> Result<Option<PathBuf>, String> {
        Ok(match settings::audit(config)?.target {
            Target::File(path) => Some(path),
            Target::Stdout => None,
        })
    }

    /// Fetches the keys of the identity providers, and keeps them until the doors end. For doors at which tokens
    /// are shown; without it none is good.
    pub fn keep_keys(&self) {
        let fetch = || Arc::new(fetch::Fetcher(Arc::clone(&self.rooms.dial))) as Arc<dyn Fetch>;
        self.rooms.fetch.get_or_init(fetch);
        self.rooms.keep_keys();
    }

    /// Lets operators look at the house until its last room is closed, and have its configuration read again.
    pub fn show(
        &self,
        listener: TcpListener,
        settings: admin::Settings,
        reload: admin::reload::Reload,
    ) {
        let (gateway, door) = (Arc::clone(&self.rooms.gateway), Arc::clone(&self.rooms.door));
        let ops = Ops::new(gateway, door, self.rooms.leaving.clone(), reload, settings);
        let (tasks, stop) = (self.ops.clone(), self.stop_ops.clone());
        self.ops.spawn(admin::serve(listener, ops, tasks, stop));
    }

    /// Somebody else answers operators from now on.
    pub fn show_no_more(&self) {
        self.stop_ops.cancel();
    }

    /// What the doors lead to.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.rooms.gateway
    }

    /// What connections are served with.
    pub fn door(&self) -> &Arc<Doors> {
        &self.rooms.door
    }

    /// Opens a door: runs it until [`App::stop_doors`], and [`App::drained`] waits for it.
    pub fn spawn_door(&self, door: impl Future<Output = ()> + Send + 'static) {
        self.rooms.doors.spawn(door);
    }

    /// Tells operators that this house is about to close, and not ready for new clients; all goes on as before.
    pub fn leave(&self) {
        self.rooms.leaving.cancel();
    }

    /// Ends the doors: no new requests; what is under way goes on until [`App::close`].
    pub fn stop_doors(&self) {
        self.leave();
        self.rooms.stop_doors.cancel();
    }

    /// Waits until the last request has ended. Never ends before [`App::stop_doors`] was called.
    pub async fn drained(&self) {
        self.rooms.doors.close();
        self.rooms.doors.wait().await;
    }

    /// Stops every upstream and waits for their last task. Requests that are under way end with an
    /// error, which their clients get a moment to hear.
    pub async fn close(self) {
        self.stop_doors();
        self.rooms.stop_upstreams.cancel();
        self.rooms.upstreams.close();
        self.rooms.upstreams.wait().await;
        let _ = tokio::time::timeout(LAST_WORDS, self.drained()).await;
        self.stop_ops.cancel();
        self.ops.close();
        self.ops.wait().await;
        self.stop_log.cancel();
        self.log.close();
        self.log.wait().await;
    }
}

/// How long the last answers may take to their clients.
const LAST_WORDS: Duration = Duration::from_secs(1);
