//! Requests of the cases: straight to the gateway, or by a function that calls another.

use super::mesh::Running;
use super::table::Protocol;
use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A request of a case.
pub(crate) struct SentRequest<'a> {
    pub method: &'a str,
    pub host: &'a str,
    /// Path and query.
    pub path: &'a str,
    pub headers: Vec<(String, String)>,
    pub protocol: Protocol,
    /// Whether it goes through TLS, in a separate connection.
    pub tls: bool,
}

impl<'a> SentRequest<'a> {
    /// A request over HTTP/1.1 without header fields.
    pub(crate) fn plain(method: &'a str, host: &'a str, path: &'a str) -> Self {
        Self { method, host, path, headers: Vec::new(), protocol: Protocol::Http1, tls: false }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    /// Header fields, and the trailers.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The description of the request by the function that answered.
    pub(crate) fn description(&self) -> Option<Value> {
        let json = self.body.iter().position(|byte| *byte == b'{')?;
        let value: Value = serde_json::from_slice(&self.body[json..]).ok()?;
        value["environment"].is_object().then_some(value)
    }
}

/// Connections to a gateway, one for each protocol.
pub(crate) struct Client {
    gateway: SocketAddr,
    /// The address for TLS, and the certificate of its authority.
    https: Option<(SocketAddr, String)>,
    http1: Option<http1::SendRequest<Full<Bytes>>>,
    http2: Option<http2::SendRequest<Full<Bytes>>>,
}

fn fields(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    headers.iter().map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
}

async fn http1_over<S>(stream: TokioIo<S>) -> hyper::Result<http1::SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn http2_over<S>(stream: TokioIo<S>) -> hyper::Result<http2::SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
    tokio::spawn(connection);
    Ok(sender)
}

impl Client {
    pub(crate) fn new(running: &Running) -> Self {
        Self { gateway: running.gateway, https: running.https.clone(), http1: None, http2: None }
    }

    async fn connect(&self) -> anyhow::Result<TokioIo<TcpStream>> {
        Ok(TokioIo::new(TcpStream::connect(self.gateway).await?))
    }

    async fn connect_tls(&self, sent: &SentRequest<'_>) -> anyhow::Result<TokioIo<TlsStream<TcpStream>>> {
        let (address, authority) = self.https.as_ref().context("a gateway with TLS")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols =
            vec![if sent.protocol == Protocol::Http1 { b"http/1.1".to_vec() } else { b"h2".to_vec() }];
        let name = ServerName::try_from(sent.host.to_owned())?;
        let stream = TcpStream::connect(address).await?;
        Ok(TokioIo::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
    }

    /// Sends a request to the gateway.
    pub(crate) async fn send(&mut self, sent: &SentRequest<'_>, body: &[u8]) -> anyhow::Result<Reply> {
        let mut request = Request::builder().method(sent.method);
        for (name, value) in &sent.headers {
            request = request.header(name, value);
        }
        if sent.protocol == Protocol::Grpc {
            request = request.header("content-type", "application/grpc").header("te", "trailers");
        }
        let body = Full::new(Bytes::copy_from_slice(body));
        let response = if sent.protocol == Protocol::Http1 {
            let mut sender = match self.http1.take().filter(|sender| !sender.is_closed() && !sent.tls) {
                Some(sender) => sender,
                None if sent.tls => http1_over(self.connect_tls(sent).await?).await?,
                None => http1_over(self.connect().await?).await?,
            };
            sender.ready().await?;
            let response = sender.send_request(request.uri(sent.path).header("host", sent.host).body(body)?).await?;
            self.http1 = (!sent.tls).then_some(sender);
            response
        } else {
            let mut sender = match self.http2.take().filter(|sender| !sender.is_closed() && !sent.tls) {
                Some(sender) => sender,
                None if sent.tls => http2_over(self.connect_tls(sent).await?).await?,
                None => http2_over(self.connect().await?).await?,
            };
            sender.ready().await?;
            let scheme = if sent.tls { "https" } else { "http" };
            let uri = format!("{scheme}://{}{}", sent.host, sent.path);
            let response = sender.send_request(request.uri(uri).body(body)?).await?;
            self.http2 = (!sent.tls).then_some(sender);
            response
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().into_iter().flat_map(fields);
        let headers = fields(&head.headers).chain(trailers).collect();
        Ok(Reply { status: head.status.as_u16(), headers, body: body.to_bytes().into() })
    }

    /// Has the function at this host of the gateway send the request.
    pub(crate) async fn call(&mut self, caller: &str, sent: &SentRequest<'_>) -> anyhow::Result<Reply> {
        let mut headers = sent.headers.clone();
        if sent.protocol == Protocol::Grpc {
            let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
            headers.extend(grpc.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        let call = json!({
            "method": sent.method, "host": sent.host, "path": sent.path, "headers": headers,
            "http2": sent.protocol != Protocol::Http1,
        });
        let order = SentRequest::plain("POST", caller, "/exchange");
        let answer = self.send(&order, call.to_string().as_bytes()).await?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        anyhow::ensure!(answer.status == 200, "the caller answers {}: {body}", answer.status);
        let reply: Value = serde_json::from_str(&body)?;
        let status = reply["status"].as_u64().ok_or_else(|| anyhow::anyhow!("{body}"))?;
        let headers: Vec<(String, String)> = serde_json::from_value(reply["headers"].clone())?;
        let body: Vec<u8> = serde_json::from_value(reply["body"].clone())?;
        Ok(Reply { status: u16::try_from(status)?, headers, body })
    }

    /// The requests of a case that a function has seen.
    pub(crate) async fn seen(&mut self, function: &str, case: &str) -> anyhow::Result<Vec<Value>> {
        let (host, path) = (format!("{function}.backend"), format!("/seen/{case}"));
        let reply = self.send(&SentRequest::plain("GET", &host, &path), &[]).await?;
        anyhow::ensure!(reply.status == 200, "{function} answers {}", reply.status);
        Ok(serde_json::from_slice(&reply.body)?)
    }
}
