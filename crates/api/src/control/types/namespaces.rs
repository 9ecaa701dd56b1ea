//! Quotas of namespaces.

use leno_model::NamespaceBounds;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The use that a namespace makes of its quota. `functions`, `rules` and `documentBytes` are those of its documents.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceStatus {
    /// The namespace.
    pub namespace: String,
    /// Functions, jobs and External documents.
    pub functions: Share,
    /// Instances that run on all nodes.
    pub instances: u64,
    /// Rules of policies, each once for every function that it applies to.
    pub rules: Share,
    /// Bytes of documents.
    pub document_bytes: Share,
    /// Values of stored secrets.
    #[serde(default)]
    pub secrets: Share,
    /// Bytes of these values.
    #[serde(default)]
    pub secret_bytes: Share,
    /// Documents of the Gateway API.
    #[serde(default)]
    pub routes: Share,
    /// Matches of the rules of routes, each once for every hostname and parent.
    #[serde(default)]
    pub route_matches: Share,
    /// Hosts that are its own; `null`: any that no other namespace has.
    pub hosts: Option<Vec<String>>,
    /// Engines of its functions; `null`: any.
    pub engines: Option<Vec<String>>,
    /// The bounds that each node enforces.
    pub node: NodeBounds,
}

/// A use beside its bound.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// The use.
    pub used: u64,
    /// The bound.
    pub bound: u64,
}

impl Share {
    pub(crate) fn new(used: u64, bound: impl Into<u64>) -> Self {
        Self { used, bound: bound.into() }
    }
}

/// The bounds that each node enforces for a namespace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBounds {
    /// Instances and processes of jobs.
    pub instances: u32,
    /// Thousandths of a core; `null`: a fair share.
    pub cpu_millis: Option<u32>,
    /// Bytes of memory; `null`: half of the machine's.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: u32,
    /// Connections; `null`: an eighth of those that the node may have.
    pub connections: Option<u32>,
    /// Requests that are open at a time.
    pub open_requests: u32,
    /// Requests that wait for an instance at a time.
    pub waiting_requests: u32,
    /// Bytes of images and modules a second; `null`: no bound.
    pub pull_bandwidth: Option<u64>,
    /// Bytes of unpacked images; `null`: a quarter of the node's image store, at least 1Gi.
    pub image_bytes: Option<u64>,
    /// Files and folders of unpacked images; `null`: 500000, or less where the node's file system has few.
    pub image_files: Option<u32>,
    /// Bytes of log a second.
    pub log_bandwidth: u64,
    /// Folders below which files of the nodes are opened; `null`: none.
    pub files: Option<Vec<String>>,
}

impl From<&NamespaceBounds> for NodeBounds {
    fn from(bounds: &NamespaceBounds) -> Self {
        Self {
            instances: bounds.instances(),
            cpu_millis: bounds.cpu_millis,
            memory_bytes: bounds.memory,
            pids: bounds.pids(),
            connections: bounds.connections,
            open_requests: bounds.open_requests(),
            waiting_requests: bounds.waiting_requests(),
            pull_bandwidth: bounds.pull_bandwidth,
            image_bytes: bounds.image_bytes,
            image_files: bounds.image_files,
            log_bandwidth: bounds.log_bandwidth(),
            files: bounds.files.as_ref().map(|files| files.iter().map(|path| path.display().to_string()).collect()),
        }
    }
}
