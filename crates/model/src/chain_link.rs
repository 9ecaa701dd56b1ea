//! Chains: functions that hand each other memory, as nodes need to know them.

use crate::function_id::FunctionId;
use serde::{Deserialize, Serialize};

/// The chain that a function is in. It is the function's, and so that of all of its revisions: one that leaves a chain leaves it at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainLink {
    /// The chain: `namespace/name`.
    pub chain: String,
    /// Of each instance, for each direction, in bytes: a multiple of 4096.
    pub memory: u64,
    /// Callees whose calls go through memory, where both ends have some. They are among the function's callees.
    pub to: Vec<FunctionId>,
    /// The kernel is asked for large pages. `memory` is a multiple of 2 MiB.
    pub large_pages: bool,
    /// The kernel judges calls whose rules ask only who calls whom.
    pub direct: bool,
}
