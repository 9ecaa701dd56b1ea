//! What this crate tells, and asks of, whoever runs it.

use crate::instance_id::InstanceId;
use crate::output::LogLine;
use crate::processes::Processes;
use leno_config::FunctionId;
use std::net::SocketAddr;
use std::sync::Arc;

/// What the supervisor tells the node. Called from the supervisor's tasks: do not block.
pub trait Host: Send + Sync + 'static {
    /// Additional environment of an instance that is about to start. Wins over what the function configures, except `PORT`.
    fn environment(&self, function: &FunctionId, instance: InstanceId) -> Vec<(String, String)> {
        let _ = (function, instance);
        Vec::new()
    }

    /// An instance has been started, and these are its processes.
    fn started(&self, function: &FunctionId, instance: InstanceId, processes: &Arc<Processes>) {
        let _ = (function, instance, processes);
    }

    /// An instance wrote a line.
    fn log(&self, line: &LogLine) {
        let _ = line;
    }

    /// An instance gets requests from now on.
    fn ready(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// An instance gets no new requests any more; those it has may go on.
    fn withdrawn(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let _ = (function, instance, address);
    }

    /// No process of the instance is left. Once for each instance, also for those that were never ready.
    fn ended(&self, function: &FunctionId, instance: InstanceId) {
        let _ = (function, instance);
    }
}

/// A host that gives nothing and listens to nothing.
impl Host for () {}
