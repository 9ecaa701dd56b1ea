//! TLS of the gateway: an ordinary HTTPS server for clients outside the mesh.

use crate::crypto::PROVIDER;
use crate::tls::TlsError;
use leno_files::{FileAccess, MAX_SMALL_FILE};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::path::Path;
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`. `certificate` is a PEM file with the chain, leaf first; `key` a PEM file with its
/// private key (PKCS #8, PKCS #1 or SEC 1). Errors name the file.
pub fn gateway_server_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = chain(certificate)?;
    let mut private_key = private_key(key)?;
    let signing_key = any_supported_type(&private_key);
    private_key.zeroize();
    let certified = signing_key.map(|signing_key| CertifiedKey::new(chain, signing_key));
    let certified = certified.and_then(|certified| certified.keys_match().map(|()| certified));
    let certified = certified.map_err(|error| unusable(key, mismatch(&error, certificate)))?;
    let mut config = ServerConfig::builder_with_provider(PROVIDER.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, format!("not a PEM file: {}", reason(&error))))?;
    if chain.is_empty() {
        return Err(unusable(
            path,
            "no certificate in it; expected PEM sections `-----BEGIN CERTIFICATE-----`".to_owned(),
        ));
    }
    for (index, certificate) in chain.iter().enumerate() {
        if x509_parser::parse_x509_certificate(certificate).is_err() {
            return Err(unusable(path, format!("certificate {} in it is not X.509", index + 1)));
        }
    }
    Ok(chain)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            let expected = "expected a PEM section `-----BEGIN PRIVATE KEY-----`, without a passphrase";
            unusable(path, format!("no private key in it; {expected}"))
        }
        error => unusable(path, format!("not a PEM file: {}", reason(&error))),
    })
}

/// Wiped afterwards: the content may be a key.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let text = leno_files::read(path, &FileAccess::Any, MAX_SMALL_FILE);
    let text = text.map_err(|reason| TlsError::Unreadable { path: path.to_owned(), reason })?;
    Ok(Zeroizing::new(text))
}

fn mismatch(error: &rustls::Error, certificate: &Path) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            format!("this key does not belong to the certificate in {}", certificate.display())
        }
        // The library's text names the algorithm or the encoding at fault, and never the key.
        error => format!("this key cannot be used with the certificate in {}: {error}", certificate.display()),
    }
}

/// The reason, without the offending line, which may be part of a key.
fn reason(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end line",
        pem::Error::IllegalSectionStart { .. } => "a section's first line is malformed",
        pem::Error::Base64Decode(_) => "a section is not base64",
        pem::Error::SectionTooLarge => "a section is too large",
        _ => "no section could be read",
    }
}

fn unusable(path: &Path, reason: String) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), reason }
}
