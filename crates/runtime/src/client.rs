//! The node's HTTP client. It fetches key sets and modules that the configuration names, and sends
//! spans to the trace back end.

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioExecutor;
use leno_files::{FileAccess, MAX_SMALL_FILE, readers};
use leno_identity::{CertificateName, TrustedServers, handshake_failure};
use std::convert::Infallible;
use std::error::Error;
use std::fmt::Display;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem};
use tower_service::Service;
use zeroize::Zeroizing;

/// HTTP/1.1, with TLS for `https` addresses.
pub type Client = HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that connects to known addresses.
pub type ClientTo = HyperClient<HttpsConnector<HttpConnector<FixedAddresses>>, Full<Bytes>>;

/// A resolver that returns the same addresses for each name, so that a name is not looked up again
/// after its addresses were checked.
#[derive(Clone, Debug)]
pub struct FixedAddresses(Arc<[IpAddr]>);

impl Service<Name> for FixedAddresses {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        // The connector sets the port.
        let addresses: Vec<_> = self.0.iter().map(|address| SocketAddr::new(*address, 0)).collect();
        ready(Ok(addresses.into_iter()))
    }
}

/// The `user-agent` field of each request.
pub const USER_AGENT: &str = concat!("leno/", env!("CARGO_PKG_VERSION"));

/// Why no client can be made for an address.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is neither `http://host…` nor `https://host…`.
    #[error("`{0}` is not an http or https address")]
    Address(String),
    /// Certificates or a key cannot be used.
    #[error("{source_name}: {reason}")]
    Pem {
        /// Path of the file, or the name of the stored secret.
        source_name: String,
        /// The cause, in words.
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
pub fn address(url: &str) -> Result<Uri, ClientError> {
    let uri = url.parse::<Uri>().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    uri.ok_or_else(|| ClientError::Address(url.to_owned()))
}

/// Authorities to trust in place of the system's, as a document names them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TrustedRoots {
    /// A file.
    File(CaFile),
    /// PEM.
    Pem(String),
}

/// A file of authorities that a document names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CaFile {
    path: PathBuf,
    namespace: String,
    access: FileAccess,
}

impl CaFile {
    /// A file that documents of `namespace` name. The client reads it only if `access` permits it.
    pub fn new(path: PathBuf, namespace: String, access: FileAccess) -> Self {
        Self { path, namespace, access }
    }

    async fn tls(self) -> Result<ClientConfig, ClientError> {
        if let Some(reason) = self.access.refusal(&self.namespace, &self.path) {
            return Err(unusable(&self.path.display(), &reason));
        }
        let (namespace, path) = (self.namespace.clone(), self.path.clone());
        let read = move || Ok(tls(Some(&self.path), &self.access));
        let read = readers::run(&namespace, readers::MAX_WAIT, read).await;
        Ok(read.map_err(|error| unusable(&path.display(), &error))??.config)
    }
}

/// Makes a client for this address. Each request uses a new connection, so a late or second
/// response of a server cannot answer another request. It trusts `roots`, or else the system's. It
/// does not follow redirects.
pub async fn client(address: &Uri, roots: Option<TrustedRoots>) -> Result<Client, ClientError> {
    let tls = tls_for(address, roots).await?;
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Ok(HyperClient::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector))
}

/// Like [`client`], but connects to one of `hosts` instead of looking the name up.
pub async fn client_to(
    address: &Uri,
    hosts: Arc<[IpAddr]>,
    roots: Option<TrustedRoots>,
) -> Result<ClientTo, ClientError> {
    let tls = tls_for(address, roots).await?;
    let mut http = HttpConnector::new_with_resolver(FixedAddresses(hosts));
    http.enforce_http(false);
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http);
    Ok(HyperClient::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector))
}

