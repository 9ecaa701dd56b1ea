//! A private key on P-256. It is made inside `aws-lc` and has no way out: no accessor, no serialisation, no `Debug`.
//! `aws-lc` wipes its memory when the last clone is dropped.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use std::fmt;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct PrivateKey(Arc<EcdsaKeyPair>);

/// The operating system gave no randomness, or the cryptography library failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key could be generated")]
pub struct NoKey;

impl PrivateKey {
    pub(crate) fn generate() -> Result<Self, NoKey> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| NoKey)?;
        Ok(Self(Arc::new(pair)))
    }

    /// DER of its public half.
    pub(crate) fn public_key_info(&self) -> Vec<u8> {
        rcgen::PublicKeyData::subject_public_key_info(self)
    }

    fn signature(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.0.sign(&SystemRandom::new(), message).ok().map(|signature| signature.as_ref().to_vec())
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(P-256)")
    }
}

impl rcgen::PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signature(message).ok_or(rcgen::Error::RemoteKeyError)
    }
}

impl SigningKey for PrivateKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ECDSA_NISTP256_SHA256).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.public_key_info().into())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.signature(message).ok_or_else(|| rustls::Error::General("the key could not sign".to_owned()))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
    }
}
