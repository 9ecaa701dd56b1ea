//! Views of revisions: listings and metrics.

use crate::shares::{FunctionShares, RevisionProgress};
use leno_control::{Control, FunctionStatus, RevisionStatus, RolloutEvent};
use leno_dashboard::mesh::RevisionShare;
use leno_model::{Container, FunctionConfig, FunctionId, revision};
use leno_proxy::{FunctionEntry, Node};
use leno_telemetry::exposition::{Collector, Exposition, Family};
use leno_telemetry::families;
use leno_telemetry::stats::Counts;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// The rows of `leno get revisions`, by function, oldest first, with the instances of a node or of
/// several. Rows have counts while several revisions get requests on the node that answers.
pub(crate) fn rows<'a>(
    functions: impl IntoIterator<Item = &'a FunctionStatus>,
    progress: &[RevisionProgress],
    (control, node): (&Control, Option<&Node>),
) -> Vec<Value> {
    let counted = node.into_iter().flat_map(counted);
    let counted = counted.map(|(id, number, counts)| ((id.clone(), revision::name(&id, number)), counts));
    let counted: HashMap<(FunctionId, String), Counts> = counted.collect();
    let containers: HashMap<(FunctionId, String), Container> =
        control.containers().into_iter().map(|(id, revision, container)| ((id, revision), container)).collect();
    let mut of_functions: HashMap<&str, Vec<&RevisionProgress>> = HashMap::new();
    for progress in progress {
        of_functions.entry(&progress.function).or_default().push(progress);
    }
    let mut rows = Vec::new();
    for function in functions {
        let id = &function.function;
        let number = |row: &RevisionStatus| revision::number(id, &row.revision).unwrap_or_default();
        let percents = function.revisions.iter().map(|row| (number(row), row.percent));
        let progress = of_functions.remove(&*id.to_string()).unwrap_or_default();
        let shares = FunctionShares::new(id, percents, progress);
        rows.extend(function.revisions.iter().map(|revision| {
            let key = (id.clone(), revision.revision.clone());
            let (counts, container) = (counted.get(&key), containers.get(&key));
            json!({
                "revision": revision.revision,
                "declared": revision.declared,
                "function": id.to_string(),
                "percent": revision.percent,
                "served": shares.served(number(revision)),
                "problem": shares.problem(number(revision)).map(|problem| problem.to_string()),
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
        }));
    }
    rows
}

/// The shares of the revisions of a function; empty: one has all requests.
pub(crate) fn shares(config: &FunctionConfig, progress: &[RevisionProgress]) -> Vec<RevisionShare> {
    let revisions = &config.revisions;
    FunctionShares::new(&config.id, FunctionShares::percents(revisions), progress).list(|number| revisions.name(number))
}

/// The revision of a function that cannot start while a former one serves, and why.
pub(crate) fn replaced(config: &FunctionConfig, progress: &[RevisionProgress]) -> Option<String> {
    let shares = FunctionShares::new(&config.id, FunctionShares::percents(&config.revisions), progress);
    let problem = |progress: &RevisionProgress| {
        let problem = shares.problem(progress.revision).filter(|problem| !problem.former.is_empty())?;
        let number = progress.revision;
        Some(format!("{} {problem}", revision::label(&config.id, number, config.revisions.name(number))))
    };
    progress.iter().find_map(problem)
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

    /// The labels of a revision in metrics.
    pub(crate) fn labels(&self, function: &FunctionId, revision: u32) -> [String; 3] {
        let number = if revision > 0 { revision::name(function, revision) } else { String::new() };
        let declared = self.0.get(&(function.clone(), revision)).cloned().unwrap_or_default();
        [function.to_string(), number, declared]
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
pub(crate) struct Scrape(Vec<([String; 3], Counts)>);

impl Scrape {
    /// The present counts.
    pub(crate) fn of(node: &Node) -> Self {
        let names = DeclaredNames::of(node);
        Self(counted(node).map(|(id, number, counts)| (names.labels(&id, number), counts)).collect())
    }
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        type Value = fn(&Counts) -> u64;
        let counters: [(&'static Family<3>, Value); 3] = [
            (&families::REVISION_REQUESTS, |counts| counts.requests),
            (&families::REVISION_FAILED, |counts| counts.failed),
            (&families::REVISION_SLOW, |counts| counts.slow),
        ];
        for (family, value) in counters {
            let samples = self.0.iter().map(|(labels, counts)| (labels.each_ref(), value(counts)));
            exposition.family(family).samples(samples);
        }
    }
}
