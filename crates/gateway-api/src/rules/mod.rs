//! Rules that no schema has: those that the CRDs state as CEL expressions
//! (`x-kubernetes-validations`), by hand. README.md of the crate lists those that are left out.

mod filter;
mod gateway;
mod grpc_route;
mod http_route;
mod policy;
mod route;

#[cfg(test)]
mod tests;

use crate::fault::{Faults, Path};
use crate::resource::Resource;

/// Reports the faults of a resource that its schema accepts.
pub(crate) fn check(resource: &Resource, faults: &mut Faults) {
    let spec = Path::of("spec");
    match resource {
        Resource::Gateway(gateway) => gateway::check(&gateway.spec, &spec, faults),
        Resource::HTTPRoute(route) => http_route::check(&route.spec, &spec, faults),
        Resource::GRPCRoute(route) => grpc_route::check(&route.spec, &spec, faults),
        Resource::TLSRoute(route) => route::check_tls(&route.spec, &spec, faults),
        Resource::TCPRoute(route) => route::check_tcp(&route.spec, &spec, faults),
        Resource::BackendTLSPolicy(policy) => policy::check(&policy.spec, &spec, faults),
        Resource::GatewayClass(_) | Resource::ReferenceGrant(_) => {}
    }
}

/// Reports elements of a list whose keys equal an earlier one's.
fn distinct<K: PartialEq>(
    keys: impl Iterator<Item = Option<K>>,
    list: &Path<'_>,
    field: &str,
    message: &str,
    faults: &mut Faults,
) {
    let mut seen: Vec<(usize, K)> = Vec::new();
    for (index, key) in keys.enumerate() {
        let Some(key) = key else { continue };
        match seen.iter().find(|(_, other)| *other == key) {
            Some((first, _)) => {
                let element = list.element(index);
                let path = if field.is_empty() { element } else { element.field(field) };
                faults.add(&path, format!("{message}, also in element {first}"), "keep one of the two");
            }
            None => seen.push((index, key)),
        }
    }
}
