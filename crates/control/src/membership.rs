//! What makes a process a node of the mesh: its identity, with the certificate that proves it.

use leno_identity::{BadSpiffeId, SavedError, SpiffeId, SvidStore, TrustDomain};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A node's identity and the store with its certificate. The store also holds the trust bundle, and may hold other identities.
#[derive(Clone)]
pub struct Membership {
    node: SpiffeId,
    control: SpiffeId,
    svids: Arc<SvidStore>,
}

impl Membership {
    pub(crate) fn new(node: SpiffeId, trust_domain: &TrustDomain, svids: Arc<SvidStore>) -> Result<Self, BadSpiffeId> {
        Ok(Self { node, control: SpiffeId::control(trust_domain)?, svids })
    }

    /// Keeps the node's certificate and key in `folder`, so that it is still a member after a restart.
    pub fn save(&self, folder: &Path) -> Result<(), SavedError> {
        self.svids.save(&self.node, folder)
    }

    /// What was kept in `folder`; `None`: nothing. Fails if the certificate has expired: then the node has to join again.
    pub fn restore(folder: &Path) -> Result<Option<Self>, SavedError> {
        let Some((svids, node)) = SvidStore::restore(folder)? else { return Ok(None) };
        let trust_domain = svids.bundle().trust_domain().clone();
        let control = SpiffeId::control(&trust_domain).map_err(|_| SavedError::None(node.clone()))?;
        Ok(Some(Self { node, control, svids }))
    }

    /// The node's SPIFFE ID.
    pub fn identity(&self) -> &SpiffeId {
        &self.node
    }

    /// The store with the node's certificate and the trust bundle.
    pub fn svids(&self) -> &Arc<SvidStore> {
        &self.svids
    }

    /// The control plane's SPIFFE ID.
    pub(crate) fn control(&self) -> &SpiffeId {
        &self.control
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership({})", self.node)
    }
}
