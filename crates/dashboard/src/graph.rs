//! The graph of a mesh's calls: permitted ones, their traffic, and calls that are refused.

use crate::mesh::{ChainMember, Function, Mesh, Refusal, RevisionShare};
use leno_telemetry::destinations::DestinationKind;
use leno_telemetry::metrics::{Edge as Counts, Latencies};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The name of clients outside the mesh, whose requests arrive at the gateway.
pub const GATEWAY: &str = "gateway";

/// Functions and external services, and the calls between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Graph {
    /// Seconds that the rates are of; 0: since the nodes started, and the rates are counts.
    pub window: f64,
    /// Ordered by name.
    pub nodes: Vec<Node>,
    /// Ordered by source and target.
    pub edges: Vec<Edge>,
    /// Nodes of the mesh that did not answer, and why: their traffic is missing.
    pub missing: Vec<String>,
}

/// An end of edges.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// `namespace/name`, [`GATEWAY`], or the host of a refused destination.
    pub name: String,
    /// Its kind.
    pub kind: NodeKind,
    /// Of a function: `ready`, `idle`, `starting`, `failing`, `failed` or `unplaced`.
    pub state: String,
    /// Why instances fail.
    pub failure: String,
    /// Instances that get requests.
    pub ready: u64,
    /// Instances that there should be.
    pub desired: u64,
    /// Requests that wait for an instance.
    pub waiting: u64,
    /// The nodes of the mesh that host it.
    pub hosts: Vec<String>,
    /// The chain of a function: `namespace/name`; empty: none.
    pub chain: String,
    /// Its revisions, if several are to get requests or serve them.
    pub shares: Vec<RevisionShare>,
    /// The requests to it.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// What stands at an end of edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// Clients outside the mesh.
    Gateway,
    /// A function.
    Function,
    /// An external service.
    External,
    /// A destination that is no callee of the function that tried to reach it.
    Unknown,
}

/// The calls of one caller to one callee.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    /// The caller: the name of a node.
    pub source: String,
    /// The callee: the name of a node.
    pub target: String,
    /// Whether it is permitted and used.
    pub status: EdgeStatus,
    /// Its traffic.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Whether the caller's identity is proven: by mutual TLS, or by the node that hosts both.
    pub authenticated: bool,
    /// The chain in whose shared memory the calls pass, if both instances are on one node; empty:
    /// none.
    pub chain: String,
}

/// Requests within the window that are over.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Requests a second.
    pub rate: f64,
    /// Those a second that failed: a status of 500 or above, or no response.
    pub failed: f64,
    /// Those a second that a policy refused.
    pub denied: f64,
    /// The share of requests that neither failed nor were denied; `None`: there were no requests.
    pub success: Option<f64>,
    /// Median duration in milliseconds of the requests that no policy refused, within some 3 %.
    pub p50: Option<f64>,
    /// 99th percentile of the durations.
    pub p99: Option<f64>,
}

/// Whether an edge is permitted and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeStatus {
    /// Requests pass.
    Active,
    /// It is permitted, and has had no request since the nodes started.
    Unused,
    /// All requests in the window were refused; if there were none, all before it.
    Refused,
}

impl EdgeStatus {
    /// `None`: there were no requests.
    fn of(sum: &Sum) -> Option<Self> {
        match sum.all() {
            0 => None,
            all if all == sum.denied => Some(Self::Refused),
            _ => Some(Self::Active),
        }
    }
}

/// Counts within the window.
#[derive(Clone, Debug, Default)]
struct Sum {
    requests: u64,
    denied: u64,
    failed: u64,
    latencies: Latencies,
}

