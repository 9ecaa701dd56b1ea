//! The most recent records, for `leno explain`: every stage of a decision, found by request ID.

mod explanation;

pub use explanation::{Explanation, InjectedFault, RefusedAttempt};

use crate::exchange::ExchangeRecord;
use crate::record_ring::RecordRing;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The events after a position.
pub(crate) struct After<T> {
    pub found: Vec<T>,
    pub missed: u64,
    pub next: Vec<u64>,
}

/// The recent records of all workers.
#[derive(Debug, Default)]
pub struct Ring {
    shards: Mutex<Vec<Arc<Shard>>>,
}

/// The recent records of one worker. Besides the worker, only the rare reader takes the lock.
#[derive(Debug, Default)]
pub struct Shard(Mutex<RecordRing>);

impl Ring {
    /// Adds a shard for a new worker.
    pub fn shard(&self) -> Arc<Shard> {
        let shard = Arc::new(Shard::default());
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push(shard.clone());
        shard
    }

    /// The hops of a request, in the order in which they began. The ID may also be that of a trace.
    /// Empty if no record is kept.
    pub(super) fn hops(&self, id: &str) -> Vec<ExchangeRecord<Box<str>>> {
        let shards: Vec<Arc<Shard>> = self.shards.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut found = Vec::new();
        for shard in shards {
            found.extend(shard.lock().of_request(id));
        }
        if let (true, Some(trace)) = (found.is_empty(), trace_id(id)) {
            found = self.copy().iter().filter_map(|record| ExchangeRecord::decode(record)).collect();
            found.retain(|observed| observed.trace.as_ref().is_some_and(|plan| plan.context.trace_id == trace));
        }
        found.sort_by_key(|observed| observed.started);
        found
    }

    /// The exchanges that ended after those that were seen before, oldest first.
    pub(super) fn after(&self, seen: &[u64]) -> After<ExchangeRecord<Box<str>>> {
        let shards: Vec<Arc<Shard>> = self.shards.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut found, mut missed, mut next) = (Vec::new(), 0, Vec::new());
        for (index, shard) in shards.iter().enumerate() {
            let (records, forgotten, pushed) = shard.lock().after(seen.get(index).copied().unwrap_or_default());
            found.extend(records.iter().filter_map(|record| ExchangeRecord::decode(record)));
            missed += forgotten;
            next.push(pushed);
        }
        found.sort_by_key(|observed| observed.ended);
        After { found, missed, next }
    }

    /// All records, still encoded. Each worker is kept waiting for as long as it takes to copy its
    /// own.
    pub fn copy(&self) -> Vec<Box<[u8]>> {
        let shards: Vec<Arc<Shard>> = self.shards.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shards.iter().flat_map(|shard| shard.lock().after(0).0).collect()
    }

    /// The latest records of all workers, newest first, at most `count`.
    pub fn latest(&self, count: usize) -> Vec<Explanation> {
        let shards: Vec<Arc<Shard>> = self.shards.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut found = Vec::new();
        for shard in shards {
            found.extend(shard.lock().newest_first().take(count));
        }
        found.sort_by_key(|observed| std::cmp::Reverse(observed.ended));
        found.iter().take(count).map(Explanation::new).collect()
    }
}

/// Reads a trace ID: 32 hexadecimal digits.
fn trace_id(text: &str) -> Option<u128> {
    let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_one)
}

impl Shard {
    /// Adds a record. The oldest ones go when there is no room.
    pub fn push(&self, observed: &ExchangeRecord) {
        self.lock().push(observed);
    }

    fn lock(&self) -> MutexGuard<'_, RecordRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observed;
    use leno_http::peer::TrafficDirection;
    use std::time::Duration;

    fn explain(ring: &Ring, request_id: &str) -> Vec<Explanation> {
        ring.hops(request_id).iter().map(Explanation::new).collect()
    }

    #[test]
    fn hops_of_a_request_come_back_in_the_order_in_which_they_began() {
        let ring = Ring::default();
        let (one, two) = (ring.shard(), ring.shard());
        let hop = |direction, after: u64| {
            let mut hop = observed();
            hop.direction = direction;
            hop.started += Duration::from_secs(after);
            hop
        };
        // Inner hops end first.
        one.push(&hop(TrafficDirection::Inbound, 2));
        two.push(&hop(TrafficDirection::Outbound, 1));
        two.push(&ExchangeRecord { request_id: "req-2".into(), ..observed() });
        one.push(&hop(TrafficDirection::Gateway, 0));
        let hops: Vec<String> = explain(&ring, "req-1").into_iter().map(|explanation| explanation.hop).collect();
        assert_eq!(hops, ["gateway", "outbound", "inbound"]);
        assert_eq!(explain(&ring, "req-2").len(), 1);
        assert!(explain(&ring, "req-3").is_empty());
    }

    #[test]
    fn a_trace_is_found_by_its_id() {
        let ring = Ring::default();
        let shard = ring.shard();
        shard.push(&observed());
        shard.push(&ExchangeRecord { request_id: "req-2".into(), ..observed() });
        shard.push(&ExchangeRecord { request_id: "req-3".into(), trace: None, ..observed() });
        let trace = explain(&ring, "req-1").remove(0).trace.unwrap().trace_id;
        let found: Vec<String> = explain(&ring, &trace).into_iter().map(|hop| hop.request_id).collect();
        assert_eq!(found, ["req-1", "req-2"]);
        assert!(explain(&ring, &"0".repeat(32)).is_empty() && explain(&ring, &format!("+{}", &trace[1..])).is_empty());
    }

    #[test]
    fn is_bounded_and_forgets_the_oldest() {
        let ring = Ring::default();
        let shard = ring.shard();
        for number in 0..20_000 {
            shard.push(&ExchangeRecord { request_id: number.to_string().into(), ..observed() });
        }
        assert!(explain(&ring, "0").is_empty());
        assert_eq!(explain(&ring, "19999").len(), 1);
        assert_eq!(ring.latest(10).len(), 10);
        let all = ring.latest(usize::MAX).len();
        assert!((1500..20_000).contains(&all), "{all}");
    }

    #[test]
    fn an_explanation_tells_every_stage_and_no_secret() {
        let ring = Ring::default();
        ring.shard().push(&observed());
        let explanation = explain(&ring, "req-1").remove(0);
        let json = serde_json::to_string(&explanation).unwrap();
        for secret in ["secret-token", "curl/8"] {
            assert!(!json.contains(secret), "{json}");
        }
        let judgement = explanation.judgement.clone().unwrap();
        assert_eq!(judgement.verdict, "deny");
        assert_eq!(judgement.policy.as_deref(), Some("authorization"));
        assert_eq!(judgement.clause, "from.identities: nothing matches");
        assert_eq!((judgement.runs, judgement.sandbox_us, judgement.judge_us), (2, 9.0, 210.0));
        assert_eq!(explanation.asked.path, "/orders/7");
        assert_eq!(explanation.signatures[0].result, "good");
        assert_eq!(explanation.quotas[0].remaining, Some(4));
        assert_eq!(explanation.request_edits, ["set x-user"]);
        assert_eq!(explanation.attempts[0].result, "UF");
        assert_eq!(explanation.attempts[1].result, "403");
        assert_eq!(explanation.stages.head_us, Some(13_000.0));
        assert_eq!(serde_json::from_str::<Explanation>(&json).unwrap(), explanation, "can be read back");
    }
}
