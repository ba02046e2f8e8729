//! Rate and concurrency limits.
//!
//! A [`Limit`] counts requests in buckets: one per client, user, role or upstream, or one for all.
//! If several limits apply to a request, all are charged or none. Clients without credentials are
//! counted by the address of the connection, so that no header or parameter changes the bucket.
//!
//! Invariants: a refused request is not charged, and its error says how long to wait. The number of
//! buckets is bounded. A [`Permit`] returns its concurrency slots when it is dropped.

mod permit;
mod shared;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;

use super::Principal;
pub use crate::policy::limits::permit::Permit;
use table::{Bucket, BucketKey, BucketSubject, BucketTable};
use weir_base::secrets::sha256::sha256;
use weir_base::time::rate_limit::RequestRate;
use weir_fleet::SharedLimits;
use weir_mcp::name::UpstreamName;
use weir_mcp::pattern::Pattern;
use weir_mcp::uri::CanonicalUri;

/// One limit: a rate, a concurrency, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Scope of requests that are counted together.
    pub per: LimitScope,
    /// Methods that it counts.
    pub methods: Vec<Pattern>,
    /// Items that it counts, as `<upstream>/<original name>`; `None` for all requests.
    pub item: Option<Pattern>,
    /// Rate of requests.
    pub rate: Option<RequestRate>,
    /// Number of concurrent requests.
    pub concurrency: Option<usize>,
}

impl Limit {
    /// Returns whether the limit counts a request of this method about this item,
    /// `<upstream>/<original name>`, or about none.
    pub fn applies_to(&self, method: &str, item: Option<&str>) -> bool {
        // The item comes last: other spellings of a URI are computed only if everything else fits.
        if !self.methods.iter().any(|pattern| pattern.matches(method)) {
            return false;
        }
        match (&self.item, item) {
            (Some(pattern), Some(item)) => {
                pattern.matches(item)
                    || method.starts_with("resources/") && matches_any_spelling(pattern, item)
            }
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Returns whether the limit counts every request of its scope, and therefore has counted a
    /// listen request as a whole.
    fn covers_all_requests(&self) -> bool {
        let all = self.methods.iter().any(|pattern| pattern.as_str() == "*");
        all && self.item.is_none() && self.per != LimitScope::Upstream
    }
}

/// Returns whether the pattern matches any reading of an item's URI, so that another spelling
/// cannot bypass a limit.
fn matches_any_spelling(pattern: &Pattern, item: &str) -> bool {
    let Some((upstream, uri)) = item.split_once('/') else { return false };
    let prefix = &item[..=upstream.len()];
    CanonicalUri::parse(uri).is_ok_and(|uri| pattern.matches_uri(prefix, &uri))
}

/// Formats a limit as `600/min, 60 at once; at most 4 under way, per client`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.map(|rate| rate.to_string());
        let slots = self.concurrency.map(|count| format!("at most {count} under way"));
        let words: Vec<_> = rate.into_iter().chain(slots).collect();
        let per = match self.per {
            LimitScope::Client => "per client",
            LimitScope::User => "per user",
            LimitScope::Role => "per role",
            LimitScope::Upstream => "per upstream",
            LimitScope::Global => "for all together",
        };
        write!(f, "{}, {per}", words.join("; "))
    }
}

/// Scope of requests that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum LimitScope {
    /// Each client; without credentials, each address.
    Client,
    /// Each user, with any client.
    User,
    /// All clients of one role.
    Role,
    /// All requests to one upstream.
    Upstream,
    /// All requests.
    Global,
}

/// Properties of a request that limits depend on.
#[derive(Debug, Clone, Copy)]
pub struct LimitRequest<'a> {
    /// Method of the request.
    pub method: &'a str,
    /// Principal of the client.
    pub principal: &'a Principal,
    /// Peer address of the connection.
    pub from: Option<IpAddr>,
    /// Item of the request, if the client may use it: the upstream, and the name or URI at the
    /// upstream.
    pub item: Option<(&'a UpstreamName, &'a str)>,
    /// True for a part of a request that was charged as a whole: limits on all requests do not
    /// count it.
    pub is_part: bool,
}

/// A limit is reached; nothing was charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limit {limit} is reached")]
pub struct RateLimited {
    /// Time until the request would be admitted, without other requests. An estimate for a
    /// concurrency limit.
    pub retry_after: Duration,
    /// Index in the configuration of the limit with the longest wait.
    pub limit: usize,
}

