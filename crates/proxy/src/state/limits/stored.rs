//! Taking from counters that a store keeps.

use super::allowance::{Allowance, Allowances, Attempt};
use super::store::{Answer, Arrival, CounterName, Question, Store};
use super::{Demand, FunctionLimits, Grant, LimitRefusal, SHARDS, Shard, capacity, shard_of};
use leno_model::FunctionId;
use leno_policy::quota::QuotaState;
use leno_policy::quota::TakeResult;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;

/// Retry delay for a client that was refused although its counter may have something left.
const PAUSE_MS: u64 = 1000;
const NO_ANSWER: &str = "the quota store does not answer";
const NO_CAPACITY: &str = "this node has no room for more counters of the limit";

/// Why nothing was taken.
enum Shortage {
    /// There is nothing to take.
    Refused(LimitRefusal),
    /// The node is asking the store. Try again when it has answered.
    Asked(PendingQuestions),
}

/// Questions in flight, and the index of the first demand that lacks something.
struct PendingQuestions {
    woken: Vec<oneshot::Receiver<()>>,
    index: usize,
}

impl FunctionLimits {
    /// Takes everything that is demanded, or nothing. If a store keeps the counters and this node
    /// holds too little, waits for the store, at most for its timeout.
    pub async fn take_or_wait(&self, demands: &[Demand<'_>], now_ms: u64) -> Result<Vec<Grant>, LimitRefusal> {
        let Some((store, function)) = self.store.as_ref().filter(|_| !demands.is_empty()) else {
            return self.take(demands, now_ms);
        };
        let mut until = None;
        loop {
            let PendingQuestions { woken, index } = match self.take_or_ask(store, function, demands, Instant::now()) {
                Ok(granted) => return Ok(granted),
                Err(Shortage::Refused(refused)) => return Err(refused),
                Err(Shortage::Asked(asked)) => asked,
            };
            let until = *until.get_or_insert_with(|| tokio::time::Instant::now() + store.timeout);
            let answered = async {
                for woken in woken {
                    // An error means that the sender was dropped: no answer is to be expected.
                    let _ = woken.await;
                }
            };
            if tokio::time::timeout_at(until, answered).await.is_err() {
                store.counts.refused.fetch_add(1, Ordering::Relaxed);
                return Err(uncounted(index, demands.get(index), NO_ANSWER));
            }
        }
    }

    fn take_or_ask(
        &self,
        store: &Store,
        function: &FunctionId,
        demands: &[Demand<'_>],
        now: Instant,
    ) -> Result<Vec<Grant>, Shortage> {
        let hashes: Vec<u64> = demands.iter().map(|demand| self.hash(&demand.limit.name, demand.key)).collect();
        let mut locks = self.lock_all(&hashes);
        let mut granted = Vec::with_capacity(demands.len());
        let mut lacking = Vec::new();
        let mut refused = None;
        let mut taken = Vec::with_capacity(demands.len());
        for (index, (demand, hash)) in demands.iter().zip(&hashes).enumerate() {
            let Some(allowance) = self.allowance(&mut locks, *hash, demand, now) else {
                refused = Some(uncounted(index, Some(demand), NO_CAPACITY));
                break;
            };
            match allowance.take(&demand.limit.algorithm, demand.cost, now) {
                Attempt::Taken => {
                    granted.push(Grant { taken: allowance.taken(true, now), shared: allowance.shared() });
                    taken.push(index);
                }
                Attempt::Exhausted => {
                    let (taken, shared) = (allowance.taken(false, now), allowance.shared());
                    refused = Some(LimitRefusal { index, taken, shared, uncounted: None });
                    break;
                }
                Attempt::Lacking if !store.answers() => {
                    store.counts.refused.fetch_add(1, Ordering::Relaxed);
                    refused = Some(uncounted(index, Some(demand), NO_ANSWER));
                    break;
                }
                Attempt::Lacking => lacking.push(index),
            }
        }
        let name = |demand: &Demand<'_>| CounterName {
            function: function.clone(),
            limit: demand.limit.name.as_str().into(),
            key: demand.key.into(),
        };
        if refused.is_none() && lacking.is_empty() {
            for (demand, hash) in demands.iter().zip(&hashes) {
                if let Some(allowance) = self.allowance(&mut locks, *hash, demand, now)
                    && allowance.runs_low(now)
                {
                    ask(store, allowance, || name(demand));
                }
            }
            return Ok(granted);
        }
        for index in taken {
            if let Some(allowance) = self.allowance(&mut locks, hashes[index], &demands[index], now) {
                allowance.put_back(demands[index].cost);
            }
        }
        if let Some(refused) = refused {
            return Err(Shortage::Refused(refused));
        }
        let first = lacking.first().copied().unwrap_or_default();
        let mut woken = Vec::with_capacity(lacking.len());
        for index in lacking {
            let demand = &demands[index];
            if let Some(allowance) = self.allowance(&mut locks, hashes[index], demand, now) {
                let receiver = allowance.wait(demand.cost);
                ask(store, allowance, || name(demand));
                woken.push(receiver);
            }
        }
        Err(Shortage::Asked(PendingQuestions { woken, index: first }))
    }

    /// The question to the store about a counter; `None`: no question is needed any more.
    pub fn question(&self, limit: &str, key: &str, now: Instant) -> Option<Question> {
        self.with_allowance(limit, key, |allowance| allowance.question(now))
    }

    /// Applies the store's answer.
    pub fn answered(&self, limit: &str, key: &str, answer: Answer, arrival: Arrival) {
        self.with_allowance(limit, key, |allowance| allowance.answered(answer, arrival));
    }

    /// Records that the store did not answer.
    pub fn unanswered(&self, limit: &str, key: &str) {
        self.with_allowance(limit, key, Allowance::failed);
    }

    /// Gives unused allowances back, and renews others.
    pub(super) fn sweep(&self, now: Instant) {
        let Some((store, function)) = &self.store else { return };
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            for allowances in &mut shard.allowances {
                let limit = allowances.limit.clone();
                let name =
                    |key: &str| CounterName { function: function.clone(), limit: limit.clone(), key: key.into() };
                allowances.sweep(now, |key| store.answers() && store.ask(name(key)));
            }
            shard.allowances.retain(|allowances| allowances.len() > 0);
        }
    }

