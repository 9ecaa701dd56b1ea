//! Graphs as text: a tree for terminals, DOT and Mermaid.

use crate::graph::{Edge, EdgeStatus, Graph, Node, NodeKind, Traffic};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

impl Graph {
    /// A tree from the gateway and from functions without a caller. A function that stands above
    /// already has no branches again.
    pub fn tree(&self) -> String {
        let mut outgoing: BTreeMap<&str, Vec<&Edge>> = BTreeMap::new();
        for edge in &self.edges {
            outgoing.entry(&edge.source).or_default().push(edge);
        }
        let called: BTreeSet<&str> = self.edges.iter().map(|edge| &*edge.target).collect();
        let by_kind = |node: &&Node| (node.kind, node.name.clone());
        let mut roots: Vec<&Node> = self.nodes.iter().filter(|node| !called.contains(&*node.name)).collect();
        roots.sort_by_key(by_kind);
        let (mut out, mut seen) = (String::new(), BTreeSet::new());
        // A circle that nothing leads to has no root.
        for node in roots.into_iter().chain(&self.nodes) {
            if seen.insert(&*node.name) {
                let _ = writeln!(out, "{}", node.label());
                branches(&mut out, "", &node.name, &outgoing, &mut seen, self.window > 0.0);
            }
        }
        out
    }

    /// The graph in DOT, for Graphviz.
    pub fn dot(&self) -> String {
        let mut out = String::from("digraph mesh {\n  rankdir=LR;\n  node [shape=box];\n");
        for node in &self.nodes {
            let style = match node.kind {
                NodeKind::Gateway => ", shape=house",
                NodeKind::External => ", shape=ellipse",
                NodeKind::Unknown => ", shape=ellipse, style=dashed",
                NodeKind::Function => "",
            };
            let _ = writeln!(out, "  {} [label={}{style}];", quoted(&node.name), quoted(&node.label()));
        }
        for edge in &self.edges {
            let style = match edge.status {
                EdgeStatus::Active => "",
                EdgeStatus::Unused => ", style=dotted",
                EdgeStatus::Refused => ", style=dashed, color=red",
            };
            let label = quoted(&edge.label(self.window > 0.0));
            let _ = writeln!(out, "  {} -> {} [label={label}{style}];", quoted(&edge.source), quoted(&edge.target));
        }
        out.push_str("}\n");
        out
    }

    /// The graph as a flowchart of Mermaid.
    pub fn mermaid(&self) -> String {
        let mut out = String::from("flowchart LR\n");
        let number: BTreeMap<&str, usize> =
            self.nodes.iter().enumerate().map(|(number, node)| (&*node.name, number)).collect();
        for (number, node) in self.nodes.iter().enumerate() {
            let label = entities(&node.label());
            let _ = match node.kind {
                NodeKind::Function => writeln!(out, "  n{number}[\"{label}\"]"),
                NodeKind::Gateway => writeln!(out, "  n{number}{{{{\"{label}\"}}}}"),
                NodeKind::External | NodeKind::Unknown => writeln!(out, "  n{number}([\"{label}\"])"),
            };
        }
        for edge in &self.edges {
            let line = match edge.status {
                EdgeStatus::Active => "-->",
                EdgeStatus::Unused | EdgeStatus::Refused => "-.->",
            };
            let [source, target] =
                [&edge.source, &edge.target].map(|name| number.get(&**name).copied().unwrap_or_default());
            let _ = writeln!(out, "  n{source} {line}|\"{}\"| n{target}", entities(&edge.label(self.window > 0.0)));
        }
        out
    }
}

fn branches<'a>(
    out: &mut String,
    indent: &str,
    source: &str,
    outgoing: &BTreeMap<&'a str, Vec<&'a Edge>>,
    seen: &mut BTreeSet<&'a str>,
    rates: bool,
) {
    let Some(edges) = outgoing.get(source) else { return };
    for (index, edge) in edges.iter().enumerate() {
        let (branch, below) = if index + 1 == edges.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let is_new = seen.insert(&edge.target);
        let again = if !is_new && outgoing.contains_key(&*edge.target) { " (above)" } else { "" };
        let _ = writeln!(out, "{indent}{branch}{}{again}  {}", edge.target, edge.label(rates));
        if is_new {
            branches(out, &format!("{indent}{below}"), &edge.target, outgoing, seen, rates);
        }
    }
}

impl Node {
    fn label(&self) -> String {
        match &*self.state {
            "" | "ready" | "idle" => self.name.clone(),
            state => format!("{} ({state})", self.name),
        }
    }
}

impl Edge {
    /// The traffic in words: `12.0/s, 99.2 % good, p50 1.3 ms, p99 8 ms`.
    pub fn label(&self, rates: bool) -> String {
        let count = |number: f64| if rates { format!("{number:.1}/s") } else { format!("{number:.0} requests") };
        let Traffic { rate, denied, success, p50, p99, .. } = self.traffic;
        match self.status {
            EdgeStatus::Unused => return "unused".to_owned(),
            EdgeStatus::Refused => return format!("refused, {}", count(denied)),
            EdgeStatus::Active => {}
        }
        let mut label = count(rate);
        if let Some(success) = success {
            // All but one of a thousand is not all.
            let _ = write!(label, ", {:.1} % good", (success * 1e3).floor() / 10.0);
        }
        for (name, value) in [("p50", p50), ("p99", p99)] {
            if let Some(value) = value {
                let digits = usize::from(value < 10.0);
                let _ = write!(label, ", {name} {value:.digits$} ms");
            }
        }
        if denied > 0.0 {
            let _ = write!(label, ", {} denied", count(denied));
        }
        label
    }
}

/// A quoted identifier of DOT.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " "))
}

/// Text in which Mermaid finds no markup: everything but letters, digits and some signs as
/// entities.
fn entities(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if character.is_alphanumeric() || " /.,:()%-_".contains(character) {
            out.push(character);
        } else {
            let _ = write!(out, "#{};", u32::from(character));
        }
    }
    out
}
