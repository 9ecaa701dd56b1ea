//! The embedded certificate authority: a root that signs leaves, or an intermediate under an
//! external root.

use crate::authority_key_id::AuthorityKeyId;
use crate::bundle::{BundleError, TrustBundle, unix_time};
use crate::expiry::{self, Holder};
use crate::key::{NoKey, PrivateKey};
use crate::membership_mark::MembershipMark;
use crate::request::{self, KeyRequest, RequestError};
use crate::store::SvidStore;
use crate::{constraints, verify};
use aws_lc_rs::rand;
use leno_model::{SpiffeId, TrustDomain};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// How long a root is valid.
const ROOT_LIFETIME: Duration = Duration::from_secs(3 * 365 * 24 * 3600);
/// Certificates are valid from a little before they were made, for peers whose clocks run late.
const CLOCK_SKEW: Duration = Duration::from_secs(120);

/// A trust domain's certificate authority. Unless an [`AuthorityFile`](crate::AuthorityFile) has its
/// key, the key exists in memory only, and a new process means a new root.
pub struct Authority {
    trust_domain: TrustDomain,
    issuer: Issuer<'static, PrivateKey>,
    /// The certificates between leaves and the root: the authority's own, and those above it.
    /// Empty: the authority is the root.
    intermediates: Vec<CertificateDer<'static>>,
    bundle: TrustBundle,
    key_id: AuthorityKeyId,
    not_after: OffsetDateTime,
    clock: Arc<dyn TimeProvider>,
}

/// Why the authority did not sign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// See [`NoKey`].
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The wall-clock time is missing, or outside the years that certificates can state.
    #[error("the time is unknown")]
    NoTime,
    /// The identity belongs to another authority.
    #[error("`{id}` is not in the trust domain `{trust_domain}`")]
    OtherTrustDomain {
        /// The requested identity.
        id: SpiffeId,
        /// The trust domain whose identities this authority signs.
        trust_domain: TrustDomain,
    },
    /// The trust domain's own identity is the authority's.
    #[error("`{0}` names a trust domain and no workload")]
    NoWorkload(SpiffeId),
    /// The lifetime is shorter than a second.
    #[error("the lifetime of a certificate must be at least a second")]
    Lifetime,
    /// The authority's root has expired.
    #[error("the authority's root has expired")]
    RootExpired,
    /// The request is not acceptable.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The certificate could not be written.
    #[error("the certificate could not be written: {0}")]
    Unwritable(String),
    /// The root is not one that a bundle accepts.
    #[error(transparent)]
    Root(#[from] BundleError),
}

impl Authority {
    /// A new root for `trust_domain`, by the system's clock.
    pub fn new(trust_domain: &TrustDomain) -> Result<Self, SignError> {
        Self::with_clock(trust_domain, Arc::new(DefaultTimeProvider))
    }

    /// A new root for `trust_domain`, by `clock`.
    pub fn with_clock(trust_domain: &TrustDomain, clock: Arc<dyn TimeProvider>) -> Result<Self, SignError> {
        Ok(Self::new_root(trust_domain, PrivateKey::generate()?, clock)?.0)
    }

