//! The functions and nodes of a measurement: functions in a ring, each of which may call the next
//! five.

use crate::material::Material;
use crate::policies::Policies;
use crate::proxy_under_test::leno::{Listeners, Mesh, VERSION, function, join};
use anyhow::anyhow;
use leno_control::{Admission, Definitions};
use leno_model::FunctionId;
use leno_wire::{Placement, Subject};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Callees of each function.
pub(super) const CALLEES: usize = 5;
/// Nodes of a function that is on several.
const SPREAD: usize = 10;
/// Memory of an instance, where a scheduler places it.
pub(super) const INSTANCE_MIB: u64 = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub functions: usize,
    /// Without the new node.
    pub nodes: usize,
    /// The scheduler places the functions, each of which has a node to itself for each instance.
    /// Otherwise [`World::hosts`] places them.
    pub scheduled: bool,
}

impl World {
    /// Functions that are on several nodes; the first ones.
    pub(super) fn shared(self) -> usize {
        self.functions / 100
    }

    /// The node that hosts nothing to begin with.
    pub(super) fn new_node(self) -> usize {
        self.nodes
    }

    pub(super) fn node_name(node: usize) -> String {
        format!("node-{node:03}")
    }

    /// All names are of one length, so that their payloads are.
    pub(super) fn id(function: usize) -> FunctionId {
        FunctionId { namespace: "bench".to_owned(), name: name(function) }
    }

    /// The nodes that host a function, its home first.
    pub(super) fn hosts(self, function: usize) -> impl Iterator<Item = usize> {
        let count = if function < self.shared() { SPREAD.min(self.nodes) } else { 1 };
        (0..count).map(move |further| (function + further) % self.nodes)
    }

    /// Pairs of function and node.
    pub(super) fn placements(self) -> u64 {
        (0..self.functions).map(|function| self.hosts(function).count() as u64).sum()
    }

    pub(super) fn placement(self, node: usize) -> BTreeSet<FunctionId> {
        let hosted = |function: &usize| self.hosts(*function).any(|host| host == node);
        (0..self.functions).filter(hosted).map(Self::id).collect()
    }

    /// The resources of a node that hosts only this function.
    pub(super) fn needed(self, function: usize) -> BTreeSet<Subject> {
        let callees = self.callees(function).map(|callee| Subject::Endpoints(Self::id(callee)));
        callees.chain([Subject::FunctionConfig(Self::id(function))]).collect()
    }

    fn callees(self, function: usize) -> impl Iterator<Item = usize> {
        (1..=CALLEES).map(move |further| (function + further) % self.functions)
    }

    pub(super) fn admission(self, node: usize, functions: BTreeSet<FunctionId>) -> Admission {
        let scheduled = self.scheduled && node != self.new_node();
        let placement = if scheduled { Placement::Scheduled } else { Placement::Only(functions) };
        Admission { placement, gateway: false, locality: Default::default(), egress: false }
    }

    /// Compiled from documents, as users write them: all nine policies for each function.
    pub(super) fn definitions(self, folder: &Path) -> anyhow::Result<Definitions> {
        let material = Material::make(folder)?;
        let loopback = ([127, 0, 0, 1], 9).into();
        let listeners =
            Listeners { gateway: loopback, outbound: loopback, inbound: loopback, admin: loopback, control: loopback };
        let mesh = Mesh {
            policies: Policies::NINE,
            engine: "wasm",
            listeners,
            upstream: loopback,
            http2_upstream: false,
            caller: None,
            same_node_tls: false,
            material: &material,
            otlp: loopback,
            log: "/dev/null".to_owned(),
        };
        let spec = json!({"trustDomain": crate::material::TRUST_DOMAIN});
        let mut documents =
            vec![json!({"apiVersion": VERSION, "kind": "Mesh", "metadata": {"name": "bench"}, "spec": spec})];
        documents.extend((0..self.functions).flat_map(|function| self.documents(&mesh, function)));
        let read = leno_config::load_text(&folder.join("world.yaml"), &join(&documents));
        let snapshot = read.map_err(|problems| anyhow!("{:?}", problems.first()))?;
        let configs = snapshot.functions().filter_map(|id| Some((id.clone(), snapshot.function_config(id)?))).collect();
        Ok(Definitions {
            mesh: snapshot.mesh_config().clone(),
            configs,
            routes: snapshot.gateway_routes().clone(),
            modules: snapshot.modules().clone(),
            permissions: snapshot.permissions(),
            secrets: None,
        })
    }

    fn documents(self, mesh: &Mesh<'_>, number: usize) -> [Value; 2] {
        let name = name(number);
        let callees: Vec<String> = self.callees(number).map(self::name).collect();
        let mut spec = json!({"command": ["/usr/bin/python3", "service.py"], "callees": callees});
        if self.scheduled {
            spec["resources"] = json!({"memory": format!("{INSTANCE_MIB}Mi")});
        }
        [function(&name, spec), mesh.policy(&name, &[name.as_str()])]
    }
}

fn name(function: usize) -> String {
    format!("service-{function:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_nine_policies_and_five_callees() {
        let folder = tempfile::tempdir().unwrap();
        let definitions = World { functions: 10, nodes: 2, scheduled: true }.definitions(folder.path()).unwrap();
        assert_eq!(definitions.configs.len(), 10);
        let config = &definitions.configs[&World::id(3)];
        assert_eq!((config.callees.len(), config.outbound.targets.len()), (CALLEES, CALLEES));
        let program = &config.inbound;
        assert!(!program.authentication.is_empty() && !program.authorization.is_empty() && program.tracing.enabled);
        assert!(!program.rate_limits.is_empty() && program.access_log.enabled && !program.sidecar.name.is_empty());
        assert!(program.targets.iter().all(|target| target.retry.is_some() && target.breaker.is_some()));
    }
}
