//! The resource use of namespaces, as metrics.

use leno_namespaces::{Namespaces, ResourceUse, Source, Usage};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::Arc;

/// The use at one moment.
#[derive(Debug)]
pub(super) struct Scrape {
    usage: Vec<Usage>,
    omitted: Vec<OmittedLines>,
}

/// Lines of a namespace omitted from a log.
#[derive(Debug)]
struct OmittedLines {
    namespace: Arc<str>,
    source: Source,
    lines: u64,
    bytes: u64,
}

impl Scrape {
    pub(super) fn of(namespaces: &Namespaces) -> Self {
        let of_one = |namespace: &Arc<leno_namespaces::Namespace>| {
            let name = namespace.name().clone();
            let omitted = |(source, lines, bytes)| OmittedLines { namespace: name.clone(), source, lines, bytes };
            namespace.log.totals().map(omitted)
        };
        let omitted = namespaces.all().iter().flat_map(of_one).filter(|omitted| omitted.lines > 0).collect();
        Self { usage: namespaces.usage(), omitted }
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        if self.usage.is_empty() {
            return Ok(());
        }
        let used: fn(&ResourceUse) -> u64 = |used| used.used;
        let bound: fn(&ResourceUse) -> u64 = |used| used.bound;
        for (name, help, of) in [
            ("leno_namespace_used", "What a namespace uses of the node.", used),
            ("leno_namespace_bound", "What a namespace may use of the node.", bound),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for usage in &self.usage {
                for (resource, used) in resources(usage) {
                    let value = i64::try_from(of(&used)).unwrap_or(i64::MAX);
                    let labels = [("namespace", &*usage.namespace), ("resource", resource)];
                    family.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        let help = "Refused because a namespace had all that it may use of the node.";
        let mut family = encoder.encode_descriptor("leno_namespace_refused", help, None, MetricType::Counter)?;
        for usage in &self.usage {
            for (resource, used) in resources(usage).into_iter().filter(|(_, used)| used.refused > 0) {
                let labels = [("namespace", &*usage.namespace), ("resource", resource)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&used.refused, None)?;
            }
        }
        let lines: fn(&OmittedLines) -> u64 = |omitted| omitted.lines;
        let bytes: fn(&OmittedLines) -> u64 = |omitted| omitted.bytes;
        for (name, help, of) in [
            ("leno_log_lines_dropped", "Lines of logs that were left out, beyond a namespace's rate.", lines),
            ("leno_log_bytes_dropped", "Bytes of logs that were left out, beyond a namespace's rate.", bytes),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for omitted in &self.omitted {
                let labels = [("namespace", &*omitted.namespace), ("source", omitted.source.name())];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&of(omitted), None)?;
            }
        }
        Ok(())
    }
}

/// The counted resources, by the names of the fields that bound them.
fn resources(usage: &Usage) -> [(&'static str, ResourceUse); 7] {
    [
        ("instances", usage.instances),
        ("connections", usage.connections),
        ("open_requests", usage.open_requests),
        ("waiting_requests", usage.waiting_requests),
        ("image_bytes", usage.image_bytes),
        ("image_files", usage.image_files),
        ("pull_bytes_per_second", usage.pull_bytes_per_second),
    ]
}