impl Graph {
    /// The graph with the traffic between two looks; `before`: `None`: with all traffic since the
    /// nodes started.
    pub fn between(before: Option<&Mesh>, now: &Mesh) -> Self {
        let window = before.map_or(Duration::ZERO, |before| now.at.saturating_duration_since(before.at)).as_secs_f64();
        let per_second = if window > 0.0 { 1.0 / window } else { 1.0 };
        // An edge that is quiet in the window is not unused.
        let since_start = sums(None, now);
        let mut sums = sums(before, now);
        let refused = refused(before, now);
        let mut nodes: BTreeMap<&str, Node> =
            now.functions.iter().map(|function| (&*function.name, function.into())).collect();
        let mut permitted: BTreeSet<(String, String)> = BTreeSet::new();
        for function in &now.functions {
            permitted.extend(function.callees.iter().map(|callee| (function.name.clone(), callee.clone())));
            if function.exposed {
                permitted.insert((GATEWAY.to_owned(), function.name.clone()));
            }
        }
        let chains = now.functions.iter().filter_map(|function| Some((&*function.name, function.chain.as_ref()?)));
        let chains: BTreeMap<&str, &ChainMember> = chains.collect();
        for edge in &permitted {
            sums.entry(edge.clone()).or_default();
        }
        let mut edges: Vec<Edge> = Vec::new();
        let mut arriving: BTreeMap<&str, Sum> = BTreeMap::new();
        for ((source, target), sum) in &sums {
            let is_permitted = permitted.contains(&(source.clone(), target.clone()));
            // Functions that are gone keep their counters, and a call without a callee is among
            // the refused destinations.
            if !target.is_empty() && (is_permitted || sum.requests > 0 && window > 0.0) {
                let earlier = || EdgeStatus::of(since_start.get(&(source.clone(), target.clone()))?);
                let status = EdgeStatus::of(sum).or_else(earlier).unwrap_or(EdgeStatus::Unused);
                edges.push(Edge::new((source, target), status, sum, per_second));
                arriving.entry(target).or_default().add(sum);
            }
        }
        for ((source, target), count) in &refused {
            edges.push(Edge::refused((source, target), *count as f64 * per_second));
        }
        for edge in &mut edges {
            let chain = chains.get(&*edge.source).filter(|chain| chain.to.contains(&edge.target));
            edge.chain = chain.map(|chain| chain.name.clone()).unwrap_or_default();
        }
        for edge in &edges {
            for name in [&*edge.source, &*edge.target] {
                nodes.entry(name).or_insert_with(|| Node::named(name, &refused));
            }
        }
        for (name, sum) in arriving {
            if let Some(node) = nodes.get_mut(name) {
                node.traffic = Traffic::of(&sum, per_second);
            }
        }
        let nodes = nodes.into_values().collect();
        edges.sort_by(|one, other| (&one.source, &one.target).cmp(&(&other.source, &other.target)));
        Self { window, nodes, edges, missing: now.missing.clone() }
    }

    /// The part of the graph within one edge of functions that `is_wanted`.
    pub fn around(mut self, is_wanted: impl Fn(&str) -> bool) -> Self {
        self.edges.retain(|edge| is_wanted(&edge.source) || is_wanted(&edge.target));
        let ends: BTreeSet<&str> = self.edges.iter().flat_map(|edge| [&*edge.source, &*edge.target]).collect();
        self.nodes.retain(|node| is_wanted(&node.name) || ends.contains(&*node.name));
        self
    }
}

/// Counts by caller and callee.
fn sums(before: Option<&Mesh>, now: &Mesh) -> BTreeMap<(String, String), Sum> {
    let place = |edge: &Counts| (edge.node.clone(), edge.direction.clone(), edge.source.clone(), edge.target.clone());
    let known: BTreeMap<_, &Counts> =
        before.iter().flat_map(|before| &before.edges).map(|edge| (place(edge), edge)).collect();
    let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
    for edge in &now.edges {
        // The callee's node counts a refusal of a request that another node's gateway has passed on
        // as inbound, of no identity.
        let is_of_client = edge.direction == "gateway" || edge.source.is_empty();
        let source = if is_of_client { GATEWAY.to_owned() } else { workload(&edge.source) };
        // A node that has started again counts from zero.
        let before = known.get(&place(edge)).filter(|before| before.requests <= edge.requests);
        let since = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or_default());
        let sum = sums.entry((source, edge.target.clone())).or_default();
        sum.denied += since(edge.denied, before.map(|before| before.denied));
        // The caller's sidecar has counted all others.
        if edge.direction == "inbound" {
            continue;
        }
        sum.requests += since(edge.requests, before.map(|before| before.requests));
        sum.failed += since(edge.failed, before.map(|before| before.failed));
        match before {
            Some(before) => sum.latencies.add(&edge.latencies.since(&before.latencies)),
            None => sum.latencies.add(&edge.latencies),
        }
    }
    sums
}

