//! A map that is cheap to copy and change. A snapshot of a node with thousands of functions uses
//! it, so that adding or removing one function is cheap.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

/// Number of shards. A change copies one of them. A copy of the whole map costs one reference count
/// per shard.
const SHARDS: usize = 64;

type Shard<K, V> = Arc<HashTable<(K, V)>>;

/// A hash map in shards. Copies share a shard until one of them changes it.
pub struct Shards<K, V> {
    shards: Box<[Shard<K, V>]>,
    hasher: RandomState,
    len: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Shards<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `key`.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        self.shards.get(shard(hash))?.find(hash, |(found, _)| found.borrow() == key).map(|(_, value)| value)
    }

    /// Puts `value` at `key`. Returns the value that was there before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.hasher.hash_one(&key);
        let table = Arc::make_mut(self.shards.get_mut(shard(hash))?);
        match table.entry(hash, |(found, _)| *found == key, |(key, _)| self.hasher.hash_one(key)) {
            Entry::Occupied(mut entry) => Some(std::mem::replace(&mut entry.get_mut().1, value)),
            Entry::Vacant(entry) => {
                entry.insert((key, value));
                self.len += 1;
                None
            }
        }
    }

    /// Removes and returns the value at `key`.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let hash = self.hasher.hash_one(key);
        let table = self.shards.get_mut(shard(hash))?;
        // A key that is not there must not cause a copy.
        table.find(hash, |(found, _)| found.borrow() == key)?;
        let entry = Arc::make_mut(table).find_entry(hash, |(found, _)| found.borrow() == key).ok()?;
        self.len -= 1;
        Some(entry.remove().0.1)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> + Clone {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|(key, value)| (key, value))
    }

    /// All keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// All values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }
}

/// Selects a shard by the bits of the hash that the tables use least.
fn shard(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        let empty = Arc::new(HashTable::new());
        Self { shards: vec![empty; SHARDS].into(), hasher: RandomState::new(), len: 0 }
    }
}

impl<K, V> Clone for Shards<K, V> {
    fn clone(&self) -> Self {
        Self { shards: self.shards.clone(), hasher: self.hasher.clone(), len: self.len }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Shards<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.shards.iter().flat_map(|shard| shard.iter()).map(|(key, value)| (key, value));
        f.debug_map().entries(entries).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map_and_copies_stay_as_they_were(steps in prop::collection::vec((0..200_u16, any::<Option<u8>>()), 0..400)) {
            let (mut shards, mut map) = (Shards::default(), HashMap::new());
            let mut copies = Vec::new();
            for (key, value) in steps {
                match value {
                    Some(value) => prop_assert_eq!(shards.insert(key, value), map.insert(key, value)),
                    None => prop_assert_eq!(shards.remove(&key), map.remove(&key)),
                }
                if key % 16 == 0 {
                    copies.push((shards.clone(), map.clone()));
                }
            }
            copies.push((shards, map));
            for (shards, map) in copies {
                prop_assert_eq!(shards.len(), map.len());
                prop_assert_eq!(shards.iter().map(|(key, value)| (*key, *value)).collect::<HashMap<_, _>>(), map.clone());
                prop_assert!((0..200).all(|key| shards.get(&key) == map.get(&key)));
            }
        }
    }
}
