//! The pods of a node, and the Services that they call, in `/pods`, `/services` and `/metrics`.

use leno_model::{Destination, MeshPod, PodMode};
use leno_node::{PodState, PodStatus, Pods};
use leno_proxy::Node;
use leno_proxy::destinations::{CalledAddress, Transport};
use leno_telemetry::exposition::{Collector, Exposition};
use leno_telemetry::families;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Counts of pods.
pub(crate) struct Scrape {
    pods: Vec<PodStatus>,
    calls: BTreeMap<(String, Transport), u64>,
    is_list_current: bool,
}

impl Scrape {
    pub(crate) fn of(pods: &Pods, node: &Node) -> Self {
        Self { pods: pods.status(), calls: node.destinations.calls(), is_list_current: pods.is_list_current() }
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        let mut counts: BTreeMap<(&str, PodMode, PodState), usize> = BTreeMap::new();
        for pod in &self.pods {
            *counts.entry((&pod.function.namespace, pod.mode, pod.state)).or_default() += 1;
        }
        let counts = counts.iter().map(|((namespace, mode, state), count)| {
            ([(*namespace).to_owned(), mode.to_string(), state.name().to_owned()], *count)
        });
        exposition.family(&families::PODS).samples(counts);
        let calls = self.calls.iter();
        let calls = calls.map(|((namespace, way), count)| ([namespace.clone(), way.name().to_owned()], *count));
        exposition.family(&families::POD_CALLS).samples(calls);
        let dropped = self.pods.iter().flat_map(|pod| {
            let of_reason = |(reason, count): &(&str, u64)| {
                ([pod.pod.clone(), pod.function.to_string(), (*reason).to_owned()], *count)
            };
            pod.dropped.iter().map(of_reason)
        });
        exposition.family(&families::PODS_DROPPED).samples(dropped);
        exposition.family(&families::ENFORCED_LIST).samples([([""; 0], u64::from(self.is_list_current))]);
    }
}

/// An endpoint of a Service that pods of the node call, or a pod that they call by its address.
#[derive(Serialize)]
pub(crate) struct CalledRow {
    /// `namespace/name`; `None`: a pod's own address was called.
    service: Option<String>,
    address: IpAddr,
    /// `None`: the Service has no endpoint.
    endpoint: Option<String>,
    node: Option<String>,
    transport: Option<&'static str>,
    state: &'static str,
    connections: usize,
    identity: Option<String>,
}

/// The Services and pods that pods of the node have called in the last minutes.
pub(crate) fn called(node: &Node) -> Vec<CalledRow> {
    node.destinations.list().iter().flat_map(|called| rows(called, node)).collect()
}

fn rows(called: &CalledAddress, node: &Node) -> Vec<CalledRow> {
    let transport = |pod: Option<&MeshPod>| Some(node.destinations.transport(pod).name());
    let row = |service: Option<String>, state| CalledRow {
        service,
        address: called.address,
        endpoint: None,
        node: None,
        transport: None,
        state,
        connections: 0,
        identity: None,
    };
    match called.destination.as_deref() {
        None => Vec::new(),
        Some(Destination::Pod(pod)) => vec![CalledRow {
            endpoint: Some(called.address.to_string()),
            node: Some(pod.node.clone()),
            transport: transport(Some(pod)),
            identity: Some(pod.identity.to_string()),
            ..row(None, "ready")
        }],
        Some(Destination::Service(service)) if called.endpoints.is_empty() => {
            vec![row(Some(service.name.to_string()), "no endpoint")]
        }
        Some(Destination::Service(service)) => {
            let of = |(address, endpoint, open): &(IpAddr, leno_model::ServiceEndpoint, usize)| {
                let ports: Vec<_> = endpoint.ports.iter().map(|port| port.number.to_string()).collect();
                let state = if endpoint.is_terminating { "terminating" } else { "ready" };
                CalledRow {
                    endpoint: Some(format!("{address} ({})", ports.join(", "))),
                    node: endpoint.node.clone(),
                    transport: transport(endpoint.pod.as_ref()),
                    connections: *open,
                    identity: endpoint.pod.as_ref().map(|pod| pod.identity.to_string()),
                    ..row(Some(service.name.to_string()), state)
                }
            };
            called.endpoints.iter().map(of).collect()
        }
    }
}
