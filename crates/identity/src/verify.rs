//! Checks whether a certificate chain proves an identity, and returns it.
//!
//! Source: the SPIFFE standard *X.509-SVID*, sections 4 and 5, on top of RFC 5280 path validation. Stricter in one point: the
//! extended key usage must be there.

use crate::bundle::{BundleError, TrustBundle, unix_time};
use crate::constraints::{UnknownConstraints, unknown_constraints};
use crate::reason::path;
use leno_model::{BadSpiffeId, SpiffeId, TrustDomain};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, OtherError};
use std::cell::RefCell;
use std::net::IpAddr;
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Why a peer's certificate proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Not X.509.
    #[error("the certificate is malformed")]
    Malformed,
    /// Path validation: dates, signatures, extended key usage, no path to a root of the bundle.
    #[error("the certificate is not valid here: {}", path(.0))]
    Path(webpki::Error),
    /// X.509-SVID allows exactly one.
    #[error("the certificate has {0} URI names instead of one")]
    UriNames(usize),
    /// The URI is no SPIFFE ID.
    #[error(transparent)]
    Name(#[from] BadSpiffeId),
    /// A trust domain is not a workload.
    #[error("the certificate names a trust domain and no workload")]
    NoWorkload,
    /// The root vouches for its own trust domain only.
    #[error("`{id}` is not in the trust domain `{trust_domain}`")]
    OtherTrustDomain {
        /// The identity that it names.
        id: SpiffeId,
        /// The trust domain whose roots signed it.
        trust_domain: String,
    },
    /// Signing certificates must not authenticate.
    #[error("the certificate is one for signing others")]
    MaySign,
    /// The key usage must be there and include digital signatures.
    #[error("the certificate's key usage does not include digital signatures")]
    NoDigitalSignature,
    /// The server shows no certificate with the pinned hash.
    #[error(
        "the server does not show the root certificate that the join token names; is the token of another mesh, or older than a new root?"
    )]
    OtherRoot,
    /// The pinned certificate is no root.
    #[error("the root certificate that the join token names is no root: {0}")]
    BadRoot(BundleError),
    /// The extended key usage must be there.
    #[error("the certificate does not say that it is for TLS (extended key usage)")]
    NoExtendedKeyUsage,
    /// A certificate between the leaf and the root may not sign (RFC 5280, section 4.2.1.3; X.509-SVID, section 4.3).
    #[error("an intermediate certificate does not say that it may sign others (key usage keyCertSign)")]
    MayNotSign,
    /// A certificate between the leaf and the root is another trust domain's, or a workload's (X.509-SVID, section 2).
    #[error(
        "an intermediate certificate has the URI name `{name}`; one of `{trust_domain}` has no other than the ID of the trust domain"
    )]
    ForeignIntermediate {
        /// The URI name.
        name: String,
        /// The trust domain whose roots signed it.
        trust_domain: TrustDomain,
    },
    /// A certificate above the leaf has constraints that path validation does not understand, so it
    /// accepts no certificate under it.
    #[error("a certificate above it has {0}")]
    Constrained(UnknownConstraints),
    /// A valid identity, but not the expected one.
    #[error("the server is `{presented}` and not {}", alternatives(expected))]
    Unexpected {
        /// The identities that the server may have.
        expected: Vec<SpiffeId>,
        /// The server's identity.
        presented: SpiffeId,
    },
}

fn alternatives(expected: &[SpiffeId]) -> String {
    let quoted: Vec<_> = expected.iter().map(|id| format!("`{id}`")).collect();
    quoted.join(" or ")
}

impl PeerError {
    /// The cause of a failed handshake, if it is the peer's identity; its text reads better in a
    /// log than the TLS library's.
    pub fn of(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner.downcast_ref(),
            _ => None,
        }
    }
}

/// The side of a connection that shows a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Role {
    fn usage(self) -> KeyUsage {
        // id-kp-serverAuth and id-kp-clientAuth (RFC 5280, section 4.2.1.12), as DER without tag and length.
        const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
        const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
        match self {
            Role::Server => KeyUsage::required_if_present(SERVER_AUTH),
            Role::Client => KeyUsage::required_if_present(CLIENT_AUTH),
        }
    }
}

