//! The signals that mean stop, and what stopping is.
//!
//! The first lets what is under way end within the grace time. A second one, or the end of that time, cuts
//! it: what is left ends with an error, and upstreams get no more patience.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::failure::Failure;
use crate::app::App;

/// The signals that mean stop.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(super) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::Unreachable(format!("no signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Closes the house. Whoever tells again does not wait for upstreams that end slowly: they are
    /// killed as the program ends, where otherwise it would be killed itself and leave them behind.
    pub(super) async fn close(&mut self, app: App) {
        tokio::select! {
            () = app.close() => {}
            _ = self.next() => warn!("stopped without waiting for the upstreams: told again"),
        }
    }

    /// Takes no more requests and waits until `work` has ended, but no longer than `grace` or until told
    /// again.
    pub(super) async fn drain(
        &mut self,
        app: &App,
        grace: Duration,
        work: impl Future<Output = ()>,
    ) {
        info!(?grace, "stopping: what is under way may end");
        app.stop_doors();
        tokio::select! {
            drained = tokio::time::timeout(grace, work) => if drained.is_err() {
                warn!("stopped with requests under way: the grace time is over");
            },
            _ = self.next() => warn!("stopped with requests under way: told twice"),
        }
    }

    /// Does something that is given up as soon as a signal says stop.
    pub(super) async fn end<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done,
            number = self.next() => Err(Failure::Stopped(number)),
        }
    }

    /// Waits for the next one, and returns its number.
    pub(super) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
        }
    }
}
