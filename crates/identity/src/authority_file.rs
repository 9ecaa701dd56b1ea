//! An authority whose key survives its process, in a file that is encrypted with a passphrase.
//!
//! The file holds PEM sections that other tools understand: the key in PKCS #8, encrypted (PBES2
//! with scrypt and AES-256); then the authority's certificate, those above it, and the root as the
//! last one. If the authority is to be an intermediate under an external root, the file first holds
//! the key alone, and a certificate request is made from it. While the mesh changes to another
//! authority, a second key with its certificates follows.

use crate::SavedError;
use crate::authority::{Authority, SignError, root_name, unwritable, uri};
use crate::authority_key_id::AuthorityKeyId;
use crate::key::PrivateKey;
use crate::saved::{content, read, replace_private_file};
use leno_model::TrustDomain;
use pem::Pem;
use pkcs8::{EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyUsagePurpose};
use rustls::pki_types::CertificateDer;
use rustls::time_provider::DefaultTimeProvider;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

const KEY: &str = "ENCRYPTED PRIVATE KEY";
const CERTIFICATE: &str = "CERTIFICATE";
/// Shorter passphrases can be guessed.
const SHORTEST: usize = 16;
const UNSIGNED: &str = "it holds a key whose certificate is still missing: have the request signed, and install the answer (`leno ca install`)";

