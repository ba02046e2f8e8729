//! Limits that all replicas count together, in the store.
//!
//! All limits of a request are charged by one script, or none. Rates follow the clock of the store.
//! A concurrency limit counts what each living replica has reported last, so that the requests of a
//! replica that has ended count no more.
//!
//! A reply that is late decides for its own request only: the replica decides that one alone, with
//! caution because the others go on, and settles the difference when the reply comes. So it does
//! with whatever it admits without the store.
//!
//! Invariants: with the store, never more requests are admitted than the limits allow for one
//! process. The store has for each replica at least the requests that it has admitted and that are
//! in progress. Each request that is admitted is charged once; only a request whose reply is lost
//! with its connection may be charged twice, or charged although it was refused.

pub(crate) mod limit_reports;
mod store_contents;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;
use crate::store::{
    Charge, ChargeReply, LimitStore, Roster, SharedAdmission, SharedLimit, StoreError,
};
use limit_reports::LimitReports;
use store_contents::StoreContents;
use weir_base::tasks::sync::Mutex;
use weir_base::text::hex::hex;

/// Limits that all replicas count together.
pub struct SharedLimits {
    shared: Arc<Shared>,
    store: Arc<dyn LimitStore>,
    key: hmac::Key,
    reports: Mutex<LimitReports>,
    /// Something has to be reported.
    changed: Notify,
    /// Replies that were late. If there are too many, they count as lost.
    late: mpsc::Sender<LateReply>,
    late_replies: Mutex<Option<mpsc::Receiver<LateReply>>>,
    contents: Mutex<StoreContents>,
}

/// Handling of limits while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum OnStoreDown {
    /// Each replica admits its share: what is left of the limit, divided by the last known number
    /// of replicas.
    Share,
    /// Requests that a limit counts are refused.
    Refuse,
}

