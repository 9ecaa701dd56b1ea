//! Nodes, and which functions they host, as they are listed.

use leno_control::{Bounds, Capacity, FunctionNode, NodeStatus};
use serde_json::{Value, json};

/// The rows of `leno get nodes`.
pub(crate) fn rows(nodes: &[NodeStatus]) -> Value {
    let row = |node: &NodeStatus| {
        let state = match (node.connected, node.cordoned) {
            (true, false) => "connected",
            (true, true) => "cordoned",
            (false, _) => "away",
        };
        let offer = |of: fn(&Capacity) -> u64| node.capacity.as_ref().map(of);
        json!({
            "node": node.name,
            "state": state,
            "inbound": node.inbound.map(|inbound| inbound.to_string()),
            "region": node.locality.region,
            "zone": node.locality.zone,
            "hosted": node.hosted.len(),
            "instances": node.reserved,
            "most_instances": offer(|capacity| capacity.instances.into()),
            "cpu_millis": offer(|capacity| capacity.cpu_millis),
            "memory_bytes": offer(|capacity| capacity.memory),
            "rejected": node.rejected.len(),
            "refused": node.counters.refused,
        })
    };
    nodes.iter().map(row).collect()
}

/// A function's nodes, each with how many instances it must and may have: `one 1..5`.
pub(crate) fn of_function(nodes: &[FunctionNode]) -> Vec<String> {
    let bounds = |&Bounds { least, most, .. }: &Bounds| match most {
        u32::MAX => format!(" {least}.."),
        most => format!(" {least}..{most}"),
    };
    let text = |node: &FunctionNode| {
        let bounds: String = node.bounds.iter().map(bounds).collect();
        let leaving = if node.leaving { " (leaving)" } else { "" };
        format!("{}{bounds}{leaving}", node.node)
    };
    nodes.iter().map(text).collect()
}
