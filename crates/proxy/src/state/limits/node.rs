//! The rate limits of all functions of a node.

use super::store::Store;
use super::{FunctionLimits, LeaseTerm, LimitCounts, RemoteLimits, Tally};
use leno_model::FunctionId;
use leno_telemetry::metrics::Entries;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The counters of a node's rate limits, by function.
#[derive(Debug, Default)]
pub struct NodeLimits {
    state: Mutex<State>,
    /// The term during which the node's shares of rate limits are valid.
    pub lease_term: Arc<LeaseTerm>,
    /// Keeps the counters in place of this node.
    store: OnceLock<Arc<Store>>,
}

#[derive(Debug, Default)]
struct State {
    functions: HashMap<FunctionId, Arc<FunctionLimits>>,
    leases_required: bool,
    /// The process that counts in place of this one, after a hot restart.
    remote: Option<Arc<dyn RemoteLimits>>,
}

impl NodeLimits {
    /// The limits of one function, made on first use.
    pub fn function(&self, function: &FunctionId) -> Arc<FunctionLimits> {
        let mut state = self.lock();
        if let Some(limits) = state.functions.get(function) {
            return limits.clone();
        }
        let limits = match self.store.get() {
            Some(store) => FunctionLimits::stored(store.clone(), function.clone()),
            None => FunctionLimits::new(self.lease_term.clone()),
        };
        if state.leases_required {
            limits.require_leases();
        }
        if let Some(remote) = &state.remote {
            limits.transfer(&name(function), remote, 0);
        }
        let limits = Arc::new(limits);
        state.functions.insert(function.clone(), limits.clone());
        limits
    }

    /// The limits of one function, if this node counts any.
    pub fn known(&self, function: &FunctionId) -> Option<Arc<FunctionLimits>> {
        self.lock().functions.get(function).cloned()
    }

    /// Transfers all counters to `remote`, the process that counts from now on.
    pub fn transfer(&self, remote: &Arc<dyn RemoteLimits>, now_ms: u64) -> Vec<(Arc<str>, Vec<LimitCounts>)> {
        let mut state = self.lock();
        state.remote = Some(remote.clone());
        let transfer = |(function, limits): (&FunctionId, &Arc<FunctionLimits>)| {
            let name = name(function);
            let counts = limits.transfer(&name, remote, now_ms);
            (name, counts)
        };
        state.functions.iter().map(transfer).collect()
    }

    /// Undoes [`NodeLimits::transfer`]: the other process does not count after all, and this one
    /// goes on with its counters.
    pub fn resume(&self) {
        let mut state = self.lock();
        state.remote = None;
        state.functions.values().for_each(|limits| limits.resume());
    }

    /// Lets a store keep the counters from now on. Functions that are known already keep their own,
    /// so this call comes first. A node has one store; a second call changes nothing.
    pub fn set_store(&self, store: Arc<Store>) {
        let _ = self.store.set(store);
    }

    /// The store that keeps the counters.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Gives unused allowances back to the store, and renews others. Call it a few times a second.
    pub fn sweep_allowances(&self, now: Instant) {
        self.all().iter().for_each(|(_, limits)| limits.sweep(now));
    }

    /// From now on, a function has a share of its rate limits on this node only if the control
    /// plane leases one.
    pub fn require_leases(&self) {
        let mut state = self.lock();
        state.leases_required = true;
        state.functions.values().for_each(|limits| limits.require_leases());
    }

    /// The requests that each leased rate limit has admitted and refused, by function.
    pub fn tallies(&self) -> Vec<(FunctionId, Box<str>, Tally)> {
        let of = |(id, limits): (FunctionId, Arc<FunctionLimits>)| {
            limits.tallies().into_iter().map(move |(limit, tally)| (id.clone(), limit, tally))
        };
        self.all().into_iter().flat_map(of).collect()
    }

    /// Drops the limits of other functions. Returns whether there were any.
    pub(crate) fn retain(&self, keep: impl Fn(&FunctionId) -> bool) -> bool {
        let mut state = self.lock();
        let before = state.functions.len();
        state.functions.retain(|function, _| keep(function));
        state.functions.len() < before
    }

    /// Number of counters, for metrics.
    pub(crate) fn entries(&self) -> Entries {
        let store = self.store.get();
        let mut entries = Entries { store: store.map(|store| store.figures()), ..Entries::default() };
        for (function, limits) in self.all() {
            let name = name(&function);
            entries.counters += limits.len();
            let by_limit = limits.by_limit().into_iter();
            entries.by_limit.extend(by_limit.map(|(limit, counters)| (name.clone(), limit, counters)));
        }
        entries
    }

    fn all(&self) -> Vec<(FunctionId, Arc<FunctionLimits>)> {
        self.lock().functions.iter().map(|(function, limits)| (function.clone(), limits.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `namespace/name`.
fn name(function: &FunctionId) -> Arc<str> {
    function.to_string().into()
}
