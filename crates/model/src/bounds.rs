//! Bounds of namespaces on a node.

use crate::run::Isolation;
use leno_files::{FileAccess, HostAccess, HostFolder};
use leno_policy::spec::Cidr;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The bounds of a namespace on each node, for all its functions together.
///
/// `None` is the release's default, which the methods return. Payloads omit it, so a configuration
/// without quotas is the same in all releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceBounds {
    /// Instances and processes of jobs.
    pub instances: Option<u32>,
    /// Thousandths of a core; `None`: a fair share.
    pub cpu_millis: Option<u32>,
    /// Bytes of memory; `None`: half of the machine's.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Connections; `None`: an eighth of the node's.
    pub connections: Option<u32>,
    /// Open requests.
    pub open_requests: Option<u32>,
    /// Requests that wait for an instance.
    pub waiting_requests: Option<u32>,
    /// Bytes of images and modules per second; `None`: no bound.
    pub pull_bandwidth: Option<u64>,
    /// Bytes of unpacked images; `None`: a quarter of the node's store, at least 1 GiB.
    pub image_bytes: Option<u64>,
    /// Files of unpacked images; `None`: 500,000, or less where the store's file system has few.
    pub image_files: Option<u32>,
    /// Persistent volumes.
    pub volumes: Option<u32>,
    /// Bytes that persistent volumes may hold.
    pub volume_bytes: Option<u64>,
    /// Bytes of log per second.
    pub log_bandwidth: Option<u64>,
    /// The weakest permitted isolation of instances.
    pub isolation: Option<Isolation>,
    /// Folders with the files that documents may name; `None`: any file.
    pub files: Option<Vec<PathBuf>>,
    /// Folders of nodes that programs may have; `None`: any folder.
    pub host_paths: Option<Vec<HostFolder>>,
    /// Special addresses from which nodes may fetch for documents; `None`: all.
    pub egress: Option<Vec<Cidr>>,
    /// Addresses of metadata services that documents may name as destinations; `None`: all.
    pub metadata: Option<Vec<Cidr>>,
}

impl NamespaceBounds {
    /// The files that the namespace's documents may name.
    pub fn file_access(&self) -> FileAccess {
        self.files.clone().map_or(FileAccess::Any, FileAccess::Beneath)
    }

    /// The folders of nodes that the namespace's programs may have.
    pub fn host_access(&self) -> HostAccess {
        self.host_paths.clone().map_or(HostAccess::Any, HostAccess::Listed)
    }

    /// Instances and processes of jobs.
    pub fn instances(&self) -> u32 {
        self.instances.unwrap_or(500)
    }

    /// Processes and threads.
    pub fn pids(&self) -> u32 {
        self.pids.unwrap_or(4096)
    }

    /// Open requests.
    pub fn open_requests(&self) -> u32 {
        self.open_requests.unwrap_or(4096)
    }

    /// Requests that wait for an instance.
    pub fn waiting_requests(&self) -> u32 {
        self.waiting_requests.unwrap_or(1024)
    }

    /// Persistent volumes.
    pub fn volumes(&self) -> u32 {
        self.volumes.unwrap_or(16)
    }

    /// Bytes that persistent volumes may hold.
    pub fn volume_bytes(&self) -> u64 {
        self.volume_bytes.unwrap_or(64 << 30)
    }

    /// Bytes of log per second.
    pub fn log_bandwidth(&self) -> u64 {
        self.log_bandwidth.unwrap_or(1 << 20)
    }
}
