//! Join tokens and cordons.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A join token to be made.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinTokenRequest {
    /// The name that the node must have; it replaces a node of that name. `null`: any name that no node has.
    #[serde(default)]
    pub node: Option<String>,
    /// The node may also be a gateway.
    #[serde(default)]
    pub gateway: bool,
    /// The node is a gateway and hosts nothing.
    #[serde(default)]
    pub only_gateway: bool,
    /// The node connects to the outside for the functions of all nodes, where the mesh has such nodes do that. Not with `onlyGateway`.
    #[serde(default)]
    pub egress: bool,
    /// IP addresses and blocks of them at which other nodes may reach the node. Empty: only the address from which it joins.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Region of the node.
    #[serde(default)]
    pub region: Option<String>,
    /// Zone of the node.
    #[serde(default)]
    pub zone: Option<String>,
    /// Thousandths of a processor that the node may offer at most; `null`: those of 1024 processors.
    #[serde(default)]
    pub max_cpu: Option<u64>,
    /// Bytes of memory that it may offer at most; `null`: 16 TiB.
    #[serde(default)]
    pub max_memory: Option<u64>,
    /// Instances that it may offer to run at most; `null`: 10,000.
    #[serde(default)]
    pub max_instances: Option<u32>,
    /// For how many seconds from now; `null`: an hour.
    #[serde(default)]
    pub lifetime: Option<u64>,
}

/// A new join token. The API shows it only once.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewJoinToken {
    /// The content of the file for `leno node --join`.
    pub token: String,
}

/// Whether a node is cordoned.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CordonRequest {
    /// The node gets no further functions and instances.
    pub cordoned: bool,
    /// Its functions move to other nodes too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
}
