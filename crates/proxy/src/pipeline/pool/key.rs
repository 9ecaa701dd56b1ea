//! The keys by which requests share connections.

use crate::state::egress::{EgressKey, EgressTargetTls};
use crate::state::pods::PodConnection;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Identifies connections that requests may share: to one address, and to one kind of callee there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionKey {
    pub address: SocketAddr,
    pub callee: CalleeKey,
}

/// The kind of callee that connections lead to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalleeKey {
    /// An instance, without TLS.
    Instance,
    /// A pod, for the client at this address only: a pod sees its clients' addresses.
    Pod(SocketAddr),
    /// A sidecar, with mutual TLS between these identities.
    Sidecar(Identities),
    /// An external service.
    Egress(EgressKey),
}

impl ConnectionKey {
    /// The key of an instance.
    pub(crate) fn instance(address: SocketAddr) -> Self {
        Self { address, callee: CalleeKey::Instance }
    }

    /// The key of a pod, for one connection of a client.
    pub(crate) fn pod(connection: &PodConnection) -> Self {
        Self { address: connection.called, callee: CalleeKey::Pod(connection.client) }
    }

    /// The key under which connections are counted and waited for: that of the callee. Connections
    /// to all names and addresses of an external service count together, because its callers choose
    /// among them; an instance is one address.
    pub(super) fn together(&self) -> Self {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        match &self.callee {
            CalleeKey::Egress(egress) => {
                let egress = EgressKey { name: egress.name.clone(), tls: None };
                Self { address, callee: CalleeKey::Egress(egress) }
            }
            CalleeKey::Instance | CalleeKey::Pod(_) | CalleeKey::Sidecar(_) => self.clone(),
        }
    }

    /// Whether [`ConnectionKey::together`] returns another key than this one.
    pub(super) fn counted_apart(&self) -> bool {
        matches!(self.callee, CalleeKey::Egress(_))
    }

    /// The TLS settings of an external service.
    pub(super) fn outside_tls(&self) -> Option<&EgressTargetTls> {
        match &self.callee {
            CalleeKey::Egress(egress) => egress.tls.as_ref(),
            CalleeKey::Instance | CalleeKey::Pod(_) | CalleeKey::Sidecar(_) => None,
        }
    }
}

/// SPIFFE IDs of caller and callee.
pub(crate) type Identities = (Arc<str>, Arc<str>);
