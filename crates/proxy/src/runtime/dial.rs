//! Connections of the runtime's own: to whoever has key sets or modules, or wants spans.

use http::Uri;
use http::uri::Scheme;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Neither `http://host…` nor `https://host…`.
    #[error("`{0}` is not an http or https address")]
    Url(String),
    /// The file with the roots.
    #[error("{}: {reason}", file.display())]
    CaFile {
        /// Which file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// No root to trust.
    #[error("the system has no root certificates; name a file with `caFile`")]
    NoRoots,
    /// Name resolution, TCP or TLS.
    #[error("connecting failed: {0}")]
    Connect(io::Error),
    /// The TLS configuration or the name.
    #[error("TLS: {0}")]
    Tls(String),
}

/// Somebody who speaks HTTP, perhaps under TLS.
#[derive(Clone, Debug)]
pub struct Server {
    uri: Uri,
    /// Without brackets.
    host: String,
    port: u16,
    tls: bool,
}

/// A connection, under TLS or not.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Server {
    /// Of an `http://` or `https://` address.
    pub fn parse(url: &str) -> Result<Self, DialError> {
        let bad_url = || DialError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad_url())?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(bad_url()),
        };
        let host = uri.host().ok_or_else(bad_url)?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { uri, host, port, tls })
    }

    /// The address.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Connects, trusting the roots in this PEM file; without one, the system's.
    pub async fn connect(&self, ca_file: Option<PathBuf>) -> Result<Box<dyn Stream>, DialError> {
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(DialError::Connect)?;
        if !self.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(self.host.clone()).map_err(|error| DialError::Tls(error.to_string()))?;
        let config = tls_config(ca_file).await?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(DialError::Connect)?;
        Ok(Box::new(stream))
    }
}

async fn tls_config(ca_file: Option<PathBuf>) -> Result<Arc<ClientConfig>, DialError> {
    // Reading files may block.
    let roots = tokio::task::spawn_blocking(move || match ca_file {
        Some(file) => roots_in(&file),
        None => system_roots(),
    });
    let roots = roots.await.map_err(|error| DialError::Tls(error.to_string()))??;
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| DialError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn roots_in(file: &Path) -> Result<RootCertStore, DialError> {
    let fault = |reason: String| DialError::CaFile { file: file.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| fault(error.to_string()))? {
        let certificate = certificate.map_err(|error: pem::Error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() { Err(fault("no certificate in it".to_owned())) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, DialError> {
    let mut roots = RootCertStore::empty();
    // Some of a system's roots may be too old to be read; the others do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(DialError::NoRoots) } else { Ok(roots) }
}
