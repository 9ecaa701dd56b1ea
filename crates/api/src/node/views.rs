//! Views of a node for the control plane: the rows of its listings, each for a namespace.

use super::Admin;
use crate::alerts::Alert;
use crate::limits::{self, LimitUse};
use crate::scaling;
use crate::shares::RevisionProgress;
use leno_dashboard::filter::FlowFilter;
use leno_node::PendingView;
use leno_telemetry::metrics::{Edge, RuleHits};
use leno_wire::{Answer, View, ViewQuery, ViewRows};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

impl Admin {
    /// Answers the control plane's questions about views, until the node ends.
    pub async fn answer_views(self: Arc<Self>, mut views: mpsc::Receiver<PendingView>) {
        while let Some(PendingView { query, question }) = views.recv().await {
            question.answer(&Answer::View(self.view(&query)));
        }
    }

    fn view(&self, query: &ViewQuery) -> ViewRows {
        let telemetry = &self.node.telemetry;
        match query.view {
            View::Instances => rows(query, array(self.instances()), of_function),
            View::Functions => rows(query, scaling::revisions(&self.supervisor), RevisionProgress::namespace),
            View::Events => rows(query, array(self.events()), of_function),
            View::Flows => {
                let seen = Some(&*query.argument).filter(|seen| !seen.is_empty());
                // The control plane applies a filter that this release cannot read.
                let filter: FlowFilter = serde_json::from_str(&query.filter).unwrap_or_default();
                let mut flows = telemetry.flows(seen);
                flows.flows.retain(|flow| filter.matches(flow));
                let mut found = rows(query, flows.flows, |flow| flow.namespace());
                found.missed += flows.missed;
                found.next = flows.next;
                found
            }
            View::Explanation => rows(query, telemetry.explain(&query.argument), |hop| hop.namespace()),
            View::Edges => rows(query, telemetry.metrics.edges(), Edge::namespace),
            View::Rules => {
                let mut hits = telemetry.metrics.rule_hits();
                hits.retain(|hits| query.argument.is_empty() || hits.function == query.argument);
                rows(query, hits, RuleHits::namespace)
            }
            View::Limits => {
                let only = Some(&*query.argument).filter(|function| !function.is_empty());
                match only.map(str::parse).transpose() {
                    Ok(only) => {
                        let all = limits::rows(&self.node, &self.supervisor, only.as_ref());
                        rows(query, limits::for_readers(all, &query.namespaces), LimitUse::namespace)
                    }
                    Err(_) => ViewRows::default(),
                }
            }
            View::Alerts => {
                let mut all = self.alerts_of_node(&query.namespaces);
                self.alerts.beginnings.complete(&mut all);
                rows(query, all, Alert::namespace)
            }
            View::Destinations => {
                rows(query, telemetry.destinations.all(), |refused| Some(&*refused.function.namespace))
            }
        }
    }
}

fn array(rows: Value) -> Vec<Value> {
    match rows {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    }
}

/// The namespace of a row about a function.
fn of_function(row: &Value) -> Option<&str> {
    row["function"].as_str()?.split_once('/').map(|(namespace, _)| namespace)
}

/// The rows of the namespaces that the query names. If they exceed its limits, the last ones.
fn rows<T: Serialize>(query: &ViewQuery, rows: Vec<T>, namespace: impl Fn(&T) -> Option<&str>) -> ViewRows {
    let is_wanted = |row: &&T| {
        query.namespaces.is_empty() || namespace(row).is_some_and(|namespace| query.namespaces.contains(namespace))
    };
    let wanted: Vec<&T> = rows.iter().filter(is_wanted).collect();
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for row in wanted.iter().rev().take(query.last.map_or(usize::MAX, |last| last as usize)) {
        // It has no failing types.
        let text = serde_json::to_string(row).unwrap_or_default();
        bytes += text.len();
        if bytes > query.limit as usize {
            break;
        }
        taken.push(text);
    }
    taken.reverse();
    ViewRows { missed: (wanted.len() - taken.len()) as u64, rows: taken, next: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn query(namespaces: &[&str], limit: u32) -> ViewQuery {
        let namespaces = namespaces.iter().map(|&namespace| namespace.to_owned()).collect();
        ViewQuery { namespaces, limit, ..View::Events.query("") }
    }

    #[test]
    fn a_row_is_for_its_namespace_alone_and_the_last_ones_fit() {
        let all = ["a/one", "b/two", "a/three"].map(|function| json!({ "function": function })).to_vec();
        let of = |query: &ViewQuery| rows(query, all.clone(), of_function);
        assert_eq!(of(&query(&[], 1000)).rows.len(), 3);
        assert_eq!(of(&query(&["b"], 1000)).rows, [r#"{"function":"b/two"}"#]);
        assert_eq!(of(&query(&["c"], 1000)), ViewRows::default());
        let few = of(&query(&["a"], 25));
        assert_eq!((few.rows, few.missed), (vec![r#"{"function":"a/three"}"#.to_owned()], 1));
        let last = of(&ViewQuery { last: Some(1), ..query(&[], 1000) });
        assert_eq!((last.rows, last.missed), (vec![r#"{"function":"a/three"}"#.to_owned()], 2));
        // A row about no function is for the whole mesh.
        assert_eq!(rows(&query(&["a"], 1000), vec![json!({})], of_function).rows.len(), 0);
    }
}
