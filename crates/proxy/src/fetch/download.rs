//! Downloads one document from a URL in the configuration. Redirects are refused: the configuration
//! names the address, not the server there.

use crate::state::egress_guard::{EgressError, EgressGuard, Requester};
use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use leno_model::FunctionConfig;
use leno_model::{JwksFetch, ModuleUrl};
use leno_runtime::client::{self, CaFile, ClientError, TrustedRoots, with_causes};
use std::path::PathBuf;
use std::time::Duration;

/// Why a download failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    /// The host has no address, or none that may be fetched from.
    #[error(transparent)]
    Host(#[from] EgressError),
    /// The address or the root certificates are wrong.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Connecting, or the HTTP exchange, failed.
    #[error("the exchange failed: {}", with_causes(.0))]
    Http(#[from] hyper_util::client::legacy::Error),
    /// The status is not 200. Redirects are not followed.
    #[error("the answer was {status}{}", hint(*status))]
    Status {
        /// The response's status.
        status: StatusCode,
    },
    /// The body is too large, or it broke off.
    #[error("the body could not be read: {0}")]
    Body(String),
    /// The download took longer than this.
    #[error("nothing within {0:?}")]
    Timeout(Duration),
}

fn hint(status: StatusCode) -> &'static str {
    if status.is_redirection() { "; redirects are not followed, name the final address" } else { "" }
}

/// Something to download.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Download {
    /// Its address.
    pub(crate) url: String,
    /// The roots to trust for `https`; `None`: the system's.
    pub(crate) roots: Option<TrustedRoots>,
    /// The namespace whose document has the URL.
    pub(crate) requester: Requester,
}

impl Download {
    /// A key set from a function's documents.
    pub(crate) fn key_set(config: &FunctionConfig, fetch: &JwksFetch) -> Self {
        Self::of(config, &fetch.url, (fetch.ca_file.as_ref(), &fetch.ca))
    }

    /// A module from a function's documents.
    pub fn module(config: &FunctionConfig, url: &ModuleUrl) -> Self {
        Self::of(config, &url.url, (url.ca_file.as_ref(), &url.ca))
    }

    fn of(config: &FunctionConfig, url: &str, (ca_file, ca): (Option<&PathBuf>, &str)) -> Self {
        let (namespace, access) = (&config.id.namespace, config.bounds.file_access());
        let file = ca_file.map(|path| TrustedRoots::File(CaFile::new(path.clone(), namespace.clone(), access)));
        let roots = file.or_else(|| (!ca.is_empty()).then(|| TrustedRoots::Pem(ca.to_owned())));
        Self { url: url.to_owned(), roots, requester: Requester::of(config) }
    }
}

/// Downloads something with one GET. Fails if the body has more than `largest` bytes, or if it
/// takes longer than `timeout`.
pub(super) async fn download(
    guard: &EgressGuard,
    what: &Download,
    accept: &'static str,
    largest: usize,
    timeout: Duration,
) -> Result<Bytes, DownloadError> {
    let result = tokio::time::timeout(timeout, get(guard, what, accept, largest, timeout)).await;
    result.unwrap_or(Err(DownloadError::Timeout(timeout)))
}

async fn get(
    guard: &EgressGuard,
    what: &Download,
    accept: &'static str,
    largest: usize,
    timeout: Duration,
) -> Result<Bytes, DownloadError> {
    let address = client::address(&what.url)?;
    let host = address.host().unwrap_or_default();
    let hosts = guard.addresses(host, &what.requester, timeout).await?;
    // Documents are fetched too seldom to keep a connection open.
    let client = client::client_to(&address, hosts, what.roots.clone()).await?;
    let request = Request::get(address)
        .header(ACCEPT, accept)
        .header(USER_AGENT, client::USER_AGENT)
        .body(Full::default())
        .map_err(|error| DownloadError::Body(error.to_string()))?;
    let response = client.request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(DownloadError::Status { status: response.status() });
    }
    let body = Limited::new(response.into_body(), largest).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| DownloadError::Body(with_causes(&*error)))
}
