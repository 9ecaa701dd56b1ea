//! The node's own HTTP client. It fetches key sets and modules that the configuration names, and posts spans to the trace back end.

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// HTTP/1.1, with TLS for `https` addresses.
pub(crate) type Client = HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The `user-agent` field of each request.
pub(crate) const USER_AGENT: &str = concat!("leno/", env!("CARGO_PKG_VERSION"));

/// Why no client can be made for an address.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is neither `http://host…` nor `https://host…`.
    #[error("`{0}` is not an http or https address")]
    Address(String),
    /// A file with certificates or a key cannot be used.
    #[error("{}: {reason}", file.display())]
    Pem {
        /// Path of the file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has no root certificates.
    #[error("the system has no root certificates; name a file with `caFile`")]
    NoRoots,
    /// The TLS library refuses the configuration, or reading the roots was interrupted.
    #[error("TLS: {0}")]
    Tls(String),
}

/// Parses an `http` or `https` address.
pub(crate) fn address(url: &str) -> Result<Uri, ClientError> {
    let uri = url.parse::<Uri>().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    uri.ok_or_else(|| ClientError::Address(url.to_owned()))
}

/// Makes a client for this address. It trusts the root certificates in the PEM file `ca_file`, or else the system's. It does not follow redirects.
pub(crate) async fn client(address: &Uri, ca_file: Option<PathBuf>) -> Result<Client, ClientError> {
    // Reading files may block. Without TLS there is no certificate to check.
    let needs_roots = address.scheme_str() == Some("https");
    let tls = if needs_roots {
        let reading = tokio::task::spawn_blocking(move || tls(ca_file.as_deref(), None));
        reading.await.map_err(|error| ClientError::Tls(error.to_string()))??
    } else {
        configuration(RootCertStore::empty(), None)?
    };
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Ok(HyperClient::builder(TokioExecutor::new()).build(connector))
}

/// A TLS configuration that trusts the root certificates in the PEM file `ca_file`, or else the system's, and shows a certificate chain, with its key, to
/// servers that ask. It blocks.
pub fn tls(ca_file: Option<&Path>, certificate: Option<(&Path, &Path)>) -> Result<ClientConfig, ClientError> {
    configuration(ca_file.map_or_else(system_roots, roots_in)?, certificate)
}

fn configuration(roots: RootCertStore, certificate: Option<(&Path, &Path)>) -> Result<ClientConfig, ClientError> {
    let wrong = |error: rustls::Error| ClientError::Tls(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(roots);
    let Some((chain_file, key_file)) = certificate else { return Ok(builder.with_no_client_auth()) };
    let unusable = |file: &Path, reason: String| ClientError::Pem { file: file.to_owned(), reason };
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_file_iter(chain_file).and_then(Iterator::collect);
    let chain = chain.map_err(|error| unusable(chain_file, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| unusable(key_file, error.to_string()))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| unusable(chain_file, error.to_string()))
}

/// The text of an error and of its causes. The HTTP library's own text leaves the causes out.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn roots_in(file: &Path) -> Result<RootCertStore, ClientError> {
    let fault = |reason: String| ClientError::Pem { file: file.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| fault(error.to_string()))? {
        let certificate = certificate.map_err(|error: pem::Error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() { Err(fault("no certificate in it".to_owned())) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore::empty();
    // Some of the system's roots may be too old to be parsed. The others are used.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(ClientError::NoRoots) } else { Ok(roots) }
}
