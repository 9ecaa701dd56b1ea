//! Pods of the API server, as far as the mesh needs them.

use crate::api::{Kind, Metadata, Object};
use crate::index::function;
use crate::index::labels::MeshLabels;
use leno_model::{FunctionId, PodPort, PodProbe, PodUid, ProbeKind};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Ports and probes of a pod that count. A pod with more has its other ports judged without their
/// names, and its other probes judged as any request.
const MAX_PORTS: usize = 256;
const MAX_PROBES: usize = 64;

/// Labels that controllers of Kubernetes set, to tell pods or revisions of a workload apart.
const LABELS_OF_ONE_POD: [&str; 11] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];

/// Capabilities with which a program can change the network of its pod, or leave it.
const NETWORK_CAPABILITIES: [&str; 4] = ["ALL", "NET_ADMIN", "SYS_ADMIN", "SYS_MODULE"];

/// A Pod of the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodObject {
    metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: String,
    service_account_name: String,
    host_network: bool,
    containers: Option<Vec<Container>>,
    init_containers: Vec<Container>,
    ephemeral_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    ports: Vec<ContainerPort>,
    liveness_probe: Option<Probe>,
    readiness_probe: Option<Probe>,
    startup_probe: Option<Probe>,
    lifecycle: Lifecycle,
    restart_policy: Option<String>,
    security_context: SecurityContext,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
    protocol: Option<String>,
}

