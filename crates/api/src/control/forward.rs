//! Reads that only the leader can answer. A control plane that follows forwards them to it.

use super::error::ApiError;
use super::service::Service;
use anyhow::{Context, Result};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use leno_identity::TrustedServers;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

/// Marks a forwarded request, which is not forwarded again.
const FORWARDED: HeaderName = HeaderName::from_static("leno-forwarded");
/// Timeout of the leader's answer.
const LONGEST: Duration = Duration::from_secs(50);
/// Maximum size of the leader's answer, in bytes.
const LARGEST: usize = 64 << 20;

/// The leader, as the store names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The address of its API.
    pub url: String,
    /// The certificate of its API; `None`: the leader is of a release that does not name it.
    pub certificate: Option<Vec<u8>>,
}

/// Answers a request, or has the leader answer it if it is a read that only the leader can answer.
pub(super) async fn answer(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    let is_read = request.method() == Method::GET && !request.headers().contains_key(FORWARDED);
    let (uri, authorization) = (request.uri().clone(), request.headers().get(AUTHORIZATION).cloned());
    let response = next.run(request).await;
    if response.status() != StatusCode::MISDIRECTED_REQUEST || !is_read {
        return response;
    }
    let leader = service.state().leader.clone();
    let Some(Leader { url, certificate: Some(certificate) }) = leader else { return response };
    match timeout(LONGEST, ask(&url, certificate, &uri, authorization)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => ApiError::Unavailable(format!("the leader {url} cannot be asked: {error:#}")).into_response(),
        Err(_) => ApiError::Unavailable(format!("the leader {url} did not answer within {LONGEST:?}")).into_response(),
    }
}

async fn ask(url: &str, certificate: Vec<u8>, path: &Uri, authorization: Option<HeaderValue>) -> Result<Response> {
    let leader: Uri = url.parse().context("its address is no URL")?;
    let host = leader.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let authority = leader.authority().map(ToString::to_string).unwrap_or_default();
    // Only the leader can have the store name it.
    let mut trusted = TrustedServers::default();
    trusted.add_server(CertificateDer::from(certificate));
    let config = trusted.client_config()?.with_no_client_auth();
    let stream = TcpStream::connect((host.as_str(), leader.port_u16().unwrap_or(443))).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host)?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let path = path.path_and_query().map_or("/", |path| path.as_str());
    let mut request = hyper::Request::get(path).header("host", authority).header(FORWARDED, "1");
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, LARGEST).collect().await.map_err(anyhow::Error::from_boxed)?;
    let mut answer = Response::new(Body::from(body.to_bytes()));
    *answer.status_mut() = head.status;
    for name in ["content-type", "retry-after", "www-authenticate"] {
        if let Some(value) = head.headers.get(name) {
            answer.headers_mut().insert(HeaderName::from_static(name), value.clone());
        }
    }
    Ok(answer)
}
