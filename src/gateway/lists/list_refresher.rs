//! Keeps the catalog's snapshot of one upstream fresh.
//!
//! One task per upstream. It lists everything when the upstream has connected, one topic when the
//! upstream says that it has changed, and what has outlived its time. A list that fails half-way leaves
//! the last complete snapshot in place and is tried again. Until the first list what was kept on disk is shown.
//! While the upstream sleeps what it listed last stays, and nothing is asked; it is listed when it wakes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::catalog::{Catalog, Introduction, Snapshot};
use crate::fairness::promptly;
use crate::gateway::lists::last_lists::{Held, introduce, publish};
use crate::gateway::lists::list_cache::{self, Kept};
use crate::gateway::lists::stable_list;
use crate::gateway::startup::Unsettled;
use crate::gateway::{Generation, Sentries};
use crate::jitter;
use crate::mcp::kind::{Kind, Topic};
use crate::upstream::{About, Awake, Changes, Error, Listing, OnDown, Status, Upstream};

/// Changes that follow a read this closely are read together.
const BURST: Duration = Duration::from_millis(300);
/// Where changes keep coming, how long they wait for each other: no client hears of a topic more often.
const STORM: Duration = Duration::from_secs(1);
/// Where reading the list brings on the next change, and the list stays as it was. Some servers announce a change
/// whenever they are listed: without a longer pause they would be listed for ever.
const FALSE_ALARMS: Duration = Duration::from_secs(60);
/// The shortest time to live that is honored.
const MIN_TTL: Duration = Duration::from_secs(5);
/// How long a list lives whose upstream promises nothing (a time to live of zero).
const NO_TTL: Duration = Duration::from_secs(60);
/// How long a failed list waits for its next try, doubling.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// The state of the task.
pub(crate) struct Refresh {
    upstream: Upstream,
    catalog: Arc<Catalog>,
    sentries: Arc<Sentries>,
    status: watch::Receiver<Status>,
    changes: watch::Receiver<Changes>,
    approvals: watch::Receiver<u64>,
    /// What was last listed.
    held: Arc<Held>,
    /// What holds: another catalog, and others who look at what goes there.
    generations: watch::Receiver<Arc<Generation>>,
    /// The connection that was listed last.
    epoch: Option<u64>,
    /// The changes that have been read.
    read: Changes,
    topics: [Plan; 3],
    /// Until the first list, or the first failure.
    unsettled: Option<Unsettled>,
    /// It stays up until all of this connection has been listed.
    unlisted: Option<Awake>,
    /// When it is to be left out, where it has been away.
    hide: Option<Instant>,
    is_away: bool,
    kept: Option<Kept>,
    /// What is kept of each kind, in short.
    kept_digests: [Option<u64>; 4],
}

/// When one topic is to be listed.
#[derive(Debug, Clone, Copy)]
struct Plan {
    due: Option<Instant>,
    last_read: Option<Instant>,
    /// When that was done.
    done: Option<Instant>,
    retry: Duration,
    /// How long after a read the next change waits.
    pause: Duration,
    /// Whether a change came during the pause.
    pressed: Pressed,
    /// What was read last, in short: the topic's kind, or its two.
    digests: [Option<u64>; 2],
    /// How many items that was.
    items: [usize; 2],
}

/// What came during the pause behind a read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Pressed {
    #[default]
    Not,
    /// A change right behind the read, which may have brought it on.
    ByEcho,
    /// One that the read cannot have brought on.
    ByChange,
}

/// A topic that has been listed.
struct Listed {
    /// When it wants to be listed again.
    again: Option<Instant>,
    digests: [Option<u64>; 2],
    items: [usize; 2],
    /// Where it is to be kept on disk: with its digest.
    keep: [Option<(Kind, u64, Arc<Snapshot>)>; 2],
}

enum Event {
    Stop,
    Replaced,
    Status,
    Changed,
    Approved,
    Due,
}

