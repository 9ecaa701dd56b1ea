//! The interface between this crate and the node that runs it.

use crate::instance_id::InstanceId;
use crate::output::LogLine;
use crate::processes::Processes;
use leno_config::FunctionId;
use std::net::SocketAddr;
use std::sync::Arc;

/// Callbacks to the node. They run on the supervisor's tasks and must not block.
pub trait Host: Send + Sync + 'static {
    /// Additional environment variables of an instance that is about to start. They override those that the function configures, but not `PORT`.
    fn environment(&self, function: &FunctionId, instance: InstanceId) -> Vec<(String, String)> {
        let _ = (function, instance);
        Vec::new()
    }

    /// An instance was started with these processes.
    fn started(&self, function: &FunctionId, instance: InstanceId, processes: &Arc<Processes>) {
        let _ = (function, instance, processes);
    }

    /// An instance wrote a line of output.
    fn log(&self, line: &LogLine) {
        let _ = line;
    }

    /// An instance is ready and gets requests from now on.
    fn ready(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// An instance gets no new requests from now on. In-flight requests may finish.
    fn draining(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// The last process of an instance has ended. Called once for each instance, even if it was never ready.
    fn ended(&self, function: &FunctionId, instance: InstanceId) {
        let _ = (function, instance);
    }
}

/// A host that provides nothing and ignores everything.
impl Host for () {}
