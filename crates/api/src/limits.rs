//! The use of limits of functions on a node.

use crate::scaling::seconds;
use leno_config::duration::Duration as Amount;
use leno_model::FunctionId;
use leno_policy::breaker::TargetLoad;
use leno_policy::spec::{QuotaAlgorithm, RateLimit, Target};
use leno_proxy::health::Ejection;
use leno_proxy::{FunctionEntry, Node};
use leno_supervisor::Supervisor;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Counters of one rate limit that a listing has: those with the least left.
const MOST_COUNTERS: usize = 10;

/// The use of one limit on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitUse {
    /// The node; empty: the node that answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The function that is limited, `namespace/name`: the callee of a rate limit and a queue, the
    /// caller of a circuit breaker.
    pub function: String,
    /// `rateLimit`, `queue`, `concurrency`; of a circuit breaker `requests`, `pendingRequests`,
    /// `connections`; `ejection`.
    pub kind: String,
    /// The rule: `shop/rateLimits/each`. Empty: the limit is of the function itself.
    #[serde(default)]
    pub name: String,
    /// Of a circuit breaker and an ejection: the callee.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub callee: String,
    /// Of a rate limit: whose requests this counter counts. Of an ejection: the endpoint.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How much of it is in use. Of an ejection: how often the endpoint was ejected lately. Nothing:
    /// the callee belongs to a namespace that the reader may not know.
    #[serde(default)]
    pub used: Option<u64>,
    /// The limit; nothing: there is none, or as with `used`.
    #[serde(default)]
    pub of: Option<u64>,
    /// `free`, `used`, `exhausted`, `ejected`; `audited`: it would be exhausted, and refuses nothing.
    pub state: String,
    /// Of a rate limit: the period, and the number of counters: `each 1m, 3 counters`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Of an ejection: since when, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<f64>,
    /// When the counter is fresh again, or the endpoint can return, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
}

impl LimitUse {
    /// The namespace of the function.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.function.split_once('/').map(|(namespace, _)| namespace)
    }

    fn of(function: &FunctionId, kind: &str, name: &str, used: u64, of: Option<u64>) -> Self {
        let state = match of {
            Some(of) if used >= of => "exhausted",
            _ if used == 0 => "free",
            _ => "used",
        };
        let own = |text: &str| text.to_owned();
        Self {
            function: function.to_string(),
            kind: own(kind),
            name: own(name),
            used: Some(used),
            of,
            state: own(state),
            ..Self::default()
        }
    }

    /// The same with the state alone, because the rest is the use that all callers make of the
    /// callee.
    fn with_state_alone(self) -> Self {
        let Self { node, function, kind, name, callee, state, .. } = self;
        Self { node, function, kind, name, callee, state, ..Self::default() }
    }
}

/// The rows as readers of these namespaces may see them; none: readers of the whole mesh.
pub(crate) fn for_readers(rows: Vec<LimitUse>, namespaces: &BTreeSet<String>) -> Vec<LimitUse> {
    let is_known = |callee: &str| {
        let namespace = callee.split_once('/').map(|(namespace, _)| namespace);
        callee.is_empty() || namespace.is_some_and(|namespace| namespaces.contains(namespace))
    };
    if namespaces.is_empty() {
        return rows;
    }
    let seen = |row: LimitUse| if is_known(&row.callee) { row } else { row.with_state_alone() };
    let mut rows: Vec<LimitUse> = rows.into_iter().map(seen).collect();
    // The number of ejected endpoints is not for these readers either.
    rows.dedup();
    rows
}

/// The limits of this function, or of all, in the order of their names.
pub(crate) fn rows(node: &Node, supervisor: &Supervisor, only: Option<&FunctionId>) -> Vec<LimitUse> {
    let snapshot = node.snapshot.load();
    let is_wanted = |entry: &&Arc<FunctionEntry>| only.is_none_or(|only| entry.config.id == *only);
    let mut entries: Vec<&Arc<FunctionEntry>> =
        snapshot.functions.values().chain(snapshot.remote_routes()).filter(is_wanted).collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut loads = loads(supervisor);
    let mut rows = Vec::new();
    for entry in entries {
        let id = &entry.config.id;
        if let Some(limits) = node.policy_state.limits.known(id) {
            let counters = limits.by_limit();
            for limit in &entry.config.inbound.rate_limits {
                let count = counters.get(limit.name.as_str()).copied().unwrap_or_default();
                rows.extend(rate_limit(id, limit, &limits.most_used(limit, now_ms(), MOST_COUNTERS), count));
            }
        }
        rows.extend(loads.remove(id).into_iter().flat_map(|load| load.rows(entry)));
        let own = entry.config.inbound.targets.iter().filter(|_| !entry.config.expose.is_empty());
        for target in entry.config.outbound.targets.iter().chain(own) {
            rows.extend(breaker(node, id, target));
        }
    }
    rows
}

