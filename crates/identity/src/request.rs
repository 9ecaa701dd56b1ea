//! Certificate signing requests (PKCS #10, RFC 2986): made by a node, judged by the authority.

use crate::key::{NoKey, PrivateKey};
use leno_model::SpiffeId;
use rcgen::{CertificateParams, DistinguishedName, SanType};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// A fresh key for an identity, and the request to have it certified.
#[derive(Debug)]
pub struct KeyRequest {
    pub(crate) id: SpiffeId,
    pub(crate) key: PrivateKey,
    csr: Vec<u8>,
}

/// Why a request was not made or not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// See [`NoKey`].
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The request could not be written.
    #[error("the certificate request could not be written: {0}")]
    Unwritable(String),
    /// It is not one DER-encoded PKCS #10 request.
    #[error("not a DER-encoded certificate request")]
    Malformed,
    /// Another kind of key than ECDSA on P-256 with SHA-256.
    #[error("the key in a certificate request must be on P-256, and the request signed with ECDSA and SHA-256")]
    Algorithm,
    /// The sender of the request does not hold the key.
    #[error("the certificate request is not signed by the key in it")]
    Signature,
    /// It asks for a name or an extension that the authority does not grant.
    #[error("the certificate request asks for more than the identity `{id}`: {what}")]
    AsksForMore {
        /// The identity that was to be signed.
        id: SpiffeId,
        /// The part that it must not ask for.
        what: &'static str,
    },
}

impl KeyRequest {
    /// Makes a key and a request for `id`. The key stays in here until the answer is put into a
    /// [`crate::SvidStore`].
    pub fn new(id: &SpiffeId) -> Result<Self, RequestError> {
        let key = PrivateKey::generate()?;
        let unwritable = |error: rcgen::Error| RequestError::Unwritable(error.to_string());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(id.as_str().try_into().map_err(unwritable)?)];
        let csr = params.serialize_request(&key).map_err(unwritable)?;
        Ok(Self { id: id.clone(), key, csr: csr.der().to_vec() })
    }

    /// A key that already has its certificate.
    pub(crate) fn of(id: &SpiffeId, key: PrivateKey) -> Self {
        Self { id: id.clone(), key, csr: Vec::new() }
    }

    /// The identity that it asks for.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// The request, in DER.
    pub fn csr(&self) -> &[u8] {
        &self.csr
    }
}

/// The public key of a request that proves to hold its key and asks for `id` or for no name. The
/// authority writes the certificate itself; it takes only this key from a request.
pub(crate) fn approve(csr: &[u8], id: &SpiffeId) -> Result<rcgen::SubjectPublicKeyInfo, RequestError> {
    let Ok((rest, request)) = X509CertificationRequest::from_der(csr) else { return Err(RequestError::Malformed) };
    if !rest.is_empty() {
        return Err(RequestError::Malformed);
    }
    let info = &request.certification_request_info;
    let key = rcgen::SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_| RequestError::Algorithm)?;
    let signed_with = x509_parser::oid_registry::OID_SIG_ECDSA_WITH_SHA256;
    let on_p256 = rcgen::PublicKeyData::algorithm(&key) == &rcgen::PKCS_ECDSA_P256_SHA256;
    if !on_p256 || request.signature_algorithm.algorithm != signed_with {
        return Err(RequestError::Algorithm);
    }
    request.verify_signature().map_err(|_| RequestError::Signature)?;
    match surplus(&request, id) {
        None => Ok(key),
        Some(what) => Err(RequestError::AsksForMore { id: id.clone(), what }),
    }
}

/// The first part of a request that goes beyond the one URI name `id`.
fn surplus(request: &X509CertificationRequest<'_>, id: &SpiffeId) -> Option<&'static str> {
    let info = &request.certification_request_info;
    if info.subject.iter().next().is_some() {
        return Some("a subject");
    }
    if info.attributes().len() > 1 {
        return Some("several attributes");
    }
    for attribute in info.attributes() {
        let ParsedCriAttribute::ExtensionRequest(asked) = attribute.parsed_attribute() else {
            return Some("an attribute other than extensions");
        };
        if asked.extensions.len() > 1 {
            return Some("several extensions");
        }
        for extension in &asked.extensions {
            let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
                return Some("an extension other than names");
            };
            if !matches!(names.general_names[..], [GeneralName::URI(uri)] if uri == id.as_str()) {
                return Some("other names");
            }
        }
    }
    None
}
