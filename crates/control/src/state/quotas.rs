//! How many instances the functions of a namespace may have together, in the whole mesh: the `instances` of its quota.
//!
//! Where the maxima of its functions are within the quota, each function has its own maximum. Otherwise each has a share, which moves: a function keeps the
//! instances that it has, and gets what its load asks for from what others have not used. A share is raised when the nodes have put the lower share of another
//! function into force, so the sum holds at each moment.

use super::State;
use super::scaling::Scaled;
use crate::bounds::{self, Claim};
use leno_config::FunctionId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Shares are computed no more often for functions that need more.
const PAUSE: Duration = Duration::from_millis(100);

/// What the functions of one namespace may have.
#[derive(Default)]
pub(super) struct NamespaceScale {
    /// The maximum of each function.
    functions: BTreeMap<FunctionId, u32>,
    /// The processes of each job, whether it runs or not.
    jobs: BTreeMap<FunctionId, u32>,
    /// The sum of the maxima.
    maximum: u64,
    bound: u32,
    /// Functions have shares of the bound.
    shared: bool,
    /// The shares have to be computed anew.
    stale: bool,
    /// When they were computed.
    shared_at: Duration,
    /// Instances that nodes may have, whichever bounds are in force.
    granted: u64,
    /// Functions that have less than their share until others have less.
    waiting: BTreeSet<FunctionId>,
}

impl NamespaceScale {
    /// Instances that the functions may have.
    fn available(&self) -> u32 {
        self.jobs.values().fold(self.bound, |left, processes| left.saturating_sub(*processes))
    }

    fn is_short(&self) -> bool {
        self.maximum > self.available().into()
    }
}

impl State {
    /// Takes in what a function or job that was defined may have, or forgets it.
    pub(super) fn define_quota(&mut self, id: &FunctionId) {
        let function = self.compiled.functions.get(id);
        let scaled = function.map(|function| &function.scaled[..]).unwrap_or_default();
        let maximum = scaled.iter().fold(0, |all: u32, revision| all.saturating_add(revision.scale.max));
        let namespace = self.quotas.entry(id.namespace.clone()).or_default();
        namespace.maximum -= u64::from(namespace.functions.remove(id).unwrap_or(0));
        namespace.jobs.remove(id);
        namespace.waiting.remove(id);
        if let Some(function) = function {
            namespace.bound = function.quota;
            if function.job.is_some() {
                namespace.jobs.insert(id.clone(), function.demand.instance.instances);
            }
        }
        if !scaled.is_empty() {
            namespace.functions.insert(id.clone(), maximum);
            namespace.maximum += u64::from(maximum);
        } else if let Some(scaled) = self.scaled.get_mut(id) {
            namespace.granted -= u64::from(std::mem::take(&mut scaled.granted));
        }
        namespace.stale = true;
        if namespace.functions.is_empty() && namespace.jobs.is_empty() {
            self.quotas.remove(&id.namespace);
        }
    }

    /// Computes the shares of a namespace's functions anew, if this function needs more than it has or documents have changed. Returns the functions whose
    /// shares have changed.
    pub(super) fn share_out(&mut self, id: &FunctionId) -> Vec<FunctionId> {
        let (short, now) = (self.is_short(id), self.now);
        let Some(namespace) = self.quotas.get_mut(&id.namespace) else { return Vec::new() };
        let (shares, was_shared) = (namespace.is_short(), namespace.shared);
        let short = short && now >= namespace.shared_at + PAUSE;
        if !(shares && (namespace.stale || short) || was_shared && !shares) {
            return Vec::new();
        }
        (namespace.stale, namespace.shared, namespace.shared_at) = (false, shares, now);
        let ids: Vec<_> = namespace.functions.keys().filter(|id| self.scaled.contains_key(*id)).cloned().collect();
        let claims: Vec<Claim> = ids.iter().map(|id| self.scaled[id].claim()).collect();
        let parts: Vec<Option<u32>> = match shares {
            true => bounds::apportion(namespace.available(), &claims).into_iter().map(Some).collect(),
            false => vec![None; ids.len()],
        };
        let changed = ids.into_iter().zip(parts).filter(|(id, part)| {
            let scaled = self.scaled.get_mut(id);
            scaled.is_some_and(|scaled| std::mem::replace(&mut scaled.share, *part) != *part)
        });
        changed.map(|(id, _)| id).collect()
    }

    /// Whether a function could use more than its share.
    pub(super) fn is_short(&self, id: &FunctionId) -> bool {
        self.scaled.get(id).is_some_and(Scaled::is_short)
    }

    /// Takes in that the bounds of a function have changed, or which of them are in force.
    pub(super) fn count_granted(&mut self, id: &FunctionId) {
        if let (Some(scaled), Some(namespace)) = (self.scaled.get_mut(id), self.quotas.get_mut(&id.namespace)) {
            let granted = scaled.may_have();
            let before = std::mem::replace(&mut scaled.granted, granted);
            namespace.granted = namespace.granted + u64::from(granted) - u64::from(before);
        }
    }

    /// Instances that a function may have now; `None`: its own maxima are all that bounds it.
    pub(super) fn allowance(&mut self, id: &FunctionId) -> Option<u32> {
        self.count_granted(id);
        let scaled = self.scaled.get(id)?;
        let namespace = self.quotas.get_mut(&id.namespace)?;
        namespace.waiting.remove(id);
        let share = scaled.share?;
        let others = namespace.granted - u64::from(scaled.granted);
        let free = u32::try_from(u64::from(namespace.available()).saturating_sub(others)).unwrap_or(u32::MAX);
        let allowed = share.min(scaled.granted.max(free));
        if allowed < share {
            namespace.waiting.insert(id.clone());
        }
        Some(allowed)
    }

    /// Functions of the same namespace that wait for others to have less.
    pub(super) fn waiting_beside(&self, id: &FunctionId) -> Vec<FunctionId> {
        let waiting = self.quotas.get(&id.namespace).map(|namespace| &namespace.waiting);
        waiting.into_iter().flatten().filter(|other| *other != id).cloned().collect()
    }
}
