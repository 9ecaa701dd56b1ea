//! The capacity that this node offers to a control plane that places functions on it, the bounds
//! within which it scales them, and the demand for its shares of their rate limits.

use leno_model::FunctionId;
use leno_model::Scale;
use leno_proxy::limits::{NodeLimits, Tally};
use leno_supervisor::{FunctionSpec, Supervisor};
use leno_wire::{Bounds, Capacity, LimitDemand, Load, Observation};
use std::collections::HashMap;

/// Maximum number of instances without a configured limit: each takes processes, sockets and a
/// jail, even when idle.
const INSTANCES: u32 = 250;

/// All of this machine: its processors, its memory, and 250 instances. A node that shares its
/// machine should offer less.
pub fn whole_machine() -> std::io::Result<Capacity> {
    let processors = std::thread::available_parallelism()?.get();
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let kilobytes: u64 = total.and_then(|total| total.parse().ok()).ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(Capacity { cpu_millis: 1000 * processors as u64, memory: kilobytes << 10, instances: INSTANCES })
}

/// The bounds that the control plane has delivered, by function.
#[derive(Default)]
pub(crate) struct DeliveredBounds {
    bounds: HashMap<FunctionId, Vec<Bounds>>,
    /// The scheduler places functions here, so functions without bounds get no instances.
    required: bool,
}

impl DeliveredBounds {
    pub(crate) fn set(&mut self, id: FunctionId, bounds: Vec<Bounds>) {
        self.bounds.insert(id, bounds);
    }

    pub(crate) fn require(&mut self, required: bool) {
        self.required = required;
    }

    pub(crate) fn remove(&mut self, id: &FunctionId) {
        self.bounds.remove(id);
    }

    /// Whether a function has left this node: the control plane says that it has no bounds. One
    /// whose bounds are 0, or have not come yet, may be about to get instances.
    pub(crate) fn has_left(&self, id: &FunctionId) -> bool {
        self.bounds.get(id).is_some_and(Vec::is_empty)
    }

    /// Limits the instances of a function on this node. A revision without bounds from the
    /// scheduler gets no instances. Without a scheduler, functions scale by themselves.
    pub(crate) fn limit(&self, mut spec: FunctionSpec) -> FunctionSpec {
        let bounds = match self.bounds.get(&spec.id) {
            Some(bounds) => bounds.as_slice(),
            None if self.required => &[],
            None => return spec,
        };
        let own = bounds.iter().find(|bounds| bounds.revision == spec.revision);
        let (least, most) = own.map_or((0, 0), |bounds| (bounds.least, bounds.most));
        let Scale { max, initial, .. } = spec.scale;
        let max = max.min(most);
        // The initial scale applies to the whole mesh, and only its minimum is divided between
        // nodes.
        let initial = if least == 0 { 0 } else { initial.min(least) };
        spec.scale = Scale { min: least.min(max), max, initial, ..spec.scale };
        spec
    }
}

/// The last report of each revision's load.
#[derive(Default)]
pub(crate) struct ReportedLoads(HashMap<(FunctionId, u32), Load>);

impl ReportedLoads {
    /// The loads of the revisions for which anything has changed. Idle functions cost next to
    /// nothing.
    pub(crate) fn changed(&mut self, supervisor: &Supervisor) -> Vec<Load> {
        let loads = supervisor.loads().into_iter().map(|load| Load {
            function: load.function,
            revision: load.revision,
            starting: load.starting,
            seen: Observation {
                ready: load.ready,
                in_flight: load.in_flight,
                waiting: load.waiting,
                request_seconds: load.request_seconds,
                requests: load.requests,
            },
        });
        let mut now = HashMap::new();
        let mut changed = Vec::new();
        for load in loads {
            let key = (load.function.clone(), load.revision);
            if self.0.get(&key) != Some(&load) {
                changed.push(load.clone());
            }
            now.insert(key, load);
        }
        self.0 = now;
        changed
    }
}

/// The last report of the demand for leased rate limits.
#[derive(Default)]
pub(crate) struct ReportedDemands(HashMap<(FunctionId, Box<str>), Tally>);

impl ReportedDemands {
    /// The limits for which requests have asked since the last report.
    pub(crate) fn changed(&mut self, counted: &NodeLimits) -> Vec<LimitDemand> {
        let mut changed = Vec::new();
        let mut now = HashMap::new();
        for (function, limit, tally) in counted.tallies() {
            let key = (function, limit);
            if self.0.get(&key).copied().unwrap_or_default() != tally {
                let Tally { admitted, refused } = tally;
                changed.push(LimitDemand { function: key.0.clone(), limit: key.1.to_string(), admitted, refused });
            }
            now.insert(key, tally);
        }
        self.0 = now;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_model::{AppProtocol, Run};

    fn spec(revision: u32) -> FunctionSpec {
        FunctionSpec {
            id: "demo/shop".parse().unwrap(),
            revision,
            run: Run::External(Vec::new()),
            container: None,
            files: leno_files::FileAccess::Any,
            host_access: leno_files::HostAccess::Any,
            volumes: leno_supervisor::VolumeBounds { count: 16, bytes: 1 << 30 },
            protocol: AppProtocol::Http1,
            chain: None,
            concurrency: 1,
            queue: 10,
            scale: Scale { min: 2, max: 10, initial: 4, ..Scale::default() },
        }
    }

    fn scale(bounds: &DeliveredBounds, revision: u32) -> (u32, u32, u32) {
        let scale = bounds.limit(spec(revision)).scale;
        (scale.min, scale.max, scale.initial)
    }

    #[test]
    fn bounds_limit_the_revisions_that_they_name_and_no_other_has_an_instance() {
        let mut bounds = DeliveredBounds::default();
        assert_eq!(scale(&bounds, 1), (2, 10, 4), "without bounds it scales by itself");
        bounds.set(spec(1).id, vec![Bounds { revision: 1, least: 1, most: 3 }]);
        assert_eq!(scale(&bounds, 1), (1, 3, 1));
        assert_eq!(scale(&bounds, 2), (0, 0, 0));
        bounds.set(spec(1).id, vec![Bounds { revision: 1, least: 0, most: 99 }]);
        assert_eq!(scale(&bounds, 1), (0, 10, 0), "the maximum of the function holds whatever the bounds say");
        bounds.remove(&spec(1).id);
        assert_eq!(scale(&bounds, 1), (2, 10, 4));
        bounds.require(true);
        assert_eq!(scale(&bounds, 1), (0, 0, 0));
    }

    #[test]
    fn the_machine_has_something_to_offer() {
        let all = whole_machine().unwrap();
        assert!(all.cpu_millis >= 1000 && all.memory > 1 << 26 && all.instances == INSTANCES, "{all:?}");
    }
}
