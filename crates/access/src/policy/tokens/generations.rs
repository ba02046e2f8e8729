//! Bounded map that forgets what is not used.
//!
//! Invariant: at most `2 × capacity` entries. An entry that is not used while the younger half
//! fills up once is dropped.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Map of two generations.
#[derive(Debug)]
pub(super) struct Generations<K, V> {
    capacity: usize,
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, young: HashMap::new(), old: HashMap::new() }
    }

    /// Returns the value of a key, which counts as used.
    pub(super) fn find<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// Returns the value of a key, which does not count as used.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.capacity && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(super) fn remove<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_used_stays_and_the_number_of_others_is_bounded() {
        let mut map = Generations::new(10);
        map.insert("kept".to_owned(), 0);
        for number in 1..1_000 {
            map.insert(number.to_string(), number);
            if number % 5 == 0 {
                assert_eq!(map.find("kept"), Some(&mut 0));
            }
            assert!(map.iter().count() <= 20);
        }
        assert_eq!(map.find("1"), None);
        assert_eq!(map.peek("999"), Some(&999));
        map.remove("kept");
        assert_eq!(map.peek("kept"), None);
    }

    #[test]
    fn a_key_has_one_value() {
        let mut map = Generations::new(1);
        for (key, value) in [("a", 1), ("b", 2), ("a", 3), ("a", 4)] {
            map.insert(key, value);
        }
        let mut all: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
        all.sort_unstable();
        assert_eq!(all, [("a", 4), ("b", 2)]);
    }
}
