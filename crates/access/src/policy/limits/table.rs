//! Table of the buckets, one per limit and subject.
//!
//! Invariants: the number of buckets is bounded. A full bucket equals a new one and is evicted when
//! its place is needed. While all buckets are in use, newcomers share one bucket per limit.
//! Evicting the oldest bucket instead would let an attacker with many addresses raise the total
//! rate; keeping all would let memory grow. To keep a bucket in use costs requests, and an attacker
//! who can afford that for all buckets has other means.
//!
//! Decision: docs/decisions/0017-limits.md

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dashmap::DashMap;

use weir_base::tasks::sync::{Mutex, MutexGuard};
use weir_base::time::rate_limit::Gcra;

/// Subject that a bucket counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum BucketSubject {
    /// A client, a user, a role or an upstream.
    Name(Arc<str>),
    /// An address, or a network of IPv6 (/64), in which a single machine has any number of
    /// addresses.
    Net(IpAddr),
    /// All requests.
    All,
}

/// Index of a limit, and its subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BucketKey {
    pub(super) limit: usize,
    pub(super) subject: BucketSubject,
}

/// State of one limit for one subject.
#[derive(Debug, Default)]
pub(super) struct Bucket(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) gcra: Gcra,
    /// Number of requests in progress.
    pub(super) in_flight: usize,
}

/// Bounded table of buckets.
#[derive(Debug)]
pub(super) struct BucketTable {
    buckets: DashMap<BucketKey, Arc<Bucket>>,
    /// Keys in the order in which eviction examines them.
    queue: Mutex<VecDeque<BucketKey>>,
    /// Shared buckets for newcomers while the table is full, one per limit.
    overflow: Vec<Arc<Bucket>>,
    max_buckets: usize,
}

impl BucketSubject {
    /// Returns the subject of an address.
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Net(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let prefix = u128::from(address) & (u128::MAX << 64);
                Ipv6Addr::from(prefix).into()
            }
        })
    }
}

impl BucketSubject {
    /// Returns the name that all replicas of a fleet know the subject by; `None` for an address.
    pub(super) fn shared_name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::All => Some(""),
            Self::Net(_) => None,
        }
    }
}

impl Bucket {
    /// Locks the state, for a few instructions.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl BucketTable {
    /// Creates an empty table for `limits` limits, with `max_buckets` buckets beside the shared
    /// ones.
    pub(super) fn new(limits: usize, max_buckets: usize) -> Self {
        let overflow = (0..limits).map(|_| Arc::default()).collect();
        Self { buckets: DashMap::new(), queue: Mutex::default(), overflow, max_buckets }
    }

    /// Creates a table for other limits, with the buckets of the limits that remain: `new_indices`
    /// has the new index of each limit of this table. A permit returns its slots to the same
    /// bucket.
    pub(super) fn with_limits(&self, new_indices: &[Option<usize>], limits: usize) -> Self {
        let mut next = Self::new(limits, self.max_buckets);
        let now_at = |limit: usize| new_indices.get(limit).copied().flatten();
        for (was, bucket) in self.overflow.iter().enumerate() {
            if let Some(now) = now_at(was) {
                next.overflow[now] = Arc::clone(bucket);
            }
        }
        let mut queue = VecDeque::new();
        for entry in &self.buckets {
            let Some(limit) = now_at(entry.key().limit) else { continue };
            let key = BucketKey { limit, subject: entry.key().subject.clone() };
            queue.push_back(key.clone());
            next.buckets.insert(key, Arc::clone(entry.value()));
        }
        next.queue = Mutex::new(queue);
        next
    }

    /// Returns the bucket of this key, if it exists.
    pub(super) fn find(&self, key: &BucketKey) -> Option<Arc<Bucket>> {
        self.buckets.get(key).map(|bucket| Arc::clone(&bucket))
    }

    /// Returns the bucket of this key, which is created if needed.
    pub(super) fn bucket(&self, key: BucketKey, now: u64) -> Arc<Bucket> {
        if let Some(bucket) = self.find(&key) {
            return bucket;
        }
        let mut queue = self.queue.lock();
        let checks = match queue.len() >= self.max_buckets.min(FEW_BUCKETS) {
            true => EVICTION_CHECKS.min(queue.len()),
            false => 0,
        };
        for _ in 0..checks {
            let Some(oldest) = queue.pop_front() else { break };
            // While `remove_if` holds the lock of the map's shard, no other request can get the
            // bucket.
            let is_idle = |_: &BucketKey, bucket: &Arc<Bucket>| {
                let says_nothing = |state: &State| state.in_flight == 0 && state.gcra.is_full(now);
                Arc::strong_count(bucket) == 1 && says_nothing(&bucket.lock())
            };
            if self.buckets.remove_if(&oldest, is_idle).is_none() {
                queue.push_back(oldest);
            }
        }
        // Another request may have created the bucket since the first look-up.
        if let Some(bucket) = self.find(&key) {
            return bucket;
        }
        if queue.len() >= self.max_buckets {
            return Arc::clone(&self.overflow[key.limit]);
        }
        let bucket = Arc::new(Bucket::default());
        self.buckets.insert(key.clone(), Arc::clone(&bucket));
        queue.push_back(key);
        bucket
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.buckets.len()
    }
}

/// Number of buckets below which none is evicted: a high rate fills a bucket again between two
/// requests, and creating it for each request would cost more than keeping it.
const FEW_BUCKETS: usize = 1_024;
/// Number of buckets examined for eviction per new one: more than one, so that the table shrinks.
const EVICTION_CHECKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_base::time::rate_limit::RequestRate;

    fn key(address: &str) -> BucketKey {
        BucketKey { limit: 0, subject: BucketSubject::at(address.parse().expect("an address")) }
    }

    #[test]
    fn an_address_counts_with_its_network() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::1", "127.0.0.1", false),
        ] {
            assert_eq!(key(one) == key(other), same, "{one} {other}");
        }
    }

    #[test]
    fn s38_the_buckets_are_bounded_and_newcomers_share_one_while_all_are_in_use() {
        let (rate, table) =
            (RequestRate::new(1, Duration::from_secs(1), 1), BucketTable::new(1, 8));
        let address = |n: usize| key(&format!("10.0.0.{n}"));
        for n in 0..8 {
            table.bucket(address(n), 0).lock().gcra.charge(rate, 0);
        }
        let (one, other) = (table.bucket(address(8), 0), table.bucket(address(9), 0));
        assert!(Arc::ptr_eq(&one, &other) && table.len() == 8);
        // Those that were there keep their own.
        assert!(!Arc::ptr_eq(&table.bucket(address(0), 0), &one));

        // A second later they are full again, except one that a request holds and one with a
        // request in progress.
        let later = 1_000_000_000;
        let held = table.bucket(address(0), later);
        table.bucket(address(1), later).lock().in_flight = 1;
        for n in 10..30 {
            let bucket = table.bucket(address(n), later);
            assert!(!Arc::ptr_eq(&bucket, &one), "{n}");
        }
        assert!(table.len() <= 8);
        assert!(Arc::ptr_eq(&table.bucket(address(0), later), &held));
        assert_eq!(table.bucket(address(1), later).lock().in_flight, 1);
    }

    #[test]
    fn few_buckets_stay_when_they_are_full_again() {
        let table = BucketTable::new(1, 10_000);
        for n in 0..200 {
            table.bucket(key(&format!("10.0.0.{n}")), 0);
        }
        assert_eq!(table.len(), 200);
    }
}