/// Why an authority's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFileError {
    /// The file cannot be read or written, or its content is not usable.
    #[error(transparent)]
    File(#[from] SavedError),
    /// The passphrase is too short.
    #[error("the passphrase of an authority's key must have at least {SHORTEST} bytes")]
    Passphrase,
    /// The authority's own certificate, or a first signature with it, is not usable.
    #[error(transparent)]
    Sign(#[from] SignError),
}

/// A file with the authority of a trust domain, and perhaps with its successor. It is read anew each time.
pub struct AuthorityFile {
    path: PathBuf,
    passphrase: Zeroizing<Vec<u8>>,
    trust_domain: TrustDomain,
}

/// A key in the file and what follows it.
struct KeyEntry {
    /// The key as it is in the file.
    sealed: Pem,
    key: PrivateKey,
    /// Empty: the key has no certificate yet.
    chain: Vec<CertificateDer<'static>>,
}

impl AuthorityFile {
    /// The file need not exist yet.
    pub fn new(path: &Path, passphrase: &[u8], trust_domain: &TrustDomain) -> Result<Self, AuthorityFileError> {
        if passphrase.len() < SHORTEST {
            return Err(AuthorityFileError::Passphrase);
        }
        let passphrase = Zeroizing::new(passphrase.to_vec());
        Ok(Self { path: path.to_owned(), passphrase, trust_domain: trust_domain.clone() })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The authority in the file, and its successor if that can sign. If there is no such file,
    /// makes a new root and writes it there.
    pub fn open(&self) -> Result<Vec<Authority>, AuthorityFileError> {
        let kept = self.read()?.unwrap_or_default();
        let Some((first, successors)) = kept.split_first() else { return Ok(vec![self.add_root(Vec::new())?]) };
        if first.chain.is_empty() {
            return Err(self.unusable(&UNSIGNED));
        }
        let complete = successors.iter().filter(|kept| !kept.chain.is_empty());
        std::iter::once(first).chain(complete).map(|kept| self.proven(kept.key.clone(), kept.chain.clone())).collect()
    }

    /// The successor of the authority that signs with the key `signs`. If there is none, makes a
    /// new root and adds it to the file.
    pub fn successor(&self, signs: &AuthorityKeyId) -> Result<Authority, AuthorityFileError> {
        let kept = self.read()?.unwrap_or_default();
        for kept in kept.iter().filter(|kept| !kept.chain.is_empty()) {
            let authority = self.proven(kept.key.clone(), kept.chain.clone())?;
            if authority.key_id() != signs {
                return Ok(authority);
            }
        }
        if kept.iter().any(|kept| kept.chain.is_empty()) { Err(self.unusable(&UNSIGNED)) } else { self.add_root(kept) }
    }

    /// Removes the key of an authority, with its certificates. Returns whether it was there.
    pub fn remove(&self, key: &AuthorityKeyId) -> Result<bool, AuthorityFileError> {
        let kept = self.read()?.unwrap_or_default();
        let count = kept.len();
        let mut remaining = Vec::new();
        for kept in kept {
            let is_it = !kept.chain.is_empty() && self.proven(kept.key.clone(), kept.chain.clone())?.key_id() == key;
            if !is_it {
                remaining.push(kept);
            }
        }
        if remaining.len() < count {
            self.write(&remaining)?;
        }
        Ok(remaining.len() < count)
    }

    /// A request (PKCS #10, PEM) for the certificate of an authority with the key in the file; with `successor`, of the second key. Makes the key
    /// if there is none.
    pub fn request(&self, successor: bool) -> Result<String, AuthorityFileError> {
        let mut kept = self.read()?.unwrap_or_default();
        let place = usize::from(successor);
        if kept.len() < place {
            return Err(self.unusable(&"there is no authority in it that could have a successor"));
        }
        if kept.len() == place {
            kept.push(self.seal(PrivateKey::generate().map_err(SignError::from)?)?);
            self.write(&kept)?;
        }
        let key =
            kept.get(place).map(|kept| kept.key.clone()).ok_or_else(|| self.unusable(&"there is no key in it"))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = root_name(&self.trust_domain)?;
        params.subject_alt_names = vec![uri(&self.trust_domain.id())?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let request = params.serialize_request(&key).map_err(unwritable)?;
        request.pem().map_err(|error| unwritable(error).into())
    }

    /// Puts the certificate of the authority into the file; with `successor`, the certificate for
    /// the second key. `chain` is PEM: the certificate, those above it, and the root as the last
    /// one. Peers that trust the root must accept the authority's signatures; otherwise nothing
    /// changes.
    pub fn install(&self, chain: &str, successor: bool) -> Result<Authority, AuthorityFileError> {
        let mut all = self.read()?.ok_or_else(|| self.unusable(&"there is no such file"))?;
        let kept = all.get_mut(usize::from(successor));
        let kept = kept
            .ok_or_else(|| self.unusable(&"there is no second key in it: `leno ca request --successor` makes one"))?;
        let sections = pem::parse_many(chain).map_err(|error| self.unusable(&error))?;
        let of = |section: &&Pem| section.tag() == CERTIFICATE;
        kept.chain =
            sections.iter().filter(of).map(|section| CertificateDer::from(section.contents().to_vec())).collect();
        let authority = self.proven(kept.key.clone(), kept.chain.clone())?;
        self.write(&all)?;
        Ok(authority)
    }

    fn add_root(&self, mut kept: Vec<KeyEntry>) -> Result<Authority, AuthorityFileError> {
        let key = PrivateKey::generate().map_err(SignError::from)?;
        let (authority, root) = Authority::new_root(&self.trust_domain, key.clone(), Arc::new(DefaultTimeProvider))?;
        kept.push(KeyEntry { chain: vec![root], ..self.seal(key)? });
        self.write(&kept)?;
        Ok(authority)
    }

    /// See [`Authority::proven`].
    fn proven(&self, key: PrivateKey, chain: Vec<CertificateDer<'static>>) -> Result<Authority, AuthorityFileError> {
        Authority::proven(&self.trust_domain, key, chain).map_err(|reason| self.unusable(&reason))
    }

    /// The keys and certificates in the file; `None`: there is no such file.
    fn read(&self) -> Result<Option<Vec<KeyEntry>>, AuthorityFileError> {
        let Some(text) = read(&self.path)? else { return Ok(None) };
        let mut all: Vec<KeyEntry> = Vec::new();
        for section in pem::parse_many(text.as_slice()).map_err(|error| self.unusable(&error))? {
            match (section.tag(), all.last_mut()) {
                (KEY, _) => {
                    let key = self.decrypt(&section)?;
                    all.push(KeyEntry { sealed: section, key, chain: Vec::new() });
                }
                (CERTIFICATE, Some(kept)) => kept.chain.push(CertificateDer::from(section.into_contents())),
                _ => {}
            }
        }
        if all.is_empty() { Err(self.unusable(&format!("there is no section `{KEY}` in it"))) } else { Ok(Some(all)) }
    }

    fn decrypt(&self, sealed: &Pem) -> Result<PrivateKey, AuthorityFileError> {
        let encrypted =
            EncryptedPrivateKeyInfoRef::try_from(sealed.contents()).map_err(|error| self.unusable(&error))?;
        let decrypted = encrypted.decrypt(&*self.passphrase);
        let decrypted =
            decrypted.map_err(|_| self.unusable(&"its key cannot be decrypted; is it another passphrase?"))?;
        PrivateKey::from_pkcs8(decrypted.as_bytes()).map_err(|error| self.unusable(&error))
    }

    fn seal(&self, key: PrivateKey) -> Result<KeyEntry, AuthorityFileError> {
        let bytes = key.to_pkcs8().map_err(SignError::from)?;
        let info = PrivateKeyInfoRef::try_from(bytes.as_slice()).map_err(|error| self.unusable(&error))?;
        let encrypted = info.encrypt(&*self.passphrase).map_err(|error| self.unusable(&error))?;
        Ok(KeyEntry { sealed: Pem::new(KEY, encrypted.as_bytes()), key, chain: Vec::new() })
    }

    fn write(&self, all: &[KeyEntry]) -> Result<(), AuthorityFileError> {
        let mut text = Zeroizing::new(String::new());
        for kept in all {
            text.push_str(&pem::encode(&kept.sealed));
            for certificate in &kept.chain {
                text.push_str(&pem::encode(&Pem::new(CERTIFICATE, certificate.to_vec())));
            }
        }
        Ok(replace_private_file(&self.path, &text)?)
    }

    fn unusable(&self, reason: &dyn fmt::Display) -> AuthorityFileError {
        content(&self.path, reason).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrustBundle;
    use crate::request::KeyRequest;
    use crate::store::SvidStore;
    use leno_model::SpiffeId;
    use rcgen::{CertificateSigningRequestParams, Issuer, KeyPair};
    use std::time::Duration;

    const PASSPHRASE: &[u8] = b"correct horse battery";

    fn file(path: &Path) -> AuthorityFile {
        AuthorityFile::new(path, PASSPHRASE, &domain()).unwrap()
    }

    fn domain() -> TrustDomain {
        "orders.example".parse().unwrap()
    }

    fn accepted(authority: &Authority, bundle: &TrustBundle) -> usize {
        let id = SpiffeId::function(&domain(), "orders", "inventory").unwrap();
        let request = KeyRequest::new(&id).unwrap();
        let chain = authority.sign(request.csr(), &id, Duration::from_secs(60)).unwrap();
        let count = chain.len();
        SvidStore::new(bundle.clone()).install(request, chain).unwrap();
        count
    }

    #[test]
    fn the_same_root_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let [first] = &file(&path).open().unwrap()[..] else { panic!() };
        let [second] = &file(&path).open().unwrap()[..] else { panic!() };
        assert_eq!(first.bundle(), second.bundle());
        assert_eq!(first.not_after(), second.not_after());
        assert_eq!(first.key_id(), second.key_id());
        assert_eq!(accepted(second, first.bundle()), 1);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("ENCRYPTED PRIVATE KEY") && !text.contains("BEGIN PRIVATE KEY"));
    }

    #[test]
    fn another_passphrase_or_trust_domain_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        file(&path).open().unwrap();
        let other = |passphrase: &[u8], domain: &str| {
            AuthorityFile::new(&path, passphrase, &domain.parse().unwrap()).and_then(|file| file.open()).unwrap_err()
        };
        let error = other(b"another passphrase", "orders.example").to_string();
        assert!(error.contains("ca.pem") && error.contains("another passphrase?"), "{error}");
        assert!(matches!(other(b"short", "orders.example"), AuthorityFileError::Passphrase));
        let error = other(PASSPHRASE, "other.example").to_string();
        assert!(error.contains("is not one of `other.example`"), "{error}");
    }

    /// An external root, with any kind of key.
    fn upstream() -> (Issuer<'static, KeyPair>, String) {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let root = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), root)
    }

    #[test]
    fn an_intermediate_under_somebody_elses_root() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let request = file(&path).request(false).unwrap();
        let error = file(&path).open().unwrap_err().to_string();
        assert!(error.contains("still missing"), "{error}");
        let (issuer, root) = upstream();
        let asked = CertificateSigningRequestParams::from_pem(&request).unwrap();
        let signed = asked.signed_by(&issuer).unwrap().pem();
        // Without the root, peers could not trust the chain.
        assert!(file(&path).install(&signed, false).is_err());
        let installed = file(&path).install(&format!("{signed}{root}"), false).unwrap();
        let opened = file(&path).open().unwrap().remove(0);
        assert_eq!(opened.bundle(), installed.bundle());
        assert_eq!(accepted(&opened, installed.bundle()), 2, "the leaf and the intermediate");
        // A certificate that expires is replaced by another one for the same key.
        let again = file(&path).request(false).unwrap();
        let again = CertificateSigningRequestParams::from_pem(&again).unwrap().signed_by(&issuer).unwrap().pem();
        file(&path).install(&format!("{again}{root}"), false).unwrap();
        // A certificate for another key.
        let other = folder.path().join("other.pem");
        let request = file(&other).request(false).unwrap();
        let foreign = CertificateSigningRequestParams::from_pem(&request).unwrap().signed_by(&issuer).unwrap().pem();
        let error = file(&path).install(&format!("{foreign}{root}"), false).unwrap_err();
        assert!(error.to_string().contains("another key"), "{error}");
    }

    #[test]
    fn a_successor_stays_until_one_of_the_two_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let first = file(&path).open().unwrap().remove(0);
        let second = file(&path).successor(first.key_id()).unwrap();
        assert_ne!(first.key_id(), second.key_id());
        assert_eq!(file(&path).successor(first.key_id()).unwrap().key_id(), second.key_id(), "it is made once");
        let keys = || file(&path).open().unwrap().iter().map(|one| one.key_id().clone()).collect::<Vec<_>>();
        assert_eq!(keys(), [first.key_id().clone(), second.key_id().clone()]);
        assert!(file(&path).remove(first.key_id()).unwrap());
        assert!(!file(&path).remove(first.key_id()).unwrap());
        assert_eq!(keys(), [second.key_id().clone()]);
    }

    #[test]
    fn a_successor_under_somebody_elses_root() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        assert!(file(&path).request(true).unwrap_err().to_string().contains("could have a successor"));
        let first = file(&path).open().unwrap().remove(0);
        let request = file(&path).request(true).unwrap();
        // Until it is signed, the mesh goes on with the first.
        assert_eq!(file(&path).open().unwrap().len(), 1);
        assert!(file(&path).successor(first.key_id()).unwrap_err().to_string().contains("still missing"));
        let (issuer, root) = upstream();
        let signed = CertificateSigningRequestParams::from_pem(&request).unwrap().signed_by(&issuer).unwrap().pem();
        assert!(file(&path).install(&format!("{signed}{root}"), false).is_err(), "it is for the second key");
        let installed = file(&path).install(&format!("{signed}{root}"), true).unwrap();
        assert_eq!(file(&path).successor(first.key_id()).unwrap().key_id(), installed.key_id());
        assert_eq!(accepted(&installed, installed.bundle()), 2);
    }
}
