//! The interface between this crate and the node that runs it.

use crate::instance_id::InstanceId;
use crate::processes::Processes;
use leno_jail::{JailListeners, SyscallRefusal};
use leno_model::{FunctionId, OutputLine};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

/// The future of [`Host::link`].
pub type Linking<'a> = Pin<Box<dyn Future<Output = Result<LinkEnd, LinkError>> + Send + 'a>>;

/// Resolves when an instance's link has ended, with the reason.
pub type LinkEnd = Pin<Box<dyn Future<Output = String> + Send>>;

/// Why an instance has no link to the node.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// This node has no memory for chains.
    #[error("this node has no memory for chains")]
    Unsupported,
    /// The node is ending.
    #[error("the node is ending")]
    Ending,
    /// A change of the configuration removed the function from its chain.
    #[error("the function is in no chain any more")]
    NoChain,
    /// The instance violated the protocol, or the node lacks a feature.
    #[error(transparent)]
    Open(Box<dyn std::error::Error + Send + Sync>),
}

/// Callbacks to the node. They run on the supervisor's tasks and must not block.
pub trait Host: Send + Sync + 'static {
    /// Additional environment variables of an instance that is about to start and does not get a
    /// jail. They override those that the function configures, but not `PORT`.
    fn environment(&self, function: &FunctionId, instance: InstanceId) -> Vec<(String, String)> {
        let _ = (function, instance);
        Vec::new()
    }

    /// An instance is about to start in a jail. Every caller at these sockets is this instance.
    fn jail_ready(&self, function: &FunctionId, instance: InstanceId, listeners: JailListeners) {
        let _ = (function, instance, listeners);
    }

    /// A process of an instance made a system call that no jail allows. The supervisor reports each
    /// kind of call once.
    fn refused(&self, function: &FunctionId, instance: InstanceId, refused: &SyscallRefusal) {
        let _ = (function, instance, refused);
    }

    /// An instance was started with these processes, not in a jail.
    fn started(&self, function: &FunctionId, instance: InstanceId, processes: &Arc<Processes>) {
        let _ = (function, instance, processes);
    }

    /// The supervisor has connected to an instance whose messages go through shared memory: the
    /// other end of the socket is the instance. The instance is ready when this returns.
    ///
    /// # Errors
    /// The instance's violation of the protocol, or the feature that the node lacks. The supervisor
    /// then ends the instance.
    fn link<'a>(&'a self, function: &'a FunctionId, instance: InstanceId, socket: OwnedFd) -> Linking<'a> {
        let _ = (function, instance, socket);
        Box::pin(async { Err(LinkError::Unsupported) })
    }

    /// An instance wrote a line of output.
    fn log(&self, function: &FunctionId, instance: InstanceId, line: &OutputLine) {
        let _ = (function, instance, line);
    }

    /// An instance is ready and gets requests from now on.
    fn ready(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// An instance gets no new requests from now on. In-flight requests may finish.
    fn draining(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// A draining instance has used up the drain timeout. The host ends its open requests, with the
    /// mesh as the cause.
    fn end_requests(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// The last process of an instance has ended. Called once for each instance, even if it was never ready.
    fn ended(&self, function: &FunctionId, instance: InstanceId) {
        let _ = (function, instance);
    }
}

/// A host that provides nothing and ignores everything.
impl Host for () {}