    /// A new root with this key, and its certificate.
    pub(crate) fn new_root(
        trust_domain: &TrustDomain,
        key: PrivateKey,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<(Self, CertificateDer<'static>), SignError> {
        let now = wall_clock(&*clock)?;
        let not_after = now + ROOT_LIFETIME;
        let mut params = CertificateParams::default();
        params.not_before = now - CLOCK_SKEW;
        params.not_after = not_after;
        params.serial_number = Some(serial_number()?);
        params.distinguished_name = root_name(trust_domain)?;
        params.subject_alt_names = vec![uri(&trust_domain.id())?];
        // No intermediates: a leaf that claims to be one cannot sign either way.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let root = params.self_signed(&key).map_err(unwritable)?.der().clone();
        let bundle = TrustBundle::new(trust_domain, [root.clone()])?;
        let issuer = Issuer::new(params, key);
        let key_id = key_id(&issuer)?;
        let (trust_domain, intermediates) = (trust_domain.clone(), Vec::new());
        Ok((Self { trust_domain, issuer, intermediates, bundle, key_id, not_after, clock }, root))
    }

    /// An authority with this key. Its certificate is the first of `chain`; the last one is the
    /// root, and may be the same.
    pub(crate) fn of_chain(
        trust_domain: &TrustDomain,
        key: PrivateKey,
        chain: Vec<CertificateDer<'static>>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, SignError> {
        let (Some(own), Some(root)) = (chain.first(), chain.last()) else {
            return Err(SignError::Root(BundleError::Empty(trust_domain.clone())));
        };
        let bundle = TrustBundle::new(trust_domain, [root.clone()])?;
        let ends = chain.iter().filter_map(|certificate| verify::not_after(certificate)).min();
        let ends = ends.and_then(|ends| i64::try_from(ends.as_secs()).ok());
        let not_after =
            ends.and_then(|ends| OffsetDateTime::from_unix_timestamp(ends).ok()).ok_or(SignError::NoTime)?;
        let issuer = Issuer::from_ca_cert_der(own, key).map_err(unwritable)?;
        let intermediates = chain.split_last().map(|(_, intermediates)| intermediates.to_vec()).unwrap_or_default();
        let (key_id, trust_domain) = (key_id(&issuer)?, trust_domain.clone());
        Ok(Self { trust_domain, issuer, intermediates, bundle, key_id, not_after, clock })
    }

    /// The same, if a certificate that it signs proves an identity to peers that trust its root.
    pub(crate) fn proven(
        trust_domain: &TrustDomain,
        key: PrivateKey,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<Self, String> {
        let own = chain.first().ok_or("there is no certificate in it")?;
        if !chain.last().is_some_and(verify::is_self_issued) {
            return Err("the last certificate must be the root, which is its own issuer".to_owned());
        }
        let (_, public_key) = verify::end_and_key(own).map_err(|error| error.to_string())?;
        if public_key != key.public_key_info() {
            return Err("the first certificate is for another key than the private key".to_owned());
        }
        if let Some(reason) = chain.iter().find_map(constraints::unknown_constraints) {
            return Err(format!("a certificate in it has {reason}"));
        }
        let authority = Self::of_chain(trust_domain, key, chain, Arc::new(DefaultTimeProvider));
        let authority = authority.map_err(|error| error.to_string())?;
        let probe = SpiffeId::control(trust_domain).map_err(|error| error.to_string())?;
        let request = KeyRequest::new(&probe).map_err(|error| error.to_string())?;
        let signed = authority.sign(request.csr(), &probe, Duration::from_secs(60));
        let store = SvidStore::new(authority.bundle().clone());
        let signed = signed.map_err(|error| error.to_string())?;
        store.install(request, signed).map_err(|error| error.to_string())?;
        Ok(authority)
    }

    /// The end of the authority's certificate, or of an earlier one above it: after that, no certificate
    /// that it has signed is valid.
    pub fn not_after(&self) -> UnixTime {
        unix_time(self.not_after.unix_timestamp())
    }

    /// From when it is late to rotate to another authority.
    pub fn late_at(&self) -> UnixTime {
        let chain = self.intermediates.iter().chain(self.bundle.roots());
        expiry::chain_late_at(chain, Holder::Authority).unwrap_or_else(|| self.not_after())
    }

    /// The issuer's key id in the certificates that it signs.
    pub fn key_id(&self) -> &AuthorityKeyId {
        &self.key_id
    }

    /// The bundle that peers must trust to accept its signatures.
    pub fn bundle(&self) -> &TrustBundle {
        &self.bundle
    }

    /// Signs an X.509 SVID for `id`: the chain, leaf first, root excluded. `csr` (DER) must be
    /// signed by its own key and ask for `id` or for no name; the authority chooses every other
    /// part of the certificate. The lifetime ends with the root's at the latest.
    ///
    /// The caller must check that the requester may have `id`.
    pub fn sign(
        &self,
        csr: &[u8],
        id: &SpiffeId,
        lifetime: Duration,
    ) -> Result<Vec<CertificateDer<'static>>, SignError> {
        self.sign_with(csr, id, &[], None, lifetime)
    }

    /// The same for a node, or for a function that it hosts: the certificate also confirms the
    /// node's addresses, as IP names, and its serial number contains the membership's mark. Both
    /// come from the caller, never from the request.
    pub fn sign_node(
        &self,
        csr: &[u8],
        id: &SpiffeId,
        addresses: &[IpAddr],
        membership: MembershipMark,
        lifetime: Duration,
    ) -> Result<Vec<CertificateDer<'static>>, SignError> {
        self.sign_with(csr, id, addresses, Some(membership), lifetime)
    }

