//! What has a running Weir read its configuration again: its files, SIGHUP, and its operator.
//!
//! Knows nothing of: what a reload does.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use rustix::process::{Signal as Number, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::admin::reload::{Problem, Reload, Reloaded, Reloads};
use crate::app::{App, Files, Outcome, Reloader};
use crate::cli::exit::Failure;
use crate::cli::query::oneshot::options;
use crate::cli::server::systemd;
use crate::config::{Config, Options, Report, Severity};

/// SIGHUP, which ends a program that does not listen.
pub(crate) struct Hangups {
    signal: Signal,
    has_terminal: bool,
}

impl Hangups {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self, Failure> {
        let signal = signal(SignalKind::hangup())
            .map_err(|error| Failure::Unreachable(format!("no signals: {error}")))?;
        Ok(Self { signal, has_terminal: std::io::stderr().is_terminal() })
    }

    /// Reloads at each one, but for the one that tells of the end of Weir's own terminal, which is its end, too.
    async fn follow(mut self, reloader: Option<Reloader>) {
        while self.signal.recv().await.is_some() {
            if self.has_terminal && !std::io::stderr().is_terminal() {
                if let Err(error) = kill_process(getpid(), Number::TERM) {
                    error!(%error, "the terminal is gone, and Weir cannot stop");
                }
                return;
            }
            match &reloader {
                Some(reloader) => _ = reloader.reload().await,
                None => warn!("there is no file that could be read again"),
            }
        }
    }
}

/// Has the configuration follow its files, where it has any, and signals, where they mean that.
pub(crate) fn follow(
    app: &App,
    files: Option<(PathBuf, Files)>,
    allow_anonymous_network: bool,
    hangups: Hangups,
    reloads: Arc<Reloads>,
) -> Option<Reloader> {
    let reloader = files.map(|(path, files)| {
        let read = move |stop: &CancellationToken| {
            systemd::reloading();
            let (now, stop) = (Some(SystemTime::now()), stop.clone());
            Config::load(&path, &Options { now, stop, ..options(allow_anonymous_network) })
        };
        let reloader = app.reloader(read, move |outcome| {
            systemd::reloaded();
            match outcome {
                Outcome::Applied { .. } | Outcome::Unchanged => reloads.went_well(),
                Outcome::Failed(why) => reloads.went_wrong(why.clone()),
                Outcome::Refused(report) => reloads.went_wrong(first_of(report)),
            }
        });
        app.follow(files, &reloader);
        reloader
    });
    app.spawn_beside(hangups.follow(reloader.clone()));
    reloader
}

/// What an operator asks for a reload with.
pub(crate) fn asked(reloader: Option<Reloader>) -> Reload {
    Arc::new(move || {
        let reloader = reloader.clone();
        async move {
            let why = match reloader {
                None => "there is no file that could be read again".to_owned(),
                Some(reloader) => match reloader.reload().await {
                    Outcome::Applied { changes, after_restart } => {
                        let after_restart = after_restart.into_iter().map(str::to_owned).collect();
                        return Reloaded::Applied { changes, after_restart };
                    }
                    Outcome::Unchanged => return Reloaded::Unchanged,
                    Outcome::Refused(report) => return refused(&report),
                    Outcome::Failed(why) => why,
                },
            };
            Reloaded::Refused { why, problems: Vec::new() }
        }
        .boxed()
    })
}

/// The first mistake of a report on one line.
fn first_of(report: &Report) -> String {
    let mistakes = report.problems().iter().filter(|it| it.severity == Severity::Error);
    let told = mistakes.map(|it| match (it.place(), &*it.key) {
        (place, "") => format!("{place}: {}", it.what),
        (place, key) => format!("{place}: {key}: {}", it.what),
    });
    told.take(1).collect()
}

/// A configuration that is not good, for an operator.
pub(crate) fn refused(report: &Report) -> Reloaded {
    let problem = |it: &crate::config::Problem| Problem {
        at: it.place(),
        key: it.key.clone(),
        what: it.what.clone(),
        remedy: it.remedy.clone(),
    };
    let problems = report.problems().iter().map(problem).collect();
    Reloaded::Refused { why: report.draw(false), problems }
}
