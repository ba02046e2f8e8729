//! Check that the system allows as many threads as the process needs.
//!
//! The runtime panics if it cannot start a thread. Therefore all of them are started once before,
//! at the same time, and a limit of processes or of memory is reported as a failure.

use std::io;
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use crate::cli::exit::Failure;
use weir_base::tasks::sync::RwLock;

/// Threads beside the workers: for blocking I/O, child processes and signals.
const EXTRA_THREADS: usize = 10;

/// Number of worker threads that serve connections.
pub(crate) fn worker_count() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Failure for a thread that could not be started.
pub(crate) fn start_failure(error: io::Error) -> Failure {
    Failure::Unreachable(format!("the threads could not be started: {error}"))
}

/// Starts the wanted number of threads and lets them end again. Takes less than a millisecond.
pub(crate) fn check_available() -> Result<(), Failure> {
    // As many again run the gateway's own tasks: lists, pipes of child processes, admin requests.
    let wanted = 2 * worker_count() + EXTRA_THREADS;
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write();
    let begin = |_| {
        let gate = Arc::clone(&gate);
        thread::Builder::new().spawn(move || drop(gate.read()))
    };
    let (begun, failed): (Vec<_>, Vec<_>) = (0..wanted).map(begin).partition(Result::is_ok);
    drop(closed);
    let count = begun.len();
    for thread in begun.into_iter().flatten() {
        // The thread cannot panic.
        let _ = thread.join();
    }
    match failed.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(error) => Err(Failure::Unreachable(format!(
            "the threads could not be started, {count} of {wanted} only: {error}; allow more \
             processes or memory (ulimit -u, ulimit -v, or what limits them in a container)"
        ))),
    }
}
