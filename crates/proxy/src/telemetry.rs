//! Where records go: metrics, ring, access log, spans.

pub(crate) mod access_log;
pub(crate) mod asked;
pub mod metrics;
pub(crate) mod names;
pub(crate) mod observed;
pub(crate) mod record;
pub(crate) mod recorder;
pub mod ring;
pub(crate) mod span;
pub mod stats;

use access_log::AccessLog;
use leno_config::slice::MeshSlice;
use metrics::{Gauges, LedgerEntries, Metrics};
use prometheus_client::collector::Collector;
use ring::Ring;
use span::Spans;
use std::io;

/// All of a node's sinks. Workers take their shards from it with [`recorder::Recorder::new`].
#[derive(Debug)]
pub struct Telemetry {
    /// Numbers.
    pub metrics: Metrics,
    /// Recent records, for `leno explain`.
    pub ring: Ring,
    /// `None`: no lines are written.
    pub log: Option<AccessLog>,
    /// `None`: spans are not exported.
    pub spans: Option<Spans>,
    trust_domain: String,
}

impl Telemetry {
    /// Opens what the mesh is configured to write to.
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
            log: None,
            spans: None,
            trust_domain: trust_domain.to_owned(),
        }
    }

    /// All numbers in OpenMetrics text, of type [`metrics::CONTENT_TYPE`]: those of exchanges, those of the ledger, and what others count.
    pub fn metrics_text(&self, ledger: LedgerEntries, others: Vec<Box<dyn Collector>>) -> String {
        let gauges = Gauges {
            ledger,
            log_lines_dropped: self.log.as_ref().map_or(0, AccessLog::dropped),
            spans_dropped: self.spans.as_ref().map_or(0, Spans::dropped),
        };
        self.metrics.encode(&self.trust_domain, gauges, others)
    }

    /// Waits until all that was recorded so far is written or sent, or could not be. Blocks, for some seconds at most.
    pub fn flush(&self) {
        if let Some(log) = &self.log {
            log.flush();
        }
        if let Some(spans) = &self.spans {
            spans.flush();
        }
    }
}
