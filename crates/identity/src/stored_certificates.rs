//! Certificates of stored secrets, for listeners of Gateway documents.

use crate::expiry::{self, Holder};
use crate::gateway::{certified, chain, facts, pick, private_key};
use arc_swap::ArcSwap;
use leno_model::{SecretBytes, SecretValues, StoredKey};
use rustls::pki_types::UnixTime;
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The key of a stored secret with the certificate chain, as in Secrets of Kubernetes.
pub const CERTIFICATE_KEY: &str = "tls.crt";
/// The key of a stored secret with the private key.
pub const PRIVATE_KEY: &str = "tls.key";

/// The certificates of a node's listeners, by the `namespace/name` of their StoredSecret.
#[derive(Debug, Default)]
pub struct StoredCertificates(ArcSwap<BTreeMap<String, Result<StoredCertificate, String>>>);

/// A certificate with its key, which is never printed.
#[derive(Clone, Debug)]
pub struct StoredCertificate {
    /// Its DNS names and addresses, in lower case; `*.` begins a wildcard.
    pub names: Vec<String>,
    /// When the first certificate of its chain expires.
    pub not_after: UnixTime,
    /// From when it is late to replace it ([`expiry::late_at`]).
    pub late_at: UnixTime,
    certified: Arc<CertifiedKey>,
}

impl StoredCertificate {
    /// Reads a PEM chain, leaf first, and its private key (PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    /// One of them cannot be used, or they do not belong together. The reason never contains a key.
    pub fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, String> {
        let chain = chain(certificate).map_err(|reason| format!("`{CERTIFICATE_KEY}`: {reason}"))?;
        let key = private_key(key).map_err(|reason| format!("`{PRIVATE_KEY}`: {reason}"))?;
        let (names, not_after) = facts(&chain);
        let late_at = expiry::chain_late_at(&chain, Holder::Endpoint).unwrap_or(not_after);
        let place = format!("the certificate in `{CERTIFICATE_KEY}`");
        let certified = certified(chain, key, &place).map_err(|reason| format!("`{PRIVATE_KEY}`: {reason}"))?;
        Ok(Self { names, not_after, late_at, certified: Arc::new(certified) })
    }
}

impl StoredCertificates {
    /// Replaces all certificates. `secret` of each key is `namespace/name`.
    pub fn set(&self, values: &SecretValues) {
        let names = values.keys().map(|key| &key.secret);
        let value = |secret: &String, key: &str| {
            values.get(&StoredKey { secret: secret.clone(), key: key.to_owned() }).map(SecretBytes::expose)
        };
        let parsed = |secret: &String| match (value(secret, CERTIFICATE_KEY), value(secret, PRIVATE_KEY)) {
            (Some(certificate), Some(key)) => StoredCertificate::parse(certificate, key),
            _ => Err(format!("it lacks `{CERTIFICATE_KEY}` or `{PRIVATE_KEY}`")),
        };
        self.0.store(Arc::new(names.map(|secret| (secret.clone(), parsed(secret))).collect()));
    }

    /// All certificates, by the `namespace/name` of their StoredSecret, or why one cannot be used.
    pub fn all(&self) -> Arc<BTreeMap<String, Result<StoredCertificate, String>>> {
        self.0.load_full()
    }

    /// Why a certificate cannot be used; `None`: it can.
    pub fn fault(&self, secret: &str) -> Option<String> {
        match self.0.load().get(secret) {
            Some(Ok(_)) => None,
            Some(Err(reason)) => Some(reason.clone()),
            None => Some("the control plane has not delivered it".to_owned()),
        }
    }

    /// Of the certificates in these secrets, the one for the name that a client asks for (SNI), or
    /// else the first; `None`: none can be used.
    pub fn certificate_for(&self, secrets: &[Box<str>], name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let all = self.0.load();
        let usable: Vec<&StoredCertificate> =
            secrets.iter().filter_map(|secret| all.get(&**secret)?.as_ref().ok()).collect();
        pick(&usable, name, |certificate| &certificate.names).map(|chosen| chosen.certified.clone())
    }
}
