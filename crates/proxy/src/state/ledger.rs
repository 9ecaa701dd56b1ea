//! The node's counters and memories that programs see as state: quotas, verified tokens, load.
//!
//! Programs only read copies. What they want changed comes back as plain data, and is carried out here, atomically; the ledger
//! has the last word. Every function has its own part with its own bounds, so that none can use up another's. No lock is held
//! across an `await`, and time is always passed in.

pub mod load;
pub mod outlier;
pub mod quota;
pub mod token;
mod unknown;

pub use load::{ConnectionGuard, PendingGuard, RequestGuard, RetryGuard, TargetState};
pub use outlier::Attempt;
pub use quota::{Quotas, Refused};
pub use token::{Digest, Known, Made, Signatures, Tokens};
pub use unknown::UnknownKeys;

use crate::telemetry::metrics::LedgerEntries;
use leno_config::FunctionId;
use leno_sandbox::extension::SharedData;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All functions' parts.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Workers keep the parts they use; they come here once for each.
    functions: Mutex<HashMap<FunctionId, Arc<FunctionState>>>,
    /// Grows when functions are forgotten, so that workers let go of what they keep.
    generation: AtomicU64,
    /// Tokens that any function's keys have made.
    pub signatures: Signatures,
    /// Functions whose key sets may have changed.
    pub unknown_keys: Arc<UnknownKeys>,
}

/// What the ledger holds for one function.
#[derive(Debug)]
pub struct FunctionState {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Counters of its rate limits.
    pub quotas: Quotas,
    /// Tokens whose signatures were good.
    pub tokens: Tokens,
    /// What is under way to it from this node.
    pub target: Arc<TargetState>,
    /// What the instances of its extensions share.
    pub shared: Arc<SharedData>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// One function's part, made when it is first asked for.
    pub fn function(&self, function: &FunctionId) -> Arc<FunctionState> {
        let mut functions = self.lock();
        match functions.get(function) {
            Some(state) => state.clone(),
            None => {
                let state = Arc::new(FunctionState {
                    name: function.to_string().into(),
                    quotas: Quotas::default(),
                    tokens: Tokens::default(),
                    target: Arc::default(),
                    shared: Arc::default(),
                });
                functions.insert(function.clone(), state.clone());
                state
            }
        }
    }

    /// What is under way to one function.
    pub fn target(&self, function: &FunctionId) -> Arc<TargetState> {
        self.function(function).target.clone()
    }

    /// Forgets functions that are gone for good. Their counters begin anew should they return.
    pub fn retain(&self, keep: impl Fn(&FunctionId) -> bool) {
        let mut functions = self.lock();
        let before = functions.len();
        functions.retain(|function, _| keep(function));
        if functions.len() < before {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Changes when functions were forgotten: parts that were asked for earlier may be nobody's any more.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// How much it holds.
    pub fn entries(&self) -> LedgerEntries {
        let mut entries = LedgerEntries::default();
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
        let guard = ledger.target(&orders).enter(None).unwrap();
        assert!(ledger.target(&orders).enter(Some(1)).is_none(), "the same part");
        let generation = ledger.generation();
        ledger.retain(|_| true);
        assert_eq!(ledger.generation(), generation);
        ledger.retain(|_| false);
        assert_ne!(ledger.generation(), generation);
        assert!(ledger.target(&orders).enter(Some(1)).is_some(), "a new part");
        drop(guard);
    }
}
