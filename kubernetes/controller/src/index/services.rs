//! The index of Services and their endpoints: a function of the objects there are, whatever the
//! order in which they came.

use crate::api::{Change, Object, ObjectKey};
use crate::index::endpoint::{Endpoint, EndpointPort, EndpointSliceObject, EndpointValues};
use crate::index::service::{Service, ServiceObject};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// An address and the ports of its slice, which tell endpoints of a Service apart.
pub type EndpointKey = (IpAddr, Arc<[EndpointPort]>);

/// Services and endpoints that are new or differ; `None`: gone. An endpoint belongs to the name of
/// a Service, which need not exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceChanges {
    /// Services.
    pub services: BTreeMap<ObjectKey, Option<Service>>,
    /// Endpoints, by their Service.
    pub endpoints: BTreeMap<ObjectKey, BTreeMap<EndpointKey, Option<Endpoint>>>,
}

/// Services and EndpointSlices.
#[derive(Debug, Default)]
pub(crate) struct ServiceIndex {
    services: BTreeMap<ObjectKey, Service>,
    /// The endpoints of each slice, by Service and by the name of the slice.
    slices: BTreeMap<ObjectKey, BTreeMap<Box<str>, Box<[Endpoint]>>>,
    /// The Service of each slice, in its namespace.
    owners: HashMap<ObjectKey, Box<str>>,
    values: EndpointValues,
    has_services: bool,
    has_slices: bool,
    /// Whether the changes to an empty index were taken.
    is_taken: bool,
    steps: ServiceChanges,
}

impl ServiceIndex {
    /// The changes since the last call; `None` until all objects have come, and if there are none.
    pub(crate) fn take(&mut self) -> Option<ServiceChanges> {
        let is_complete = self.has_services && self.has_slices;
        let is_first = is_complete && !std::mem::replace(&mut self.is_taken, is_complete);
        let changes = is_complete.then(|| std::mem::take(&mut self.steps))?;
        (is_first || changes != ServiceChanges::default()).then_some(changes)
    }

    /// How many Services and slices there are, and endpoints in these.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let endpoints = self.slices.values().flat_map(BTreeMap::values).map(|endpoints| endpoints.len()).sum();
        [self.services.len(), self.owners.len(), endpoints]
    }

    pub(crate) fn change_services(&mut self, change: Change<ServiceObject>) {
        match change {
            Change::Replaced { objects, broken } => {
                let present = objects.iter().map(|object| object.metadata().key());
                let present: BTreeSet<ObjectKey> = present.chain(broken.into_iter().map(|broken| broken.key)).collect();
                let gone: Vec<ObjectKey> = self.services.keys().filter(|key| !present.contains(key)).cloned().collect();
                gone.into_iter().for_each(|key| self.replace_service(key, None));
                objects.iter().for_each(|object| self.put_service(object));
                self.has_services = true;
            }
            Change::Put(object) => self.put_service(&object),
            Change::Broken(_) => {}
            Change::Gone(key) => self.replace_service(key, None),
        }
    }

    fn put_service(&mut self, object: &ServiceObject) {
        self.replace_service(object.metadata().key(), Some(object.service()));
    }

    fn replace_service(&mut self, key: ObjectKey, service: Option<Service>) {
        if self.services.get(&key) == service.as_ref() {
            return;
        }
        match &service {
            Some(service) => drop(self.services.insert(key.clone(), service.clone())),
            None => drop(self.services.remove(&key)),
        }
        self.steps.services.insert(key, service);
    }

    pub(crate) fn change_slices(&mut self, change: Change<EndpointSliceObject>) {
        match change {
            Change::Replaced { objects, broken } => {
                let present = objects.iter().map(|object| object.metadata().key());
                let present: BTreeSet<ObjectKey> = present.chain(broken.into_iter().map(|broken| broken.key)).collect();
                let gone: Vec<ObjectKey> = self.owners.keys().filter(|key| !present.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.replace_slice(key, None));
                objects.iter().for_each(|object| self.put_slice(object));
                self.has_slices = true;
            }
            Change::Put(object) => self.put_slice(&object),
            Change::Broken(_) => {}
            Change::Gone(key) => self.replace_slice(&key, None),
        }
    }

    fn put_slice(&mut self, object: &EndpointSliceObject) {
        let key = object.metadata().key();
        let slice = object.service().map(|service| (service, object.endpoints(&mut self.values)));
        self.replace_slice(&key, slice);
    }

    /// Replaces the endpoints of a slice, which may belong to another Service than before.
    fn replace_slice(&mut self, key: &ObjectKey, slice: Option<(&str, Box<[Endpoint]>)>) {
        let owner = slice.as_ref().map(|(service, _)| Box::<str>::from(*service));
        let before = match &owner {
            Some(owner) => self.owners.insert(key.clone(), owner.clone()),
            None => self.owners.remove(key),
        };
        if let Some(before) = before.filter(|before| Some(before) != owner.as_ref()) {
            self.set_endpoints(key, &before, None);
        }
        if let Some((service, endpoints)) = slice {
            self.set_endpoints(key, service, Some(endpoints));
        }
    }

    fn set_endpoints(&mut self, key: &ObjectKey, service: &str, endpoints: Option<Box<[Endpoint]>>) {
        let service = ObjectKey { namespace: key.namespace.clone(), name: service.to_owned() };
        let slices = self.slices.entry(service.clone()).or_default();
        let before = slices.get(&*key.name).into_iter().flatten().chain(endpoints.iter().flatten());
        let concerned: BTreeSet<EndpointKey> = before.map(Endpoint::key).collect();
        let was: Vec<Option<Endpoint>> = concerned.iter().map(|key| merged(slices, key)).collect();
        match endpoints {
            Some(endpoints) => drop(slices.insert(key.name.as_str().into(), endpoints)),
            None => drop(slices.remove(&*key.name)),
        }
        let is: Vec<Option<Endpoint>> = concerned.iter().map(|key| merged(slices, key)).collect();
        if slices.is_empty() {
            self.slices.remove(&service);
        }
        let changes = concerned.into_iter().zip(was.into_iter().zip(is));
        let mut changes = changes.filter(|(_, (was, is))| was != is).map(|(key, (_, is))| (key, is)).peekable();
        if changes.peek().is_some() {
            self.steps.endpoints.entry(service).or_default().extend(changes);
        }
    }
}

impl Endpoint {
    fn key(&self) -> EndpointKey {
        (self.address, self.ports.clone())
    }
}

/// An endpoint of the slices of a Service. While an endpoint moves from one slice to another, both
/// may have it: that with the better conditions counts, or else the first.
fn merged(slices: &BTreeMap<Box<str>, Box<[Endpoint]>>, (address, ports): &EndpointKey) -> Option<Endpoint> {
    let find = |endpoints: &[Endpoint]| {
        let index = endpoints.binary_search_by_key(address, |endpoint| endpoint.address).ok()?;
        endpoints.get(index).filter(|endpoint| endpoint.ports == *ports).cloned()
    };
    slices.values().rev().filter_map(|endpoints| find(endpoints)).max_by_key(|endpoint| endpoint.conditions)
}

#[cfg(test)]
mod tests;
