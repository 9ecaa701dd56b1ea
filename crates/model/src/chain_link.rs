//! Functions that pass requests in shared memory.

use crate::function_id::FunctionId;
use serde::{Deserialize, Serialize};

/// The chain of a function. It holds for all revisions of the function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainLink {
    /// The chain: `namespace/name`.
    pub chain: String,
    /// Bytes of shared memory for each instance and direction: a multiple of 4096.
    pub memory: u64,
    /// Callees whose calls go through shared memory, if both ends have some. They are among the
    /// function's callees.
    pub to: Vec<FunctionId>,
    /// The node requests large pages. `memory` is a multiple of 2 MiB.
    pub large_pages: bool,
    /// The kernel judges calls whose rules depend only on caller and callee.
    pub direct: bool,
}
