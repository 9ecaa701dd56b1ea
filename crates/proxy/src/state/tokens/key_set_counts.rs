//! The states of a node's key sets, for its metrics.

use leno_telemetry::exposition::{Collector, Exposition};
use leno_telemetry::families;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The state of a key set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeySetState {
    /// The last fetch succeeded.
    Current,
    /// The last fetch failed. Keys of an earlier one are in use.
    Stale,
    /// No fetch has succeeded, so tokens of its issuer cannot be judged.
    Missing,
}

impl KeySetState {
    const ALL: [Self; 3] = [Self::Current, Self::Stale, Self::Missing];

    fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Stale => "stale",
            Self::Missing => "missing",
        }
    }
}

/// Numbers of key sets by namespace and state. The fetcher of key sets keeps them.
#[derive(Debug, Default)]
pub struct KeySetCounts(Mutex<BTreeMap<Arc<str>, [u64; KeySetState::ALL.len()]>>);

impl KeySetCounts {
    /// Counts these key sets, and no others any more.
    pub fn set(&self, states: impl IntoIterator<Item = (Arc<str>, KeySetState)>) {
        let mut counts = BTreeMap::<_, [u64; KeySetState::ALL.len()]>::new();
        for (namespace, state) in states {
            counts.entry(namespace).or_default()[state as usize] += 1;
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

impl Collector for KeySetCounts {
    fn collect(&self, exposition: &mut Exposition) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        exposition.family(&families::KEY_SETS).samples(counts.iter().flat_map(|(namespace, counts)| {
            KeySetState::ALL.map(|state| ([&**namespace, state.name()], counts[state as usize]))
        }));
    }
}
