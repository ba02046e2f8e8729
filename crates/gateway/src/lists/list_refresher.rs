//! List refresher: one task per upstream that keeps its lists in the catalog fresh.
//!
//! It lists everything when the upstream has connected, a topic when the upstream sends a
//! `list_changed` notification for it, and a topic when the first time to live of its lists ends. A
//! failed topic is retried, and a list that failed keeps its last complete version published.
//! Before the first list the cached lists from disk are published. While the upstream is asleep its
//! last lists stay, and it is listed when it wakes.
//!
//! Decision: docs/decisions/0004-list-refresh.md

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::Inspectors;
use crate::config_snapshot::ConfigSnapshot;
use crate::last_lists::{LastLists, publish_info, publish_list};
use crate::lists::list_cache::{self, ListCache};
use crate::lists::refresh_schedule::{MAX_RETRY, PendingChange, RefreshSchedule};
use crate::lists::stable_list;
use crate::startup::PendingUpstream;
use weir_access::catalog::{Catalog, ListSnapshot, UpstreamInfo};
use weir_base::tasks::fairness::sleep_until;
use weir_base::time::jitter;
use weir_mcp::kind::{Kind, ListTopic};
use weir_oauth::SignInNumber;
use weir_upstream::health::author_notes::NoteKind;
use weir_upstream::{
    ConnectionInfo, ConnectionStatus, Error, KeepAliveGuard, ListChangeCounts, Listing, OnDown,
    Upstream,
};

/// The shortest time to live that is honored.
const MIN_TTL: Duration = Duration::from_secs(5);
/// Interval for a list with a time to live of zero.
const NO_TTL: Duration = Duration::from_secs(60);

/// Task that keeps the lists of one upstream fresh.
pub(crate) struct ListRefresher {
    upstream: Upstream,
    catalog: Arc<Catalog>,
    inspectors: Arc<Inspectors>,
    status: watch::Receiver<ConnectionStatus>,
    changes: watch::Receiver<ListChangeCounts>,
    approvals: watch::Receiver<u64>,
    last_lists: Arc<LastLists>,
    /// The current configuration.
    configs: watch::Receiver<Arc<ConfigSnapshot>>,
    /// Epoch of the connection that was listed last.
    epoch: Option<u64>,
    /// Change notifications that have been processed.
    processed_changes: ListChangeCounts,
    topics: [RefreshSchedule; 3],
    /// Makes the first client requests wait for this upstream. Present until the first list, or the
    /// first failure.
    startup_guard: Option<PendingUpstream>,
    /// Keeps the upstream running until everything of this connection has been listed.
    keep_alive: Option<KeepAliveGuard>,
    /// Time at which the upstream is hidden if it stays down.
    hide_at: Option<Instant>,
    is_down: bool,
    /// Sign-in for which the lists are read; `None` while no user is signed in.
    sign_in: Option<SignInNumber>,
    cache: Option<ListCache>,
    /// Per kind: digest of the list cached on disk.
    cached_digests: [Option<u64>; 4],
}

/// Result of listing a topic.
#[derive(Default)]
struct RefreshedTopic {
    /// Time of the next refresh, by the lists' times to live.
    refresh_at: Option<Instant>,
    digests: [Option<u64>; 2],
    items: [usize; 2],
    lists: Vec<DigestedList>,
}

/// List with its digest.
type DigestedList = (Kind, u64, Arc<ListSnapshot>);

enum Event {
    Stop,
    SignInReplaced(Option<SignInNumber>),
    ConfigReplaced,
    StatusChanged,
    ListChanged,
    Approved,
    TimerDue,
}

impl ListRefresher {
    pub(crate) fn new(
        upstream: Upstream,
        config: &ConfigSnapshot,
        configs: watch::Receiver<Arc<ConfigSnapshot>>,
        last_lists: Arc<LastLists>,
        startup_guard: PendingUpstream,
    ) -> Self {
        let (catalog, inspectors) = (Arc::clone(&config.catalog), Arc::clone(&config.inspectors));
        let (status, changes) = (upstream.status(), upstream.changes());
        let approvals = inspectors.pins.subscribe_approvals();
        let processed_changes = *changes.borrow();
        let sign_in = upstream.sign_in();
        let cache = sign_in.and_then(|sign_in| ListCache::of(upstream.settings(), sign_in));
        Self {
            upstream,
            catalog,
            inspectors,
            approvals,
            last_lists,
            configs,
            status,
            changes,
            epoch: None,
            processed_changes,
            topics: [RefreshSchedule::new(); 3],
            startup_guard: Some(startup_guard),
            keep_alive: None,
            hide_at: None,
            is_down: false,
            sign_in,
            cache,
            cached_digests: [None; 4],
        }
    }

