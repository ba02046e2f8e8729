//! The request, in one screen: a client enters, its view resolves the name, the owner is called.
//!
//! The gateway introduces the rooms below it to each other: the catalog does not know the policy, and
//! neither knows upstreams. [`Gateway::enter`] is the only way to a [`Guest`], and a guest's own view is
//! the only way to an item, so no step can be forgotten on any revision or wire.
//!
//! Does not know transports, HTTP or JSON-RPC codes; of the eras it knows only what a reply may hold.

mod admission;
mod audit_hooks;
mod authentication;
pub mod client_notifications;
mod config_snapshot;
pub mod error;
mod lists;
mod metrics;
mod round_trips;
mod startup;
mod subscriptions;
mod suspended;
mod task_handles;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::Record;
use crate::catalog::{self, Catalog, Cursor, Filter, Target, View};
use crate::gateway::suspended::table::Parking;
use crate::guard::{self, Guard, Unfit};
use crate::mcp::call::{Ask, Call, Caller, Client, Method, Owner, Uncollected};
use crate::mcp::definition::downgrade::Form;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::Revision;
use crate::mcp::task::drop_related;
use crate::mcp::uri::CanonicalUri;
use crate::memory_budget::Unheld;
use crate::pins::{Change, Pins};
use crate::policy::limits::Permit;
use crate::policy::role::Role;
use crate::policy::tokens::Fetch;
use crate::policy::{Policy, Principal};
use crate::upstream::{self, Upstream};
pub(crate) use authentication::Standing;
use authentication::{Origin, Way};
pub use client_notifications::{Listen, News};
pub use config_snapshot::{Generation, Parts};
pub use error::Fault;
pub use metrics::{End, Hit, Meters, Reason, Timing};
pub use round_trips::Round;
use startup::FirstList;
pub use subscriptions::{MAX_SUBSCRIPTIONS, Subscribed, Subscriptions};
pub use suspended::{Asked, Went};
use task_handles::{Dressing, Handles};

/// How long a list may be kept where no upstream says less. Changes are told of anyway.
const LIST_TTL: Duration = Duration::from_secs(60);

/// The whole house behind the doors: who may enter, what they see, and who answers.
///
/// It lives as long as the process. What a configuration decides is a [`Generation`], which is replaced; what is here
/// outlives that.
pub struct Gateway {
    current: watch::Sender<Arc<Generation>>,
    first_list: FirstList,
    /// Calls that wait for clients without a conversation.
    parking: Parking<Asked>,
    handles: Arc<Handles>,
    tasks: TaskTracker,
    stop: CancellationToken,
    meters: Arc<Meters>,
}

/// Who looks at what passes: at definitions before they are published, at requests and at replies.
#[derive(Default)]
pub struct Sentries {
    /// What goes in and comes out.
    pub guard: Guard,
    /// Which definitions were approved.
    pub pins: Pins,
}

/// A client that was let in. Cheap to clone.
#[derive(Clone)]
pub struct Guest {
    gateway: Arc<Gateway>,
    /// What decides about its request, from the first to the last.
    generation: Arc<Generation>,
    principal: Principal,
    way: Way,
    origin: Origin,
    /// What the client may see, as it changes.
    view: watch::Receiver<Arc<View>>,
    /// Whether its role hides nothing and it showed no credentials.
    public: bool,
    /// Whether limits are for it.
    is_limited: bool,
    /// Where is told what becomes of its request.
    record: Record,
}

/// A page of a merged list, in no dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The items as a JSON array.
    pub items: Bytes,
    /// Where the next page begins; `None` on the last.
    pub next_cursor: Option<String>,
    /// Upstreams that the list misses and that this client could see.
    pub partial: Vec<UpstreamName>,
    /// How long the page may be kept.
    pub ttl: Duration,
    /// Whether every client would see the same.
    pub public: bool,
}

