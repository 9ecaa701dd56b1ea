//! What makes a process a node of the mesh: its identity, with the certificate that proves it.

use leno_identity::{BadSpiffeId, CertificateDer, SavedError, SpiffeId, SvidStore, TrustBundle, TrustDomain};
use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval between looks at files that another process writes.
const FOLLOW: Duration = Duration::from_millis(200);

/// A node's identity and the store with its certificate. The store also holds the trust bundle, and may hold other identities.
#[derive(Clone)]
pub struct Membership {
    node: SpiffeId,
    control: SpiffeId,
    svids: Arc<SvidStore>,
    kept: Arc<Mutex<Option<Kept>>>,
}

/// What is in the files of a node.
struct Kept {
    folder: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    bundle: Arc<TrustBundle>,
}

impl Membership {
    pub(crate) fn new(node: SpiffeId, trust_domain: &TrustDomain, svids: Arc<SvidStore>) -> Result<Self, BadSpiffeId> {
        Ok(Self { node, control: SpiffeId::control(trust_domain)?, svids, kept: Arc::default() })
    }

    /// Keeps the node's certificate and key in `folder`, so that it is still a member after a restart. What is renewed later is kept there too.
    pub fn save(&self, folder: &Path) -> Result<(), SavedError> {
        self.keep_in(folder, &mut self.kept())
    }

    /// What was kept in `folder`; `None`: nothing. Fails if the certificate has expired: then the node has to join again.
    pub fn restore(folder: &Path) -> Result<Option<Self>, SavedError> {
        let Some((svids, node)) = SvidStore::restore(folder)? else { return Ok(None) };
        let trust_domain = svids.bundle().trust_domain().clone();
        let restored = Self::new(node.clone(), &trust_domain, svids).map_err(|_| SavedError::None(node))?;
        let (chain, bundle) = restored.state();
        *restored.kept() = Some(Kept { folder: folder.to_owned(), chain, bundle });
        Ok(Some(restored))
    }

    /// Writes what was renewed since it was kept, if it is kept at all.
    pub(crate) fn keep(&self) -> Result<(), SavedError> {
        let mut kept = self.kept();
        let Some(Kept { folder, chain, bundle }) = &*kept else { return Ok(()) };
        let (now, folder) = (self.state(), folder.clone());
        if now.0.is_empty() || (&now.0, &now.1) == (chain, bundle) {
            return Ok(());
        }
        self.keep_in(&folder, &mut kept)
    }

    /// Takes what another process of this node keeps in the files, as often as that renews it. `roots`: also the roots, which nobody delivers yet.
    pub async fn follow(&self, roots: bool) -> Infallible {
        loop {
            tokio::time::sleep(FOLLOW).await;
            self.take_in(roots);
        }
    }

    fn take_in(&self, roots: bool) {
        let folder = self.kept().as_ref().map(|kept| kept.folder.clone());
        // The two files may be of different moments. The next time they are not.
        let Some(Ok(Some((read, identity)))) = folder.map(|folder| SvidStore::restore(&folder)) else { return };
        if identity != self.node {
            return;
        }
        if roots && read.bundle() != self.svids.bundle() {
            self.svids.set_bundle(TrustBundle::clone(&read.bundle()));
        }
        if self.svids.adopt(&read, &identity) {
            tracing::info!("the process that runs has renewed the node's certificate");
        }
    }

    fn keep_in(&self, folder: &Path, kept: &mut Option<Kept>) -> Result<(), SavedError> {
        // Of before the files are written: what comes meanwhile is written the next time.
        let (chain, bundle) = self.state();
        self.svids.save(&self.node, folder)?;
        *kept = Some(Kept { folder: folder.to_owned(), chain, bundle });
        Ok(())
    }

    fn state(&self) -> (Vec<CertificateDer<'static>>, Arc<TrustBundle>) {
        let chain = self.svids.current(&self.node).map(|svid| svid.chain().to_vec());
        (chain.unwrap_or_default(), self.svids.bundle())
    }

    /// Nothing panics while holding the lock, so poisoning is ignored.
    fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
