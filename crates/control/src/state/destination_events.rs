//! Services and endpoints that begin, change and end, and the subscriptions of nodes to addresses.

use super::State;
use super::destinations::DestinationChanges;
use leno_model::{EndpointPort, Service, ServiceEndpoint, ServiceName};
use leno_wire::Subject;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

impl State {
    /// Applies changes of Services and endpoints. With the first ones, nodes get answers.
    pub(crate) fn change_destinations(&mut self, changes: DestinationChanges) {
        for (name, service) in changes.services {
            self.change_service(&name, service);
        }
        for ((name, address, ports), endpoint) in changes.endpoints {
            self.change_endpoint((&name, address, &ports), endpoint);
        }
        if !std::mem::replace(&mut self.destinations.are_known, true) {
            self.nodes.compare_destinations();
        }
    }

    fn change_service(&mut self, name: &ServiceName, new: Option<(Service, Vec<IpAddr>)>) {
        if self.destinations.is_same(name, new.as_ref()) {
            return;
        }
        let after = new.iter().flat_map(|(_, addresses)| addresses).copied();
        let addresses: BTreeSet<IpAddr> = self.destinations.addresses(name).chain(after).collect();
        let wanted = |state: &Self| {
            let mut wanted: BTreeMap<Arc<str>, Vec<Subject>> = BTreeMap::new();
            for address in &addresses {
                for node in state.nodes.interested(&Subject::Destination(*address)) {
                    wanted.entry(node.clone()).or_default().extend(state.destinations.endpoints(*address));
                }
            }
            wanted
        };
        let before = wanted(self);
        self.destinations.replace(name, new);
        let after = wanted(self);
        self.nodes.rewant(before, after);
        addresses.into_iter().for_each(|address| self.nodes.announce(&Subject::Destination(address)));
    }

    fn change_endpoint(
        &mut self,
        (name, address, ports): (&ServiceName, IpAddr, &[EndpointPort]),
        new: Option<ServiceEndpoint>,
    ) {
        let subject = Subject::ServiceEndpoint(name.clone(), address);
        let had = self.destinations.has_endpoint(name, address);
        if !self.destinations.replace_endpoint((name, address, ports), new) {
            return;
        }
        let has = self.destinations.has_endpoint(name, address);
        if had == has {
            return self.nodes.announce(&subject);
        }
        let mut callers: BTreeMap<Arc<str>, Vec<Subject>> = BTreeMap::new();
        for called in self.destinations.addresses(name).filter(|called| called.is_ipv4() == address.is_ipv4()) {
            for node in self.nodes.interested(&Subject::Destination(called)) {
                callers.entry(node.clone()).or_default().push(subject.clone());
            }
        }
        let (before, after) = if has { (BTreeMap::new(), callers) } else { (callers, BTreeMap::new()) };
        self.nodes.rewant(before, after);
    }

    /// Announces the meaning of an address, because the pod of the mesh that has it has changed.
    pub(super) fn announce_address(&mut self, address: IpAddr) {
        self.nodes.announce(&Subject::Destination(address));
        for name in self.destinations.services_of(address) {
            self.nodes.announce(&Subject::ServiceEndpoint(name.clone(), address));
        }
    }

    /// Changes the subjects that a node wants because of addresses to which it subscribes. The cost
    /// does not depend on its other subscriptions.
    pub(super) fn want_destinations(&mut self, name: &str, added: &[Subject], removed: &[Subject]) {
        let Some(name) = self.nodes.name(name) else { return };
        let covered = |subjects: &[Subject]| -> BTreeMap<Arc<str>, Vec<Subject>> {
            let mut all = subjects.to_vec();
            for subject in subjects {
                if let Subject::Destination(address) = subject {
                    all.extend(self.destinations.endpoints(*address));
                }
            }
            BTreeMap::from([(name.clone(), all)])
        };
        let (before, after) = (covered(removed), covered(added));
        self.nodes.rewant(before, after);
    }
}