    fn sign_with(
        &self,
        csr: &[u8],
        id: &SpiffeId,
        addresses: &[IpAddr],
        membership: Option<MembershipMark>,
        lifetime: Duration,
    ) -> Result<Vec<CertificateDer<'static>>, SignError> {
        if id.trust_domain() != self.trust_domain.as_str() {
            return Err(SignError::OtherTrustDomain { id: id.clone(), trust_domain: self.trust_domain.clone() });
        }
        if id.path().is_empty() {
            return Err(SignError::NoWorkload(id.clone()));
        }
        if lifetime < Duration::from_secs(1) {
            return Err(SignError::Lifetime);
        }
        let now = wall_clock(&*self.clock)?;
        if now >= self.not_after {
            return Err(SignError::RootExpired);
        }
        let key = request::approve(csr, id)?;
        let lifetime = lifetime.min(ROOT_LIFETIME);
        let mut params = leaf(id, now - CLOCK_SKEW, (now + lifetime).min(self.not_after))?;
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        if let Some(membership) = membership {
            params.serial_number = Some(membership.serial_number()?);
        }
        let certificate = params.signed_by(&key, &self.issuer).map_err(unwritable)?;
        Ok([certificate.der().clone()].into_iter().chain(self.intermediates.iter().cloned()).collect())
    }
}

/// The key id as written into a certificate that this key signs: the authority's own certificate
/// may lack it.
fn key_id(issuer: &Issuer<'_, PrivateKey>) -> Result<AuthorityKeyId, SignError> {
    let mut params = CertificateParams::default();
    params.use_authority_key_identifier_extension = true;
    let signed = params.signed_by(&PrivateKey::generate()?, issuer).map_err(unwritable)?;
    Ok(AuthorityKeyId::of(signed.der()))
}

/// The leaf profile of X.509-SVID, sections 3 and 4, with the server name as a DNS name beside the one URI.
fn leaf(id: &SpiffeId, not_before: OffsetDateTime, not_after: OffsetDateTime) -> Result<CertificateParams, SignError> {
    let mut params = CertificateParams::default();
    params.not_before = not_before;
    params.not_after = not_after;
    params.serial_number = Some(serial_number()?);
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![uri(id)?];
    if let Some(name) = id.server_name() {
        params.subject_alt_names.push(SanType::DnsName(name.try_into().map_err(unwritable)?));
    }
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Each root has a unique subject, so that path building never has to try several.
pub(crate) fn root_name(trust_domain: &TrustDomain) -> Result<DistinguishedName, SignError> {
    let mut number = [0; 8];
    rand::fill(&mut number).map_err(|_| NoKey)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Leno");
    name.push(DnType::CommonName, format!("{:016x}.{}", u64::from_be_bytes(number), shortened(trust_domain.as_str())));
    Ok(name)
}

/// RFC 5280 allows a common name 64 characters.
fn shortened(trust_domain: &str) -> &str {
    trust_domain.get(..47).unwrap_or(trust_domain)
}

/// Random, positive and within 20 octets (RFC 5280, section 4.1.2.2).
fn serial_number() -> Result<SerialNumber, NoKey> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).map_err(|_| NoKey)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

pub(crate) fn uri(id: &SpiffeId) -> Result<SanType, SignError> {
    Ok(SanType::URI(id.as_str().try_into().map_err(unwritable)?))
}

pub(crate) fn unwritable(error: rcgen::Error) -> SignError {
    SignError::Unwritable(error.to_string())
}

/// The current time, if the certificate's dates around it are within the years that X.509 can
/// write.
pub(crate) fn wall_clock(clock: &dyn TimeProvider) -> Result<OffsetDateTime, SignError> {
    let now = clock.current_time().ok_or(SignError::NoTime)?;
    let now = i64::try_from(now.as_secs()).map_err(|_| SignError::NoTime)?;
    let now = OffsetDateTime::from_unix_timestamp(now).map_err(|_| SignError::NoTime)?;
    if (1971..9990).contains(&now.year()) { Ok(now) } else { Err(SignError::NoTime) }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.trust_domain)
    }
}
