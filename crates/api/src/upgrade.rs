//! The request for a hot restart of a node, at its admin socket.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokio::sync::oneshot;

/// The path of the request.
pub const PATH: &str = "/upgrade";
/// Longest [`UpgradeRequest::timeout`], in seconds.
pub const MAX_TIMEOUT: u64 = 600;

/// The body of the request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// The program; `None`: the path from which the present process was started.
    pub binary: Option<PathBuf>,
    /// Seconds until the new process must be ready.
    pub timeout: u64,
}

/// A request that the node has not answered yet.
pub struct Pending {
    /// The request.
    pub request: UpgradeRequest,
    /// Takes a text for the operator: the new process, or why there is none.
    pub answer: oneshot::Sender<anyhow::Result<String>>,
}
