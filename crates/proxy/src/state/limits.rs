//! The counters of one function's rate limits.
//!
//! The arithmetic is [`leno_policy::quota::take`], the same function that the program calls for its
//! forecast. Here it is repeated under the counters' locks, so that two requests cannot both take
//! the last unit of a limit.
//!
//! # Bounds
//! A limit has at most 65,536 counters, and their keys take at most 8 MiB, independently of other
//! limits. If a new counter does not fit, counters that are as good as new are dropped: full
//! buckets, and windows that are over. A counter that limits a client is never dropped: otherwise,
//! a client with many keys could flush out the counters of others. So if all counters are active,
//! further keys share 4,096 counters, selected by hash. A shared counter admits as many requests
//! for all its keys together as the limit allows for one. So no key gets more than with a separate
//! counter, and a new key is not refused as long as the other keys of its shared counter leave
//! something. If a key gets a separate counter later, that counter begins with the state of the
//! shared one.
//!
//! # Leases
//! If the control plane places functions, it also divides each limit between their nodes. A node
//! then counts by its share. Once the term of its lease is over, it has no share.
//!
//! # Stores
//! If the mesh has a quota store, the store keeps the counters, and this node takes from its
//! allowances (`allowance`) of them. Shares of the control plane then do not matter.

mod allowance;
mod counters;
mod lease;
mod node;
mod store;
mod stored;
mod transfer;
mod usage;

pub use lease::{LeaseTerm, Tally};
pub use node::NodeLimits;
pub use store::{Answer, Arrival, CounterName, Question, Store, StoreCounts};
pub use transfer::{LimitCounts, RemoteLimits};
pub use usage::CounterUse;

use allowance::Allowances;

use counters::{Counters, Terms, Undo};
use lease::Lease;
use leno_model::FunctionId;
use leno_policy::quota::QuotaState;
use leno_policy::quota::TakeResult;
use leno_policy::spec::{QuotaAlgorithm, RateLimit};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

const SHARDS: usize = 8;

/// The counters of one function's rate limits, in shards.
#[derive(Debug)]
pub struct FunctionLimits {
    shards: [Mutex<Shard>; SHARDS],
    /// Keyed at random, because clients choose the counters' keys.
    hasher: RandomState,
    term: Arc<LeaseTerm>,
    /// The process that counts in place of this one; `None`: this process counts.
    remote: RwLock<Option<transfer::RemoteFunctionLimits>>,
    /// Keeps the counters of this function in place of the node.
    store: Option<(Arc<Store>, FunctionId)>,
}

impl Default for FunctionLimits {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

/// A request for units of one counter.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The rate limit. It names the counter, and says how to count.
    pub limit: &'a RateLimit,
    /// The counter's key.
    pub key: &'a str,
    /// How many requests to count.
    pub cost: u32,
}

/// The state of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterState {
    /// The counter's value.
    pub state: QuotaState,
    /// Whether the counter counts other keys, too, because the limit has the maximum number of
    /// counters.
    pub shared: bool,
}

/// The result of taking from one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The rest of the counter, and the time until it has more again.
    pub taken: TakeResult,
    /// As in [`CounterState::shared`].
    pub shared: bool,
}

/// Nothing was taken from any counter: one is exhausted, or its state cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefusal {
    /// Index of the demand that was refused.
    pub index: usize,
    /// The rest of the exhausted counter, and the time until it has more again.
    pub taken: TakeResult,
    /// As in [`CounterState::shared`].
    pub shared: bool,
    /// Why the state of the counter cannot be determined; `None`: the counter is exhausted.
    pub uncounted: Option<&'static str>,
}

impl FunctionLimits {
    /// No counters. If shares of the limits are leased to this node, they are valid during `term`.
    pub fn new(term: Arc<LeaseTerm>) -> Self {
        Self { shards: Default::default(), hasher: RandomState::new(), term, remote: RwLock::default(), store: None }
    }

    /// No counters: `store` keeps those of this function.
    pub fn stored(store: Arc<Store>, function: FunctionId) -> Self {
        Self { store: Some((store, function)), ..Self::default() }
    }