impl Refresh {
    pub(crate) fn new(
        upstream: Upstream,
        generation: &Generation,
        generations: watch::Receiver<Arc<Generation>>,
        held: Arc<Held>,
        unsettled: Unsettled,
    ) -> Self {
        let (catalog, sentries) =
            (Arc::clone(&generation.catalog), Arc::clone(&generation.sentries));
        let (status, changes) = (upstream.status(), upstream.changes());
        let approvals = sentries.pins.approvals();
        let read = *changes.borrow();
        let kept = Kept::of(upstream.settings());
        let plan = Plan {
            due: None,
            last_read: None,
            retry: FIRST_RETRY,
            pause: BURST,
            pressed: Pressed::Not,
            done: None,
            digests: [None; 2],
            items: [0; 2],
        };
        Self {
            upstream,
            catalog,
            sentries,
            approvals,
            held,
            generations,
            status,
            changes,
            epoch: None,
            read,
            topics: [plan; 3],
            unsettled: Some(unsettled),
            unlisted: None,
            hide: None,
            is_away: false,
            kept,
            kept_digests: [None; 4],
        }
    }

    /// Lists the upstream whenever there may be something new. Ends when `stop` fires, or under a configuration that
    /// does not have it.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        if !self.show_kept().await {
            // Nobody could find what it has.
            self.upstream.wake();
        }
        self.look_at_status();
        loop {
            let due = self.topics.iter().filter_map(|plan| plan.due).chain(self.hide).min();
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => Event::Stop,
                Ok(()) = self.generations.changed() => Event::Replaced,
                Ok(()) = self.status.changed() => Event::Status,
                Ok(()) = self.changes.changed() => Event::Changed,
                Ok(()) = self.approvals.changed() => Event::Approved,
                () = sleep_until(due) => Event::Due,
            };
            match event {
                Event::Stop => return,
                Event::Replaced => {
                    if !self.follow() {
                        return;
                    }
                }
                Event::Status => self.look_at_status(),
                Event::Changed => self.look_at_changes(),
                Event::Approved => self.look_at_approvals(),
                // Stopping must not wait for a list.
                Event::Due if self.hide.is_some_and(|hide| hide <= Instant::now()) => {
                    self.hide = None;
                    let upstream = self.upstream.name();
                    info!(%upstream, "away for too long: it is left out of the lists");
                    self.hide(true);
                }
                Event::Due => tokio::select! {
                    biased;
                    () = self.list_due() => {}
                    () = stop.cancelled() => return,
                },
            }
        }
    }

    fn look_at_status(&mut self) {
        let status = self.status.borrow_and_update().clone();
        match status {
            Status::Starting => {}
            Status::Asleep => {
                // What was listed stays, and may be asked for: that starts it.
                self.epoch = None;
                self.topics.iter_mut().for_each(|plan| plan.due = None);
            }
            Status::Up(about) => {
                if self.epoch.replace(about.epoch) == Some(about.epoch) {
                    return;
                }
                (self.hide, self.is_away) = (None, false);
                self.hide(false);
                self.unlisted = Some(self.upstream.stay_up());
                self.introduce(introduction(&about));
                self.read = *self.changes.borrow_and_update();
                for plan in &mut self.topics {
                    plan.due = Some(Instant::now());
                    plan.retry = FIRST_RETRY;
                }
            }
            Status::Down { .. } => {
                // What was listed stays; there is nobody to ask for more.
                self.epoch = None;
                self.topics.iter_mut().for_each(|plan| plan.due = None);
                (self.unsettled, self.unlisted) = (None, None);
                if let OnDown::Hide { after } = self.upstream.settings().on_down
                    && !self.is_away
                {
                    self.hide = Some(Instant::now() + after);
                }
                self.is_away = true;
            }
        }
    }

    /// Goes over to the configuration that holds now; false if it does not have this upstream.
    fn follow(&mut self) -> bool {
        let now = Arc::clone(&self.generations.borrow_and_update());
        if !now.has(&self.upstream) {
            return false;
        }
        self.catalog = Arc::clone(&now.catalog);
        self.sentries = Arc::clone(&now.sentries);
        self.approvals = self.sentries.pins.approvals();
        // Something may have been listed while that was made.
        self.held.publish(self.upstream.name(), &self.catalog, &self.sentries);
        true
    }

    fn introduce(&self, said: Introduction) {
        self.held.lock().introduction = Some(said.clone());
        introduce(self.upstream.name(), &self.catalog, &self.sentries, said);
    }

    /// Leaves the upstream out of the lists, or shows it again.
    fn hide(&self, is_hidden: bool) {
        self.held.lock().is_hidden = is_hidden;
        self.catalog.hide(self.upstream.name(), is_hidden);
    }

    /// Shows what the upstream listed before Weir was started; tells whether that was kept.
    async fn show_kept(&mut self) -> bool {
        let Some(kept) = self.kept.clone() else { return false };
        // Reading a file blocks. A panic in there is no reason to show nothing for ever.
        let Ok(Some(found)) = tokio::task::spawn_blocking(move || kept.read()).await else {
            return false;
        };
        self.introduce(found.introduction);
        for (kind, snapshot) in Kind::ALL.into_iter().zip(found.snapshots) {
            self.kept_digests[kind.index()] = Some(list_cache::digest(&snapshot.items));
            self.publish(kind, &Arc::new(snapshot));
        }
        debug!(upstream = %self.upstream.name(), "what it listed last is shown until it is there");
        self.unsettled = None;
        true
    }

    /// Keeps something on disk, where lists are kept.
    async fn keep(&self, write: impl FnOnce(&Kept) -> io::Result<()> + Send + 'static) -> bool {
        let Some(kept) = self.kept.clone() else { return false };
        let kept = tokio::task::spawn_blocking(move || write(&kept)).await;
        let error = match kept {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error,
            Err(panicked) => io::Error::other(panicked),
        };
        let upstream = self.upstream.name();
        warn!(%upstream, %error, "what it lists cannot be kept for the next start");
        false
    }

    /// Keeps what is new of a topic, if all of it may be.
    async fn keep_lists(&mut self, lists: [Option<(Kind, u64, Arc<Snapshot>)>; 2]) {
        for (kind, digest, snapshot) in lists.into_iter().flatten() {
            if self.kept_digests[kind.index()] == Some(digest) {
                continue;
            }
            let is_kept = self.keep(move |kept| kept.write(kind, &snapshot)).await;
            // One that cannot be kept is not tried again as long as it stays the same.
            self.kept_digests[kind.index()] = Some(digest);
            let status = self.status.borrow().clone();
            if is_kept && let Status::Up(about) = status {
                let about = introduction(&about);
                self.keep(move |kept| kept.introduce(&about)).await;
            }
        }
    }

    /// Something else is approved than before.
    fn look_at_approvals(&self) {
        let status = self.status.borrow().clone();
        if let Status::Up(about) = &status {
            self.introduce(introduction(about));
        }
        if self.sentries.pins.holds(self.upstream.name()) {
            self.held.publish(self.upstream.name(), &self.catalog, &self.sentries);
        }
    }

    fn publish(&self, kind: Kind, snapshot: &Arc<Snapshot>) {
        self.held.keep(kind, Arc::clone(snapshot));
        publish(self.upstream.name(), &self.catalog, &self.sentries, kind, snapshot);
    }

    fn look_at_changes(&mut self) {
        let changes = *self.changes.borrow_and_update();
        for topic in Topic::ALL {
            let at = topic.index();
            if changes.0[at] == self.read.0[at] || self.epoch.is_none() {
                continue;
            }
            self.topics[at].press(Instant::now());
        }
        self.read = changes;
    }

    async fn list_due(&mut self) {
        let now = Instant::now();
        let due: Vec<Topic> = Topic::ALL
            .into_iter()
            .filter(|topic| self.topics[topic.index()].due.is_some_and(|due| due <= now))
            .collect();
        for topic in &due {
            let plan = &mut self.topics[topic.index()];
            plan.due = None;
            plan.last_read = Some(now);
        }
        let lists = join_all(due.iter().map(|topic| self.list(*topic))).await;
        let (mut is_new, mut keep) = (false, Vec::new());
        // All of them are due at first, and each that fails is due again.
        let mut failed = false;
        for (topic, next) in due.into_iter().zip(lists) {
            let plan = &mut self.topics[topic.index()];
            match next {
                Ok(listed) => {
                    keep.push(listed.keep);
                    plan.due = listed.again;
                    plan.retry = FIRST_RETRY;
                    plan.items = listed.items;
                    is_new |= plan.relax(listed.digests);
                }
                Err(retry_after) => {
                    failed = true;
                    plan.pressed = Pressed::Not;
                    // One that is left alone is not asked before a call may be.
                    let rests_until = self.upstream.rests_until();
                    let pause = plan.retry.max(retry_after.min(MAX_RETRY));
                    plan.due = Some(Instant::now() + pause).max(rests_until);
                    plan.retry = (plan.retry * 2).min(MAX_RETRY);
                }
            }
        }
        if is_new {
            let [[prompts, _], [tools, _], [resources, templates]] =
                self.topics.map(|plan| plan.items);
            let upstream = self.upstream.name();
            info!(%upstream, prompts, tools, resources, templates, "listed");
        }
        self.unsettled = None;
        for lists in keep {
            self.keep_lists(lists).await;
        }
        if !failed {
            self.unlisted = None;
        }
    }

    /// Lists the kinds of a topic. An error is how long the upstream wants not to be asked.
    async fn list(&self, topic: Topic) -> Result<Listed, Duration> {
        let name = self.upstream.name();
        let mut listed =
            Listed { again: None, digests: [None; 2], items: [0; 2], keep: [None, None] };
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.topic() == topic);
        let (mut read, mut done) = (Vec::new(), Ok(()));
        for (half, kind) in kinds.enumerate() {
            let before = self.held.lock().snapshots[kind.index()].clone();
            let listing = match stable_list::list(&self.upstream, kind, before.as_deref()).await {
                Ok(listing) => listing,
                Err(error) => {
                    warn!(upstream = %name, %kind, %error, "the list could not be read; the last one stays");
                    done = Err(match error {
                        Error::HttpStatus { retry_after: Some(time), .. } => time,
                        _ => Duration::ZERO,
                    });
                    break;
                }
            };
            if let Some(limit) = &listing.truncated {
                warn!(upstream = %name, %kind, limit, "the list was cut short");
            }
            let digest = list_cache::digest(&listing.items);
            let items = listing.items.iter().filter(|item| item.flaw.is_none()).count();
            listed.items[half] = items;
            debug!(upstream = %name, %kind, items, "read");
            let fresh_until = listing.ttl.map(|ttl| Instant::now() + ttl);
            let relist = listing.ttl.map(|ttl| Instant::now() + lifetime(ttl));
            let Listing { items, is_private, truncated, .. } = listing;
            let cut = truncated.map(Into::into);
            let snapshot = Arc::new(Snapshot { items, fresh_until, is_private, cut });
            if self.kept.is_some() && self.kept_digests[kind.index()] != Some(digest) {
                listed.keep[half] = Some((kind, digest, Arc::clone(&snapshot)));
            }
            read.push((kind, snapshot));
            listed.again = listed.again.into_iter().chain(relist).min();
            listed.digests[half] = Some(digest);
        }
        // One behind the other: who hears of a topic hears of both of its kinds at once.
        for (kind, snapshot) in read {
            self.publish(kind, &snapshot);
        }
        done.map(|()| listed)
    }
}

