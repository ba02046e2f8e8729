//! The buckets: one for each limit and whoever it counts.
//!
//! Promises: no more than a fixed number of them. One that is full again says no more than a new one, and goes when
//! the place is needed. While all are in use, newcomers share one bucket for each limit: that way neither the
//! memory nor what is admitted in all grows with the number of addresses that somebody has, which it would if the
//! oldest went. To keep a bucket in use costs requests; whoever can pay that for all of them has other means.
//!
//! Knows nothing of: what the limits are about.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;

use super::gcra::Gcra;

/// Whom a bucket counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// A client, a user, a role or an upstream.
    Name(Arc<str>),
    /// All at one address, or in one network of IPv6 (/64): a single machine has as many addresses of it as it
    /// likes.
    Net(IpAddr),
    /// Everybody.
    All,
}

/// Which limit, by its number, for whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) limit: usize,
    pub(super) who: Who,
}

/// What one limit knows of one of those whom it counts.
#[derive(Debug, Default)]
pub(super) struct Bucket(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) gcra: Gcra,
    /// How many are under way.
    pub(super) in_flight: usize,
}

/// The buckets.
#[derive(Debug)]
pub(super) struct Table {
    buckets: DashMap<Key, Arc<Bucket>>,
    /// Their keys, in the order in which they will be looked at.
    line: Mutex<VecDeque<Key>>,
    /// For who comes while the table is full: one for each limit.
    overflow: Vec<Arc<Bucket>>,
    most: usize,
}

impl Who {
    /// Whoever is at this address.
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

impl Bucket {
    /// What it knows. Held for a few instructions.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// An empty table for so many limits, of `most` buckets beside those that newcomers share.
    pub(super) fn new(limits: usize, most: usize) -> Self {
        let overflow = (0..limits).map(|_| Arc::default()).collect();
        Self { buckets: DashMap::new(), line: Mutex::default(), overflow, most }
    }

    /// A table for so many other limits, with the buckets of those that are among them: `places` tells for each limit
    /// of this one which it is there. Who has places in a bucket gives them back there.
    pub(super) fn then(&self, places: &[Option<usize>], limits: usize) -> Self {
        let mut next = Self::new(limits, self.most);
        let now_at = |limit: usize| places.get(limit).copied().flatten();
        for (was, bucket) in self.overflow.iter().enumerate() {
            if let Some(now) = now_at(was) {
                next.overflow[now] = Arc::clone(bucket);
            }
        }
        let mut line = VecDeque::new();
        for entry in &self.buckets {
            let Some(limit) = now_at(entry.key().limit) else { continue };
            let key = Key { limit, who: entry.key().who.clone() };
            line.push_back(key.clone());
            next.buckets.insert(key, Arc::clone(entry.value()));
        }
        next.line = Mutex::new(line);
        next
    }

    /// The bucket of this key, as it is.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Bucket>> {
        self.buckets.get(key).map(|bucket| Arc::clone(&bucket))
    }

    /// The bucket of this key; a new one if there is none.
    pub(super) fn bucket(&self, key: Key, now: u64) -> Arc<Bucket> {
        if let Some(bucket) = self.find(&key) {
            return bucket;
        }
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..LOOKS.min(line.len()) {
            let Some(oldest) = line.pop_front() else { break };
            // Nobody else can get hold of it meanwhile: whoever wants to waits for the same lock.
            let is_idle = |_: &Key, bucket: &Arc<Bucket>| {
                let says_nothing = |state: &State| state.in_flight == 0 && state.gcra.is_full(now);
                Arc::strong_count(bucket) == 1 && says_nothing(&bucket.lock())
            };
            if self.buckets.remove_if(&oldest, is_idle).is_none() {
                line.push_back(oldest);
            }
        }
        // Somebody may have put it there since.
        if let Some(bucket) = self.find(&key) {
            return bucket;
        }
        if line.len() >= self.most {
            return Arc::clone(&self.overflow[key.limit]);
        }
        let bucket = Arc::new(Bucket::default());
        self.buckets.insert(key.clone(), Arc::clone(&bucket));
        line.push_back(key);
        bucket
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.buckets.len()
    }
}

/// How many of the buckets are looked at, whether they may go, for each new one: more than one, so that the table
/// shrinks.
const LOOKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::gcra::Rate;
    use super::*;
    use std::time::Duration;

    fn key(address: &str) -> Key {
        Key { limit: 0, who: Who::at(address.parse().expect("an address")) }
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
        let (rate, table) = (Rate::new(1, Duration::from_secs(1), 1), Table::new(1, 8));
        let address = |n: usize| key(&format!("10.0.0.{n}"));
        for n in 0..8 {
            table.bucket(address(n), 0).lock().gcra.take(rate, 0);
        }
        let (one, other) = (table.bucket(address(8), 0), table.bucket(address(9), 0));
        assert!(Arc::ptr_eq(&one, &other) && table.len() == 8);
        // Those that were there keep their own.
        assert!(!Arc::ptr_eq(&table.bucket(address(0), 0), &one));

        // A second later they are full again, but for one that is held and one that has something under way.
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
}
