//! How often something may be done, and how much of it at a time.
//!
//! A [`Limit`] counts requests in buckets: one for each client, user, role or upstream, or one for all. Whatever
//! several limits have to say about a request, all are charged or none. Who shows no credentials is counted by
//! the address of the connection: nothing that a client says of itself makes it somebody else.
//!
//! Promises: a refused request takes nothing, and is told how long it has to wait; the buckets are bounded; a
//! [`Permit`] gives its places back when it is dropped.
//!
//! Knows nothing of: views, the wire, and which requests there are.

pub mod gcra;
mod table;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::Principal;
use crate::mcp::name::UpstreamName;
use crate::mcp::pattern::Pattern;
use crate::mcp::uri::CanonicalUri;
pub use gcra::Rate;
use table::{Bucket, Key, Table, Who};

/// One limit: a rate, or how many at a time, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Who is counted together.
    pub per: Per,
    /// The methods that it counts.
    pub methods: Vec<Pattern>,
    /// The items that it counts, as `<upstream>/<original name>`; without one, whatever a request is about.
    pub item: Option<Pattern>,
    /// How often.
    pub rate: Option<Rate>,
    /// How many at a time.
    pub concurrency: Option<usize>,
}

impl Limit {
    /// Whether it counts a request of this method about this item, `<upstream>/<original name>`, or about none.
    pub fn counts(&self, method: &str, item: Option<&str>) -> bool {
        // The item last: another spelling of a URI is looked for only where all else fits.
        if !self.methods.iter().any(|pattern| pattern.matches(method)) {
            return false;
        }
        match (&self.item, item) {
            (Some(pattern), Some(item)) => {
                pattern.matches(item) || method.starts_with("resources/") && spells(pattern, item)
            }
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Whether it counts every request of whoever it counts together, so that it has counted a listen as a whole.
    fn is_of_all(&self) -> bool {
        let all = self.methods.iter().any(|pattern| pattern.as_str() == "*");
        all && self.item.is_none() && self.per != Per::Upstream
    }
}

/// Whether the pattern matches what some reader takes the URI of an item for: another spelling is no way around a limit.
fn spells(pattern: &Pattern, item: &str) -> bool {
    let Some((upstream, uri)) = item.split_once('/') else { return false };
    let prefix = &item[..=upstream.len()];
    CanonicalUri::parse(uri).is_ok_and(|uri| pattern.matches_uri(prefix, &uri))
}

/// In words, as `one in 100ms, 60 at once; at most 4 under way, per client`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.map(|rate| rate.to_string());
        let places = self.concurrency.map(|count| format!("at most {count} under way"));
        let words: Vec<_> = rate.into_iter().chain(places).collect();
        let per = match self.per {
            Per::Client => "per client",
            Per::User => "per user",
            Per::Role => "per role",
            Per::Upstream => "per upstream",
            Per::Global => "for all together",
        };
        write!(f, "{}, {per}", words.join("; "))
    }
}

/// Who is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Each client for itself; without credentials, each address.
    Client,
    /// Each user, whichever client they use.
    User,
    /// All in one role.
    Role,
    /// All that goes to one upstream.
    Upstream,
    /// All.
    Global,
}

/// A request, as limits see it.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    /// The method's name on the wire.
    pub method: &'a str,
    /// Who asks.
    pub principal: &'a Principal,
    /// Where its connection comes from.
    pub from: Option<IpAddr>,
    /// The item that it is about, if it is about one that its client can reach: the upstream, and the original name or
    /// URI.
    pub item: Option<(&'a UpstreamName, &'a str)>,
    /// Whether it is a part of a request that was charged as such: then limits on all requests do not count it.
    pub is_part: bool,
}

/// Not now. Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limit {limit} is reached")]
pub struct Refused {
    /// When it would be admitted, if nobody else comes first. A guess where too many are under way.
    pub retry_after: Duration,
    /// The limit that is in the way for the longest, by its number in the configuration, from 0.
    pub limit: usize,
}

/// What a limit has left for somebody at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The limit, by its number in the configuration, from 0.
    pub limit: usize,
    /// How many more it would admit at once, where it has a rate.
    pub requests: Option<u32>,
    /// How many more may be under way, where that is limited.
    pub places: Option<usize>,
}

/// All limits.
#[derive(Debug)]
pub struct Limits {
    limits: Vec<Limit>,
    /// Whether any of them has a pattern for items.
    has_patterns: bool,
    /// Buckets of those who have names, which the configuration bounds, or an identity provider.
    named: Table,
    /// Buckets of addresses, apart from the others: no crowd of strangers takes a known client's place.
    strangers: Table,
    /// Whether any request was ever refused: until then nobody has to be looked up for it.
    has_refused: AtomicBool,
    start: Instant,
}

/// A request's places among those that may be under way; none, where nothing limits them. They return when it is
/// dropped.
#[derive(Debug, Default)]
pub struct Permit {
    places: SmallVec<[Arc<Bucket>; 2]>,
    is_away: bool,
}