/// Remaining quota of a limit for one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainingQuota {
    /// Index of the limit in the configuration.
    pub limit: usize,
    /// Number of requests that it would admit at once, if it has a rate.
    pub requests: Option<u32>,
    /// Number of further concurrent requests, if it has a concurrency.
    pub places: Option<usize>,
}

/// All limits of a configuration, with their buckets.
#[derive(Debug)]
pub struct Limits {
    limits: Vec<Limit>,
    /// Hash of each limit, which names it in the store of a fleet.
    hashes: Vec<[u8; 32]>,
    /// True if any limit has an item pattern.
    has_patterns: bool,
    /// Buckets of principals and other named subjects, whose number the configuration or an
    /// identity provider bounds.
    by_principal: BucketTable,
    /// Buckets of addresses, in a separate table: many unauthenticated clients cannot displace the
    /// bucket of a known client.
    by_address: BucketTable,
    /// True once any request was refused; until then the look-up of refusals is skipped.
    has_refused: AtomicBool,
    start: Instant,
    /// Replicas that count together, if there are any.
    fleet: Option<Arc<SharedLimits>>,
}

/// Limits that count a request, with their index and bucket; without an allocation if they are few.
type Counting<'a> = SmallVec<[Counted<'a>; 4]>;

/// Limit that counts a request.
struct Counted<'a> {
    /// Index of the limit in the configuration.
    number: usize,
    limit: &'a Limit,
    bucket: Arc<Bucket>,
    /// Name of the bucket in the store of the fleet; `None` if this process counts alone.
    shared: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        let table = || BucketTable::new(OWN_LIMITS, MAX_BUCKETS);
        Self {
            limits: Vec::new(),
            hashes: Vec::new(),
            has_patterns: false,
            by_principal: table(),
            by_address: table(),
            has_refused: false.into(),
            start: Instant::now(),
            fleet: None,
        }
    }
}

impl Limits {
    /// Creates the limits with full buckets.
    #[cfg(test)]
    fn new(limits: Vec<Limit>) -> Self {
        Self::default().with_limits(limits)
    }

    /// Creates the successor of these limits: unchanged limits, and Weir's own, keep their buckets.
    pub(super) fn with_limits(&self, limits: Vec<Limit>) -> Self {
        let mut new_indices: Vec<Option<usize>> = vec![None; self.limits.len() + OWN_LIMITS];
        for (number, limit) in limits.iter().enumerate() {
            let is_same = |was: &usize| self.limits[*was] == *limit && new_indices[*was].is_none();
            if let Some(was) = (0..self.limits.len()).find(is_same) {
                new_indices[was] = Some(number);
            }
        }
        for own in 0..OWN_LIMITS {
            new_indices[self.limits.len() + own] = Some(limits.len() + own);
        }
        let count = limits.len() + OWN_LIMITS;
        Self {
            has_patterns: limits.iter().any(|limit| limit.item.is_some()),
            by_principal: self.by_principal.with_limits(&new_indices, count),
            by_address: self.by_address.with_limits(&new_indices, count),
            has_refused: self.has_refused.load(Ordering::Relaxed).into(),
            start: self.start,
            fleet: self.fleet.clone(),
            hashes: (0..limits.len()).map(|number| hash_of(&limits, number)).collect(),
            limits,
        }
    }

    /// Returns the same limits, which all replicas of a fleet count together.
    pub(super) fn in_fleet(self, fleet: Option<Arc<SharedLimits>>) -> Self {
        Self { fleet, ..self }
    }

    /// Returns whether there are no limits.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Returns the limit of this index.
    pub fn get(&self, number: usize) -> Option<&Limit> {
        self.limits.get(number)
    }

    /// Returns whether any limit depends on the item or the upstream of a request.
    pub fn depend_on_items(&self) -> bool {
        self.has_patterns || self.limits.iter().any(|limit| limit.per == LimitScope::Upstream)
    }

    /// Admits a request and charges every limit that counts it, or none. In a fleet all replicas
    /// count together, and the request waits for the store.
    pub async fn acquire(&self, charge: &LimitRequest<'_>) -> Result<Permit, RateLimited> {
        match &self.fleet {
            None => self.acquire_here(charge),
            Some(_) if self.limits.is_empty() => Ok(Permit::default()),
            Some(fleet) => shared::acquire(self, fleet, charge).boxed().await,
        }
    }

