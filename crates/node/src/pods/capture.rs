//! The capture of pods, as their tasks use it.

use leno_model::{Pod, PodUid};
use leno_proxy::Machines;
use leno_proxy::pods::PodNetwork;
use std::collections::BTreeSet;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

/// Captures pods on this machine. Its calls may take a while.
pub trait Capture: Send + Sync + 'static {
    /// Captures a pod. `network`: the file of its network namespace; `None`: the one that its
    /// programs have.
    fn enrol(&self, pod: &Pod, network: Option<&Path>) -> io::Result<Arc<dyn PodHandle>>;

    /// Releases the pods that an earlier process of this node has captured, except these.
    fn release_others(&self, pods: &BTreeSet<PodUid>);
}

/// A captured pod. Dropping it releases nothing: another process of this node may adopt the pod.
pub trait PodHandle: Send + Sync {
    /// The listeners for connections of its programs, and for those to them.
    fn listeners(&self) -> io::Result<(Vec<TcpListener>, Vec<TcpListener>)>;

    /// Its network.
    fn network(&self, machines: &Arc<Machines>) -> io::Result<Arc<dyn PodNetwork>>;

    /// Changes its mode.
    fn set(&self, pod: &Pod) -> io::Result<()>;

    /// Captures no further connections. Open ones go on.
    fn stop(&self) -> io::Result<()>;

    /// Puts the pod's network back as it was, which ends open connections.
    fn release(&self) -> io::Result<()>;
}