impl Gateway {
    /// Opens the house: starts a task per upstream that lists it whenever there is something new,
    /// until `stop`.
    pub fn open(
        policy: Policy,
        catalog: Catalog,
        upstreams: Vec<Upstream>,
        sentries: Sentries,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let parts = Parts { policy, catalog, upstreams, sentries };
        let gateway = Arc::new(Self {
            current: watch::Sender::new(Arc::new(Generation::new(parts, None))),
            first_list: FirstList::new(),
            parking: Parking::new(),
            handles: Arc::new(Handles::new()),
            tasks: tasks.clone(),
            stop: stop.clone(),
            meters: Arc::default(),
        });
        gateway.begin();
        let (parking, ending) = (Arc::clone(&gateway), stop.clone());
        tasks.spawn(async move { parking.parking.sweep(&ending).await });
        tasks.spawn(follow_pins(gateway.current.subscribe(), stop.clone()));
        gateway
    }

    /// Keeps the keys of the identity providers, on tasks of their own until `stop`: of those that have none yet.
    pub fn keep_keys(&self, fetch: &Arc<dyn Fetch>, tasks: &TaskTracker, stop: &CancellationToken) {
        self.now().policy.keep_keys(fetch, tasks, stop);
    }

    /// The upstreams, in no order.
    pub fn upstreams(&self) -> Vec<Upstream> {
        self.now().upstreams().cloned().collect()
    }

    /// What is counted.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// The limits that have refused anything: the number in the configuration, what it says, and how often.
    pub fn limits_hit(&self) -> Vec<(usize, String, Hit)> {
        let now = self.now();
        let hits = self.meters.limits().into_iter();
        hits.filter_map(|(number, hit)| {
            Some((number, now.policy.limits().get(number)?.to_string(), hit))
        })
        .collect()
    }

    /// What was found in what passes, by upstream.
    pub fn findings(&self) -> Vec<(UpstreamName, guard::Counts)> {
        let now = self.now();
        now.sentries.guard.counts().map(|(name, counts)| (name.clone(), counts)).collect()
    }

    /// Who looks at what passes.
    pub fn sentries(&self) -> Arc<Sentries> {
        Arc::clone(&self.now().sentries)
    }

    /// What was left out of the lists, and why.
    pub fn problems(&self) -> Vec<(UpstreamName, Kind, catalog::Problems)> {
        self.now().catalog.problems()
    }

    /// Whether an upstream is left out of the lists, since it has been away for longer than it may.
    pub fn is_hidden(&self, upstream: &UpstreamName) -> bool {
        self.now().is_hidden(upstream)
    }

    /// What is held back until somebody approves it: whose, of which kind, and its own name.
    pub fn withheld(&self) -> Vec<(UpstreamName, Kind, String)> {
        let now = self.now();
        let pins = &now.sentries.pins;
        if !now.upstreams().any(|upstream| pins.holds(upstream.name())) {
            return Vec::new();
        }
        let held = pins
            .differences()
            .into_iter()
            .filter(|it| pins.holds(&it.upstream) && it.change != Change::Missing);
        held.filter_map(|it| Some((it.upstream, it.kind?, it.key))).collect()
    }

    /// Waits until each upstream has been listed or has failed once.
    pub async fn listed(&self) {
        self.first_list.all().await;
    }

    /// The upstreams that have neither been listed nor failed yet.
    pub fn unsettled(&self) -> Vec<UpstreamName> {
        self.first_list.unsettled()
    }
}

impl Guest {
    /// Who this is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Where its connection comes from, if it comes over a network.
    pub fn from(&self) -> Option<IpAddr> {
        self.origin.from
    }

    /// The guest as one client, where there are no sessions that could tell more.
    pub fn client(&self) -> Client {
        Client::all_of(self.owner())
    }

    /// Whose its clients are.
    pub fn owner(&self) -> Owner {
        Owner { name: Arc::clone(&self.principal.name), clients: self.principal.share(1) }
    }

    /// Whether every client would see what this one sees: no rule hides anything from it, it showed no
    /// credentials, and none are needed.
    pub fn is_public(&self) -> bool {
        self.public
    }

    /// Waits for upstreams that are still starting, but not past the first moment after Weir's own
    /// start: what is told once, like capabilities, should not be told too early.
    pub async fn settle(&self) {
        self.gateway.first_list.soon().await;
    }

