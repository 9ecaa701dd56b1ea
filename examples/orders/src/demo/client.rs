//! A plain HTTP/1.1 client: one connection, one request.

use crate::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::error::Elapsed;

/// The first requests take longest, because they start programs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The request ID, for `leno explain`.
    pub(crate) fn request_id(&self) -> &str {
        self.header("x-request-id").unwrap_or_default()
    }
}

/// Sends a request and reads the whole response.
pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<Answer> {
    let what = format!("{} {} at {address}", request.method(), request.uri());
    let exchanging = async { exchange(TcpStream::connect(address).await?, request).await };
    told(&what, tokio::time::timeout(TIMEOUT, exchanging).await)
}

/// The same, to a Unix socket.
pub(crate) async fn send_to(socket: &Path, request: Request<Full<Bytes>>) -> Result<Answer> {
    let what = format!("{} {} at {}", request.method(), request.uri(), socket.display());
    let exchanging = async { exchange(UnixStream::connect(socket).await?, request).await };
    told(&what, tokio::time::timeout(TIMEOUT, exchanging).await)
}

fn told(what: &str, answer: std::result::Result<Result<Answer>, Elapsed>) -> Result<Answer> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("{what}: {error}").into()),
        Err(_) => Err(format!("{what}: no answer within {TIMEOUT:?}").into()),
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Answer> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
    connection.abort();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
}
