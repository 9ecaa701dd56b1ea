//! Namespaces, and the use that each makes of its quota, as they are listed.

use crate::api::types::{NamespaceStatus, Share};
use crate::table::Column;
use crate::table::Show::{Plain, Wide};
use leno_config::slice::Run;
use leno_function::Supervisor;
use leno_proxy::NodeSnapshot;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The columns of `leno get namespaces`, of a control plane.
pub(crate) const COLUMNS: &[Column] = &[
    ("NAMESPACE", "namespace", Plain),
    ("FUNCTIONS", "functions", Plain),
    ("INSTANCES", "instances", Plain),
    ("RULES", "rules", Plain),
    ("DOCUMENT BYTES", "document_bytes", Plain),
    ("HOSTS", "hosts", Plain),
    ("ENGINES", "engines", Wide),
    ("INSTANCES A NODE", "instances_on_a_node", Wide),
    ("PIDS", "pids", Wide),
    ("CONNECTIONS", "connections", Wide),
    ("OPEN REQUESTS", "open_requests", Wide),
    ("WAITING REQUESTS", "waiting_requests", Wide),
    ("LOG BYTES/S", "log_bandwidth", Wide),
    ("FILES", "files", Wide),
];

/// The columns of `leno get namespaces`, of a node.
pub(crate) const NODE_COLUMNS: &[Column] = &[
    ("NAMESPACE", "namespace", Plain),
    ("FUNCTIONS", "functions", Plain),
    ("INSTANCES", "instances", Plain),
    ("WAITING REQUESTS", "waiting_requests", Plain),
];

/// A row of a namespace as the API of a control plane has it.
pub(crate) fn row_of(status: &NamespaceStatus) -> Value {
    let NamespaceStatus { namespace, functions, instances, rules, document_bytes, hosts, engines, node } = status;
    json!({
        "namespace": namespace,
        "functions": share(*functions),
        "instances": instances,
        "instances_on_a_node": node.instances,
        "rules": share(*rules),
        "document_bytes": share(*document_bytes),
        "hosts": hosts,
        "engines": engines,
        "pids": node.pids,
        "connections": node.connections,
        "open_requests": node.open_requests,
        "waiting_requests": node.waiting_requests,
        "log_bandwidth": node.log_bandwidth,
        "files": node.files,
    })
}

/// The rows of a node: the namespaces of the functions that it hosts.
pub(crate) fn rows(snapshot: &NodeSnapshot, supervisor: &Supervisor) -> Value {
    #[derive(Default)]
    struct Namespace {
        functions: u64,
        instances: Share,
        waiting: Share,
    }
    let mut namespaces: BTreeMap<&str, Namespace> = BTreeMap::new();
    for entry in snapshot.functions.values() {
        let (id, bounds) = (&entry.slice.id, &entry.slice.bounds);
        let namespace = namespaces.entry(&id.namespace).or_default();
        namespace.functions += 1;
        namespace.instances.bound = bounds.instances().into();
        namespace.waiting.bound = bounds.waiting_requests().into();
        if matches!(entry.slice.run, Run::Command(_) | Run::Job(_)) {
            namespace.instances.used += supervisor.instances(id).len() as u64;
        }
    }
    for status in supervisor.status() {
        if let Some(namespace) = namespaces.get_mut(&*status.function.namespace) {
            namespace.waiting.used += status.waiting as u64;
        }
    }
    let row = |(name, Namespace { functions, instances, waiting }): (&str, Namespace)| {
        json!({
            "namespace": name,
            "functions": functions,
            "instances": share(instances),
            "waiting_requests": share(waiting),
        })
    };
    namespaces.into_iter().map(row).collect()
}

/// `12/1000`
fn share(Share { used, bound }: Share) -> String {
    format!("{used}/{bound}")
}
