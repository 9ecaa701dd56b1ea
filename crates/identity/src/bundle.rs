//! The roots that a trust domain's identities chain to.

use crate::constraints::{UnknownConstraints, constraints_of};
use aws_lc_rs::digest::{SHA256, digest};
use leno_model::{BadSpiffeId, TrustDomain};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The roots of one trust domain. Several at a time overlap while an authority changes its root: nodes trust the new one
/// before anything is signed by it, and the old one until everything signed by it has expired.
#[derive(Clone)]
pub struct TrustBundle {
    trust_domain: TrustDomain,
    roots: Vec<Root>,
    anchors: Vec<TrustAnchor<'static>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Root {
    der: CertificateDer<'static>,
    not_before: UnixTime,
    not_after: UnixTime,
}

/// SHA-256 of a root certificate in DER: enough to recognise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootPin([u8; 32]);

impl RootPin {
    /// The pin of this certificate.
    pub fn of(root: &CertificateDer<'_>) -> Self {
        let mut pin = [0; 32];
        pin.iter_mut().zip(digest(&SHA256, root).as_ref()).for_each(|(to, from)| *to = *from);
        Self(pin)
    }

    /// The pin in its 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RootPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a certificate cannot be a trust domain's root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Without a root, the bundle would refuse every peer.
    #[error("the trust bundle of `{0}` has no root")]
    Empty(TrustDomain),
    /// Not X.509.
    #[error("root {index} of the trust bundle is not a DER-encoded X.509 certificate")]
    Malformed {
        /// Position in the bundle, from 0.
        index: usize,
    },
    /// Not a signing certificate (X.509-SVID, section 3.2).
    #[error("root {index} of the trust bundle is no certificate authority")]
    NoAuthority {
        /// Position in the bundle, from 0.
        index: usize,
    },
    /// The root's own SPIFFE ID names another trust domain.
    #[error("root {index} of the trust bundle is not one of `{trust_domain}`")]
    Foreign {
        /// Position in the bundle, from 0.
        index: usize,
        /// The bundle's trust domain.
        trust_domain: TrustDomain,
    },
    /// No identity under the root would be accepted.
    #[error("root {index} of the trust bundle has {reason}")]
    Constrained {
        /// Position in the bundle, from 0.
        index: usize,
        /// Its constraints.
        reason: UnknownConstraints,
    },
    /// The text is no PEM, or has no certificate.
    #[error("{0}")]
    Pem(String),
    /// The root does not name its trust domain.
    #[error("the first root has no SPIFFE ID, so it is not one of Leno's")]
    Nameless,
    /// The trust domain's name.
    #[error(transparent)]
    TrustDomain(#[from] BadSpiffeId),
}

impl TrustBundle {
    /// Checks each root: DER, a signing certificate, and, where it carries a SPIFFE ID, that of `trust_domain`.
    pub fn new(
        trust_domain: &TrustDomain,
        roots: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<Self, BundleError> {
        let mut bundle = Self { trust_domain: trust_domain.clone(), roots: Vec::new(), anchors: Vec::new() };
        for (index, der) in roots.into_iter().enumerate() {
            bundle.add(index, der)?;
        }
        if bundle.roots.is_empty() { Err(BundleError::Empty(trust_domain.clone())) } else { Ok(bundle) }
    }

    /// The roots of a PEM text. The first one names the trust domain, by its own SPIFFE ID.
    pub fn from_pem(text: &[u8]) -> Result<Self, BundleError> {
        let roots = certificates(text)?;
        let first = roots.first().ok_or_else(|| BundleError::Pem("it has no certificate".to_owned()))?;
        let (_, parsed) = X509Certificate::from_der(first).map_err(|_| BundleError::Malformed { index: 0 })?;
        let names = parsed.subject_alternative_name().map_err(|_| BundleError::Malformed { index: 0 })?;
        let mut names = names.iter().flat_map(|names| &names.value.general_names);
        let own = names.find_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix("spiffe://"),
            _ => None,
        });
        let trust_domain = own.ok_or(BundleError::Nameless)?.parse()?;
        Self::new(&trust_domain, roots)
    }

