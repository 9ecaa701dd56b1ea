//! Nodes that join, leave, connect and disconnect.

use super::State;
use super::effect::Effect;
use super::node::{Absence, Node, ready};
use super::session::Session;
use crate::admission::{Admission, CapacityLimits, Cordon};
use leno_model::FunctionId;
use leno_wire::{Bounds, Instance, JobReport, Lease, NodeOffer, Placement, Subject, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::Notify;

/// This many nodes that are away at once may mean that the control plane is cut off.
const MANY: u32 = 2;

/// Whether the control plane waits once more for a node that is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Again,
    Last,
}

/// Whether the wait for a node that is away has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// The node is withdrawn, or has come back.
    Settled,
    Open,
}

/// The first message of a node's stream.
#[derive(Default)]
pub(crate) struct Hello {
    pub subscribe: Vec<Subject>,
    pub held: Vec<(Subject, Version)>,
    pub inbound: Option<SocketAddr>,
    pub instances: BTreeMap<FunctionId, Vec<Instance>>,
    pub jobs: Vec<(FunctionId, JobReport)>,
    pub capacity: Option<NodeOffer>,
    pub bounds: Vec<(FunctionId, Vec<Bounds>)>,
    pub leases: Vec<(FunctionId, Lease)>,
    /// The version of the protocol on the stream, and the node's release.
    pub protocol: u32,
    pub release: String,
    /// The source address of the stream, and the address at which it has reached the control plane.
    pub from: Option<IpAddr>,
    pub at: Option<IpAddr>,
}

impl State {
    /// Waits for these nodes, which an earlier process knew, before their functions are placed on
    /// other nodes.
    pub(crate) fn await_nodes(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        for name in names {
            if let Some(node) = self.nodes.all.get_mut(&name) {
                node.absence = Some(Absence { at_least: true, ..Absence::default() });
                self.hosting.jobs.await_node(name.clone(), node.admission.placement.clone());
            }
            self.hosting.awaited.insert(name);
        }
        self.hosting.awaiting |= !self.hosting.awaited.is_empty();
    }

    /// Ends the wait for nodes of an earlier process to reconnect.
    pub(crate) fn stop_awaiting(&mut self) {
        self.hosting.jobs.stop_awaiting();
        self.stop_awaiting_functions();
    }

    /// The same for functions only. A second instance of a function does no harm, a second run of a
    /// job does.
    fn stop_awaiting_functions(&mut self) {
        let effects = self.hosting.stop_awaiting(&self.catalog.compiled);
        self.carry_out(effects);
        self.continue_moves();
    }

    /// Adds a node, or changes its placement, roles and locality.
    pub(crate) fn admit(&mut self, name: &str, admission: Admission) {
        let known = self.nodes.all.contains_key(name);
        let name: Arc<str> = self.nodes.name(name).unwrap_or_else(|| name.into());
        let node = self.nodes.all.entry(name.clone()).or_insert_with(|| Node::new(admission.clone()));
        let before = mem::replace(&mut node.admission, admission);
        let after = node.admission.clone();
        if known && before == after {
            return;
        }
        if let Some(session) = &mut node.session {
            session.pending.insert(Subject::Hosted);
        }
        let relocated = before.locality != after.locality;
        let (was_egress, was_gateway) = (known && before.egress, known && before.gateway);
        let before = if known { before.placement } else { Placement::Only(BTreeSet::new()) };
        let functions = &self.catalog.compiled.functions;
        let mut moved = self.hosting.place(&name, &before, &after.placement, || functions.keys().cloned());
        if was_egress != after.egress {
            self.hosting.set_egress(&name, after.egress);
            moved.extend(self.catalog.compiled.on_egress_nodes());
        }
        if was_gateway != after.gateway {
            let compiled = &self.catalog.compiled;
            moved.extend(self.hosting.exposed.iter().filter(|id| compiled.is_on_callers_nodes(id)).cloned());
        }
        self.offer(&name);
        self.carry_out([Effect::Rehost(moved)]);
        if relocated {
            let hosted: Vec<_> = self.nodes.all.get(&name).into_iter().flat_map(|node| node.hosted.clone()).collect();
            self.announce_endpoints(&hosted);
        }
        self.refresh(&name);
        self.carry_out([Effect::PlaceJobs]);
    }

