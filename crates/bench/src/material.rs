//! Certificates, keys, tokens and the request of a measurement.

use crate::load::{Request, Tls};
use crate::metrics::TOKEN;
use crate::policies::Algorithm;
use anyhow::{Context, anyhow};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use leno_testkit::keys::CertificateAuthority;
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyUsagePurpose, SanType};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const TRUST_DOMAIN: &str = "bench.example";
pub(crate) const FRONTEND: &str = "spiffe://bench.example/ns/bench/sa/frontend";
pub(crate) const SERVICE: &str = "spiffe://bench.example/ns/bench/sa/service";
pub(crate) const ISSUER: &str = "https://login.bench.example";
pub(crate) const AUDIENCE: &str = "bench";
/// The host name of the service.
pub(crate) const HOST: &str = "service.bench";
/// Users whose requests are sent in turn.
const USERS: usize = 20;

/// A folder with PEM files, and keys that live as long as this.
pub(crate) struct Material {
    folder: PathBuf,
    es256: EcdsaKeyPair,
    rs256: RsaKeyPair,
    issued_at: u64,
}

impl Material {
    /// Makes all of it in this folder: `ca.pem`, and `NAME.pem` and `NAME.key` for `service` and
    /// `frontend`.
    pub(crate) fn make(folder: &Path) -> anyhow::Result<Self> {
        let authority = CertificateAuthority::with(|params| {
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            params.distinguished_name.push(DnType::CommonName, "bench");
        });
        fs::write(folder.join("ca.pem"), authority.pem())?;
        let token = folder.join("admin.token");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&token)?
            .write_all(TOKEN.as_bytes())?;
        for (name, identity) in [("service", SERVICE), ("frontend", FRONTEND)] {
            let mut leaf = CertificateParams::new(vec![HOST.to_owned()])?;
            leaf.subject_alt_names.push(SanType::URI(Ia5String::try_from(identity)?));
            let (certificate, key) = authority.sign(leaf);
            fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
            fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
        }
        let issued_at = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?.as_secs();
        Ok(Self {
            folder: folder.to_owned(),
            es256: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| anyhow!("no P-256 key"))?,
            rs256: RsaKeyPair::generate(KeySize::Rsa2048).map_err(|_| anyhow!("no RSA key"))?,
            issued_at,
        })
    }

    /// A file of the folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The issuer's public keys.
    pub(crate) fn jwks(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = self.es256.public_key().as_ref();
        let rsa = self.rs256.public_key();
        json!({"keys": [
            {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "ec", "x": encode(&point[1..33]), "y": encode(&point[33..])},
            {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "rsa",
             "n": encode(rsa.modulus().big_endian_without_leading_zero()), "e": encode(rsa.exponent().big_endian_without_leading_zero())},
        ]})
    }

    /// A customer's token, valid for a day.
    fn token(&self, algorithm: Algorithm, user: usize) -> anyhow::Result<String> {
        let header = match algorithm {
            Algorithm::Es256 => r#"{"alg":"ES256","kid":"ec","typ":"JWT"}"#,
            Algorithm::Rs256 => r#"{"alg":"RS256","kid":"rsa","typ":"JWT"}"#,
        };
        let claims = json!({
            "iss": ISSUER, "aud": [AUDIENCE], "sub": format!("3f6b8d1c-0c7e-4c3a-9a51-7b1f60d2e{user:03}"),
            "iat": self.issued_at, "exp": self.issued_at + 86_400, "azp": "orders-frontend",
            "email": "customer@example.org", "realm_access": {"roles": ["customer"]},
        });
        let signed = [header, &claims.to_string()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let random = SystemRandom::new();
        let signature = match algorithm {
            Algorithm::Es256 => {
                let signature = self.es256.sign(&random, signed.as_bytes()).map_err(|_| anyhow!("no signature"))?;
                signature.as_ref().to_vec()
            }
            Algorithm::Rs256 => {
                let mut signature = vec![0; self.rs256.public_modulus_len()];
                let signing = self.rs256.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature);
                signing.map_err(|_| anyhow!("no signature"))?;
                signature
            }
        };
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The request of all measurements: a head of about one KiB, from some customers in turn.
    pub(crate) fn request(&self, algorithm: Algorithm) -> anyhow::Result<Request> {
        let headers = [
            ("accept", "application/json"),
            ("accept-encoding", "gzip, br"),
            ("cookie", "theme=dark; consent=necessary; cart=5d0c8a4e-5a0c-4c55-9f0e-3a7a6f1d2b3c"),
            ("referer", "https://shop.orders.example/cart/checkout"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("user-agent", "orders-frontend/4.2 (linux; x86_64)"),
        ];
        let authorizations = (0..USERS).map(|user| Ok(format!("Bearer {}", self.token(algorithm, user)?)));
        Ok(Request {
            method: "GET".into(),
            target: "/orders/8c6f1e0a/items?expand=prices&currency=EUR".into(),
            authorities: vec![HOST.into()],
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            authorizations: authorizations.collect::<anyhow::Result<_>>()?,
            body: 0,
            contents: Vec::new(),
        })
    }

    /// TLS of a client that is `frontend`; or of one that has no certificate.
    pub(crate) fn client_tls(&self, identified: bool) -> Tls {
        let client = identified.then(|| (self.folder.join("frontend.pem"), self.folder.join("frontend.key")));
        Tls { ca: self.folder.join("ca.pem"), server_name: HOST.into(), client }
    }
}

/// A request (DER) to certify that a key is `frontend`'s, and the key (PEM).
pub(crate) fn certificate_request() -> anyhow::Result<(Vec<u8>, String)> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.subject_alt_names.push(SanType::URI(Ia5String::try_from(FRONTEND)?));
    params.distinguished_name = DistinguishedName::new();
    let key = rcgen::KeyPair::generate()?;
    Ok((params.serialize_request(&key)?.der().to_vec(), key.serialize_pem()))
}

/// A certificate as PEM.
pub(crate) fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}
