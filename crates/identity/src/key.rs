//! A private key on P-256. It is made inside `aws-lc` and has no `Debug`. It leaves the process
//! only in the file of a node's own identity. `aws-lc` wipes its memory when the last clone is
//! dropped.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

#[derive(Clone)]
pub(crate) struct PrivateKey(Arc<EcdsaKeyPair>);

/// The operating system gave no randomness, or the cryptography library failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key could be generated")]
pub struct NoKey;

/// Bytes that are no key on P-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the private key is not one on P-256 in PKCS #8")]
pub(crate) struct NotAKey;

impl PrivateKey {
    pub(crate) fn generate() -> Result<Self, NoKey> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| NoKey)?;
        Ok(Self(Arc::new(pair)))
    }

    /// For the file of a node's identity. The document wipes itself.
    pub(crate) fn to_pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, NoKey> {
        self.0.to_pkcs8v1().map(|document| Zeroizing::new(document.as_ref().to_vec())).map_err(|_| NoKey)
    }

    pub(crate) fn from_pkcs8(bytes: &[u8]) -> Result<Self, NotAKey> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, bytes).map_err(|_| NotAKey)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, KeyRequest, SvidStore, client_config, server_config};
    use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
    use std::time::Duration;

    /// A private key in all notations in which a log could print it.
    fn notations(key: &PrivateKey) -> Vec<String> {
        let secret: EcPrivateKeyBin<'_> = key.0.private_key().as_be_bytes().unwrap();
        let secret = secret.as_ref();
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = |part: &[u8]| format!("{part:?}").trim_matches(['[', ']']).to_owned();
        let lines: Vec<String> = secret.iter().map(u8::to_string).collect();
        let notations =
            vec![hex[..16].to_owned(), hex[..16].to_uppercase(), list(&secret[..8]), lines[..8].join(",\n")];
        assert!(
            format!("{secret:?}").contains(&notations[2])
                && format!("{secret:02x?}").replace(", ", "").contains(&notations[0])
        );
        notations
    }

    #[test]
    fn nothing_prints_a_private_key() {
        let domain = "orders.example".parse().unwrap();
        let id = crate::SpiffeId::function(&domain, "orders", "inventory").unwrap();
        let authority = Authority::new(&domain).unwrap();
        let store = SvidStore::new(authority.bundle().clone());
        let request = KeyRequest::new(&id).unwrap();
        let key = request.key.clone();
        let mut printed = vec![format!("{key:?} {key:#?} {request:?} {request:#?} {authority:?} {authority:#?}")];
        let chain = authority.sign(request.csr(), &id, Duration::from_secs(60)).unwrap();
        let error = store.install(KeyRequest::new(&id).unwrap(), chain.clone()).unwrap_err();
        printed.push(format!("{error} {error:?} {error:#?}"));
        let svid = store.install(request, chain).unwrap();
        let (server, client) = (server_config(&store).unwrap(), client_config(&store, &id, &id).unwrap());
        printed.push(format!("{svid:?} {svid:#?} {store:?} {store:#?} {:?} {:#?}", store.bundle(), store.bundle()));
        printed.push(format!(
            "{server:?} {server:#?} {client:?} {client:#?} {:?} {:#?}",
            svid.certified(),
            svid.certified()
        ));
        let notations = notations(&key);
        for text in &printed {
            for notation in &notations {
                assert!(!text.contains(notation), "{text}");
            }
        }
        assert!(printed[0].contains("PrivateKey(P-256)"), "the request was printed with its key field");
    }
}