    /// Waits until the guest can see the item of this public key, or an upstream that can be asked for
    /// this URI.
    pub async fn sees(&self, kind: Kind, key: &str) {
        let mut view = self.view.clone();
        let is_seen = |view: &Arc<View>| match kind {
            Kind::Resource => view.resolve_uri(key).is_some(),
            _ => view.resolve(kind, key).is_some(),
        };
        if view.wait_for(is_seen).await.is_err() {
            // The catalog is gone: the house is closing, and nothing comes any more.
            std::future::pending::<()>().await;
        }
    }

    /// What the guest can see at this moment.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Answers a list from memory.
    pub async fn list(
        &self,
        _: &Permit,
        kind: Kind,
        cursor: Option<&str>,
        form: Form,
    ) -> Result<Page, Fault> {
        let unreadable = |_| Fault::Request("Invalid cursor".to_owned());
        self.record.about(kind);
        let after = cursor.map(|text| Cursor::parse(text, kind)).transpose().map_err(unreadable)?;
        self.settle().await;
        let page = self.view().page(kind, after.as_ref(), form);
        Ok(Page {
            items: page.items,
            next_cursor: page.next.map(|next| next.encode(kind)),
            partial: page.partial,
            ttl: page.fresh_for.map_or(LIST_TTL, |fresh_for| fresh_for.min(LIST_TTL)),
            public: self.public && !page.is_private,
        })
    }

    /// The item that an ask of a client of this revision is about: whoever has it may ask.
    pub async fn find(&self, ask: &Ask, revision: Revision) -> Result<Arc<Target>, Fault> {
        if let Some(target) = self.resolve(ask, revision) {
            self.record_found(&target);
            return Ok(target);
        }
        // Just after the start the owner may not have been listed yet.
        self.settle().await;
        let target = self.resolve(ask, revision).ok_or_else(|| {
            self.record_missing(ask, revision);
            Fault::NoSuchItem { kind: ask.kind, key: ask.key.clone() }
        })?;
        self.record_found(&target);
        Ok(target)
    }

    /// Sends an ask to the upstream that owns the item. Dropping the future cancels the call.
    pub async fn ask(&self, _: &Permit, ask: Ask, caller: Caller) -> Result<Went, Fault> {
        if ask.method.is_about_a_task() {
            return self.ask_about_task(ask, caller).await;
        }
        let target = self.find(&ask, caller.revision).await?;
        self.send(&target, ask, caller).await
    }

    async fn send(&self, target: &Target, ask: Ask, caller: Caller) -> Result<Went, Fault> {
        let guard = &self.generation.sentries.guard;
        let admitted =
            guard.admit(&target.upstream, ask.method, target.declared.as_ref(), &ask.params);
        admitted.map_err(|bad| {
            self.record.refused_by(GUARD);
            self.gateway.meters.refused(Reason::Guard);
            Fault::Request(bad.to_string())
        })?;
        let call = ask.call(&target.own, caller);
        self.call(target, call, None).await
    }

    /// Asks about a call that goes on, which the ask names by its handle. Whoever may not call the tool
    /// (any more) has no such task.
    async fn ask_about_task(&self, ask: Ask, caller: Caller) -> Result<Went, Fault> {
        let task = self.open_task(&ask.key, caller.revision.era());
        let (task, target) = task.ok_or(Fault::NoSuchTask)?;
        self.record_found(&target);
        let handle = ask.key.clone();
        let mut call = ask.call(&task.own, caller);
        call.scope = Some(task.scope);
        self.call(&target, call, Some(&handle)).await
    }

