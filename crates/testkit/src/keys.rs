//! Keys of others: certificate authorities outside the mesh, and issuers of tokens.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// A certificate authority.
pub struct CertificateAuthority(CertifiedIssuer<'static, KeyPair>);

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::with(|_| ())
    }
}

impl CertificateAuthority {
    /// An authority with this change to its certificate.
    pub fn with(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// An authority whose certificate has expired.
    pub fn expired() -> Self {
        Self::with(|params| {
            params.distinguished_name.push(DnType::CommonName, "gone");
            params.not_after = rcgen::date_time_ymd(2024, 1, 1);
        })
    }

    /// A root that signs for the workloads of a trust domain (SPIFFE), and for those of others that
    /// [`CertificateAuthority::workload`] names.
    pub fn of_trust_domain(name: &str) -> Self {
        /// Each has another name, so that a peer does not take one for another.
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        Self::with(|params| {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            params.distinguished_name.push(DnType::CommonName, format!("root {number} of {name}"));
            params.subject_alt_names.push(SanType::URI(format!("spiffe://{name}").try_into().unwrap()));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        })
    }

    /// Its key as PEM.
    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// The certificate of a workload with this SPIFFE ID, with this change, and its key.
    pub fn workload(&self, id: &str, change: impl FnOnce(&mut CertificateParams)) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::URI(id.try_into().unwrap()));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        self.sign(params)
    }

    /// Its certificate.
    pub fn certificate(&self) -> &Certificate {
        self.0.as_ref()
    }

    /// Its certificate as PEM.
    pub fn pem(&self) -> String {
        self.certificate().pem()
    }

    /// A certificate for these names, and its key.
    pub fn issue(&self, names: &[&str]) -> (Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        self.sign(CertificateParams::new(names).unwrap())
    }

    /// The same for a name and a URI.
    pub fn issue_with_uri(&self, name: &str, uri: &str) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        self.sign(params)
    }

    /// A certificate with these contents, and its key.
    pub fn sign(&self, params: CertificateParams) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// Writes a certificate for these names to `STEM.pem`, and its key to `STEM.key`.
    pub fn write(&self, folder: &Path, stem: &str, names: &[&str]) {
        let (certificate, key) = self.issue(names);
        fs::write(folder.join(stem).with_extension("pem"), certificate.pem()).unwrap();
        fs::write(folder.join(stem).with_extension("key"), key.serialize_pem()).unwrap();
    }
}

/// An Ed25519 key that signs tokens.
pub struct TokenKey(Ed25519KeyPair);

impl Default for TokenKey {
    fn default() -> Self {
        Self(Ed25519KeyPair::generate().unwrap())
    }
}

impl TokenKey {
    /// The public key.
    pub fn public(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    /// The public key as a JSON Web Key without an ID.
    pub fn jwk(&self) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(self.public())})
    }

    /// A token with these claims that names no key.
    pub fn token(&self, claims: &Value) -> String {
        let parts = [json!({"alg": "EdDSA"}), claims.clone()].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = parts.join(".");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes())))
    }
}
