//! Which connections requests may share.

use crate::state::egress::{EgressKey, EgressTargetTls};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Identifies connections that requests may share: to one address, and to one kind of callee there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub address: SocketAddr,
    pub callee: CalleeKey,
}

/// Whom connections lead to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalleeKey {
    /// An instance, without TLS.
    Instance,
    /// A sidecar, with mutual TLS between these identities.
    Sidecar(Identities),
    /// Something outside of the mesh.
    Egress(EgressKey),
}

impl ConnectionKey {
    /// Of an instance.
    pub(crate) fn instance(address: SocketAddr) -> Self {
        Self { address, callee: CalleeKey::Instance }
    }

    /// Where connections are counted, and waited for, together: by the callee. Of something outside, those to all of its names and addresses, which its
    /// callers choose; an instance is one address.
    pub(super) fn together(&self) -> Self {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        match &self.callee {
            CalleeKey::Egress(outside) => {
                let outside = EgressKey { name: outside.name.clone(), tls: None };
                Self { address, callee: CalleeKey::Egress(outside) }
            }
            CalleeKey::Instance | CalleeKey::Sidecar(_) => self.clone(),
        }
    }

    /// Whether [`ConnectionKey::together`] is another key than this.
    pub(super) fn counted_apart(&self) -> bool {
        matches!(self.callee, CalleeKey::Egress(_))
    }

    /// The TLS of something outside.
    pub(super) fn outside_tls(&self) -> Option<&EgressTargetTls> {
        match &self.callee {
            CalleeKey::Egress(outside) => outside.tls.as_ref(),
            CalleeKey::Instance | CalleeKey::Sidecar(_) => None,
        }
    }
}

/// SPIFFE IDs of caller and callee.
pub(crate) type Identities = (Arc<str>, Arc<str>);
