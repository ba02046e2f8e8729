//! File descriptors: how many there are, and for how many connections they are enough.
//!
//! Knows nothing of: what they are used for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For how many of so many connections there is room. A connection leads to an upstream's, so at most half of the
/// descriptors are for clients; the soft limit is raised to what that takes, as far as the hard one allows, and not
/// further: children inherit it, and some close all they could have.
pub(crate) fn room_for(connections: usize) -> usize {
    let wanted = u64::try_from(connections).unwrap_or(u64::MAX).saturating_mul(2);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // What is refused stays as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    connections.min(usize::try_from(allowed).unwrap_or(usize::MAX)).max(1)
}
