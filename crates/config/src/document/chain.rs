//! `kind: Chain`.

use super::value::{ApiVersion, Metadata};
use leno_model::size::Size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Functions that share memory where they are on one node, so that the bodies of their calls are
/// not copied. Only instances of its chain can read an instance's memory, and of those only the
/// ones that got a message out of it. A chain grants no permission: callees and authorization rules
/// do, as always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chain {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `Chain`.
    pub kind: ChainKind,
    /// Name of the chain. All of its functions are of its namespace.
    pub metadata: Metadata,
    /// Which functions it has.
    pub spec: ChainSpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChainKind {
    /// `Chain`.
    Chain,
}

/// Which functions a chain has, and whose calls go through memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChainSpec {
    /// The function that gets the calls from outside of the chain. No other function of the chain
    /// may be exposed, or be a callee of a function outside the chain.
    pub entry: String,
    /// Memory of each instance with `protocol: chain`, for each direction: its own messages, and
    /// the node's messages for it. 64Ki to 1Gi, a multiple of 4Ki. A change of it starts new
    /// instances.
    #[serde(default = "memory")]
    #[schemars(extend("default" = "16Mi"))]
    pub memory: Size,
    /// Asks the kernel for large pages: fewer page faults for large bodies, and memory is taken 2Mi
    /// at a time. `memory` is a multiple of 2Mi. A change of it starts new instances. [Where the
    /// kernel gives them](../chains.md#memory).
    #[serde(default)]
    pub large_pages: bool,
    /// Lets the kernel judge calls whose rules depend only on caller and callee: they go from
    /// function to function without a sidecar. They leave no record, and scaling sees an open
    /// channel as one request. [Which calls that are](../chains.md#direct).
    #[serde(default)]
    pub direct: bool,
    /// Its functions. Each is in no other chain.
    pub functions: Vec<ChainMember>,
}

fn memory() -> Size {
    Size::from_mib(16)
}

/// A function of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainMember {
    /// Its name. It has a `command` or an `image`. With a `protocol` other than `chain` calls to it
    /// go over HTTP as before, and the node copies its bodies once.
    pub name: String,
    /// Functions of the chain to which its calls go through memory. They are among its `callees`.
    /// Its other calls go over HTTP.
    #[serde(default)]
    pub to: Vec<String>,
}
