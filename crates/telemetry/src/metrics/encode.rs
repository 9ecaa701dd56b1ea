//! Adds the shards up for a scrape.

use super::{
    ClosedKey, DecisionKey, ExchangeKey, Exchanges, ExtensionKey, FaultKey, Histogram, ISTIO_BUCKETS, Metrics, Numbers,
    OverflowKey, RUN_BUCKETS, Shard, SignatureKey,
};
use crate::exposition::{Bucket, Collector, Exposition};
use crate::families;
use crate::names::workload;
use leno_http::peer::TrafficDirection;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// Values that are read at the moment of a scrape.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Counters of rate limits and verified tokens.
    pub entries: Entries,
    /// Access log lines that were lost because the writer did not keep up or could not write.
    pub log_lines_dropped: u64,
    /// Spans that were lost because the exporter did not keep up or could not send them.
    pub spans_dropped: u64,
}

/// The numbers of counters and tokens that the node holds.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    /// Counters of rate limits.
    pub counters: usize,
    /// Counters of each rate limit: (function, limit, counters).
    pub by_limit: Vec<(Arc<str>, Box<str>, usize)>,
    /// Verified tokens that are remembered.
    pub tokens: usize,
    /// The quota store, if there is one.
    pub store: Option<StoreFigures>,
}

/// The traffic between the node and its quota store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreFigures {
    /// Whether it answers.
    pub answers: bool,
    /// Questions about counters that were answered.
    pub answered: u64,
    /// Those that were not.
    pub failed: u64,
    /// How long answers took, all together.
    pub seconds: f64,
    /// Answers; one is to all questions that were sent together.
    pub round_trips: u64,
    /// Requests granted.
    pub granted: u64,
    /// Requests given back.
    pub returned: u64,
    /// Requests refused because there was no answer.
    pub refused: u64,
}

impl Metrics {
    /// The present metrics of exchanges, and `gauges`.
    pub(crate) fn scrape(&self, trust_domain: &str, gauges: Gauges) -> impl Collector {
        Scrape { sum: self.sum(), trust_domain: trust_domain.to_owned(), gauges }
    }

    /// The shards of all workers. Workers wait while one is locked.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for shard in self.shards() {
            sum.add(&shard.lock());
        }
        sum
    }
}

#[derive(Debug)]
struct Scrape {
    sum: Sum,
    trust_domain: String,
    gauges: Gauges,
}

