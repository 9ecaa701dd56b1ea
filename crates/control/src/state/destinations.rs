//! The meanings of addresses that pods call: Services and their endpoints.

use leno_model::{Destination, EndpointPort, MeshPod, Service, ServiceEndpoint, ServiceName};
use leno_wire::{Content, Subject};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Services and endpoints that are new or differ.
#[derive(Clone, Debug, Default)]
pub struct DestinationChanges {
    /// Services with their addresses; `None`: gone.
    pub services: BTreeMap<ServiceName, Option<(Service, Vec<IpAddr>)>>,
    /// Endpoints, each by its Service, which need not exist, and its address and ports; `None`: it is
    /// gone, or takes no connections. Their pods are left out.
    pub endpoints: BTreeMap<(ServiceName, IpAddr, Vec<EndpointPort>), Option<ServiceEndpoint>>,
}

/// All Services. Indexed, so that the cost of a change does not depend on the number of others.
#[derive(Default)]
pub(super) struct Destinations {
    services: HashMap<ServiceName, Record>,
    /// The Services that have these addresses.
    called: HashMap<IpAddr, ServiceName>,
    /// The Services of which these addresses are endpoints.
    backed: HashMap<IpAddr, BTreeSet<ServiceName>>,
    /// Whether the Services of the cluster are known. Until then, nodes get no answer.
    pub are_known: bool,
}

/// A Service. It may have endpoints before it exists.
#[derive(Default)]
struct Record {
    service: Option<Service>,
    addresses: Vec<IpAddr>,
    endpoints: BTreeMap<IpAddr, Vec<ServiceEndpoint>>,
}

impl Destinations {
    /// Adds a Service, replaces or removes it.
    pub(super) fn replace(&mut self, name: &ServiceName, new: Option<(Service, Vec<IpAddr>)>) {
        let (service, addresses) = match new {
            Some((service, addresses)) => (Some(service), addresses),
            None => (None, Vec::new()),
        };
        let record = self.services.entry(name.clone()).or_default();
        for address in &record.addresses {
            if self.called.get(address) == Some(name) {
                self.called.remove(address);
            }
        }
        self.called.extend(addresses.iter().map(|address| (*address, name.clone())));
        (record.service, record.addresses) = (service, addresses);
        self.forget_empty(name);
    }

    /// Whether the Service is as it was.
    pub(super) fn is_same(&self, name: &ServiceName, new: Option<&(Service, Vec<IpAddr>)>) -> bool {
        let before = self.services.get(name).and_then(|record| Some((record.service.as_ref()?, &record.addresses)));
        before == new.map(|(service, addresses)| (service, addresses))
    }

    /// The addresses of a Service.
    pub(super) fn addresses(&self, name: &ServiceName) -> impl Iterator<Item = IpAddr> {
        self.services.get(name).into_iter().flat_map(|record| &record.addresses).copied()
    }

    /// Adds an endpoint, replaces or removes it. Returns whether that is a change.
    pub(super) fn replace_endpoint(
        &mut self,
        (name, address, ports): (&ServiceName, IpAddr, &[EndpointPort]),
        new: Option<ServiceEndpoint>,
    ) -> bool {
        let endpoints = &mut self.services.entry(name.clone()).or_default().endpoints;
        let parts = endpoints.entry(address).or_default();
        let before = parts.iter().position(|part| part.ports == ports).map(|index| parts.remove(index));
        let is_change = before != new;
        parts.extend(new);
        parts.sort_by(|one, other| one.ports.cmp(&other.ports));
        if parts.is_empty() {
            endpoints.remove(&address);
            if let Some(services) = self.backed.get_mut(&address) {
                services.remove(name);
                if services.is_empty() {
                    self.backed.remove(&address);
                }
            }
        } else {
            self.backed.entry(address).or_default().insert(name.clone());
        }
        self.forget_empty(name);
        is_change
    }

    fn forget_empty(&mut self, name: &ServiceName) {
        if self.services.get(name).is_some_and(|record| record.service.is_none() && record.endpoints.is_empty()) {
            self.services.remove(name);
        }
    }

    /// Whether this address is an endpoint of the Service.
    pub(super) fn has_endpoint(&self, name: &ServiceName, address: IpAddr) -> bool {
        self.services.get(name).is_some_and(|record| record.endpoints.contains_key(&address))
    }

    /// The endpoints that a subscription to this address covers.
    pub(super) fn endpoints(&self, called: IpAddr) -> impl Iterator<Item = Subject> {
        let name = self.called.get(&called);
        let found = name.and_then(|name| Some((name, self.services.get(name)?)));
        found.into_iter().flat_map(move |(name, record)| {
            let addresses = record.endpoints.keys().filter(move |address| address.is_ipv4() == called.is_ipv4());
            addresses.map(|address| Subject::ServiceEndpoint(name.clone(), *address))
        })
    }

    /// The Services of which this address is an endpoint.
    pub(super) fn services_of(&self, address: IpAddr) -> impl Iterator<Item = &ServiceName> {
        self.backed.get(&address).into_iter().flatten()
    }

    /// The meaning of an address; `pod`: the pod of the mesh that has it.
    pub(super) fn content(&self, called: IpAddr, pod: Option<MeshPod>) -> Option<Content> {
        let service = self.called.get(&called).and_then(|name| self.services.get(name)?.service.clone());
        let destination = service.map(Destination::Service).or_else(|| pod.map(Destination::Pod))?;
        Content::new(&destination).ok()
    }

    /// An endpoint as nodes get it; `pod`: the pod of the mesh that has its address.
    pub(super) fn endpoint(&self, name: &ServiceName, address: IpAddr, pod: Option<MeshPod>) -> Option<Content> {
        let mut parts = self.services.get(name)?.endpoints.get(&address)?.clone();
        parts.iter_mut().for_each(|part| part.pod.clone_from(&pod));
        Content::new(&parts).ok()
    }
}
