//! The keys by which requests share connections.

use crate::state::egress::{EgressKey, EgressTargetTls};
use crate::state::pods::{PodConnection, ServedPod};
use std::hash::{Hash, Hasher};
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
    /// A pod, for the client at this address only: a pod sees its clients' addresses. Each stream of a
    /// tunnel is a client too.
    Pod(SocketAddr, Option<u64>),
    /// A sidecar, with mutual TLS between these identities.
    Sidecar(Identities),
    /// A pod of another node, by tunnels (HBONE).
    Tunnels(TunnelKey),
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
        Self { address: connection.called, callee: CalleeKey::Pod(connection.client, connection.stream) }
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
            CalleeKey::Instance | CalleeKey::Pod(..) | CalleeKey::Sidecar(_) | CalleeKey::Tunnels(_) => self.clone(),
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
            CalleeKey::Instance | CalleeKey::Pod(..) | CalleeKey::Sidecar(_) | CalleeKey::Tunnels(_) => None,
        }
    }
}

/// The two ends of connections that carry tunnels.
#[derive(Clone, Debug)]
pub(crate) struct TunnelKey {
    /// The calling pod, from whose network the connections come.
    pub pod: Arc<ServedPod>,
    /// Its SPIFFE ID.
    pub identity: Arc<str>,
    /// The SPIFFE IDs that the callee may have.
    pub expected: Vec<Arc<str>>,
}

impl PartialEq for TunnelKey {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod) && self.identity == other.identity && self.expected == other.expected
    }
}

impl Eq for TunnelKey {}

impl Hash for TunnelKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.pod), &self.identity, &self.expected).hash(state);
    }
}

/// SPIFFE IDs of caller and callee.
pub(crate) type Identities = (Arc<str>, Arc<str>);
