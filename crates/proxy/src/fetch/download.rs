//! One GET of a document that the configuration names. Redirects are refused: the configuration names the address, not whoever answers there.

use crate::runtime::dial::{DialError, Server};
use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The address, or what is there.
    #[error(transparent)]
    Dial(#[from] DialError),
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
    /// It took too long.
    #[error("nothing within {0:?}")]
    Timeout(Duration),
}

fn hint(status: StatusCode) -> &'static str {
    if status.is_redirection() { "; redirects are not followed, name the final address" } else { "" }
}

/// One GET, of at most so many bytes.
pub async fn download(
    url: &str,
    ca_file: Option<PathBuf>,
    accept: &'static str,
    largest: usize,
    timeout: Duration,
) -> Result<Bytes, DownloadError> {
    let wanted = Wanted { accept, largest };
    let result = tokio::time::timeout(timeout, get(url, ca_file, wanted)).await;
    result.unwrap_or(Err(DownloadError::Timeout(timeout)))
}

/// What is asked for, and how much of it is taken.
#[derive(Clone, Copy)]
struct Wanted {
    accept: &'static str,
    largest: usize,
}

async fn get(url: &str, ca_file: Option<PathBuf>, wanted: Wanted) -> Result<Bytes, DownloadError> {
    let server = Server::parse(url)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(server.connect(ca_file).await?)).await?;
    let uri = server.uri();
    let request = Request::get(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, uri.authority().map_or("", |authority| authority.as_str()))
        .header(ACCEPT, wanted.accept)
        .header(USER_AGENT, concat!("leno/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| DownloadError::Body(error.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(DownloadError::Status { status: response.status() });
        }
        let body = Limited::new(response.into_body(), wanted.largest).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| DownloadError::Body(error.to_string()))
    };
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end before the answer is read from it, and however it likes if the answer is complete: many servers close
        // without TLS's close_notify. If it is not, reading it fails.
        _ = &mut connection => answer.await,
    }
}