    /// Sets the node's shares of the limits, in [`leno_policy::quota::PARTS`]. From now on, the
    /// node has no share of any other limit. The gain of a share that grows begins empty: a bucket
    /// fills at its rate, and a window counts by the old share until it is over. Only the first
    /// share of a limit in `unused` begins as if nothing was used.
    pub fn lease(&self, shares: &BTreeMap<Box<str>, u32>, unused: &BTreeSet<Box<str>>, now_ms: u64) {
        let epoch = self.term.deliver(Instant::now());
        for shard in 0..SHARDS {
            self.lock(shard).lease(shares, unused, epoch, now_ms);
        }
    }

    /// From now on, the node has a share of a limit only if one is leased to it.
    pub fn require_leases(&self) {
        for shard in 0..SHARDS {
            self.lock(shard).leases.get_or_insert_default();
        }
    }

    /// The requests that each leased limit has admitted and refused since the node has it.
    pub fn tallies(&self) -> BTreeMap<Box<str>, Tally> {
        let mut tallies: BTreeMap<Box<str>, Tally> = BTreeMap::new();
        for shard in 0..SHARDS {
            for (limit, lease) in self.lock(shard).leases.iter().flatten() {
                let sum = tallies.entry(limit.clone()).or_default();
                sum.admitted += lease.tally.admitted;
                sum.refused += lease.tally.refused;
            }
        }
        tallies
    }

    /// The state of a counter. A counter that does not exist is fresh. The state of a counter in a
    /// store is an estimate that leaves something.
    pub fn read(&self, limit: &str, key: &str) -> CounterState {
        let hash = self.hash(limit, key);
        let shard = self.lock(shard_of(hash));
        if self.store.is_some() {
            let allowances = shard.allowances.iter().find(|allowances| *allowances.limit == *limit);
            let allowance = allowances.and_then(|allowances| allowances.find(hash, key));
            return allowance.map_or_else(CounterState::default, allowance::Allowance::read);
        }
        shard
            .limits
            .iter()
            .find(|counters| counters.are_of(limit))
            .map_or_else(CounterState::default, |counters| counters.read(hash, key))
    }

