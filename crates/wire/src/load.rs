//! The capacity of nodes, and the load of the functions on them.

use leno_model::FunctionId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use leno_autoscaler::Observation;

/// How long a node may use its shares after it has requested another term.
pub const TERM: Duration = Duration::from_secs(10);

/// A node's capacity for instances, or the resources of instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// Thousandths of a processor.
    pub cpu_millis: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Number of instances.
    pub instances: u32,
}

/// How many instances of one revision a node may have, and must.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Number of the revision.
    pub revision: u32,
    /// Instances at least.
    pub least: u32,
    /// Instances at most.
    pub most: u32,
}

/// The load of one revision of a function on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Name of the function.
    pub function: FunctionId,
    /// Number of the revision.
    pub revision: u32,
    /// Instances that are starting.
    pub starting: u32,
    /// Ready instances and requests. Totals count from any moment, and begin anew when the node is
    /// started again.
    pub seen: Observation,
}

/// A node's shares of the rate limits of a function. Of a limit that is not named, it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Sorted by name.
    pub shares: Vec<LimitShare>,
}

/// A share of one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitShare {
    /// Name of the limit's rule.
    pub limit: String,
    /// In `leno_policy::quota::PARTS`.
    pub parts: u32,
    /// No node has counted anything by this limit yet, so the share begins full.
    pub unused: bool,
}

/// The demand for a rate limit on a node since the node has the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDemand {
    /// Name of the function.
    pub function: FunctionId,
    /// Name of the limit's rule.
    pub limit: String,
    /// Requests that it admitted.
    pub admitted: u64,
    /// Requests that it refused.
    pub refused: u64,
}

impl Capacity {
    /// The capacity for that many instances.
    pub fn times(&self, instances: u32) -> Self {
        let times = |of: u64| of.saturating_mul(instances.into());
        Self {
            cpu_millis: times(self.cpu_millis),
            memory: times(self.memory),
            instances: self.instances.saturating_mul(instances),
        }
    }

    /// The sum of two capacities.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory: self.memory.saturating_add(other.memory),
            instances: self.instances.saturating_add(other.instances),
        }
    }

    /// The rest of a capacity, not below zero.
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory: self.memory.saturating_sub(other.memory),
            instances: self.instances.saturating_sub(other.instances),
        }
    }

    /// How many times `other` fits into this capacity.
    pub fn holds(&self, other: &Self) -> u32 {
        let times = |of: u64, one: u64| of.checked_div(one).unwrap_or(u64::MAX);
        let by_cpu = times(self.cpu_millis, other.cpu_millis);
        let by_memory = times(self.memory, other.memory);
        let by_instances = times(self.instances.into(), other.instances.into());
        by_cpu.min(by_memory).min(by_instances).try_into().unwrap_or(u32::MAX)
    }

    /// The largest share of `all` that this is, in thousandths.
    pub fn permille_of(&self, all: &Self) -> u64 {
        let share = |used: u64, all: u64| match (used, all) {
            (0, _) => 0,
            (_, 0) => u64::MAX,
            _ => used.saturating_mul(1000) / all,
        };
        let by_cpu = share(self.cpu_millis, all.cpu_millis);
        let by_memory = share(self.memory, all.memory);
        by_cpu.max(by_memory).max(share(self.instances.into(), all.instances.into()))
    }
}

/// Request counts of one revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevisionCounts {
    /// Completed requests.
    pub requests: u64,
    /// Completed requests that failed.
    pub failed: u64,
    /// Completed requests that took longer than the rollout's latency limit.
    pub slow: u64,
}
