//! Functions that were removed, and that may still be at work until their time is up.

use super::function::FunctionEntry;
use super::snapshot::NodeSnapshot;
use leno_model::FunctionId;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Removed functions whose exchanges may still finish. An exchange from or to such a function is
/// judged by the current configuration with these functions added, each in its last version.
#[derive(Clone, Debug, Default)]
pub struct RemovedFunctions {
    functions: HashMap<FunctionId, (Arc<FunctionEntry>, Instant)>,
    /// `None`: there are no such functions.
    snapshot: Option<Arc<NodeSnapshot>>,
}

impl RemovedFunctions {
    /// Removed functions, each with the time at which its exchanges are closed.
    pub fn new(functions: impl IntoIterator<Item = (Arc<FunctionEntry>, Instant)>) -> Self {
        let functions = functions.into_iter().map(|(entry, until)| (entry.config.id.clone(), (entry, until)));
        Self { functions: functions.collect(), snapshot: None }
    }

    /// The same functions together with another configuration.
    pub(super) fn beside(&self, present: &NodeSnapshot) -> Self {
        let entries = self.functions.values().map(|(entry, _)| entry);
        let snapshot = (!self.functions.is_empty()).then(|| Arc::new(present.with_removed(entries)));
        Self { functions: self.functions.clone(), snapshot }
    }

    pub(super) fn snapshot(&self) -> Option<&Arc<NodeSnapshot>> {
        self.snapshot.as_ref()
    }

    /// The snapshot that judges a removed function's exchanges, and the function's entry there.
    pub(super) fn find(&self, function: &FunctionId) -> Option<(Arc<NodeSnapshot>, Arc<FunctionEntry>)> {
        let (entry, _) = self.functions.get(function)?;
        Some((self.snapshot.clone()?, entry.clone()))
    }

    /// When the exchanges of a removed function are closed.
    pub(crate) fn until(&self, function: &FunctionId) -> Option<Instant> {
        self.functions.get(function).map(|(_, until)| *until)
    }
}