    /// Limits the capacity that a node may offer.
    pub(crate) fn limit(&mut self, name: &str, limits: CapacityLimits) {
        let Some(name) = self.nodes.name(name) else { return };
        if let Some(node) = self.nodes.all.get_mut(&name) {
            node.limits = limits;
            node.cap();
        }
        self.offer(&name);
    }

    /// Removes a node with its endpoints, and ends its stream. Its functions are placed on other
    /// nodes.
    pub(crate) fn expel(&mut self, name: &str) {
        let Some((key, node)) = self.nodes.all.get_key_value(name) else { return };
        let (name, locality) = (key.clone(), node.admission.locality.clone());
        self.nodes.end_session(&name);
        self.nodes.locate(&name, &[]);
        self.nodes.located(&name, None, None);
        self.hosting.awaited.remove(&name);
        self.nodes.set_gateway(&name, false);
        if let Some(node) = self.nodes.all.get_mut(&name) {
            node.present = false;
            node.instances.clear();
        }
        let nothing = Placement::Only(BTreeSet::new());
        self.admit(&name, Admission { placement: nothing, gateway: false, locality, egress: false });
        self.nodes.all.remove(&name);
        self.issued.retain(|(_, node), _| **node != *name);
        let effects = self.scaling.forget_node(&name);
        self.carry_out(effects);
        // Other nodes may still have its endpoints. They must not keep them until the wait for
        // nodes ends, or until another node has the functions.
        self.hosting.jobs.stop_awaiting_node(&name);
        self.stop_awaiting_functions();
        let abandoned = mem::take(&mut self.hosting.abandoned);
        self.announce_endpoints(&abandoned);
        self.carry_out([Effect::PlaceJobs]);
    }

    /// Cordons or drains a node, or ends that.
    pub(crate) fn cordon(&mut self, name: &str, cordon: Cordon) -> bool {
        let Some(name) = self.nodes.name(name) else { return false };
        if let Some(node) = self.nodes.all.get_mut(&name) {
            node.cordon = cordon;
        }
        self.offer(&name);
        let carried = self.catalog.compiled.on_egress_nodes();
        self.announce_endpoints(&carried);
        self.carry_out([Effect::PlaceJobs]);
        true
    }

    /// Stores the addresses at which other machines reach a node.
    pub(crate) fn locate(&mut self, name: &str, addresses: &[IpAddr]) {
        self.nodes.locate(name, addresses);
    }

    /// The addresses of the mesh's machines.
    pub(crate) fn machine_addresses(&self) -> Vec<IpAddr> {
        self.nodes.notices.machines.addresses()
    }

    /// Begins a session and returns its number. An older session of the same node ends. `None`: no
    /// such node was admitted.
    pub(crate) fn connect(&mut self, name: &str, hello: Hello, wake: Arc<Notify>) -> Option<u64> {
        let name = self.nodes.name(name)?;
        self.nodes.sessions += 1;
        let number = self.nodes.sessions;
        let Hello {
            subscribe,
            held,
            inbound,
            mut instances,
            jobs,
            capacity,
            bounds,
            leases,
            protocol,
            release,
            from,
            at,
        } = hello;
        self.nodes.end_session(&name);
        if self.nodes.is_scheduled(&name) {
            self.scaling.restore(&name, &bounds);
        }
        if self.nodes.shares_limits(&name) {
            self.leasing.restore(&name, &leases, self.now);
        }
        let session = self.session(&name, number, protocol, &held, wake);
        let node = self.nodes.all.get_mut(&name)?;
        node.counters.streams += 1;
        node.last_session = number;
        node.release = release;
        node.in_force = held.iter().cloned().collect();
        // A node that has served functions has their certificates. Another process has none.
        let configs = held.iter().filter_map(|(subject, _)| match subject {
            Subject::FunctionConfig(id) => Some(id.clone()),
            _ => None,
        });
        node.certified = configs.collect();
        node.certifying.clear();
        node.rejected.clear();
        node.listener_faults.clear();
        node.pod_faults.clear();
        node.withdrawn.values_mut().for_each(|sent| *sent = None);
        // The node may be another process, which reports its own certificates.
        node.certificates = None;
        let moved = (node.present, node.inbound) != (true, inbound);
        node.inbound = inbound;
        node.present = true;
        node.take_offer(capacity);
        node.session = Some(session);
        self.nodes.located(&name, from, at);
        self.offer(&name);
        let effects = self.hosting.adopt(&name, &held, &self.catalog.compiled, &self.nodes);
        self.carry_out(effects);
        // Instances of functions that were moved away while the node was taken for lost may still
        // be draining. They do not count.
        instances.retain(|id, _| self.nodes.may_report(&name, id));
        self.subscribe(&name, number, subscribe, &[]);
        self.refresh(&name);
        let node = self.nodes.all.get_mut(&name)?;
        let before = mem::replace(&mut node.instances, instances);
        let mut affected: BTreeSet<FunctionId> = before.keys().chain(node.instances.keys()).cloned().collect();
        affected.retain(|id| ready(before.get(id)) != ready(node.instances.get(id)));
        if moved {
            affected.extend(node.hosted.iter().cloned());
        }
        let assigned = self.hosting.jobs.assign_reported(&name, &jobs);
        self.hosting.jobs.stop_awaiting_node(&name);
        self.carry_out(assigned.into_iter().map(|id| Effect::Rehost(vec![id])));
        self.announce_endpoints(&affected);
        if self.hosting.awaited.remove(&name) && self.hosting.awaited.is_empty() {
            self.stop_awaiting_functions();
        }
        self.carry_out([Effect::PlaceJobs]);
        Some(number)
    }

