//! The chains of this node.

use leno_chain::Domain;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Chains that have, or had, instances here. They are few: each stands in a Chain document.
#[derive(Debug, Default)]
pub(crate) struct Chains(Mutex<HashMap<String, Domain>>);

impl Chains {
    /// The chain of this name, `namespace/name`. Instances of one chain may be shown each other's memory.
    pub(crate) fn domain(&self, name: &str) -> Domain {
        let mut chains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        chains.entry(name.to_owned()).or_insert_with(|| Domain::new(name)).clone()
    }
}
