//! The meanings of addresses that pods call.

use crate::function_id::is_label;
use crate::pod::PodMode;
use crate::spiffe::SpiffeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The name of a Service of Kubernetes: `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName {
    /// DNS label.
    pub namespace: String,
    /// DNS label.
    pub name: String,
}

/// A text is not the name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a Service: expected `namespace/name`, each a DNS label")]
pub struct BadServiceName(String);

/// The meaning of a called address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    /// A Service. Its endpoints come separately.
    Service(Service),
    /// A pod of the mesh.
    Pod(MeshPod),
}

/// A Service of Kubernetes, as callers need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// Its TCP ports.
    #[serde(default)]
    pub ports: Vec<ServicePort>,
    /// How long the connections of a client go to the same endpoint; `None`: each goes anywhere.
    #[serde(default)]
    pub affinity: Option<Duration>,
    /// Calls go to endpoints of the caller's node only.
    #[serde(default)]
    pub node_local: bool,
    /// The endpoints that callers prefer; `None`: all alike.
    #[serde(default)]
    pub distribution: Option<TrafficDistribution>,
}

/// A TCP port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePort {
    /// Its name, which ports of endpoints have too; empty: it is the only port.
    #[serde(default)]
    pub name: String,
    /// Its number.
    pub number: u16,
    /// Its application protocol, such as `http` or `kubernetes.io/h2c`.
    #[serde(default)]
    pub app_protocol: Option<String>,
}

/// The endpoints of a Service that callers prefer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficDistribution {
    /// Those in the caller's zone (`PreferSameZone`, and `PreferClose` before it).
    SameZone,
    /// Those on the caller's node, then those in its zone.
    SameNode,
}

/// An address behind a Service that takes connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceEndpoint {
    /// Its TCP ports.
    #[serde(default)]
    pub ports: Vec<EndpointPort>,
    /// It ends, and serves until then. Callers use it only if no endpoint is ready.
    #[serde(default)]
    pub is_terminating: bool,
    /// Its node.
    #[serde(default)]
    pub node: Option<String>,
    /// Its zone.
    #[serde(default)]
    pub zone: Option<String>,
    /// The zones whose callers should use it; none: all.
    #[serde(default)]
    pub for_zones: Vec<String>,
    /// The nodes whose callers should use it; none: all.
    #[serde(default)]
    pub for_nodes: Vec<String>,
    /// The pod of the mesh that has the address; `None`: something else has it.
    #[serde(default)]
    pub pod: Option<MeshPod>,
}

/// A TCP port of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointPort {
    /// The name of the port of the Service.
    #[serde(default)]
    pub name: String,
    /// Its number.
    pub number: u16,
}

/// A pod of the mesh, as callers on other nodes need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshPod {
    /// Its node.
    pub node: String,
    /// The identity of its service account, which its node proves.
    pub identity: SpiffeId,
    /// How connections to it are judged that no rule allows.
    pub mode: PodMode,
}

impl FromStr for ServiceName {
    type Err = BadServiceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if is_label(namespace) && is_label(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(BadServiceName(text.chars().take(160).collect())),
        }
    }
}

impl TryFrom<String> for ServiceName {
    type Error = BadServiceName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services() {
        assert_eq!("shop/cart".parse::<ServiceName>().unwrap().to_string(), "shop/cart");
        for bad in ["", "cart", "shop/", "shop/cart/10.0.0.1", "Shop/cart", "shop/ca rt"] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad}");
        }
    }
}