    /// Runs until `stop` fires, or until a configuration does not have the upstream.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // Those of a predecessor may be of a former sign-in.
        if self.last_lists.begin(self.sign_in) {
            self.catalog.clear(self.upstream.name());
        }
        self.remove_former_caches().await;
        if !self.publish_cached().await {
            // Without lists no client can use the upstream, so it is started to be listed.
            self.upstream.start_if_idle();
        }
        self.on_status();
        loop {
            let due =
                self.topics.iter().filter_map(|schedule| schedule.due).chain(self.hide_at).min();
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => Event::Stop,
                sign_in = self.upstream.sign_in_other_than(self.sign_in) => {
                    Event::SignInReplaced(sign_in)
                }
                Ok(()) = self.configs.changed() => Event::ConfigReplaced,
                Ok(()) = self.status.changed() => Event::StatusChanged,
                Ok(()) = self.changes.changed() => Event::ListChanged,
                Ok(()) = self.approvals.changed() => Event::Approved,
                () = sleep_until(due) => Event::TimerDue,
            };
            match event {
                Event::Stop => return,
                Event::SignInReplaced(sign_in) => self.begin_sign_in(sign_in).await,
                Event::ConfigReplaced => {
                    if !self.switch_config() {
                        return;
                    }
                }
                Event::StatusChanged => self.on_status(),
                Event::ListChanged => self.on_changes(),
                Event::Approved => self.on_approvals(),
                Event::TimerDue if self.hide_at.is_some_and(|at| at <= Instant::now()) => {
                    self.hide_at = None;
                    let upstream = self.upstream.name();
                    info!(%upstream, "upstream hidden from the lists, down for too long");
                    self.set_hidden(true);
                }
                // Stopping must not wait for a list, nor must another sign-in.
                Event::TimerDue => {
                    let (upstream, sign_in) = (self.upstream.clone(), self.sign_in);
                    let read = tokio::select! {
                        biased;
                        read = self.list_due() => read,
                        () = stop.cancelled() => return,
                        _ = upstream.sign_in_other_than(sign_in) => Vec::new(),
                    };
                    // A command ends once it has listed, and leaves the lists to those after it.
                    self.cache_lists(read).await;
                }
            }
        }
    }

    /// Forgets the lists of the former sign-in, also those on disk, and lists for the new one.
    async fn begin_sign_in(&mut self, sign_in: Option<SignInNumber>) {
        let upstream = self.upstream.name();
        self.last_lists.begin(sign_in);
        self.catalog.clear(upstream);
        self.cache = sign_in.and_then(|it| ListCache::of(self.upstream.settings(), it));
        self.cached_digests = [None; 4];
        self.sign_in = sign_in;
        self.remove_former_caches().await;
        self.topics = [RefreshSchedule::new(); 3];
        self.epoch = None;
        info!(upstream = %self.upstream.name(), "lists of the former sign-in forgotten");
        self.on_status();
    }

    /// Removes the lists of former sign-ins from the disk.
    async fn remove_former_caches(&self) {
        if self.upstream.is_signed_in_to() {
            let (upstream, sign_in) = (self.upstream.clone(), self.sign_in);
            let remove = move || ListCache::remove_former(upstream.settings(), sign_in);
            let _ = tokio::task::spawn_blocking(remove).await;
        }
    }

    fn on_status(&mut self) {
        let status = self.status.borrow_and_update().clone();
        match status {
            ConnectionStatus::Starting => {}
            ConnectionStatus::Asleep => {
                // The lists stay published, and a request starts the upstream.
                self.epoch = None;
                self.topics.iter_mut().for_each(|schedule| schedule.due = None);
            }
            // One that is still of the former sign-in ends.
            ConnectionStatus::Up(about)
                if about.sign_in.is_some_and(|it| Some(it) != self.sign_in) => {}
            ConnectionStatus::Up(about) => {
                if self.epoch.replace(about.epoch) == Some(about.epoch) {
                    return;
                }
                (self.hide_at, self.is_down) = (None, false);
                self.set_hidden(false);
                self.keep_alive = Some(self.upstream.keep_alive());
                let ConnectionInfo { capabilities, instructions, .. } = &*about;
                let (capabilities, instructions) = (capabilities.clone(), instructions.clone());
                self.publish_info(UpstreamInfo { capabilities, instructions });
                self.processed_changes = *self.changes.borrow_and_update();
                for schedule in &mut self.topics {
                    schedule.due = Some(Instant::now());
                    schedule.retries.reset();
                }
            }
            ConnectionStatus::Down { .. } => {
                // The lists stay published, and cannot be refreshed.
                self.epoch = None;
                self.topics.iter_mut().for_each(|schedule| schedule.due = None);
                (self.startup_guard, self.keep_alive) = (None, None);
                if let OnDown::Hide { after } = self.upstream.settings().on_down
                    && !self.is_down
                {
                    self.hide_at = Some(Instant::now() + after);
                }
                self.is_down = true;
            }
        }
    }

    /// Switches to the current configuration; false if it does not have this upstream.
    fn switch_config(&mut self) -> bool {
        let config = Arc::clone(&self.configs.borrow_and_update());
        if !config.has(&self.upstream) {
            return false;
        }
        self.catalog = Arc::clone(&config.catalog);
        self.inspectors = Arc::clone(&config.inspectors);
        self.approvals = self.inspectors.pins.subscribe_approvals();
        // The lists may have changed while the configuration was built.
        self.last_lists.republish(self.upstream.name(), &self.catalog, &self.inspectors);
        true
    }

    fn publish_info(&self, info: UpstreamInfo) {
        self.last_lists.lock().info = Some(info.clone());
        publish_info(self.upstream.name(), &self.catalog, &self.inspectors, info);
    }

    /// Hides the upstream from the lists, or shows it again.
    fn set_hidden(&self, is_hidden: bool) {
        self.last_lists.lock().is_hidden = is_hidden;
        self.catalog.hide(self.upstream.name(), is_hidden);
    }

    /// Publishes the cached lists from before the start; returns whether there are any.
    async fn publish_cached(&mut self) -> bool {
        let is_read = self.upstream.settings().reads_list_cache;
        let Some(cache) = self.cache.clone().filter(|_| is_read) else { return false };
        // Reading a file blocks. A panic there must not end this task.
        let Ok(Some(cached)) = tokio::task::spawn_blocking(move || cache.read()).await else {
            return false;
        };
        self.publish_info(cached.info);
        for (kind, snapshot) in Kind::ALL.into_iter().zip(cached.snapshots) {
            self.cached_digests[kind.index()] = Some(list_cache::digest(&snapshot.items));
            self.keep_list(kind, &Arc::new(snapshot));
        }
        debug!(upstream = %self.upstream.name(), "cached lists published");
        self.startup_guard = None;
        true
    }

    /// Writes to the cache, if there is one; returns whether it succeeded.
    async fn write_cache(
        &self,
        write: impl FnOnce(&ListCache) -> io::Result<()> + Send + 'static,
    ) -> bool {
        let Some(cache) = self.cache.clone() else { return false };
        let written = tokio::task::spawn_blocking(move || write(&cache)).await;
        let error = match written {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error,
            Err(panicked) => io::Error::other(panicked),
        };
        let upstream = self.upstream.name();
        warn!(%upstream, %error, "list cache not written");
        false
    }

    /// Writes the changed ones of these lists to the cache, if there is one.
    async fn cache_lists(&mut self, lists: Vec<DigestedList>) {
        if self.cache.is_none() {
            return;
        }
        for (kind, digest, snapshot) in lists {
            if self.cached_digests[kind.index()] == Some(digest) {
                continue;
            }
            let is_written = self.write_cache(move |cache| cache.write(kind, &snapshot)).await;
            // A list that cannot be written is not retried until it changes.
            self.cached_digests[kind.index()] = Some(digest);
            let info = self.last_lists.lock().info.clone();
            if is_written && let Some(info) = info {
                self.write_cache(move |cache| cache.write_info(&info)).await;
            }
        }
    }

    /// Publishes again after the approved definitions have changed.
    fn on_approvals(&self) {
        let info = self.last_lists.lock().info.clone();
        info.into_iter().for_each(|info| self.publish_info(info));
        if self.inspectors.pins.enforces(self.upstream.name()) {
            self.last_lists.republish(self.upstream.name(), &self.catalog, &self.inspectors);
        }
    }

    /// Keeps a list as the last one of its kind, and publishes it.
    fn keep_list(&self, kind: Kind, snapshot: &Arc<ListSnapshot>) {
        self.last_lists.replace(kind, Arc::clone(snapshot));
        let name = self.upstream.name();
        let repaired = publish_list(name, &self.catalog, &self.inspectors, kind, snapshot);
        self.upstream.replace_list_notes(NoteKind::InputSchema, kind, repaired);
    }

    fn on_changes(&mut self) {
        let changes = *self.changes.borrow_and_update();
        for topic in ListTopic::ALL {
            let topic_index = topic.index();
            if changes.0[topic_index] == self.processed_changes.0[topic_index]
                || self.epoch.is_none()
            {
                continue;
            }
            self.topics[topic_index].on_change_notification(Instant::now());
        }
        self.processed_changes = changes;
    }

    /// Lists the topics that are due, and returns what was read.
    async fn list_due(&mut self) -> Vec<DigestedList> {
        let now = Instant::now();
        let due: Vec<ListTopic> = ListTopic::ALL
            .into_iter()
            .filter(|topic| self.topics[topic.index()].due.is_some_and(|due| due <= now))
            .collect();
        for topic in &due {
            let schedule = &mut self.topics[topic.index()];
            schedule.due = None;
            schedule.last_read = Some(now);
        }
        let lists = join_all(due.iter().map(|topic| self.list(*topic))).await;
        let (mut is_new, mut read) = (false, Vec::new());
        // `keep_alive` is released once a round has no failure: all topics are due after the
        // connection, and each that fails is due again.
        let mut failed = false;
        for (topic, refreshed) in due.into_iter().zip(lists) {
            let schedule = &mut self.topics[topic.index()];
            match refreshed {
                Ok(refreshed) => {
                    read.extend(refreshed.lists);
                    schedule.due = refreshed.refresh_at;
                    schedule.retries.reset();
                    schedule.items = refreshed.items;
                    is_new |= schedule.on_refreshed(refreshed.digests);
                }
                Err(retry_after) => {
                    failed = true;
                    schedule.pending_change = PendingChange::Nothing;
                    // While the circuit breaker is open, no list is requested either.
                    let open_until = self.upstream.breaker_open_until();
                    let pause = schedule.retries.next_pause().max(retry_after.min(MAX_RETRY));
                    schedule.due = Some(Instant::now() + pause).max(open_until);
                }
            }
        }
        if is_new {
            let [[prompts, _], [tools, _], [resources, templates]] =
                self.topics.map(|schedule| schedule.items);
            let upstream = self.upstream.name();
            info!(%upstream, prompts, tools, resources, templates, "upstream listed");
        }
        self.startup_guard = None;
        if !failed {
            self.keep_alive = None;
        }
        read
    }

    /// Lists the kinds of a topic. The error is the `Retry-After` of the upstream.
    async fn list(&self, topic: ListTopic) -> Result<RefreshedTopic, Duration> {
        let name = self.upstream.name();
        let mut refreshed = RefreshedTopic::default();
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.topic() == topic);
        let mut result = Ok(());
        for (kind_in_topic, kind) in kinds.enumerate() {
            let before = self.last_lists.lock().snapshots[kind.index()].clone();
            let mut listing = match stable_list::list(&self.upstream, kind, before.as_deref()).await
            {
                Ok(listing) => listing,
                Err(error) => {
                    warn!(upstream = %name, %kind, %error, "list request failed, last list stays");
                    result = Err(match error {
                        Error::HttpStatus { retry_after: Some(time), .. } => time,
                        _ => Duration::ZERO,
                    });
                    break;
                }
            };
            if let Some(limit) = &listing.truncated {
                warn!(upstream = %name, %kind, limit, "list truncated");
            }
            listing.items.append(&mut listing.omitted);
            let digest = list_cache::digest(&listing.items);
            let items = listing.items.iter().filter(|item| item.defect.is_none()).count();
            refreshed.items[kind_in_topic] = items;
            debug!(upstream = %name, %kind, items, "list read");
            let fresh_until = listing.ttl.map(|ttl| Instant::now() + ttl);
            let refresh_at = listing.ttl.map(|ttl| Instant::now() + refresh_interval(ttl));
            let Listing { items, is_private, truncated, .. } = listing;
            let cut = truncated.map(Into::into);
            let snapshot = Arc::new(ListSnapshot { items, fresh_until, is_private, cut });
            refreshed.lists.push((kind, digest, snapshot));
            refreshed.refresh_at = refreshed.refresh_at.into_iter().chain(refresh_at).min();
            refreshed.digests[kind_in_topic] = Some(digest);
        }
        // Published one after the other, so that most clients get one notification for both kinds
        // of a topic.
        for (kind, _, snapshot) in &refreshed.lists {
            self.keep_list(*kind, snapshot);
        }
        result.map(|()| refreshed)
    }
}

/// Interval after which a list with this time to live is read again. It varies by a fifth, so that
/// the lists of many upstreams are not due together (spec, caching: polling MUST apply jitter).
fn refresh_interval(ttl: Duration) -> Duration {
    let ttl = if ttl.is_zero() { NO_TTL } else { ttl.max(MIN_TTL) };
    jitter::apply(ttl)
}