/// The limits that count a request, by number, and the buckets; of a few nothing is allocated.
type Counting<'a> = SmallVec<[(usize, &'a Limit, Arc<Bucket>); 4]>;

impl Limits {
    /// Makes the limits, with every bucket full.
    pub fn new(limits: Vec<Limit>) -> Self {
        let table = || Table::new(limits.len() + OWN_LIMITS, MAX_BUCKETS);
        let (named, strangers, has_refused) = (table(), table(), AtomicBool::new(false));
        let has_patterns = limits.iter().any(|limit| limit.item.is_some());
        Self { named, strangers, has_refused, has_patterns, limits, start: Instant::now() }
    }

    /// The limits that come after these: one that is written as before goes on with what it has counted, and so do
    /// Weir's own.
    pub(super) fn then(&self, limits: Vec<Limit>) -> Self {
        let mut places: Vec<Option<usize>> = vec![None; self.limits.len() + OWN_LIMITS];
        for (number, limit) in limits.iter().enumerate() {
            let was = self
                .limits
                .iter()
                .enumerate()
                .position(|(was, known)| known == limit && places[was].is_none());
            if let Some(was) = was {
                places[was] = Some(number);
            }
        }
        for own in 0..OWN_LIMITS {
            places[self.limits.len() + own] = Some(limits.len() + own);
        }
        let count = limits.len() + OWN_LIMITS;
        let has_refused = AtomicBool::new(self.has_refused.load(Ordering::Relaxed));
        let (named, strangers) =
            (self.named.then(&places, count), self.strangers.then(&places, count));
        let has_patterns = limits.iter().any(|limit| limit.item.is_some());
        Self { named, strangers, has_refused, has_patterns, limits, start: self.start }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The limit of this number.
    pub fn get(&self, number: usize) -> Option<&Limit> {
        self.limits.get(number)
    }

    /// Whether it matters which item a request is about.
    pub fn look_at_items(&self) -> bool {
        self.has_patterns || self.limits.iter().any(|limit| limit.per == Per::Upstream)
    }

    /// Admits a request and charges every limit that counts it, or none.
    pub fn admit(&self, charge: &Charge<'_>) -> Result<Permit, Refused> {
        if self.limits.is_empty() {
            return Ok(Permit::default());
        }
        let now = self.now();
        let counting = self.counting(charge, now);
        // In the order of the limits, as everybody does: so nobody waits for anybody in a circle.
        let mut states: SmallVec<[_; 4]> =
            counting.iter().map(|(.., bucket)| bucket.lock()).collect();
        let waits = counting.iter().zip(&states).map(|((number, limit, _), state)| {
            let rate = limit.rate.map_or(Duration::ZERO, |rate| state.gcra.wait(rate, now));
            let is_crowded = limit.concurrency.is_some_and(|most| state.in_flight >= most);
            let retry_after = if is_crowded { rate.max(CROWDED_RETRY) } else { rate };
            Refused { retry_after, limit: *number }
        });
        let longest = waits.max_by_key(|refused| refused.retry_after);
        if let Some(refused) = longest.filter(|refused| !refused.retry_after.is_zero()) {
            drop(states);
            self.count_refusal(charge.principal, charge.from, now);
            return Err(refused);
        }
        for ((_, limit, _), state) in counting.iter().zip(&mut states) {
            if let Some(rate) = limit.rate {
                state.gcra.take(rate, now);
            }
            state.in_flight += usize::from(limit.concurrency.is_some());
        }
        drop(states);
        Ok(Permit::of(counting))
    }

    /// Admits what goes on with a request that was admitted before: it is not charged, and takes its places back
    /// even if somebody else has them now.
    pub fn readmit(&self, charge: &Charge<'_>) -> Permit {
        let permit = Permit::of(self.counting(charge, self.now()));
        permit.places.iter().for_each(|bucket| bucket.lock().in_flight += 1);
        permit
    }

    /// What is left of each limit that would count a request. Nothing is charged.
    pub fn left(&self, charge: &Charge<'_>) -> Vec<Left> {
        let now = self.now();
        let left = |(limit, rules, bucket): (usize, &Limit, Arc<Bucket>)| {
            let state = bucket.lock();
            let requests = rules.rate.map(|rate| state.gcra.left(rate, now));
            let places = rules.concurrency.map(|most| most.saturating_sub(state.in_flight));
            Left { limit, requests, places }
        };
        self.counting(charge, now).into_iter().map(left).collect()
    }

    /// The limits that count a request, and whose bucket it is.
    fn counting(&self, charge: &Charge<'_>, now: u64) -> Counting<'_> {
        let own = charge.item.filter(|_| self.has_patterns);
        let own = own.map(|(upstream, own)| [upstream.as_str(), "/", own].concat());
        let counts = |limit: &Limit| {
            let is_new = !charge.is_part || !limit.is_of_all();
            is_new && limit.counts(charge.method, own.as_deref())
        };
        let counting = self.limits.iter().enumerate().filter(|(_, limit)| counts(limit));
        let with_bucket = |(number, limit): (usize, &'_ Limit)| {
            let principal = charge.principal;
            let (table, who) = match limit.per {
                Per::Client => self.whose(principal, principal.client(), charge.from),
                Per::User => self.whose(principal, principal.user(), charge.from),
                Per::Role => (&self.named, Who::Name(Arc::clone(&principal.role))),
                Per::Upstream => (&self.named, Who::Name(charge.item?.0.as_str().into())),
                Per::Global => (&self.named, Who::All),
            };
            Some((number, table.bucket(Key { limit: number, who }, now)))
        };
        let counting = counting.filter_map(|(number, limit)| {
            let (number, bucket) = with_bucket((number, limit))?;
            Some((number, limit, bucket))
        });
        counting.collect()
    }

    fn whose(&self, principal: &Principal, name: &Arc<str>, from: Option<IpAddr>) -> (&Table, Who) {
        match from {
            Some(address) if principal.is_anonymous() => (&self.strangers, Who::at(address)),
            _ => (&self.named, Who::Name(Arc::clone(name))),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    // === The door ===

    /// Whether so many requests of this one have been refused that it is not worth while to read the next: then how
    /// long it has to wait.
    pub fn overrun(&self, principal: &Principal, from: Option<IpAddr>) -> Option<Duration> {
        if !self.has_refused.load(Ordering::Relaxed) {
            return None;
        }
        let (table, who) = self.whose(principal, principal.user(), from);
        let bucket = table.find(&Key { limit: self.limits.len() + REFUSALS, who })?;
        let wait = bucket.lock().gcra.wait(refusals(), self.now());
        (!wait.is_zero()).then_some(wait)
    }

    fn count_refusal(&self, principal: &Principal, from: Option<IpAddr>, now: u64) {
        self.has_refused.store(true, Ordering::Relaxed);
        let (table, who) = self.whose(principal, principal.user(), from);
        self.count(table, Key { limit: self.limits.len() + REFUSALS, who }, refusals(), now);
    }

    /// Counts credentials that nobody has. Those of one address above 20 a minute are told how long they have to wait.
    pub fn count_failed_login(&self, from: Option<IpAddr>) -> Option<Duration> {
        let key = Key { limit: self.limits.len() + LOGINS, who: Who::at(from?) };
        self.count(&self.strangers, key, logins(), self.now())
    }

    /// How long credentials from an address have to wait, since too many that nobody has came from there.
    pub fn failed_logins(&self, from: Option<IpAddr>) -> Option<Duration> {
        let key = Key { limit: self.limits.len() + LOGINS, who: Who::at(from?) };
        let wait = self.strangers.find(&key)?.lock().gcra.wait(logins(), self.now());
        (!wait.is_zero()).then_some(wait)
    }

    /// Charges a bucket, or tells how long it has to wait for that.
    fn count(&self, table: &Table, key: Key, rate: Rate, now: u64) -> Option<Duration> {
        let bucket = table.bucket(key, now);
        let mut state = bucket.lock();
        let wait = state.gcra.wait(rate, now);
        if wait.is_zero() {
            state.gcra.take(rate, now);
            return None;
        }
        Some(wait)
    }
}

impl Permit {
    /// A permit for what nobody counts: what whoever holds the program and its configuration does with it.
    pub fn unlimited() -> Self {
        Self::default()
    }

    fn of(counting: Counting<'_>) -> Self {
        let limiting = counting.into_iter().filter(|(_, limit, _)| limit.concurrency.is_some());
        Self { places: limiting.map(|(.., bucket)| bucket).collect(), is_away: false }
    }

    /// Whether it holds any place, so that it matters how long it is kept.
    pub fn holds_places(&self) -> bool {
        !self.places.is_empty()
    }

    /// Gives the places to others while a person is waited for, and then takes them back even if they are taken: the
    /// request is under way already.
    pub async fn aside<T>(&mut self, wait: impl Future<Output = T>) -> T {
        self.leave();
        let waited = wait.await;
        self.places.iter().for_each(|bucket| bucket.lock().in_flight += 1);
        self.is_away = false;
        waited
    }

    fn leave(&mut self) {
        if !std::mem::replace(&mut self.is_away, true) {
            self.places.iter().for_each(|bucket| bucket.lock().in_flight -= 1);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The most buckets of one table: some 20 MiB.
const MAX_BUCKETS: usize = 100_000;
/// When to try again where too many are under way: nobody knows when one of them ends.
const CROWDED_RETRY: Duration = Duration::from_secs(1);

/// Weir's own limits are numbered behind those of the configuration.
const OWN_LIMITS: usize = 2;
const REFUSALS: usize = 0;
const LOGINS: usize = 1;

/// Refusals that are worth reading a request for. A well-behaved client waits as long as it is told and gets none of
/// them in a row.
fn refusals() -> Rate {
    Rate::new(10, Duration::from_secs(1), 100)
}

/// Attempts with credentials that nobody has.
fn logins() -> Rate {
    Rate::new(20, Duration::from_secs(60), 20)
}

#[cfg(test)]
mod tests;
