//! Counts exchanges and decisions for Prometheus. Names and labels are Istio's where they mean the
//! same.
//!
//! Each worker counts in its own shard. Only a scrape takes the shard's lock too, so workers do not
//! contend for cache lines. A scrape adds the shards up.
//!
//! Labels hold only names that the mesh knows: functions, identities, rules, statuses. Methods,
//! hosts and paths of clients never become labels. The number of series is bounded. Past the bound,
//! further series of exchanges and decisions are counted together as `other`; other counters drop
//! further series.

mod edges;
mod encode;
mod latency;

pub use edges::{DURATION_BOUNDS, Edge, RuleHits};
pub use encode::{Entries, Gauges, StoreFigures};
pub use latency::Latencies;

use crate::exchange::{ExchangeRecord, RecordedVerdict};
use crate::exposition::Exemplar;
use crate::names::{EXTENSIONS, algorithm_name, policy_name};
use hashbrown::{DefaultHashBuilder, HashTable};
use leno_http::peer::TrafficDirection;
use leno_policy::engine::EngineKind;
use leno_policy::spec::Protocol;
use leno_policy::trace::{TraceContext, TracePlan};
use leno_runtime::clock::unix_ms;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Bucket bounds of Istio's histograms, in milliseconds and in bytes.
const ISTIO_BUCKETS: [f64; 19] =
    [0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 1.8e6, 3.6e6];
/// Bucket bounds of the sandbox's histogram, in seconds.
const RUN_BUCKETS: [f64; 14] =
    [1e-6, 2e-6, 3e-6, 5e-6, 8e-6, 1.2e-5, 2e-5, 3.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2];
/// Limit on the series of one kind in one shard.
const MOST_SERIES: usize = 20_000;
/// Limit on the rules of one function in one shard.
const MOST_RULES: usize = 1_000;

/// The shards of all workers.
#[derive(Debug)]
pub struct Metrics {
    shards: Mutex<Vec<Arc<Shard>>>,
    /// Since when they count, in seconds since 1970.
    since: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { shards: Mutex::default(), since: unix_ms(SystemTime::now()) / 1000 }
    }
}

