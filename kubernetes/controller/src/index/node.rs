//! Nodes of the cluster.

use crate::api::{Kind, Metadata, Object};
use leno_model::Locality;
use serde::Deserialize;
use std::net::IpAddr;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its addresses, the internal ones first.
    pub addresses: Vec<IpAddr>,
    /// Where it is, by the well-known labels.
    pub locality: Locality,
}

/// A Node of the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    metadata: Metadata,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeStatus {
    addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeAddress {
    r#type: String,
    address: String,
}

impl Object for NodeObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl NodeObject {
    /// The kind.
    pub const KIND: Kind = Kind::core("nodes", "Node");

    pub(crate) fn node(&self) -> Node {
        let of = |kind: &'static str| {
            let addresses = self.status.addresses.iter().filter(move |address| address.r#type == kind);
            addresses.filter_map(|address| address.address.parse().ok())
        };
        let label = |name: &str| self.metadata.labels.get(name).filter(|value| !value.is_empty()).cloned();
        Node {
            addresses: of("InternalIP").chain(of("ExternalIP")).collect(),
            locality: Locality {
                region: label("topology.kubernetes.io/region"),
                zone: label("topology.kubernetes.io/zone"),
            },
        }
    }
}
