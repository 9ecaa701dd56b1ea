//! Ports that Gateway documents open, and the report on those that this node cannot open.

use leno_agent::Agent;
use leno_proxy::{GatewayPorts, Node};
use leno_wire::listener_fault::MAX_LISTENER_FAULTS;
use leno_wire::{ListenerFault, ListenerFaultKind};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time between two attempts to open a port that another process has.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The ports, and whether all are open.
pub(crate) struct OpenPorts {
    ports: GatewayPorts,
    are_open: bool,
}

impl OpenPorts {
    pub(crate) fn new(ports: GatewayPorts) -> Self {
        Self { ports, are_open: true }
    }

    /// Whether a port is missing.
    pub(crate) fn miss_any(&self) -> bool {
        !self.are_open
    }

    /// Opens and closes ports as the node's current snapshot says, and reports the listeners without
    /// a port or without their certificates. `may_bind`: this process owns the node.
    pub(crate) fn follow(&mut self, node: &Node, agent: &Agent, may_bind: bool) {
        let snapshot = node.snapshot.load();
        let missing: BTreeMap<u16, String> =
            self.ports.set(&snapshot, may_bind).into_iter().map(|(port, error)| (port, error.to_string())).collect();
        self.are_open = missing.is_empty();
        let fault = |listener: &leno_proxy::OpenedListener| {
            let reason = format!("port {} cannot be opened: {}", listener.port, missing.get(&listener.port)?);
            Some(ListenerFault { listener: listener.name.to_string(), kind: ListenerFaultKind::Port, reason })
        };
        let without_port = snapshot.gateway_routes.opened().iter().filter_map(fault);
        let unusable = snapshot.gateway_routes.certificates().filter_map(|(listener, secret)| {
            let reason = node.listener_certificates.fault(secret)?;
            Some(ListenerFault {
                listener: listener.to_owned(),
                kind: ListenerFaultKind::Certificate,
                reason: format!("the StoredSecret `{secret}`: {reason}"),
            })
        });
        let faults: Vec<_> = without_port.chain(unusable).take(MAX_LISTENER_FAULTS).collect();
        if agent.report_listeners(&faults) {
            for ListenerFault { listener, reason, .. } in &faults {
                tracing::error!(listener, reason, "a listener is not in force");
            }
        }
    }
}
