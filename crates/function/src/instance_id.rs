//! What instances are called.

use leno_config::{FunctionId, revision};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// Names an instance; unique within a supervisor, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct InstanceId {
    /// Rises with every instance of the supervisor.
    pub number: u64,
    /// The revision that it was started as; 0: nobody numbers them.
    pub revision: u32,
}

impl InstanceId {
    /// `namespace/function-00003/number`: what others call it. Without a revision, `namespace/function/number`.
    pub fn name(self, function: &FunctionId) -> Arc<str> {
        match self.revision {
            0 => format!("{function}/{self}").into(),
            revision => format!("{}/{}/{self}", function.namespace, revision::name(function, revision)).into(),
        }
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}
