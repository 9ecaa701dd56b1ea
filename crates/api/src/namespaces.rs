//! Views of namespaces and their quotas.

use crate::control::types::{NamespaceStatus, Share};
use leno_namespaces::{ResourceUse, Usage};
use leno_proxy::Node;
use leno_supervisor::{NamespaceShare, Supervisor};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A row of `leno get namespaces` of a control plane.
pub fn row_of(status: &NamespaceStatus) -> Value {
    let NamespaceStatus { namespace, functions, instances, rules, document_bytes, hosts, engines, node, .. } = status;
    json!({
        "namespace": namespace,
        "functions": share(*functions),
        "instances": instances,
        "instances_on_a_node": node.instances,
        "rules": share(*rules),
        "document_bytes": share(*document_bytes),
        "secrets": share(status.secrets),
        "secret_bytes": share(status.secret_bytes),
        "routes": share(status.routes),
        "route_matches": share(status.route_matches),
        "hosts": hosts,
        "engines": engines,
        "pids": node.pids,
        "connections": node.connections,
        "open_requests": node.open_requests,
        "waiting_requests": node.waiting_requests,
        "image_bytes": node.image_bytes,
        "image_files": node.image_files,
        "log_bandwidth": node.log_bandwidth,
        "files": node.files,
    })
}

/// The rows of `leno get namespaces` of a node: the namespaces of its functions.
pub fn rows(node: &Node, supervisor: &Supervisor) -> Value {
    let snapshot = node.snapshot.load();
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    for entry in snapshot.functions.values() {
        *functions.entry(&entry.config.id.namespace).or_default() += 1;
    }
    let row = |usage: Usage| {
        let functions = functions.get(&*usage.namespace)?;
        let shared = supervisor.share(&usage.namespace);
        let bounded = shared.as_ref().filter(|shared| shared.unenforced.is_none());
        Some(json!({
            "namespace": &*usage.namespace,
            "functions": functions,
            "instances": used(usage.instances),
            "pids": bounded.map(pids),
            "memory": bounded.map(memory),
            "cpu": bounded.map(cpu),
            "unenforced_limits": shared.as_ref().and_then(|shared| shared.unenforced.clone()),
            "connections": used(usage.connections),
            "open_requests": used(usage.open_requests),
            "waiting_requests": used(usage.waiting_requests),
            "pull_bandwidth": used(usage.pull_bytes_per_second),
            "image_bytes": used(usage.image_bytes),
            "image_files": used(usage.image_files),
            "log_bandwidth": used(usage.log_bytes_per_second),
            "log_bytes_dropped": usage.log_bytes_per_second.refused,
        }))
    };
    node.telemetry.namespaces.usage().into_iter().filter_map(row).collect()
}

/// `12/4096`
fn pids(NamespaceShare { pids, bounds, .. }: &NamespaceShare) -> String {
    share(Share { used: pids.unwrap_or_default(), bound: bounds.pids.into() })
}

/// `12Mi/8192Mi`
fn memory(NamespaceShare { memory, bounds, .. }: &NamespaceShare) -> String {
    format!("{}Mi/{}Mi", memory.unwrap_or_default() >> 20, bounds.memory >> 20)
}

/// Most processor time, in cores.
fn cpu(NamespaceShare { bounds, .. }: &NamespaceShare) -> String {
    match bounds.cpu_millis {
        0 => "an equal share".to_owned(),
        millis => (f64::from(millis) / 1000.0).to_string(),
    }
}

/// `12/1000`; without a bound: `12`
fn used(ResourceUse { used, bound, .. }: ResourceUse) -> String {
    if bound == u64::MAX { used.to_string() } else { share(Share { used, bound }) }
}

/// `12/1000`
fn share(Share { used, bound }: Share) -> String {
    format!("{used}/{bound}")
}
