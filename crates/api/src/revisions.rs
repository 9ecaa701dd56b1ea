//! Views of revisions: listings and metrics.

use leno_control::{Control, RolloutEvent};
use leno_model::Container;
use leno_model::{FunctionId, revision};
use leno_proxy::{FunctionEntry, Node};
use leno_telemetry::stats::Counts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The rows of `leno get revisions`, by function, oldest first. Rows have counts while several
/// revisions get requests.
pub(crate) fn rows(control: &Control, node: &Node) -> Value {
    let counted = counted(node).map(|(id, number, counts)| ((id.clone(), revision::name(&id, number)), counts));
    let counted: HashMap<(FunctionId, String), Counts> = counted.collect();
    let status = control.status();
    let containers: HashMap<(FunctionId, String), Container> =
        control.containers().into_iter().map(|(id, revision, container)| ((id, revision), container)).collect();
    let rows = status.functions.iter().flat_map(|function| {
        function.revisions.iter().map(|revision| {
            let key = (function.function.clone(), revision.revision.clone());
            let (counts, container) = (counted.get(&key), containers.get(&key));
            json!({
                "revision": revision.revision,
                "declared": revision.declared,
                "function": function.function.to_string(),
                "percent": revision.percent,
                "tags": revision.tags,
                "headers": revision.headers,
                "step": revision.step.map(|(step, steps)| format!("{step} of {steps}")),
                "paused": revision.paused,
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

/// The names of declared revisions that get requests on a node.
#[derive(Debug)]
pub(crate) struct DeclaredNames(HashMap<(FunctionId, u32), String>);

impl DeclaredNames {
    pub(crate) fn of(node: &Node) -> Self {
        let snapshot = node.snapshot.load();
        let of = |entry: &Arc<FunctionEntry>| {
            let id = entry.config.id.clone();
            let names = entry.config.revisions.names.iter().cloned();
            names.map(move |(number, name)| ((id.clone(), number), name)).collect::<Vec<_>>()
        };
        let named = snapshot.functions.values().filter(|entry| !entry.config.revisions.names.is_empty());
        Self(named.flat_map(of).collect())
    }

    /// The revision in words, such as `checkout-00003 (stable)`.
    pub(crate) fn label(&self, function: &FunctionId, revision: u32) -> String {
        revision::label(function, revision, self.0.get(&(function.clone(), revision)).map(String::as_str))
    }

    /// The labels of a revision in metrics. Dashboards follow `revision_name`, which stays when the
    /// content of a declared revision changes.
    pub(crate) fn labels(&self, function: &FunctionId, revision: u32) -> Vec<(&'static str, String)> {
        let number = if revision > 0 { revision::name(function, revision) } else { String::new() };
        let declared = self.0.get(&(function.clone(), revision)).map(|name| ("revision_name", name.clone()));
        [("function", function.to_string()), ("revision", number)].into_iter().chain(declared).collect()
    }
}

fn counted(node: &Node) -> impl Iterator<Item = (FunctionId, u32, Counts)> {
    let of = |(id, counts): (FunctionId, Vec<(u32, Counts)>)| {
        counts.into_iter().map(move |(number, counts)| (id.clone(), number, counts))
    };
    node.revision_stats.counts().into_iter().flat_map(of)
}

/// Counts of functions with several revisions in use.
#[derive(Debug)]
pub(crate) struct Scrape(Vec<(Vec<(&'static str, String)>, Counts)>);

impl Scrape {
    /// The present counts.
    pub(crate) fn of(node: &Node) -> Self {
        let names = DeclaredNames::of(node);
        Self(counted(node).map(|(id, number, counts)| (names.labels(&id, number), counts)).collect())
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
            for (labels, counts) in &self.0 {
                family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&of(counts), None)?;
            }
        }
        Ok(())
    }
}
