//! Where records go: metrics, the ring of recent records, access log and spans.

pub(crate) mod access_log;
pub mod connection_counts;
pub mod destinations;
pub mod flows;
pub(crate) mod inputs;
pub(crate) mod kept;
pub mod metrics;
pub(crate) mod names;
mod namespaces;
pub(crate) mod observed;
pub(crate) mod record;
pub(crate) mod recorder;
pub(crate) mod request_line;
pub mod ring;
pub(crate) mod span;
pub mod stats;

use access_log::AccessLog;
use connection_counts::Connections;
use destinations::Destinations;
use flows::{Flows, Others};
use leno_config::slice::MeshSlice;
use leno_namespaces::Namespaces;
use metrics::{Gauges, LedgerEntries, Metrics};
use prometheus_client::collector::Collector;
use ring::Ring;
use span::Spans;
use std::io;
use std::sync::Arc;

/// All telemetry sinks of a node. Each worker has its shards of them in a [`recorder::Recorder`].
#[derive(Debug)]
pub struct Telemetry {
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Recent records, for `leno explain`.
    pub ring: Ring,
    /// What was refused before it was a request.
    pub others: Others,
    /// Connections without requests.
    pub connections: Connections,
    /// What functions wanted to reach and were refused.
    pub destinations: Destinations,
    /// The access log; `None`: no lines are written.
    pub log: Option<AccessLog>,
    /// The span exporter; `None`: spans are not exported.
    pub spans: Option<Spans>,
    /// The bounds of namespaces on this node, and what they use.
    pub namespaces: Arc<Namespaces>,
    trust_domain: String,
}

impl Telemetry {
    /// Opens the sinks that the mesh configures.
    pub fn start(mesh: &MeshSlice) -> io::Result<Self> {
        let log = AccessLog::open(&mesh.access_log)?;
        let spans = mesh.otlp.as_deref().map(Spans::start).transpose()?;
        Ok(Self { log: Some(log), spans, ..Self::quiet(&mesh.trust_domain) })
    }

    /// Metrics and ring only.
    pub fn quiet(trust_domain: &str) -> Self {
        Self {
            metrics: Metrics::default(),
            ring: Ring::default(),
            others: Others::default(),
            connections: Connections::default(),
            destinations: Destinations::default(),
            log: None,
            spans: None,
            namespaces: Arc::default(),
            trust_domain: trust_domain.to_owned(),
        }
    }

    /// All metrics as OpenMetrics text, of type [`metrics::CONTENT_TYPE`]: those of exchanges, those of the ledger, and those of `others`.
    pub fn metrics_text(&self, ledger: LedgerEntries, mut others: Vec<Box<dyn Collector>>) -> String {
        others.push(Box::new(namespaces::Scrape::of(&self.namespaces)));
        let gauges = Gauges {
            ledger,
            log_lines_dropped: self.log.as_ref().map_or(0, AccessLog::dropped),
            spans_dropped: self.spans.as_ref().map_or(0, Spans::dropped),
        };
        self.metrics.encode(&self.trust_domain, gauges, others)
    }

    /// What happened after `seen`, which is [`Flows::next`] of an earlier answer; `None`: all that is remembered.
    pub fn flows(&self, seen: Option<&str>) -> Flows {
        Flows::after(&self.ring, &self.others, seen)
    }

    /// Waits until everything recorded so far is written or sent, or could not be. Blocks for some seconds at most.
    pub fn flush(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
        if let Some(spans) = &self.spans {
            spans.flush();
        }
    }
}
