//! An authority as cert-manager keeps it in a Secret: three texts in PEM.

use crate::authority::{Authority, SignError};
use crate::bundle::{BundleError, TrustBundle};
use crate::key::PrivateKey;
use leno_model::TrustDomain;
use pem::Pem;
use rustls::pki_types::CertificateDer;
use rustls::time_provider::DefaultTimeProvider;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

const KEY: &str = "PRIVATE KEY";
const CERTIFICATE: &str = "CERTIFICATE";

/// The key and the certificates of an authority, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityPem {
    /// `tls.crt`: its certificate, and those between it and the root.
    pub certificate: String,
    /// `tls.key`: its private key, on P-256 in PKCS #8.
    pub key: Zeroizing<String>,
    /// `ca.crt`: the root.
    pub roots: String,
}

/// Why the texts are no authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct AuthorityPemError {
    /// The text: `tls.crt`, `tls.key` or `ca.crt`.
    pub field: &'static str,
    /// The error.
    pub reason: String,
}

impl AuthorityPem {
    /// A new root for `trust_domain`.
    ///
    /// # Errors
    /// The key or the certificate cannot be made.
    pub fn generate(trust_domain: &TrustDomain) -> Result<Self, SignError> {
        let key = PrivateKey::generate()?;
        let (_, root) = Authority::new_root(trust_domain, key.clone(), Arc::new(DefaultTimeProvider))?;
        let certificate = pem::encode(&Pem::new(CERTIFICATE, root.to_vec()));
        let key = Zeroizing::new(pem::encode(&Pem::new(KEY, key.to_pkcs8()?.to_vec())));
        Ok(Self { roots: certificate.clone(), certificate, key })
    }

    /// The authority, if nodes recognise its root as the trust domain's, and peers that trust the root
    /// accept its signatures.
    ///
    /// # Errors
    /// The text that is wrong.
    pub fn open(&self, trust_domain: &TrustDomain) -> Result<Authority, AuthorityPemError> {
        let fail = |field, reason: &dyn fmt::Display| AuthorityPemError { field, reason: reason.to_string() };
        let sections = pem::parse_many(self.key.as_bytes()).map_err(|error| fail("tls.key", &error))?;
        let [section] = &sections[..] else { return Err(fail("tls.key", &"expected one private key")) };
        if section.tag() != KEY {
            let fix = "expected `PRIVATE KEY`; with cert-manager: `privateKey: {algorithm: ECDSA, size: 256, encoding: PKCS8}`";
            return Err(fail("tls.key", &format!("it is of the form `{}`; {fix}", section.tag())));
        }
        let key = PrivateKey::from_pkcs8(section.contents()).map_err(|error| fail("tls.key", &error))?;
        let mut chain = certificates("tls.crt", &self.certificate)?;
        let roots = certificates("ca.crt", &self.roots)?;
        let [root] = &roots[..] else { return Err(fail("ca.crt", &"expected one root")) };
        // Nodes read the trust domain from the root.
        let expected = || {
            format!(
                "expected a root with the URI spiffe://{trust_domain}; with cert-manager: `uris: [spiffe://{trust_domain}]`"
            )
        };
        match TrustBundle::from_pem(self.roots.as_bytes()) {
            Ok(bundle) if bundle.trust_domain() == trust_domain => {}
            Ok(bundle) => {
                let found = bundle.trust_domain();
                return Err(fail("ca.crt", &format!("it is the root of the trust domain {found}; {}", expected())));
            }
            Err(BundleError::Nameless) => {
                return Err(fail("ca.crt", &format!("the root has no SPIFFE ID; {}", expected())));
            }
            Err(error) => return Err(fail("ca.crt", &error)),
        }
        if chain.last() != Some(root) {
            chain.push(root.clone());
        }
        Authority::proven(trust_domain, key, chain).map_err(|reason| fail("tls.crt", &reason))
    }
}

fn certificates(field: &'static str, text: &str) -> Result<Vec<CertificateDer<'static>>, AuthorityPemError> {
    let sections = pem::parse_many(text).map_err(|error| AuthorityPemError { field, reason: error.to_string() })?;
    let certificates = sections.into_iter().filter(|section| section.tag() == CERTIFICATE);
    Ok(certificates.map(|section| CertificateDer::from(section.into_contents())).collect())
}

impl fmt::Debug for AuthorityPem {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityPem").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> TrustDomain {
        "orders.example".parse().unwrap()
    }

    #[test]
    fn the_same_authority_each_time() {
        let made = AuthorityPem::generate(&domain()).unwrap();
        let (first, second) = (made.open(&domain()).unwrap(), made.open(&domain()).unwrap());
        assert_eq!((first.key_id(), first.bundle()), (second.key_id(), second.bundle()));
        assert!(!format!("{made:?}").contains("PRIVATE"));
    }

    #[test]
    fn the_wrong_text_is_named() {
        let made = AuthorityPem::generate(&domain()).unwrap();
        let other = AuthorityPem::generate(&domain()).unwrap();
        let nothing = String::new();
        for (pem, field, reason) in [
            (AuthorityPem { key: other.key.clone(), ..made.clone() }, "tls.crt", "another key"),
            (AuthorityPem { key: nothing.clone().into(), ..made.clone() }, "tls.key", "one private key"),
            (
                AuthorityPem { key: made.key.replace("PRIVATE", "EC PRIVATE").into(), ..made.clone() },
                "tls.key",
                "PKCS8",
            ),
            (AuthorityPem { roots: nothing, ..made.clone() }, "ca.crt", "one root"),
            (AuthorityPem { roots: other.roots.clone(), ..made.clone() }, "tls.crt", ""),
        ] {
            let error = pem.open(&domain()).unwrap_err();
            assert!(error.field == field && error.reason.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_root_of_another_trust_domain_or_of_none_is_refused() {
        let made = AuthorityPem::generate(&domain()).unwrap();
        let error = made.open(&"other.example".parse().unwrap()).unwrap_err();
        assert_eq!(error.field, "ca.crt");
        assert!(error.reason.contains("trust domain orders.example; expected"), "{error}");

        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut root = rcgen::CertificateParams::default();
        root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        root.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        let certificate = root.self_signed(&key).unwrap().pem();
        let nameless = AuthorityPem { roots: certificate.clone(), certificate, key: key.serialize_pem().into() };
        let error = nameless.open(&domain()).unwrap_err();
        assert_eq!(error.field, "ca.crt");
        assert!(error.reason.contains("no SPIFFE ID; expected a root with the URI spiffe://orders.example"), "{error}");
    }
}
