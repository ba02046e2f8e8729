//! What has a running Weir read its configuration again: its files, and SIGHUP.
//!
//! Knows nothing of: what a reload does.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::SystemTime;

use rustix::process::{Signal as Number, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, warn};

use super::failure::Failure;
use super::house::options;
use crate::app::{App, Files, Reloader};
use crate::config::{Config, Options};

/// SIGHUP, which ends a program that does not listen.
pub(super) struct Hangups {
    signal: Signal,
    has_terminal: bool,
}

impl Hangups {
    /// Listens from now on.
    pub(super) fn new() -> Result<Self, Failure> {
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
pub(super) fn follow(
    app: &App,
    files: Option<(PathBuf, Files)>,
    allow_anonymous_network: bool,
    hangups: Option<Hangups>,
) -> Option<Reloader> {
    let reloader = files.map(|(path, files)| {
        let reloader = app.reloader(move |stop| {
            let (now, stop) = (Some(SystemTime::now()), stop.clone());
            Config::load(&path, &Options { now, stop, ..options(allow_anonymous_network) })
        });
        app.follow(files, &reloader);
        reloader
    });
    if let Some(hangups) = hangups {
        app.spawn_beside(hangups.follow(reloader.clone()));
    }
    reloader
}
