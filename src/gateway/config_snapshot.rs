//! All that a configuration decides, in one piece: it is replaced whole, and a request is served under the one that
//! it entered under.
//!
//! Promises: what was listed under the one before is shown under the next from its first moment, as far as that lets
//! it out and it is the same server; no list is ever empty for want of asking that server. An upstream that is in both
//! is not touched.
//!
//! Knows nothing of: files, and what is different between two configurations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Gateway, Sentries};
use crate::catalog::Catalog;
use crate::gateway::lists::last_lists::Held;
use crate::gateway::lists::list_refresher::Refresh;
use crate::mcp::name::UpstreamName;
use crate::policy::Policy;
use crate::upstream::{Source, Upstream};

/// The house under one configuration.
pub struct Generation {
    /// Counts configurations.
    pub(super) number: u64,
    pub(super) policy: Policy,
    pub(super) catalog: Arc<Catalog>,
    pub(super) sentries: Arc<Sentries>,
    members: BTreeMap<UpstreamName, Member>,
}

/// What a configuration brings.
pub struct Parts {
    /// Who may enter, and use what.
    pub policy: Policy,
    /// Nothing has been listed in it.
    pub catalog: Catalog,
    /// One for each outlet of the catalog. Those that go on are the same as before.
    pub upstreams: Vec<Upstream>,
    /// Who looks at what passes.
    pub sentries: Sentries,
}

/// An upstream, and what was last listed of it.
struct Member {
    upstream: Upstream,
    held: Arc<Held>,
}

impl Generation {
    /// Puts a generation together, after `before` if there was one: what is known of its upstreams is published.
    pub(super) fn new(parts: Parts, before: Option<&Self>) -> Self {
        let Parts { policy, catalog, upstreams, sentries } = parts;
        let (catalog, sentries) = (Arc::new(catalog), Arc::new(sentries));
        let member = |upstream: Upstream| {
            let name = upstream.name().clone();
            let was = before.and_then(|before| before.members.get(&name));
            let held = match was {
                Some(was) if was.upstream.is(&upstream) => Arc::clone(&was.held),
                // Until it has been listed itself, what the one before it has listed stands for it. It need not be
                // the same account there: a token that is renewed must not empty a list.
                Some(was) if is_same_server(&was.upstream, &upstream) => {
                    Arc::new(Held::clone(&was.held))
                }
                // What another server of this name has listed is not its own.
                Some(_) | None => Arc::default(),
            };
            held.publish(&name, &catalog, &sentries);
            (name, Member { upstream, held })
        };
        let members = upstreams.into_iter().map(member).collect();
        let number = before.map_or(0, |before| before.number) + 1;
        Self { number, policy, catalog, sentries, members }
    }

    /// Who owns an item of the catalog.
    pub(super) fn upstream(&self, name: &UpstreamName) -> &Upstream {
        &self.members[name].upstream
    }

    /// The upstreams, in the order of their names: what is done for each happens in an order that can be told.
    pub(super) fn upstreams(&self) -> impl Iterator<Item = &Upstream> {
        self.members.values().map(|member| &member.upstream)
    }

    /// Whether this upstream is left out of the lists, since it has been away for too long.
    pub(super) fn is_hidden(&self, name: &UpstreamName) -> bool {
        self.members.get(name).is_some_and(|member| member.held.lock().is_hidden)
    }

    /// Whether this upstream, and not another one of its name, is one of them.
    pub(super) fn has(&self, upstream: &Upstream) -> bool {
        self.members.get(upstream.name()).is_some_and(|member| member.upstream.is(upstream))
    }
}

impl Gateway {
    /// What holds at this moment.
    pub fn now(&self) -> Arc<Generation> {
        Arc::clone(&self.current.borrow())
    }

    /// The policy that holds at this moment, and who looks at what passes, for whoever makes the next.
    pub fn rules<R>(&self, read: impl FnOnce(&Policy, &Catalog, &Sentries) -> R) -> R {
        let now = self.now();
        read(&now.policy, &now.catalog, &now.sentries)
    }

    /// Makes the next generation. Nobody meets it before [`Gateway::replace`].
    pub fn prepare(&self, parts: Parts) -> Arc<Generation> {
        Arc::new(Generation::new(parts, Some(&self.now())))
    }

    /// Puts a generation in the place of the one that holds: whoever enters from now on enters under it. Upstreams that
    /// are not in it any more are stopped when nobody has anything under way there, after `grace` at the latest.
    pub fn replace(&self, next: Arc<Generation>, grace: Duration) {
        let before = self.current.send_replace(Arc::clone(&next));
        for member in next.members.values().filter(|member| !before.has(&member.upstream)) {
            self.keep_fresh(&next, member);
        }
        before.policy.retire(&next.policy);
        for gone in before.upstreams().filter(|upstream| !next.has(upstream)) {
            self.tasks.spawn(stop_after(gone.stop(), grace));
        }
    }

    /// Starts the tasks of the first generation.
    pub(super) fn begin(&self) {
        let now = self.now();
        now.members.values().for_each(|member| self.keep_fresh(&now, member));
    }

    fn keep_fresh(&self, generation: &Generation, member: &Member) {
        let Member { upstream, held } = member;
        let settled = self.first_list.wait_for(upstream.name());
        let generations = self.current.subscribe();
        let held = Arc::clone(held);
        let refresh = Refresh::new(upstream.clone(), generation, generations, held, settled);
        self.tasks.spawn(refresh.run(self.stop.clone()));
    }
}

/// Whether two upstreams are one server, as whomever it is asked: the same program in the same folder, the same URL, or
/// the same folder of prompts.
fn is_same_server(one: &Upstream, other: &Upstream) -> bool {
    match (&one.settings().source, &other.settings().source) {
        (Source::Library { dir }, Source::Library { dir: other }) => dir == other,
        (Source::Process(one), Source::Process(other)) => {
            (&one.program, &one.args, &one.cwd) == (&other.program, &other.args, &other.cwd)
        }
        (Source::Http { url, .. }, Source::Http { url: other, .. }) => url == other,
        _ => false,
    }
}

/// Stops an upstream that has not stopped by itself in time.
async fn stop_after(stop: CancellationToken, grace: Duration) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = tokio::time::sleep(grace) => stop.cancel(),
    }
}
