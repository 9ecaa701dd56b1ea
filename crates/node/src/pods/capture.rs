//! The capture of pods, as their tasks use it.

use leno_model::{Pod, PodUid};
use leno_proxy::Machines;
use leno_proxy::pods::PodNetwork;
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

/// Captures pods on this machine. Its calls may take a while.
pub trait Capture: Send + Sync + 'static {
    /// Captures a pod. `network`: the file of its network namespace; `None`: the one that its
    /// programs have.
    fn enrol(&self, pod: &Pod, network: Option<&Path>) -> io::Result<Arc<dyn PodHandle>>;

    /// The pod for which another process of this node has opened a connection that comes from this
    /// address, such as the parent of a hot restart.
    fn caller(&self, client: SocketAddr) -> Option<PodUid>;

    /// Captures no further connections of the pods that an earlier process of this node has captured,
    /// except these. Open ones go on.
    fn stop_others(&self, pods: &BTreeSet<PodUid>);

    /// Releases the pods that an earlier process of this node has captured, except these. Returns whether
    /// all of them are released.
    fn release_others(&self, pods: &BTreeSet<PodUid>) -> bool;
}

/// A captured pod. Dropping it releases nothing: another process of this node may adopt the pod.
pub trait PodHandle: Send + Sync {
    /// The listeners for connections of its programs, and for those to them.
    fn listeners(&self) -> io::Result<(Vec<TcpListener>, Vec<TcpListener>)>;

    /// Its network.
    fn network(&self, machines: &Arc<Machines>) -> io::Result<Arc<dyn PodNetwork>>;

    /// Captures the interfaces that it gets, until it is released.
    fn follow_interfaces(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Changes its mode.
    fn set(&self, pod: &Pod) -> io::Result<()>;

    /// Whether the listeners of another process of this node get the pod's connections now, or it is
    /// not captured any more.
    fn is_handed_over(&self) -> bool;

    /// How many packets and sockets of the pod the kernel has refused, by reason.
    fn refused(&self) -> Vec<(&'static str, u64)>;

    /// Captures no further connections. Open ones go on.
    fn stop(&self) -> io::Result<()>;

    /// Takes no further connections, because the node ends. The pod stays captured, for the next process:
    /// connections of a permissive pod go past the node, those of an enforced one wait.
    fn leave(&self) -> io::Result<()>;

    /// Puts the pod's network back as it was, which ends open connections.
    fn release(&self) -> io::Result<()>;
}
