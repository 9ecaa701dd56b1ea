//! Why there is no instance for a request.

use std::time::Duration;

/// Why a request got no instance. All of them are the function's or the node's trouble, not the client's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Nothing became free or ready in time.
    #[error("no instance within {waited:?}")]
    Timeout {
        /// How long the request waited.
        waited: Duration,
    },
    /// The instance that was started could not be: no such program, no such directory.
    #[error("the instance could not be started: {reason}")]
    Start {
        /// The system's words.
        reason: String,
    },
    /// The instance that was started ended before it was ready.
    #[error("the instance ended before it was ready: {status}")]
    Exited {
        /// Exit status or signal.
        status: String,
    },
    /// The instance that was started did not become ready in time.
    #[error("the instance was not ready within {limit:?}: {reason}")]
    NotReady {
        /// The function's start-up time-out.
        limit: Duration,
        /// What the last probe said.
        reason: String,
    },
    /// Somebody else listens where the instance should. Nothing was sent there.
    #[error("somebody else listens where the instance should: {reason}")]
    Captured {
        /// Who.
        reason: String,
    },
    /// Instances failed several times in a row; the next is started after a pause.
    #[error("instances keep failing; the next one is started in {retry_after:?}: {reason}")]
    Backoff {
        /// Until then.
        retry_after: Duration,
        /// Why the last one failed.
        reason: String,
    },
    /// As many requests wait as may.
    #[error("{limit} requests wait for an instance already")]
    QueueFull {
        /// How many may wait.
        limit: usize,
    },
    /// As many requests wait on the node as may, and this function has its share of them.
    #[error("{limit} requests wait on this node already")]
    NodeFull {
        /// How many may wait.
        limit: usize,
    },
    /// The function was removed, or the node is shutting down.
    #[error("the function is being removed")]
    Removed,
}