impl Plan {
    /// A change was told: the first is read at once, and those right behind a read are read together.
    fn press(&mut self, now: Instant) {
        let is_echo = self.done.is_some_and(|done| now < done + BURST);
        let (pause, pressed) = match is_echo {
            true => (self.pause, Pressed::ByEcho),
            false => (self.pause.min(STORM), Pressed::ByChange),
        };
        let ready = self.last_read.map_or(now, |read| read + pause);
        if self.pressed == Pressed::Not && ready <= now {
            // It has been quiet.
            self.pause = BURST;
        } else {
            self.pressed = self.pressed.max(pressed);
        }
        let soon = ready.max(now);
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// The topic was read: under pressure the next pause is longer. Tells whether it was anything new.
    fn relax(&mut self, digests: [Option<u64>; 2]) -> bool {
        self.done = Some(Instant::now());
        let is_new = std::mem::replace(&mut self.digests, digests) != digests;
        let longest = match std::mem::take(&mut self.pressed) {
            Pressed::Not => return is_new,
            Pressed::ByEcho if !is_new => FALSE_ALARMS,
            Pressed::ByEcho | Pressed::ByChange => STORM,
        };
        self.pause = (self.pause * 2).min(longest);
        is_new
    }
}

/// What an upstream that is connected says of itself.
fn introduction(about: &About) -> Introduction {
    Introduction {
        capabilities: about.capabilities.clone(),
        instructions: about.instructions.clone(),
    }
}

/// When a list with this time to live is read again. It varies by a fifth, so that the lists of many
/// upstreams do not fall due together (spec, caching: whoever polls MUST apply jitter).
fn lifetime(ttl: Duration) -> Duration {
    let ttl = if ttl.is_zero() { NO_TTL } else { ttl.max(MIN_TTL) };
    jitter::spread(ttl)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => promptly(tokio::time::sleep_until(at)).await,
        None => std::future::pending().await,
    }
}
