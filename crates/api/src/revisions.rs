//! Views of revisions: listings and metrics.

use leno_control::{Control, RolloutEvent};
use leno_model::Container;
use leno_model::{FunctionId, revision};
use leno_proxy::Node;
use leno_telemetry::stats::Counts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;

/// The rows of `leno get revisions`, by function, oldest first. Rows have counts while several
/// revisions get requests.
pub(crate) fn rows(control: &Control, node: &Node) -> Value {
    let counted: HashMap<(FunctionId, String), Counts> = counted(node).into_iter().collect();
    let status = control.status();
    let containers: HashMap<(FunctionId, String), Container> =
        control.containers().into_iter().map(|(id, revision, container)| ((id, revision), container)).collect();
    let rows = status.functions.iter().flat_map(|function| {
        function.revisions.iter().map(|revision| {
            let key = (function.function.clone(), revision.revision.clone());
            let (counts, container) = (counted.get(&key), containers.get(&key));
            json!({
                "revision": revision.revision,
                "function": function.function.to_string(),
                "percent": revision.percent,
                "tags": revision.tags,
                "headers": revision.headers,
                "step": revision.step.map(|(step, steps)| format!("{step} of {steps}")),
                "created": revision.created_ms as f64 / 1e3,
                "requests": counts.map(|counts| counts.requests),
                "failures": counts.map(|counts| counts.failed),
                "slow": counts.map(|counts| counts.slow),
                "failed": revision.failed,
                "image": container.map(|container| &container.image),
                "digest": container.and_then(|container| container.digest.as_ref()),
            })
        })
    });
    rows.collect()
}

/// A row of `leno get events`; `from` and `to` are percentages.
pub(crate) fn event(event: &RolloutEvent) -> Value {
    json!({
        "time": event.at_ms as f64 / 1e3,
        "kind": "rollout",
        "function": event.function.to_string(),
        "revision": event.revision,
        "from": event.from,
        "to": event.to,
        "reason": event.reason,
    })
}

fn counted(node: &Node) -> Vec<((FunctionId, String), Counts)> {
    let of = |(id, counts): (FunctionId, Vec<(u32, Counts)>)| {
        counts.into_iter().map(move |(number, counts)| ((id.clone(), revision::name(&id, number)), counts))
    };
    node.revision_stats.counts().into_iter().flat_map(of).collect()
}

/// Counts of functions with several revisions in use.
#[derive(Debug)]
pub(crate) struct Scrape(Vec<((FunctionId, String), Counts)>);

impl Scrape {
    /// The present counts.
    pub(crate) fn of(node: &Node) -> Self {
        Self(counted(node))
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        type Of = fn(&Counts) -> u64;
        let families: [(&str, &str, Of); 3] = [
            ("leno_revision_requests", "Requests that a revision of several had.", |counts| counts.requests),
            ("leno_revision_failed_requests", "Of these, those that failed.", |counts| counts.failed),
            ("leno_revision_slow_requests", "Of these, those slower than the rollout's limit.", |counts| counts.slow),
        ];
        for (name, help, of) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for ((function, revision), counts) in &self.0 {
                let labels = [("function", function.to_string()), ("revision", revision.clone())];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&of(counts), None)?;
            }
        }
        Ok(())
    }
}