    /// Admits a request without waiting, and charges every limit that counts it, or none. Of a
    /// fleet, this replica admits its share.
    pub fn acquire_here(&self, charge: &LimitRequest<'_>) -> Result<Permit, RateLimited> {
        if self.limits.is_empty() {
            return Ok(Permit::default());
        }
        let applicable = self.applicable(charge, self.now());
        let share = self.fleet.as_ref().map_or(1, |fleet| fleet.share());
        self.charge_all(charge, &applicable, |_| share)?;
        Ok(Permit::new(self.fleet.as_ref(), &applicable, false))
    }

    /// Charges the buckets of this process, or none. `share` returns the number of replicas that a
    /// limit is divided among.
    fn charge_all(
        &self,
        charge: &LimitRequest<'_>,
        applicable: &Counting<'_>,
        share: impl Fn(&Counted<'_>) -> u32,
    ) -> Result<(), RateLimited> {
        let now = self.now();
        // Locks are always taken in the order of the limits, so there is no deadlock.
        let mut states: SmallVec<[_; 4]> =
            applicable.iter().map(|counted| counted.bucket.lock()).collect();
        let waits = applicable.iter().zip(&states).map(|(counted, state)| {
            let Counted { number, limit, .. } = counted;
            let share = share(counted);
            let wait = |rate: RequestRate| state.gcra.wait(rate.share(share), now);
            let rate = limit.rate.map_or(Duration::ZERO, wait);
            let most = limit.concurrency.map(|max| (max / share as usize).max(1));
            let is_full = most.is_some_and(|most| state.in_flight >= most);
            let retry_after = if is_full { rate.max(FULL_RETRY) } else { rate };
            RateLimited { retry_after, limit: *number }
        });
        let longest = waits.max_by_key(|refused| refused.retry_after);
        if let Some(refused) = longest.filter(|refused| !refused.retry_after.is_zero()) {
            drop(states);
            self.count_refusal(charge.principal, charge.from, now);
            return Err(refused);
        }
        for (counted, state) in applicable.iter().zip(&mut states) {
            if let Some(rate) = counted.limit.rate {
                state.gcra.charge(rate.share(share(counted)), now);
            }
            state.in_flight += usize::from(counted.limit.concurrency.is_some());
        }
        Ok(())
    }

    /// Admits the continuation of a request that was admitted before: it is not charged, and takes
    /// its slots back even if they are in use.
    pub fn resume(&self, charge: &LimitRequest<'_>) -> Permit {
        let applicable = self.applicable(charge, self.now());
        for counted in applicable.iter().filter(|it| it.limit.concurrency.is_some()) {
            counted.bucket.lock().in_flight += 1;
        }
        Permit::new(self.fleet.as_ref(), &applicable, false)
    }

    /// Returns the remaining quota of each limit that would count a request. Nothing is charged.
    pub fn remaining(&self, charge: &LimitRequest<'_>) -> Vec<RemainingQuota> {
        let now = self.now();
        let left = |Counted { number, limit, bucket, .. }: Counted<'_>| {
            let state = bucket.lock();
            let requests = limit.rate.map(|rate| state.gcra.remaining(rate, now));
            let places = limit.concurrency.map(|max| max.saturating_sub(state.in_flight));
            RemainingQuota { limit: number, requests, places }
        };
        self.applicable(charge, now).into_iter().map(left).collect()
    }

