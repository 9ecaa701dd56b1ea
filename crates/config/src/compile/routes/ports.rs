//! Ports of listeners: sockets of the Mesh document, and ports that Gateway documents open.

use crate::route_status::Condition;
use leno_gateway_api::Listener;
use leno_model::MeshConfig;
use std::collections::BTreeMap;

/// Ports that Gateway documents may have open at a time. A node needs a descriptor for each of its
/// workers and each port.
const MAX_OPEN: usize = 64;

/// The ports that listeners have so far.
pub(super) struct Ports<'a> {
    mesh: &'a MeshConfig,
    /// Opened ports, each with its protocol and its first Gateway.
    open: BTreeMap<u16, (&'a str, String)>,
}

impl<'a> Ports<'a> {
    pub(super) fn new(mesh: &'a MeshConfig) -> Self {
        Self { mesh, open: BTreeMap::new() }
    }

    /// Gives a listener of a Gateway its port. Returns whether gateways have to open the port; if
    /// not, the Mesh document has a socket there. `keeps`: the listener will be in force if it gets
    /// the port.
    ///
    /// # Errors
    /// The port is not permitted, or serves another protocol.
    pub(super) fn take(&mut self, gateway: &str, listener: &'a Listener, keeps: bool) -> Result<bool, Condition> {
        let (port, protocol) = (listener.port, &*listener.protocol);
        let unavailable = |message: String| Err(Condition::fails("Accepted", "PortUnavailable", message));
        let http = self.mesh.gateway_http.map(|address| ("HTTP", address.port()));
        let https = self.mesh.gateway_https.as_ref().map(|https| ("HTTPS", https.listen.port()));
        if let Some((serves, _)) = http.into_iter().chain(https).find(|(_, other)| *other == port) {
            return match serves == protocol {
                true => Ok(false),
                false => unavailable(format!("port {port} serves {serves}, by the Mesh document")),
            };
        }
        if !self.mesh.may_open(port) {
            return unavailable(format!(
                "the Mesh document neither has a socket for {protocol} at port {port} nor permits it"
            ));
        }
        match self.open.get(&port) {
            Some((other, _)) if *other == protocol && protocol != "TCP" => {}
            Some((other, first)) => {
                return unavailable(format!("port {port} serves {other} for the Gateway `{first}`"));
            }
            None if self.open.len() >= MAX_OPEN => {
                return unavailable(format!("{MAX_OPEN} ports are open already for Gateways whose names come first"));
            }
            None if keeps => drop(self.open.insert(port, (protocol, gateway.to_owned()))),
            None => {}
        }
        Ok(true)
    }

    /// How a listener without a port can get one.
    pub(super) fn fix(&self) -> String {
        let http = self.mesh.gateway_http.map(|address| format!("HTTP at port {}", address.port()));
        let https = self.mesh.gateway_https.as_ref().map(|https| format!("HTTPS at port {}", https.listen.port()));
        let open = self.mesh.gateway_ports.iter().map(|ports| match ports.first == ports.last {
            true => format!("port {}", ports.first),
            false => format!("ports {} to {}", ports.first, ports.last),
        });
        let all: Vec<String> = http.into_iter().chain(https).chain(open).collect();
        match all.is_empty() {
            true => "add `gateway: {http: ADDRESS}` to the Mesh document".to_owned(),
            false => {
                format!("expected {}; others need `gateway: {{ports: [PORT]}}` in the Mesh document", all.join(" or "))
            }
        }
    }
}
