//! The node's limits and caches, which programs see as state: rate limits, verified tokens, load,
//! health.
//!
//! Programs read copies only. They return the changes that they want as plain data. The ledger
//! makes these changes atomically, and its decision is final. Each function has its own state with
//! its own limits, so that no function can use up another's. No lock is held across an `await`.
//! Callers pass the time.

pub mod load;
pub mod outlier;
pub mod quota;
pub mod token;
mod unknown;

pub use load::{ConnectionGuard, PendingGuard, RequestGuard, RetryGuard, TargetState};
pub use outlier::Attempt;
pub use quota::store::{Answer, Arrival, CounterName, Question, Store, StoreCounts};
pub use quota::{Demand, Elsewhere, Granted, LeaseTerm, LimitCounts, Quotas, Refused, Tally};
pub use token::{Digest, Known, Signatures, Tokens, VerifiedSignature};
pub use unknown::UnknownKeyReports;

use leno_model::FunctionId;
use leno_sandbox::extension::SharedData;
use leno_telemetry::metrics::Entries;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The ledger of a node: the state of all its functions.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Workers cache the states that they use, so they take this lock once for each.
    functions: Mutex<HashMap<FunctionId, Arc<FunctionState>>>,
    /// Grows when functions are forgotten, so that workers drop their cached states.
    generation: AtomicU64,
    /// The term during which the node's shares of rate limits are valid.
    pub lease_term: Arc<LeaseTerm>,
    leases_required: AtomicBool,
    /// The process that counts for rate limits in place of this one, after a hot restart. Locked
    /// after `functions`.
    moved: Mutex<Option<Arc<dyn Elsewhere>>>,
    /// Keeps the counters of rate limits in place of this node.
    store: OnceLock<Arc<Store>>,
    /// Tokens that were verified with the keys of any function.
    pub signatures: Signatures,
    /// Functions whose key sets may have changed.
    pub unknown_keys: Arc<UnknownKeyReports>,
}

/// The ledger's state of one function.
#[derive(Debug)]
pub struct FunctionState {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Counters of its rate limits.
    pub quotas: Quotas,
    /// Tokens whose signatures were verified.
    pub tokens: Tokens,
    /// Load of the function as this node's callee, and health of its endpoints.
    pub target: Arc<TargetState>,
    /// Data that the instances of its extensions share.
    pub shared: Arc<SharedData>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The state of one function, made on first use.
    pub fn function(&self, function: &FunctionId) -> Arc<FunctionState> {
        let mut functions = self.lock();
        match functions.get(function) {
            Some(state) => state.clone(),
            None => {
                let quotas = match self.store.get() {
                    Some(store) => Quotas::stored(store.clone(), function.clone()),
                    None => Quotas::new(self.lease_term.clone()),
                };
                if self.leases_required.load(Ordering::Relaxed) {
                    quotas.require_leases();
                }
                let name: Arc<str> = function.to_string().into();
                if let Some(elsewhere) = &*self.moved.lock().unwrap_or_else(PoisonError::into_inner) {
                    quotas.hand_over(&name, elsewhere, 0);
                }
                let state = Arc::new(FunctionState {
                    name,
                    quotas,
                    tokens: Tokens::default(),
                    target: Arc::default(),
                    shared: Arc::default(),
                });
                functions.insert(function.clone(), state.clone());
                state
            }
        }
    }

    /// Transfers the counters of all rate limits to `elsewhere`, the process that counts from now
    /// on.
    pub fn hand_over(&self, elsewhere: &Arc<dyn Elsewhere>, now_ms: u64) -> Vec<(Arc<str>, Vec<LimitCounts>)> {
        let functions = self.lock();
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(elsewhere.clone());
        let of =
            |state: &Arc<FunctionState>| (state.name.clone(), state.quotas.hand_over(&state.name, elsewhere, now_ms));
        functions.values().map(of).collect()
    }

    /// Undoes [`Ledger::hand_over`]: the other process does not count after all, and this one goes
    /// on with its counters.
    pub fn resume(&self) {
        let functions = self.lock();
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = None;
        functions.values().for_each(|state| state.quotas.resume());
    }

    /// Lets a store keep the counters of rate limits from now on. Functions that the ledger already
    /// knows keep their own, so this call comes first. A ledger has one store; a second call
    /// changes nothing.
    pub fn keep_quotas_in(&self, store: Arc<Store>) {
        let _ = self.store.set(store);
    }

    /// The store that keeps the counters of rate limits.
    pub fn quota_store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// The state of one function, if the ledger knows it.
    pub fn known(&self, function: &FunctionId) -> Option<Arc<FunctionState>> {
        self.lock().get(function).cloned()
    }

    /// Gives unused allowances back to the store, and renews others. Call it a few times a second.
    pub fn sweep_allowances(&self, now: Instant) {
        let states: Vec<_> = self.lock().values().cloned().collect();
        states.iter().for_each(|state| state.quotas.sweep(now));
    }

    /// From now on, a function has a share of its rate limits on this node only if the control
    /// plane leases one.
    pub fn require_leases(&self) {
        let functions = self.lock();
        self.leases_required.store(true, Ordering::Relaxed);
        functions.values().for_each(|state| state.quotas.require_leases());
    }

    /// The requests that each leased rate limit has admitted and refused, by function.
    pub fn tallies(&self) -> Vec<(FunctionId, Box<str>, Tally)> {
        let states: Vec<_> = self.lock().iter().map(|(id, state)| (id.clone(), state.clone())).collect();
        let of = |(id, state): (FunctionId, Arc<FunctionState>)| {
            state.quotas.tallies().into_iter().map(move |(limit, tally)| (id.clone(), limit, tally))
        };
        states.into_iter().flat_map(of).collect()
    }

    /// The load of one function as this node's callee, and the health of its endpoints.
    pub fn target(&self, function: &FunctionId) -> Arc<TargetState> {
        self.function(function).target.clone()
    }

    /// Forgets functions that are gone for good. If one returns, its counters begin anew.
    pub fn retain(&self, keep: impl Fn(&FunctionId) -> bool) {
        let mut functions = self.lock();
        let before = functions.len();
        functions.retain(|function, _| keep(function));
        if functions.len() < before {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Changes when functions are forgotten. States that were obtained earlier may then belong to no function.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Number of entries, for metrics.
    pub fn entries(&self) -> Entries {
        let store = self.store.get();
        let mut entries = Entries { store: store.map(|store| store.figures()), ..Entries::default() };
        let states: Vec<_> = self.lock().values().cloned().collect();
        for state in states {
            entries.counters += state.quotas.len();
            entries.tokens += state.tokens.len();
            let by_limit = state.quotas.by_limit().into_iter();
            entries.by_limit.extend(by_limit.map(|(limit, counters)| (state.name.clone(), limit, counters)));
        }
        entries
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FunctionId, Arc<FunctionState>>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_part_until_it_is_forgotten() {
        let ledger = Ledger::new();
        let orders = FunctionId::new("shop", "orders").unwrap();
        let guard = ledger.target(&orders).acquire_request(None).unwrap();
        assert!(ledger.target(&orders).acquire_request(Some(1)).is_none(), "the same part");
        let generation = ledger.generation();
        ledger.retain(|_| true);
        assert_eq!(ledger.generation(), generation);
        ledger.retain(|_| false);
        assert_ne!(ledger.generation(), generation);
        assert!(ledger.target(&orders).acquire_request(Some(1)).is_some(), "a new part");
        drop(guard);
    }
}