/// Counts of refusals, by caller and destination, of those that are no callees.
fn refused(before: Option<&Mesh>, now: &Mesh) -> BTreeMap<(String, String), u64> {
    let counts = |mesh: &Mesh| {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        let is_name = |refusal: &Refusal| refusal.asked == DestinationKind::Name;
        let reached: BTreeSet<(&str, &str)> =
            mesh.refusals.iter().filter(|refusal| !is_name(refusal)).map(Refusal::place).collect();
        for refusal in &mesh.refusals {
            // Before a refused connection, its name was asked for. In a jail, the name of no callee has
            // no address, so there is no connection.
            if refusal.callee.is_none() && !(is_name(refusal) && reached.contains(&refusal.place())) {
                let host = &refusal.host;
                let host = refusal.port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
                *counts.entry((refusal.function.clone(), host)).or_default() += refusal.count;
            }
        }
        counts
    };
    let known = before.map(counts).unwrap_or_default();
    let mut refused = counts(now);
    for (place, count) in &mut refused {
        *count = count.saturating_sub(known.get(place).copied().filter(|known| known <= count).unwrap_or_default());
    }
    refused.retain(|_, count| *count > 0);
    refused
}

/// `namespace/name` of a SPIFFE ID of the mesh; others as they are.
fn workload(identity: &str) -> String {
    let named = leno_telemetry::names::workload(identity).map(|(namespace, name)| format!("{namespace}/{name}"));
    named.unwrap_or_else(|| identity.to_owned())
}

impl From<&Function> for Node {
    fn from(function: &Function) -> Self {
        Self {
            name: function.name.clone(),
            kind: if function.external { NodeKind::External } else { NodeKind::Function },
            state: if function.external { String::new() } else { function.state().to_owned() },
            failure: function.failure().to_owned(),
            ready: function.ready,
            desired: function.desired,
            waiting: function.waiting,
            hosts: function.nodes.clone(),
            chain: function.chain.as_ref().map(|chain| chain.name.clone()).unwrap_or_default(),
            shares: function.shares.clone(),
            traffic: Traffic::default(),
        }
    }
}

impl Node {
    /// A node that is no listed function.
    fn named(name: &str, refused: &BTreeMap<(String, String), u64>) -> Self {
        let is_refused = refused.keys().any(|(_, target)| target == name);
        let kind = match name {
            GATEWAY => NodeKind::Gateway,
            _ if is_refused => NodeKind::Unknown,
            _ => NodeKind::Function,
        };
        Self {
            name: name.to_owned(),
            kind,
            state: String::new(),
            failure: String::new(),
            ready: 0,
            desired: 0,
            waiting: 0,
            hosts: Vec::new(),
            chain: String::new(),
            shares: Vec::new(),
            traffic: Traffic::default(),
        }
    }
}

impl Edge {
    fn new((source, target): (&str, &str), status: EdgeStatus, sum: &Sum, per_second: f64) -> Self {
        Self {
            source: source.to_owned(),
            target: target.to_owned(),
            status,
            traffic: Traffic::of(sum, per_second),
            authenticated: source != GATEWAY,
            chain: String::new(),
        }
    }

    fn refused((source, target): (&str, &str), rate: f64) -> Self {
        Self {
            source: source.to_owned(),
            target: target.to_owned(),
            status: EdgeStatus::Refused,
            traffic: Traffic { rate, denied: rate, success: Some(0.0), ..Traffic::default() },
            authenticated: true,
            chain: String::new(),
        }
    }
}

impl Sum {
    /// The callee may have refused a request whose caller has not counted it yet.
    fn all(&self) -> u64 {
        self.requests.max(self.denied)
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.all();
        self.denied += other.denied;
        self.failed += other.failed;
        self.latencies.add(&other.latencies);
    }
}

impl Traffic {
    fn of(sum: &Sum, per_second: f64) -> Self {
        let all = sum.all();
        let good = all.saturating_sub(sum.denied + sum.failed);
        Self {
            rate: all as f64 * per_second,
            failed: sum.failed as f64 * per_second,
            denied: sum.denied as f64 * per_second,
            success: (all > 0).then(|| good as f64 / all as f64),
            p50: sum.latencies.quantile(0.5),
            p99: sum.latencies.quantile(0.99),
        }
    }
}

#[cfg(test)]
mod tests;
