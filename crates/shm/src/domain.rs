//! A chain on this node: the functions whose instances may read each other's memory.

use crate::statistics::Statistics;
use std::sync::Arc;

/// A security domain. Clones are the same domain. Two domains that were made separately differ,
/// even if their names are equal.
#[derive(Clone, Debug)]
pub struct Domain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    statistics: Statistics,
}

impl Domain {
    /// Makes a new domain.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(Inner { name: name.into(), statistics: Statistics::default() }))
    }

    /// Its name for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The counters of all its links together.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.0.statistics
    }
}

impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Domain {}
