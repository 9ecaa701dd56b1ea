//! A node's identity in files, so that the node is still a member after a restart.

use crate::bundle::{BundleError, TrustBundle};
use crate::key::PrivateKey;
use crate::request::KeyRequest;
use crate::store::SvidStore;
use crate::svid::SvidError;
use crate::verify::{self, PeerError};
use leno_model::{SpiffeId, TrustDomain};
use pem::Pem;
use rustls::pki_types::CertificateDer;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

const IDENTITY: &str = "node.pem";
const ROOTS: &str = "roots.pem";
const KEY: &str = "PRIVATE KEY";
const CERTIFICATE: &str = "CERTIFICATE";

/// Why an identity was not saved or read.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// A file cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The content of a file is not usable.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// There is no certificate to save.
    #[error("there is no certificate for `{0}`")]
    None(SpiffeId),
}

impl SvidStore {
    /// Writes the SVID of `id` with its private key, and the roots, to files in `folder` that only their owner can read. Each file is replaced as a
    /// whole.
    pub fn save(&self, id: &SpiffeId, folder: &Path) -> Result<(), SavedError> {
        let svid = self.current(id).ok_or_else(|| SavedError::None(id.clone()))?;
        let roots: Vec<_> = self.bundle().roots().map(|root| Pem::new(CERTIFICATE, root.to_vec())).collect();
        replace_private_file(&folder.join(ROOTS), &pem::encode_many(&roots))?;
        let path = folder.join(IDENTITY);
        let key = svid.private_key().to_pkcs8().map_err(|error| content(&path, &error))?;
        let mut text = Zeroizing::new(pem::encode(&Pem::new(KEY, key.to_vec())));
        for certificate in svid.chain() {
            text.push_str(&pem::encode(&Pem::new(CERTIFICATE, certificate.to_vec())));
        }
        replace_private_file(&path, &text)
    }

    /// Reads what [`SvidStore::save`] wrote: a store with that SVID, and its identity. `None`: nothing was saved in this folder. A certificate that has
    /// expired, or that the roots do not cover, is an error: the node has to join again.
    pub fn restore(folder: &Path) -> Result<Option<(Arc<Self>, SpiffeId)>, SavedError> {
        let (identity, roots) = (folder.join(IDENTITY), folder.join(ROOTS));
        let Some(text) = read(&identity)? else { return Ok(None) };
        let sections = pem::parse_many(text.as_slice()).map_err(|error| content(&identity, &error))?;
        let of = |tag: &'static str| sections.iter().filter(move |section| section.tag() == tag);
        let key = of(KEY).next().ok_or_else(|| content(&identity, &"there is no private key in it"))?;
        let key = PrivateKey::from_pkcs8(key.contents()).map_err(|error| content(&identity, &error))?;
        let chain: Vec<_> = of(CERTIFICATE).map(|section| CertificateDer::from(section.contents().to_vec())).collect();
        let leaf = chain.first().ok_or_else(|| content(&identity, &"there is no certificate in it"))?;
        let id = verify::leaf_identity(leaf).map_err(|error: PeerError| content(&identity, &error))?;
        let trust_domain: TrustDomain = id.trust_domain().parse().map_err(|error| content(&identity, &error))?;
        let text = read(&roots)?.ok_or_else(|| content(&roots, &"it is missing"))?;
        let sections = pem::parse_many(text.as_slice()).map_err(|error| content(&roots, &error))?;
        let certificates = sections.into_iter().map(|section| CertificateDer::from(section.into_contents()));
        let bundle =
            TrustBundle::new(&trust_domain, certificates).map_err(|error: BundleError| content(&roots, &error))?;
        let store = Self::new(bundle);
        let installed = store.install(KeyRequest::of(&id, key), chain);
        installed.map_err(|error: SvidError| content(&identity, &error))?;
        Ok(Some((store, id)))
    }
}

pub(crate) fn read(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, SavedError> {
    match fs::read(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(SavedError::File { path: path.to_owned(), reason }),
    }
}

/// Writes a file that only its owner can read. A file of this name is replaced as a whole.
pub fn replace_private_file(path: &Path, text: &str) -> Result<(), SavedError> {
    let failed = |reason| SavedError::File { path: path.to_owned(), reason };
    let beside = path.with_extension("new");
    // A leftover may have other permissions.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => (),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}

pub(crate) fn content(path: &Path, reason: &dyn std::fmt::Display) -> SavedError {
    SavedError::Content { path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn member(lifetime: Duration) -> (Authority, Arc<SvidStore>, SpiffeId) {
        let domain: TrustDomain = "orders.example".parse().unwrap();
        let (authority, id) = (Authority::new(&domain).unwrap(), SpiffeId::node(&domain, "one").unwrap());
        let store = SvidStore::new(authority.bundle().clone());
        let request = KeyRequest::new(&id).unwrap();
        let chain = authority.sign(request.csr(), &id, lifetime).unwrap();
        store.install(request, chain).unwrap();
        (authority, store, id)
    }

    #[test]
    fn what_was_saved_is_read_again_and_only_the_owner_can() {
        let folder = tempfile::tempdir().unwrap();
        assert!(SvidStore::restore(folder.path()).unwrap().is_none());
        let (_authority, store, id) = member(Duration::from_secs(600));
        store.save(&id, folder.path()).unwrap();
        store.save(&id, folder.path()).unwrap();
        for name in [IDENTITY, ROOTS] {
            assert_eq!(folder.path().join(name).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        let (read, identity) = SvidStore::restore(folder.path()).unwrap().unwrap();
        assert_eq!(identity, id);
        assert_eq!(*read.bundle(), *store.bundle());
        assert_eq!(read.current(&id).unwrap().chain(), store.current(&id).unwrap().chain());
        assert_eq!(read.current(&id).unwrap().not_after(), store.current(&id).unwrap().not_after());
    }

    #[test]
    fn another_process_takes_what_is_newer_and_nothing_else() {
        let (authority, store, id) = member(Duration::from_secs(600));
        let other = SvidStore::new(authority.bundle().clone());
        assert!(other.adopt(&store, &id));
        assert!(!other.adopt(&store, &id), "it has that one");
        let renew = |store: &SvidStore, lifetime| {
            let request = KeyRequest::new(&id).unwrap();
            let chain = authority.sign(request.csr(), &id, Duration::from_secs(lifetime)).unwrap();
            store.install(request, chain).unwrap();
        };
        renew(&store, 500);
        assert!(!other.adopt(&store, &id), "it is older");
        renew(&store, 700);
        assert!(other.adopt(&store, &id));
        assert_eq!(other.current(&id).unwrap().chain(), store.current(&id).unwrap().chain());
    }

    #[test]
    fn what_cannot_be_used_is_said_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (_authority, store, id) = member(Duration::from_secs(600));
        store.save(&id, folder.path()).unwrap();
        let (other_authority, ..) = member(Duration::from_secs(600));
        let root = other_authority.bundle().roots().next().unwrap().to_vec();
        fs::write(folder.path().join(ROOTS), pem::encode(&Pem::new(CERTIFICATE, root))).unwrap();
        let error = SvidStore::restore(folder.path()).unwrap_err().to_string();
        assert!(error.contains("node.pem") && error.contains("is refused"), "{error}");
        fs::write(folder.path().join(IDENTITY), "nothing").unwrap();
        let error = SvidStore::restore(folder.path()).unwrap_err().to_string();
        assert!(error.contains("node.pem") && error.contains("no private key"), "{error}");
    }
}
