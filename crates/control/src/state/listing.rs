//! The status of functions and nodes, for listings.

use super::State;
use super::node::Node;
use crate::admission::Cordon;
use crate::definitions::Function;
use crate::status::{
    Certificates, FunctionNode, FunctionStatus, HostedInstance, IssuedIdentity, NodeStatus, RejectedVersion, Status,
};
use leno_identity::SpiffeId;
use leno_model::FunctionId;
use leno_wire::{Instance, NodeCertificates, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl State {
    /// The status of all functions, jobs and nodes.
    pub(crate) fn status(&self) -> Status {
        let mut instances = self.instances(self.nodes.all.iter());
        let functions: BTreeMap<_, _> = self.catalog.compiled.functions.iter().collect();
        Status {
            functions: functions
                .into_iter()
                .filter(|(_, function)| function.job.is_none())
                .filter_map(|(id, function)| self.function(id, function, instances.remove(id)))
                .collect(),
            nodes: self.nodes.all.iter().map(|(name, node)| self.node(name, node)).collect(),
            jobs: self.hosting.jobs.statuses(),
            identities: self.issued.iter().map(issued).collect(),
        }
    }

    /// The instances on nodes, by function. Those of a removed function may still be draining.
    fn instances<'a>(
        &self,
        nodes: impl Iterator<Item = (&'a Arc<str>, &'a Node)>,
    ) -> BTreeMap<&'a FunctionId, Vec<HostedInstance>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, node) in nodes {
            for (id, instances) in &node.instances {
                let hosted =
                    |instance: &Instance| HostedInstance { node: name.to_string(), instance: instance.clone() };
                all.entry(id).or_default().extend(instances.iter().map(hosted));
            }
        }
        all
    }

    /// The nodes that have applied a function's configuration, and the node that runs or ran the
    /// job.
    pub(crate) fn nodes_of(&self, id: &FunctionId) -> Vec<Arc<str>> {
        let last = self.hosting.jobs.last_node_of(id);
        let has_it =
            |(name, node): &(&Arc<str>, &Node)| node.has_in_force(id) || last.is_some_and(|last| *last == **name);
        self.nodes.all.iter().filter(has_it).map(|(name, _)| name.clone()).collect()
    }

    /// All nodes; with namespaces, the gateways and the nodes that host functions or jobs of these.
    pub(crate) fn nodes_with(&self, namespaces: &BTreeSet<String>) -> Vec<Arc<str>> {
        let hosts = |node: &Node| node.hosted.iter().any(|id| namespaces.contains(&id.namespace));
        let is_asked = |node: &Node| namespaces.is_empty() || node.admission.gateway || hosts(node);
        self.nodes.all.iter().filter(|(_, node)| is_asked(node)).map(|(name, _)| name.clone()).collect()
    }

    /// The status of one node: itself, and the functions that it hosts.
    pub(crate) fn status_for(&self, name: &str) -> Status {
        let own = self.nodes.all.get_key_value(name);
        let hosted = own.into_iter().flat_map(|(_, node)| &node.hosted);
        let hosts = |id: &FunctionId| own.is_some_and(|(_, node)| node.hosted.contains(id));
        let mut instances = self.instances(own.into_iter());
        let function = |id: &FunctionId| {
            let function = self.catalog.compiled.functions.get(id).filter(|function| function.job.is_none())?;
            self.function(id, function, instances.remove(id))
        };
        let mut functions: Vec<_> = hosted.filter_map(function).collect();
        for function in &mut functions {
            function.nodes.retain(|node| node.node == name);
        }
        Status {
            functions,
            nodes: own.into_iter().map(|(name, node)| self.node(name, node)).collect(),
            jobs: self.hosting.jobs.statuses().into_iter().filter(|job| hosts(&job.job)).collect(),
            identities: self.issued.iter().filter(|((_, node), _)| **node == *name).map(issued).collect(),
        }
    }

    fn function(
        &self,
        id: &FunctionId,
        function: &Function,
        instances: Option<Vec<HostedInstance>>,
    ) -> Option<FunctionStatus> {
        let version = self.catalog.compiled.contents.get(&Subject::FunctionConfig(id.clone()))?.version;
        let revisions = self.catalog.histories().0.get(id).map(|history| history.status(id, &function.revisions));
        let bounds = |name: &str| self.scaling.bounds(id, name);
        let hosting = |name: &Arc<str>| FunctionNode {
            node: name.to_string(),
            bounds: bounds(name).unwrap_or_default().to_vec(),
            leaving: self.hosting.scheduler.leaving(id).any(|leaving| leaving == name),
        };
        Some(FunctionStatus {
            function: id.clone(),
            identity: function.identity.clone(),
            version,
            callees: function.callees.clone(),
            exposed: function.exposed,
            chain: function.chain.clone(),
            external: function.egress.is_some(),
            instances: instances.unwrap_or_default(),
            revisions: revisions.unwrap_or_default(),
            nodes: self.hosting.hosts(id).map(hosting).collect(),
            unplaced: !function.has_pods && self.hosting.hosts(id).next().is_none(),
            reason: self.placement_problem(id, function),
        })
    }

    fn node(&self, name: &Arc<str>, node: &Node) -> NodeStatus {
        let rejected = node.rejected.iter().map(|(subject, (version, reason))| RejectedVersion {
            subject: subject.clone(),
            version: *version,
            reason: reason.clone(),
            in_force: node.in_force.get(subject).copied(),
        });
        NodeStatus {
            name: name.to_string(),
            connected: node.session.is_some(),
            seen_ms: match &node.absence {
                _ if node.session.is_some() => Some(self.nodes.looked_ms).filter(|looked_ms| *looked_ms > 0),
                absence => absence.as_ref().filter(|_| node.last_session > 0).and_then(|absence| absence.since_ms),
            },
            absence: self.absence(name),
            release: node.release.clone(),
            inbound: node.inbound,
            hosted: node.hosted.clone(),
            rejected: rejected.collect(),
            counters: node.counters,
            locality: node.admission.locality.clone(),
            cordoned: node.cordon != Cordon::Open,
            drained: node.cordon == Cordon::Drained,
            unacknowledged_seconds: self.nodes.unacknowledged(name).map_or(0, |time| time.as_secs()),
            behind: node.behind,
            gateway: node.admission.gateway,
            egress: node.admission.egress,
            capacity: node.capacity,
            claimed: node.claimed.filter(|claimed| Some(*claimed) != node.capacity),
            reserved: match node.is_scheduled() {
                true => self.hosting.scheduler.reserved_on(name),
                false => node.instances.values().map(|instances| instances.len() as u32).sum(),
            },
            certificates: node.certificates.as_ref().map(|NodeCertificates { issuers, not_after, overdue }| {
                Certificates {
                    issuers: issuers.iter().map(ToString::to_string).collect(),
                    not_after: *not_after,
                    overdue: *overdue,
                }
            }),
        }
    }
}

fn issued(((identity, node), not_after): (&(SpiffeId, Arc<str>), &u64)) -> IssuedIdentity {
    IssuedIdentity { identity: identity.clone(), node: node.to_string(), not_after: *not_after }
}
