//! Addresses of the metadata services of machines. A request's document makes the node connect to
//! them only if the operator lists them.

use super::Context;
use crate::problem::{Origin, Scope};
use leno_model::special_address::unlisted_metadata;
use leno_policy::spec::Cidr;

/// Reports a block that a request's document names, if all of it is in a block of metadata services
/// that the quota of the namespace does not list. A block that also has other addresses is allowed:
/// it does not admit special addresses.
pub(super) fn refuse(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, block: Cidr) {
    if scope.origin() == Origin::File {
        return;
    }
    let listed = context.namespaces.of(namespace).bounds.egress.as_deref().unwrap_or_default();
    if let Some(service) = unlisted_metadata(listed, block) {
        let named = written(block);
        let message = format!("{named} is for metadata services of machines ({})", written(service));
        let fix = format!(
            "name another address, or have the operator list {named} in `egress` of the NamespaceQuota `{namespace}`"
        );
        scope.problem(message, fix);
    }
}

fn written(block: Cidr) -> String {
    let Cidr { address, prefix } = block;
    if prefix == if address.is_ipv4() { 32 } else { 128 } { address.to_string() } else { format!("{address}/{prefix}") }
}