    /// Sends a call; `about` is the handle of the task that it is about.
    async fn call(
        &self,
        target: &catalog::Target,
        mut call: Box<Call>,
        about: Option<&str>,
    ) -> Result<Went, Fault> {
        self.record_sending().await?;
        let name = &target.upstream;
        let may_name_a_task = call.method == Method::CallTool || call.method.is_about_a_task();
        let mut dressing = may_name_a_task.then(|| Dressing::new(self, target, &call, about));
        match &mut dressing {
            Some(dressing) if call.caller.revision == Revision::V2025_11_25 => {
                dressing.relate(&mut call);
                call.caller.notes = call.caller.notes.naming(Arc::new(dressing.clone()));
            }
            // Before and after that revision nothing says what a request is related to. The id may be that of somebody
            // else's task at the upstream.
            _ => drop_related(&mut call.params),
        }
        let watch =
            self.generation.sentries.guard.watch(name, call.method, target.kind, &target.key);
        let upstream = self.generation.upstream(name);
        let watched = |watch| Box::new((watch, self.record.clone(), upstream.allowance()));
        let watch = watch.map(watched);
        let counting = self.gateway.meters.begin_call(call.method);
        let called = upstream.call(call).await;
        counting.end(&called);
        match called {
            Ok(called) => Went::of(name, watch, dressing, called).await,
            Err(cause) => Err(upstream_error(name, cause)),
        }
    }

    fn resolve(&self, ask: &Ask, revision: Revision) -> Option<Arc<Target>> {
        self.resolve_as(ask.method, ask.kind, &ask.key, revision)
    }

    fn resolve_as(
        &self,
        method: Method,
        kind: Kind,
        key: &str,
        revision: Revision,
    ) -> Option<Arc<Target>> {
        let view = self.view.borrow();
        let target = match method {
            Method::ReadResource => view.resolve_uri(key),
            _ => view.resolve(kind, key),
        };
        target.filter(|target| target.is_for(Form::of(revision)))
    }

    /// Waits for changes of what this guest can see with a client of this revision, from now on, and of what it
    /// subscribes to.
    pub fn listen(&self, subscriptions: &Arc<Subscriptions>, revision: Revision) -> Listen {
        Listen::new(self, Form::of(revision), Arc::clone(subscriptions), Instant::now())
    }
}

/// Why a reply is not passed on.
fn unfit(upstream: &UpstreamName, unfit: Unfit, record: &Record) -> Fault {
    match unfit {
        Unfit::Refused(found) => {
            record.refused_by(GUARD);
            Fault::Refused { upstream: upstream.clone(), found }
        }
        Unfit::Uncollected(why) => upstream_error(
            upstream,
            match why {
                Uncollected::Broken(broken) => upstream::Error::Broke(broken.0),
                Uncollected::Unheld(Unheld::TooLarge(limit)) => upstream::Error::TooLarge(limit),
                Uncollected::Unheld(Unheld::NoRoom) => upstream::Error::NoRoom,
            },
        ),
    }
}

/// Tells the operator why there is no reply: the client learns no more than whose move it is.
fn upstream_error(upstream: &UpstreamName, cause: upstream::Error) -> Fault {
    match &cause {
        // That it is down has been told once, and stays true for many calls.
        upstream::Error::Unavailable(_)
        | upstream::Error::Busy { .. }
        | upstream::Error::NoSuchTask => {
            tracing::debug!(%upstream, %cause, "a call has no reply");
        }
        _ => tracing::warn!(%upstream, %cause, "a call has no reply"),
    }
    match cause {
        upstream::Error::Busy { retry_after } => Fault::TooBusy { retry_after },
        upstream::Error::Crowded => Fault::TooManyWaiting,
        upstream::Error::NoSuchTask => Fault::NoSuchTask,
        cause => Fault::Upstream { upstream: upstream.clone(), cause },
    }
}

/// Reads the lock file of the definitions that were approved whenever it has changed, until `stop`.
async fn follow_pins(mut current: watch::Receiver<Arc<Generation>>, stop: CancellationToken) {
    loop {
        let sentries = Arc::clone(&current.borrow_and_update().sentries);
        let following = async {
            sentries.pins.follow(&stop).await;
            // Nothing to follow under this configuration.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = following => {}
            changed = current.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// What stands in records for the guard's rules.
const GUARD: &str = "guard";

/// Introduces the policy to the catalog.
impl Filter for Role {
    fn allows(&self, kind: Kind, upstream: &UpstreamName, own: &str) -> bool {
        Role::allows(self, kind, upstream, own)
    }

    fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool {
        Role::allows_uri(self, upstream, uri)
    }

    fn reaches(&self, upstream: &UpstreamName) -> bool {
        Role::reaches(self, upstream)
    }
}
