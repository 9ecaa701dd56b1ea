//! Whether a certificate chain proves an identity, and which.
//!
//! Source: the SPIFFE standard *X.509-SVID*, sections 4 and 5, on top of RFC 5280 path validation. Stricter in one point: the
//! extended key usage must be there.

use crate::bundle::{TrustBundle, unix_time};
use crate::spiffe::{BadSpiffeId, SpiffeId};
use crate::store::SvidStore;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, PeerIncompatible, SignatureScheme,
};
use std::sync::Arc;
use webpki::{EndEntityCert, KeyUsage};
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
    #[error("the certificate is not valid here: {0}")]
    Path(webpki::Error),
    /// X.509-SVID allows exactly one.
    #[error("the certificate has {0} URI names instead of one")]
    UriNames(usize),
    /// The URI is no SPIFFE ID.
    #[error(transparent)]
    Name(#[from] BadSpiffeId),
    /// A trust domain is no workload.
    #[error("the certificate names a trust domain and no workload")]
    NoWorkload,
    /// The root vouches for its own trust domain only.
    #[error("`{id}` is not in the trust domain `{trust_domain}`")]
    OtherTrustDomain {
        /// Whom it names.
        id: SpiffeId,
        /// Whose roots signed it.
        trust_domain: String,
    },
    /// Signing certificates must not authenticate.
    #[error("the certificate is one for signing others")]
    MaySign,
    /// The key usage must be there and include digital signatures.
    #[error("the certificate's key usage does not include digital signatures")]
    NoDigitalSignature,
    /// A proper identity, but another one.
    #[error("the server is `{presented}` and not `{expected}`")]
    Unexpected {
        /// Whom the caller wanted.
        expected: SpiffeId,
        /// Who answered.
        presented: SpiffeId,
    },
}

impl PeerError {
    /// What a handshake failed of, where it failed because of the peer's identity; its text reads better in a log than the TLS
    /// library's.
    pub fn of(error: &rustls::Error) -> Option<&Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner.downcast_ref(),
            _ => None,
        }
    }
}

/// Which side of a connection a certificate is shown from.
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
            Role::Server => KeyUsage::required(SERVER_AUTH),
            Role::Client => KeyUsage::required(CLIENT_AUTH),
        }
    }
}

/// The identity that the chain proves to whoever trusts `bundle`, at `now`.
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
    end_entity
        .verify_for_usage(algorithms.all, &anchors, intermediates, now, role.usage(), None, None)
        .map_err(PeerError::Path)?;
    let id = leaf_identity(leaf)?;
    if id.trust_domain() == bundle.trust_domain().as_str() {
        Ok(id)
    } else {
        Err(PeerError::OtherTrustDomain { id, trust_domain: bundle.trust_domain().to_string() })
    }
}

/// The identity that a certificate states, if it has the profile of a leaf. Says nothing about who signed it.
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

/// A certificate's last second.
pub fn not_after(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    end_and_key(certificate).ok().map(|(not_after, _)| not_after)
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(PeerError::Malformed),
    }
}

/// Accepts any client with an identity of the trust domain; who may do what is for the policies.
#[derive(Debug)]
pub(crate) struct AnyOfTrustDomain {
    pub(crate) store: Arc<SvidStore>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyOfTrustDomain {
    /// No hints: a client has one identity, and need not be told which roots there are.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        identity(&self.store.bundle(), leaf, intermediates, Role::Client, now, &self.algorithms).map_err(refusal)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts one server only: the one with exactly this identity. DNS names mean nothing here.
#[derive(Debug)]
pub(crate) struct Exactly {
    pub(crate) expected: SpiffeId,
    pub(crate) store: Arc<SvidStore>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let presented = identity(&self.store.bundle(), leaf, intermediates, Role::Server, now, &self.algorithms)
            .map_err(refusal)?;
        if presented == self.expected {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(refusal(PeerError::Unexpected { expected: self.expected.clone(), presented }))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// With the alert that fits, where TLS has one, so that the other side's log says what is wrong with its certificate.
fn refusal(error: PeerError) -> rustls::Error {
    let known = match &error {
        PeerError::Malformed => Some(CertificateError::BadEncoding),
        PeerError::Path(webpki::Error::CertExpired { time, not_after }) => {
            Some(CertificateError::ExpiredContext { time: *time, not_after: *not_after })
        }
        PeerError::Path(webpki::Error::CertNotValidYet { time, not_before }) => {
            Some(CertificateError::NotValidYetContext { time: *time, not_before: *not_before })
        }
        PeerError::Path(webpki::Error::UnknownIssuer) => Some(CertificateError::UnknownIssuer),
        PeerError::Path(webpki::Error::InvalidSignatureForPublicKey) => Some(CertificateError::BadSignature),
        _ => None,
    };
    known.unwrap_or_else(|| CertificateError::Other(OtherError(Arc::new(error)))).into()
}
