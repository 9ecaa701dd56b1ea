//! What can be read about functions and their instances.

use leno_config::id::FunctionId;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::autoscaler::{Mode, Reason};
use crate::instance_id::InstanceId;
use crate::output::LogLine;

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Started, not ready yet.
    Starting,
    /// Gets requests.
    Ready,
    /// Gets no new requests; those it has may end.
    Draining,
    /// Was told to end.
    Stopping,
}

impl fmt::Display for InstanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
        })
    }
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceStatus {
    /// Its function.
    pub function: FunctionId,
    /// Its name.
    pub id: InstanceId,
    /// Where it is in its life.
    pub state: InstanceState,
    /// Process, and process group; `None` for external instances and components.
    pub pid: Option<u32>,
    /// Where it listens; [`leno_config::slice::IN_NODE`]: nowhere, it is a component.
    pub address: SocketAddr,
    /// Failed instances of this function before it.
    pub restarts: u32,
    /// Since when it is in this state.
    pub since: SystemTime,
}

/// One function, or one of its revisions.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionStatus {
    /// Its name.
    pub function: FunctionId,
    /// The revision that this is about; 0: nobody numbers them.
    pub revision: u32,
    /// Its instances, oldest first.
    pub instances: Vec<InstanceStatus>,
    /// Instances that failed so far.
    pub restarts: u32,
    /// Why the last one failed.
    pub last_failure: Option<String>,
    /// No instance is started for this long because of failures in a row.
    pub pause: Option<Duration>,
    /// Requests that wait for an instance.
    pub waiting: usize,
    /// Why the limits of its instances are not enforced; `None`: they are, or there are none.
    pub unenforced: Option<String>,
    /// What the autoscaler decided last.
    pub scaling: Scaling,
}

impl FunctionStatus {
    /// Instances in this state.
    pub fn count(&self, state: InstanceState) -> usize {
        self.instances.iter().filter(|instance| instance.state == state).count()
    }
}

/// How the number of a function's instances is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaling {
    /// Instances that there should be.
    pub desired: u32,
    /// By which averages.
    pub mode: Mode,
    /// What made it this number; `None`: nobody asked for an instance yet.
    pub reason: Option<Reason>,
    /// Average load over the stable window at the last decision, in the metric's unit.
    pub stable: f64,
    /// Average load over the panic window at the last decision.
    pub panic: f64,
    /// Decisions to have more instances.
    pub ups: u64,
    /// Decisions to have fewer.
    pub downs: u64,
}

/// A decision to have more instances of a function, or fewer.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleEvent {
    /// When.
    pub at: SystemTime,
    /// Which function.
    pub function: FunctionId,
    /// And which of its revisions.
    pub revision: u32,
    /// So many there should have been until then.
    pub from: u32,
    /// So many there should be from then on.
    pub to: u32,
    /// By which averages.
    pub mode: Mode,
    /// Why.
    pub reason: Reason,
}

/// Where a function's tasks write down how things are.
#[derive(Default)]
pub(crate) struct Board(Mutex<Notes>);

#[derive(Default)]
pub(crate) struct Notes {
    pub instances: BTreeMap<InstanceId, InstanceStatus>,
    pub output: BTreeMap<InstanceId, VecDeque<LogLine>>,
    /// Its output is kept until the next one ends.
    pub last_ended: Option<InstanceId>,
    pub restarts: u32,
    pub last_failure: Option<String>,
    pub resume_at: Option<tokio::time::Instant>,
    pub unenforced: Option<String>,
    pub scaling: Scaling,
    /// The last ones, oldest first.
    pub events: VecDeque<ScaleEvent>,
}

/// Scale decisions kept of each function.
const EVENTS: usize = 20;

/// Requests that begin to wait within this time are one burst.
const BURST: Duration = Duration::from_secs(1);

impl Notes {
    /// Keeps an event, and tells whether it is one of its own: what a burst asks for, request by request, is one event.
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

impl Board {
    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_state(&self, id: InstanceId, state: InstanceState) {
        if let Some(status) = self.notes().instances.get_mut(&id) {
            status.state = state;
            status.since = SystemTime::now();
        }
    }

    /// Forgets an instance, except for its output.
    pub(crate) fn ended(&self, id: InstanceId) {
        let mut notes = self.notes();
        notes.instances.remove(&id);
        if let Some(previous) = notes.last_ended.replace(id)
            && previous != id
        {
            notes.output.remove(&previous);
        }
    }

    pub(crate) fn keep_line(&self, line: LogLine, most: usize) {
        let mut notes = self.notes();
        let lines = notes.output.entry(line.instance).or_default();
        if lines.len() >= most {
            lines.pop_front();
        }
        lines.push_back(line);
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
        let mut notes = Notes::default();
        let given = [
            event(0, 0, 1, Reason::Waiting(1)),
            event(10, 1, 2, Reason::Waiting(2)),
            event(20, 2, 30, Reason::Waiting(30)),
            event(1500, 30, 31, Reason::Waiting(1)),
            event(1600, 31, 40, Reason::Minimum),
            event(1700, 40, 20, Reason::DownRate),
        ];
        let own = given.map(|event| notes.scaled(event));
        assert_eq!(own, [true, false, false, true, true, true]);
        let counts: Vec<_> = notes.events.iter().map(|event| (event.from, event.to)).collect();
        assert_eq!(counts, [(0, 30), (30, 31), (31, 40), (40, 20)]);
        assert_eq!((notes.scaling.ups, notes.scaling.downs), (3, 1));
        for at in 0..100 {
            notes.scaled(event(5000 * at, 1, 0, Reason::DownRate));
        }
        assert_eq!(notes.events.len(), EVENTS);
    }
}
