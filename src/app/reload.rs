//! A reload: the configuration is read anew, checked, compared with the one that holds, and put in its place.
//!
//! Promises: what is not good changes nothing. A request is served under the one configuration or under the other, never
//! under both; one that begins after a reload was told of is served under the new one. An upstream whose own settings
//! are the same, secrets included, is not touched: it keeps its process, its connection and its lists. Reloads come one
//! behind the other; those that are asked for while one is under way are one. Reading, which may run commands that give
//! secrets, and building hold up nobody, and a panic in them is a refusal.
//!
//! Knows nothing of: files, signals, and who asks for a reload.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::changes::{self, Changes};
use super::{Rooms, settings};
use crate::config::{Config, Report, Severity, Warning};
use crate::gateway::Parts;
use crate::upstream::Upstream;

/// Reads the configuration, and gives up when the token fires.
pub(super) type Read = dyn Fn(&CancellationToken) -> Result<Config, Report> + Send + Sync;

/// Is told what became of each.
pub(super) type Told = dyn Fn(&Outcome) + Send + Sync;

/// Asks for reloads. Cheap to clone.
#[derive(Clone)]
pub struct Reloader {
    asked: mpsc::Sender<oneshot::Sender<Outcome>>,
}

/// What became of a reload.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The new configuration holds.
    Applied {
        /// What is different, in words, a line each.
        changes: Vec<String>,
        /// The keys that were changed and take effect after a restart.
        after_restart: Vec<&'static str>,
    },
    /// It says the same as the one that holds.
    Unchanged,
    /// It is not good, and the former one holds: the whole report, as `weir check` draws it.
    Refused(Report),
    /// It could not be applied, and the former one holds: why, and what to do.
    Failed(String),
}

impl Reloader {
    /// Reloads the configuration, and tells what became of it. Whoever asks while a reload is under way gets the one
    /// behind it, together with all who do.
    pub async fn reload(&self) -> Outcome {
        let stopping = || Outcome::Failed("Weir is stopping".to_owned());
        let (tell, told) = oneshot::channel();
        // Full: waits for its turn, as everybody before it does. What could not be sent comes back, and with it whoever
        // would tell: it must not be waited for.
        if self.asked.send(tell).await.is_err() {
            return stopping();
        }
        told.await.unwrap_or_else(|_| stopping())
    }
}

/// The task that reloads.
pub(super) struct Reload {
    rooms: Arc<Rooms>,
    read: Arc<Read>,
    told: Box<Told>,
    asked: mpsc::Receiver<oneshot::Sender<Outcome>>,
}

impl Reload {
    pub(super) fn new(rooms: Arc<Rooms>, read: Arc<Read>, told: Box<Told>) -> (Reloader, Self) {
        let (sender, asked) = mpsc::channel(WAITING);
        (Reloader { asked: sender }, Self { rooms, read, told, asked })
    }

    /// Reloads whenever somebody asks. Ends when `stop` fires, or when nobody can ask any more.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        while let Some(Some(first)) = stop.run_until_cancelled(self.asked.recv()).await {
            let mut waiting = vec![first];
            while let Ok(another) = self.asked.try_recv() {
                waiting.push(another);
            }
            let Some(outcome) = stop.run_until_cancelled(self.reload(&stop)).await else { return };
            tell(&outcome);
            (self.told)(&outcome);
            for who in waiting {
                // It may have left.
                let _ = who.send(outcome.clone());
            }
        }
    }

    async fn reload(&self, stop: &CancellationToken) -> Outcome {
        let (rooms, read, stop) = (Arc::clone(&self.rooms), Arc::clone(&self.read), stop.clone());
        let work = move || match read(&stop) {
            Ok(config) => apply(&rooms, config),
            Err(report) => Outcome::Refused(report),
        };
        spawn_blocking(work).await.unwrap_or_else(|bug| {
            Outcome::Failed(format!("reading it broke off, which is a bug in Weir: {bug}"))
        })
    }
}

/// Puts a configuration that was checked in the place of the one that holds. Until the last moment nothing of that is
/// touched.
fn apply(rooms: &Rooms, next: Config) -> Outcome {
    let before = rooms.config();
    let (next, after_restart) = match changes::applicable(&before, next, rooms.sole.is_some()) {
        Ok(applicable) => applicable,
        Err(why) => return Outcome::Failed(why),
    };
    let running = rooms.gateway.upstreams();
    let mut changes = Changes::between(&before, &next);
    let budget = rooms.door.now().budget().clone();
    let upstreams = next.upstreams.iter().map(|upstream| {
        let settings =
            settings::upstream(upstream, rooms.sole.as_ref(), next.state.catalog_folder());
        let was = running.iter().find(|was| *was.name() == settings.name);
        match was {
            Some(was) if was.runs_on(&settings) => was.clone(),
            was => {
                changes.opened(&upstream.name, was.is_some());
                let (dial, stop) = (Arc::clone(&rooms.dial), &rooms.stop_upstreams);
                Upstream::start_after(was, settings, dial, &budget, &rooms.upstreams, stop)
            }
        }
    });
    let upstreams = upstreams.collect();
    let changes = changes.told();
    if changes.is_empty() && after_restart.is_empty() {
        return Outcome::Unchanged;
    }
    let parts = rooms.gateway.rules(|policy, catalog, sentries| Parts {
        policy: policy.then(settings::policy(&next)),
        catalog: catalog.then(settings::catalog(&next)),
        sentries: settings::sentries_after(&next, sentries),
        upstreams,
    });
    let generation = rooms.gateway.prepare(parts);
    let door = settings::downstream(&next);
    // Requests before streams: who hears of a change and asks must not find what was before it.
    rooms.door.replace(Arc::clone(&generation), door);
    rooms.gateway.replace(generation, next.server.shutdown_grace);
    rooms.door.retire_unwelcome();
    rooms.keep_keys();
    for Warning { key, what, remedy, .. } in &next.warnings {
        warn!(key, what, remedy, "the configuration probably does not say what is meant");
    }
    rooms.hold(next);
    Outcome::Applied { changes, after_restart }
}

/// Tells the operator.
fn tell(outcome: &Outcome) {
    match outcome {
        Outcome::Applied { changes, after_restart } => {
            let changes = changes.join("; ");
            info!(changes, "the configuration was reloaded");
            for key in after_restart {
                warn!(key, "this takes effect after a restart");
            }
        }
        Outcome::Unchanged => info!("the configuration was read again, and says the same"),
        Outcome::Refused(report) => {
            let problems = report.problems().iter().filter(|it| it.severity == Severity::Error);
            for problem in problems.take(MAX_TOLD) {
                let (at, key) = (problem.place(), &problem.key);
                let (what, remedy) = (&problem.what, &problem.remedy);
                error!(at, key, what, remedy, "the configuration is refused, the former one holds");
            }
        }
        Outcome::Failed(why) => error!(why, "the configuration is refused, the former one holds"),
    }
}

/// How many may wait for the reload behind the one that is under way; more wait before they can ask.
const WAITING: usize = 64;
/// How many mistakes of a configuration are logged; `weir check` shows all.
const MAX_TOLD: usize = 20;
