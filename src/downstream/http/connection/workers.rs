//! The threads on which connections are served: each connection on one of them, from its first byte to its last.
//!
//! A runtime of several threads hands what is to be done to whichever is free. Here a request finds what the one before
//! it used in the caches of its processor, and what it waits for wakes no other thread: its connections to upstreams are
//! of the same runtime (`upstream::pool`).
//!
//! Knows nothing of: what is said on a connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// So many threads, each with a runtime of its own. Of none, connections are served by the runtime that accepts them.
#[derive(Debug, Default)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    /// `None` once it is being dropped.
    runtime: Option<Runtime>,
    connections: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts so many. When they are dropped their tasks are, which is waited for, but not for long.
    pub fn start(count: usize) -> io::Result<Self> {
        let start = |_| {
            // One that has a scheduler for several threads: it is told of what comes from elsewhere without a call of the
            // kernel for each, unless it sleeps.
            let mut runtime = Builder::new_multi_thread();
            runtime.worker_threads(1).thread_name("worker").enable_all();
            Ok(Worker { runtime: Some(runtime.build()?), connections: Arc::default() })
        };
        (0..count).map(start).collect::<io::Result<_>>().map(Self)
    }

    /// How many tasks there are on all of them.
    pub fn tasks(&self) -> usize {
        let runtimes = self.0.iter().filter_map(|worker| worker.runtime.as_ref());
        runtimes.map(|runtime| runtime.metrics().num_alive_tasks()).sum()
    }

    /// A place for a connection, on the one that serves the fewest.
    pub(crate) fn place(&self) -> Place {
        let fewest = self.0.iter().min_by_key(|it| it.connections.load(Ordering::Relaxed));
        match fewest.and_then(|worker| Some((worker.runtime.as_ref()?, &worker.connections))) {
            Some((runtime, connections)) => Place::taken(runtime.handle(), connections),
            None => Place::taken(&Handle::current(), &Arc::default()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // On a thread of its own: here may be a runtime, where nothing may be waited for. What a task keeps, as children
        // are, has to be let go of before the program ends.
        let ending = thread::Builder::new().spawn(move || runtime.shutdown_timeout(LAST_TASKS));
        let _ = ending.map(|thread| thread.join());
    }
}

/// One connection among those of its worker, until it is dropped.
pub(crate) struct Place {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
}

impl Place {
    fn taken(runtime: &Handle, connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self { runtime: runtime.clone(), connections: Arc::clone(connections) }
    }

    /// Where the connection is to be served.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long the tasks that a runtime leaves may take to be dropped.
pub const LAST_TASKS: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use crate::downstream::http::connection::workers::*;

    #[test]
    fn connections_are_spread_evenly_and_who_leaves_makes_room() {
        let workers = Workers::start(2).expect("two threads");
        let places = [workers.place(), workers.place(), workers.place(), workers.place()];
        let homes = places.each_ref().map(|place| place.runtime().id());
        assert_ne!(homes[0], homes[1]);
        assert_eq!(homes, [homes[0], homes[1], homes[0], homes[1]]);
        let [first, second, third, fourth] = places;
        drop((second, fourth));
        assert_eq!([workers.place().runtime().id(), workers.place().runtime().id()], [homes[1]; 2]);
        drop((first, third));
    }

    #[tokio::test]
    async fn without_workers_the_place_is_here_and_with_them_they_end_even_here() {
        assert_eq!(Workers::default().place().runtime().id(), Handle::current().id());
        let workers = Workers::start(1).expect("a thread");
        let place = workers.place();
        let task = place.runtime().spawn(std::future::pending::<()>());
        assert_eq!(workers.tasks(), 1);
        drop(workers);
        assert!(task.await.expect_err("it cannot have ended").is_cancelled());
    }
}
