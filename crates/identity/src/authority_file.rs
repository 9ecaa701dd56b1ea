//! An authority whose key survives its process, in a file that is encrypted with a passphrase.
//!
//! The file holds PEM sections that other tools understand: the key in PKCS #8, encrypted (PBES2 with scrypt and AES-256); then the
//! authority's certificate, those above it, and the root as the last one. Where the authority is to be an intermediate under somebody else's
//! root, it first holds the key alone, and a request for its certificate is made from it.

use crate::authority::{Authority, SignError, root_name, unwritable, uri};
use crate::key::PrivateKey;
use crate::request::KeyRequest;
use crate::saved::{content, read, replace};
use crate::spiffe::{SpiffeId, TrustDomain};
use crate::store::SvidStore;
use crate::{SavedError, verify};
use pem::Pem;
use pkcs8::{EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyUsagePurpose};
use rustls::pki_types::CertificateDer;
use rustls::time_provider::DefaultTimeProvider;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

const KEY: &str = "ENCRYPTED PRIVATE KEY";
const CERTIFICATE: &str = "CERTIFICATE";
/// Shorter passphrases are guessed.
const SHORTEST: usize = 16;

/// Why an authority's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityFileError {
    /// The file cannot be read or written, or does not hold what it should.
    #[error(transparent)]
    File(#[from] SavedError),
    /// The passphrase is too short.
    #[error("the passphrase of an authority's key must have at least {SHORTEST} bytes")]
    Passphrase,
    /// The authority's own certificate, or a first signature with it, is no use.
    #[error(transparent)]
    Sign(#[from] SignError),
}

impl Authority {
    /// Opens the authority in the file at `path`. If there is no such file, makes a new root and writes it there.
    pub fn open(path: &Path, passphrase: &[u8], trust_domain: &TrustDomain) -> Result<Self, AuthorityFileError> {
        check(passphrase)?;
        match contents(path, passphrase)? {
            None => {
                let key = PrivateKey::generate().map_err(SignError::from)?;
                let (authority, root) = Self::new_root(trust_domain, key.clone(), Arc::new(DefaultTimeProvider))?;
                write(path, passphrase, &key, &[root])?;
                Ok(authority)
            }
            Some((_, chain)) if chain.is_empty() => Err(content(
                path,
                &"it holds a key whose certificate is still missing: have the request signed, and install the answer (`leno ca install`)",
            )
            .into()),
            Some((key, chain)) => proven(path, key, chain, trust_domain),
        }
    }

    /// A request (PKCS #10, PEM) for the certificate of an authority of `trust_domain` with the key in the file at `path`. If there is no such file,
    /// makes a key and writes it there.
    pub fn request(path: &Path, passphrase: &[u8], trust_domain: &TrustDomain) -> Result<String, AuthorityFileError> {
        check(passphrase)?;
        let key = match contents(path, passphrase)? {
            Some((key, _)) => key,
            None => {
                let key = PrivateKey::generate().map_err(SignError::from)?;
                write(path, passphrase, &key, &[])?;
                key
            }
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = root_name(trust_domain)?;
        params.subject_alt_names = vec![uri(&trust_domain.id())?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let request = params.serialize_request(&key).map_err(unwritable)?;
        request.pem().map_err(|error| unwritable(error).into())
    }

    /// Puts the certificate of the authority into the file at `path`. `chain` is PEM: the certificate for the key in the file, those above it,
    /// and the root as the last one. What it signs must be accepted by whoever trusts the root; otherwise nothing changes.
    pub fn install(
        path: &Path,
        passphrase: &[u8],
        trust_domain: &TrustDomain,
        chain: &str,
    ) -> Result<Self, AuthorityFileError> {
        check(passphrase)?;
        let (key, _) = contents(path, passphrase)?.ok_or_else(|| content(path, &"there is no such file"))?;
        let sections = pem::parse_many(chain).map_err(|error| content(path, &error))?;
        let of = |section: &&Pem| section.tag() == CERTIFICATE;
        let chain: Vec<_> =
            sections.iter().filter(of).map(|section| CertificateDer::from(section.contents().to_vec())).collect();
        let authority = proven(path, key.clone(), chain.clone(), trust_domain)?;
        write(path, passphrase, &key, &chain)?;
        Ok(authority)
    }
}

/// The authority, if a certificate that it signs proves an identity to those who trust its root.
fn proven(
    path: &Path,
    key: PrivateKey,
    chain: Vec<CertificateDer<'static>>,
    trust_domain: &TrustDomain,
) -> Result<Authority, AuthorityFileError> {
    let unusable = |reason: &dyn std::fmt::Display| AuthorityFileError::from(content(path, reason));
    let own = chain.first().ok_or_else(|| unusable(&"there is no certificate in it"))?;
    if !chain.last().is_some_and(verify::is_self_issued) {
        return Err(unusable(&"the last certificate must be the root, which is its own issuer"));
    }
    let (_, public_key) = verify::end_and_key(own).map_err(|error| unusable(&error))?;
    if public_key != key.public_key_info() {
        return Err(unusable(&"the first certificate is for another key than the one in the file"));
    }
    let authority = Authority::of_chain(trust_domain, key, chain, Arc::new(DefaultTimeProvider))?;
    let probe = SpiffeId::control(trust_domain).map_err(|error| unusable(&error))?;
    let request = KeyRequest::new(&probe).map_err(|error| unusable(&error))?;
    let signed = authority.sign(request.csr(), &probe, Duration::from_secs(60))?;
    let store = SvidStore::new(authority.bundle().clone());
    store.install(request, signed).map_err(|error| unusable(&error))?;
    Ok(authority)
}

fn check(passphrase: &[u8]) -> Result<(), AuthorityFileError> {
    if passphrase.len() < SHORTEST { Err(AuthorityFileError::Passphrase) } else { Ok(()) }
}

/// The key and the chain in the file; `None`: there is no such file.
fn contents(
    path: &Path,
    passphrase: &[u8],
) -> Result<Option<(PrivateKey, Vec<CertificateDer<'static>>)>, AuthorityFileError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let sections = pem::parse_many(text.as_slice()).map_err(|error| content(path, &error))?;
    let key = sections.iter().find(|section| section.tag() == KEY);
    let key = key.ok_or_else(|| content(path, &format!("there is no section `{KEY}` in it")))?;
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(key.contents()).map_err(|error| content(path, &error))?;
    let decrypted = encrypted.decrypt(passphrase);
    let decrypted = decrypted.map_err(|_| content(path, &"its key cannot be decrypted; is it another passphrase?"))?;
    let key = PrivateKey::from_pkcs8(decrypted.as_bytes()).map_err(|error| content(path, &error))?;
    let certificates = sections.iter().filter(|section| section.tag() == CERTIFICATE);
    Ok(Some((key, certificates.map(|section| CertificateDer::from(section.contents().to_vec())).collect())))
}

fn write(
    path: &Path,
    passphrase: &[u8],
    key: &PrivateKey,
    chain: &[CertificateDer<'_>],
) -> Result<(), AuthorityFileError> {
    let bytes = key.to_pkcs8().map_err(SignError::from)?;
    let unwritable = |error: &dyn std::fmt::Display| content(path, error);
    let info = PrivateKeyInfoRef::try_from(bytes.as_slice()).map_err(|error| unwritable(&error))?;
    let encrypted = info.encrypt(passphrase).map_err(|error| unwritable(&error))?;
    let mut text = Zeroizing::new(pem::encode(&Pem::new(KEY, encrypted.as_bytes())));
    for certificate in chain {
        text.push_str(&pem::encode(&Pem::new(CERTIFICATE, certificate.to_vec())));
    }
    Ok(replace(path, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrustBundle;
    use rcgen::{CertificateSigningRequestParams, Issuer, KeyPair};

    const PASSPHRASE: &[u8] = b"correct horse battery";

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
        let first = Authority::open(&path, PASSPHRASE, &domain()).unwrap();
        let second = Authority::open(&path, PASSPHRASE, &domain()).unwrap();
        assert_eq!(first.bundle(), second.bundle());
        assert_eq!(first.not_after(), second.not_after());
        assert_eq!(accepted(&second, first.bundle()), 1);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("ENCRYPTED PRIVATE KEY") && !text.contains("BEGIN PRIVATE KEY"));
    }

    #[test]
    fn another_passphrase_or_trust_domain_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        Authority::open(&path, PASSPHRASE, &domain()).unwrap();
        let error = Authority::open(&path, b"another passphrase", &domain()).unwrap_err().to_string();
        assert!(error.contains("ca.pem") && error.contains("another passphrase?"), "{error}");
        assert!(matches!(Authority::open(&path, b"short", &domain()), Err(AuthorityFileError::Passphrase)));
        let error = Authority::open(&path, PASSPHRASE, &"other.example".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("is not one of `other.example`"), "{error}");
    }

    /// Somebody else's root, with any kind of key.
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
        let request = Authority::request(&path, PASSPHRASE, &domain()).unwrap();
        let error = Authority::open(&path, PASSPHRASE, &domain()).unwrap_err().to_string();
        assert!(error.contains("still missing"), "{error}");
        let (issuer, root) = upstream();
        let asked = CertificateSigningRequestParams::from_pem(&request).unwrap();
        let signed = asked.signed_by(&issuer).unwrap().pem();
        // Without the root nobody could trust it.
        assert!(Authority::install(&path, PASSPHRASE, &domain(), &signed).is_err());
        let installed = Authority::install(&path, PASSPHRASE, &domain(), &format!("{signed}{root}")).unwrap();
        let opened = Authority::open(&path, PASSPHRASE, &domain()).unwrap();
        assert_eq!(opened.bundle(), installed.bundle());
        assert_eq!(accepted(&opened, installed.bundle()), 2, "the leaf and the intermediate");
        // The same key again: a certificate that runs out is replaced by another one for it.
        let again = Authority::request(&path, PASSPHRASE, &domain()).unwrap();
        let again = CertificateSigningRequestParams::from_pem(&again).unwrap().signed_by(&issuer).unwrap().pem();
        Authority::install(&path, PASSPHRASE, &domain(), &format!("{again}{root}")).unwrap();
        // A certificate for another key.
        let other = folder.path().join("other.pem");
        let request = Authority::request(&other, PASSPHRASE, &domain()).unwrap();
        let foreign = CertificateSigningRequestParams::from_pem(&request).unwrap().signed_by(&issuer).unwrap().pem();
        let error = Authority::install(&path, PASSPHRASE, &domain(), &format!("{foreign}{root}")).unwrap_err();
        assert!(error.to_string().contains("another key"), "{error}");
    }
}
