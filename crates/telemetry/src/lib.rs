//! Telemetry of exchanges: one record each, reported to metrics, access log, spans, and the ring of
//! recent records for `leno explain`.

#![forbid(unsafe_code)]

pub mod access_log;
pub mod connection_counts;
pub mod destinations;
pub mod exchange;
pub mod exposition;
pub mod families;
pub mod flows;
pub mod inputs;
pub mod metrics;
pub mod names;
mod namespaces;
pub mod record;
mod record_encoding;
mod record_ring;
pub mod recorder;
mod refusals;
pub mod request_line;
pub mod ring;
pub mod span;
pub mod stats;
#[cfg(test)]
mod testing;

use access_log::AccessLog;
use connection_counts::Connections;
use destinations::Destinations;
use exposition::Exposition;
use flows::{ConnectionFlows, Flows};
use leno_model::MeshConfig;
use leno_namespaces::Namespaces;
use metrics::{Entries, Gauges, Metrics};
use ring::{Explanation, Ring};
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
    /// Refusals before a request, and connections without requests.
    pub connection_flows: ConnectionFlows,
    /// Connections without requests.
    pub connections: Connections,
    /// The refused destinations of functions.
    pub destinations: Destinations,
    /// The access log; `None`: no lines are written.
    pub log: Option<AccessLog>,
    /// The span exporter; `None`: spans are not exported.
    pub spans: Option<Spans>,
    /// The bounds of namespaces on this node, and their use.
    pub namespaces: Arc<Namespaces>,
    trust_domain: String,
}

impl Telemetry {
    /// Opens the sinks that the mesh configures.
    pub fn start(mesh: &MeshConfig) -> io::Result<Self> {
        let log = AccessLog::open(&mesh.access_log)?;
        let spans = mesh.otlp.as_deref().map(Spans::start).transpose()?;
        Ok(Self { log: Some(log), spans, ..Self::quiet(mesh.trust_domain.as_str()) })
    }

    /// Metrics and ring only.
    pub fn quiet(trust_domain: &str) -> Self {
        Self {
            metrics: Metrics::default(),
            ring: Ring::default(),
            connection_flows: ConnectionFlows::default(),
            connections: Connections::default(),
            destinations: Destinations::default(),
            log: None,
            spans: None,
            namespaces: Arc::default(),
            trust_domain: trust_domain.to_owned(),
        }
    }

    /// The present metrics of the sinks, and `entries`.
    pub fn exposition(&self, entries: Entries) -> Exposition {
        let gauges = Gauges {
            entries,
            log_lines_dropped: self.log.as_ref().map_or(0, AccessLog::dropped),
            spans_dropped: self.spans.as_ref().map_or(0, Spans::dropped),
        };
        Exposition::default()
            .with(&self.metrics.scrape(&self.trust_domain, gauges))
            .with(&namespaces::Scrape::of(&self.namespaces))
    }

    /// The hops of a request, in the order in which they began; empty: no record is kept.
    pub fn explain(&self, request_id: &str) -> Vec<Explanation> {
        refusals::explain(&self.ring, &self.connection_flows, request_id)
    }

    /// The events after `seen`, which is [`Flows::next`] of an earlier answer; `None`: all.
    pub fn flows(&self, seen: Option<&str>) -> Flows {
        Flows::after(&self.ring, &self.connection_flows, seen)
    }

    /// Waits until everything recorded so far is written or sent, or could not be. Blocks for some
    /// seconds at most.
    pub fn flush(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
        if let Some(spans) = &self.spans {
            spans.flush();
        }
    }
}
