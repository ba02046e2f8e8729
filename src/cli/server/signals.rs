//! Stop signals and graceful shutdown.
//!
//! SIGTERM, SIGINT and SIGQUIT stop the process, and SIGHUP stops a command. Signals that end a
//! process by default, and that tools send to services for other reasons (SIGUSR1 by log rotation),
//! are handled without effect.
//!
//! After the first stop signal, requests in flight may complete within the grace period. A second
//! signal, or the end of that period, ends them with an error. After a second signal the process
//! does not wait for upstreams that end slowly.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::app::App;
use crate::cli::exit::Failure;
use weir_base::files::regular_file;
use weir_oauth::{Exchange, RESPONSE_TIMEOUT, timeout_awake};
use weir_record::audit::Audit;

/// Receiver of the stop signals.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    /// The end of the terminal, which stops a command, but not a service.
    hangup: Option<Signal>,
    /// A second stop signal has arrived.
    is_urgent: bool,
    /// Signal that arrived during blocking work; [`Self::next`] returns it first.
    pending: Option<u8>,
    /// Audit log whose final entry has the first signal.
    audit: Audit,
}

impl Signals {
    /// Installs the handlers.
    pub(crate) fn new() -> Result<Self, Failure> {
        for kind in handled_without_effect() {
            // The handler stays installed after the stream is dropped.
            let _ = listen_for(kind)?;
        }
        Ok(Self {
            terminate: listen_for(SignalKind::terminate())?,
            interrupt: listen_for(SignalKind::interrupt())?,
            quit: listen_for(SignalKind::quit())?,
            hangup: None,
            is_urgent: false,
            pending: None,
            audit: Audit::off(),
        })
    }

    /// Has the audit log record the first signal as the reason of the stop.
    pub(crate) fn record_in(&mut self, audit: Audit) {
        self.audit = audit;
    }

    /// Installs the handlers of a command, which the end of its terminal stops as well.
    pub(crate) fn of_command() -> Result<Self, Failure> {
        let hangup = match ignores_hangup() {
            true => None,
            false => Some(listen_for(SignalKind::hangup())?),
        };
        Ok(Self { hangup, ..Self::new()? })
    }

    /// Closes the gateway. A second signal ends the wait for upstreams that end slowly: they are
    /// killed when the process exits. Otherwise the service manager might kill the process and
    /// leave them behind.
    pub(crate) async fn close_app(&mut self, app: App) {
        let patience = if self.is_urgent { URGENT_CLOSE_TIMEOUT } else { Duration::MAX };
        tokio::select! {
            _ = tokio::time::timeout(patience, app.close()) => {}
            _ = self.next() => warn!("stopped without waiting for the upstreams: second signal"),
        }
    }

    /// Reports the shutdown in the readiness probe, and serves for `delay` until load balancers
    /// have noticed it. A second signal ends the wait.
    pub(crate) async fn announce_shutdown(&mut self, app: &App, delay: Option<Duration>) {
        app.mark_draining();
        if let Some(delay) = delay {
            info!(?delay, "shutdown announced, still accepting requests");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = self.next() => self.is_urgent = true,
            }
        }
    }

    /// Stops accepting requests and waits until `work` has ended, but at most for `grace` or until
    /// a second signal.
    pub(crate) async fn drain(
        &mut self,
        app: &App,
        grace: Duration,
        work: impl Future<Output = ()>,
    ) {
        info!(?grace, "shutting down, requests in flight may complete");
        app.stop_downstream();
        if self.is_urgent {
            return;
        }
        tokio::select! {
            drained = tokio::time::timeout(grace, work) => if drained.is_err() {
                warn!("requests in flight aborted: the grace period is over");
            },
            _ = self.next() => {
                self.is_urgent = true;
                warn!("requests in flight aborted: second signal");
            }
        }
    }

    /// Runs `work`; a stop signal cancels it.
    pub(crate) async fn run_until_signal<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done,
            number = self.next() => Err(Failure::Stopped(number)),
        }
    }

    /// Runs `work`; a stop signal cancels it. If its exchange with an authorization server has
    /// begun by then, `work` may finish: its answer must not be lost.
    pub(crate) async fn run_until_signal_or_answer<T>(
        &mut self,
        exchange: &Exchange,
        announce: impl FnOnce(),
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut work = pin!(work);
        let number = tokio::select! {
            biased;
            done = &mut work => return done,
            number = self.next() => number,
        };
        if !exchange.has_begun() {
            return Err(Failure::Stopped(number));
        }
        announce();
        timeout_awake(RESPONSE_TIMEOUT, work).await.unwrap_or(Err(Failure::Stopped(number)))
    }

    /// Runs blocking `work` on another thread. After a stop signal it has [`BLOCKING_GRACE`] to
    /// finish; a result within that time is returned, because the work may have started child
    /// processes, which must be stopped in order.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let done = tokio::task::spawn_blocking(work);
        let mut done = pin!(async {
            done.await.unwrap_or_else(|broken| Err(Failure::Unreachable(broken.to_string())))
        });
        let number = tokio::select! {
            biased;
            done = &mut done => return done,
            number = self.next() => number,
        };
        let done = tokio::time::timeout(BLOCKING_GRACE, done).await;
        let done = done.map_err(|_| Failure::Stopped(number))??;
        self.pending = Some(number);
        Ok(done)
    }

    /// Waits for the next stop signal and returns its number.
    pub(crate) async fn next(&mut self) -> u8 {
        if let Some(number) = self.pending.take() {
            return number;
        }
        let Self { terminate, interrupt, quit, hangup, audit, .. } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let (number, name) = tokio::select! {
            _ = terminate.recv() => (15, "SIGTERM"),
            _ = interrupt.recv() => (2, "SIGINT"),
            _ = quit.recv() => (3, "SIGQUIT"),
            _ = hangup => (1, "SIGHUP"),
        };
        audit.set_stop_reason(name);
        number
    }
}

/// Returns whether this process was started to outlive its terminal, as by `nohup`. A handler would
/// replace that, so none is installed where the system does not say.
fn ignores_hangup() -> bool {
    let status = regular_file::read(Path::new("/proc/self/status"), MAX_STATUS_BYTES);
    let status = String::from_utf8(status.unwrap_or_default()).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 has the lowest bit.
    ignored.is_none_or(|mask| mask & 1 == 1)
}

/// Size limit of the status of a process, which has about a tenth of that.
const MAX_STATUS_BYTES: u64 = 16 * 1024;

/// Time that blocking work may take after a stop signal.
const BLOCKING_GRACE: Duration = Duration::from_secs(1);

/// Signals without effect. A rotated log file is reopened without a signal; a file that has
/// reached its size limit (SIGXFSZ) is a failed write. They are handled, not ignored, so that
/// child processes start with the default actions.
fn handled_without_effect() -> [SignalKind; 6] {
    let (user1, user2) = (SignalKind::user_defined1(), SignalKind::user_defined2());
    let raw = |signal: Number| SignalKind::from_raw(signal.as_raw());
    [user1, user2, SignalKind::alarm(), raw(Number::VTALARM), raw(Number::PROF), raw(Number::XFSZ)]
}

/// Installs the handler of one signal.
pub(crate) fn listen_for(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| {
        Failure::Unreachable(format!("signal handlers cannot be installed: {error}"))
    })
}

/// Time to send the last errors to clients after a second stop signal.
const URGENT_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
