//! What becomes of the requests of a revision: the counts by which a rollout is judged.

use crate::record::Observed;
use leno_config::FunctionId;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts of one revision since this node first led requests to it.
#[derive(Debug, Default)]
pub struct Tally {
    /// Nanoseconds; 0: no request is slow.
    slow_after: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
    slow: AtomicU64,
}

/// What a [`Tally`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were led to the revision and are over, but for those whose client went away.
    pub requests: u64,
    /// Of these, those that ended with a status of 500 or above, with a gRPC status that says the same, or without a response.
    pub failed: u64,
    /// Of these, those that took longer than the rollout's limit from the instance's getting the request to the response's head.
    pub slow: u64,
}

impl Tally {
    /// Counts an exchange that is over.
    pub fn count(&self, observed: &Observed) {
        // What the client did says nothing of the revision.
        if matches!(observed.flag, Some("DC" | "SI")) {
            return;
        }
        self.requests.fetch_add(1, Relaxed);
        if observed.status == 0 || observed.status >= 500 || observed.grpc_status.is_some_and(is_server_fault) {
            self.failed.fetch_add(1, Relaxed);
        }
        let limit = self.slow_after.load(Relaxed);
        if limit > 0 && observed.upstream_time().is_some_and(|time| time.as_nanos() > u128::from(limit)) {
            self.slow.fetch_add(1, Relaxed);
        }
    }

    /// So far.
    pub fn counts(&self) -> Counts {
        let (requests, failed, slow) =
            (self.requests.load(Relaxed), self.failed.load(Relaxed), self.slow.load(Relaxed));
        Counts { requests, failed, slow }
    }
}

/// UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS: the codes that gRPC's HTTP mapping and its guidance give to servers
/// that cannot do what they should. The others are answers.
fn is_server_fault(status: u8) -> bool {
    matches!(status, 2 | 4 | 13 | 14 | 15)
}

/// The tallies of a node. They outlive the configuration that asked for them.
#[derive(Debug, Default)]
pub struct Tallies(Mutex<ByFunction>);

type ByFunction = HashMap<FunctionId, Vec<(u32, Arc<Tally>)>>;

impl Tallies {
    /// That of a revision, begun anew if there is none.
    pub fn of(&self, function: &FunctionId, revision: u32, slow_after: Option<Duration>) -> Arc<Tally> {
        let mut all = self.all();
        let tallies = all.entry(function.clone()).or_default();
        let found = tallies.iter().find(|(number, _)| *number == revision).map(|(_, tally)| tally.clone());
        let tally = found.unwrap_or_else(|| {
            let new = Arc::<Tally>::default();
            tallies.push((revision, new.clone()));
            new
        });
        let nanos = slow_after.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        tally.slow_after.store(nanos, Relaxed);
        tally
    }

    /// Forgets the tallies of a function but for these revisions.
    pub fn keep(&self, function: &FunctionId, revisions: &[u32]) {
        let mut all = self.all();
        if let Some(tallies) = all.get_mut(function) {
            tallies.retain(|(number, _)| revisions.contains(number));
            if tallies.is_empty() {
                all.remove(function);
            }
        }
    }

    /// Whether there is anything to tell.
    pub fn any(&self) -> bool {
        !self.all().is_empty()
    }

    /// What there is, in no order of functions.
    pub fn counts(&self) -> Vec<(FunctionId, Vec<(u32, Counts)>)> {
        let counts = |(number, tally): &(u32, Arc<Tally>)| (*number, tally.counts());
        self.all().iter().map(|(id, tallies)| (id.clone(), tallies.iter().map(counts).collect())).collect()
    }

    fn all(&self) -> MutexGuard<'_, ByFunction> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observed;

    #[test]
    fn failures_and_slowness_are_counted_and_clients_that_went_away_are_not() {
        let tallies = Tallies::default();
        let id: FunctionId = "shop/checkout".parse().unwrap();
        let tally = tallies.of(&id, 2, Some(Duration::from_millis(5)));
        // Its upstream time is 10 ms.
        let with = |status, grpc_status, flag| {
            let mut observed = observed();
            (observed.status, observed.grpc_status, observed.flag) = (status, grpc_status, flag);
            observed
        };
        for (status, grpc, flag) in
            [(200, None, None), (404, None, None), (503, None, Some("UF")), (0, None, Some("DC"))]
        {
            tally.count(&with(status, grpc, flag));
        }
        assert_eq!(tally.counts(), Counts { requests: 3, failed: 1, slow: 3 });
        tallies.of(&id, 2, Some(Duration::from_millis(10)));
        for grpc in [0, 5, 13, 14] {
            tally.count(&with(200, Some(grpc), None));
        }
        assert_eq!(tally.counts(), Counts { requests: 7, failed: 3, slow: 3 });
        tallies.of(&id, 3, None);
        tallies.keep(&id, &[3]);
        assert_eq!(tallies.counts(), [(id.clone(), vec![(3, Counts::default())])]);
        tallies.keep(&id, &[]);
        assert_eq!(tallies.counts(), []);
    }
}
