//! The index of a cluster: enrolled pods, workloads, nodes, and Services with their endpoints.

mod changes;
mod destinations;
mod endpoint;
mod follow;
mod function;
mod labels;
mod node;
mod pod;
mod pool;
mod service;
mod services;
mod state;
mod uncaptured;
mod workload;

pub use changes::Changes;
pub use endpoint::{Conditions, Endpoint, EndpointPlace, EndpointPort, EndpointSliceObject};
pub use follow::{ClusterCounts, follow};
pub use labels::NamespaceObject;
pub use node::{Node, NodeObject};
pub use pod::PodObject;
pub use service::{Protocol, Service, ServiceKind, ServiceObject, ServicePort, TargetPort, TrafficDistribution};
pub use services::{EndpointKey, ServiceChanges};
pub use state::{Event, Index};
pub use uncaptured::{PodFault, UncapturedReason};
pub use workload::Workload;
