//! On which other nodes functions can be reached, and which of these nodes gets a request.
//!
//! The control plane delivers endpoints, and they change often: with each instance that becomes
//! ready or ends. So they are not part of the snapshot. A change copies one shard of a map, and no
//! route or program is touched.

use crate::state::health::outlier::Outliers;
use crate::state::health::{Attempt, TargetHealth};
use crate::state::shards::Shards;
use arc_swap::ArcSwap;
use leno_model::{Distance, FunctionId, Locality};
use leno_policy::spec::Outlier;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The ejection of nodes that cannot be reached: for a second at first, and for a second longer
/// each time that it happens again. If no other node can be used, such a node is tried
/// nevertheless.
const UNREACHABLE: Outlier = Outlier {
    consecutive_5xx: 0,
    consecutive_gateway: 1,
    interval_ms: 500,
    base_ejection_ms: 1_000,
    max_ejection_percent: 100,
};

/// A function on a remote node, as the control plane delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the node.
    pub node: Arc<str>,
    /// The node's inbound listener.
    pub address: SocketAddr,
    /// Number of ready instances there. If there is none, the node starts one for the first
    /// request.
    pub ready: u32,
    /// The node's locality.
    pub locality: Locality,
}

/// The endpoints of all functions that this node may call or route to.
#[derive(Debug, Default)]
pub struct Endpoints {
    functions: ArcSwap<Shards<FunctionId, Arc<FunctionEndpoints>>>,
    /// Whether there are any. A single node skips the look-up.
    any: AtomicBool,
    /// Serialises changes.
    changing: Mutex<()>,
    /// This node's locality.
    locality: OnceLock<Locality>,
    /// Nodes to which no connection could be made.
    unreachable: Outliers,
}

/// The endpoints of one function.
#[derive(Debug)]
pub(crate) struct FunctionEndpoints(
    /// Those with ready instances first, the nearest of these first; then the others in the same
    /// order.
    Box<[Arc<Candidate>]>,
);

/// One endpoint of one function.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub endpoint: Endpoint,
    distance: Distance,
    /// Number of this node's in-flight requests to this function on that node. The counter outlives
    /// changes of the endpoint.
    in_flight: Arc<AtomicU32>,
}

/// Counts a request as under way to an endpoint until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<AtomicU32>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The inputs of a choice besides the endpoints.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    /// Health of the function's endpoints.
    pub target: &'a TargetHealth,
    /// Addresses to exclude.
    pub not: &'a [SocketAddr],
    pub now: Instant,
}

/// The set of nodes to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Nodes with ready instances.
    Ready,
    /// Nodes that would have to start one.
    Homes,
    /// All nodes, including ejected ones.
    Avoided,
}

impl Endpoints {
    /// Sets the locality of this node. A node is at one place; a second call changes nothing.
    pub fn set_locality(&self, locality: Locality) {
        let _ = self.locality.set(locality);
    }

    /// This node's locality.
    pub fn locality(&self) -> Locality {
        self.locality.get().cloned().unwrap_or_default()
    }

    /// Replaces the endpoints of some functions; an empty list removes them. The cost depends on
    /// what changes, not on the number of functions.
    pub fn set(&self, changes: impl IntoIterator<Item = (FunctionId, Vec<Endpoint>)>) {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut functions = Shards::clone(&self.functions.load());
        let own = self.locality();
        for (function, endpoints) in changes {
            if endpoints.is_empty() {
                functions.remove(&function);
            } else {
                let known = FunctionEndpoints::new(endpoints, &own, functions.get(&function));
                functions.insert(function, Arc::new(known));
            }
        }
        self.any.store(!functions.is_empty(), Ordering::Release);
        self.functions.store(Arc::new(functions));
    }

