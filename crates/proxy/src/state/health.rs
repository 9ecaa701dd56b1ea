//! Load of one callee, and health of its endpoints.
//!
//! Each count is held by a guard and given back when the guard is dropped, so an exchange cannot
//! leak a count, however it ends.

pub mod outlier;

pub use outlier::{Attempt, Ejection};

use leno_policy::breaker::TargetLoad;
use leno_policy::spec::Outlier;
use outlier::Outliers;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// One callee as this node sees it. All workers share it.
#[derive(Debug, Default)]
pub struct TargetHealth {
    requests: AtomicU32,
    pending: AtomicU32,
    connections: AtomicU32,
    retries: AtomicU32,
    outliers: Outliers,
}

impl TargetHealth {
    /// The load as input for a program. `endpoints` is the number of known ones.
    pub fn load(&self, endpoints: u32, now: Instant) -> TargetLoad {
        let ejected = self.outliers.ejected_count(now).min(endpoints);
        TargetLoad {
            requests: self.requests.load(Ordering::Relaxed),
            pending: self.pending.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            healthy: endpoints - ejected,
            ejected,
        }
    }

    /// Counts an in-flight request. `None`: `max` are in flight already.
    pub fn acquire_request(self: &Arc<Self>, max: Option<u32>) -> Option<RequestGuard> {
        add_one(&self.requests, max).then(|| RequestGuard(self.clone()))
    }

    /// Counts a request that waits for an instance or a connection. `None`: `max_pending` requests
    /// wait already.
    pub fn acquire_pending(self: &Arc<Self>, max_pending: Option<u32>) -> Option<PendingGuard> {
        add_one(&self.pending, max_pending).then(|| PendingGuard(self.clone()))
    }

    /// Counts a connection until the guard is dropped. `None`: `max_connections` are open already.
    pub fn acquire_connection(self: &Arc<Self>, max_connections: Option<u32>) -> Option<ConnectionGuard> {
        add_one(&self.connections, max_connections).then(|| ConnectionGuard(self.clone()))
    }

    /// Counts an in-flight retry against the retry budget: `percent` of the in-flight requests, but
    /// at least `min`. `None`: the budget is used up.
    pub fn acquire_retry(self: &Arc<Self>, percent: u8, min: u32) -> Option<RetryGuard> {
        let share = u64::from(self.requests.load(Ordering::Relaxed)) * u64::from(percent) / 100;
        let budget = min.max(u32::try_from(share).unwrap_or(u32::MAX));
        add_one(&self.retries, Some(budget)).then(|| RetryGuard(self.clone()))
    }

    /// Records how one attempt ended. Returns true if this ejected the endpoint. `endpoints` is the
    /// number of known ones.
    pub fn report(
        &self,
        endpoint: SocketAddr,
        attempt: Attempt,
        outlier: &Outlier,
        endpoints: u32,
        now: Instant,
    ) -> bool {
        self.outliers.report(endpoint, attempt, outlier, endpoints, now)
    }

    /// The ejected endpoints, by address.
    pub fn ejections(&self, now: Instant) -> Vec<Ejection> {
        self.outliers.ejections(now)
    }

    /// Whether an endpoint is ejected. Costs one atomic load as long as none is.
    pub fn ejected(&self, endpoint: SocketAddr, now: Instant) -> bool {
        self.outliers.is_ejected(endpoint, now)
    }
}

/// The count is exact: concurrent callers never exceed `max` together.
fn add_one(count: &AtomicU32, max: Option<u32>) -> bool {
    let max = max.unwrap_or(u32::MAX);
    count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| (now < max).then(|| now + 1)).is_ok()
}

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $field:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Arc<TargetHealth>);

        impl Drop for $name {
            fn drop(&mut self) {
                self.0.$field.fetch_sub(1, Ordering::AcqRel);
            }
        }
    };
}

guard!(
    /// Counts an in-flight request.
    RequestGuard,
    requests
);
guard!(
    /// Counts a request that waits for an instance or a connection.
    PendingGuard,
    pending
);
guard!(
    /// Counts an open connection.
    ConnectionGuard,
    connections
);
guard!(
    /// Counts an in-flight retry.
    RetryGuard,
    retries
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Duration;

    #[test]
    fn guards_give_back_what_they_took() {
        let target = Arc::new(TargetHealth::default());
        let first = target.acquire_request(Some(2)).unwrap();
        let second = target.acquire_request(Some(2)).unwrap();
        assert!(target.acquire_request(Some(2)).is_none());
        assert_eq!(target.load(1, Instant::now()).requests, 2);
        drop(first);
        assert!(target.acquire_request(Some(2)).is_some());
        drop(second);
        assert_eq!(target.load(1, Instant::now()).requests, 0);
    }

    #[test]
    fn ejected_endpoints_are_listed_until_they_return() {
        let (target, now) = (TargetHealth::default(), Instant::now());
        let outlier = Outlier {
            consecutive_5xx: 2,
            consecutive_gateway: 0,
            interval_ms: 1000,
            base_ejection_ms: 3000,
            max_ejection_percent: 100,
        };
        let endpoint = SocketAddr::from(([127, 0, 0, 1], 80));
        let fail = || target.report(endpoint, Attempt::Status(500), &outlier, 1, now);
        assert!(!fail() && target.ejections(now).is_empty());
        assert!(fail());
        let until = now + Duration::from_secs(3);
        assert_eq!(target.ejections(now), [Ejection { endpoint, since: now, until, times: 1 }]);
        assert!(target.ejections(until + Duration::from_secs(2)).is_empty());
    }

    #[test]
    fn every_kind_is_counted_for_itself() {
        let target = Arc::new(TargetHealth::default());
        let _request = target.acquire_request(None).unwrap();
        let _pending = target.acquire_pending(Some(1)).unwrap();
        let _connection = target.acquire_connection(Some(1)).unwrap();
        assert!(target.acquire_pending(Some(1)).is_none());
        assert!(target.acquire_connection(Some(1)).is_none());
        let load = target.load(3, Instant::now());
        assert_eq!(load, TargetLoad { requests: 1, pending: 1, connections: 1, healthy: 3, ejected: 0 });
    }

    #[test]
    fn the_retry_budget_grows_with_the_requests_in_flight_and_never_falls_below_its_minimum() {
        let target = Arc::new(TargetHealth::default());
        let _minimum: Vec<_> = (0..3).map(|_| target.acquire_retry(20, 3).unwrap()).collect();
        assert!(target.acquire_retry(20, 3).is_none(), "20 % of nothing leaves the minimum");
        let _requests: Vec<_> = (0..20).map(|_| target.acquire_request(None).unwrap()).collect();
        let _fourth = target.acquire_retry(20, 3).expect("20 % of 20 is four");
        assert!(target.acquire_retry(20, 3).is_none());
        assert!(target.acquire_retry(0, 0).is_none());
    }

    #[test]
    fn threads_never_get_past_a_limit_together() {
        const THREADS: usize = 8;
        let target = Arc::new(TargetHealth::default());
        let barrier = Barrier::new(THREADS);
        for _ in 0..50 {
            let admitted: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            let guard = target.acquire_request(Some(3));
                            barrier.wait();
                            usize::from(guard.is_some())
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(admitted, 3);
        }
        assert_eq!(target.load(0, Instant::now()).requests, 0);
    }
}