#[derive(Debug, Default)]
struct Sum {
    exchanges: BTreeMap<ExchangeKey, Exchanges>,
    decisions: BTreeMap<DecisionKey, u64>,
    retries: BTreeMap<Arc<str>, u64>,
    ejections: BTreeMap<Arc<str>, u64>,
    unreachable: BTreeMap<Arc<str>, u64>,
    signatures: BTreeMap<SignatureKey, u64>,
    runs: [Histogram<{ RUN_BUCKETS.len() + 1 }>; 4],
    remembered: u64,
    overflows: BTreeMap<OverflowKey, u64>,
    extensions: BTreeMap<ExtensionKey, u64>,
    extension_runs: Histogram<{ RUN_BUCKETS.len() + 1 }>,
    unproven: BTreeMap<(Arc<str>, &'static str), u64>,
    component_failures: BTreeMap<(Arc<str>, &'static str), u64>,
    proxy_protocol_refusals: BTreeMap<&'static str, u64>,
    closed: BTreeMap<ClosedKey, u64>,
    route_copies: BTreeMap<(Arc<str>, &'static str), u64>,
    faults: BTreeMap<FaultKey, u64>,
}

impl Sum {
    fn add(&mut self, numbers: &Numbers) {
        for (key, exchanges) in &numbers.exchanges {
            let sum = self.exchanges.entry(key.clone()).or_default();
            sum.duration_ms.add(&exchanges.duration_ms);
            sum.bytes_in.add(&exchanges.bytes_in);
            sum.bytes_out.add(&exchanges.bytes_out);
            sum.add_exemplars(exchanges);
        }
        add(&mut self.decisions, &numbers.decisions);
        add(&mut self.retries, &numbers.retries);
        add(&mut self.ejections, &numbers.ejections);
        add(&mut self.unreachable, &numbers.unreachable);
        add(&mut self.signatures, &numbers.signatures);
        add(&mut self.overflows, &numbers.overflows);
        add(&mut self.extensions, &numbers.extensions);
        self.extension_runs.add(&numbers.extension_runs);
        add(&mut self.unproven, &numbers.unproven);
        add(&mut self.component_failures, &numbers.component_failures);
        add(&mut self.proxy_protocol_refusals, &numbers.proxy_protocol_refusals);
        add(&mut self.closed, &numbers.closed);
        add(&mut self.route_copies, &numbers.route_copies);
        add(&mut self.faults, &numbers.faults);
        self.remembered += numbers.remembered;
        self.runs.iter_mut().zip(&numbers.runs).for_each(|(sum, runs)| sum.add(runs));
    }
}

fn add<K: Clone + Ord>(sum: &mut BTreeMap<K, u64>, numbers: &hashbrown::HashTable<(K, u64)>) {
    for (key, count) in numbers {
        *sum.entry(key.clone()).or_default() += count;
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        self.collect_exchanges(exposition);
        self.collect_policies(exposition);
        self.collect_functions(exposition);
        self.collect_gauges(exposition);
    }
}

impl Scrape {
    fn collect_exchanges(&self, exposition: &mut Exposition) {
        let exchanges: Vec<_> =
            self.sum.exchanges.iter().map(|(key, exchanges)| (self.exchange_labels(key), exchanges)).collect();
        let total = |exchanges: &Exchanges| exchanges.duration_ms.counts.iter().sum::<u64>();
        let totals = exchanges.iter().map(|(labels, exchanges)| (labels.each_ref(), total(exchanges)));
        exposition.family(&families::REQUESTS).samples(totals);
        let mut durations = exposition.family(&families::REQUEST_DURATION);
        for (labels, Exchanges { duration_ms, exemplars, .. }) in &exchanges {
            let exemplar = |bucket: usize| exemplars.as_ref().and_then(|exemplars| exemplars[bucket].as_ref());
            let buckets = buckets(duration_ms, &ISTIO_BUCKETS).enumerate();
            let buckets = buckets.map(|(index, bucket)| Bucket { exemplar: exemplar(index), ..bucket });
            durations.histogram(labels.each_ref(), duration_ms.sum, buckets);
        }
        type Bytes = fn(&Exchanges) -> &Histogram<{ ISTIO_BUCKETS.len() + 1 }>;
        let sizes: [(_, Bytes); 2] =
            [(&families::REQUEST_BYTES, |of| &of.bytes_in), (&families::RESPONSE_BYTES, |of| &of.bytes_out)];
        for (family, of) in sizes {
            let mut sizes = exposition.family(family);
            for (labels, exchanges) in &exchanges {
                let histogram = of(exchanges);
                sizes.histogram(labels.each_ref(), histogram.sum, buckets(histogram, &ISTIO_BUCKETS));
            }
        }
    }

    fn collect_policies(&self, exposition: &mut Exposition) {
        let (faults, decisions): (Vec<_>, Vec<_>) =
            self.sum.decisions.iter().partition(|(key, _)| key.verdict == "error");
        exposition.family(&families::DECISIONS).samples(decisions.into_iter().map(|(key, count)| {
            let DecisionKey { function, outbound, policy, rule, verdict } = key;
            ([&**function, side(*outbound), policy, rule, verdict], *count)
        }));
        let faults = faults.into_iter();
        let faults = faults.map(|(key, count)| ([&*key.function, side(key.outbound), key.policy], *count));
        exposition.family(&families::SANDBOX_FAULTS).samples(faults);
        let mut runs = exposition.family(&families::SANDBOX_RUNS);
        for (engine, of_engine) in ["microvm", "wasm", "inline", "constant"].into_iter().zip(&self.sum.runs) {
            if of_engine.counts.iter().any(|count| *count > 0) {
                runs.histogram([engine], of_engine.sum, buckets(of_engine, &RUN_BUCKETS));
            }
        }
        exposition.family(&families::REMEMBERED).samples([([""; 0], self.sum.remembered)]);
        let signatures = self.sum.signatures.iter();
        let signatures = signatures.map(|((algorithm, result), count)| ([*algorithm, *result], *count));
        exposition.family(&families::SIGNATURES).samples(signatures);
        let overflows = self.sum.overflows.iter().map(|((function, limit), count)| ([&**function, limit], *count));
        exposition.family(&families::RATE_LIMIT_OVERFLOW).samples(overflows);
        exposition.family(&families::EXTENSION_RUNS).samples(self.sum.extensions.iter().map(|(key, count)| {
            let (function, extension, phase, result, failure) = key;
            ([&**function, extension, phase, result, failure], *count)
        }));
        let runs = &self.sum.extension_runs;
        let mut times = exposition.family(&families::EXTENSION_RUN_TIMES);
        times.histogram([""; 0], runs.sum, buckets(runs, &RUN_BUCKETS));
    }

    fn collect_functions(&self, exposition: &mut Exposition) {
        for (family, counts) in [
            (&families::RETRIES, &self.sum.retries),
            (&families::EJECTIONS, &self.sum.ejections),
            (&families::NODE_CONNECT_FAILURES, &self.sum.unreachable),
        ] {
            exposition.family(family).samples(counts.iter().map(|(of, count)| ([of], *count)));
        }
        for (family, counts) in [
            (&families::UNPROVEN_CONNECTIONS, &self.sum.unproven),
            (&families::COMPONENT_FAILURES, &self.sum.component_failures),
            (&families::ROUTE_COPIES, &self.sum.route_copies),
        ] {
            exposition.family(family).samples(counts.iter().map(|((of, what), count)| ([&**of, *what], *count)));
        }
        let refusals = self.sum.proxy_protocol_refusals.iter().map(|(reason, count)| ([*reason], *count));
        exposition.family(&families::PROXY_PROTOCOL_REFUSALS).samples(refusals);
        let faults = self.sum.faults.iter();
        let faults = faults.map(|((kind, route, fault), count)| ([*kind, &**route, &**fault], *count));
        exposition.family(&families::FAULTS).samples(faults);
        let closed = self.sum.closed.iter();
        let closed =
            closed.map(|((function, outbound, policy), count)| ([&**function, side(*outbound), policy], *count));
        exposition.family(&families::EXCHANGES_CLOSED).samples(closed);
    }

    fn collect_gauges(&self, exposition: &mut Exposition) {
        let Gauges { entries: Entries { counters, by_limit, tokens, store }, log_lines_dropped, spans_dropped } =
            &self.gauges;
        if let Some(store) = store {
            collect_store(exposition, store);
        }
        let entries = [(["quota"], *counters), (["token"], *tokens)];
        exposition.family(&families::LEDGER_ENTRIES).samples(entries);
        let by_limit = by_limit.iter().map(|(function, limit, counters)| ([&**function, limit], *counters));
        exposition.family(&families::RATE_LIMIT_COUNTERS).samples(by_limit);
        exposition.family(&families::ACCESS_LOG_DROPPED).sample([""; 0], *log_lines_dropped);
        exposition.family(&families::SPANS_DROPPED).sample([""; 0], *spans_dropped);
        exposition.family(&families::BUILD).sample([env!("CARGO_PKG_VERSION")], 1_u32);
    }

    /// The values of the labels of exchanges, in the order of [`families`].
    fn exchange_labels(&self, key: &ExchangeKey) -> [String; 14] {
        let unknown = || "unknown".to_owned();
        let inbound = key.direction != TrafficDirection::Outbound as u8;
        let gateway = key.direction == TrafficDirection::Gateway as u8;
        let source = key.source.as_deref().and_then(workload);
        let target = key.target.as_deref().and_then(|target| target.split_once('/'));
        let (source_namespace, source_name) = match source {
            Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
            None if gateway => (unknown(), "gateway".to_owned()),
            None => (unknown(), unknown()),
        };
        let (target_namespace, target_name) = match target {
            Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
            None => (unknown(), unknown()),
        };
        let (service, principal) = match target {
            Some((namespace, name)) => (
                format!("{name}.{namespace}.svc.cluster.local"),
                format!("spiffe://{}/ns/{namespace}/sa/{name}", self.trust_domain),
            ),
            None => (unknown(), unknown()),
        };
        // As in Istio, only the side that saw the peer's identity reports it.
        let security = match (inbound, &key.source) {
            (false, _) => "unknown",
            (true, Some(_)) => "mutual_tls",
            (true, None) => "none",
        };
        [
            if inbound { "destination" } else { "source" }.to_owned(),
            source_name,
            source_namespace,
            key.source.as_deref().map_or_else(unknown, str::to_owned),
            target_name.clone(),
            target_namespace,
            principal,
            service,
            target_name,
            if key.grpc { "grpc" } else { "http" }.to_owned(),
            key.status.to_string(),
            key.flag.to_owned(),
            security.to_owned(),
            key.verdict.to_owned(),
        ]
    }
}

fn collect_store(exposition: &mut Exposition, store: &StoreFigures) {
    exposition.family(&families::QUOTA_STORE_UP).sample([""; 0], store.answers);
    let questions = [(["answered"], store.answered), (["failed"], store.failed)];
    exposition.family(&families::QUOTA_STORE_QUESTIONS).samples(questions);
    exposition.family(&families::QUOTA_STORE_SECONDS).sample([""; 0], store.seconds);
    for (family, count) in [
        (&families::QUOTA_STORE_ANSWERS, store.round_trips),
        (&families::QUOTA_STORE_GRANTED, store.granted),
        (&families::QUOTA_STORE_RETURNED, store.returned),
        (&families::QUOTA_STORE_REFUSED, store.refused),
    ] {
        exposition.family(family).sample([""; 0], count);
    }
}

/// The side of an exchange whose policies decided.
fn side(outbound: bool) -> &'static str {
    if outbound { "outbound" } else { "inbound" }
}

fn buckets<const N: usize>(histogram: &Histogram<N>, bounds: &[f64]) -> impl Iterator<Item = Bucket<'static>> {
    let bounds = bounds.iter().copied().chain([f64::INFINITY]);
    bounds.zip(histogram.counts).map(|(bound, count)| Bucket { bound, count, exemplar: None })
}
