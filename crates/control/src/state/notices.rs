//! Notices that every node gets beside its configuration: the signing authority, the revoked
//! memberships and the addresses of the mesh's machines.

use super::session::Session;
use leno_wire::{messages, v1};
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::net::IpAddr;
use std::time::Duration;

/// Maximum number of stored addresses at which nodes have reached the control plane.
const MAX_OWN: usize = 64;

/// The latest notices.
#[derive(Default)]
pub(super) struct Notices {
    /// Key identifier of the authority that signs; empty: nodes get no such notice.
    pub issuer: Vec<u8>,
    pub revoked: v1::Revoked,
    pub machines: Machines,
    /// Number of the last request for a proof.
    pub proofs: u64,
}

/// The addresses of the mesh's machines.
#[derive(Default)]
pub(super) struct Machines {
    /// How many nodes have each address.
    of_nodes: HashMap<IpAddr, u32>,
    /// Addresses of the control plane.
    own: BTreeSet<IpAddr>,
    /// All addresses, as a message.
    message: v1::Machines,
}

impl Notices {
    /// Queues the notices of a new session, but for the addresses of machines.
    pub(super) fn welcome(&self, name: &str, session: &mut Session) {
        session.notify_issuer(&self.issuer, Duration::ZERO);
        session.notify_revoked(name, &self.revoked);
    }
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

    /// Replaces the addresses of a node. Returns whether the list has changed.
    pub(super) fn locate(&mut self, known: &mut BTreeSet<IpAddr>, addresses: &[IpAddr]) -> bool {
        let addresses: BTreeSet<IpAddr> = addresses.iter().copied().filter_map(public).collect();
        let before = mem::replace(known, addresses.clone());
        let added = addresses.into_iter().fold(false, |any, address| self.add(address) | any);
        let removed = before.into_iter().fold(false, |any, address| self.remove(address) | any);
        self.encode(added || removed)
    }

    /// Replaces the source address of a node's stream, and adds an address of the control plane.
    /// Returns whether the list has changed.
    pub(super) fn located(&mut self, known: &mut Option<IpAddr>, from: Option<IpAddr>, at: Option<IpAddr>) -> bool {
        let from = from.and_then(public);
        let before = mem::replace(known, from);
        let added = from.is_some_and(|address| self.add(address));
        let removed = before.is_some_and(|address| self.remove(address));
        let own = &mut self.own;
        let new = at.and_then(public).is_some_and(|at| own.len() < MAX_OWN && own.insert(at));
        self.encode(added || removed || new)
    }

    fn encode(&mut self, changed: bool) -> bool {
        if changed {
            let all: BTreeSet<IpAddr> = self.of_nodes.keys().copied().chain(self.own.iter().copied()).collect();
            self.message = messages::machines(all);
        }
        changed
    }

    pub(super) fn notify(&self, session: &mut Session) {
        session.notify(v1::to_node::Message::Machines(self.message.clone()));
    }

    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        messages::machine_addresses(&self.message)
    }
}

/// An address that is meaningful on other machines.
fn public(address: IpAddr) -> Option<IpAddr> {
    let address = address.to_canonical();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}
