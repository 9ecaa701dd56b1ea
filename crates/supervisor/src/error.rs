//! Errors of requests that get no instance.

use std::sync::Arc;
use std::time::Duration;

/// Why a request got no instance. The cause is always the function's or the node's, never the client's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// No instance became free or ready in time.
    #[error("no instance within {waited:?}")]
    Timeout {
        /// How long the request waited.
        waited: Duration,
    },
    /// The instance could not be started: for example, its program or directory does not exist.
    #[error("the instance could not be started: {reason}")]
    Start {
        /// The system's error.
        reason: String,
    },
    /// The instance is a container, and its image is not on this node.
    #[error("its image is not here: {reason}")]
    Image {
        /// The reason, or the progress of the pull.
        reason: String,
    },
    /// The instance ended before it was ready.
    #[error("the instance ended before it was ready: {status}")]
    Exited {
        /// Its exit status or signal.
        status: String,
    },
    /// The instance did not become ready in time.
    #[error("the instance was not ready within {limit:?}: {reason}")]
    NotReady {
        /// The function's start-up timeout.
        limit: Duration,
        /// The error of the last probe.
        reason: String,
    },
    /// Another process listens on the instance's port. Nothing was sent to it.
    #[error("somebody else listens where the instance should: {reason}")]
    PortTaken {
        /// The process, as far as it is known.
        reason: String,
    },
    /// Instances failed several times in a row. The next one is started after a pause.
    #[error("instances keep failing; the next one is started in {retry_after:?}: {reason}")]
    Backoff {
        /// Time until the next start.
        retry_after: Duration,
        /// Why the last one failed.
        reason: String,
    },
    /// The function's queue is full.
    #[error("{limit} requests wait for an instance already")]
    QueueFull {
        /// How many requests may wait.
        limit: usize,
    },
    /// The node's buffer is full, and this function has its share of it.
    #[error("{limit} requests wait on this node already")]
    NodeFull {
        /// How many requests may wait on the node.
        limit: usize,
    },
    /// The namespace of the function has all the requests that may wait on this node, and this function has its share of them.
    #[error(
        "namespace {namespace} has {bound} requests that wait on this node, all that its bound `waitingRequests` allows"
    )]
    NamespaceFull {
        /// The namespace.
        namespace: Arc<str>,
        /// How many may wait.
        bound: u64,
    },
    /// The function was removed, or the node is shutting down.
    #[error("the function is being removed")]
    Removed,
}
