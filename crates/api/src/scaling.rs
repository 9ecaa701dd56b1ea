//! Views of the autoscaler: listings and metrics.

use crate::revisions::{self, DeclaredNames};
use crate::shares::RevisionProgress;
use leno_model::{FunctionId, InstanceState};
use leno_proxy::Node;
use leno_supervisor::{FunctionStatus, LossEvent, Mode, ScaleEvent, Supervisor};
use leno_telemetry::exposition::{Collector, Exposition, Family, Number};
use leno_telemetry::families;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::SystemTime;

/// The columns of `leno get functions` about instances, by function name. The numbers are sums of
/// all revisions; the reason is that of the revision with the most traffic.
pub(crate) fn columns(supervisor: &Supervisor, node: &Node) -> HashMap<String, Value> {
    let statuses = supervisor.status();
    let images = supervisor.images();
    let snapshot = node.snapshot.load();
    let of_one = |statuses: &[FunctionStatus]| {
        let sum = |count: &dyn Fn(&FunctionStatus) -> usize| statuses.iter().map(count).sum::<usize>();
        let own = statuses.first()?;
        let progress: Vec<_> = statuses.iter().map(|status| RevisionProgress::of(status, &images)).collect();
        let entry = snapshot.functions.get(&own.function);
        let replaced = entry.and_then(|entry| revisions::replaced(&entry.config, &progress));
        let failure =
            || statuses.iter().find(|status| status.failing > 0).and_then(|status| status.last_failure.clone());
        let columns = json!({
            "desired": sum(&|status| usize::try_from(status.scaling.desired).unwrap_or(usize::MAX)),
            "ready": sum(&|status| status.count(InstanceState::Ready)),
            "former": progress.iter().flat_map(|progress| progress.former.values()).sum::<u64>(),
            "starting": sum(&|status| status.count(InstanceState::Starting)),
            "waiting": sum(&|status| status.waiting),
            "unenforced_limits": statuses.iter().find_map(|status| status.unenforced.clone()),
            "mode": own.scaling.mode,
            "reason": own.scaling.reason.map(|reason| reason.to_string()),
            "failure": replaced.or_else(failure),
            "shares": entry.map(|entry| revisions::shares(&entry.config, &progress)).unwrap_or_default(),
        });
        Some((own.function.to_string(), columns))
    };
    statuses.chunk_by(|one, next| one.function == next.function).filter_map(of_one).collect()
}

/// The progress of each revision of each function on this node.
pub(crate) fn revisions(supervisor: &Supervisor) -> Vec<RevisionProgress> {
    let images = supervisor.images();
    supervisor.status().iter().map(|status| RevisionProgress::of(status, &images)).collect()
}

/// Rows of `leno get events`, oldest first; `from` and `to` are instances.
pub(crate) fn events(supervisor: &Supervisor, names: &DeclaredNames) -> Vec<Value> {
    // An instance without a number has no revision.
    let name = |function: &FunctionId, number: u32| (number > 0).then(|| names.label(function, number));
    let row = |event: &ScaleEvent| {
        json!({
            "time": seconds(event.at),
            "kind": "scale",
            "function": event.function.to_string(),
            "revision": name(&event.function, event.revision),
            "from": event.from,
            "to": event.to,
            "mode": event.mode,
            "reason": event.reason.to_string(),
        })
    };
    let lost = |event: &LossEvent| {
        let instance = event.instance.name(&event.function);
        let (kind, what) = if event.unhealthy { ("unhealthy", "is replaced") } else { ("failed", "failed") };
        json!({
            "time": seconds(event.at),
            "kind": kind,
            "function": event.function.to_string(),
            "revision": name(&event.function, event.instance.revision),
            "instance": &*instance,
            "reason": format!("{instance} {what}: {}", event.reason),
        })
    };
    supervisor.scale_events().iter().map(row).chain(supervisor.losses().iter().map(lost)).collect()
}

pub(crate) fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Milliseconds are exact in JSON.
    since.as_millis() as f64 / 1e3
}

/// Metrics of all functions that were ever scaled.
#[derive(Debug)]
pub(crate) struct Scrape(Vec<FunctionStatus>, DeclaredNames);

impl Scrape {
    /// The present status.
    pub(crate) fn of(supervisor: &Supervisor, names: DeclaredNames) -> Self {
        let mut statuses = supervisor.status();
        // Most functions have no instances and no load.
        statuses.retain(|status| status.scaling.ups > 0 || status.waiting > 0 || !status.instances.is_empty());
        Self(statuses, names)
    }

    fn labels(&self, status: &FunctionStatus) -> [String; 3] {
        self.1.labels(&status.function, status.revision)
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        type Value = fn(&FunctionStatus) -> Number;
        let of_revisions: [(&'static Family<3>, Value); 8] = [
            (&families::DESIRED_INSTANCES, |status| status.scaling.desired.into()),
            (&families::READY_INSTANCES, |status| status.count(InstanceState::Ready).into()),
            (&families::STARTING_INSTANCES, |status| status.count(InstanceState::Starting).into()),
            (&families::WAITING_REQUESTS, |status| status.waiting.into()),
            (&families::PANIC_MODE, |status| (status.scaling.mode == Mode::Panic).into()),
            (&families::STABLE_LOAD, |status| status.scaling.stable.into()),
            (&families::PANIC_LOAD, |status| status.scaling.panic.into()),
            (&families::UNHEALTHY_INSTANCES, |status| status.lost.into()),
        ];
        for (family, value) in of_revisions {
            let samples = self.0.iter().map(|status| (self.labels(status), value(status)));
            exposition.family(family).samples(samples);
        }
        exposition.family(&families::SCALING_DECISIONS).samples(self.0.iter().flat_map(|status| {
            let [function, revision, name] = self.labels(status);
            [("up", status.scaling.ups), ("down", status.scaling.downs)].map(|(direction, count)| {
                ([function.clone(), revision.clone(), direction.to_owned(), name.clone()], count)
            })
        }));
    }
}
