//! Views of nodes.

use leno_control::{FunctionNode, NodeChange, NodeEvent, NodeStatus, PlacementEvent};
use leno_dashboard::mesh::ChainMember;
use leno_dashboard::status;
use leno_model::ChainLink;
use leno_wire::Bounds;
use serde_json::{Value, json};

/// The rows of `leno get nodes`, if the control plane is in the same process.
pub fn rows(nodes: &[NodeStatus]) -> Value {
    nodes.iter().map(|node| status::node(&json!(node))).collect()
}

/// The place of a function in its chain.
pub(crate) fn chain_of(link: &ChainLink) -> ChainMember {
    ChainMember { name: link.chain.clone(), to: link.to.iter().map(ToString::to_string).collect() }
}

/// A function's nodes, with the bounds of their instances: `one 1..5`.
pub fn of_function(nodes: &[FunctionNode]) -> Vec<String> {
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

/// An event of a function that lacked nodes or moves, as a row of `leno get events`; `loads`: with
/// the load of nodes, which tells of other namespaces.
pub(crate) fn placement_event(event: &PlacementEvent, loads: bool) -> Value {
    let mut row = json!({
        "time": event.at_ms as f64 / 1e3,
        "kind": "placement",
        "function": event.function.to_string(),
        "reason": event.reason,
    });
    if let Some(load) = event.load.as_ref().filter(|_| loads) {
        row["load"] = json!(load);
    }
    row
}

/// An event of a node, as a row of `leno get events`.
pub(crate) fn node_event(event: &NodeEvent) -> Value {
    let kind = match event.change {
        NodeChange::Joined => "nodeJoined",
        NodeChange::Away => "nodeAway",
        NodeChange::Back => "nodeBack",
        NodeChange::Removed => "nodeRemoved",
    };
    json!({ "time": event.at_ms as f64 / 1e3, "kind": kind, "node": event.node, "reason": event.reason })
}
