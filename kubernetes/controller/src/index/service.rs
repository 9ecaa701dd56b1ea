//! Services of the API server, as far as the mesh needs them.

use crate::api::{Kind, Metadata, Object};
pub use leno_model::TrafficDistribution;
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;

/// How long clients of a Service with session affinity stay at an endpoint, if it does not say so.
const AFFINITY_SECONDS: u32 = 10_800;
/// Ports of a Service that count.
const MAX_PORTS: usize = 256;

/// A Service of the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceObject {
    metadata: Metadata,
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    r#type: String,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String>,
    external_name: String,
    ports: Option<Vec<PortObject>>,
    session_affinity: String,
    session_affinity_config: AffinityConfig,
    internal_traffic_policy: Option<String>,
    traffic_distribution: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AffinityConfig {
    #[serde(rename = "clientIP")]
    client_ip: ClientIp,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientIp {
    timeout_seconds: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PortObject {
    name: Box<str>,
    protocol: Protocol,
    app_protocol: Option<Box<str>>,
    port: u16,
    target_port: Option<TargetPort>,
}

/// A Service, as callers need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// How callers reach its endpoints.
    pub kind: ServiceKind,
    /// Its ports.
    pub ports: Box<[ServicePort]>,
    /// How long the connections of a client go to the same endpoint; `None`: each goes anywhere.
    pub affinity: Option<Duration>,
    /// Calls from within the cluster go to endpoints of the caller's node only.
    pub is_node_local: bool,
    /// The endpoints that callers prefer; `None`: all alike.
    pub distribution: Option<TrafficDistribution>,
}

/// How callers reach the endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// By these addresses. A Service that has none yet is not reachable.
    Cluster(Box<[IpAddr]>),
    /// By the addresses of the endpoints themselves.
    Headless,
    /// It stands for this name outside of the cluster.
    External(Box<str>),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, which ports of endpoints have too; empty: it is the only port.
    pub name: Box<str>,
    /// Its number.
    pub number: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// Its application protocol, such as `http` or `kubernetes.io/h2c`.
    pub app_protocol: Option<Box<str>>,
    /// The port of the pods.
    pub target: TargetPort,
}

/// The port of pods behind a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// A number.
    Number(u16),
    /// The name of a container's port. It may have another number in each pod.
    Name(Box<str>),
}

/// The transport of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Object for ServiceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl ServiceObject {
    /// The kind.
    pub const KIND: Kind = Kind::core("services", "Service");

    pub(crate) fn service(&self) -> Service {
        let ServiceSpec { ports, session_affinity, session_affinity_config, .. } = &self.spec;
        let port = |port: &PortObject| ServicePort {
            name: port.name.clone(),
            number: port.port,
            protocol: port.protocol,
            app_protocol: port.app_protocol.clone(),
            target: port.target_port.clone().unwrap_or(TargetPort::Number(port.port)),
        };
        let seconds = session_affinity_config.client_ip.timeout_seconds.unwrap_or(AFFINITY_SECONDS);
        Service {
            kind: self.kind(),
            ports: ports.iter().flatten().take(MAX_PORTS).map(port).collect(),
            affinity: (session_affinity == "ClientIP").then(|| Duration::from_secs(seconds.into())),
            is_node_local: self.spec.internal_traffic_policy.as_deref() == Some("Local"),
            distribution: match self.spec.traffic_distribution.as_deref() {
                Some("PreferSameZone" | "PreferClose") => Some(TrafficDistribution::SameZone),
                Some("PreferSameNode") => Some(TrafficDistribution::SameNode),
                _ => None,
            },
        }
    }

    fn kind(&self) -> ServiceKind {
        if self.spec.r#type == "ExternalName" {
            return ServiceKind::External(self.spec.external_name.as_str().into());
        }
        match &self.spec.cluster_ips[..] {
            [first, ..] if first == "None" => ServiceKind::Headless,
            // An address that is none is left out.
            addresses => ServiceKind::Cluster(addresses.iter().filter_map(|address| address.parse().ok()).collect()),
        }
    }
}