    /// Returns the limits that count a request, with their buckets.
    fn applicable(&self, charge: &LimitRequest<'_>, now: u64) -> Counting<'_> {
        let own = charge.item.filter(|_| self.has_patterns);
        let own = own.map(|(upstream, own)| [upstream.as_str(), "/", own].concat());
        let counts = |limit: &Limit| {
            let is_new = !charge.is_part || !limit.covers_all_requests();
            is_new && limit.applies_to(charge.method, own.as_deref())
        };
        let applicable = self.limits.iter().enumerate().filter(|(_, limit)| counts(limit));
        let applicable = applicable.filter_map(|(number, limit)| {
            let principal = charge.principal;
            let (table, subject) = match limit.per {
                LimitScope::Client => {
                    self.table_and_subject(principal, principal.client(), charge.from)
                }
                LimitScope::User => {
                    self.table_and_subject(principal, principal.user(), charge.from)
                }
                LimitScope::Role => {
                    (&self.by_principal, BucketSubject::Name(Arc::clone(&principal.role)))
                }
                LimitScope::Upstream => {
                    (&self.by_principal, BucketSubject::Name(charge.item?.0.as_str().into()))
                }
                LimitScope::Global => (&self.by_principal, BucketSubject::All),
            };
            let shared = self
                .fleet
                .as_ref()
                .and_then(|fleet| Some(fleet.bucket(&self.hashes[number], subject.shared_name()?)));
            let bucket = table.bucket(BucketKey { limit: number, subject }, now);
            Some(Counted { number, limit, bucket, shared })
        });
        applicable.collect()
    }

    fn table_and_subject(
        &self,
        principal: &Principal,
        name: &Arc<str>,
        from: Option<IpAddr>,
    ) -> (&BucketTable, BucketSubject) {
        match from {
            Some(address) if principal.is_anonymous() => {
                (&self.by_address, BucketSubject::at(address))
            }
            _ => (&self.by_principal, BucketSubject::Name(Arc::clone(name))),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    // === Refusals and failed logins ===

    /// Returns the time to wait if so many requests of this client were refused that its next
    /// request should not even be read.
    pub fn flood_retry_after(
        &self,
        principal: &Principal,
        from: Option<IpAddr>,
    ) -> Option<Duration> {
        if !self.has_refused.load(Ordering::Relaxed) {
            return None;
        }
        let (table, subject) = self.table_and_subject(principal, principal.user(), from);
        let bucket = table.find(&self.own_key(REFUSALS, subject))?;
        let wait = bucket.lock().gcra.wait(refusal_rate(), self.now());
        (!wait.is_zero()).then_some(wait)
    }

    fn count_refusal(&self, principal: &Principal, from: Option<IpAddr>, now: u64) {
        self.has_refused.store(true, Ordering::Relaxed);
        let (table, subject) = self.table_and_subject(principal, principal.user(), from);
        count(table, self.own_key(REFUSALS, subject), refusal_rate(), now);
    }

    /// Counts unknown credentials. Returns the time to wait for an address with more than 20 a
    /// minute.
    pub(crate) fn count_failed_login(&self, from: Option<IpAddr>) -> Option<Duration> {
        let key = self.own_key(FAILED_LOGINS, BucketSubject::at(from?));
        count(&self.by_address, key, failed_login_rate(), self.now())
    }

    /// Returns the time that an address has to wait after too many unknown credentials.
    pub(crate) fn failed_logins(&self, from: Option<IpAddr>) -> Option<Duration> {
        let key = self.own_key(FAILED_LOGINS, BucketSubject::at(from?));
        let wait = self.by_address.find(&key)?.lock().gcra.wait(failed_login_rate(), self.now());
        (!wait.is_zero()).then_some(wait)
    }

    /// Returns the key of one of Weir's own limits.
    fn own_key(&self, own: usize, subject: BucketSubject) -> BucketKey {
        BucketKey { limit: self.limits.len() + own, subject }
    }
}

/// Hash of a limit, which names it in the store: a limit that is configured twice has two.
fn hash_of(limits: &[Limit], number: usize) -> [u8; 32] {
    let limit = &limits[number];
    match limits[..number].iter().filter(|earlier| *earlier == limit).count() {
        0 => sha256(format!("{limit:?}")),
        earlier => sha256(format!("{limit:?} {earlier}")),
    }
}

/// Charges a bucket, or returns the time until that is possible.
fn count(table: &BucketTable, key: BucketKey, rate: RequestRate, now: u64) -> Option<Duration> {
    let bucket = table.bucket(key, now);
    let mut state = bucket.lock();
    let wait = state.gcra.wait(rate, now);
    if wait.is_zero() {
        state.gcra.charge(rate, now);
        return None;
    }
    Some(wait)
}

/// Most buckets of one table: about 20 MiB.
const MAX_BUCKETS: usize = 100_000;
/// Retry time at a concurrency limit: the end of the running requests is unknown.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// Weir's own limits are numbered behind those of the configuration.
const OWN_LIMITS: usize = 2;
const REFUSALS: usize = 0;
const FAILED_LOGINS: usize = 1;

/// Rate of refusals up to which requests of a client are still read. A well-behaved client waits as
/// long as the error says and gets none of them in a row.
fn refusal_rate() -> RequestRate {
    RequestRate::new(10, Duration::from_secs(1), 100)
}

/// Rate of attempts with unknown credentials.
fn failed_login_rate() -> RequestRate {
    RequestRate::new(20, Duration::from_secs(60), 20)
}

#[cfg(test)]
mod tests;
