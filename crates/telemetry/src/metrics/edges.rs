//! The edges of the call graph, and the rules that decided, as counts since the node started.

use super::{DecisionKey, ExchangeKey, Exchanges, ISTIO_BUCKETS, Latencies, Metrics};
use crate::names::direction_name;
use crate::names::recorded_for;
use leno_http::peer::TrafficDirection;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Upper bounds of the buckets of [`Edge::durations`], in milliseconds. The last bucket has none.
pub const DURATION_BOUNDS: [f64; ISTIO_BUCKETS.len()] = ISTIO_BUCKETS;

/// The exchanges between one caller and one callee, as one side recorded them. A call between
/// functions is in two rows: `outbound`, of the caller's sidecar, and `inbound`, of the callee's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// The node that counts; empty: the node that answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// `gateway`, `outbound` or `inbound`.
    pub direction: String,
    /// The caller's SPIFFE ID, which is proven. Empty: a client outside the mesh.
    pub source: String,
    /// The callee, `namespace/name`. Empty: the request led to none.
    pub target: String,
    /// Exchanges that are over.
    pub requests: u64,
    /// Those of them that a policy refused on this side.
    pub denied: u64,
    /// Those of them that failed: a status of 500 or above, or no response.
    pub failed: u64,
    /// The sum of their durations, in milliseconds.
    pub duration_ms: f64,
    /// The number of exchanges in each bucket of [`DURATION_BOUNDS`].
    pub durations: Vec<u64>,
    /// The durations of those that no policy refused, on either side, in fine buckets. Earlier
    /// releases do not tell them.
    #[serde(default)]
    pub latencies: Latencies,
}

/// A rule of a function's policies, and the number of requests that it decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleHits {
    /// The node that counts; empty: the node that answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Since when the node counts, in seconds since 1970; 0: it does not tell.
    #[serde(default)]
    pub since: u64,
    /// The function whose sidecar decided, `namespace/name`.
    pub function: String,
    /// `outbound`, or `inbound`.
    pub direction: String,
    /// The kind of the policy.
    pub policy: String,
    /// The rule.
    pub rule: String,
    /// `allow`, `deny` or `error`; `audit_allow` and `audit_deny` of a policy in audit mode.
    pub verdict: String,
    /// Requests that it decided.
    pub requests: u64,
}

impl Edge {
    /// The namespace of the function whose sidecar recorded the exchanges; `None`: they led to no
    /// function.
    pub fn namespace(&self) -> Option<&str> {
        recorded_for(
            &self.direction,
            Some(&self.target).filter(|target| !target.is_empty()).map(|target| &**target),
            &self.source,
        )
    }

    fn add(&mut self, key: &ExchangeKey, exchanges: &Exchanges) {
        let durations = &exchanges.duration_ms;
        let requests: u64 = durations.counts.iter().sum();
        self.requests += requests;
        self.latencies.add(&exchanges.latencies);
        match () {
            () if key.view().is_denied() => self.denied += requests,
            () if key.status >= 500 || key.status == 0 => self.failed += requests,
            () => {}
        }
        self.duration_ms += durations.sum;
        self.durations.resize(durations.counts.len(), 0);
        self.durations.iter_mut().zip(&durations.counts).for_each(|(sum, count)| *sum += count);
    }
}

/// Direction, caller and callee.
type Ends = (u8, Option<Arc<str>>, Option<Arc<str>>);

impl RuleHits {
    /// The namespace of the function.
    pub fn namespace(&self) -> Option<&str> {
        self.function.split_once('/').map(|(namespace, _)| namespace)
    }
}

impl Metrics {
    /// Edges with traffic. Requests that the gateway passes to another node are that node's to
    /// count, unless they failed on the way.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges: BTreeMap<Ends, Edge> = BTreeMap::new();
        for shard in self.shards() {
            for (key, exchanges) in &shard.lock().exchanges {
                let is_judged_elsewhere = key.verdict.is_empty() && key.flag == "-";
                if !is_judged_elsewhere {
                    let ends = (key.direction, key.source.clone(), key.target.clone());
                    edges.entry(ends).or_default().add(key, exchanges);
                }
            }
        }
        let named = |((direction, source, target), edge): (Ends, Edge)| Edge {
            direction: direction_name(direction_of(direction)).to_owned(),
            source: source.map(|name| name.to_string()).unwrap_or_default(),
            target: target.map(|name| name.to_string()).unwrap_or_default(),
            ..edge
        };
        edges.into_iter().map(named).collect()
    }

    /// Rules that decided requests.
    pub fn rule_hits(&self) -> Vec<RuleHits> {
        let mut decisions: BTreeMap<DecisionKey, u64> = BTreeMap::new();
        for shard in self.shards() {
            for (key, requests) in &shard.lock().decisions {
                *decisions.entry(key.clone()).or_default() += requests;
            }
        }
        let hits = |(key, requests): (&DecisionKey, &u64)| RuleHits {
            node: String::new(),
            since: self.since,
            function: key.function.to_string(),
            direction: if key.outbound { "outbound" } else { "inbound" }.to_owned(),
            policy: key.policy.to_owned(),
            rule: key.rule.to_string(),
            verdict: key.verdict.to_owned(),
            requests: *requests,
        };
        decisions.iter().map(hits).collect()
    }
}

