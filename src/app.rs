//! Builds the rooms, owns their tasks and the tokens that stop them.
//!
//! The order of closing is the order of a request, from the door inward: doors stop taking requests,
//! what is under way ends, and only then do the upstreams lose their connections.

mod fetch;
mod settings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{self, Audit, Target};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::downstream::Door;
use crate::gateway::Gateway;
use crate::mcp::call::Caller;
use crate::ops::{self, Ops};
use crate::policy::Policy;
use crate::policy::tokens::Fetch;
use crate::upstream::Upstream;
use crate::upstream::dial::Dial;

pub(crate) use settings::{naming, outlet, role, rules};

/// The running house.
pub struct App {
    gateway: Arc<Gateway>,
    door: Arc<Door>,
    doors: TaskTracker,
    leaving: CancellationToken,
    stop_doors: CancellationToken,
    upstreams: TaskTracker,
    stop_upstreams: CancellationToken,
    /// Tells operators until all else has ended.
    ops: TaskTracker,
    stop_ops: CancellationToken,
    /// Writes until all else has ended.
    log: TaskTracker,
    stop_log: CancellationToken,
    dial: Arc<dyn Dial>,
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
        let start = |settings| {
            Upstream::start(settings, Arc::clone(&dial), &upstreams, stop_upstreams.child_token())
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
        let mut settings = settings::downstream(config);
        let (log_task, stop_log) = (TaskTracker::new(), CancellationToken::new());
        if let Some((audit, writer)) = log {
            settings.audit = audit;
            log_task.spawn(writer.run(stop_log.clone()));
        }
        let door = Door::new(Arc::clone(&gateway), settings, doors.clone(), stop_doors.clone());
        let log = log_task;
        let (ops, stop_ops) = (TaskTracker::new(), CancellationToken::new());
        Self {
            gateway,
            door,
            doors,
            leaving,
            stop_doors,
            upstreams,
            stop_upstreams,
            ops,
            stop_ops,
            log,
            stop_log,
            dial,
        }
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
        let fetch: Arc<dyn Fetch> = Arc::new(fetch::Fetcher(Arc::clone(&self.dial)));
        self.gateway.keep_keys(&fetch, &self.doors, &self.stop_doors);
    }

    /// Lets operators look at the house until its last room is closed.
    pub fn show(&self, listener: TcpListener, settings: ops::Settings) {
        let ops = Ops::new(Arc::clone(&self.gateway), Arc::clone(&self.door), settings);
        let (tasks, stop) = (self.ops.clone(), self.stop_ops.clone());
        self.ops.spawn(ops::serve(listener, ops, tasks, stop));
    }

    /// What the doors lead to.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// What connections are served with.
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// Opens a door: runs it until [`App::stop_doors`], and [`App::drained`] waits for it.
    pub fn spawn_door(&self, door: impl Future<Output = ()> + Send + 'static) {
        self.doors.spawn(door);
    }

    /// Tells whoever asks that this house is about to close; all goes on as before.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// Fires when the house is about to close: from then on it is not ready for new clients.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Ends the doors: no new requests; what is under way goes on until [`App::close`].
    pub fn stop_doors(&self) {
        self.leaving.cancel();
        self.stop_doors.cancel();
    }

    /// Waits until the last request has ended. Never ends before [`App::stop_doors`] was called.
    pub async fn drained(&self) {
        self.doors.close();
        self.doors.wait().await;
    }

    /// Stops every upstream and waits for their last task. Requests that are under way end with an
    /// error, which their clients get a moment to hear.
    pub async fn close(self) {
        self.stop_doors();
        self.stop_upstreams.cancel();
        self.upstreams.close();
        self.upstreams.wait().await;
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
