//! The status of functions and their instances.

use leno_model::{FunctionId, InstanceState, Output, OutputLine, OutputQuery};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use crate::container::{ContainerSpec, ImageState};
use crate::instance_id::InstanceId;
use crate::output::OutputBuffer;
use leno_autoscaler::{Mode, Reason};

/// How the processes of an instance are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// They are in a jail.
    Strict,
    /// They are processes of the machine like any other.
    Process,
}

/// The status of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceStatus {
    /// Function of the instance.
    pub function: FunctionId,
    /// ID of the instance.
    pub id: InstanceId,
    /// Lifecycle state.
    pub state: InstanceState,
    /// Process ID, which is also the process group's; `None` for external instances and components, and while it waits for its image.
    pub pid: Option<u32>,
    /// How its processes are kept apart; `None` for external instances and components, and while it waits for its image.
    pub isolation: Option<Isolation>,
    /// Address on which it listens. In a jail it listens on 127.0.0.1 and this port; the address
    /// names it, and leads nowhere. A component does not listen and has [`leno_model::IN_NODE`].
    pub address: SocketAddr,
    /// Number of instances of this function that failed before this one.
    pub restarts: u32,
    /// When it entered this state.
    pub since: SystemTime,
    /// Why it does not serve any more, if it was ready before.
    pub lost: Option<String>,
}

/// The status of one function, or of one of its revisions.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionStatus {
    /// Name of the function.
    pub function: FunctionId,
    /// Number of the revision; 0: revisions are not numbered.
    pub revision: u32,
    /// Its instances, oldest first.
    pub instances: Vec<InstanceStatus>,
    /// Ready instances of former revisions, by revision. They serve until those of this one are
    /// ready.
    pub former: BTreeMap<u32, u32>,
    /// Number of instances that failed so far.
    pub restarts: u32,
    /// Number of instances that were ready and were replaced, because they did not serve any more.
    pub lost: u64,
    /// Why the last instance failed.
    pub last_failure: Option<String>,
    /// Number of instances that have failed since one was ready.
    pub failing: u32,
    /// Time until the next start, after consecutive failures; `None`: there is no pause.
    pub pause: Option<Duration>,
    /// Number of requests that wait for an instance.
    pub waiting: usize,
    /// Why resource limits are not enforced; `None`: they are, or there are none.
    pub unenforced: Option<String>,
    /// The autoscaler's last decision.
    pub scaling: Scaling,
}

/// The load of one function, or of one of its revisions.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionLoad {
    /// Name of the function.
    pub function: FunctionId,
    /// Number of the revision; 0: revisions are not numbered.
    pub revision: u32,
    /// Ready instances.
    pub ready: u32,
    /// Instances that are starting.
    pub starting: u32,
    /// Requests that instances are handling.
    pub in_flight: u32,
    /// Requests that wait for an instance.
    pub waiting: u32,
    /// Seconds that all requests so far have spent waiting or being handled, in total.
    pub request_seconds: f64,
    /// Number of requests so far.
    pub requests: u64,
}

impl FunctionStatus {
    /// Number of instances in this state.
    pub fn count(&self, state: InstanceState) -> usize {
        self.instances.iter().filter(|instance| instance.state == state).count()
    }
}

/// The autoscaler's last decision on a function, and how many it has made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaling {
    /// Number of instances that there should be.
    pub desired: u32,
    /// The autoscaler's mode.
    pub mode: Mode,
    /// What determined the number; `None`: no request has needed an instance yet.
    pub reason: Option<Reason>,
    /// Average load over the stable window at the last decision, in the metric's unit.
    pub stable: f64,
    /// Average load over the panic window at the last decision, in the metric's unit.
    pub panic: f64,
    /// Decisions to scale up.
    pub ups: u64,
    /// Decisions to scale down.
    pub downs: u64,
}

/// A decision to scale a function up or down.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleEvent {
    /// When the decision was made.
    pub at: SystemTime,
    /// Name of the function.
    pub function: FunctionId,
    /// Number of its revision; 0: revisions are not numbered.
    pub revision: u32,
    /// Number of instances that there should have been before.
    pub from: u32,
    /// Number of instances that there should be from then on.
    pub to: u32,
    /// The autoscaler's mode.
    pub mode: Mode,
    /// What determined the number.
    pub reason: Reason,
}

/// An instance failed, or did not serve any more.
#[derive(Clone, Debug, PartialEq)]
pub struct LossEvent {
    /// When that was found.
    pub at: SystemTime,
    /// Name of the function.
    pub function: FunctionId,
    /// ID of the instance.
    pub instance: InstanceId,
    /// The instance runs, was ready and does not serve any more. Otherwise it has ended, or could
    /// not be started.
    pub unhealthy: bool,
    /// The reason why the instance does not serve.
    pub reason: String,
}

/// The status that a function's tasks write and others read.
#[derive(Default)]
pub(crate) struct StatusStore(Mutex<StatusRecord>);

#[derive(Default)]
pub(crate) struct StatusRecord {
    pub instances: BTreeMap<InstanceId, InstanceStatus>,
    /// The revision that the function's task has applied.
    pub applied: u32,
    /// Instances with a lower number run a program that is being replaced.
    pub first_current: u64,
    pub output: BTreeMap<InstanceId, OutputBuffer>,
    /// The instance that ended last. Its output is kept until another one ends.
    pub last_ended: Option<InstanceId>,
    pub restarts: u32,
    pub lost: u64,
    pub last_failure: Option<String>,
    pub failing: u32,
    pub resume_at: Option<tokio::time::Instant>,
    pub unenforced: Option<String>,
    pub scaling: Scaling,
    /// The container spec, if its instances are containers.
    pub container: Weak<ContainerSpec>,
    /// The last scale decisions, oldest first.
    pub events: VecDeque<ScaleEvent>,
    /// The last instances that failed or did not serve any more, oldest first.
    pub losses: VecDeque<LossEvent>,
}

