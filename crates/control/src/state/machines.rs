//! The addresses of the mesh's machines, as nodes are told of them.

use super::State;
use super::delivery::Session;
use leno_wire::{messages, v1};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Addresses of the control plane that are kept. Each is one at which a node has reached it.
const MAX_OWN: usize = 64;

/// The addresses of the mesh's machines.
#[derive(Default)]
pub(super) struct Machines {
    /// How many nodes have each address.
    of_nodes: HashMap<IpAddr, u32>,
    /// Of the control plane.
    own: BTreeSet<IpAddr>,
    /// All of them, as nodes are sent them.
    message: v1::Machines,
}

impl Machines {
    fn add(&mut self, address: IpAddr) -> bool {
        let count = self.of_nodes.entry(address).or_default();
        *count += 1;
        *count == 1
    }

    fn remove(&mut self, address: IpAddr) -> bool {
        let Some(count) = self.of_nodes.get_mut(&address) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.of_nodes.remove(&address);
        }
        last
    }

    fn encode(&mut self) {
        let all: BTreeSet<IpAddr> = self.of_nodes.keys().copied().chain(self.own.iter().copied()).collect();
        self.message = messages::machines(all);
    }

    pub(super) fn tell(&self, session: &mut Session) {
        session.notify(v1::to_node::Message::Machines(self.message.clone()));
    }
}

/// Addresses that mean something outside of the machine.
fn public(address: IpAddr) -> Option<IpAddr> {
    let address = address.to_canonical();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

impl State {
    /// Takes in the addresses at which a node can be reached.
    pub(crate) fn locate(&mut self, name: &str, addresses: &[IpAddr]) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let addresses: BTreeSet<IpAddr> = addresses.iter().copied().filter_map(public).collect();
        let before = std::mem::replace(&mut node.addresses, addresses.clone());
        let added = addresses.into_iter().fold(false, |any, address| self.machines.add(address) | any);
        let removed = before.into_iter().fold(false, |any, address| self.machines.remove(address) | any);
        if added || removed {
            self.tell_machines();
        }
    }

    /// Takes in where a node's stream comes from, and where it has reached the control plane.
    pub(super) fn located(&mut self, name: &Arc<str>, from: Option<IpAddr>, at: Option<IpAddr>) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let from = from.and_then(public);
        let before = std::mem::replace(&mut node.from, from);
        let added = from.is_some_and(|address| self.machines.add(address));
        let removed = before.is_some_and(|address| self.machines.remove(address));
        let own = &mut self.machines.own;
        let new = at.and_then(public).is_some_and(|at| own.len() < MAX_OWN && own.insert(at));
        if added || removed || new {
            self.tell_machines();
        } else if let Some(session) = self.nodes.get_mut(name).and_then(|node| node.session.as_mut()) {
            self.machines.tell(session);
        }
    }

    /// All of them.
    pub(crate) fn machine_addresses(&self) -> Vec<IpAddr> {
        messages::machine_addresses(&self.machines.message)
    }

    /// Tells all nodes.
    fn tell_machines(&mut self) {
        self.machines.encode();
        for session in self.nodes.values_mut().filter_map(|node| node.session.as_mut()) {
            self.machines.tell(session);
        }
    }
}
