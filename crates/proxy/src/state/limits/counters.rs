//! The counters of one limit in one shard.

use super::{CounterState, Demand, Grant};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use leno_policy::quota;
use leno_policy::quota::QuotaState;
use leno_policy::spec::QuotaAlgorithm;
use std::hash::{BuildHasher, RandomState};

/// Maximum number of counters that count one key each.
pub(super) const MOST_COUNTERS: usize = 8192;
/// Maximum number of bytes of their keys. Clients choose keys, and may choose long ones.
pub(super) const MOST_KEY_BYTES: usize = 1 << 20;
/// Number of counters that further keys share.
pub(super) const SHARED: usize = 512;
/// There is no sweep before there are this many counters.
const FIRST_SWEEP: usize = 64;
/// If the limit is full, there is at most one sweep in this time. Otherwise a flood of keys would
/// become a flood of sweeps.
const SWEEP_INTERVAL_MS: u64 = 1000;

#[derive(Debug)]
pub(super) struct Counters {
    limit: Box<str>,
    own: HashTable<Counter>,
    key_bytes: usize,
    /// `None` while there is space for more counters and the shared counters limit no key.
    shared: Option<Box<[Count]>>,
    /// Number of counters that makes the next sweep worth while.
    sweep_at: usize,
    swept_ms: u64,
}

#[derive(Debug)]
struct Counter {
    key: Box<str>,
    count: Count,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub algorithm: QuotaAlgorithm,
    pub state: QuotaState,
}

/// The terms of a limit's counters at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub algorithm: QuotaAlgorithm,
    /// The state of a new counter.
    pub fresh: QuotaState,
}

/// Undoes a take from a counter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// The counter is new: remove it.
    Forget,
    /// The key's own counter held this before.
    Own(QuotaState),
    /// The shared counter held this before.
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

    /// The counters that count one key each.
    pub(super) fn own(&self) -> impl Iterator<Item = (&str, Count)> {
        self.own.iter().map(|counter| (&*counter.key, counter.count))
    }

    /// The fullest of the shared counters.
    pub(super) fn fullest(&self, now_ms: u64) -> Option<Count> {
        let settled =
            |count: &Count| Count { state: quota::take(&count.algorithm, count.state, now_ms, 0).state, ..*count };
        self.shared.iter().flatten().map(settled).max_by_key(|count| count.state.used)
    }

    /// Adopts a counter of another process, unless there is one, or no space.
    pub(super) fn adopt(&mut self, hash: u64, key: Box<str>, count: Count, hasher: &RandomState) {
        let fits = self.own.len() < MOST_COUNTERS && self.key_bytes + key.len() <= MOST_KEY_BYTES;
        if !fits {
            // The key then shares a counter, which must be as full.
            return self.adopt_shared(count);
        }
        if self.own.find(hash, |counter| *counter.key == *key).is_none() {
            self.key_bytes += key.len();
            self.own
                .insert_unique(hash, Counter { key, count }, |counter| hasher.hash_one((&*self.limit, &*counter.key)));
        }
    }

    /// Fills each shared counter at least as far as `count`.
    pub(super) fn adopt_shared(&mut self, count: Count) {
        let shared = self.shared.get_or_insert_with(|| vec![count; SHARED].into_boxed_slice());
        for other in shared.iter_mut().filter(|other| other.state.used < count.state.used) {
            *other = count;
        }
    }

    pub(super) fn read(&self, hash: u64, key: &str) -> CounterState {
        match self.own.find(hash, |counter| *counter.key == *key) {
            Some(counter) => CounterState { state: counter.count.state, shared: false },
            None => without_own(self.shared.as_deref(), hash, QuotaState::default()),
        }
    }

    /// Takes from a counter. Returns the result, and how to undo it. An error is the result of an
    /// exhausted counter.
    pub(super) fn take(
        &mut self,
        hash: u64,
        demand: &Demand<'_>,
        Terms { algorithm, fresh }: Terms,
        now_ms: u64,
        hasher: &RandomState,
    ) -> Result<(Grant, Undo), Grant> {
        let own = self.own.find_mut(hash, |counter| *counter.key == *demand.key);
        let CounterState { state: before, shared } = match &own {
            Some(counter) => CounterState { state: counter.count.state, shared: false },
            None => without_own(self.shared.as_deref(), hash, fresh),
        };
        let taken = quota::take(&algorithm, before, now_ms, demand.cost);
        if !taken.allowed {
            return Err(Grant { taken, shared });
        }
        let count = Count { algorithm, state: taken.state };
        if let Some(own) = own {
            own.count = count;
            return Ok((Grant { taken, shared }, Undo::Own(before)));
        }
        if self.make_space(demand.key.len(), now_ms, hasher) {
            self.key_bytes += demand.key.len();
            let counter = Counter { key: demand.key.into(), count };
            self.own.insert_unique(hash, counter, |counter| hasher.hash_one((&*self.limit, &*counter.key)));
            return Ok((Grant { taken, shared: false }, Undo::Forget));
        }
        let fresh = Count { algorithm, state: fresh };
        let shared = self.shared.get_or_insert_with(|| vec![fresh; SHARED].into_boxed_slice());
        shared[shared_by(hash)] = count;
        Ok((Grant { taken, shared: true }, Undo::Shared(before)))
    }

    /// Changes the share of the limit: all counters count by `algorithm` from now on. `more` is the
    /// number of additional requests that its bucket holds. None of them is free yet, because
    /// another node may just have used them.
    pub(super) fn resize(&mut self, algorithm: QuotaAlgorithm, more: u32, now_ms: u64) {
        for count in self.own.iter_mut().map(|counter| &mut counter.count).chain(self.shared.iter_mut().flatten()) {
            let mut state = quota::take(&count.algorithm, count.state, now_ms, 0).state;
            if let QuotaAlgorithm::TokenBucket { .. } = algorithm {
                state = QuotaState { used: state.used + u64::from(more) * 1000, at_ms: state.at_ms.max(now_ms) };
            }
            *count = Count { algorithm, state };
        }
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

    /// Whether all counters are as good as new.
    pub(super) fn are_all_idle(&self, now_ms: u64) -> bool {
        let mut counts = self.own.iter().map(|counter| &counter.count).chain(self.shared.iter().flatten());
        counts.all(|count| count.is_idle(now_ms))
    }

    /// Sweeps if there are twice as many counters as after the last sweep, or if there is no space
    /// for a key of this length. Returns whether there is space now.
    fn make_space(&mut self, length: usize, now_ms: u64, hasher: &RandomState) -> bool {
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

/// The initial state of a key without its own counter: the whole shared counter, because the
/// counter does not record how much of it this key has used.
fn without_own(shared: Option<&[Count]>, hash: u64, fresh: QuotaState) -> CounterState {
    shared.map_or(CounterState { state: fresh, shared: false }, |shared| CounterState {
        state: shared[shared_by(hash)].state,
        shared: true,
    })
}

/// Uses other bits of the hash than the table and the choice of the shard do.
fn shared_by(hash: u64) -> usize {
    (hash >> 40) as usize % SHARED
}

impl Count {
    /// Whether the counter is as good as new.
    fn is_idle(&self, now_ms: u64) -> bool {
        quota::take(&self.algorithm, self.state, now_ms, 0).state.used == 0
    }
}
