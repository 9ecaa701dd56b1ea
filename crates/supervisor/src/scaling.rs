//! Runs the autoscaler: collects observations, schedules decisions and records them.

use crate::dispatcher::Dispatcher;
use crate::spec::{FunctionSpec, JailSupport, Settings};
use crate::status::{ScaleEvent, StatusStore};
use leno_autoscaler::{Autoscaler, Observation, Reason};
use leno_model::Scale;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Interval between decisions: a third of the panic window, but no longer than Knative's.
const LONGEST_TICK: Duration = Duration::from_secs(2);
const SHORTEST_TICK: Duration = Duration::from_millis(50);

/// Decides how many instances one function should have. It has no timer while no decision is due;
/// then the next request notifies [`Dispatcher::demand`].
pub(crate) struct Scaler {
    autoscaler: Autoscaler,
    dispatcher: Arc<Dispatcher>,
    status_store: Arc<StatusStore>,
    settings: Arc<Settings>,
    begin: Instant,
    tick: Duration,
    next: Option<Instant>,
}

impl Scaler {
    pub(crate) fn new(
        spec: &FunctionSpec,
        settings: &Arc<Settings>,
        dispatcher: &Arc<Dispatcher>,
        status_store: &Arc<StatusStore>,
    ) -> Self {
        let begin = Instant::now();
        let autoscaler = Autoscaler::new(scale(spec, &settings.jails), spec.concurrency, Duration::ZERO);
        let mut scaler = Self {
            autoscaler,
            dispatcher: Arc::clone(dispatcher),
            status_store: Arc::clone(status_store),
            settings: Arc::clone(settings),
            begin,
            tick: tick(spec),
            next: None,
        };
        match scaler.desired() {
            // There is no request yet, and the next one wakes the task.
            0 => drop(scaler.dispatcher.rest(&scaler.dispatcher.load())),
            first => {
                let reason = if spec.scale.initial > spec.scale.min { Reason::Initial } else { Reason::Minimum };
                let mut record = scaler.status_store.lock();
                (record.scaling.desired, record.scaling.reason) = (first, Some(reason));
                drop(record);
                scaler.changed(spec, 0, reason);
                scaler.next = Some(begin + scaler.tick);
            }
        }
        scaler
    }

    pub(crate) fn desired(&self) -> u32 {
        self.autoscaler.desired()
    }

    /// Applies a changed spec, with a decision at once.
    pub(crate) fn configure(&mut self, spec: &FunctionSpec) {
        self.autoscaler.configure(scale(spec, &self.settings.jails), spec.concurrency);
        self.tick = tick(spec);
        self.decide(spec);
    }

    /// When to call [`Scaler::decide`] next, unless the task is woken before; `None`: only when it
    /// is woken.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Handles a wake-up: a request waits, or it came while no decision was due.
    pub(crate) fn woken(&mut self, spec: &FunctionSpec) {
        if self.dispatcher.waiting() > 0 {
            self.decide(spec);
        } else if self.next.is_none() {
            self.next = Some(Instant::now() + self.tick);
        }
    }

    pub(crate) fn decide(&mut self, spec: &FunctionSpec) {
        let (now, reading) = (Instant::now(), self.dispatcher.load());
        let waiting = u32::try_from(self.dispatcher.waiting()).unwrap_or(u32::MAX);
        let seen = Observation {
            ready: u32::try_from(self.dispatcher.ready().len()).unwrap_or(u32::MAX),
            in_flight: u32::try_from(reading.present).unwrap_or(u32::MAX).saturating_sub(waiting),
            waiting,
            request_seconds: reading.area.as_secs_f64(),
            requests: reading.requests,
        };
        let before = self.status_store.lock().scaling.desired;
        let decision = self.autoscaler.decide(now - self.begin, &seen);
        let mut record = self.status_store.lock();
        record.scaling.desired = decision.desired;
        (record.scaling.mode, record.scaling.stable, record.scaling.panic) =
            (decision.mode, decision.stable, decision.panic);
        record.scaling.reason = Some(decision.reason);
        drop(record);
        self.changed(spec, before, decision.reason);
        let rests = self.autoscaler.rests() && self.dispatcher.rest(&reading);
        self.next = (!rests).then_some(now + self.tick);
    }

    /// Handles a failed start when there is no other instance: none is needed until the next request.
    pub(crate) fn give_up(&mut self, spec: &FunctionSpec) {
        self.autoscaler.give_up();
        let mut record = self.status_store.lock();
        let before = std::mem::replace(&mut record.scaling.desired, self.autoscaler.desired());
        record.scaling.reason = Some(Reason::Failed);
        drop(record);
        self.changed(spec, before, Reason::Failed);
    }

    /// Records a change of the desired number of instances, if there is one.
    fn changed(&self, spec: &FunctionSpec, from: u32, reason: Reason) {
        let mut record = self.status_store.lock();
        let (to, mode) = (record.scaling.desired, record.scaling.mode);
        if from == to {
            return;
        }
        let (at, function, revision) = (SystemTime::now(), spec.id.clone(), spec.revision);
        let event = ScaleEvent { at, function, revision, from, to, mode, reason };
        let new = record.scaled(event);
        drop(record);
        if new {
            tracing::info!(function = %spec.id, from, to, %mode, "scaled: {reason}");
        } else {
            tracing::debug!(function = %spec.id, from, to, %mode, "scaled: {reason}");
        }
    }
}

fn scale(spec: &FunctionSpec, jails: &JailSupport) -> Scale {
    let exclusion = spec.exclusion(jails);
    if !exclusion.is_any() || spec.scale.max <= 1 {
        return spec.scale;
    }
    let reason = match exclusion.port {
        Some(_) => "its port is fixed, and instances here have no networks of their own",
        None => "it has a volume that is not shared",
    };
    tracing::info!(function = %spec.id, "one instance at a time: {reason}");
    Scale { max: 1, ..spec.scale }
}

fn tick(spec: &FunctionSpec) -> Duration {
    (spec.scale.panic_window / 3).clamp(SHORTEST_TICK, LONGEST_TICK)
}
