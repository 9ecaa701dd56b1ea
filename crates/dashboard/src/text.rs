//! Graphs as text: a tree for terminals, DOT and Mermaid.

use crate::graph::{Edge, EdgeStatus, Graph, Node, NodeKind, Traffic};
use crate::mesh::RevisionShare;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

impl Graph {
    /// A tree from the gateway and from functions without a caller, and the members of chains. A
    /// function that stands above already has no branches again.
    pub fn tree(&self) -> String {
        let mut tree = Tree {
            labels: self.nodes.iter().map(|node| (&*node.name, node.label())).collect(),
            outgoing: BTreeMap::new(),
            seen: BTreeSet::new(),
            rates: self.window > 0.0,
            out: String::new(),
        };
        for edge in &self.edges {
            tree.outgoing.entry(&edge.source).or_default().push(edge);
        }
        let called: BTreeSet<&str> = self.edges.iter().map(|edge| &*edge.target).collect();
        let by_kind = |node: &&Node| (node.kind, node.name.clone());
        let mut roots: Vec<&Node> = self.nodes.iter().filter(|node| !called.contains(&*node.name)).collect();
        roots.sort_by_key(by_kind);
        // A circle that nothing leads to has no root.
        for node in roots.into_iter().chain(&self.nodes) {
            if tree.seen.insert(&node.name) {
                let _ = writeln!(tree.out, "{}", node.label());
                tree.branches("", &node.name);
            }
        }
        for (chain, members) in self.chains() {
            let members: Vec<&str> = members.iter().map(|node| &*node.name).collect();
            let _ = writeln!(tree.out, "chain {chain}: {}", members.join(", "));
        }
        tree.out
    }

    /// The graph in DOT, for Graphviz.
    pub fn dot(&self) -> String {
        let mut out = String::from("digraph mesh {\n  rankdir=LR;\n  node [shape=box];\n");
        for (number, (chain, members)) in self.chains().into_iter().enumerate() {
            let members: String = members.iter().map(|node| format!(" {};", quoted(&node.name))).collect();
            let label = quoted(&format!("chain {chain}"));
            let _ = writeln!(out, "  subgraph cluster_{number} {{ label={label};{members} }}");
        }
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
                // A double line.
                EdgeStatus::Active if !edge.chain.is_empty() => ", color=\"black:invis:black\"",
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
        for (index, (chain, members)) in self.chains().into_iter().enumerate() {
            let _ = writeln!(out, "  subgraph c{index}[\"chain {}\"]", entities(chain));
            for member in members {
                let _ = writeln!(out, "    n{}", number.get(&*member.name).copied().unwrap_or_default());
            }
            out.push_str("  end\n");
        }
        for edge in &self.edges {
            let line = match edge.status {
                EdgeStatus::Active if !edge.chain.is_empty() => "==>",
                EdgeStatus::Active => "-->",
                EdgeStatus::Unused | EdgeStatus::Refused => "-.->",
            };
            let [source, target] =
                [&edge.source, &edge.target].map(|name| number.get(&**name).copied().unwrap_or_default());
            let _ = writeln!(out, "  n{source} {line}|\"{}\"| n{target}", entities(&edge.label(self.window > 0.0)));
        }
        out
    }

    /// The members of each chain.
    fn chains(&self) -> BTreeMap<&str, Vec<&Node>> {
        let mut chains: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| !node.chain.is_empty()) {
            chains.entry(&node.chain).or_default().push(node);
        }
        chains
    }
}

/// A tree that is being written.
struct Tree<'a> {
    labels: BTreeMap<&'a str, String>,
    outgoing: BTreeMap<&'a str, Vec<&'a Edge>>,
    seen: BTreeSet<&'a str>,
    rates: bool,
    out: String,
}

impl<'a> Tree<'a> {
    fn branches(&mut self, indent: &str, source: &str) {
        let edges = self.outgoing.get(source).cloned().unwrap_or_default();
        for (index, edge) in edges.iter().enumerate() {
            let (branch, below) = if index + 1 == edges.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let target: &'a str = &edge.target;
            let is_new = self.seen.insert(target);
            let name = match is_new {
                true => self.labels.get(target).map_or(target, String::as_str),
                false => target,
            };
            let again = if !is_new && self.outgoing.contains_key(target) { " (above)" } else { "" };
            let _ = writeln!(self.out, "{indent}{branch}{name}{again}  {}", edge.label(self.rates));
            if is_new {
                self.branches(&format!("{indent}{below}"), target);
            }
        }
    }
}

impl Node {
    /// Its name, with its state if that needs attention and the shares of its revisions:
    /// `demo/shop (failing, shop-00001 90 %, shop-00002 10 %)`.
    fn label(&self) -> String {
        let state = Some(&self.state).filter(|state| !matches!(&***state, "" | "ready" | "idle")).cloned();
        let notes: Vec<String> = state.into_iter().chain(self.shares.iter().map(share)).collect();
        if notes.is_empty() { self.name.clone() } else { format!("{} ({})", self.name, notes.join(", ")) }
    }
}

fn share(share: &RevisionShare) -> String {
    let RevisionShare { revision, percent, served } = share;
    let serves = if percent == served { String::new() } else { format!(" serving {served} %") };
    format!("{revision} {percent} %{serves}")
}

impl Edge {
    /// The traffic in words: `12.0/s, 99.2 % good, p50 1.3 ms, p99 8 ms`.
    pub fn label(&self, rates: bool) -> String {
        let count = |number: f64| if rates { format!("{number:.1}/s") } else { format!("{number:.0} requests") };
        let Traffic { rate, denied, success, p50, p99, .. } = self.traffic;
        match self.status {
            EdgeStatus::Unused if !self.chain.is_empty() => return format!("unused, {}", self.through()),
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
        if !self.chain.is_empty() {
            let _ = write!(label, ", {}", self.through());
        }
        label
    }

    fn through(&self) -> String {
        format!("chain {}", self.chain)
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
