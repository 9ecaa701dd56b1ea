//! One look at a mesh: its functions, and counts since each node started.

use leno_telemetry::destinations::DestinationKind;
use leno_telemetry::metrics::Edge;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::time::Instant;

/// The answers of nodes and control plane at one moment.
#[derive(Clone, Debug)]
pub struct Mesh {
    /// When they were asked.
    pub at: Instant,
    /// Functions and external services.
    pub functions: Vec<Function>,
    /// Exchanges by caller and callee.
    pub edges: Vec<Edge>,
    /// Refusals of destinations.
    pub refusals: Vec<Refusal>,
    /// Nodes that did not answer, and why.
    pub missing: Vec<String>,
}

/// A destination that a function was refused, as `/destinations` of a node or `/v1/destinations` of a
/// control plane lists it. Methods and paths are left out, since looks are kept.
#[derive(Clone, Debug, Deserialize)]
pub struct Refusal {
    /// The function that asked: `namespace/name`.
    pub function: String,
    /// How the function tried to reach it.
    pub asked: DestinationKind,
    /// Host or address.
    pub host: String,
    /// Port; `None`: the function only looked its name up.
    pub port: Option<u16>,
    /// The callee, if the function may call it, but its policies refused.
    pub callee: Option<String>,
    /// How often it was refused.
    pub count: u64,
}

impl Refusal {
    /// Who asked, and for which host.
    pub(crate) fn place(&self) -> (&str, &str) {
        (&self.function, &self.host)
    }
}

impl Mesh {
    /// Forgets all but counts: rates are differences of them alone.
    pub(crate) fn keep_counts(&mut self) {
        (self.functions, self.missing) = Default::default();
    }

    /// Number of counts.
    pub(crate) fn counts(&self) -> usize {
        self.edges.len() + self.refusals.len()
    }
}

/// A function or an external service, as `/functions` of a node or `/v1/functions` of a control
/// plane describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Function {
    /// `namespace/name`.
    #[serde(rename = "function")]
    pub name: String,
    /// `ready`, `idle`, `starting`, `failing`, `failed` or `unplaced`; empty: a node answered, which
    /// knows only its own instances.
    #[serde(default)]
    state: String,
    /// Why its instances fail, of a node.
    #[serde(default, deserialize_with = "text_or_null")]
    failure: String,
    /// Why its instances fail, of a control plane; of a node, why there are so many.
    #[serde(default, deserialize_with = "text_or_null")]
    reason: String,
    /// Instances that get requests.
    #[serde(default)]
    pub ready: u64,
    /// Those among them that are of a former revision, of a node.
    #[serde(default)]
    former: u64,
    /// Instances that there should be.
    #[serde(default)]
    pub desired: u64,
    /// Requests that wait for an instance.
    #[serde(default)]
    pub waiting: u64,
    /// The functions and external services that it may call.
    #[serde(default)]
    pub callees: Vec<String>,
    /// Its chain; `None`: none.
    #[serde(default)]
    pub chain: Option<ChainMember>,
    /// Its revisions, if several are to get requests or serve them.
    #[serde(default)]
    pub shares: Vec<RevisionShare>,
    /// Whether the gateway has a route to it.
    #[serde(default, deserialize_with = "any")]
    pub exposed: bool,
    /// Whether it is an external service.
    #[serde(default)]
    pub external: bool,
    /// The nodes that host it.
    #[serde(default, deserialize_with = "texts_or_null")]
    pub nodes: Vec<String>,
}

/// The place of a function in a chain, whose members share memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainMember {
    /// The chain: `namespace/name`.
    pub name: String,
    /// The callees whose calls go through shared memory.
    pub to: Vec<String>,
}

/// The share of a function's requests that a revision has, in per cent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionShare {
    /// The revision: `shop-00004 (stable)`.
    pub revision: String,
    /// The share that it is to get.
    pub percent: u64,
    /// The share that its instances serve.
    pub served: u64,
}

impl Function {
    /// Its state. A node, which knows only its own instances, does not name it.
    pub fn state(&self) -> &str {
        match &*self.state {
            "" if self.external => "external",
            "" if self.ready > self.former => "ready",
            "" if !self.failure.is_empty() => "failing",
            "" if self.desired > 0 => "starting",
            "" => "idle",
            state => state,
        }
    }

    /// Why its instances fail; empty: they do not.
    pub fn failure(&self) -> &str {
        if self.state.is_empty() { &self.failure } else { &self.reason }
    }
}

/// A boolean, or a list that may be empty.
fn any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Value::deserialize(deserializer).map(|value| value == true || value.as_array().is_some_and(|list| !list.is_empty()))
}

fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn texts_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
