//! Names of instances.

use leno_model::{FunctionId, revision};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// Identifies an instance. It is unique within a supervisor and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct InstanceId {
    /// Rises with every instance of the supervisor.
    pub number: u64,
    /// The revision that the instance was started from; 0: revisions are not numbered.
    pub revision: u32,
}

impl InstanceId {
    /// The full name: `namespace/function-00003/number`, or `namespace/function/number` without a revision.
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