/// The counters of a rate limit; a limit without any has one row.
fn rate_limit(
    id: &FunctionId,
    limit: &RateLimit,
    counters: &[leno_proxy::limits::CounterUse],
    count: usize,
) -> Vec<LimitUse> {
    let (requests, period_ms) = match limit.algorithm {
        QuotaAlgorithm::TokenBucket { burst, period_ms, .. } => (burst, period_ms),
        QuotaAlgorithm::FixedWindow { requests, period_ms } => (requests, period_ms),
    };
    let plural = if count == 1 { "counter" } else { "counters" };
    let detail = format!("each {}, {count} {plural}", Amount::from_millis(period_ms));
    let row = |used: u64, of: u64| {
        let row = LimitUse::of(id, "rateLimit", &limit.name, used, Some(of));
        let is_audited = limit.audit && row.state == "exhausted";
        LimitUse {
            detail: detail.clone(),
            state: if is_audited { "audited".to_owned() } else { row.state.clone() },
            ..row
        }
    };
    if counters.is_empty() {
        return vec![row(0, requests.into())];
    }
    let of_counter = |counter: &leno_proxy::limits::CounterUse| LimitUse {
        key: counter.key.clone(),
        until: Some(seconds(SystemTime::now() + Duration::from_millis(counter.fresh_in_ms))),
        ..row((counter.of - counter.left).into(), counter.of.into())
    };
    counters.iter().map(of_counter).collect()
}

/// The load of a function's instances on this node.
#[derive(Default)]
struct Load {
    ready: u64,
    in_flight: u64,
    waiting: u64,
}

fn loads(supervisor: &Supervisor) -> BTreeMap<FunctionId, Load> {
    let mut loads: BTreeMap<FunctionId, Load> = BTreeMap::new();
    for load in supervisor.loads() {
        let sum = loads.entry(load.function).or_default();
        sum.ready += u64::from(load.ready);
        sum.in_flight += u64::from(load.in_flight);
        sum.waiting += u64::from(load.waiting);
    }
    loads
}

impl Load {
    fn rows(self, entry: &FunctionEntry) -> [LimitUse; 2] {
        let id = &entry.config.id;
        let places = u64::from(entry.config.concurrency) * self.ready;
        let concurrency =
            LimitUse::of(id, "concurrency", "", self.in_flight, Some(places).filter(|places| *places > 0));
        [concurrency, LimitUse::of(id, "queue", "", self.waiting, Some(entry.config.queue.into()))]
    }
}

/// The circuit breaker of a target, and its ejected endpoints.
fn breaker(node: &Node, caller: &FunctionId, target: &Target) -> Vec<LimitUse> {
    let Some(breaker) = &target.breaker else { return Vec::new() };
    let health = target.function.parse().ok().and_then(|callee| node.policy_state.health.known(&callee));
    let now = Instant::now();
    let load = health.as_ref().map_or_else(TargetLoad::default, |health| health.load(u32::MAX, now));
    let bounds = [
        ("requests", load.requests, breaker.max_requests),
        ("pendingRequests", load.pending, breaker.max_pending),
        ("connections", load.connections, breaker.max_connections),
    ];
    let bounds = bounds.into_iter().filter(|(_, _, most)| *most < u32::MAX).map(|(kind, used, most)| LimitUse {
        callee: target.function.clone(),
        ..LimitUse::of(caller, kind, &breaker.name, used.into(), Some(most.into()))
    });
    let ejections = health.map(|health| health.ejections(now)).unwrap_or_default();
    let ejected = ejections.into_iter().map(|Ejection { endpoint, since, until, times }| LimitUse {
        callee: target.function.clone(),
        key: endpoint.to_string(),
        state: "ejected".to_owned(),
        since: Some(seconds(SystemTime::now() - now.saturating_duration_since(since))),
        until: Some(seconds(SystemTime::now() + until.saturating_duration_since(now))),
        ..LimitUse::of(caller, "ejection", &breaker.name, times.into(), None)
    });
    bounds.chain(ejected).collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_other_namespaces_see_the_state_of_a_callee_alone() {
        let caller: FunctionId = "a/front".parse().unwrap();
        let ejected = |callee: &str, endpoint: &str| LimitUse {
            callee: callee.to_owned(),
            key: endpoint.to_owned(),
            since: Some(1.0),
            until: Some(2.0),
            ..LimitUse::of(&caller, "ejection", "own/circuitBreaker", 3, None)
        };
        let requests = LimitUse {
            callee: "b/back".to_owned(),
            ..LimitUse::of(&caller, "requests", "own/circuitBreaker", 9, Some(9))
        };
        let queue = LimitUse::of(&caller, "queue", "", 1, Some(5));
        let rows = vec![
            ejected("b/back", "10.0.0.1:80"),
            ejected("b/back", "10.0.0.2:80"),
            ejected("a/own", "10.0.0.3:80"),
            requests,
            queue.clone(),
        ];
        let of = |namespaces: &[&str]| namespaces.iter().map(|&namespace| namespace.to_owned()).collect();
        for all in [of(&[]), of(&["a", "b"])] {
            assert_eq!(for_readers(rows.clone(), &all), rows);
        }
        let seen = for_readers(rows.clone(), &of(&["a"]));
        let [of_back, of_own, requests, own_queue] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((of_own, own_queue), (&rows[2], &queue));
        assert_eq!(serde_json::json!(requests)["state"], "exhausted");
        for hidden in [of_back, requests] {
            let expected = LimitUse {
                function: "a/front".to_owned(),
                kind: hidden.kind.clone(),
                name: "own/circuitBreaker".to_owned(),
                callee: "b/back".to_owned(),
                state: hidden.state.clone(),
                ..LimitUse::default()
            };
            assert_eq!(*hidden, expected);
        }
    }
}