fn direction_of(number: u8) -> TrafficDirection {
    let all = [TrafficDirection::Gateway, TrafficDirection::Outbound, TrafficDirection::Inbound];
    all.into_iter().find(|direction| *direction as u8 == number).unwrap_or(TrafficDirection::Inbound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::RecordedVerdict;
    use crate::testing::observed;

    #[test]
    fn an_edge_has_the_exchanges_of_all_workers_by_their_outcome() {
        let metrics = Metrics::default();
        let (one, other) = (metrics.shard(), metrics.shard());
        let caller: Arc<str> = "spiffe://orders.example/ns/shop/sa/frontend".into();
        let mut call = observed();
        (call.direction, call.peer.identity) = (TrafficDirection::Inbound, Some(caller.clone()));
        one.observe(&call);
        call.judged.as_mut().unwrap().verdict = RecordedVerdict::Allow { rule: "all".into() };
        for (shard, status) in [(&one, 200), (&other, 404), (&other, 502), (&other, 0)] {
            call.status = status;
            shard.observe(&call);
        }
        one.observe(&observed());

        let edges = metrics.edges();
        let [gateway, inbound] = &edges[..] else { panic!("{edges:?}") };
        assert_eq!((&*gateway.direction, &*gateway.source, gateway.requests, gateway.denied), ("gateway", "", 1, 1));
        assert_eq!(
            (&*inbound.direction, &*inbound.source, &*inbound.target),
            ("inbound", &*caller, "orders/order-service")
        );
        assert_eq!((inbound.requests, inbound.denied, inbound.failed), (5, 1, 2));
        assert_eq!((inbound.duration_ms, inbound.durations[4]), (100.0, 5), "20 ms each");
        assert_eq!(inbound.durations.len(), DURATION_BOUNDS.len() + 1);
        assert_eq!(inbound.latencies, Latencies::of_ms([20.0; 4]), "without the refused one");
        assert_eq!([gateway.namespace(), inbound.namespace()], [Some("orders"); 2]);

        let hits: Vec<_> = metrics.rule_hits();
        let [allowed, denied] = &hits[..] else { panic!("{hits:?}") };
        assert_eq!((&*allowed.rule, &*allowed.verdict, allowed.requests), ("all", "allow", 4));
        assert_eq!(
            (&*denied.rule, &*denied.verdict, denied.requests),
            ("orders/authorization/from-frontend", "deny", 2)
        );
    }

    #[test]
    fn a_refusal_by_the_callee_is_among_the_requests_and_not_among_the_durations() {
        let metrics = Metrics::default();
        let shard = metrics.shard();
        let mut call = observed();
        call.direction = TrafficDirection::Outbound;
        call.judged.as_mut().unwrap().verdict = RecordedVerdict::Allow { rule: "all".into() };
        for status in [200, 401, 403, 429, 404, 500] {
            call.status = status;
            shard.observe(&call);
        }
        let edges = metrics.edges();
        let [edge] = &edges[..] else { panic!("{edges:?}") };
        assert_eq!((edge.requests, &edge.latencies), (6, &Latencies::of_ms([20.0; 3])));
    }

    #[test]
    fn what_another_node_judges_is_counted_there_unless_it_never_arrived() {
        let metrics = Metrics::default();
        let shard = metrics.shard();
        let mut passed_on = observed();
        (passed_on.judged, passed_on.status) = (None, 200);
        shard.observe(&passed_on);
        assert!(metrics.edges().is_empty());
        (passed_on.flag, passed_on.status) = (Some("UF"), 503);
        shard.observe(&passed_on);
        let edges = metrics.edges();
        assert_eq!(edges.iter().map(|edge| (edge.requests, edge.failed)).collect::<Vec<_>>(), [(1, 1)]);
    }

    #[test]
    fn an_outbound_edge_is_of_the_callers_namespace() {
        let source = "spiffe://orders.example/ns/shop/sa/frontend".to_owned();
        let edge = Edge {
            direction: "outbound".to_owned(),
            source,
            target: "orders/order-service".to_owned(),
            ..Edge::default()
        };
        assert_eq!(edge.namespace(), Some("shop"));
        assert_eq!(Edge { direction: "gateway".to_owned(), ..Edge::default() }.namespace(), None);
    }
}
