//! A provable identity: a certificate chain and the key that belongs to it.

use crate::authority_key_id::AuthorityKeyId;
use crate::bundle::TrustBundle;
use crate::key::PrivateKey;
use crate::request::{KeyRequest, RequestError};
use crate::verify::{self, PeerError, Role};
use leno_model::SpiffeId;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An X.509 SVID with its private key.
pub struct Svid {
    id: SpiffeId,
    key: PrivateKey,
    certified: Arc<CertifiedKey>,
    issuer: AuthorityKeyId,
    renew_at: UnixTime,
    not_after: UnixTime,
}

/// Why an identity was not obtained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SvidError {
    /// No key or no request could be made.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// No wall-clock time.
    #[error("the time is unknown")]
    NoTime,
    /// The authority sent nothing.
    #[error("the answer holds no certificate")]
    Empty,
    /// Every peer would refuse the certificate.
    #[error("the certificate for `{id}` is refused: {reason}")]
    Refused {
        /// The requested identity.
        id: SpiffeId,
        /// Why peers would refuse it.
        reason: PeerError,
    },
    /// The certificate is for another identity.
    #[error("the certificate is for `{presented}` and not for `{id}`")]
    OtherIdentity {
        /// The requested identity.
        id: SpiffeId,
        /// The identity in the certificate.
        presented: SpiffeId,
    },
    /// The certificate is for another key.
    #[error("the certificate for `{0}` is for another key")]
    OtherKey(SpiffeId),
}

impl Svid {
    /// Joins request and answer, after the checks that every peer will make, in both roles.
    pub(crate) fn new(
        request: KeyRequest,
        chain: Vec<CertificateDer<'static>>,
        bundle: &TrustBundle,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<Self, SvidError> {
        let KeyRequest { id, key, .. } = request;
        let refused = |reason| SvidError::Refused { id: id.clone(), reason };
        let (leaf, intermediates) = chain.split_first().ok_or(SvidError::Empty)?;
        for role in [Role::Client, Role::Server] {
            let presented = verify::identity(bundle, leaf, intermediates, role, now, algorithms).map_err(refused)?;
            if presented != id {
                return Err(SvidError::OtherIdentity { id, presented });
            }
        }
        let (not_after, public_key) = verify::end_and_key(leaf).map_err(refused)?;
        if public_key != key.public_key_info() {
            return Err(SvidError::OtherKey(id));
        }
        let renew_at = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs().midpoint(not_after.as_secs())));
        let issuer = AuthorityKeyId::of(leaf);
        let certified = Arc::new(CertifiedKey::new(chain, Arc::new(key.clone())));
        Ok(Self { id, key, certified, issuer, renew_at, not_after })
    }

    /// The identity that it proves.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// The certificates, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// The last second of its validity.
    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    /// The authority that signed it.
    pub fn issuer(&self) -> &AuthorityKeyId {
        &self.issuer
    }

    /// Half of the lifetime that it had when it arrived; earlier if its root is no longer trusted,
    /// or another authority signs now.
    pub fn renew_at(&self) -> UnixTime {
        self.renew_at
    }

    /// Whether peers that trust `bundle` accept it.
    pub(crate) fn is_covered_by(
        &self,
        bundle: &TrustBundle,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> bool {
        let Some((leaf, intermediates)) = self.chain().split_first() else { return false };
        verify::identity(bundle, leaf, intermediates, Role::Client, now, algorithms).is_ok()
    }

    /// The same, to be renewed at `renew_at`.
    pub(crate) fn due_at(&self, renew_at: UnixTime) -> Self {
        let Self { id, key, certified, issuer, not_after, .. } = self;
        let (id, key, certified, issuer) = (id.clone(), key.clone(), certified.clone(), issuer.clone());
        Self { id, key, certified, issuer, renew_at, not_after: *not_after }
    }

    pub(crate) fn private_key(&self) -> &PrivateKey {
        &self.key
    }

    pub(crate) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Svid({}, until {})", self.id, self.not_after.as_secs())
    }
}
