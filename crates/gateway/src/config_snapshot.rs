//! Configuration snapshot: everything that one configuration decides. A reload replaces it as a
//! whole, and a request is processed under the snapshot that it was authenticated under.
//!
//! Invariants: lists that were read under the previous configuration are published under the next
//! one from the beginning, as far as its rules allow and the server is the same, so no list becomes
//! empty by a reload. An upstream that is in both configurations is not restarted.
//!
//! Decision: docs/decisions/0019-reload.md

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Inspectors, RoleMetrics};
use crate::last_lists::LastLists;
use weir_access::catalog::Catalog;
use weir_access::policy::{Credentials, Policy};
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::Era;
use weir_upstream::{ConnectionStatus, Sharing, Upstream, UpstreamSource};

/// Immutable state of the gateway for one configuration.
pub struct ConfigSnapshot {
    /// Sequence number of the configuration.
    pub(super) number: u64,
    pub(super) policy: Policy,
    pub(super) catalog: Arc<Catalog>,
    pub(super) inspectors: Arc<Inspectors>,
    pub(super) entries: BTreeMap<UpstreamName, UpstreamEntry>,
    /// Time after the start during which lists wait for upstreams of which none is known.
    pub(super) list_wait: Duration,
    /// Whether an upstream has a connection for each client.
    pub(super) has_own_connections: bool,
    /// Requests and refusals by role.
    pub(super) role_metrics: RoleMetrics,
}

/// Components of a snapshot.
pub struct SnapshotParts {
    /// Authentication and access rules.
    pub policy: Policy,
    /// The catalog, without lists.
    pub catalog: Catalog,
    /// One for each export of the catalog. Unchanged upstreams are the same as before.
    pub upstreams: Vec<Upstream>,
    /// Content checks.
    pub inspectors: Inspectors,
    /// Time after the start during which lists wait for upstreams of which none is known.
    pub list_wait: Duration,
}

/// An upstream with its last lists.
pub(super) struct UpstreamEntry {
    pub(super) upstream: Upstream,
    pub(super) last_lists: Arc<LastLists>,
}

impl ConfigSnapshot {
    /// Creates a snapshot after `before`, if there is one, and publishes the known lists of its
    /// upstreams.
    pub(super) fn new(parts: SnapshotParts, before: Option<&Self>) -> Self {
        let SnapshotParts { policy, catalog, upstreams, inspectors, list_wait } = parts;
        let (catalog, inspectors) = (Arc::new(catalog), Arc::new(inspectors));
        let entry = |upstream: Upstream| {
            let name = upstream.name().clone();
            let previous = before.and_then(|before| before.entries.get(&name));
            let last_lists = match previous {
                Some(previous) if previous.upstream.is_same(&upstream) => {
                    Arc::clone(&previous.last_lists)
                }
                // Until the new upstream has been listed, the lists of the old one are used. The
                // account may differ: a renewed token must not empty a list.
                Some(previous) if is_same_server(&previous.upstream, &upstream) => {
                    Arc::new(LastLists::clone(&previous.last_lists))
                }
                // The lists of another server with this name are not used.
                Some(_) | None => Arc::default(),
            };
            last_lists.republish(&name, &catalog, &inspectors);
            (name, UpstreamEntry { upstream, last_lists })
        };
        let has_own_connections = upstreams.iter().any(has_own_connections);
        let entries = upstreams.into_iter().map(entry).collect();
        let number = before.map_or(0, |before| before.number) + 1;
        let counted = before.map(|before| &before.role_metrics);
        let role_metrics = RoleMetrics::new(policy.role_names(), counted);
        Self {
            number,
            policy,
            catalog,
            inspectors,
            entries,
            list_wait,
            has_own_connections,
            role_metrics,
        }
    }

    /// The user that refused credentials name, of which nothing was verified.
    pub fn claimed_user(&self, credentials: Credentials<'_>) -> Option<String> {
        self.policy.claimed_user(credentials)
    }

    /// Requests and refusals by role.
    pub fn role_metrics(&self) -> &RoleMetrics {
        &self.role_metrics
    }

    /// The time at which the next key of a client expires.
    pub fn next_key_expiry(&self, now: SystemTime) -> Option<SystemTime> {
        self.policy.next_key_expiry(now)
    }

    /// The upstream with this name, which owns an item of the catalog.
    pub(super) fn upstream(&self, name: &UpstreamName) -> &Upstream {
        &self.entries[name].upstream
    }

    /// The upstreams in the order of their names, so that work on all of them is deterministic.
    pub(super) fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.entries.values().map(|entry| &entry.upstream)
    }

    /// Whether this upstream is hidden from the lists because it has been down for too long.
    pub(super) fn is_hidden(&self, name: &UpstreamName) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.last_lists.lock().is_hidden)
    }

    /// Whether the snapshot has this upstream, and not another one with the same name.
    pub(super) fn has(&self, upstream: &Upstream) -> bool {
        self.entries.get(upstream.name()).is_some_and(|entry| entry.upstream.is_same(upstream))
    }
}

/// Whether two upstreams are the same server, whatever account is used: the same program in the
/// same folder, the same URL, or the same folder of prompts.
fn is_same_server(one: &Upstream, other: &Upstream) -> bool {
    match (one.settings().server(), other.settings().server()) {
        (UpstreamSource::Library { dir }, UpstreamSource::Library { dir: other }) => dir == other,
        (UpstreamSource::Process(one), UpstreamSource::Process(other)) => {
            (&one.program, &one.args, &one.cwd) == (&other.program, &other.args, &other.cwd)
        }
        (UpstreamSource::Http { url, .. }, UpstreamSource::Http { url: other, .. }) => url == other,
        _ => false,
    }
}

/// Whether each client has a connection of its own to the upstream.
pub(super) fn has_own_connections(upstream: &Upstream) -> bool {
    matches!(upstream.settings().sharing, Sharing::Client)
}

/// The era of an upstream; `None` while it is not connected.
pub(super) fn era_of(upstream: &Upstream) -> Option<Era> {
    match &*upstream.status().borrow() {
        ConnectionStatus::Up(about) => Some(about.era()),
        _ => None,
    }
}
