//! A map that grows and shrinks in small steps.

use std::collections::btree_map::{BTreeMap, Entry};
use std::hash::{BuildHasher, Hash};

use foldhash::fast::RandomState;

use crate::small::SmallList;

/// A map that never moves all its entries at once, and that frees memory when entries are removed.
/// A hash map of a million entries stops the server for 100 ms when it grows, and stays large.
///
/// It is a tree, ordered by a hash with a random key: so the time to find a key does not show how
/// many of its bytes are right.
#[derive(Debug)]
pub struct SteadyMap<K, V> {
    /// One of the entries, outside of the tree. It is found without a hash, and is usually the only
    /// one, or one that comes and goes: that saves 1,000 instructions of a hand-over.
    one: Option<(K, V)>,
    /// Two keys practically never have the same hash.
    tree: BTreeMap<u64, SmallList<(K, V)>>,
    hashes: RandomState,
}

impl<K, V> Default for SteadyMap<K, V> {
    fn default() -> Self {
        Self {
            one: None,
            tree: BTreeMap::new(),
            hashes: RandomState::default(),
        }
    }
}

impl<K: Hash + Eq, V> SteadyMap<K, V> {
    /// Whether it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.tree.is_empty()
    }

    /// Every key, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        let others = self.tree.values().flatten();
        self.one.iter().chain(others).map(|(key, _)| key)
    }

    /// The value of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        match &self.one {
            Some((its, value)) if its == key => Some(value),
            _ if self.tree.is_empty() => None,
            _ => self.in_tree(key),
        }
    }

    /// Whether a key has a value.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The value of a key.
    #[inline]
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if let Some((its, value)) = &mut self.one
            && its == key
        {
            return Some(value);
        }
        if self.tree.is_empty() {
            return None;
        }
        let same = self.tree.get_mut(&self.hashes.hash_one(key))?;
        same.iter_mut()
            .find(|(its, _)| its == key)
            .map(|(_, value)| value)
    }

    /// Changes the value of a key, and removes both if `change` returns true.
    #[inline]
    pub fn remove_if(&mut self, key: &K, change: impl FnOnce(&mut V) -> bool) {
        if let Some((its, value)) = &mut self.one
            && its == key
        {
            if change(value) {
                self.one = None;
            }
        } else if !self.tree.is_empty() {
            self.remove_from_tree(key, change);
        }
    }

    fn remove_from_tree(&mut self, key: &K, change: impl FnOnce(&mut V) -> bool) {
        let Entry::Occupied(mut same) = self.tree.entry(self.hashes.hash_one(key)) else {
            return;
        };
        let found = same.get_mut().iter_mut().find(|(its, _)| its == key);
        if found.is_some_and(|(_, value)| change(value)) {
            if same.get().len() == 1 {
                same.remove();
            } else {
                same.get_mut().retain(|(its, _)| its != key);
            }
        }
    }

    fn in_tree(&self, key: &K) -> Option<&V> {
        let same = self.tree.get(&self.hashes.hash_one(key))?.iter();
        let mut same = same.filter(|(its, _)| its == key);
        same.next().map(|(_, value)| value)
    }
}

impl<K: Hash + Eq + Clone, V: Default> SteadyMap<K, V> {
    /// The value of a key, which gets one if it has none.
    #[inline]
    pub fn or_default(&mut self, key: &K) -> &mut V {
        let is_one = match &self.one {
            Some((its, _)) => its == key,
            None => self.tree.is_empty() || self.in_tree(key).is_none(),
        };
        if is_one {
            let new = || (key.clone(), V::default());
            return &mut self.one.get_or_insert_with(new).1;
        }
        self.tree_or_default(key)
    }

    fn tree_or_default(&mut self, key: &K) -> &mut V {
        let same = self.tree.entry(self.hashes.hash_one(key)).or_default();
        let at = same.iter().position(|(its, _)| its == key);
        let at = at.unwrap_or_else(|| {
            same.push((key.clone(), V::default()));
            same.len() - 1
        });
        &mut same[at].1
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;

    use super::*;

    /// A key of which some have the same hash.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Similar(u8);

    impl Hash for Similar {
        fn hash<H: Hasher>(&self, state: &mut H) {
            (self.0 / 3).hash(state);
        }
    }

    #[test]
    fn keys_that_differ_have_different_places() {
        let mut steady = SteadyMap::<u32, u32>::default();
        for key in 0..1_000_u32 {
            *steady.or_default(&key) += 1;
        }
        // One of them is outside of the tree.
        assert_eq!(steady.tree.len(), 999);
    }

    #[test]
    fn a_new_key_takes_the_place_outside_of_the_tree_if_it_is_free() {
        let mut steady = SteadyMap::<u32, u32>::default();
        for key in 0..10 {
            steady.or_default(&key);
        }
        let (outside, _) = steady.one.take().unwrap();
        steady.or_default(&10);
        assert!(steady.one.as_ref().is_some_and(|(key, _)| *key == 10));
        assert_eq!(steady.tree.len(), 9);
        assert!(!steady.contains(&outside));
    }

    proptest! {
        #[test]
        fn a_steady_map_is_a_map(steps in prop::collection::vec((0..4_u8, 0..9_u8), 0..60)) {
            let (mut steady, mut map) = (SteadyMap::default(), BTreeMap::<u8, usize>::new());
            for (at, (step, key)) in steps.into_iter().enumerate() {
                let similar = Similar(key);
                match step {
                    0 | 1 => {
                        *steady.or_default(&similar) += at;
                        *map.entry(key).or_default() += at;
                    }
                    2 => {
                        steady.remove_if(&similar, |value| {
                            *value += 1;
                            *value % 2 == 0
                        });
                        if let Some(value) = map.get_mut(&key) {
                            *value += 1;
                            if *value % 2 == 0 {
                                map.remove(&key);
                            }
                        }
                    }
                    _ => {
                        if let Some(value) = steady.get_mut(&similar) {
                            *value += 2;
                        }
                        map.entry(key).and_modify(|value| *value += 2);
                    }
                }
                for key in 0..9 {
                    prop_assert_eq!(steady.get(&Similar(key)), map.get(&key));
                    prop_assert_eq!(steady.contains(&Similar(key)), map.contains_key(&key));
                }
                let mut keys: Vec<_> = steady.keys().map(|similar| similar.0).collect();
                keys.sort_unstable();
                prop_assert!(keys.iter().eq(map.keys()));
                prop_assert_eq!(steady.is_empty(), map.is_empty());
            }
        }
    }
}