impl SharedLimits {
    pub(crate) fn new(shared: Arc<Shared>, store: Arc<dyn LimitStore>) -> Self {
        let secret = shared.keys.derive("fleet buckets").next().expect("there is a key");
        let (late, late_replies) = mpsc::channel(MAX_LATE);
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &*secret),
            shared,
            store,
            reports: Mutex::default(),
            changed: Notify::new(),
            late,
            late_replies: Mutex::new(Some(late_replies)),
            contents: Mutex::default(),
        }
    }

    // === Requests ===

    /// Returns the name of a bucket in the store: a keyed hash of its limit and its subject, which
    /// may be the name of a client.
    pub fn bucket(&self, limit: &[u8; 32], subject: &str) -> String {
        let mut hash = hmac::Context::with_key(&self.key);
        hash.update(limit);
        hash.update(subject.as_bytes());
        hex(&hash.sign().as_ref()[..16])
    }

    /// Returns the number of replicas among which a limit is divided, as it was known last.
    pub fn share(&self) -> u32 {
        let state = self.shared.state();
        match state.membership.is_known() {
            true => u32::try_from(state.membership.replicas().len()).unwrap_or(u32::MAX).max(1),
            false => self.shared.known_count.get(),
        }
    }

    /// Charges all limits of a request, whose slots were taken, or none. Without the store, or if
    /// its reply is late, this replica decides alone.
    pub async fn charge(&self, limits: Vec<SharedLimit>) -> SharedAdmission {
        if self.is_store_away() {
            return self.admit_uncharged(&limits);
        }
        let mut reply = self.store.charge(self.charge_of(&limits));
        match timeout(self.shared.settings.store.timeout, &mut reply).await {
            Ok(Ok(reply)) => {
                self.reports.lock().learn(&limits, &reply, Instant::now());
                reply.admission
            }
            Ok(Err(_)) => {
                self.shared.metrics.store_errors.increment();
                self.admit_uncharged(&limits)
            }
            Err(_) => {
                self.shared.metrics.store_errors.increment();
                let admission = self.decide_alone(&limits);
                let was_admitted = admission == SharedAdmission::Admitted;
                let late = LateReply { reply, limits, was_admitted };
                if let Err(lost) = self.late.try_send(late) {
                    let LateReply { limits, was_admitted, .. } = lost.into_inner();
                    self.settle(&limits, was_admitted, Err(StoreError::Late));
                }
                admission
            }
        }
    }

    /// Returns whether limits are handled without the store.
    fn is_store_away(&self) -> bool {
        let is_away = self.contents.lock().is_away();
        is_away || !self.is_store_up()
    }

    fn is_store_up(&self) -> bool {
        self.shared.state().membership.is_store_up(Instant::now())
    }

    fn charge_of(&self, limits: &[SharedLimit]) -> Charge {
        let now = Instant::now();
        let (age, restores) = {
            let contents = self.contents.lock();
            (contents.least_age(now), contents.may_have_lost_charges(now))
        };
        let buckets = self.reports.lock().charges(limits, now);
        let replica = self.shared.instance().to_string();
        Charge { replica, share: self.share(), age, restores, buckets }
    }

    /// Decides about a request alone. What is admitted is charged later.
    fn admit_uncharged(&self, limits: &[SharedLimit]) -> SharedAdmission {
        let admission = self.decide_alone(limits);
        if admission == SharedAdmission::Admitted {
            self.owe(limits, 1);
        }
        admission
    }

    fn decide_alone(&self, limits: &[SharedLimit]) -> SharedAdmission {
        match self.shared.settings.on_store_down {
            OnStoreDown::Refuse => SharedAdmission::Refused(0, REFUSED_RETRY),
            OnStoreDown::Share => {
                let (share, is_away) = (self.share(), self.is_store_away());
                let mut reports = self.reports.lock();
                reports.admit_share(limits, share, Instant::now(), is_away)
            }
        }
    }

    /// Settles a request that was decided before the reply of the store.
    fn settle(
        &self,
        limits: &[SharedLimit],
        was_admitted: bool,
        reply: Result<ChargeReply, StoreError>,
    ) {
        let was_charged = reply.is_ok_and(|reply| {
            self.reports.lock().learn(limits, &reply, Instant::now());
            reply.admission == SharedAdmission::Admitted
        });
        match (was_admitted, was_charged) {
            (true, false) => self.owe(limits, 1),
            (false, true) => self.owe(limits, -1),
            (true, true) | (false, false) => {}
        }
    }

    fn owe(&self, limits: &[SharedLimit], count: i64) {
        self.reports.lock().owe(limits, count);
        self.changed.notify_one();
    }

    /// Counts a request in progress in each of these buckets. It is reported with its charge, or
    /// else soon.
    pub fn take_slots(&self, buckets: &[String], is_charged: bool) {
        self.reports.lock().take_slots(buckets, !is_charged);
        if !is_charged {
            self.changed.notify_one();
        }
    }

    /// Counts a request in progress less in each of these buckets, which is reported soon.
    pub fn return_slots(&self, buckets: &[String]) {
        self.reports.lock().return_slots(buckets);
        self.changed.notify_one();
    }

    // === Heartbeat ===

    /// Takes over what a heartbeat has found, and has all requests in progress be reported: the
    /// store, or a replica to which this one seemed to have ended, may have forgotten them.
    pub(crate) fn learn_contents(&self, roster: &Roster) {
        let now = Instant::now();
        let is_back = self.contents.lock().learn(roster, now);
        let mut reports = self.reports.lock();
        reports.report_all(is_back, now);
        if reports.has_pending() {
            self.changed.notify_one();
        }
    }

    /// Takes note of the end of a heartbeat, for which the store may have taken longer than a
    /// request waits.
    pub(crate) fn end_beat(&self, has_failed: bool, is_slow: bool) {
        self.contents.lock().end_beat(has_failed, is_slow);
    }

    // === Reports ===

    /// Reads replies that were late, and reports to the store, until `stop` fires.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        tokio::join!(self.read_late_replies(stop), self.send_reports(stop));
        // What is owed would be lost with this process.
        let _ = timeout(LAST_REPORT, self.send_report()).await;
    }

    async fn read_late_replies(&self, stop: &CancellationToken) {
        let Some(mut late) = self.late_replies.lock().take() else { return };
        let mut waiting = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(ArrivedReply { limits, was_admitted, reply }) = waiting.next() => {
                    self.settle(&limits, was_admitted, reply);
                }
                Some(late) = late.recv(), if waiting.len() < MAX_LATE => {
                    waiting.push(late.arrive());
                }
            }
        }
    }

    async fn send_reports(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(self.changed.notified()).await.is_some() {
            self.send_report().await;
        }
    }

    /// Reports what has changed. What cannot be sent is sent after the next heartbeat.
    async fn send_report(&self) {
        if !self.is_store_up() {
            return;
        }
        let reports = self.reports.lock().take_reports(Instant::now());
        if reports.is_empty() {
            return;
        }
        let sent = self.store.report(self.shared.instance().to_string(), reports.clone()).await;
        if sent.is_err() {
            self.shared.metrics.store_errors.increment();
        }
        let mut state = self.reports.lock();
        state.reported(reports, sent.is_ok());
        if sent.is_ok() && state.has_pending() {
            self.changed.notify_one();
        }
    }
}

impl fmt::Debug for SharedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimits").finish_non_exhaustive()
    }
}

/// Charge whose request was decided before the store has replied.
struct LateReply {
    reply: BoxFuture<'static, Result<ChargeReply, StoreError>>,
    limits: Vec<SharedLimit>,
    was_admitted: bool,
}

/// Late reply that has arrived, or was lost.
struct ArrivedReply {
    limits: Vec<SharedLimit>,
    was_admitted: bool,
    reply: Result<ChargeReply, StoreError>,
}

impl LateReply {
    async fn arrive(self) -> ArrivedReply {
        let Self { reply, limits, was_admitted } = self;
        ArrivedReply { limits, was_admitted, reply: reply.await }
    }
}

/// Most late replies that are waited for at a time, and as many that begin to be. The requests of
/// others count as if their replies were lost.
pub(crate) const MAX_LATE: usize = 10_000;
/// Retry time of requests that are refused because the store is away.
const REFUSED_RETRY: Duration = Duration::from_secs(1);
/// Longest time for the last report of a replica that stops.
const LAST_REPORT: Duration = Duration::from_millis(500);
