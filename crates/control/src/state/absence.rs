//! Nodes that are away: since when, the functions that no other node has, and the events of nodes.

use super::State;
use super::event_log::HasOwner;
use super::node::Node;
use crate::status::{AbsenceStatus, NodeChange, NodeEvent};
use leno_model::FunctionId;
use std::sync::Arc;

/// A node that comes back sooner causes no events. It has had a new connection.
const NOTED_AFTER_MS: u64 = 500;

impl HasOwner for NodeEvent {
    fn owner(&self) -> &str {
        &self.node
    }
}

impl State {
    /// Records an event of a node.
    pub(crate) fn record_node(&mut self, at_ms: u64, node: &str, change: NodeChange, reason: String) {
        tracing::info!(node, ?change, "{reason}");
        self.nodes.events.record(NodeEvent { at_ms, node: node.to_owned(), change, reason });
    }

    /// The last events of nodes, oldest first.
    pub(crate) fn node_events(&self) -> Vec<NodeEvent> {
        self.nodes.events.all()
    }

    /// Records which nodes are away since the last time, and which are back. Call it about twice a
    /// second.
    pub(crate) fn note_absences(&mut self, now_ms: u64) {
        self.nodes.looked_ms = now_ms;
        let mut events = Vec::new();
        for (name, node) in &mut self.nodes.all {
            // A new node is about to connect.
            let is_new = node.last_session == 0 && node.absence.as_ref().is_none_or(|absence| !absence.at_least);
            let is_awaited = is_new || self.hosting.awaited.contains(name);
            match node.absence_at(now_ms) {
                Some(absence) => {
                    let since_ms = absence.since_ms.unwrap_or(now_ms);
                    if !absence.noted && !is_awaited && now_ms >= since_ms + NOTED_AFTER_MS {
                        absence.noted = true;
                        let begin = match absence.at_least {
                            true => "it has not connected since the control plane started",
                            false => "its stream ended",
                        };
                        events.push((name.clone(), since_ms, NodeChange::Away, begin.to_owned()));
                    }
                }
                None => {
                    let absence = node.absence.take().filter(|absence| absence.noted);
                    if let Some(since_ms) = absence.and_then(|absence| absence.since_ms) {
                        let away = now_ms.saturating_sub(since_ms) / 1000;
                        events.push((name.clone(), now_ms, NodeChange::Back, format!("it was away for {away} s")));
                    }
                }
            }
        }
        for (name, at_ms, change, mut reason) in events {
            if let Some(absence) = self.absence(&name).filter(|_| change == NodeChange::Away) {
                absence.consequences().iter().for_each(|consequence| reason += &format!("; {consequence}"));
            }
            self.record_node(at_ms, &name, change, reason);
        }
    }

    /// The absence of a node, with its consequences; `None`: the node is connected, or no tick has
    /// seen that it is not.
    pub(super) fn absence(&self, name: &Arc<str>) -> Option<AbsenceStatus> {
        let node = self.nodes.all.get(name).filter(|node| node.session.is_none())?;
        let absence = node.absence.as_ref()?;
        let is_connected = |node: &Node| node.session.is_some();
        let others = || self.nodes.all.iter().filter(|(_, node)| is_connected(node));
        // Of a node that has not connected, it is not known whether it has a gateway.
        let had_gateway = self.nodes.gateways.contains(name) || node.last_session == 0 && node.admission.gateway;
        let functions = &self.catalog.compiled.functions;
        let is_served =
            |id: &FunctionId| self.hosting.hosts(id).any(|host| self.nodes.all.get(host).is_some_and(is_connected));
        let is_stranded = |id: &FunctionId| {
            functions.get(id).is_some_and(|it| it.job.is_none() && it.egress.is_none()) && !is_served(id)
        };
        Some(AbsenceStatus {
            since_ms: absence.since_ms?,
            at_least: absence.at_least,
            only_gateway: had_gateway && !others().any(|(name, _)| self.nodes.gateways.contains(name)),
            only_egress: node.admission.egress && !others().any(|(_, node)| node.admission.egress),
            stranded: absence.hosted.union(&node.hosted).filter(|id| is_stranded(id)).cloned().collect(),
        })
    }
}