/// Number of losses that are kept of each function.
const LOSSES: usize = 20;

/// Number of scale decisions that are kept of each function.
const EVENTS: usize = 20;

/// Requests that begin to wait within this time of each other are one burst.
const BURST: Duration = Duration::from_secs(1);

impl StatusRecord {
    /// Ready instances of revisions that `revision` replaces, by revision.
    pub(crate) fn former(&self, revision: u32) -> BTreeMap<u32, u32> {
        let is_former = |status: &&InstanceStatus| {
            let is_replaced = self.applied != revision || status.id.number < self.first_current;
            status.state == InstanceState::Ready && status.id.revision != revision && is_replaced
        };
        let mut former = BTreeMap::new();
        for status in self.instances.values().filter(is_former) {
            *former.entry(status.id.revision).or_default() += 1;
        }
        former
    }

    pub(crate) fn record_loss(&mut self, event: LossEvent) {
        if self.losses.len() >= LOSSES {
            self.losses.pop_front();
        }
        self.losses.push_back(event);
    }

    /// Records an event. Returns false if it was merged into the last one: the decisions of one burst, request by request, are one event.
    pub(crate) fn scaled(&mut self, event: ScaleEvent) -> bool {
        let more = |reason| matches!(reason, Reason::Waiting(_) | Reason::UpRate);
        if let Some(last) = self.events.back_mut()
            && last.to < event.to
            && more(last.reason)
            && more(event.reason)
            && event.at.duration_since(last.at).is_ok_and(|time| time < BURST)
        {
            *last = ScaleEvent { at: last.at, from: last.from, ..event };
            return false;
        }
        let count = if event.to > event.from { &mut self.scaling.ups } else { &mut self.scaling.downs };
        *count += 1;
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
        true
    }
}

impl StatusStore {
    pub(crate) fn lock(&self) -> MutexGuard<'_, StatusRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the image of its instances; `None`: they are no containers.
    pub(crate) fn image(&self) -> Option<ImageState> {
        // Not under the lock.
        let container = self.lock().container.upgrade()?;
        Some(container.state())
    }

    /// Sets the container spec of its instances.
    pub(crate) fn set_container(&self, container: Option<&Arc<ContainerSpec>>) {
        self.lock().container = container.map(Arc::downgrade).unwrap_or_default();
    }

    pub(crate) fn set_state(&self, id: InstanceId, state: InstanceState) {
        let mut record = self.lock();
        if let Some(status) = record.instances.get_mut(&id) {
            status.state = state;
            status.since = SystemTime::now();
        }
        if state == InstanceState::Ready {
            record.failing = 0;
        }
    }

    /// Records that an instance does not serve any more.
    pub(crate) fn lose(&self, function: &FunctionId, id: InstanceId, reason: &str) {
        self.set_state(id, InstanceState::Unhealthy);
        let mut record = self.lock();
        if let Some(status) = record.instances.get_mut(&id) {
            status.lost = Some(reason.to_owned());
        }
        record.lost += 1;
        let (function, reason) = (function.clone(), reason.to_owned());
        record.record_loss(LossEvent { at: SystemTime::now(), function, instance: id, unhealthy: true, reason });
    }

    /// Removes an instance. Its output is kept until another one ends.
    pub(crate) fn ended(&self, id: InstanceId) {
        let mut record = self.lock();
        record.instances.remove(&id);
        if let Some(previous) = record.last_ended.replace(id)
            && previous != id
        {
            record.output.remove(&previous);
        }
    }

    pub(crate) fn keep_line(&self, instance: InstanceId, line: OutputLine, most: usize) {
        let mut record = self.lock();
        let at = line.at;
        record.output.entry(instance).or_insert_with(|| OutputBuffer::new(at)).push(line, most);
    }

    /// Reads further output of the instances that the query names.
    pub(crate) fn read(&self, query: &OutputQuery, output: &mut Output) {
        let record = self.lock();
        for (id, kept) in &record.output {
            let is_previous = !query.previous || record.last_ended == Some(*id);
            if is_previous && query.instance.is_none_or(|number| number == id.number) {
                kept.read(id.number, query, output);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_burst_asks_for_is_one_event() {
        let begin = SystemTime::now();
        let function = FunctionId::new("orders", "burst").unwrap();
        let event = |millis, from, to, reason| {
            let at = begin + Duration::from_millis(millis);
            ScaleEvent { at, function: function.clone(), revision: 1, from, to, mode: Mode::Panic, reason }
        };
        let mut record = StatusRecord::default();
        let given = [
            event(0, 0, 1, Reason::Waiting(1)),
            event(10, 1, 2, Reason::Waiting(2)),
            event(20, 2, 30, Reason::Waiting(30)),
            event(1500, 30, 31, Reason::Waiting(1)),
            event(1600, 31, 40, Reason::Minimum),
            event(1700, 40, 20, Reason::DownRate),
        ];
        let own = given.map(|event| record.scaled(event));
        assert_eq!(own, [true, false, false, true, true, true]);
        let counts: Vec<_> = record.events.iter().map(|event| (event.from, event.to)).collect();
        assert_eq!(counts, [(0, 30), (30, 31), (31, 40), (40, 20)]);
        assert_eq!((record.scaling.ups, record.scaling.downs), (3, 1));
        for at in 0..100 {
            record.scaled(event(5000 * at, 1, 0, Reason::DownRate));
        }
        assert_eq!(record.events.len(), EVENTS);
    }
}
