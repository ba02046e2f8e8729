//! Triggers of a configuration reload: changed files, SIGHUP, and the admin listener.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::OptionFuture;
use rustix::process::{Signal as Number, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::admin::reload::{Actions, LastReload, ReloadProblem, ReloadReport, RestartQuery};
use crate::app::{
    App, ConfigFiles, ReloadOutcome, ReloadTrigger, Reloader, UpstreamRestart, hash_files,
};
use crate::cli::exit::{Failure, describe_problem, errors};
use crate::cli::loading::options;
use crate::cli::server::log;
use crate::cli::server::signals::listen_for;
use crate::cli::server::systemd;
use weir_config::{Config, ConfigReport, Options};
use weir_record::audit::Audit;

/// Stream of SIGHUP signals. Without a handler, SIGHUP would end the process.
pub(crate) struct SighupStream {
    signal: Signal,
    has_terminal: bool,
}

impl SighupStream {
    /// Installs the handler.
    pub(crate) fn new() -> Result<Self, Failure> {
        let signal = listen_for(SignalKind::hangup())?;
        Ok(Self { signal, has_terminal: std::io::stderr().is_terminal() })
    }

    /// Reloads on each signal. If the signal means that the terminal of the process was closed,
    /// the process stops instead.
    async fn reload_on_signal(mut self, reloader: Option<Reloader>, audit: Audit) {
        while self.signal.recv().await.is_some() {
            if self.has_terminal && !std::io::stderr().is_terminal() {
                audit.set_stop_reason("SIGHUP");
                if let Err(error) = kill_process(getpid(), Number::TERM) {
                    error!(%error, "terminal closed, stop signal not sent");
                }
                return;
            }
            match &reloader {
                Some(reloader) => _ = reloader.reload_because_of(ReloadTrigger::Signal).await,
                None => warn!("{NO_FILE}"),
            }
        }
    }
}

/// Function that returns the configuration that was read, or the one in its place if it cannot be
/// used.
pub(crate) type StandIn =
    Box<dyn Fn(Result<Config, ConfigReport>, &Path, &Options) -> Config + Send + Sync>;

/// Starts the triggers: changes of the configuration's files, if there are any, and SIGHUP. While a
/// configuration stands in for a file with mistakes, another mistake changes what it tells.
pub(crate) fn start(
    app: &App,
    files: Option<(PathBuf, ConfigFiles)>,
    allow_anonymous_network: bool,
    sighups: SighupStream,
    reloads: Arc<LastReload>,
    stand_in: Option<StandIn>,
) -> Option<Reloader> {
    let reloader = files.map(|(path, files)| {
        let is_stand_in = Arc::new(AtomicBool::new(app.config().is_stand_in()));
        let was_stand_in = Arc::clone(&is_stand_in);
        let (hashed, hashes) = (path.clone(), files.hashes());
        let hash = move || hash_files(&hashed, &options(allow_anonymous_network));
        let read = move |stop: &CancellationToken| {
            systemd::notify_reloading();
            let (now, stop) = (Some(SystemTime::now()), stop.clone());
            let options = Options { now, stop, ..options(allow_anonymous_network) };
            let read = Config::load(&path, &options);
            match &stand_in {
                // The client is to hear of the mistake that is left.
                Some(stand_in) if was_stand_in.load(Ordering::Relaxed) => {
                    Ok(stand_in(read, &path, &options))
                }
                _ => read,
            }
        };
        let reloader = app.reloader_of_files(read, (hashes, hash), move |outcome, config| {
            systemd::notify_reloaded();
            is_stand_in.store(config.is_stand_in(), Ordering::Relaxed);
            if matches!(outcome, ReloadOutcome::Applied { .. }) {
                log::set_level(config.log.level);
            }
            match outcome {
                ReloadOutcome::Applied { .. } | ReloadOutcome::Unchanged => {
                    record_active(config, &reloads);
                }
                ReloadOutcome::Failed(why) => reloads.record_refusal(why.clone()),
                ReloadOutcome::Refused(report) => {
                    let first = errors(report).next().map(describe_problem);
                    reloads.record_refusal(first.unwrap_or_default());
                }
            }
        });
        app.watch_files(files, &reloader);
        reloader
    });
    app.spawn_background(sighups.reload_on_signal(reloader.clone(), app.audit().clone()));
    reloader
}

/// Records which configuration is active: that of the file, or one in its place; and the upstreams
/// that it disables.
pub(crate) fn record_active(config: &Config, reloads: &LastReload) {
    reloads.record_disabled(config.disabled_upstreams());
    match config.notice() {
        Some(why) => {
            error!(why, "the configuration is refused, the client gets the reason");
            reloads.record_refusal(why.to_owned());
        }
        None => reloads.record_success(),
    }
}

/// Actions of operators, through the admin listener or socket; `reloads` has the outcome of the
/// last reload.
pub(crate) fn actions(reloader: Option<Reloader>, reloads: Arc<LastReload>) -> Actions {
    let restarter = reloader.clone();
    Actions {
        reload: Arc::new(move || {
            let (reloader, reloads) = (reloader.clone(), Arc::clone(&reloads));
            let reload = async move |reloader: Reloader| reloader.reload().await;
            async move {
                let report = report(OptionFuture::from(reloader.map(reload)).await);
                // Applied is also a configuration in the place of a file with mistakes.
                match (&report, reloads.refused()) {
                    (ReloadReport::Applied { .. } | ReloadReport::Unchanged, Some(refused)) => {
                        ReloadReport::Refused { why: refused.why, problems: Vec::new() }
                    }
                    _ => report,
                }
            }
            .boxed()
        }),
        restart: Arc::new(move |RestartQuery { upstream, grace }| {
            let restart = UpstreamRestart { upstream, grace: Duration::from_secs(grace) };
            let restarter = restarter.clone();
            let restart = async move |reloader: Reloader| reloader.restart(restart).await;
            async move { report(OptionFuture::from(restarter.map(restart)).await) }.boxed()
        }),
    }
}

/// Returns the report about an outcome; `None` stands for a configuration without a file.
fn report(outcome: Option<ReloadOutcome>) -> ReloadReport {
    let why = match outcome {
        None => NO_FILE.to_owned(),
        Some(ReloadOutcome::Applied { changes, after_restart }) => {
            let after_restart = after_restart.into_iter().map(str::to_owned).collect();
            return ReloadReport::Applied { changes, after_restart };
        }
        Some(ReloadOutcome::Unchanged) => return ReloadReport::Unchanged,
        Some(ReloadOutcome::Refused(report)) => return refusal(&report),
        Some(ReloadOutcome::Failed(why)) => why,
    };
    ReloadReport::Refused { why, problems: Vec::new() }
}

/// Reason why a configuration without a file cannot be reloaded.
const NO_FILE: &str = "there is no configuration file to reload";

/// Rejected configuration, as the result of a reload.
fn refusal(report: &ConfigReport) -> ReloadReport {
    let problem = |it: &weir_config::ConfigProblem| ReloadProblem {
        at: it.location(),
        key: it.key.clone(),
        what: it.what.clone(),
        remedy: it.remedy.clone(),
    };
    let problems = report.problems().iter().map(problem).collect();
    ReloadReport::Refused { why: report.render(false), problems }
}
