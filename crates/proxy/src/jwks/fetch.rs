//! One GET of a key set, or of another document that the configuration names. Redirects are refused: the configuration names the address, not whoever answers there.

use super::Source;
use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::uri::Scheme;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use leno_config::jwks::{self, KeySet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Bytes of a key set.
const LARGEST: usize = 256 * 1024;

/// Why a fetch gave no keys.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
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
    /// HTTP.
    #[error("the exchange failed: {0}")]
    Http(#[from] hyper::Error),
    /// Not 200. Redirects are not followed.
    #[error("the answer was {status}{}", hint(*status))]
    Status {
        /// Of the answer.
        status: StatusCode,
    },
    /// Too large, or it broke off.
    #[error("the body could not be read: {0}")]
    Body(String),
    /// The fetch was cut short.
    #[error("the task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The set as a whole is none.
    #[error("{0}")]
    NotAKeySet(jwks::Refused),
    /// It took too long.
    #[error("nothing within {0:?}")]
    Timeout(Duration),
}

fn hint(status: StatusCode) -> &'static str {
    if status.is_redirection() { "; redirects are not followed, name the final address" } else { "" }
}

/// Fetches and parses.
pub async fn fetch(source: Source, timeout: Duration) -> Result<KeySet, FetchError> {
    let accept = "application/jwk-set+json, application/json";
    let body = download(&source.url, source.ca_file, accept, LARGEST, timeout).await?;
    let mut keys = jwks::parse(&body);
    match keys.refused.iter().position(|refused| refused.index.is_none()) {
        Some(whole) => Err(FetchError::NotAKeySet(keys.refused.swap_remove(whole))),
        None => Ok(keys),
    }
}

/// One GET, of at most so many bytes.
pub(crate) async fn download(
    url: &str,
    ca_file: Option<PathBuf>,
    accept: &'static str,
    largest: usize,
    timeout: Duration,
) -> Result<Bytes, FetchError> {
    let wanted = Wanted { accept, largest };
    let result = tokio::time::timeout(timeout, get(url, ca_file, wanted)).await;
    result.unwrap_or(Err(FetchError::Timeout(timeout)))
}

/// What is asked for, and how much of it is taken.
#[derive(Clone, Copy)]
struct Wanted {
    accept: &'static str,
    largest: usize,
}

async fn get(url: &str, ca_file: Option<PathBuf>, wanted: Wanted) -> Result<Bytes, FetchError> {
    let bad_url = || FetchError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| bad_url())?;
    let host = uri.host().ok_or_else(bad_url)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let tls = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => false,
        Some(scheme) if *scheme == Scheme::HTTPS => true,
        _ => return Err(bad_url()),
    };
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await.map_err(FetchError::Connect)?;
    if !tls {
        return exchange(stream, &uri, wanted).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| FetchError::Tls(error.to_string()))?;
    let config = tls_config(ca_file).await?;
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(FetchError::Connect)?;
    exchange(stream, &uri, wanted).await
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, uri: &Uri, wanted: Wanted) -> Result<Bytes, FetchError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, uri.authority().map_or("", |authority| authority.as_str()))
        .header(ACCEPT, wanted.accept)
        .header(USER_AGENT, concat!("leno/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| FetchError::Body(error.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status { status: response.status() });
        }
        let body = Limited::new(response.into_body(), wanted.largest).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| FetchError::Body(error.to_string()))
    };
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end before the answer is read from it.
        ended = &mut connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(error.into()),
        },
    }
}

async fn tls_config(ca_file: Option<PathBuf>) -> Result<Arc<ClientConfig>, FetchError> {
    // Reading files may block.
    let roots = tokio::task::spawn_blocking(move || match ca_file {
        Some(file) => roots_in(&file),
        None => system_roots(),
    });
    let roots = roots.await.map_err(|error| FetchError::Tls(error.to_string()))??;
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn roots_in(file: &Path) -> Result<RootCertStore, FetchError> {
    let fault = |reason: String| FetchError::CaFile { file: file.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| fault(error.to_string()))? {
        let certificate = certificate.map_err(|error: pem::Error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() { Err(fault("no certificate in it".to_owned())) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, FetchError> {
    let mut roots = RootCertStore::empty();
    // Some of a system's roots may be too old to be read; the others do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(FetchError::NoRoots) } else { Ok(roots) }
}