    fn with_allowance<T>(&self, limit: &str, key: &str, then: impl FnOnce(&mut Allowance) -> T) -> Option<T> {
        let hash = self.hash(limit, key);
        let mut shard = self.lock(shard_of(hash));
        let allowances = shard.allowances.iter_mut().find(|allowances| *allowances.limit == *limit)?;
        allowances.find_mut(hash, key).map(then)
    }

    fn allowance<'a>(
        &self,
        locks: &'a mut [Option<MutexGuard<'_, Shard>>; SHARDS],
        hash: u64,
        demand: &Demand<'_>,
        now: Instant,
    ) -> Option<&'a mut Allowance> {
        let shard = locks[shard_of(hash)].as_mut()?;
        let limit = &demand.limit.name;
        let index = match shard.allowances.iter().position(|allowances| *allowances.limit == **limit) {
            Some(index) => index,
            None => {
                shard.allowances.push(Allowances::new(limit));
                shard.allowances.len() - 1
            }
        };
        shard.allowances[index].get(hash, demand.key, &demand.limit.algorithm, now, &self.hasher)
    }
}

fn ask(store: &Store, allowance: &mut Allowance, name: impl FnOnce() -> CounterName) {
    if allowance.begin_to_ask() && !store.ask(name()) {
        allowance.cannot_ask();
    }
}

/// The refusal if the state of a counter cannot be determined.
fn uncounted(index: usize, demand: Option<&Demand<'_>>, reason: &'static str) -> LimitRefusal {
    let taken = TakeResult {
        state: QuotaState::default(),
        allowed: false,
        remaining: 0,
        limit: demand.map_or(0, |demand| capacity(&demand.limit.algorithm)),
        retry_after_ms: PAUSE_MS,
        reset_ms: PAUSE_MS,
    };
    LimitRefusal { index, taken, shared: false, uncounted: Some(reason) }
}