    /// The endpoints of a function; `None`: no other node hosts it.
    pub(crate) fn of(&self, function: &FunctionId) -> Option<Arc<FunctionEndpoints>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.functions.load().get(function).cloned()
    }

    /// Records that no connection to a node could be made. The node is avoided for a while.
    pub(crate) fn unreachable(&self, address: SocketAddr, now: Instant) {
        self.unreachable.report(address, Attempt::LocalFailure, &UNREACHABLE, u32::MAX, now);
    }

    /// Chooses an endpoint by power of two choices: of two among the nearest usable ones, the one
    /// with fewer requests per instance. `random` is a random number of `0..=max`.
    pub(crate) fn choose(
        &self,
        known: &FunctionEndpoints,
        choice: Choice<'_>,
        among: Among,
        random: impl Fn(u64) -> u64,
    ) -> Option<Arc<Candidate>> {
        let all = known.part(among);
        let usable = |candidate: &&Arc<Candidate>| {
            let address = candidate.endpoint.address;
            let avoided =
                || self.unreachable.is_ejected(address, choice.now) || choice.target.ejected(address, choice.now);
            !choice.not.contains(&address) && (among == Among::Avoided || !avoided())
        };
        let rank = |candidate: &Candidate| (candidate.endpoint.ready == 0, candidate.distance);
        let first = all.iter().find(usable)?;
        let level = all.partition_point(|candidate| rank(candidate) < rank(first));
        let end = all.partition_point(|candidate| rank(candidate) <= rank(first));
        let level = all.get(level..end)?;
        // Two at random are usable almost always. Otherwise all are examined.
        let pick = |from: &[&Arc<Candidate>]| {
            let last = from.len().checked_sub(1)?;
            let one = usize::try_from(random(last as u64)).ok()?;
            // The second one differs from the first.
            let other = match usize::try_from(random((last as u64).saturating_sub(1))).ok()? {
                other if other >= one && last > 0 => other + 1,
                other => other,
            };
            let (one, other) = (*from.get(one)?, *from.get(other)?);
            Some(if other.is_less_busy(one) { other } else { one }.clone())
        };
        match level {
            [_] => Some(first.clone()),
            _ => pick(&level.iter().filter(usable).collect::<Vec<_>>()),
        }
    }
}

impl FunctionEndpoints {
    fn new(endpoints: Vec<Endpoint>, own: &Locality, before: Option<&Arc<Self>>) -> Self {
        let counted = |endpoint: &Endpoint| {
            let same = |candidate: &&Arc<Candidate>| candidate.endpoint.address == endpoint.address;
            before.and_then(|known| known.0.iter().find(same)).map(|candidate| candidate.in_flight.clone())
        };
        let candidate = |endpoint: Endpoint| {
            let in_flight = counted(&endpoint).unwrap_or_default();
            Arc::new(Candidate { distance: own.distance(&endpoint.locality), endpoint, in_flight })
        };
        let mut candidates: Vec<_> = endpoints.into_iter().map(candidate).collect();
        candidates.sort_by_key(|candidate| (candidate.endpoint.ready == 0, candidate.distance));
        Self(candidates.into())
    }

    /// How many nodes host the function.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Whether a node has a ready instance.
    pub(crate) fn any_ready(&self) -> bool {
        !self.part(Among::Ready).is_empty()
    }

    fn part(&self, among: Among) -> &[Arc<Candidate>] {
        let ready = self.0.partition_point(|candidate| candidate.endpoint.ready > 0);
        match among {
            Among::Ready => self.0.get(..ready),
            Among::Homes => self.0.get(ready..),
            Among::Avoided => self.0.get(..),
        }
        .unwrap_or_default()
    }
}

impl Candidate {
    /// Counts a request as under way to this endpoint.
    pub(crate) fn begin(&self) -> UnderWay {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.in_flight.clone())
    }

    /// Whether it has fewer requests per ready instance than `other`.
    fn is_less_busy(&self, other: &Self) -> bool {
        let load = |candidate: &Self| u64::from(candidate.in_flight.load(Ordering::Relaxed));
        let instances = |candidate: &Self| u64::from(candidate.endpoint.ready.max(1));
        load(self) * instances(other) < load(other) * instances(self)
    }
}

#[cfg(test)]
mod tests;
