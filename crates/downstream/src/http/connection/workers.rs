//! Worker threads: each connection is served on one of them, from its first byte to its last.
//!
//! A multi-threaded runtime moves tasks to whichever thread is free. Here a request finds the data
//! of the previous one in its processor's caches, and waking it involves no other thread: its
//! connections to upstreams belong to the same runtime (`upstream::transport`).

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use weir_base::metrics::{Gauge, GaugeGuard};

/// Worker threads, each with a runtime of its own. Without any, connections are served by the
/// runtime that accepts them.
#[derive(Debug, Default)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    /// `None` during drop.
    runtime: Option<Runtime>,
    connections: Arc<Gauge>,
}

impl Workers {
    /// Starts `count` workers. Dropping them drops their tasks and waits for that for a bounded
    /// time.
    pub fn start(count: usize) -> io::Result<Self> {
        let start = |_| {
            // The multi-threaded scheduler with one thread: unlike the current-thread one it needs
            // no system call for each wake-up from another thread, unless it sleeps.
            let mut runtime = Builder::new_multi_thread();
            runtime.worker_threads(1).thread_name("worker").enable_all();
            Ok(Worker { runtime: Some(runtime.build()?), connections: Arc::default() })
        };
        (0..count).map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Number of tasks on all workers.
    pub fn tasks(&self) -> usize {
        let runtimes = self.0.iter().filter_map(|worker| worker.runtime.as_ref());
        runtimes.map(|runtime| runtime.metrics().num_alive_tasks()).sum()
    }

    /// Assigns a connection to the worker with the fewest connections.
    pub(crate) fn assign(&self) -> WorkerSlot {
        let fewest = self.0.iter().min_by_key(|it| it.connections.read());
        match fewest.and_then(|worker| Some((worker.runtime.as_ref()?, &worker.connections))) {
            Some((runtime, connections)) => WorkerSlot::new(runtime.handle(), connections),
            None => WorkerSlot::new(&Handle::current(), &Arc::default()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // Runs on a thread of its own: the current thread may belong to a runtime, where blocking
        // is not allowed. Values owned by tasks, such as child processes, have to be dropped before
        // the program ends.
        let ending = thread::Builder::new().spawn(move || runtime.shutdown_timeout(LAST_TASKS));
        let _ = ending.map(|thread| thread.join());
    }
}

/// One connection in the count of its worker, until it is dropped.
pub(crate) struct WorkerSlot {
    runtime: Handle,
    _counted: GaugeGuard,
}

impl WorkerSlot {
    fn new(runtime: &Handle, connections: &Arc<Gauge>) -> Self {
        Self { runtime: runtime.clone(), _counted: Gauge::enter(connections) }
    }

    /// Runtime that serves the connection.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

/// Time limit for dropping the remaining tasks of a runtime.
pub const LAST_TASKS: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use crate::http::connection::workers::*;

    #[test]
    fn connections_are_spread_evenly_and_who_leaves_makes_room() {
        let workers = Workers::start(2).expect("two threads");
        let places = [workers.assign(), workers.assign(), workers.assign(), workers.assign()];
        let homes = places.each_ref().map(|place| place.runtime().id());
        assert_ne!(homes[0], homes[1]);
        assert_eq!(homes, [homes[0], homes[1], homes[0], homes[1]]);
        let [first, second, third, fourth] = places;
        drop((second, fourth));
        assert_eq!(
            [workers.assign().runtime().id(), workers.assign().runtime().id()],
            [homes[1]; 2]
        );
        drop((first, third));
    }

    #[tokio::test]
    async fn without_workers_the_place_is_here_and_with_them_they_end_even_here() {
        assert_eq!(Workers::default().assign().runtime().id(), Handle::current().id());
        let workers = Workers::start(1).expect("a thread");
        let place = workers.assign();
        let task = place.runtime().spawn(std::future::pending::<()>());
        assert_eq!(workers.tasks(), 1);
        drop(workers);
        assert!(task.await.expect_err("it cannot have ended").is_cancelled());
    }
}
