//! Transfers the counters to another process of this node, for a hot restart. From then on the
//! other process counts for both, and this process asks it before it admits a request. So the two
//! together never admit more than a limit allows, and no counter begins anew.

use super::counters::Count;
use super::lease::{Lease, Share};
use super::{Demand, FunctionLimits, Grant, LimitRefusal, SHARDS, Shard, shard_of};
use leno_policy::quota::QuotaState;
use leno_policy::quota::TakeResult;
use leno_policy::spec::QuotaAlgorithm;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// How long a client should wait if the other process does not answer.
const RETRY_AFTER_MS: u64 = 1000;
const NO_ANSWER: &str = "the process that counts does not answer";

/// Takes from the counters of another process.
pub trait RemoteLimits: Send + Sync {
    /// As [`FunctionLimits::take`]; `None`: the other process did not answer. The call may block
    /// for a moment.
    fn take(&self, function: &str, demands: &[Demand<'_>], now_ms: u64) -> Option<Result<Vec<Grant>, LimitRefusal>>;
}

/// The function's name, and the process that counts for it.
pub(super) type RemoteFunctionLimits = (Arc<str>, Arc<dyn RemoteLimits>);

/// The counters of one limit, and this node's share of it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitCounts {
    limit: Box<str>,
    own: Vec<(Box<str>, QuotaAlgorithm, QuotaState)>,
    /// The fullest of the counters that several keys share. Each process assigns keys to them
    /// differently.
    shared: Option<(QuotaAlgorithm, QuotaState)>,
    share: Option<Share>,
}

impl fmt::Debug for dyn RemoteLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteLimits")
    }
}

impl FunctionLimits {
    /// Transfers the counters. From now on `remote` counts. Has no effect with a store, because
    /// each process has its own allowances there.
    pub(crate) fn transfer(
        &self,
        function: &Arc<str>,
        remote: &Arc<dyn RemoteLimits>,
        now_ms: u64,
    ) -> Vec<LimitCounts> {
        if self.store.is_some() {
            return Vec::new();
        }
        let mut shards: Vec<_> = (0..SHARDS).map(|shard| self.lock(shard)).collect();
        *self.remote.write().unwrap_or_else(PoisonError::into_inner) = Some((function.clone(), remote.clone()));
        let epoch = self.term.epoch(Instant::now());
        let mut limits: BTreeMap<Box<str>, LimitCounts> = BTreeMap::new();
        for shard in &mut shards {
            shard.transferred = true;
            let Shard { limits: counters, leases, .. } = &**shard;
            for counters in counters {
                let counts = entry(&mut limits, counters.limit());
                counts.own.extend(counters.own().map(|(key, count)| (key.into(), count.algorithm, count.state)));
                let shared = counters.fullest(now_ms).map(|count| (count.algorithm, count.state));
                counts.shared = counts.shared.into_iter().chain(shared).max_by_key(|(_, state)| state.used);
            }
            // Shards differ in their tallies only, so one lease stands for all.
            for (limit, lease) in leases.iter().flatten() {
                entry(&mut limits, limit).share = Some(lease.share(epoch));
            }
        }
        limits.into_values().collect()
    }

    /// Undoes [`FunctionLimits::transfer`]: the other process does not count after all.
    pub(crate) fn resume(&self) {
        for shard in 0..SHARDS {
            self.lock(shard).transferred = false;
        }
        *self.remote.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Adopts the counters of another process. Existing counters stay. With a store, the
    /// transferred counters are not needed.
    pub fn adopt(&self, counts: Vec<LimitCounts>, now_ms: u64) {
        if self.store.is_some() {
            return;
        }
        let epoch = self.term.deliver(Instant::now());
        for LimitCounts { limit, own, shared, share } in counts {
            for (key, algorithm, state) in own {
                let hash = self.hash(&limit, &key);
                let mut shard = self.lock(shard_of(hash));
                shard.counters(&limit, now_ms).adopt(hash, key, Count { algorithm, state }, &self.hasher);
            }
            for shard in 0..SHARDS {
                let mut shard = self.lock(shard);
                if let Some((algorithm, state)) = shared {
                    shard.counters(&limit, now_ms).adopt_shared(Count { algorithm, state });
                }
                if let Some(share) = share {
                    shard.leases.get_or_insert_default().insert(limit.clone(), Lease::of(share, epoch));
                }
            }
        }
    }

    /// Asks the process that counts now. `None`: this process counts.
    pub(super) fn take_remote(&self, demands: &[Demand<'_>], now_ms: u64) -> Option<Result<Vec<Grant>, LimitRefusal>> {
        let remote = self.remote.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (function, remote) = remote?;
        let refused = TakeResult {
            state: QuotaState::default(),
            allowed: false,
            remaining: 0,
            limit: 0,
            retry_after_ms: RETRY_AFTER_MS,
            reset_ms: RETRY_AFTER_MS,
        };
        let unanswered = || Err(LimitRefusal { index: 0, taken: refused, shared: false, uncounted: Some(NO_ANSWER) });
        Some(remote.take(&function, demands, now_ms).unwrap_or_else(unanswered))
    }
}

fn entry<'a>(limits: &'a mut BTreeMap<Box<str>, LimitCounts>, limit: &str) -> &'a mut LimitCounts {
    limits.entry(limit.into()).or_insert_with(|| LimitCounts { limit: limit.into(), ..LimitCounts::default() })
}
