//! Limit of file descriptors (`RLIMIT_NOFILE`): whether a command can start at all, and the number
//! of connections that it allows.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cli::exit::Failure;

/// Opens as many descriptors as a command needs, and closes them again: the runtime panics where it
/// cannot open its own. The soft limit is raised if it is lower than that.
pub(crate) fn check_available() -> Result<(), Failure> {
    raise_soft_limit(2 * NEEDED as u64);
    // Sockets, because a pair needs no file that could be missing.
    let pairs: io::Result<Vec<_>> = (0..NEEDED / 2).map(|_| UnixStream::pair()).collect();
    pairs.map(drop).map_err(|error| {
        Failure::Unreachable(format!(
            "{NEEDED} file descriptors could not be opened: {error}; allow more (ulimit -n, or \
             what limits them in a container)"
        ))
    })
}

/// Returns how many of the wanted connections the descriptors allow. A client connection may need
/// an upstream connection, so clients get at most half of the descriptors. The soft limit is
/// raised as far as necessary and as the hard limit allows, but not further: child processes
/// inherit it, and some close every descriptor up to the limit.
pub(crate) fn limit_connections(connections: usize) -> usize {
    raise_soft_limit(u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(2));
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    connections.min(usize::try_from(allowed).unwrap_or(usize::MAX)).max(1)
}

/// Raises the soft limit to the wanted number, or as far as the hard limit allows.
fn raise_soft_limit(wanted: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // If the system refuses, the old limit stays in effect.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}

/// Descriptors of the runtime, of signals, of the first files and of the first connections. A
/// gateway with two upstreams and an admin listener opens 21.
const NEEDED: usize = 20;