    /// Takes everything that is demanded, or nothing. Does not ask a store that keeps the counters:
    /// see [`FunctionLimits::take_or_wait`].
    pub fn take(&self, demands: &[Demand<'_>], now_ms: u64) -> Result<Vec<Grant>, LimitRefusal> {
        if demands.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<u64> = demands.iter().map(|demand| self.hash(&demand.limit.name, demand.key)).collect();
        let mut locks = self.lock_all(&hashes);
        if locks.iter().flatten().any(|shard| shard.transferred) {
            drop(locks);
            return match self.take_remote(demands, now_ms) {
                Some(Ok(granted)) => {
                    // Counts here as well, in case the other process does not count after all.
                    let _ = self.take_here(demands, &hashes, &mut self.lock_all(&hashes), now_ms);
                    Ok(granted)
                }
                Some(refused) => refused,
                // The counters have just been returned to this process.
                None => self.take(demands, now_ms),
            };
        }
        self.take_here(demands, &hashes, &mut locks, now_ms)
    }

    fn take_here(
        &self,
        demands: &[Demand<'_>],
        hashes: &[u64],
        locks: &mut [Option<MutexGuard<'_, Shard>>; SHARDS],
        now_ms: u64,
    ) -> Result<Vec<Grant>, LimitRefusal> {
        let epoch = self.term.epoch(Instant::now());
        let mut undo: Vec<Undo> = Vec::with_capacity(demands.len());
        let mut granted = Vec::with_capacity(demands.len());
        for (index, (demand, hash)) in demands.iter().zip(hashes).enumerate() {
            let Some(shard) = &mut locks[shard_of(*hash)] else { continue };
            let terms = shard.terms(demand.limit, epoch, now_ms);
            match shard.counters(&demand.limit.name, now_ms).take(*hash, demand, terms, now_ms, &self.hasher) {
                Ok((answer, before)) => {
                    granted.push(answer);
                    undo.push(before);
                }
                Err(Grant { taken, shared }) => {
                    shard.tally(&demand.limit.name, |tally| tally.refused += 1);
                    for ((undo, demand), hash) in undo.into_iter().zip(demands).zip(hashes).rev() {
                        if let Some(shard) = &mut locks[shard_of(*hash)] {
                            shard.counters(&demand.limit.name, now_ms).put_back(*hash, demand.key, undo);
                        }
                    }
                    return Err(LimitRefusal { index, taken, shared, uncounted: None });
                }
            }
        }
        for (demand, hash) in demands.iter().zip(hashes) {
            if let Some(shard) = &mut locks[shard_of(*hash)] {
                shard.tally(&demand.limit.name, |tally| tally.admitted += u64::from(demand.cost));
            }
        }
        Ok(granted)
    }

    /// Number of counters.
    pub fn len(&self) -> usize {
        self.by_limit().values().sum()
    }

    /// Whether there are no counters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of counters of each limit.
    pub fn by_limit(&self) -> BTreeMap<Box<str>, usize> {
        let mut limits = BTreeMap::new();
        for shard in 0..SHARDS {
            let shard = self.lock(shard);
            for counters in &shard.limits {
                *limits.entry(counters.limit().into()).or_default() += counters.len();
            }
            for allowances in &shard.allowances {
                *limits.entry(allowances.limit.clone()).or_default() += allowances.len();
            }
        }
        limits
    }

    /// Locks all shards that the demands need, in the order of their index. All callers lock in the
    /// same order.
    fn lock_all(&self, hashes: &[u64]) -> [Option<MutexGuard<'_, Shard>>; SHARDS] {
        let mut needed = [false; SHARDS];
        for hash in hashes {
            needed[shard_of(*hash)] = true;
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

/// Uses other bits of the hash than the tables do.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

/// One shard of every limit's counters. A function has few limits, so a linear search finds them.
#[derive(Debug, Default)]
struct Shard {
    limits: Vec<Counters>,
    /// The node's shares by limit; `None`: it has the whole of each limit.
    leases: Option<BTreeMap<Box<str>, Lease>>,
    /// Another process counts in place of this one.
    transferred: bool,
    /// The node's allowances of counters in a store.
    allowances: Vec<Allowances>,
}

impl Shard {
    fn lease(&mut self, shares: &BTreeMap<Box<str>, u32>, unused: &BTreeSet<Box<str>>, epoch: u64, now_ms: u64) {
        let leases = self.leases.get_or_insert_default();
        for limit in shares.keys().filter(|limit| !leases.contains_key(*limit)).cloned().collect::<Vec<_>>() {
            let lease = if unused.contains(&limit) { Lease::full() } else { Lease::default() };
            leases.insert(limit, lease);
        }
        for (limit, lease) in leases {
            let parts = shares.get(limit).copied().unwrap_or(0);
            let resized = lease.set(parts, epoch, now_ms);
            let counters = self.limits.iter_mut().find(|counters| counters.are_of(limit));
            if let (Some((algorithm, more)), Some(counters)) = (resized, counters) {
                counters.resize(algorithm, more, now_ms);
            }
        }
    }

    /// The terms of a limit's counters at this time. `epoch` is that of the lease term; `None`: the
    /// term is over.
    fn terms(&mut self, limit: &RateLimit, epoch: Option<u64>, now_ms: u64) -> Terms {
        match &mut self.leases {
            None => Terms { algorithm: limit.algorithm, fresh: QuotaState::default() },
            Some(leases) => match leases.get_mut(limit.name.as_str()) {
                Some(lease) => lease.terms(&limit.algorithm, epoch, now_ms),
                None => leases.entry(limit.name.as_str().into()).or_default().terms(&limit.algorithm, epoch, now_ms),
            },
        }
    }

    fn tally(&mut self, limit: &str, change: impl FnOnce(&mut Tally)) {
        if let Some(lease) = self.leases.as_mut().and_then(|leases| leases.get_mut(limit)) {
            change(&mut lease.tally);
        }
    }

    fn counters(&mut self, limit: &str, now_ms: u64) -> &mut Counters {
        let index = match self.limits.iter().position(|counters| counters.are_of(limit)) {
            Some(index) => index,
            None => {
                // Counters outlive a change of configuration. They are dropped here once all
                // counters of their limit are idle.
                self.limits.retain_mut(|counters| !counters.are_all_idle(now_ms));
                self.limits.push(Counters::new(limit));
                self.limits.len() - 1
            }
        };
        &mut self.limits[index]
    }
}

/// Requests that a fresh counter admits.
fn capacity(algorithm: &QuotaAlgorithm) -> u32 {
    match *algorithm {
        QuotaAlgorithm::TokenBucket { burst, .. } => burst,
        QuotaAlgorithm::FixedWindow { requests, .. } => requests,
    }
}

#[cfg(test)]
mod tests;
