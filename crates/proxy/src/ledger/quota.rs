//! The counters of one function's rate limits.
//!
//! The arithmetic is [`leno_policy::quota::take`], the very function that the program forecast with; here it is done again under the
//! counters' locks, so that two requests cannot both take the last one.
//!
//! # Bounds
//! A function has at most 65,536 counters. When a new one is needed and there is no room, those that say nothing any more
//! (full buckets, windows that are over) go. A counter that limits somebody is never dropped: that would let whoever has many keys
//! wash away the counters of others. So if all counters are active, a request with a new key is refused.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use leno_policy::input::QuotaState;
use leno_policy::quota::{self, Taken};
use leno_policy::spec::{QuotaAlgorithm, RateLimit};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 8;
/// Counters of one shard.
const MOST_COUNTERS: usize = 8192;
/// No sweep before a shard holds this many.
const FIRST_SWEEP: usize = 64;
/// A full shard is swept at most this often, so that a flood of keys does not turn into a flood of sweeps.
const SWEEP_INTERVAL_MS: u64 = 1000;

/// One function's counters.
#[derive(Debug)]
pub struct Quotas {
    shards: [Mutex<Shard>; SHARDS],
    /// Keyed by chance: clients choose keys.
    hasher: RandomState,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { shards: Default::default(), hasher: RandomState::new() }
    }
}

/// Something to take from one counter.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Names the counters, and says how they count.
    pub limit: &'a RateLimit,
    /// The counter's key.
    pub key: &'a str,
    /// Requests to count.
    pub cost: u32,
}

/// Nothing was taken from any counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Index of the demand that was refused.
    pub index: usize,
    /// Why.
    pub cause: Cause,
}

/// Why a demand was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The counter is exhausted.
    Exhausted(Taken),
    /// The counter is new, and there is no room for another.
    NoRoom,
}

impl Quotas {
    /// What a counter holds; one that does not exist is fresh.
    pub fn read(&self, limit: &str, key: &str) -> QuotaState {
        let hash = self.hash(limit, key);
        let shard = self.lock(shard_of(hash));
        shard.counters.find(hash, |counter| counter.is(limit, key)).map(|counter| counter.state).unwrap_or_default()
    }

