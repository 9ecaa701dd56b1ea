//! Which nodes have a configuration in force.

use super::captures::Captures;
use crate::publication::{NodeScope, Publication};
use leno_control::{Control, DeliveryState, PodHosts, RotationProgress};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The progress of nodes with their deliveries.
#[derive(Clone, Debug, Default)]
pub struct Programming {
    /// The nodes that host each function.
    pub hosts: Arc<PodHosts>,
    /// The nodes that have joined this control plane.
    pub nodes: BTreeMap<String, NodeProgress>,
    /// The pods that are not captured.
    pub captures: Arc<Captures>,
    /// Why the authority in the Secret is not in force; empty: it is.
    pub authority: String,
}

/// The progress of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeProgress {
    /// It has confirmed everything.
    Current,
    /// It has not confirmed everything yet.
    Behind,
    /// It has refused something, for this reason.
    Rejected(String),
    /// It is not connected to this control plane.
    Away,
}

impl Programming {
    /// The nodes of a control plane.
    pub fn of(control: &Control) -> Self {
        let nodes = control.deliveries().into_iter().map(|(name, delivery)| {
            let progress = match delivery {
                DeliveryState::Disconnected => NodeProgress::Away,
                DeliveryState::Rejected(reason) => NodeProgress::Rejected(reason),
                DeliveryState::Confirmed => NodeProgress::Current,
                DeliveryState::UnderWay => NodeProgress::Behind,
            };
            (name.to_string(), progress)
        });
        Self { hosts: control.pod_hosts(), nodes: nodes.collect(), ..Self::default() }
    }

    /// Whether a node of a pod or a member is not connected to this control plane.
    pub(crate) fn has_absent(&self) -> bool {
        let hosts = self.hosts.values().flatten().map(|name| &**name);
        hosts.chain(self.nodes.keys().map(String::as_str)).any(|name| self.progress(name) == &NodeProgress::Away)
    }

    /// Adds the nodes of other controllers. Their documents may be others than those of
    /// `documents`: then their nodes do not have these in force.
    pub fn add(&mut self, reports: &[PeerReport], documents: &str) {
        for PeerReport { documents: theirs, current, behind, .. } in reports {
            let confirmed = if theirs == documents { NodeProgress::Current } else { NodeProgress::Behind };
            let current = current.iter().map(|name| (name, &confirmed));
            for (name, progress) in current.chain(behind.iter().map(|name| (name, &NodeProgress::Behind))) {
                if *self.progress(name) == NodeProgress::Away {
                    self.nodes.insert(name.clone(), progress.clone());
                }
            }
        }
    }

    pub(crate) fn progress(&self, name: &str) -> &NodeProgress {
        self.nodes.get(name).unwrap_or(&NodeProgress::Away)
    }

    /// The progress of the nodes that need an object and have not confirmed it.
    pub(crate) fn missing(&self, scope: &NodeScope) -> BTreeMap<&str, &NodeProgress> {
        let (all, hosts) = match scope {
            NodeScope::Hosts(functions) => {
                (None, functions.iter().filter_map(|id| self.hosts.get(id)).flatten().collect::<Vec<_>>())
            }
            NodeScope::Mesh => (Some(self.nodes.keys()), self.hosts.values().flatten().collect()),
        };
        let names = all.into_iter().flatten().map(String::as_str).chain(hosts.into_iter().map(|name| &**name));
        let missing = names.map(|name| (name, self.progress(name)));
        missing.filter(|(_, progress)| **progress != NodeProgress::Current).collect()
    }
}

/// The progress of one controller's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerReport {
    /// When it was written, in seconds since 1970.
    pub at: i64,
    /// The documents that the controller has published.
    pub documents: String,
    /// Connected nodes that have confirmed everything.
    pub current: BTreeSet<String>,
    /// Connected nodes that have not, or have refused something.
    pub behind: BTreeSet<String>,
    /// How many pods these nodes cannot capture.
    pub uncaptured: usize,
    /// Key identifier of the authority that signs for them, or to which they change.
    pub authority: String,
    /// Whether they trust its certificates.
    pub trusted: bool,
    /// Whether they have only its certificates.
    pub renewed: bool,
}

impl PeerReport {
    /// The report on a control plane.
    pub(crate) fn of(control: &Control, publication: &Publication, captures: &Captures) -> Self {
        let (mut current, mut behind) = (BTreeSet::new(), BTreeSet::new());
        for (name, progress) in Programming::of(control).nodes {
            match progress {
                NodeProgress::Current => drop(current.insert(name)),
                NodeProgress::Behind | NodeProgress::Rejected(_) => drop(behind.insert(name)),
                NodeProgress::Away => {}
            }
        }
        let RotationProgress { aim, is_trusted, has_renewed } = control.rotation_progress();
        Self {
            at: 0,
            documents: publication.digest.clone(),
            current,
            behind,
            uncaptured: captures.failed(),
            authority: aim,
            trusted: is_trusted,
            renewed: has_renewed,
        }
    }
}
