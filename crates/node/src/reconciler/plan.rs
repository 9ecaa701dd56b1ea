//! The steps of an update, computed before any of them is carried out.

use crate::loader::{LoadError, LoadResult};
use leno_agent::Change;
use leno_identity::TrustBundle;
use leno_model::{
    Destination, FunctionId, MeshConfig, ModuleHash, Pod, PodUid, SecretValues, ServiceEndpoint, ServiceName,
};
use leno_proxy::endpoints::Endpoint;
use leno_proxy::{FunctionEntry, GatewayTables};
use leno_wire::{Bounds, Lease, Placement, Resource, Subject};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

/// A step of an update.
pub(super) enum Step {
    SetMesh(Box<MeshConfig>),
    SetBundle(TrustBundle),
    /// Run the function, job or egress here.
    Host(Arc<FunctionEntry>),
    /// Stop hosting a function, and drain it.
    Drain(FunctionId),
    RemoveModule(ModuleHash),
    /// Set the bounds of a function; `None`: it has none any more.
    SetBounds(FunctionId, Option<Vec<Bounds>>),
    SetLease(FunctionId, Lease),
    RemoveSecrets(FunctionId),
    SetPlacement(Placement),
    SetRoute(Arc<FunctionEntry>),
    RemoveRoute(FunctionId),
    SetGatewayRoutes(Arc<GatewayTables>),
    SetCertificates(Arc<SecretValues>),
    SetEndpoints(FunctionId, Vec<Endpoint>),
    /// Capture a pod, or change its settings.
    SetPod(Box<Pod>),
    RemovePod(PodUid),
    /// Set the meaning of an address; `None`: neither a Service nor a pod of the mesh has it.
    SetDestination(IpAddr, Option<Destination>),
    /// Set an endpoint of a Service; no parts: it is gone.
    SetServiceEndpoint(ServiceName, IpAddr, Vec<ServiceEndpoint>),
    /// Set the enforced namespaces of the cluster.
    SetEnforced(BTreeSet<String>),
    /// Close the open exchanges of a removed function.
    Withdraw(FunctionId),
    /// Keep the previous version of a resource, for this reason.
    Reject(Subject, String),
}

/// The steps for these changes, in their order. `loaded` has the functions, routes and modules of
/// the changes.
pub(super) fn steps(changes: &[Change], mut loaded: LoadResult) -> Vec<Step> {
    changes.iter().cloned().filter_map(|change| step(change, &mut loaded)).collect()
}