    /// The roots of a PEM text, for a trust domain.
    pub fn from_pem_of(trust_domain: &TrustDomain, text: &[u8]) -> Result<Self, BundleError> {
        Self::new(trust_domain, certificates(text)?)
    }

    /// The roots in PEM, as [`TrustBundle::from_pem`] reads them.
    pub fn to_pem(&self) -> String {
        let roots: Vec<_> = self.roots().map(|root| pem::Pem::new("CERTIFICATE", root.to_vec())).collect();
        pem::encode_many(&roots)
    }

    /// The roots of both; the overlap of a rotation. `other` is of the same trust domain.
    pub fn merge(&self, other: &TrustBundle) -> Result<Self, BundleError> {
        Self::new(&self.trust_domain, self.roots.iter().chain(&other.roots).map(|root| root.der.clone()))
    }

    /// Its trust domain.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The roots, in DER.
    pub fn roots(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.roots.iter().map(|root| &root.der)
    }

    /// The roots that are valid at `now`; path validation itself does not look at a root's dates.
    pub(crate) fn anchors(&self, now: UnixTime) -> Cow<'_, [TrustAnchor<'static>]> {
        let valid = |root: &Root| root.not_before <= now && now <= root.not_after;
        if self.roots.iter().all(valid) {
            return Cow::Borrowed(&self.anchors);
        }
        let with_root = self.anchors.iter().zip(&self.roots);
        Cow::Owned(with_root.filter(|(_, root)| valid(root)).map(|(anchor, _)| anchor.clone()).collect())
    }

    fn add(&mut self, index: usize, der: CertificateDer<'static>) -> Result<(), BundleError> {
        if self.roots.iter().any(|root| root.der == der) {
            return Ok(());
        }
        let malformed = BundleError::Malformed { index };
        let (not_before, not_after) = {
            let Ok((rest, certificate)) = X509Certificate::from_der(&der) else { return Err(malformed) };
            if !rest.is_empty() {
                return Err(malformed);
            }
            self.check(index, &certificate)?;
            let validity = certificate.validity();
            (unix_time(validity.not_before.timestamp()), unix_time(validity.not_after.timestamp()))
        };
        let anchor = webpki::anchor_from_trusted_cert(&der).map_err(|_| malformed)?.to_owned();
        self.anchors.push(anchor);
        self.roots.push(Root { der, not_before, not_after });
        Ok(())
    }

    fn check(&self, index: usize, certificate: &X509Certificate<'_>) -> Result<(), BundleError> {
        let malformed = |_| BundleError::Malformed { index };
        let is_ca = certificate.basic_constraints().map_err(malformed)?.is_some_and(|constraints| constraints.value.ca);
        let may_sign = certificate.key_usage().map_err(malformed)?.is_some_and(|usage| usage.value.key_cert_sign());
        if !is_ca || !may_sign {
            return Err(BundleError::NoAuthority { index });
        }
        if let Some(reason) = constraints_of(certificate) {
            return Err(BundleError::Constrained { index, reason });
        }
        let names = certificate.subject_alternative_name().map_err(malformed)?;
        let names = names.iter().flat_map(|names| &names.value.general_names);
        for name in names {
            if matches!(name, GeneralName::URI(uri) if *uri != self.trust_domain.id().as_str()) {
                return Err(BundleError::Foreign { index, trust_domain: self.trust_domain.clone() });
            }
        }
        Ok(())
    }
}

/// Seconds since 1970; earlier times count as 1970.
pub(crate) fn unix_time(timestamp: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(timestamp.try_into().unwrap_or(0)))
}

impl PartialEq for TrustBundle {
    fn eq(&self, other: &Self) -> bool {
        self.trust_domain == other.trust_domain && self.roots == other.roots
    }
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustBundle({}, {} roots)", self.trust_domain, self.roots.len())
    }
}
fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, BundleError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    certificates.map_err(|error| BundleError::Pem(error.to_string()))
}
