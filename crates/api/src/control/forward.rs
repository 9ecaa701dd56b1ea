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
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

/// Marks a forwarded request, which is not forwarded again.
const FORWARDED: HeaderName = HeaderName::from_static("leno-forwarded");
/// Timeout of the leader's answer.
const LONGEST: Duration = Duration::from_secs(50);
/// Attempts while the leader shows another certificate than the store names, and the pause between
/// them.
const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(500);
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
    for attempt in 1.. {
        let leader = service.state().leader.clone();
        let Some(Leader { url, certificate: Some(certificate) }) = leader else { return response };
        let error = match timeout(LONGEST, ask(&url, certificate, &uri, authorization.clone())).await {
            Ok(Ok(answer)) => return answer,
            // A leader shows a renewed certificate a moment before the store has it.
            Ok(Err(error)) if attempt < ATTEMPTS && has_other_certificate(&error) => {
                sleep(PAUSE).await;
                continue;
            }
            Ok(Err(error)) => format!("the leader {url} cannot be asked: {error:#}"),
            Err(_) => format!("the leader {url} did not answer within {LONGEST:?}"),
        };
        return ApiError::Unavailable(error).into_response();
    }
    response
}

/// Whether the leader has shown another certificate than the store names, so that it has not
/// received the request.
fn has_other_certificate(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    matches!(error.and_then(|error| error.downcast_ref()), Some(rustls::Error::InvalidCertificate(_)))
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