fn step(change: Change, loaded: &mut LoadResult) -> Option<Step> {
    let subject = change.subject();
    Some(match change {
        Change::Set(Resource::Mesh(mesh)) => Step::SetMesh(mesh),
        Change::Set(Resource::Bundle(bundle)) => Step::SetBundle(bundle),
        Change::Set(Resource::FunctionConfig(config)) => taken(&mut loaded.functions, &config.id, subject, Step::Host),
        Change::Removed(Subject::FunctionConfig(id)) => Step::Drain(id),
        Change::Set(Resource::Module(hash, _)) => Step::Reject(subject, loaded.refused.remove(&hash)?),
        Change::Removed(Subject::Module(hash)) => Step::RemoveModule(hash),
        Change::Set(Resource::Scale(id, bounds)) => Step::SetBounds(id, Some(bounds)),
        Change::Removed(Subject::Scale(id)) => Step::SetBounds(id, None),
        Change::Set(Resource::Quota(id, lease)) => Step::SetLease(id, lease),
        Change::Removed(Subject::Quota(id)) => Step::SetLease(id, Lease::default()),
        Change::Removed(Subject::Secrets(id)) => Step::RemoveSecrets(id),
        Change::Set(Resource::Certificates(values)) => Step::SetCertificates(values),
        Change::Removed(Subject::Certificates) => Step::SetCertificates(Arc::default()),
        Change::Set(Resource::Hosted(placement)) => Step::SetPlacement(placement),
        Change::Set(Resource::Route(route)) => taken(&mut loaded.routes, &route.id, subject, Step::SetRoute),
        Change::Removed(Subject::Route(id)) => Step::RemoveRoute(id),
        Change::Set(Resource::Routes(_)) => match loaded.gateway_routes.take()? {
            Ok(tables) => Step::SetGatewayRoutes(tables),
            Err(error) => Step::Reject(subject, error.to_string()),
        },
        Change::Removed(Subject::Routes) => Step::SetGatewayRoutes(Arc::default()),
        Change::Set(Resource::Endpoints(id, list)) => Step::SetEndpoints(id, reachable(list)),
        Change::Removed(Subject::Endpoints(id)) => Step::SetEndpoints(id, Vec::new()),
        Change::Set(Resource::Pod(pod)) => Step::SetPod(pod),
        Change::Removed(Subject::Pod(uid)) => Step::RemovePod(uid),
        Change::Set(Resource::EnforcedNamespaces(namespaces)) => Step::SetEnforced(namespaces),
        Change::Set(Resource::Destination(address, destination)) => Step::SetDestination(address, Some(*destination)),
        Change::Removed(Subject::Destination(address)) => Step::SetDestination(address, None),
        Change::Set(Resource::ServiceEndpoint(service, address, parts)) => {
            Step::SetServiceEndpoint(service, address, parts)
        }
        Change::Removed(Subject::ServiceEndpoint(service, address)) => {
            Step::SetServiceEndpoint(service, address, Vec::new())
        }
        Change::Withdrawn(id) => Step::Withdraw(id),
        // Secrets are in force since the load.
        Change::Set(Resource::Secrets(..)) | Change::Removed(_) => return None,
    })
}

/// The step for a loaded function or route, or its rejection.
fn taken<K: Hash + Eq>(
    loaded: &mut HashMap<K, Result<Arc<FunctionEntry>, LoadError>>,
    key: &K,
    subject: Subject,
    step: fn(Arc<FunctionEntry>) -> Step,
) -> Step {
    match loaded.remove(key) {
        Some(Ok(entry)) => step(entry),
        Some(Err(error)) => Step::Reject(subject, error.to_string()),
        None => Step::Reject(subject, "it is there twice".to_owned()),
    }
}

/// Endpoints in the form of the proxy.
fn reachable(endpoints: Vec<leno_wire::Endpoint>) -> Vec<Endpoint> {
    let convert = |leno_wire::Endpoint { node, address, ready, locality }| Endpoint {
        node: node.into(),
        address,
        ready,
        locality,
    };
    endpoints.into_iter().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(step: &Step) -> Option<&str> {
        if let Step::Reject(_, reason) = step { Some(reason) } else { None }
    }

    #[test]
    fn a_module_is_a_step_only_if_it_was_refused() {
        let hash = ModuleHash::from([1; 32]);
        let change = Change::Set(Resource::Module(hash, b"module".as_slice().into()));
        assert!(steps(std::slice::from_ref(&change), LoadResult::default()).is_empty());
        let refused = HashMap::from([(hash, "it has no memory".to_owned())]);
        let steps = steps(&[change], LoadResult { refused, ..LoadResult::default() });
        assert_eq!(steps.iter().map(rejected).collect::<Vec<_>>(), [Some("it has no memory")]);
    }

    #[test]
    fn removals_clear_what_they_name() {
        let id: FunctionId = "shop/checkout".parse().unwrap();
        let subjects = [Subject::Endpoints(id.clone()), Subject::Scale(id.clone()), Subject::Quota(id), Subject::Mesh];
        let steps = steps(&subjects.map(Change::Removed), LoadResult::default());
        let [Step::SetEndpoints(_, endpoints), Step::SetBounds(_, None), Step::SetLease(_, lease)] = &steps[..] else {
            panic!("{} steps", steps.len())
        };
        assert!(endpoints.is_empty() && lease.shares.is_empty());
    }
}
