//! The signals that mean stop, and what stopping is.
//!
//! SIGTERM, SIGINT and SIGQUIT mean stop. Signals that would end a program unless it handles them, and that tools send to
//! services for other reasons (SIGUSR1 by log rotation), change nothing.
//!
//! The first lets what is under way end within the grace time. A second one, or the end of that time, cuts
//! it: what is left ends with an error. After a second one upstreams get no more patience.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::app::App;
use crate::cli::exit::Failure;

/// The signals that mean stop.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    /// Stopping was told twice.
    is_urgent: bool,
    /// One that came while something was finished first; it counts as coming next.
    came: Option<u8>,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self, Failure> {
        for kind in without_effect() {
            // The handler stays installed when the listener is dropped.
            let _ = listen(kind)?;
        }
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            is_urgent: false,
            came: None,
        })
    }

    /// Closes the house. Whoever tells again does not wait for upstreams that end slowly: they are
    /// killed as the program ends, where otherwise it would be killed itself and leave them behind.
    pub(crate) async fn close(&mut self, app: App) {
        let is_urgent = self.is_urgent;
        let patience = async {
            match is_urgent {
                true => tokio::time::sleep(LAST_WORDS).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = app.close() => {}
            () = patience => {}
            _ = self.next() => warn!("stopped without waiting for the upstreams: told again"),
        }
    }

    /// Tells that the house is about to close, and goes on for so long: a load balancer takes a moment to hear of it.
    /// Whoever tells again does not wait.
    pub(crate) async fn leave(&mut self, app: &App, delay: Option<Duration>) {
        app.leave();
        if let Some(delay) = delay {
            info!(?delay, "about to stop: still taking requests");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = self.next() => self.is_urgent = true,
            }
        }
    }

    /// Takes no more requests and waits until `work` has ended, but no longer than `grace` or until told
    /// again.
    pub(crate) async fn drain(
        &mut self,
        app: &App,
        grace: Duration,
        work: impl Future<Output = ()>,
    ) {
        info!(?grace, "stopping: what is under way may end");
        app.stop_doors();
        if self.is_urgent {
            return;
        }
        tokio::select! {
            drained = tokio::time::timeout(grace, work) => if drained.is_err() {
                warn!("stopped with requests under way: the grace time is over");
            },
            _ = self.next() => {
                self.is_urgent = true;
                warn!("stopped with requests under way: told twice");
            }
        }
    }

    /// Does something that is given up as soon as a signal says stop.
    pub(crate) async fn end<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done,
            number = self.next() => Err(Failure::Stopped(number)),
        }
    }

    /// Does something that may block, on a thread of its own; given up soon after a signal says stop. What is finished until
    /// then is not thrown away: it may have started processes, which have to be ended in order.
    pub(crate) async fn end_blocking<T: Send + 'static>(
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
        let done = tokio::time::timeout(FINISHED_SOON, done).await;
        let done = done.map_err(|_| Failure::Stopped(number))??;
        self.came = Some(number);
        Ok(done)
    }

    /// Waits for the next one, and returns its number.
    pub(crate) async fn next(&mut self) -> u8 {
        if let Some(number) = self.came.take() {
            return number;
        }
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
            _ = self.quit.recv() => 3,
        }
    }
}

/// How long something that blocks is waited for once a signal has said stop.
const FINISHED_SOON: Duration = Duration::from_secs(1);

/// The signals that change nothing. A log file that was moved away is opened anew without one; a file that has reached
/// the limit of its size (SIGXFSZ) is a failed write. Handled, not ignored: children start with the usual actions.
fn without_effect() -> [SignalKind; 6] {
    let (user1, user2) = (SignalKind::user_defined1(), SignalKind::user_defined2());
    let raw = |signal: Number| SignalKind::from_raw(signal.as_raw());
    [user1, user2, SignalKind::alarm(), raw(Number::VTALARM), raw(Number::PROF), raw(Number::XFSZ)]
}

/// Listens to one signal from now on.
pub(crate) fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::Unreachable(format!("no signals: {error}")))
}

/// How long the last errors may take to their clients once stopping was told twice.
const LAST_WORDS: Duration = Duration::from_millis(500);