    /// Takes all, or nothing.
    pub fn take(&self, demands: &[Demand<'_>], now_ms: u64) -> Result<Vec<Taken>, Refused> {
        if demands.is_empty() {
            return Ok(Vec::new());
        }
        let mut locks = self.lock_all(demands);
        let mut undo = Vec::with_capacity(demands.len());
        let mut taken = Vec::with_capacity(demands.len());
        for (index, demand) in demands.iter().enumerate() {
            let hash = self.hash(demand.limit.name.as_str(), demand.key);
            let outcome = match &mut locks[shard_of(hash)] {
                Some(shard) => shard.take(hash, demand, now_ms, &self.hasher),
                None => Err(Cause::NoRoom),
            };
            match outcome {
                Ok((answer, before)) => {
                    taken.push(answer);
                    undo.push((hash, before));
                }
                Err(cause) => {
                    for ((hash, before), demand) in undo.into_iter().zip(demands).rev() {
                        if let Some(shard) = &mut locks[shard_of(hash)] {
                            shard.put_back(hash, demand, before);
                        }
                    }
                    return Err(Refused { index, cause });
                }
            }
        }
        Ok(taken)
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        (0..SHARDS).map(|shard| self.lock(shard).counters.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All shards that the demands touch, locked in order of index: whoever needs several, waits in the same order as all others.
    fn lock_all(&self, demands: &[Demand<'_>]) -> [Option<MutexGuard<'_, Shard>>; SHARDS] {
        let mut needed = [false; SHARDS];
        for demand in demands {
            needed[shard_of(self.hash(demand.limit.name.as_str(), demand.key))] = true;
        }
        std::array::from_fn(|shard| needed[shard].then(|| self.lock(shard)))
    }

    fn hash(&self, limit: &str, key: &str) -> u64 {
        self.hasher.hash_one((limit, key))
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Not the bits that the table sorts by.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

#[derive(Debug, Default)]
struct Shard {
    counters: HashTable<Counter>,
    /// Number of counters at which the next sweep is worth while.
    sweep_at: usize,
    swept_ms: u64,
}

#[derive(Debug)]
struct Counter {
    limit: Box<str>,
    key: Box<str>,
    algorithm: QuotaAlgorithm,
    state: QuotaState,
}

impl Shard {
    /// The answer, and the state before; `None`: there was no such counter.
    fn take(
        &mut self,
        hash: u64,
        demand: &Demand<'_>,
        now_ms: u64,
        hasher: &RandomState,
    ) -> Result<(Taken, Option<QuotaState>), Cause> {
        let (limit, algorithm) = (demand.limit.name.as_str(), demand.limit.algorithm);
        let counter = self.counters.find_mut(hash, |counter| counter.is(limit, demand.key));
        let before = counter.as_ref().map(|counter| counter.state);
        let result = quota::take(&algorithm, before.unwrap_or_default(), now_ms, demand.cost);
        if !result.allowed {
            return Err(Cause::Exhausted(result));
        }
        match counter {
            Some(counter) => {
                counter.state = result.state;
                counter.algorithm = algorithm;
            }
            None => {
                if !self.make_room(now_ms, hasher) {
                    return Err(Cause::NoRoom);
                }
                let counter = Counter { limit: limit.into(), key: demand.key.into(), algorithm, state: result.state };
                self.counters.insert_unique(hash, counter, |counter| counter.hash(hasher));
            }
        }
        Ok((result, before))
    }

    fn put_back(&mut self, hash: u64, demand: &Demand<'_>, before: Option<QuotaState>) {
        let is_it = |counter: &Counter| counter.is(&demand.limit.name, demand.key);
        if let Entry::Occupied(mut entry) = self.counters.entry(hash, is_it, |_| hash) {
            match before {
                Some(state) => entry.get_mut().state = state,
                None => drop(entry.remove()),
            }
        }
    }

    /// Sweeps when the shard has doubled since the last time, and when it is full; false if it still is.
    fn make_room(&mut self, now_ms: u64, hasher: &RandomState) -> bool {
        let full = self.counters.len() >= MOST_COUNTERS;
        let due = self.counters.len() >= self.sweep_at.max(FIRST_SWEEP);
        if due && (!full || now_ms.abs_diff(self.swept_ms) >= SWEEP_INTERVAL_MS) {
            self.counters.retain(|counter| !counter.is_idle(now_ms));
            self.counters.shrink_to(self.counters.len() * 2, |counter| counter.hash(hasher));
            self.sweep_at = (self.counters.len() * 2).min(MOST_COUNTERS);
            self.swept_ms = now_ms;
        }
        self.counters.len() < MOST_COUNTERS
    }
}

impl Counter {
    fn is(&self, limit: &str, key: &str) -> bool {
        *self.key == *key && *self.limit == *limit
    }

    fn hash(&self, hasher: &RandomState) -> u64 {
        hasher.hash_one((&*self.limit, &*self.key))
    }

    /// Whether a fresh counter would say the same.
    fn is_idle(&self, now_ms: u64) -> bool {
        quota::take(&self.algorithm, self.state, now_ms, 0).state.used == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const NOW: u64 = 1_700_000_000_000;

    fn bucket(name: &str, requests: u32, burst: u32) -> RateLimit {
        let algorithm = QuotaAlgorithm::TokenBucket { requests, period_ms: 60_000, burst };
        RateLimit { name: name.into(), only: None, key: Vec::new(), algorithm }
    }

    fn window(name: &str, requests: u32) -> RateLimit {
        let algorithm = QuotaAlgorithm::FixedWindow { requests, period_ms: 60_000 };
        RateLimit { name: name.into(), only: None, key: Vec::new(), algorithm }
    }

    fn one<'a>(limit: &'a RateLimit, key: &'a str) -> Demand<'a> {
        Demand { limit, key, cost: 1 }
    }

    #[test]
    fn counters_are_separate_by_limit_and_key() {
        let (quotas, limit, other) = (Quotas::default(), window("a", 1), window("b", 1));
        let taken = quotas.take(&[one(&limit, "x")], NOW).unwrap();
        assert_eq!((taken.len(), taken[0].limit, taken[0].remaining), (1, 1, 0));
        assert!(quotas.take(&[one(&limit, "x")], NOW).is_err());
        assert!(quotas.take(&[one(&limit, "y")], NOW).is_ok());
        assert!(quotas.take(&[one(&other, "x")], NOW).is_ok());
        assert_eq!(quotas.len(), 3);
        assert_eq!(quotas.read("a", "x").used, 1);
        assert_eq!(quotas.read("a", "z"), QuotaState::default());
    }

    #[test]
    fn refuses_all_or_takes_all() {
        let quotas = Quotas::default();
        let (wide, narrow) = (bucket("wide", 10, 10), window("narrow", 1));
        let both = [one(&wide, ""), one(&narrow, "")];
        assert!(quotas.take(&both, NOW).is_ok());
        let before = quotas.read("wide", "");
        let refused = quotas.take(&both, NOW).unwrap_err();
        assert_eq!(refused.index, 1);
        let Cause::Exhausted(taken) = refused.cause else { panic!("{refused:?}") };
        assert!(taken.limit == 1 && (1..=60_000).contains(&taken.retry_after_ms), "{taken:?}");
        assert_eq!(quotas.read("wide", ""), before, "given back");
        let fresh = [one(&wide, "new"), one(&narrow, "")];
        assert!(quotas.take(&fresh, NOW).is_err());
        assert_eq!(quotas.len(), 2, "and no trace of a counter that was made for it");
    }

    #[test]
    fn the_same_counter_twice_counts_twice() {
        let (quotas, limit) = (Quotas::default(), window("a", 3));
        assert!(quotas.take(&[one(&limit, ""), one(&limit, "")], NOW).is_ok());
        assert!(quotas.take(&[one(&limit, ""), one(&limit, "")], NOW).is_err());
        assert_eq!(quotas.read("a", "").used, 2);
    }

    #[test]
    fn threads_cannot_both_take_the_last_one() {
        const THREADS: usize = 8;
        let quotas = Quotas::default();
        let (limit, other) = (window("a", 100), bucket("b", 1, 1_000));
        let barrier = Barrier::new(THREADS);
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (quotas, limit, other, barrier) = (&quotas, &limit, &other, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        // Half of the threads name the counters the other way round.
                        let mut demands = [one(limit, ""), one(other, "")];
                        if thread % 2 == 0 {
                            demands.reverse();
                        }
                        (0..100).filter(|_| quotas.take(&demands, NOW).is_ok()).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 100);
        assert_eq!(quotas.read("b", "").used, 100_000, "whoever was refused by one gave the other back");
    }

    #[test]
    fn idle_counters_make_room_and_active_ones_stay() {
        let (quotas, limit) = (Quotas::default(), window("a", 1));
        let keys: Vec<String> = (0..200_000).map(|number| number.to_string()).collect();
        let admitted = keys.iter().filter(|key| quotas.take(&[one(&limit, key)], NOW).is_ok()).count();
        assert_eq!(admitted, SHARDS * MOST_COUNTERS, "each new key until all shards are full");
        let refused = quotas.take(&[one(&limit, "one more")], NOW + 30_000).unwrap_err();
        assert_eq!(refused.cause, Cause::NoRoom);
        assert!(matches!(quotas.take(&[one(&limit, "0")], NOW).unwrap_err().cause, Cause::Exhausted(_)));
        assert!(quotas.take(&[one(&limit, "one more")], NOW + 60_000).is_ok(), "their windows are over");
        assert!(quotas.len() <= (SHARDS - 1) * MOST_COUNTERS + 1);
    }

    #[test]
    fn a_clock_that_steps_back_breaks_nothing() {
        let (quotas, limit, other) = (Quotas::default(), window("a", 5), bucket("b", 5, 5));
        for now in [NOW, NOW - 100_000, 0, NOW, u64::MAX] {
            assert!(quotas.take(&[one(&limit, ""), one(&other, "")], now).is_ok(), "{now}");
        }
    }
}
