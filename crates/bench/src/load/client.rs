//! Connections that send one request after the other.

use super::{Plan, Protocol, Tls};
use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The largest response head, with the part of the body that arrives with it.
const BUFFER: usize = 16 * 1024;
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Opens connections, and has the requests ready in the form that goes over them.
pub(super) struct Connector {
    address: SocketAddr,
    protocol: Protocol,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// For HTTP/1.1.
    bytes: Vec<Vec<u8>>,
    /// For HTTP/2.
    requests: Vec<hyper::Request<Full<Bytes>>>,
}

/// A connection.
pub(super) enum Client {
    Http1(Http1),
    Http2(http2::SendRequest<Full<Bytes>>),
    /// None yet: each request opens its own.
    Fresh,
}

impl Connector {
    pub(super) fn new(plan: &Plan) -> anyhow::Result<Self> {
        let alpn: &[u8] = if plan.protocol == Protocol::Http2 { b"h2" } else { b"http/1.1" };
        let tls = plan.tls.as_ref().map(|tls| configure(tls, alpn)).transpose()?;
        let mut connector =
            Self { address: plan.address, protocol: plan.protocol, tls, bytes: Vec::new(), requests: Vec::new() };
        let none = [String::new()];
        let authorizations =
            if plan.request.authorizations.is_empty() { &none[..] } else { &plan.request.authorizations };
        let authorities = &plan.request.authorities;
        anyhow::ensure!(!authorities.is_empty(), "the plan names no authority");
        let mut contents: Vec<Bytes> = plan.request.contents.iter().cloned().map(Bytes::from).collect();
        if contents.is_empty() {
            contents.push(Bytes::from(vec![b'x'; plan.request.body]));
        }
        for index in 0..authorizations.len().max(authorities.len()).max(contents.len()) {
            let authority = &authorities[index % authorities.len()];
            let authorization = &authorizations[index % authorizations.len()];
            let content = &contents[index % contents.len()];
            match plan.protocol {
                Protocol::Http1 => connector.bytes.push(bytes(plan, authority, authorization, content, false)),
                Protocol::Fresh => connector.bytes.push(bytes(plan, authority, authorization, content, true)),
                Protocol::Http2 => connector.requests.push(request(plan, authority, authorization, content)?),
            }
        }
        Ok(connector)
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Client> {
        match self.protocol {
            Protocol::Http1 => Ok(Client::Http1(Http1::new(self.open().await?))),
            Protocol::Fresh => Ok(Client::Fresh),
            Protocol::Http2 => {
                let stream = TokioIo::new(self.open().await?);
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(async move { drop(connection.await) });
                Ok(Client::Http2(sender))
            }
        }
    }

    async fn open(&self) -> anyhow::Result<Box<dyn Socket>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => Ok(Box::new(connector.connect(name.clone(), stream).await?)),
        }
    }
}

impl Client {
    /// Another stream of the same connection.
    pub(super) fn share(&self) -> Option<Self> {
        match self {
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
            Self::Http1(_) | Self::Fresh => None,
        }
    }

    /// Sends the request of this index (there are a few, taken in turn), reads the response to its
    /// end, returns its status.
    pub(super) async fn exchange(&mut self, connector: &Connector, index: usize) -> anyhow::Result<u16> {
        match self {
            Self::Http1(connection) => connection.exchange(&connector.bytes[index % connector.bytes.len()]).await,
            Self::Fresh => {
                let mut connection = Http1::new(connector.open().await?);
                connection.exchange(&connector.bytes[index % connector.bytes.len()]).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                let request = connector.requests[index % connector.requests.len()].clone();
                let response = sender.send_request(request).await?;
                let status = response.status().as_u16();
                let mut body = response.into_body();
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                Ok(status)
            }
        }
    }
}

/// A connection that speaks HTTP/1.1.
pub(super) struct Http1 {
    stream: Box<dyn Socket>,
    buffer: Vec<u8>,
}

impl Http1 {
    fn new(stream: Box<dyn Socket>) -> Self {
        Self { stream, buffer: vec![0; BUFFER] }
    }

