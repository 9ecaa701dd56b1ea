//! Counts connections for the namespaces that they are opened for.

use super::{ConnectError, Idle, Pool};
use leno_namespaces::{Namespace, Permit, Resource};
use std::sync::Arc;

impl Pool {
    /// Counts a connection for a namespace. If the namespace is at its bound, closes an idle
    /// connection of the same namespace for it, if there is one.
    pub(super) fn permit(&self, share: Option<&Arc<Namespace>>) -> Result<Option<Arc<Permit>>, ConnectError> {
        let Some(share) = share else { return Ok(None) };
        let permit = share.take(Resource::Connections).or_else(|| {
            let closed = self.close_idle_of(share) || self.admission.close_one_of(share);
            closed.then(|| share.take_anyway(Resource::Connections))
        });
        let refused = || ConnectError::Bound(share.refusal(Resource::Connections));
        permit.map(|permit| Some(Arc::new(permit))).ok_or_else(refused)
    }

    /// Closes an idle HTTP/1.1 connection that counts for this namespace. Returns whether there was
    /// one.
    fn close_idle_of(&self, share: &Arc<Namespace>) -> bool {
        let is_of = |idle: &Idle| {
            let permit = idle.connection.permit.as_ref();
            permit.is_some_and(|permit| Arc::ptr_eq(permit.namespace(), share))
        };
        let mut hosts = self.http1.borrow_mut();
        let found = hosts.values_mut().find_map(|host| {
            let at = host.idle.iter().position(is_of)?;
            Some(host.idle.remove(at))
        });
        drop(hosts);
        found.is_some()
    }
}