async fn tls_for(address: &Uri, roots: Option<TrustedRoots>) -> Result<ClientConfig, ClientError> {
    // Without TLS there is no certificate to check.
    match (address.scheme_str() == Some("https"), roots) {
        (true, Some(TrustedRoots::File(file))) => file.tls().await,
        (true, Some(TrustedRoots::Pem(pem))) => {
            let read = |_: &_| Ok(Zeroizing::new(pem.clone().into_bytes()));
            tls_of(&[&"`ca` of the document"], &[], None, read).map(|tls| tls.config)
        }
        (true, None) => {
            let read = readers::run(readers::OPERATOR, readers::MAX_WAIT, || Ok(tls(None, &FileAccess::Any))).await;
            Ok(read.map_err(|error| ClientError::Tls(error.to_string()))??.config)
        }
        (false, _) => {
            let config = TrustedServers::default().client_config();
            Ok(config.map_err(|error| ClientError::Tls(error.to_string()))?.with_no_client_auth())
        }
    }
}

/// A TLS configuration made from files.
pub struct FileTls {
    /// The configuration.
    pub config: ClientConfig,
    /// When the first of its roots expires, in seconds since 1970. The node then reads the files
    /// again.
    pub expires: u64,
}

/// A TLS configuration that trusts the certificates in the PEM file `ca_file`, or else the
/// system's. It blocks.
pub fn tls(ca_file: Option<&Path>, access: &FileAccess) -> Result<FileTls, ClientError> {
    let file = ca_file.map(Path::display);
    let read = |_: &_| ca_file.map_or_else(|| Ok(Vec::new()), |path| leno_files::read(path, access, MAX_SMALL_FILE));
    let roots: Vec<_> = file.iter().collect();
    tls_of(&roots, &[], None, |file| read(file).map(Zeroizing::new))
}

/// A TLS configuration that trusts the PEM certificates `roots`, or the system's without any. The
/// server's certificate has to have one of `names`, or without any the name that the client asks
/// for. It presents `certificate`, a certificate chain and its key, to servers that request one.
/// `read` reads each of them. It blocks.
pub fn tls_of<S: Display>(
    roots: &[&S],
    names: &[CertificateName],
    certificate: Option<(&S, &S)>,
    read: impl Fn(&S) -> io::Result<Zeroizing<Vec<u8>>>,
) -> Result<FileTls, ClientError> {
    let read = |source: &S| read(source).map_err(|error| unusable(source, &error));
    let (mut trusted, mut expires) = (TrustedServers::default(), u64::MAX);
    for source in roots {
        expires = expires.min(trust(&mut trusted, source, &read(source)?)?);
    }
    if roots.is_empty() {
        trusted = trusted_by_machine()?;
    }
    trusted.require(names.to_vec());
    let builder = trusted.client_config().map_err(|error| ClientError::Tls(error.to_string()))?;
    let Some((chain_source, key_source)) = certificate else {
        return Ok(FileTls { config: builder.with_no_client_auth(), expires });
    };
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&read(chain_source)?).collect();
    let chain = chain.map_err(|error| unusable(chain_source, &error))?;
    let key = PrivateKeyDer::from_pem_slice(&read(key_source)?).map_err(|error| unusable(key_source, &error))?;
    let config = builder.with_client_auth_cert(chain, key).map_err(|error| unusable(chain_source, &error))?;
    Ok(FileTls { config, expires })
}

fn unusable(source: &dyn Display, reason: &dyn Display) -> ClientError {
    ClientError::Pem { source_name: source.to_string(), reason: reason.to_string() }
}

/// The text of an error and of its causes, which the HTTP library's text omits.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    if let Some(reason) = handshake_failure(error) {
        return reason;
    }
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Trusts the certificates of a source, and returns when the first of them expires.
fn trust(trusted: &mut TrustedServers, source: &dyn Display, pem: &[u8]) -> Result<u64, ClientError> {
    let found = leno_identity::roots(pem, UnixTime::now()).map_err(|error| unusable(source, &error))?;
    for refused in &found.refused {
        tracing::warn!("{source}: {refused}; it is left out");
    }
    let expires = found.expires;
    trusted.add(found).map_err(|error| unusable(source, &error))?;
    Ok(expires)
}

fn trusted_by_machine() -> Result<TrustedServers, ClientError> {
    let mut trusted = TrustedServers::default();
    trusted.add_machine(rustls_native_certs::load_native_certs().certs);
    if trusted.is_empty() { Err(ClientError::NoRoots) } else { Ok(trusted) }
}
