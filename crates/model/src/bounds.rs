//! The bounds of namespaces that nodes enforce.

use crate::run::Isolation;
use leno_files::FileAccess;
use leno_policy::spec::Cidr;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The bounds of a function's namespace that nodes enforce. Each node enforces them for itself, for all functions of the namespace together.
///
/// `None` is the release's default, which the methods give. It is left out of payloads, so configurations without quotas are the same in all releases.
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
    /// Connections; `None`: an eighth of those that the node may have.
    pub connections: Option<u32>,
    /// Requests that are open at a time.
    pub open_requests: Option<u32>,
    /// Requests that wait for an instance at a time.
    pub waiting_requests: Option<u32>,
    /// Bytes of images and modules a second; `None`: no bound.
    pub pull_bandwidth: Option<u64>,
    /// Bytes of unpacked images; `None`: a quarter of the node's store, at least 1 GiB.
    pub image_bytes: Option<u64>,
    /// Files of unpacked images; `None`: 500,000, or less where the store's file system has few.
    pub image_files: Option<u32>,
    /// Bytes of log a second.
    pub log_bandwidth: Option<u64>,
    /// What instances have to be kept apart by at least.
    pub isolation: Option<Isolation>,
    /// Folders below which the node opens files that documents name; `None`: any file.
    pub files: Option<Vec<PathBuf>>,
    /// Special addresses from which nodes fetch what documents name; `None`: all.
    pub egress: Option<Vec<Cidr>>,
    /// Addresses of metadata services that documents name for nodes to connect to; `None`: all.
    pub metadata: Option<Vec<Cidr>>,
}

impl NamespaceBounds {
    /// The files that documents of the namespace may name.
    pub fn file_access(&self) -> FileAccess {
        self.files.clone().map_or(FileAccess::Any, FileAccess::Beneath)
    }

    /// Instances and processes of jobs.
    pub fn instances(&self) -> u32 {
        self.instances.unwrap_or(500)
    }

    /// Processes and threads.
    pub fn pids(&self) -> u32 {
        self.pids.unwrap_or(4096)
    }

    /// Requests that are open at a time.
    pub fn open_requests(&self) -> u32 {
        self.open_requests.unwrap_or(4096)
    }

    /// Requests that wait for an instance at a time.
    pub fn waiting_requests(&self) -> u32 {
        self.waiting_requests.unwrap_or(1024)
    }

    /// Bytes of log a second.
    pub fn log_bandwidth(&self) -> u64 {
        self.log_bandwidth.unwrap_or(1 << 20)
    }
}