/// The identity that the chain proves at `now` to peers that trust `bundle`.
pub(crate) fn identity(
    bundle: &TrustBundle,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    role: Role,
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<SpiffeId, PeerError> {
    let anchors = bundle.anchors(now);
    let end_entity = EndEntityCert::try_from(leaf).map_err(PeerError::Path)?;
    let refused = RefCell::new(None);
    let check = |path: &VerifiedPath<'_>| {
        let mut signing = path.intermediate_certificates().map(|certificate| certificate.der());
        signing.try_for_each(|der| check_intermediate(&der, bundle.trust_domain())).map_err(|reason| {
            refused.replace(Some(reason));
            webpki::Error::UnknownIssuer
        })
    };
    let verified =
        end_entity.verify_for_usage(algorithms.all, &anchors, intermediates, now, role.usage(), None, Some(&check));
    if let Err(error) = verified {
        let constrained = || intermediates.iter().find_map(unknown_constraints).map(PeerError::Constrained);
        let violation = error == webpki::Error::NameConstraintViolation;
        let reason = refused.take().or_else(|| violation.then(constrained).flatten());
        return Err(reason.unwrap_or(PeerError::Path(error)));
    }
    // If the path validation above checked this, it would also require it of intermediates, and
    // those of other authorities have none.
    if parse(leaf)?.extended_key_usage().map_err(|_| PeerError::Malformed)?.is_none() {
        return Err(PeerError::NoExtendedKeyUsage);
    }
    let id = leaf_identity(leaf)?;
    if id.trust_domain() == bundle.trust_domain().as_str() {
        Ok(id)
    } else {
        Err(PeerError::OtherTrustDomain { id, trust_domain: bundle.trust_domain().to_string() })
    }
}

/// Checks the properties of a certificate between a leaf and a root that path validation does not
/// check. If the root also signs for others, the holder of such a certificate may not be the
/// authority of the trust domain.
fn check_intermediate(der: &CertificateDer<'_>, trust_domain: &TrustDomain) -> Result<(), PeerError> {
    let certificate = parse(der)?;
    let malformed = |_| PeerError::Malformed;
    let is_ca = certificate.basic_constraints().map_err(malformed)?.is_some_and(|constraints| constraints.value.ca);
    let may_sign = certificate.key_usage().map_err(malformed)?.is_some_and(|usage| usage.value.key_cert_sign());
    if !is_ca || !may_sign {
        return Err(PeerError::MayNotSign);
    }
    let names = certificate.subject_alternative_name().map_err(malformed)?;
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        if let GeneralName::URI(uri) = name
            && *uri != trust_domain.id().as_str()
        {
            let name = uri.chars().take(256).collect();
            return Err(PeerError::ForeignIntermediate { name, trust_domain: trust_domain.clone() });
        }
    }
    Ok(())
}

/// The identity that a certificate states, if it has the profile of a leaf. Does not check the
/// signature.
pub(crate) fn leaf_identity(leaf: &CertificateDer<'_>) -> Result<SpiffeId, PeerError> {
    let certificate = parse(leaf)?;
    let malformed = |_| PeerError::Malformed;
    if certificate.basic_constraints().map_err(malformed)?.is_some_and(|constraints| constraints.value.ca) {
        return Err(PeerError::MaySign);
    }
    let usage = certificate.key_usage().map_err(malformed)?.ok_or(PeerError::NoDigitalSignature)?.value;
    if usage.key_cert_sign() || usage.crl_sign() {
        return Err(PeerError::MaySign);
    }
    if !usage.digital_signature() {
        return Err(PeerError::NoDigitalSignature);
    }
    let names = certificate.subject_alternative_name().map_err(malformed)?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let uris: Vec<&str> =
        names.filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None }).collect();
    let [uri] = uris[..] else { return Err(PeerError::UriNames(uris.len())) };
    let id: SpiffeId = uri.parse()?;
    if id.path().is_empty() { Err(PeerError::NoWorkload) } else { Ok(id) }
}

/// When a certificate ends, and the DER of its public key.
pub(crate) fn end_and_key(leaf: &CertificateDer<'_>) -> Result<(UnixTime, Vec<u8>), PeerError> {
    let certificate = parse(leaf)?;
    Ok((unix_time(certificate.validity().not_after.timestamp()), certificate.public_key().raw.to_vec()))
}

/// The IP addresses that a certificate confirms.
pub(crate) fn addresses(leaf: &CertificateDer<'_>) -> Vec<IpAddr> {
    let Ok(certificate) = parse(leaf) else { return Vec::new() };
    let Ok(names) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let address = |name: &GeneralName<'_>| match name {
        GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from))
            .ok(),
        _ => None,
    };
    names.filter_map(address).collect()
}

/// Whether a certificate names itself as its issuer, as roots do.
pub(crate) fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parse(certificate).is_ok_and(|certificate| certificate.issuer() == certificate.subject())
}

/// The first and the last second of a certificate's validity.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Option<(UnixTime, UnixTime)> {
    let parsed = parse(certificate).ok()?;
    let validity = parsed.validity();
    Some((unix_time(validity.not_before.timestamp()), unix_time(validity.not_after.timestamp())))
}

/// The last second of a certificate's validity.
pub fn not_after(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    end_and_key(certificate).ok().map(|(not_after, _)| not_after)
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(PeerError::Malformed),
    }
}