    /// The session of a node that holds these versions.
    fn session(
        &self,
        name: &str,
        number: u64,
        protocol: u32,
        held: &[(Subject, Version)],
        wake: Arc<Notify>,
    ) -> Session {
        let known = held.iter().map(|(subject, _)| subject.clone()).collect();
        // A lost stream leaves it unknown which bounds the node has applied, so they are sent
        // again.
        let certain = |subject: &Subject| match subject {
            Subject::Scale(id) => !self.scaling.are_uncertain(id, name),
            _ => true,
        };
        let unknown = Version::of(&[]);
        let version = |(subject, version): &(Subject, Version)| if certain(subject) { *version } else { unknown };
        let sent = held.iter().map(|held| (held.0.clone(), Some(version(held)))).collect();
        let mut session = Session::new(number, protocol, sent, known, wake);
        self.nodes.notices.welcome(name, &mut session);
        session
    }

    /// Ends a session. The node's endpoints stay for the grace period; see [`State::forget`].
    pub(crate) fn disconnect(&mut self, name: &str, number: u64) {
        if self.nodes.session(name, number).is_some() {
            self.nodes.end_session(name);
            if let Some(node) = self.nodes.all.get_mut(name) {
                node.absence.get_or_insert_default().hosted = node.hosted.clone();
            }
            self.continue_moves();
        }
    }

    /// Withdraws a node that has not reconnected since the session `number`: its endpoints go, and
    /// its functions are placed on other nodes.
    ///
    /// If half of all nodes or more are away at once, the control plane itself is probably cut off.
    /// A node would come back to find its functions on their previous node. So [`Wait::Again`]
    /// changes nothing, and the caller asks again later.
    #[must_use]
    pub(crate) fn forget(&mut self, name: &str, number: u64, wait: Wait) -> Departure {
        let Some((key, node)) = self.nodes.all.get_key_value(name) else { return Departure::Settled };
        if node.session.is_some() || node.last_session != number {
            return Departure::Settled;
        }
        let present = self.nodes.all.values().filter(|node| node.present);
        let (all, away) = present.fold((0, 0), |(all, away), node| (all + 1, away + u32::from(node.session.is_none())));
        if wait == Wait::Again && away >= MANY && 2 * away >= all {
            tracing::warn!(
                node = name,
                away,
                all,
                "many nodes are away at a time; their functions stay where they are for now"
            );
            return Departure::Open;
        }
        let name = key.clone();
        let Some(node) = self.nodes.all.get_mut(&name) else { return Departure::Settled };
        node.present = false;
        node.instances.clear();
        let affected: Vec<_> = node.hosted.iter().cloned().collect();
        self.announce_endpoints(&affected);
        let (moved, effects) = self.hosting.withdraw(&name);
        self.carry_out(effects);
        let effects = self.scaling.forget_node(&name);
        self.carry_out(effects);
        self.hosting.abandoned.extend(moved);
        self.carry_out([Effect::PlaceJobs]);
        Departure::Settled
    }
}
