//! Whether the machine lets the program have its threads: a limit of processes or of memory may be in the way.
//!
//! The runtime panics where it cannot start one. So they are tried before, all at a time, and what is in the way is told
//! in words.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, available_parallelism};

use crate::cli::exit::Failure;

/// How many are wanted beside those that do the work: what waits for the disk, starts children and listens to signals.
const BESIDE: usize = 10;

/// How many serve connections.
pub(crate) fn workers() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Tells why there are not as many as are needed.
pub(crate) fn not_started(error: io::Error) -> Failure {
    Failure::Unreachable(format!("the threads could not be started: {error}"))
}

/// Starts as many as are wanted, and lets them end again. Takes less than a millisecond.
pub(crate) fn try_all() -> Result<(), Failure> {
    // As many again are the house's own: its lists, children's pipes, operators.
    let wanted = 2 * workers() + BESIDE;
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
    let begin = |_| {
        let gate = Arc::clone(&gate);
        thread::Builder::new().spawn(move || drop(gate.read()))
    };
    let (mut begun, mut failed) = (Vec::new(), None);
    for thread in (0..wanted).map(begin) {
        match thread {
            Ok(thread) => begun.push(thread),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    drop(closed);
    let count = begun.len();
    for thread in begun {
        // It has nothing to panic about.
        let _ = thread.join();
    }
    match failed {
        None => Ok(()),
        Some(error) => Err(Failure::Unreachable(format!(
            "the threads could not be started, {count} of {wanted} only: {error}; allow more processes or memory \
             (ulimit -u, ulimit -v, or what limits them in a container)"
        ))),
    }
}
