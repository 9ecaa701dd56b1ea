//! The membership of a node in the mesh: its identity, and the certificate that proves it.

use crate::bundle::TrustBundle;
use crate::saved::SavedError;
use crate::store::SvidStore;
use leno_model::{BadSpiffeId, SpiffeId, TrustDomain};
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node's identity and the store with its certificate. The store also holds the trust bundle, and
/// may hold other identities.
#[derive(Clone)]
pub struct Membership {
    node: SpiffeId,
    control: SpiffeId,
    svids: Arc<SvidStore>,
    saved: Arc<Mutex<Option<SavedState>>>,
}

/// The content of a node's files.
struct SavedState {
    folder: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    bundle: Arc<TrustBundle>,
}

impl Membership {
    /// The membership of `node`, whose certificate is in `svids`.
    pub fn new(node: SpiffeId, trust_domain: &TrustDomain, svids: Arc<SvidStore>) -> Result<Self, BadSpiffeId> {
        Ok(Self { node, control: SpiffeId::control(trust_domain)?, svids, saved: Arc::default() })
    }

    /// Saves the node's certificate and key in `folder`, so that the node is still a member after a
    /// restart. Later, [`Membership::save_renewed`] saves renewed certificates there.
    pub fn save(&self, folder: &Path) -> Result<(), SavedError> {
        self.save_in(folder, &mut self.saved())
    }

    /// Restores a membership from `folder`; `None`: the folder has none. Fails if the certificate
    /// has expired: then the node has to join again.
    pub fn restore(folder: &Path) -> Result<Option<Self>, SavedError> {
        let Some((svids, node)) = SvidStore::restore(folder)? else { return Ok(None) };
        let trust_domain = svids.bundle().trust_domain().clone();
        let restored = Self::new(node.clone(), &trust_domain, svids).map_err(|_| SavedError::None(node))?;
        let (chain, bundle) = restored.state();
        *restored.saved() = Some(SavedState { folder: folder.to_owned(), chain, bundle });
        Ok(Some(restored))
    }

    /// Saves a renewed certificate and changed roots, if the membership is saved at all.
    pub fn save_renewed(&self) -> Result<(), SavedError> {
        let mut saved = self.saved();
        let Some(SavedState { folder, chain, bundle }) = &*saved else { return Ok(()) };
        let (now, folder) = (self.state(), folder.clone());
        if now.0.is_empty() || (&now.0, &now.1) == (chain, bundle) {
            return Ok(());
        }
        self.save_in(&folder, &mut saved)
    }

    /// Reads the certificate that another process of this node has saved. `roots`: also the roots,
    /// which the control plane does not deliver to this process yet. Returns whether the
    /// certificate is new.
    pub fn reload(&self, roots: bool) -> bool {
        let folder = self.saved().as_ref().map(|saved| saved.folder.clone());
        // The other process may be between the two files. The next time they agree.
        let Some(Ok(Some((read, identity)))) = folder.map(|folder| SvidStore::restore(&folder)) else { return false };
        if identity != self.node {
            return false;
        }
        if roots && read.bundle() != self.svids.bundle() {
            self.svids.set_bundle(TrustBundle::clone(&read.bundle()));
        }
        self.svids.adopt(&read, &identity)
    }

    fn save_in(&self, folder: &Path, saved: &mut Option<SavedState>) -> Result<(), SavedError> {
        // The state before the files are written: a renewal meanwhile is saved the next time.
        let (chain, bundle) = self.state();
        self.svids.save(&self.node, folder)?;
        *saved = Some(SavedState { folder: folder.to_owned(), chain, bundle });
        Ok(())
    }

    fn state(&self) -> (Vec<CertificateDer<'static>>, Arc<TrustBundle>) {
        let chain = self.svids.current(&self.node).map(|svid| svid.chain().to_vec());
        (chain.unwrap_or_default(), self.svids.bundle())
    }

    /// Nothing panics while holding the lock, so poisoning is ignored.
    fn saved(&self) -> MutexGuard<'_, Option<SavedState>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub fn control(&self) -> &SpiffeId {
        &self.control
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Membership({})", self.node)
    }
}