/// The metrics of one worker.
#[derive(Debug, Default)]
pub struct Shard {
    numbers: Mutex<Numbers>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct Numbers {
    exchanges: HashTable<(ExchangeKey, Exchanges)>,
    /// Fine buckets that `exchanges` use.
    latency_buckets: usize,
    /// Verdicts and faults.
    decisions: HashTable<(DecisionKey, u64)>,
    retries: HashTable<(Arc<str>, u64)>,
    ejections: HashTable<(Arc<str>, u64)>,
    unreachable: HashTable<(Arc<str>, u64)>,
    signatures: HashTable<(SignatureKey, u64)>,
    overflows: HashTable<(OverflowKey, u64)>,
    runs: [Histogram<{ RUN_BUCKETS.len() + 1 }>; 4],
    /// Requests judged by a remembered decision.
    remembered: u64,
    extensions: HashTable<(ExtensionKey, u64)>,
    extension_runs: Histogram<{ RUN_BUCKETS.len() + 1 }>,
    /// Key: the function, and which end could not be verified.
    unproven: HashTable<((Arc<str>, &'static str), u64)>,
    /// Key: the function, and the failed part.
    component_failures: HashTable<((Arc<str>, &'static str), u64)>,
    proxy_protocol_refusals: HashTable<(&'static str, u64)>,
    closed: HashTable<(ClosedKey, u64)>,
    /// Key: the route, and the result.
    route_copies: HashTable<((Arc<str>, &'static str), u64)>,
    faults: HashTable<(FaultKey, u64)>,
}

/// The kind of a fault, its route and its name.
type FaultKey = (&'static str, Arc<str>, Arc<str>);

/// Function, extension, phase, result and failure.
type ExtensionKey = (Arc<str>, Arc<str>, &'static str, &'static str, &'static str);

/// Function, outbound, and policy.
type ClosedKey = (Arc<str>, bool, &'static str);

type SignatureKey = (&'static str, &'static str);

/// Function and rate limit.
type OverflowKey = (Arc<str>, Box<str>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ExchangeKey {
    direction: u8,
    grpc: bool,
    status: u16,
    flag: &'static str,
    /// `allow`, `deny` or `error`; empty: another node judges.
    verdict: &'static str,
    /// SPIFFE ID of the caller; `None`: outside the mesh.
    source: Option<Arc<str>>,
    /// The callee: `namespace/name`.
    target: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DecisionKey {
    function: Arc<str>,
    outbound: bool,
    /// Name of a policy, or a fault.
    policy: &'static str,
    verdict: &'static str,
    rule: Box<str>,
}

#[derive(Clone, Debug, Default)]
struct Exchanges {
    duration_ms: Histogram<{ ISTIO_BUCKETS.len() + 1 }>,
    /// Durations of the exchanges that no policy refused.
    latencies: Latencies,
    bytes_in: Histogram<{ ISTIO_BUCKETS.len() + 1 }>,
    bytes_out: Histogram<{ ISTIO_BUCKETS.len() + 1 }>,
    /// The latest sampled exchange in each bucket of `duration_ms`. Most meshes sample little, so
    /// this is allocated with the first one.
    exemplars: Option<Box<[Option<Exemplar>; ISTIO_BUCKETS.len() + 1]>>,
}

impl Exchanges {
    /// `latency_buckets`: fine buckets that all series use; `None`: a policy refused the exchange.
    fn observe(&mut self, observed: &ExchangeRecord, latency_buckets: Option<&mut usize>) {
        let duration = observed.duration().as_secs_f64() * 1e3;
        let fine = latency::bucket((duration * 1e3) as u64);
        if let Some(latency_buckets) = latency_buckets {
            self.latencies.observe(fine, latency_buckets);
        }
        let bucket = duration_bucket(fine, duration);
        self.duration_ms.count(bucket, duration);
        self.bytes_in.observe(&ISTIO_BUCKETS, observed.bytes_in as f64);
        self.bytes_out.observe(&ISTIO_BUCKETS, observed.bytes_out as f64);
        if let Some(TracePlan { context: TraceContext { trace_id, sampled: true, .. }, .. }) = observed.trace {
            let at = observed.started_at + observed.duration();
            self.exemplars.get_or_insert_default()[bucket] = Some(Exemplar { trace_id, value: duration, at });
        }
    }

    /// Takes the exemplars of `other` that are later.
    fn add_exemplars(&mut self, other: &Self) {
        let Some(others) = &other.exemplars else { return };
        let at = |exemplar: &Option<Exemplar>| exemplar.map(|exemplar| exemplar.at);
        for (mine, theirs) in self.exemplars.get_or_insert_default().iter_mut().zip(others.iter()) {
            if at(theirs) > at(mine) {
                *mine = *theirs;
            }
        }
    }
}

/// The number of bounds of [`ISTIO_BUCKETS`] below each fine bucket.
const BOUNDS_BELOW: [u8; latency::BUCKETS] = {
    let mut below = [0; latency::BUCKETS];
    let mut fine = 1;
    while fine < latency::BUCKETS {
        below[fine] = below[fine - 1];
        // Bounds are further apart than a fine bucket is wide.
        let bound = below[fine] as usize;
        if bound < ISTIO_BUCKETS.len() && ISTIO_BUCKETS[bound] * 1e3 < latency::begin(fine) as f64 {
            below[fine] += 1;
        }
        fine += 1;
    }
    below
};

/// The bucket of a duration in milliseconds, of which the fine bucket is known.
#[inline]
fn duration_bucket(fine: usize, duration: f64) -> usize {
    let below = usize::from(BOUNDS_BELOW[fine]);
    below + usize::from(ISTIO_BUCKETS.get(below).is_some_and(|bound| *bound < duration))
}

/// Counts per bucket. The last bucket has no bound.
#[derive(Clone, Debug)]
struct Histogram<const N: usize> {
    counts: [u64; N],
    sum: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], sum: 0.0 }
    }
}

impl<const N: usize> Histogram<N> {
    /// Returns the bucket of `value`.
    fn observe(&mut self, bounds: &[f64], value: f64) -> usize {
        let bucket = bounds.partition_point(|bound| *bound < value);
        self.count(bucket, value);
        bucket
    }

    fn count(&mut self, bucket: usize, value: f64) {
        self.counts[bucket] += 1;
        self.sum += value;
    }

    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum += other.sum;
    }
}

impl Metrics {
    /// Since when they count, in seconds since 1970.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Adds a shard for a new worker.
    pub fn shard(&self) -> Arc<Shard> {
        let shard = Arc::new(Shard::default());
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push(shard.clone());
        shard
    }
}

impl Shard {
    /// Counts a completed exchange.
    pub fn observe(&self, observed: &ExchangeRecord) {
        let mut numbers = self.lock();
        self.observe_exchange(&mut numbers, observed);
        if let Some(judged) = &observed.judged {
            numbers.remembered += u64::from(judged.remembered);
            let (verdict, policy, rule) = match &judged.verdict {
                RecordedVerdict::Allow { rule } => ("allow", "authorization", rule),
                RecordedVerdict::Deny { policy, rule, .. } => ("deny", policy_name(*policy), rule),
                RecordedVerdict::Extension { rule, .. } => ("deny", EXTENSIONS, rule),
                RecordedVerdict::Fault { fault, .. } => ("error", *fault, &Box::default()),
            };
            let outbound = observed.direction == TrafficDirection::Outbound;
            self.count_decision(&mut numbers, &judged.function, outbound, policy, verdict, rule);
            match &judged.audit {
                Some(RecordedVerdict::Deny { policy, rule, .. }) => {
                    let policy = policy_name(*policy);
                    self.count_decision(&mut numbers, &judged.function, outbound, policy, "audit_deny", rule);
                }
                Some(RecordedVerdict::Allow { rule }) => {
                    let policy = "authorization";
                    self.count_decision(&mut numbers, &judged.function, outbound, policy, "audit_allow", rule);
                }
                _ => {}
            }
            for check in observed.rate_limit_checks.iter().filter(|check| check.shared) {
                let key = (judged.function.clone(), check.limit.clone());
                self.count(&mut numbers.overflows, &key, Clone::clone);
            }
            for run in &observed.extensions {
                let (result, failure) = run.ended.labels();
                let key = (judged.function.clone(), run.name.clone(), run.phase, result, failure);
                self.count(&mut numbers.extensions, &key, Clone::clone);
                numbers.extension_runs.observe(&RUN_BUCKETS, run.time.as_secs_f64());
            }
        }
        for check in &observed.signatures {
            self.count(&mut numbers.signatures, &(algorithm_name(check.algorithm), check.result()), |key| *key);
        }
        if let (Some(target), retries @ 1..) = (&observed.target, observed.attempts.len().saturating_sub(1)) {
            for _ in 0..retries {
                self.count(&mut numbers.retries, target, Arc::clone);
            }
        }
    }

    /// Counts one run of a sandbox.
    pub fn sandbox_run(&self, engine: EngineKind, time: Duration) {
        self.lock().runs[engine_index(engine)].observe(&RUN_BUCKETS, time.as_secs_f64());
    }

    /// Counts the ejection of an endpoint of `target`.
    pub fn ejection(&self, target: &Arc<str>) {
        self.count(&mut self.lock().ejections, target, Arc::clone);
    }

    /// Counts a connection to a node that could not be made.
    pub fn unreachable(&self, node: &Arc<str>) {
        self.count(&mut self.lock().unreachable, node, Arc::clone);
    }

    /// Counts a connection whose other end could not be verified to be an instance of `function`.
    /// `end` is `instance` for a connection to an instance, and `caller` for one on which an
    /// instance's credential came in.
    pub fn unproven(&self, function: &Arc<str>, end: &'static str) {
        self.count(&mut self.lock().unproven, &(function.clone(), end), Clone::clone);
    }

    /// Counts a failed run of `function`'s component.
    pub fn component_failure(&self, function: &Arc<str>, failure: &'static str) {
        self.count(&mut self.lock().component_failures, &(function.clone(), failure), Clone::clone);
    }

    /// Counts a connection to the gateway whose PROXY header was not accepted.
    pub fn proxy_protocol_refusal(&self, reason: &'static str) {
        self.count(&mut self.lock().proxy_protocol_refusals, &reason, |reason| reason);
    }

    /// Counts a copy of a request that a route sent to another back end, or could not send.
    pub fn route_copy(&self, route: &Arc<str>, result: &'static str) {
        self.count(&mut self.lock().route_copies, &(route.clone(), result), Clone::clone);
    }

    /// Counts a fault that a policy injected into a request of a route.
    pub fn fault(&self, kind: &'static str, route: &Arc<str>, fault: &Arc<str>) {
        self.count(&mut self.lock().faults, &(kind, route.clone(), fault.clone()), Clone::clone);
    }

    /// Counts an open exchange of `function` that was closed, by the policy that does not permit it
    /// any more or by the mesh.
    pub fn closed(&self, function: &Arc<str>, outbound: bool, policy: &'static str) {
        self.count(&mut self.lock().closed, &(function.clone(), outbound, policy), Clone::clone);
    }

    fn observe_exchange(&self, numbers: &mut Numbers, observed: &ExchangeRecord) {
        let Numbers { exchanges, latency_buckets, .. } = numbers;
        let bounded = exchanges.len() < MOST_SERIES;
        let wanted = ExchangeView {
            direction: observed.direction as u8,
            grpc: observed.protocol == Protocol::Grpc,
            status: observed.status,
            flag: observed.flag.unwrap_or("-"),
            verdict: observed.judged.as_ref().map_or("", |judged| judged.verdict.word()),
            source: observed.peer.identity.as_ref(),
            target: observed.target.as_ref(),
        };
        let latency_buckets = (!wanted.is_refused()).then_some(latency_buckets);
        let exchanges = match self.find_exchanges(exchanges, &wanted, bounded) {
            Some(exchanges) => exchanges,
            None => {
                let other =
                    ExchangeView { flag: "other", verdict: "", status: 0, source: None, target: None, ..wanted };
                match self.find_exchanges(exchanges, &other, true) {
                    Some(exchanges) => exchanges,
                    None => return,
                }
            }
        };
        exchanges.observe(observed, latency_buckets);
    }

    /// Finds a series. Creates it only if `may_make` is true.
    fn find_exchanges<'a>(
        &self,
        table: &'a mut HashTable<(ExchangeKey, Exchanges)>,
        view: &ExchangeView<'_>,
        may_make: bool,
    ) -> Option<&'a mut Exchanges> {
        let hash = self.hasher.hash_one(view);
        if table.find(hash, |(key, _)| key.view() == *view).is_none() {
            if !may_make {
                return None;
            }
            table.insert_unique(hash, (view.key(), Exchanges::default()), |(key, _)| self.hasher.hash_one(key.view()));
        }
        table.find_mut(hash, |(key, _)| key.view() == *view).map(|(_, exchanges)| exchanges)
    }

    fn count_decision(
        &self,
        numbers: &mut Numbers,
        function: &Arc<str>,
        outbound: bool,
        policy: &'static str,
        verdict: &'static str,
        rule: &str,
    ) {
        let table = &mut numbers.decisions;
        let view = |rule| (&**function, outbound, policy, verdict, rule);
        let (hash, hasher) =
            (self.hasher.hash_one(view(rule)), |entry: &(DecisionKey, u64)| self.hasher.hash_one(entry.0.view()));
        if let Some((_, count)) = table.find_mut(hash, |(key, _)| key.view() == view(rule)) {
            *count += 1;
            return;
        }
        // Rules come out of sandboxes. A broken sandbox could make up new names for ever.
        let rules = table.iter().filter(|(key, _)| key.function == *function).count();
        let rule = if rules < MOST_RULES && table.len() < MOST_SERIES { rule } else { "other" };
        let hash = self.hasher.hash_one(view(rule));
        match table.find_mut(hash, |(key, _)| key.view() == view(rule)) {
            Some((_, count)) => *count += 1,
            None => {
                let key = DecisionKey { function: function.clone(), outbound, policy, verdict, rule: rule.into() };
                table.insert_unique(hash, (key, 1), hasher);
            }
        }
    }

    fn count<K: Hash + Eq>(&self, table: &mut HashTable<(K, u64)>, key: &K, own: impl FnOnce(&K) -> K) {
        let hash = self.hasher.hash_one(key);
        if let Some((_, count)) = table.find_mut(hash, |(known, _)| known == key) {
            *count += 1;
        } else if table.len() < MOST_SERIES {
            table.insert_unique(hash, (own(key), 1), |(known, _)| self.hasher.hash_one(known));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A borrowed [`ExchangeKey`].
#[derive(PartialEq, Eq, Hash)]
struct ExchangeView<'a> {
    direction: u8,
    grpc: bool,
    status: u16,
    flag: &'static str,
    verdict: &'static str,
    source: Option<&'a Arc<str>>,
    target: Option<&'a Arc<str>>,
}

impl ExchangeView<'_> {
    fn key(&self) -> ExchangeKey {
        let Self { direction, grpc, status, flag, verdict, source, target } = *self;
        ExchangeKey { direction, grpc, status, flag, verdict, source: source.cloned(), target: target.cloned() }
    }

    /// Whether a policy refused the exchange: on this side, or on that of the callee, whose answer
    /// comes sooner than those of its instances.
    fn is_refused(&self) -> bool {
        self.is_denied() || matches!(self.status, 401 | 403 | 429)
    }

    /// Whether a policy refused the exchange on this side.
    fn is_denied(&self) -> bool {
        // Credentials and limits can be refused before a function judges.
        matches!((self.verdict, self.flag), ("deny", _) | ("", "UAEX" | "RL"))
    }
}

impl ExchangeKey {
    fn view(&self) -> ExchangeView<'_> {
        let Self { direction, grpc, status, flag, verdict, ref source, ref target } = *self;
        ExchangeView { direction, grpc, status, flag, verdict, source: source.as_ref(), target: target.as_ref() }
    }
}

impl DecisionKey {
    fn view(&self) -> (&str, bool, &'static str, &'static str, &str) {
        (&self.function, self.outbound, self.policy, self.verdict, &self.rule)
    }
}

fn engine_index(engine: EngineKind) -> usize {
    match engine {
        EngineKind::Microvm => 0,
        EngineKind::Wasm => 1,
        EngineKind::Inline => 2,
        EngineKind::Constant => 3,
    }
}

#[cfg(test)]
mod tests;
