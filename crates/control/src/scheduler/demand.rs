//! The demand of a function for nodes.

use leno_wire::Capacity;

/// The inputs of a function's placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The resources of one instance. Those that the document omits count as none.
    pub instance: Capacity,
    /// The image of its instances, by name with digest.
    pub image: Option<String>,
    /// Minimum number of instances.
    pub least: u32,
    /// Number of instances for its load.
    pub desired: u32,
    /// Whether all instances must be on one node.
    pub single: bool,
    /// The only node that can have the function: it keeps its volumes.
    pub only: Option<String>,
    /// Its instances keep state, so rebalancing leaves it on its nodes.
    pub stateful: bool,
    pub jails: JailUse,
}

/// The need of an instance for its node's jails, from little to much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JailUse {
    #[default]
    Nothing,
    /// Its port is fixed: a node without jails has one instance.
    FixedPort,
    /// Its port is fixed, and it is in no jail: each node has one instance.
    SharedPort,
    /// A node without jails has none.
    Required,
}
