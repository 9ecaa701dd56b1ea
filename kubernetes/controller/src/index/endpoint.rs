//! Endpoints of Services, as EndpointSlices of the API server have them.

use crate::api::{Kind, Metadata, Object};
use crate::index::pool::ValuePool;
use crate::index::service::Protocol;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// The label with the name of a slice's Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// An EndpointSlice of the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointSliceObject {
    metadata: Metadata,
    endpoints: Option<Vec<EndpointObject>>,
    ports: Option<Vec<PortObject>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EndpointObject {
    addresses: Vec<String>,
    conditions: ConditionsObject,
    node_name: Option<Box<str>>,
    zone: Option<Box<str>>,
    hints: Hints,
    target_ref: Target,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ConditionsObject {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    for_zones: Vec<Hint>,
    for_nodes: Vec<Hint>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Hint {
    name: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Target {
    kind: String,
    name: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PortObject {
    name: Box<str>,
    protocol: Protocol,
    app_protocol: Option<Box<str>>,
    port: Option<u16>,
}

/// An address behind a Service, with the ports of its slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// Its state.
    pub conditions: Conditions,
    /// Its ports.
    pub ports: Arc<[EndpointPort]>,
    /// Where it is.
    pub place: Arc<EndpointPlace>,
    /// The name of its pod, in the namespace of the Service; empty: it is none.
    pub pod: Box<str>,
}

/// The state of an endpoint. Of two slices with the same endpoint, the one with the greater state
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conditions {
    /// It takes new connections.
    pub is_ready: bool,
    /// It serves. An endpoint that ends may serve until then.
    pub is_serving: bool,
    /// It does not end.
    pub stays: bool,
}

/// A port of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPort {
    /// The name of the port of the Service.
    pub name: Box<str>,
    /// Its number.
    pub number: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// Its application protocol.
    pub app_protocol: Option<Box<str>>,
}

/// Where an endpoint is, and which callers it is meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointPlace {
    /// Its node.
    pub node: Option<Box<str>>,
    /// Its zone.
    pub zone: Option<Box<str>>,
    /// The zones whose callers should use it; none: all.
    pub for_zones: Box<[Box<str>]>,
    /// The nodes whose callers should use it; none: all.
    pub for_nodes: Box<[Box<str>]>,
}

/// Values that many endpoints have in common.
#[derive(Debug, Default)]
pub(crate) struct EndpointValues {
    pub(crate) ports: ValuePool<[EndpointPort]>,
    pub(crate) places: ValuePool<EndpointPlace>,
}

impl Object for EndpointSliceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl EndpointSliceObject {
    /// The kind.
    pub const KIND: Kind =
        Kind { group: "discovery.k8s.io", version: "v1", plural: "endpointslices", name: "EndpointSlice" };

    /// The name of the Service; `None`: the slice has none.
    pub(crate) fn service(&self) -> Option<&str> {
        self.metadata.labels.get(SERVICE).map(String::as_str)
    }

    /// The endpoints, ordered by their addresses, each once. Names in place of addresses, and ports
    /// without a number, are left out.
    pub(crate) fn endpoints(&self, values: &mut EndpointValues) -> Box<[Endpoint]> {
        let mut ports: Vec<EndpointPort> = self.ports.iter().flatten().filter_map(PortObject::port).collect();
        ports.sort();
        let ports = values.ports.share(ports);
        let mut endpoints: Vec<Endpoint> = self
            .endpoints
            .iter()
            .flatten()
            .filter_map(|endpoint| {
                // Of several addresses, all stand for the same endpoint.
                let address = endpoint.addresses.first()?.parse().ok()?;
                let place = values.places.share(endpoint.place());
                let pod = if endpoint.target_ref.kind == "Pod" { &*endpoint.target_ref.name } else { "" };
                let conditions = endpoint.conditions.known();
                Some(Endpoint { address, conditions, ports: ports.clone(), place, pod: pod.into() })
            })
            .collect();
        endpoints.sort_by(|one, other| (one.address, other.conditions).cmp(&(other.address, one.conditions)));
        endpoints.dedup_by_key(|endpoint| endpoint.address);
        endpoints.into()
    }
}

impl PortObject {
    fn port(&self) -> Option<EndpointPort> {
        let Self { name, protocol, app_protocol, port } = self.clone();
        Some(EndpointPort { name, number: port?, protocol, app_protocol })
    }
}

impl ConditionsObject {
    /// Conditions that are not known count as those of an endpoint that is ready.
    fn known(&self) -> Conditions {
        let is_ready = self.ready.unwrap_or(true);
        Conditions {
            is_ready,
            is_serving: self.serving.unwrap_or(is_ready),
            stays: !self.terminating.unwrap_or_default(),
        }
    }
}

impl EndpointObject {
    fn place(&self) -> EndpointPlace {
        let names = |hints: &[Hint]| hints.iter().map(|hint| hint.name.clone()).collect();
        EndpointPlace {
            node: self.node_name.clone(),
            zone: self.zone.clone(),
            for_zones: names(&self.hints.for_zones),
            for_nodes: names(&self.hints.for_nodes),
        }
    }
}
