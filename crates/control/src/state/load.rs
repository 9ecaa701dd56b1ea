//! The load of a function in the whole mesh, summed over the reports of its nodes.

use crate::bounds::{Claim, Grants};
use crate::definitions::ScaledRevision;
use leno_autoscaler::Autoscaler;
use leno_model::Metric;
use leno_wire::{Load, Observation};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of instances in a report of a node that reports no capacity.
pub(super) const MAX_INSTANCES: u32 = 10_000;
/// Maximum number of requests in a node's buffer, of requests that its instances handle, and of
/// seconds of requests since the last report.
const MAX_WAITING: u32 = 16_384;
const MAX_IN_FLIGHT: u32 = 1_000_000;
const MAX_SECONDS: f64 = 1e7;

/// Caps a report at the load that a node with so many instances can have.
pub(super) fn plausible(mut load: Load, instances: u32) -> Load {
    load.starting = load.starting.min(instances);
    load.seen.ready = load.seen.ready.min(instances);
    load.seen.waiting = load.seen.waiting.min(MAX_WAITING);
    load.seen.in_flight = load.seen.in_flight.min(MAX_IN_FLIGHT);
    load
}

/// The load and the instances of a function.
#[derive(Default)]
pub(super) struct FunctionLoad {
    pub grants: Grants,
    /// Its share of the instances of its namespace; `None`: only its own maxima bound it.
    pub share: Option<u32>,
    /// Instances that nodes may have, as its namespace counts them.
    pub granted: u32,
    pub revisions: BTreeMap<u32, RevisionLoad>,
}

impl FunctionLoad {
    /// The function's claim to instances of its namespace.
    pub(super) fn claim(&self) -> Claim {
        self.revisions.values().map(RevisionLoad::claim).fold(Claim::default(), |one, other| Claim {
            least: one.least.saturating_add(other.least),
            has: one.has.saturating_add(other.has),
            wants: one.wants.saturating_add(other.wants),
            most: one.most.saturating_add(other.most),
        })
    }

    /// Instances of its revisions that nodes may have, without those of replaced revisions, which
    /// are about to end.
    pub(super) fn may_have(&self) -> u32 {
        self.revisions.keys().map(|revision| self.grants.total(*revision)).fold(0, u32::saturating_add)
    }

    /// Whether it could use more than its share.
    pub(super) fn is_short(&self) -> bool {
        let Some(share) = self.share else { return false };
        let Claim { wants, most, .. } = self.claim();
        wants > share && most > share
    }

    /// Whether no revision has any load.
    pub(super) fn rests(&self) -> bool {
        self.revisions.values().all(RevisionLoad::rests)
    }

    /// The instances of all revisions that the function should have by its load.
    pub(super) fn decide(&mut self, now: Duration) -> u32 {
        let desired = self.revisions.values_mut().map(|load| load.decide(now)).fold(0, u32::saturating_add);
        self.share.map_or(desired, |share| desired.min(share))
    }

    /// Instances to reserve on a node: running ones, or the minimum there.
    pub(super) fn reserved_on(&self, name: &str) -> u32 {
        let running = self.revisions.values().map(|load| load.instances_on(name)).fold(0, u32::saturating_add);
        running.max(self.grants.least_on(name))
    }

    /// Replaces the revisions that are scaled.
    pub(super) fn configure(&mut self, revisions: &[ScaledRevision], now: Duration) {
        self.revisions.retain(|number, _| revisions.iter().any(|revision| revision.number == *number));
        for revision in revisions {
            let load =
                self.revisions.entry(revision.number).or_insert_with(|| RevisionLoad::new(revision.clone(), now));
            load.autoscaler.configure(revision.scale, revision.concurrency);
            load.settings = revision.clone();
        }
    }

    /// Forgets the reports of a node.
    pub(super) fn forget_load(&mut self, name: &str) {
        self.revisions.values_mut().for_each(|load| drop(load.nodes.remove(name)));
    }
}

/// The load of one revision in the whole mesh.
pub(super) struct RevisionLoad {
    pub settings: ScaledRevision,
    autoscaler: Autoscaler,
    /// The last report of each node.
    nodes: BTreeMap<Arc<str>, Load>,
    request_seconds: f64,
    requests: u64,
}

impl RevisionLoad {
    fn new(settings: ScaledRevision, now: Duration) -> Self {
        let autoscaler = Autoscaler::new(settings.scale, settings.concurrency, now);
        Self { settings, autoscaler, nodes: BTreeMap::new(), request_seconds: 0.0, requests: 0 }
    }

    /// Adds a node's report. Its first totals are only the baseline.
    pub(super) fn report(&mut self, name: &Arc<str>, load: Load) {
        if let Some(before) = self.nodes.get(name) {
            let again =
                load.seen.requests < before.seen.requests || load.seen.request_seconds < before.seen.request_seconds;
            let before = if again { Observation::default() } else { before.seen };
            let seconds = load.seen.request_seconds - before.request_seconds;
            self.request_seconds += seconds.clamp(0.0, MAX_SECONDS);
            let requests = load.seen.requests.saturating_sub(before.requests);
            self.requests = self.requests.saturating_add(requests);
        }
        self.nodes.insert(name.clone(), load);
    }

    fn decide(&mut self, now: Duration) -> u32 {
        let sum = |of: fn(&Load) -> u32| self.nodes.values().map(of).fold(0, u32::saturating_add);
        let seen = Observation {
            ready: sum(|load| load.seen.ready),
            in_flight: sum(|load| load.seen.in_flight),
            waiting: sum(|load| load.seen.waiting),
            request_seconds: self.request_seconds,
            requests: self.requests,
        };
        self.autoscaler.decide(now, &seen).desired
    }

    fn instances_on(&self, name: &str) -> u32 {
        self.nodes.get(name).map_or(0, |load| load.seen.ready.saturating_add(load.starting))
    }

    /// Instances that a node has, or that its present requests need.
    pub(super) fn wants(&self, name: &str) -> u32 {
        let Some(load) = self.nodes.get(name) else { return 0 };
        let present = f64::from(load.seen.in_flight) + f64::from(load.seen.waiting);
        let one = match (self.settings.concurrency, self.settings.scale.metric) {
            (0, Metric::Concurrency) => self.settings.scale.per_instance.max(1.0),
            (0, Metric::Rps) => f64::INFINITY,
            (limit, _) => f64::from(limit),
        };
        let asked = if load.seen.waiting == 0 { 0 } else { ((present / one).ceil() as u32).max(1) };
        self.instances_on(name).max(asked)
    }

    /// The revision's claim to instances of its function.
    pub(super) fn claim(&self) -> Claim {
        let sum = |of: &dyn Fn(&str) -> u32| self.nodes.keys().map(|name| of(name)).fold(0, u32::saturating_add);
        Claim {
            least: self.settings.scale.min,
            has: sum(&|name| self.instances_on(name)),
            wants: sum(&|name| self.wants(name)),
            most: self.settings.scale.max,
        }
    }

    fn rests(&self) -> bool {
        self.autoscaler.rests() && self.nodes.values().all(|load| load.seen.in_flight == 0 && load.seen.waiting == 0)
    }
}
