//! What can be read about functions and their instances.

use leno_config::id::FunctionId;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::output::LogLine;

/// Names an instance; unique within a supervisor, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct InstanceId(pub u64);

impl InstanceId {
    /// `namespace/function/number`: what others call it.
    pub fn name(self, function: &FunctionId) -> Arc<str> {
        format!("{function}/{self}").into()
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
    /// Process, and process group; `None` for external instances.
    pub pid: Option<u32>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Failed instances of this function before it.
    pub restarts: u32,
    /// Since when it is in this state.
    pub since: SystemTime,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionStatus {
    /// Its name.
    pub function: FunctionId,
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
}

impl Board {
    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_state(&self, id: InstanceId, state: InstanceState) {
        if let Some(status) = self.notes().instances.get_mut(&id) {
            status.state = state;
            status.since = SystemTime::now();
        }
    }

    /// Forgets an instance, except for its output.
    pub fn ended(&self, id: InstanceId) {
        let mut notes = self.notes();
        notes.instances.remove(&id);
        if let Some(previous) = notes.last_ended.replace(id)
            && previous != id
        {
            notes.output.remove(&previous);
        }
    }

    pub fn keep_line(&self, line: LogLine, most: usize) {
        let mut notes = self.notes();
        let lines = notes.output.entry(line.instance).or_default();
        if lines.len() >= most {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}
