//! The number of instances that the functions of a namespace may have together, in the whole mesh:
//! the `instances` of its quota.
//!
//! If the maxima of its functions are within the quota, each function has its own maximum.
//! Otherwise each has a share, which moves: a function keeps its instances, and gets the instances
//! that its load needs from those that others do not use. A share rises only after the nodes have
//! applied the lower share of another function, so the sum holds at each moment.

use super::load::FunctionLoad;
use crate::bounds::{self, Claim};
use crate::definitions::Function;
use leno_model::FunctionId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::time::Duration;

/// Minimum time between two computations of shares for functions that need more.
const PAUSE: Duration = Duration::from_millis(100);

/// The loads of functions, by name.
pub(super) type Loads = HashMap<FunctionId, FunctionLoad>;

/// The quotas of all namespaces with functions or jobs.
#[derive(Default)]
pub(super) struct Quotas(HashMap<String, Quota>);

/// The instances of one namespace.
#[derive(Default)]
struct Quota {
    /// The maximum of each function.
    functions: BTreeMap<FunctionId, u32>,
    /// The processes of each job, whether it runs or not.
    jobs: BTreeMap<FunctionId, u32>,
    /// The sum of the maxima.
    maximum: u64,
    bound: u32,
    /// Functions have shares of the bound.
    shared: bool,
    /// Documents have changed since the shares were computed.
    stale: bool,
    /// When the shares were computed.
    shared_at: Duration,
    /// Instances that nodes may have, for all bounds that they may have applied.
    granted: u64,
    /// Functions that have less than their share until others have fewer instances.
    waiting: BTreeSet<FunctionId>,
}

impl Quota {
    /// Instances that the functions may have.
    fn available(&self) -> u32 {
        self.jobs.values().fold(self.bound, |left, processes| left.saturating_sub(*processes))
    }

    fn is_short(&self) -> bool {
        self.maximum > self.available().into()
    }
}

impl Quotas {
    /// Stores how a function or job is defined; `None`: it was removed.
    pub(super) fn define(&mut self, id: &FunctionId, function: Option<&Function>, loads: &mut Loads) {
        let scaled = function.map(|function| &function.scaled[..]).unwrap_or_default();
        let maximum = scaled.iter().fold(0, |all: u32, revision| all.saturating_add(revision.scale.max));
        let quota = self.0.entry(id.namespace.clone()).or_default();
        quota.maximum -= u64::from(quota.functions.remove(id).unwrap_or(0));
        quota.jobs.remove(id);
        quota.waiting.remove(id);
        if let Some(function) = function {
            quota.bound = function.quota;
            if function.job.is_some() {
                quota.jobs.insert(id.clone(), function.demand.instance.instances);
            }
        }
        if !scaled.is_empty() {
            quota.functions.insert(id.clone(), maximum);
            quota.maximum += u64::from(maximum);
        } else if let Some(load) = loads.get_mut(id) {
            quota.granted -= u64::from(mem::take(&mut load.granted));
        }
        quota.stale = true;
        if quota.functions.is_empty() && quota.jobs.is_empty() {
            self.0.remove(&id.namespace);
        }
    }

    /// Computes the shares of a namespace's functions anew, if this function needs more than it has
    /// or documents have changed. Returns the functions whose shares have changed.
    pub(super) fn share_out(&mut self, id: &FunctionId, loads: &mut Loads, now: Duration) -> Vec<FunctionId> {
        let short = loads.get(id).is_some_and(FunctionLoad::is_short);
        let Some(quota) = self.0.get_mut(&id.namespace) else { return Vec::new() };
        let (shares, was_shared) = (quota.is_short(), quota.shared);
        let short = short && now >= quota.shared_at + PAUSE;
        if !(shares && (quota.stale || short) || was_shared && !shares) {
            return Vec::new();
        }
        (quota.stale, quota.shared, quota.shared_at) = (false, shares, now);
        let ids: Vec<_> = quota.functions.keys().filter(|id| loads.contains_key(*id)).cloned().collect();
        let claims: Vec<Claim> = ids.iter().map(|id| loads[id].claim()).collect();
        let parts: Vec<Option<u32>> = match shares {
            true => bounds::apportion(quota.available(), &claims).into_iter().map(Some).collect(),
            false => vec![None; ids.len()],
        };
        let changed = ids.into_iter().zip(parts).filter(|(id, part)| {
            let load = loads.get_mut(id);
            load.is_some_and(|load| mem::replace(&mut load.share, *part) != *part)
        });
        changed.map(|(id, _)| id).collect()
    }

    /// Counts the instances that a function's nodes may have, after its bounds have changed.
    pub(super) fn count_granted(&mut self, id: &FunctionId, loads: &mut Loads) {
        if let (Some(load), Some(quota)) = (loads.get_mut(id), self.0.get_mut(&id.namespace)) {
            let granted = load.may_have();
            let before = mem::replace(&mut load.granted, granted);
            quota.granted = quota.granted + u64::from(granted) - u64::from(before);
        }
    }

    /// Instances that a function may have now; `None`: only its own maxima bound it.
    pub(super) fn allowance(&mut self, id: &FunctionId, loads: &mut Loads) -> Option<u32> {
        self.count_granted(id, loads);
        let load = loads.get(id)?;
        let quota = self.0.get_mut(&id.namespace)?;
        quota.waiting.remove(id);
        let share = load.share?;
        let others = quota.granted - u64::from(load.granted);
        let free = u32::try_from(u64::from(quota.available()).saturating_sub(others)).unwrap_or(u32::MAX);
        let allowed = share.min(load.granted.max(free));
        if allowed < share {
            quota.waiting.insert(id.clone());
        }
        Some(allowed)
    }

    /// Functions of the same namespace that wait for others to have fewer instances.
    pub(super) fn waiting_beside(&self, id: &FunctionId) -> impl Iterator<Item = &FunctionId> {
        let waiting = self.0.get(&id.namespace).map(|quota| &quota.waiting);
        waiting.into_iter().flatten().filter(move |other| *other != id)
    }
}
