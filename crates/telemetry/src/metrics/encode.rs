//! Adds the shards up and writes OpenMetrics text.

use super::{
    ClosedKey, DecisionKey, ExchangeKey, Exchanges, ExtensionKey, Histogram, ISTIO_BUCKETS, Metrics, Numbers,
    OverflowKey, RUN_BUCKETS, Shard, SignatureKey,
};
use crate::names::workload;
use leno_http::peer::TrafficDirection;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
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
    /// All metrics as OpenMetrics text, of type [`super::CONTENT_TYPE`].
    pub fn encode(&self, trust_domain: &str, gauges: Gauges, others: Vec<Box<dyn Collector>>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape {
            sum: self.sum(),
            trust_domain: trust_domain.to_owned(),
            gauges,
        }));
        for others in others {
            registry.register_collector(others);
        }
        let mut out = String::new();
        match text::encode(&mut out, &registry) {
            Ok(()) => out,
            // Writing to a string does not fail. An empty exposition would look like "nothing
            // happened".
            Err(error) => format!("# encoding failed: {error}\n"),
        }
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
    overflows: BTreeMap<OverflowKey, u64>,
    extensions: BTreeMap<ExtensionKey, u64>,
    extension_runs: Histogram<{ RUN_BUCKETS.len() + 1 }>,
    unproven: BTreeMap<(Arc<str>, &'static str), u64>,
    component_failures: BTreeMap<(Arc<str>, &'static str), u64>,
    proxy_protocol_refusals: BTreeMap<&'static str, u64>,
    closed: BTreeMap<ClosedKey, u64>,
}

impl Sum {
    fn add(&mut self, numbers: &Numbers) {
        for (key, exchanges) in &numbers.exchanges {
            let sum = self.exchanges.entry(key.clone()).or_default();
            sum.duration_ms.add(&exchanges.duration_ms);
            sum.bytes_in.add(&exchanges.bytes_in);
            sum.bytes_out.add(&exchanges.bytes_out);
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
        self.runs.iter_mut().zip(&numbers.runs).for_each(|(sum, runs)| sum.add(runs));
    }
}

fn add<K: Clone + Ord>(sum: &mut BTreeMap<K, u64>, numbers: &hashbrown::HashTable<(K, u64)>) {
    for (key, count) in numbers {
        *sum.entry(key.clone()).or_default() += count;
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.encode_exchanges(&mut encoder)?;
        self.encode_decisions(&mut encoder)?;
        self.encode_sandbox(&mut encoder)?;
        let destination = |function: &Arc<str>| [("destination", function.to_string())];
        counters(&mut encoder, "leno_retries", "Tries after the first.", self.sum.retries.iter(), destination)?;
        let help = "Endpoints taken out by outlier detection.";
        counters(&mut encoder, "leno_ejections", help, self.sum.ejections.iter(), destination)?;
        let help = "Connections to other nodes that could not be made. Another node is tried, and that one avoided for a while.";
        let node = |node: &Arc<str>| [("node", node.clone())];
        counters(&mut encoder, "leno_node_connect_failures", help, self.sum.unreachable.iter(), node)?;
        let help = "Signatures of tokens, verified or remembered.";
        let labels = |(algorithm, result): &SignatureKey| [("algorithm", *algorithm), ("result", *result)];
        counters(&mut encoder, "leno_signature_verifications", help, self.sum.signatures.iter(), labels)?;
        let help =
            "Requests counted by a counter of several keys, because their rate limit had no room for more counters.";
        counters(&mut encoder, "leno_rate_limit_overflow", help, self.sum.overflows.iter(), |(function, limit)| {
            [("function", function.to_string()), ("limit", limit.to_string())]
        })?;
        self.encode_extensions(&mut encoder)?;
        let help =
            "Connections whose other end was not proven to be the instance; nothing was sent to it or taken from it.";
        let labels =
            |(function, end): &(Arc<str>, &str)| [("function", function.to_string()), ("end", (*end).to_owned())];
        counters(&mut encoder, "leno_unproven_connections", help, self.sum.unproven.iter(), labels)?;
        let help = "Instances of components that ended badly.";
        let labels = |(function, failure): &(Arc<str>, &str)| {
            [("function", function.to_string()), ("failure", failure.to_string())]
        };
        counters(&mut encoder, "leno_component_failures", help, self.sum.component_failures.iter(), labels)?;
        let help = "Connections to the gateway that were closed for want of an acceptable PROXY header.";
        let refusals = self.sum.proxy_protocol_refusals.iter();
        counters(&mut encoder, "leno_proxy_protocol_refusals", help, refusals, |reason| [("reason", *reason)])?;
        let help = "Open exchanges that were closed, by the policy that does not permit them any more, or by the mesh (`drain`).";
        let labels = |(function, outbound, policy): &ClosedKey| {
            let direction = if *outbound { "outbound" } else { "inbound" };
            [("function", function.to_string()), ("direction", direction.to_owned()), ("policy", (*policy).to_owned())]
        };
        counters(&mut encoder, "leno_exchanges_closed", help, self.sum.closed.iter(), labels)?;
        self.encode_gauges(&mut encoder)
    }
}

impl Scrape {
    fn encode_exchanges(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let totals: Vec<_> =
            self.sum.exchanges.iter().map(|(key, sum)| (key, sum.duration_ms.counts.iter().sum::<u64>())).collect();
        let help = "Exchanges that are over.";
        counters(encoder, "istio_requests", help, totals.iter().map(|(key, sum)| (*key, sum)), |key| {
            self.exchange_labels(key)
        })?;
        let help = "From the request's head to the end of the response's body.";
        self.encode_histogram(encoder, "istio_request_duration_milliseconds", help, |sum| &sum.duration_ms)?;
        self.encode_histogram(encoder, "istio_request_bytes", "Bytes of request bodies.", |sum| &sum.bytes_in)?;
        self.encode_histogram(encoder, "istio_response_bytes", "Bytes of response bodies.", |sum| &sum.bytes_out)
    }

    fn encode_histogram(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        of: fn(&Exchanges) -> &Histogram<{ ISTIO_BUCKETS.len() + 1 }>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (key, exchanges) in &self.sum.exchanges {
            histogram(&mut family.encode_family(&self.exchange_labels(key))?, of(exchanges), &ISTIO_BUCKETS)?;
        }
        Ok(())
    }

    fn encode_decisions(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let direction = |outbound| if outbound { "outbound" } else { "inbound" };
        let (faults, decisions): (Vec<_>, Vec<_>) =
            self.sum.decisions.iter().partition(|(key, _)| key.verdict == "error");
        counters(encoder, "leno_decisions", "Verdicts, and the rules that decided.", decisions.into_iter(), |key| {
            [
                ("function", key.function.to_string()),
                ("direction", direction(key.outbound).to_owned()),
                ("policy", key.policy.to_owned()),
                ("rule", key.rule.to_string()),
                ("verdict", key.verdict.to_owned()),
            ]
        })?;
        let help = "Requests refused because a sandbox gave no verdict that could be relied on.";
        counters(encoder, "leno_sandbox_faults", help, faults.into_iter(), |key| {
            [
                ("function", key.function.to_string()),
                ("direction", direction(key.outbound).to_owned()),
                ("fault", key.policy.to_owned()),
            ]
        })
    }

    fn encode_sandbox(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Fresh start, run and reset of one sandbox.";
        let mut family = encoder.encode_descriptor("leno_sandbox_run_seconds", help, None, MetricType::Histogram)?;
        for (engine, runs) in ["microvm", "wasm", "inline", "constant"].into_iter().zip(&self.sum.runs) {
            if runs.counts.iter().any(|count| *count > 0) {
                histogram(&mut family.encode_family(&[("engine", engine)])?, runs, &RUN_BUCKETS)?;
            }
        }
        Ok(())
    }

    fn encode_extensions(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        if self.sum.extensions.is_empty() {
            return Ok(());
        }
        let help = "Runs of user-written policies, and how they ended.";
        counters(encoder, "leno_extension_runs", help, self.sum.extensions.iter(), |key| {
            let (function, extension, phase, result, failure) = key;
            [
                ("function", function.to_string()),
                ("extension", extension.to_string()),
                ("phase", (*phase).to_owned()),
                ("result", (*result).to_owned()),
                ("failure", (*failure).to_owned()),
            ]
        })?;
        let help = "Fresh start and run of one instance of a user-written policy.";
        let mut family = encoder.encode_descriptor("leno_extension_run_seconds", help, None, MetricType::Histogram)?;
        histogram(&mut family.encode_family::<[(&str, &str); 0]>(&[])?, &self.sum.extension_runs, &RUN_BUCKETS)
    }

    fn encode_gauges(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let Gauges { entries: Entries { counters, ref by_limit, tokens, store }, log_lines_dropped, spans_dropped } =
            self.gauges;
        if let Some(store) = store {
            encode_store(encoder, &store)?;
        }
        let help = "Counters of rate limits, and verified tokens, in memory.";
        let mut family = encoder.encode_descriptor("leno_ledger_entries", help, None, MetricType::Gauge)?;
        for (kind, entries) in [("quota", counters), ("token", tokens)] {
            let entries = i64::try_from(entries).unwrap_or(i64::MAX);
            family.encode_family(&[("kind", kind)])?.encode_gauge(&entries)?;
        }
        let help = "Counters of a rate limit, one for each key.";
        let mut family = encoder.encode_descriptor("leno_rate_limit_counters", help, None, MetricType::Gauge)?;
        for (function, limit, counters) in by_limit {
            let counters = i64::try_from(*counters).unwrap_or(i64::MAX);
            family.encode_family(&[("function", &**function), ("limit", &**limit)])?.encode_gauge(&counters)?;
        }
        for (name, help, count) in [
            ("leno_access_log_dropped", "Access log lines that were lost.", log_lines_dropped),
            ("leno_spans_dropped", "Spans that were lost before export.", spans_dropped),
        ] {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let mut family = encoder.encode_descriptor("leno_build", "This build.", None, MetricType::Info)?;
        family.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }

    fn exchange_labels(&self, key: &ExchangeKey) -> [(&'static str, String); 14] {
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
            ("reporter", if inbound { "destination" } else { "source" }.to_owned()),
            ("source_workload", source_name),
            ("source_workload_namespace", source_namespace),
            ("source_principal", key.source.as_deref().map_or_else(unknown, str::to_owned)),
            ("destination_workload", target_name.clone()),
            ("destination_workload_namespace", target_namespace.clone()),
            ("destination_principal", principal),
            ("destination_service", service),
            ("destination_service_name", target_name),
            ("request_protocol", if key.grpc { "grpc" } else { "http" }.to_owned()),
            ("response_code", key.status.to_string()),
            ("response_flags", key.flag.to_owned()),
            ("connection_security_policy", security.to_owned()),
            ("leno_verdict", key.verdict.to_owned()),
        ]
    }
}

fn encode_store(encoder: &mut DescriptorEncoder, store: &StoreFigures) -> fmt::Result {
    let help = "Whether the quota store answers: 1, or 0.";
    let mut up = encoder.encode_descriptor("leno_quota_store_up", help, None, MetricType::Gauge)?;
    up.encode_gauge(&i64::from(store.answers))?;
    let help = "Questions about counters to the quota store, and whether they were answered.";
    let mut family = encoder.encode_descriptor("leno_quota_store_questions", help, None, MetricType::Counter)?;
    for (result, count) in [("answered", store.answered), ("failed", store.failed)] {
        family.encode_family(&[("result", result)])?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    let help = "Time that answers of the quota store took.";
    let mut seconds = encoder.encode_descriptor("leno_quota_store_answer_seconds", help, None, MetricType::Counter)?;
    seconds.encode_counter::<NoLabelSet, _, u64>(&store.seconds, None)?;
    for (name, help, count) in [
        (
            "leno_quota_store_answers",
            "Answers of the quota store, each to all questions sent together.",
            store.round_trips,
        ),
        ("leno_quota_store_granted", "Requests that the quota store granted to this node.", store.granted),
        ("leno_quota_store_returned", "Granted requests that this node gave back unused.", store.returned),
        ("leno_quota_store_refused", "Requests refused because the quota store did not answer.", store.refused),
    ] {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    Ok(())
}

fn counters<'a, K: 'a, V: prometheus_client::encoding::EncodeLabelValue, const N: usize>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    counts: impl Iterator<Item = (&'a K, &'a u64)>,
    labels: impl Fn(&K) -> [(&'static str, V); N],
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (key, count) in counts {
        family.encode_family(&labels(key))?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
    }
    Ok(())
}

fn histogram<const N: usize>(encoder: &mut MetricEncoder, histogram: &Histogram<N>, bounds: &[f64]) -> fmt::Result {
    let bounds = bounds.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(histogram.counts).collect();
    encoder.encode_histogram::<NoLabelSet>(histogram.sum, histogram.counts.iter().sum(), &buckets, None)
}
