//! The lifecycle of an instance.

use serde::Serialize;
use std::fmt;

/// Lifecycle state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Waits for its image. The control plane sees it as starting.
    Pulling,
    /// Started, but not ready yet.
    Starting,
    /// Ready: gets requests.
    Ready,
    /// Gets no new requests. In-flight requests may finish.
    Draining,
    /// Was ready and does not serve any more. It gets no new requests, and another one takes its
    /// place. The control plane sees it as draining.
    Unhealthy,
    /// The node is stopping it.
    Stopping,
}

impl fmt::Display for InstanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pulling => "pulling",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::Stopping => "stopping",
        })
    }
}
