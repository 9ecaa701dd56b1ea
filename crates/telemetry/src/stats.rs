//! Request counts of revisions, by which rollouts are judged.

use leno_http::outcome;
use leno_model::FunctionId;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A revision as records name it.
#[derive(Debug)]
pub struct RevisionLabel {
    /// Number of the revision; 0: revisions are not numbered.
    pub number: u32,
    /// Name of the revision, such as `checkout-00003`, or `checkout-00003 (stable)` if the document
    /// declares it.
    pub name: Arc<str>,
    /// The revision's request counts, if a rollout needs them.
    pub stats: OnceLock<Arc<RevisionStats>>,
}

/// Request counts of one revision since this node first routed requests to it.
#[derive(Debug, Default)]
pub struct RevisionStats {
    /// Latency limit in nanoseconds; 0: no request is slow.
    slow_after: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
    slow: AtomicU64,
}

/// The counts of a [`RevisionStats`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed requests to the revision, except those that the client broke off or was too slow
    /// to send.
    pub requests: u64,
    /// Of these, requests that ended with a status of 500 or above, with a gRPC status that means
    /// the same, or without a response.
    pub failed: u64,
    /// Of these, requests that took longer than the rollout's limit, from handing them to the
    /// instance to the response's head.
    pub slow: u64,
}

impl RevisionStats {
    /// Counts a completed exchange.
    pub fn count(&self, status: u16, grpc_status: Option<u8>, flag: Option<&str>, upstream_time: Option<Duration>) {
        // The client caused the failure, not the revision.
        if matches!(flag, Some("DC" | "SI")) {
            return;
        }
        self.requests.fetch_add(1, Relaxed);
        if status == 0 || outcome::status(status, grpc_status) >= 500 {
            self.failed.fetch_add(1, Relaxed);
        }
        let limit = self.slow_after.load(Relaxed);
        if limit > 0 && upstream_time.is_some_and(|time| time.as_nanos() > u128::from(limit)) {
            self.slow.fetch_add(1, Relaxed);
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let (requests, failed, slow) =
            (self.requests.load(Relaxed), self.failed.load(Relaxed), self.slow.load(Relaxed));
        Counts { requests, failed, slow }
    }
}

/// The request counts of a node. They outlive the configuration that asked for them.
#[derive(Debug, Default)]
pub struct StatsByRevision(Mutex<ByFunction>);

type ByFunction = HashMap<FunctionId, Vec<(u32, Arc<RevisionStats>)>>;

impl StatsByRevision {
    /// The counts of a revision, which begin at zero if there are none. `slow_after` becomes the
    /// latency limit.
    pub fn get_or_create(
        &self,
        function: &FunctionId,
        revision: u32,
        slow_after: Option<Duration>,
    ) -> Arc<RevisionStats> {
        let mut all = self.all();
        let revision_stats = all.entry(function.clone()).or_default();
        let found = revision_stats.iter().find(|(number, _)| *number == revision).map(|(_, stats)| stats.clone());
        let stats = found.unwrap_or_else(|| {
            let new = Arc::<RevisionStats>::default();
            revision_stats.push((revision, new.clone()));
            new
        });
        let nanos = slow_after.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        stats.slow_after.store(nanos, Relaxed);
        stats
    }

    /// Drops the counts of a function, except for these revisions.
    pub fn keep(&self, function: &FunctionId, revisions: &[u32]) {
        let mut all = self.all();
        if let Some(revision_stats) = all.get_mut(function) {
            revision_stats.retain(|(number, _)| revisions.contains(number));
            if revision_stats.is_empty() {
                all.remove(function);
            }
        }
    }

    /// Whether anything is counted.
    pub fn any(&self) -> bool {
        !self.all().is_empty()
    }

    /// All counts. Functions are in no particular order.
    pub fn counts(&self) -> Vec<(FunctionId, Vec<(u32, Counts)>)> {
        let counts = |(number, stats): &(u32, Arc<RevisionStats>)| (*number, stats.counts());
        self.all()
            .iter()
            .map(|(id, revision_stats)| (id.clone(), revision_stats.iter().map(counts).collect()))
            .collect()
    }

    fn all(&self) -> MutexGuard<'_, ByFunction> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_slowness_are_counted_and_clients_that_went_away_are_not() {
        let revision_stats = StatsByRevision::default();
        let id: FunctionId = "shop/checkout".parse().unwrap();
        let stats = revision_stats.get_or_create(&id, 2, Some(Duration::from_millis(5)));
        let count = |status, grpc_status, flag| stats.count(status, grpc_status, flag, Some(Duration::from_millis(10)));
        for (status, grpc, flag) in
            [(200, None, None), (404, None, None), (503, None, Some("UF")), (0, None, Some("DC"))]
        {
            count(status, grpc, flag);
        }
        assert_eq!(stats.counts(), Counts { requests: 3, failed: 1, slow: 3 });
        revision_stats.get_or_create(&id, 2, Some(Duration::from_millis(10)));
        for grpc in [0, 5, 13, 14] {
            count(200, Some(grpc), None);
        }
        assert_eq!(stats.counts(), Counts { requests: 7, failed: 3, slow: 3 });
        revision_stats.get_or_create(&id, 3, None);
        revision_stats.keep(&id, &[3]);
        assert_eq!(revision_stats.counts(), [(id.clone(), vec![(3, Counts::default())])]);
        revision_stats.keep(&id, &[]);
        assert_eq!(revision_stats.counts(), []);
    }
}