/// A probe, or a hook of a container's life.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Probe {
    http_get: Option<HttpGet>,
    tcp_socket: Option<TcpSocket>,
    grpc: Option<Grpc>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifecycle {
    post_start: Option<Probe>,
    pre_stop: Option<Probe>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct HttpGet {
    #[serde(default)]
    path: Option<String>,
    port: ProbePort,
    #[serde(default)]
    scheme: Option<String>,
    #[serde(default)]
    host: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct TcpSocket {
    port: ProbePort,
    #[serde(default)]
    host: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Grpc {
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum ProbePort {
    Number(u16),
    Name(String),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct SecurityContext {
    privileged: bool,
    capabilities: Capabilities,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Capabilities {
    add: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct PodIp {
    ip: IpAddr,
}

/// The part of a pod that the pods of a workload have in common, and share in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) function: FunctionId,
    pub(crate) account: String,
    pub(crate) mesh: MeshLabels,
    /// The labels, without those that differ from pod to pod.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) host_network: bool,
    /// It may change its network, or leave it.
    pub(crate) net_admin: bool,
    pub(crate) ports: Vec<PodPort>,
    pub(crate) probes: Vec<PodProbe>,
}

// Templates of one function are few.
impl Hash for Template {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.hash(state);
    }
}

impl Object for PodObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl PodObject {
    /// The kind.
    pub const KIND: Kind = Kind::core("pods", "Pod");

    /// The UID by which the kubelet and the container runtime know the pod.
    pub(crate) fn uid(&self) -> Option<PodUid> {
        self.metadata.annotations.mirror.as_deref().unwrap_or(&self.metadata.uid).parse().ok()
    }

    /// The node; `None`: the scheduler has yet to choose it.
    pub(crate) fn node(&self) -> Option<&str> {
        Some(self.spec.node_name.as_str()).filter(|node| !node.is_empty())
    }

    /// The addresses. A pod in the network of its node has none.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.status.pod_ips.iter().filter(|_| !self.spec.host_network).map(|address| address.ip)
    }

    /// When it was made: a number that is greater for a later time.
    pub(crate) fn created(&self) -> u64 {
        // `2026-11-28T09:34:39Z`
        let digits = self.metadata.creation_timestamp.bytes().filter(u8::is_ascii_digit).take(14);
        digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
    }

    /// All its containers have ended, and it has no network any more.
    pub(crate) fn terminated(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The part that pods of the workload share; `None`: the namespace is no DNS label.
    pub(crate) fn template(&self) -> Option<Template> {
        let serving: Vec<&Container> = self.serving().collect();
        let mut ports: Vec<PodPort> = serving.iter().flat_map(|container| container.tcp_ports()).collect();
        ports.sort_by(|one, other| (one.number, &one.name).cmp(&(other.number, &other.name)));
        ports.dedup_by_key(|port| port.number);
        ports.truncate(MAX_PORTS);
        let mut probes: Vec<PodProbe> = Vec::new();
        for probe in serving.iter().flat_map(|container| container.probes()) {
            if probes.len() < MAX_PROBES && !probes.contains(&probe) {
                probes.push(probe);
            }
        }
        let account = match self.spec.service_account_name.as_str() {
            "" => "default",
            account => account,
        };
        Some(Template {
            function: function::of_pod(&self.metadata)?,
            account: account.to_owned(),
            mesh: MeshLabels::of(&self.metadata.labels, || format!("Pod {}", self.metadata.key())),
            labels: self.labels(),
            host_network: self.spec.host_network,
            net_admin: self.all().any(Container::is_net_admin),
            ports,
            probes,
        })
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.metadata.labels.iter();
        labels
            .filter(|(name, _)| !LABELS_OF_ONE_POD.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// The containers that run beside each other: init containers only if they are sidecars.
    fn serving(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.spec.init_containers.iter();
        let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
        self.spec.containers.iter().flatten().chain(sidecars)
    }

    fn all(&self) -> impl Iterator<Item = &Container> {
        let PodSpec { containers, init_containers, ephemeral_containers, .. } = &self.spec;
        containers.iter().flatten().chain(init_containers).chain(ephemeral_containers)
    }
}

impl Container {
    fn is_net_admin(&self) -> bool {
        let grants = |added: &String| {
            let name = added.to_ascii_uppercase();
            NETWORK_CAPABILITIES.contains(&name.strip_prefix("CAP_").unwrap_or(&name))
        };
        self.security_context.privileged || self.security_context.capabilities.add.iter().any(grants)
    }

    fn tcp_ports(&self) -> impl Iterator<Item = PodPort> {
        let tcp = self.ports.iter().filter(|port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"));
        tcp.filter(|port| port.container_port != 0)
            .map(|port| PodPort { name: port.name.clone(), number: port.container_port })
    }

    /// Requests of the kubelet to this pod: probes, and hooks that are requests.
    fn probes(&self) -> impl Iterator<Item = PodProbe> {
        let Lifecycle { post_start, pre_stop } = &self.lifecycle;
        [&self.startup_probe, &self.liveness_probe, &self.readiness_probe, post_start, pre_stop]
            .into_iter()
            .flatten()
            .filter_map(|probe| self.probe(probe))
    }

    fn probe(&self, probe: &Probe) -> Option<PodProbe> {
        // A probe that names a host goes elsewhere.
        let here = |host: &Option<String>| host.as_deref().is_none_or(str::is_empty);
        if let Some(get) = probe.http_get.as_ref().filter(|get| here(&get.host)) {
            let https = get.scheme.as_deref() == Some("HTTPS");
            let kind = if https { ProbeKind::Https } else { ProbeKind::Http };
            let path = get.path.as_deref().unwrap_or_default();
            let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
            return Some(PodProbe { kind, port: self.port(&get.port)?, path: Some(path) });
        }
        if let Some(socket) = probe.tcp_socket.as_ref().filter(|socket| here(&socket.host)) {
            return Some(PodProbe { kind: ProbeKind::Tcp, port: self.port(&socket.port)?, path: None });
        }
        probe.grpc.as_ref().map(|grpc| PodProbe { kind: ProbeKind::Grpc, port: grpc.port, path: None })
    }

    /// The number of a port: its name is one of this container's, or a number as text.
    fn port(&self, port: &ProbePort) -> Option<u16> {
        match port {
            ProbePort::Number(number) => Some(*number),
            ProbePort::Name(name) => {
                let named = self.ports.iter().find(|port| port.name.as_deref() == Some(name));
                named.map(|port| port.container_port).or_else(|| name.parse().ok())
            }
        }
    }
}

#[cfg(test)]
impl PodObject {
    /// The pod with other labels and another phase, which is all that may change of a pod.
    pub(crate) fn relabelled(mut self, label: Option<(&str, &str)>, function: &str, phase: &str) -> Self {
        let labels = label.into_iter().chain([("leno.dev/function", function)]);
        self.metadata.labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.status.phase = phase.to_owned();
        self
    }
}
