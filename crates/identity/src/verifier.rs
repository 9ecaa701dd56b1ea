//! Certificate checks of TLS handshakes.

use crate::bundle::{RootPin, TrustBundle};
use crate::store::SvidStore;
use crate::verify::{PeerError, Role, identity};
use leno_model::{SpiffeId, TrustDomain};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, PeerIncompatible, SignatureScheme,
};
use std::sync::Arc;

/// Accepts any client with an identity of the trust domain; policies decide about its requests.
#[derive(Debug)]
pub(crate) struct AnyOfTrustDomain {
    pub(crate) store: Arc<SvidStore>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
    /// Accepts clients without any certificate too.
    pub(crate) or_none: bool,
}

impl ClientCertVerifier for AnyOfTrustDomain {
    /// No hints: a client has one identity, and does not need the list of roots.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        !self.or_none
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        identity(&self.store.bundle(), leaf, intermediates, Role::Client, now, &self.algorithms).map_err(refusal)?;
        check_revoked(&self.store, leaf)?;
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

/// Accepts a server with exactly one of these identities. DNS names are ignored.
#[derive(Debug)]
pub(crate) struct AnyOf {
    pub(crate) expected: Vec<SpiffeId>,
    pub(crate) roots: Roots,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyOf {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let bundle = self.roots.bundle(intermediates).map_err(refusal)?;
        let presented = identity(&bundle, leaf, intermediates, Role::Server, now, &self.algorithms).map_err(refusal)?;
        if let Roots::OfStore(store) = &self.roots {
            check_revoked(store, leaf)?;
        }
        if self.expected.contains(&presented) {
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

/// The roots that a server's certificate must chain to.
#[derive(Debug)]
pub(crate) enum Roots {
    /// The bundle of this store, as it is at each handshake.
    OfStore(Arc<SvidStore>),
    /// The one root with this pin, which the server shows at the end of its chain. For a joining
    /// node, which has no other roots.
    Pinned(RootPin, TrustDomain),
    /// These roots. For a joining node that has them.
    Known(Arc<TrustBundle>),
}

impl Roots {
    fn bundle(&self, shown: &[CertificateDer<'_>]) -> Result<Arc<TrustBundle>, PeerError> {
        match self {
            Self::OfStore(store) => Ok(store.bundle()),
            Self::Known(bundle) => Ok(bundle.clone()),
            Self::Pinned(pin, trust_domain) => {
                let root = shown.iter().find(|certificate| RootPin::of(certificate) == *pin);
                let root = root.ok_or(PeerError::OtherRoot)?.clone().into_owned();
                TrustBundle::new(trust_domain, [root]).map(Arc::new).map_err(PeerError::BadRoot)
            }
        }
    }
}

/// Refuses a certificate of a revoked membership.
fn check_revoked(store: &SvidStore, leaf: &CertificateDer<'_>) -> Result<(), rustls::Error> {
    if store.revoked().has(leaf) { Err(CertificateError::Revoked.into()) } else { Ok(()) }
}

/// The error with the matching alert, where TLS has one, so that the peer's log names the fault of
/// its certificate.
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
