//! The index of a cluster: enrolled pods, workloads, and nodes.

mod changes;
mod follow;
mod function;
mod labels;
mod left_alone;
mod node;
mod pod;
mod state;
mod workload;

pub use changes::Changes;
pub use follow::{ClusterCounts, follow};
pub use labels::NamespaceObject;
pub use left_alone::LeftAlone;
pub use node::{Node, NodeObject};
pub use pod::PodObject;
pub use state::{Event, Index};
pub use workload::Workload;
