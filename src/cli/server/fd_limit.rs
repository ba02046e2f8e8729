//! Limit of file descriptors (`RLIMIT_NOFILE`), and the number of connections that it allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns how many of the wanted connections the descriptors allow. A client connection may need
/// an upstream connection, so clients get at most half of the descriptors. The soft limit is
/// raised as far as necessary and as the hard limit allows, but not further: child processes
/// inherit it, and some close every descriptor up to the limit.
pub(crate) fn limit_connections(connections: usize) -> usize {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(2);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // If the system refuses, the old limit stays in effect.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    connections.min(usize::try_from(allowed).unwrap_or(usize::MAX)).max(1)
}
