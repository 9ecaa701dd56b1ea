//! The number of instances of another process of this node, so that this process starts as many
//! before it takes over.

use leno_model::{FunctionId, InstanceState, Run};
use leno_supervisor::{FunctionSpec, FunctionStatus, Supervisor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ready instances of one revision.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ready {
    function: String,
    revision: u32,
    instances: u32,
}

/// The number of instances of each revision that should be ready. Cheap to clone; clones share one
/// state.
#[derive(Clone, Default)]
pub(crate) struct Warm(Arc<Mutex<HashMap<(FunctionId, u32), u32>>>);

/// The ready instances of this process that have processes.
pub(crate) fn ready(supervisor: &Supervisor) -> Vec<Ready> {
    let of = |status: FunctionStatus| {
        let started = status.instances.iter().filter(|instance| instance.pid.is_some());
        let instances = started.filter(|instance| instance.state == InstanceState::Ready).count();
        let instances = u32::try_from(instances).unwrap_or(u32::MAX);
        (instances > 0).then(|| Ready { function: status.function.to_string(), revision: status.revision, instances })
    };
    supervisor.status().into_iter().filter_map(of).collect()
}

impl Warm {
    /// Requests these instances.
    pub(crate) fn want(&self, ready: Vec<Ready>) {
        let wanted = ready.into_iter().filter_map(|Ready { function, revision, instances }| {
            Some(((function.parse::<FunctionId>().ok()?, revision), instances))
        });
        self.lock().extend(wanted);
    }

    /// From now on, functions scale by their load alone.
    pub(crate) fn enough(&self) {
        self.lock().clear();
    }

    /// Raises a function's start to as many instances as are wanted, up to its maximum. A function
    /// with a volume for one instance gets none: the instance of the other process has the volume.
    pub(crate) fn raise(&self, mut spec: FunctionSpec) -> FunctionSpec {
        if let Some(wanted) = self.lock().get_mut(&(spec.id.clone(), spec.revision)) {
            let waits = matches!(&spec.run, Run::Command(command) if command.sole_volume().is_some());
            *wanted = if waits { 0 } else { (*wanted).min(spec.scale.max) };
            spec.scale.initial = spec.scale.initial.max(*wanted);
        }
        spec
    }

    /// Describes the functions that are not ready yet, and why; `None`: all are.
    pub(crate) fn missing(&self, supervisor: &Supervisor) -> Option<String> {
        let wanted = self.lock();
        let statuses = if wanted.is_empty() { Vec::new() } else { supervisor.status() };
        let lacks = |status: &FunctionStatus| {
            let wanted = *wanted.get(&(status.function.clone(), status.revision))?;
            let ready = status.count(InstanceState::Ready);
            if ready >= wanted as usize {
                return None;
            }
            let why = status.last_failure.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            Some(format!("{} has {ready} of {wanted} instances{why}", status.function))
        };
        statuses.iter().find_map(lacks)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(FunctionId, u32), u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
