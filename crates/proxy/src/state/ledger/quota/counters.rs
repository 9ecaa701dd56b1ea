//! The counters of one limit, as far as one shard has them.

use super::{CounterState, Demand, Granted};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use leno_policy::input::QuotaState;
use leno_policy::quota;
use leno_policy::spec::QuotaAlgorithm;
use std::hash::{BuildHasher, RandomState};

/// Counters of one key each.
pub(super) const MOST_COUNTERS: usize = 8192;
/// Bytes of their keys: clients choose them, and long ones.
pub(super) const MOST_KEY_BYTES: usize = 1 << 20;
/// Counters that further keys share.
pub(super) const SHARED: usize = 512;
/// No sweep before there are this many counters.
const FIRST_SWEEP: usize = 64;
/// Where there is no room, one sweep in this time, so that a flood of keys does not turn into a flood of sweeps.
const SWEEP_INTERVAL_MS: u64 = 1000;

#[derive(Debug)]
pub(super) struct Counters {
    limit: Box<str>,
    own: HashTable<Counter>,
    key_bytes: usize,
    /// `None` while there is room, and nobody is limited by them.
    shared: Option<Box<[Count]>>,
    /// Number of counters at which the next sweep is worth while.
    sweep_at: usize,
    swept_ms: u64,
}

#[derive(Debug)]
struct Counter {
    key: Box<str>,
    count: Count,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    algorithm: QuotaAlgorithm,
    state: QuotaState,
}

/// How to give back what was taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// The counter was made for it.
    Forget,
    /// The counter held this.
    Own(QuotaState),
    /// The shared counter held this.
    Shared(QuotaState),
}

impl Counters {
    pub(super) fn new(limit: &str) -> Self {
        let own = HashTable::new();
        Self { limit: limit.into(), own, key_bytes: 0, shared: None, sweep_at: 0, swept_ms: 0 }
    }

    pub(super) fn limit(&self) -> &str {
        &self.limit
    }

    pub(super) fn are_of(&self, limit: &str) -> bool {
        *self.limit == *limit
    }

    pub(super) fn len(&self) -> usize {
        self.own.len()
    }

    pub(super) fn read(&self, hash: u64, key: &str) -> CounterState {
        match self.own.find(hash, |counter| *counter.key == *key) {
            Some(counter) => CounterState { state: counter.count.state, shared: false },
            None => without_own(self.shared.as_deref(), hash),
        }
    }

    /// The answer, and how to undo it. An error is the answer of a counter that is exhausted.
    pub(super) fn take(
        &mut self,
        hash: u64,
        demand: &Demand<'_>,
        now_ms: u64,
        hasher: &RandomState,
    ) -> Result<(Granted, Undo), Granted> {
        let algorithm = demand.limit.algorithm;
        let own = self.own.find_mut(hash, |counter| *counter.key == *demand.key);
        let CounterState { state: before, shared } = match &own {
            Some(counter) => CounterState { state: counter.count.state, shared: false },
            None => without_own(self.shared.as_deref(), hash),
        };
        let taken = quota::take(&algorithm, before, now_ms, demand.cost);
        if !taken.allowed {
            return Err(Granted { taken, shared });
        }
        let count = Count { algorithm, state: taken.state };
        if let Some(own) = own {
            own.count = count;
            return Ok((Granted { taken, shared }, Undo::Own(before)));
        }
        if self.make_room(demand.key.len(), now_ms, hasher) {
            self.key_bytes += demand.key.len();
            let counter = Counter { key: demand.key.into(), count };
            self.own.insert_unique(hash, counter, |counter| hasher.hash_one((&*self.limit, &*counter.key)));
            return Ok((Granted { taken, shared: false }, Undo::Forget));
        }
        let fresh = Count { algorithm, state: QuotaState::default() };
        let shared = self.shared.get_or_insert_with(|| vec![fresh; SHARED].into_boxed_slice());
        shared[shared_by(hash)] = count;
        Ok((Granted { taken, shared: true }, Undo::Shared(before)))
    }

    pub(super) fn put_back(&mut self, hash: u64, key: &str, undo: Undo) {
        if let Undo::Shared(before) = undo {
            if let Some(shared) = &mut self.shared {
                shared[shared_by(hash)].state = before;
            }
            return;
        }
        if let Entry::Occupied(mut entry) = self.own.entry(hash, |counter| *counter.key == *key, |_| hash) {
            match undo {
                Undo::Own(before) => entry.get_mut().count.state = before,
                Undo::Forget | Undo::Shared(_) => {
                    self.key_bytes -= key.len();
                    drop(entry.remove());
                }
            }
        }
    }

    /// Whether fresh counters would say the same, all of them.
    pub(super) fn are_all_idle(&self, now_ms: u64) -> bool {
        let mut counts = self.own.iter().map(|counter| &counter.count).chain(self.shared.iter().flatten());
        counts.all(|count| count.is_idle(now_ms))
    }

    /// Sweeps when there are twice as many as after the last time, and when there is no room for a key of this length; false if there still
    /// is none.
    fn make_room(&mut self, length: usize, now_ms: u64, hasher: &RandomState) -> bool {
        let is_full =
            |counters: &Self| counters.own.len() >= MOST_COUNTERS || counters.key_bytes + length > MOST_KEY_BYTES;
        let full = is_full(self);
        let due = if full {
            now_ms.abs_diff(self.swept_ms) >= SWEEP_INTERVAL_MS
        } else {
            self.own.len() >= self.sweep_at.max(FIRST_SWEEP)
        };
        if due {
            self.own.retain(|counter| !counter.count.is_idle(now_ms));
            self.own.shrink_to(self.own.len() * 2, |counter| hasher.hash_one((&*self.limit, &*counter.key)));
            self.key_bytes = self.own.iter().map(|counter| counter.key.len()).sum();
            self.shared.take_if(|shared| shared.iter().all(|count| count.is_idle(now_ms)));
            self.sweep_at = (self.own.len() * 2).min(MOST_COUNTERS);
            self.swept_ms = now_ms;
        }
        !is_full(self)
    }
}

/// What a key without a counter of its own begins with: nobody knows how much of what is shared it has used.
fn without_own(shared: Option<&[Count]>, hash: u64) -> CounterState {
    shared.map_or_else(CounterState::default, |shared| CounterState {
        state: shared[shared_by(hash)].state,
        shared: true,
    })
}

/// Neither the bits that the table sorts by nor those of the shard.
fn shared_by(hash: u64) -> usize {
    (hash >> 40) as usize % SHARED
}

impl Count {
    /// Whether a fresh counter would say the same.
    fn is_idle(&self, now_ms: u64) -> bool {
        quota::take(&self.algorithm, self.state, now_ms, 0).state.used == 0
    }
}
