//! A bounded memory of recent entries, by keyed hashes.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::hash::{BuildHasherDefault, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Number of locks. The hash selects one.
const SHARDS: usize = 8;

/// Hashes with a secret key, so that a client cannot make two inputs with one hash. A hash can stand
/// for its input: two of a trillion inputs have one hash with a probability of less than 1 in
/// 10^14.
#[derive(Clone)]
pub(crate) struct KeyedHasher(SipHasher24);

impl KeyedHasher {
    /// The hash of these bytes.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u128 {
        let mut hasher = self.0;
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}

impl Default for KeyedHasher {
    /// A new key.
    fn default() -> Self {
        // The standard library takes the keys of its hash maps from the system's random numbers.
        let half = || RandomState::new().hash_one(0_u8);
        Self(SipHasher24::new_with_keys(half(), half()))
    }
}

impl fmt::Debug for KeyedHasher {
    /// The key is a secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeyedHasher")
    }
}

/// A bounded map from hashes by [`KeyedHasher`]. The less recently used half is dropped first.
/// `GENERATION` is the maximum number of entries of one generation of one shard: the map has at most
/// 16 times as many.
#[derive(Debug)]
pub(crate) struct Recent<V, const GENERATION: usize>([Mutex<Generations<V>>; SHARDS]);

/// Entries move to `young` when they are used. When `young` is full, it becomes `old`, and the
/// previous `old` is dropped.
#[derive(Debug)]
struct Generations<V> {
    young: Hashed<V>,
    old: Hashed<V>,
}

type Hashed<V> = HashMap<u128, V, BuildHasherDefault<Lower>>;

/// The keys are hashes already: their lower half is one.
#[derive(Default)]
struct Lower(u64);

impl Hasher for Lower {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

impl<V: Clone, const GENERATION: usize> Recent<V, GENERATION> {
    pub(crate) fn look_up(&self, hash: u128) -> Option<V> {
        self.with_shard(hash, |shard| {
            if let Some(known) = shard.young.get(&hash) {
                return Some(known.clone());
            }
            let known = shard.old.remove(&hash)?;
            shard.insert(hash, known.clone(), GENERATION);
            Some(known)
        })
    }

    pub(crate) fn insert(&self, hash: u128, value: V) {
        self.with_shard(hash, |shard| shard.insert(hash, value, GENERATION));
    }

    pub(crate) fn len(&self) -> usize {
        let shards = self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    fn with_shard<R>(&self, hash: u128, act: impl FnOnce(&mut Generations<V>) -> R) -> R {
        let shard = &self.0[(hash >> 64) as usize % SHARDS];
        act(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<V, const GENERATION: usize> Default for Recent<V, GENERATION> {
    fn default() -> Self {
        let empty = || Mutex::new(Generations { young: HashMap::default(), old: HashMap::default() });
        Self(std::array::from_fn(|_| empty()))
    }
}

impl<V> Generations<V> {
    fn insert(&mut self, hash: u128, value: V, most: usize) {
        if self.young.len() >= most {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_bounded_and_keeps_what_is_used() {
        let (recent, hasher) = (Recent::<u32, 256>::default(), KeyedHasher::default());
        let hash = |number: u32| hasher.hash(&number.to_be_bytes());
        recent.insert(hash(0), 0);
        for number in 1..=20_000 {
            recent.insert(hash(number), 1);
            assert_eq!(recent.look_up(hash(0)), Some(0), "in use all the time, after {number} others");
        }
        assert!(recent.len() <= 16 * 256);
        assert_eq!(recent.look_up(hash(1)), None, "never used again");
    }

    #[test]
    fn a_hash_depends_on_the_key_and_on_each_byte() {
        let (one, other) = (KeyedHasher::default(), KeyedHasher::default());
        assert_eq!(one.hash(b"abc"), one.clone().hash(b"abc"));
        assert_ne!(one.hash(b"abc"), other.hash(b"abc"));
        assert_ne!(one.hash(b"abc"), one.hash(b"abe"));
        assert_ne!(one.hash(b""), one.hash(b"\0"));
    }
}