    async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<u16> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let mut filled = 0;
        loop {
            match self.stream.read(&mut self.buffer[filled..]).await? {
                0 => bail!("the connection was closed instead of an answer"),
                count => filled += count,
            }
            let Some(mut head) = parse(&self.buffer[..filled])? else { continue };
            match head.length {
                Some(length) => {
                    let mut missing = (head.bytes + length).saturating_sub(filled);
                    while missing > 0 {
                        let part = missing.min(BUFFER);
                        missing -= self.stream.read_exact(&mut self.buffer[..part]).await?;
                    }
                }
                // No pipelined response follows, so the body ends where the received bytes end with
                // the last chunk.
                None => {
                    while !self.buffer[head.bytes..filled].ends_with(LAST_CHUNK) {
                        if filled == BUFFER {
                            // The head has been read, and of a body only its end matters.
                            self.buffer.copy_within(BUFFER - LAST_CHUNK.len().., 0);
                            (filled, head.bytes) = (LAST_CHUNK.len(), 0);
                        }
                        match self.stream.read(&mut self.buffer[filled..]).await? {
                            0 => bail!("the connection was closed within a body"),
                            count => filled += count,
                        }
                    }
                }
            }
            return Ok(head.status);
        }
    }
}

/// What matters of a response's head.
pub(crate) struct Head {
    pub status: u16,
    /// Its own length.
    pub bytes: usize,
    /// The body's; `None`: chunked.
    pub length: Option<usize>,
}

/// `None`: it is not complete.
pub(crate) fn parse(bytes: &[u8]) -> anyhow::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes)? else { return Ok(None) };
    let field = |name: &str| response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    let length_of_body = match (field("transfer-encoding"), field("content-length")) {
        (Some(_), _) => None,
        (None, Some(header)) => Some(std::str::from_utf8(header.value)?.parse()?),
        (None, None) => Some(0),
    };
    Ok(Some(Head {
        status: response.code.context("a response without status")?,
        bytes: length,
        length: length_of_body,
    }))
}

fn bytes(plan: &Plan, authority: &str, authorization: &str, content: &[u8], close: bool) -> Vec<u8> {
    let request = &plan.request;
    let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", request.method, request.target, authority);
    let mut field = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = write!(head, "{name}: {value}\r\n");
    };
    for (name, value) in &request.headers {
        field(name, value);
    }
    if !authorization.is_empty() {
        field("authorization", authorization);
    }
    if !content.is_empty() {
        field("content-length", &content.len().to_string());
    }
    if close {
        field("connection", "close");
    }
    [(head + "\r\n").as_bytes(), content].concat()
}

fn request(
    plan: &Plan,
    authority: &str,
    authorization: &str,
    content: &Bytes,
) -> anyhow::Result<hyper::Request<Full<Bytes>>> {
    let request = &plan.request;
    let scheme = if plan.tls.is_some() { "https" } else { "http" };
    let uri = match request.target.starts_with('/') {
        true => format!("{scheme}://{authority}{}", request.target),
        false => request.target.clone(),
    };
    let mut builder = hyper::Request::builder().method(request.method.as_str()).uri(uri);
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    if !authorization.is_empty() {
        builder = builder.header("authorization", authorization);
    }
    Ok(builder.body(Full::new(content.clone()))?)
}

/// A client's TLS configuration without resumption, and the expected server name.
pub(crate) fn configure(tls: &Tls, alpn: &[u8]) -> anyhow::Result<(TlsConnector, ServerName<'static>)> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&tls.ca)? {
        roots.add(certificate?)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    // Resumption would hide the cost of new connections.
    config.resumption = Resumption::disabled();
    Ok((TlsConnector::from(Arc::new(config)), ServerName::try_from(tls.server_name.clone())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_chunked_body_larger_than_the_buffer_is_read_to_its_end() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let chunk = format!("{:x}\r\n{}\r\n", 3 * BUFFER, "x".repeat(3 * BUFFER));
        let answer = format!("HTTP/1.1 422 No\r\ntransfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n");
        let mut client = Http1::new(Box::new(stream));
        // The second answer is found only after all of the first.
        for _ in 0..2 {
            let (status, written) = tokio::join!(client.exchange(b"request"), server.write_all(answer.as_bytes()));
            written.unwrap();
            assert_eq!(status.unwrap(), 422);
        }
    }
}
