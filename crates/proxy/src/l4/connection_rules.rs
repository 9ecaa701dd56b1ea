//! The connections that the instances of a function may make. The proxy finds the destination of
//! each connection here, and the kernel's table is filled from here, so both decide alike.

use crate::state::function::FunctionEntry;
use crate::state::node::Node;
use leno_model::{Callee, FunctionId, Port};
use std::net::{IpAddr, Ipv4Addr};

/// The destination of an instance's connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Destination<'a> {
    /// To the node, which judges each request in it.
    Requests,
    /// A port of a callee with another protocol than HTTP.
    Port(&'a Callee, Port),
    /// Nowhere: no callee has this address.
    Nowhere,
}

/// The destination of a connection to this address and port.
pub(crate) fn destination<'a>(node: &Node, caller: &'a FunctionEntry, address: Ipv4Addr, port: u16) -> Destination<'a> {
    if address.is_loopback() {
        return Destination::Requests;
    }
    let callee = match node.addresses.function(address) {
        Some(id) => caller.config.callees.iter().find(|callee| callee.id == id),
        None => caller.callee_at(address.into()).and_then(|index| caller.config.callees.get(index)),
    };
    match callee.map(|callee| (callee, callee.ports.iter().find(|served| served.number == port))) {
        Some((callee, Some(port))) => Destination::Port(callee, *port),
        Some((_, None)) => Destination::Requests,
        None => Destination::Nowhere,
    }
}

/// A rule of the kernel's table for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The destination address, or the first one of a block.
    pub callee: Ipv4Addr,
    /// The prefix length of the block: 32 for a function's address.
    pub prefix: u8,
    /// The destination port; `None`: all ports without a rule for that port.
    pub port: Option<u16>,
    /// The kernel's action.
    pub way: Way,
}

/// The action of the kernel for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel refuses it.
    Refused,
    /// The connection arrives at the node.
    ToTheNode,
    /// The connection arrives at the node, which lets the kernel splice it.
    Spliced,
}

/// The connections that instances of a function may make, by the node's current snapshot. The
/// kernel refuses connections that match no rule.
pub fn of(node: &Node, caller: &FunctionId) -> Vec<Rule> {
    let Some((snapshot, entry)) = node.snapshot_with(caller) else { return Vec::new() };
    let mut rules = Vec::new();
    for callee in &entry.config.callees {
        let Some(address) = node.addresses.of(&callee.id) else { continue };
        rules.push(Rule { callee: address, prefix: 32, port: None, way: Way::ToTheNode });
        for port in &callee.ports {
            let is_remote = snapshot.functions.get(&callee.id).is_none();
            let way = match snapshot.judge_connection(&entry, &callee.id, port.number, "") {
                // The callee is remote: the node knows its host, if any, and the host judges.
                Err(_) if is_remote => Way::ToTheNode,
                Err(_) => Way::Refused,
                Ok(_) if port.splice => Way::Spliced,
                Ok(_) => Way::ToTheNode,
            };
            rules.push(Rule { callee: address, prefix: 32, port: Some(port.number), way });
        }
        // Jails have no IPv6.
        for (block, first) in callee.addresses.iter().filter_map(|block| Some((block, v4(block.address)?))) {
            rules.push(Rule { callee: first, prefix: block.prefix, port: None, way: Way::ToTheNode });
        }
    }
    rules
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
