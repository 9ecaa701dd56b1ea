//! The state that policies depend on: rate limits, verified tokens, health of callees, shared data.
//!
//! Programs read copies only. They return the changes that they want as plain data. This state
//! makes them atomically, and its decision is final. Each function has its own part with its own
//! bounds, so that no function can use up another's. No lock is held across an `await`. Callers
//! pass the time.

use super::by_function::ByFunction;
use super::health::TargetHealth;
use super::limits::{FunctionLimits, NodeLimits};
use super::tokens::{NodeTokens, VerifiedTokens};
use leno_model::FunctionId;
use leno_sandbox::extension::SharedData;
use leno_telemetry::metrics::Entries;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The policy state of a node.
#[derive(Debug, Default)]
pub struct PolicyState {
    /// Counters of rate limits.
    pub limits: Arc<NodeLimits>,
    /// Tokens whose signatures were verified.
    pub tokens: NodeTokens,
    /// Load of functions as this node's callees, and health of their endpoints.
    pub health: ByFunction<TargetHealth>,
    /// Data that the instances of a function's extensions share.
    shared_data: ByFunction<SharedData>,
    /// Grows when functions are forgotten, so that workers drop their cached states.
    generation: AtomicU64,
}

/// The policy state of one function. Workers cache it, so they take the locks once for each.
#[derive(Clone, Debug)]
pub struct FunctionState {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Counters of its rate limits.
    pub limits: Arc<FunctionLimits>,
    /// Tokens whose signatures were verified.
    pub tokens: Arc<VerifiedTokens>,
    /// Load of the function as this node's callee, and health of its endpoints.
    pub health: Arc<TargetHealth>,
    /// Data that the instances of its extensions share.
    pub shared_data: Arc<SharedData>,
}

impl PolicyState {
    /// No state of any function.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The state of one function, made on first use.
    pub fn function(&self, function: &FunctionId) -> FunctionState {
        FunctionState {
            name: function.to_string().into(),
            limits: self.limits.function(function),
            tokens: self.tokens.function(function),
            health: self.health.get(function),
            shared_data: self.shared_data.get(function),
        }
    }

    /// Forgets functions that are gone for good. If one returns, its state begins anew.
    pub fn retain(&self, keep: impl Fn(&FunctionId) -> bool) {
        let forgotten = [
            self.limits.retain(&keep),
            self.tokens.retain(&keep),
            self.health.retain(&keep),
            self.shared_data.retain(&keep),
        ];
        if forgotten.contains(&true) {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Changes when functions are forgotten. States that were obtained earlier may then belong to
    /// no function.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Number of entries, for metrics.
    pub fn entries(&self) -> Entries {
        Entries { tokens: self.tokens.len(), ..self.limits.entries() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_one_state_until_it_is_forgotten() {
        let state = PolicyState::new();
        let orders = FunctionId::new("shop", "orders").unwrap();
        let guard = state.health.get(&orders).acquire_request(None).unwrap();
        assert!(state.function(&orders).health.acquire_request(Some(1)).is_none(), "the same state");
        let generation = state.generation();
        state.retain(|_| true);
        assert_eq!(state.generation(), generation);
        state.retain(|_| false);
        assert_ne!(state.generation(), generation);
        assert!(state.health.get(&orders).acquire_request(Some(1)).is_some(), "a new state");
        drop(guard);
    }
}
