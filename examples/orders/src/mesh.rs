//! Calls to other functions, by name. In a jail no more is needed: the node answers, and identifies
//! the caller by its jail. In a pod, the Service of that name answers.
//!
//! Where the node cannot make jails (`isolation: process`), calls go through the proxy that
//! `HTTP_PROXY` names, with the credentials in it. The node gives them to this instance only, and
//! identifies the caller by them.

use crate::inventory::inventory_client::InventoryClient;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body of a response.
const LARGEST_BODY: usize = 1024 * 1024;

/// A client for the other functions.
#[derive(Clone, Debug)]
pub struct Mesh {
    /// `None`: this is a jail or a pod, whose network leads to other functions by name.
    proxy: Option<Proxy>,
}

/// A proxy, and the credentials for it.
#[derive(Clone, Debug)]
struct Proxy {
    /// `host:port`.
    address: String,
    authorization: HeaderValue,
}

/// `HTTP_PROXY` is not `http://user:secret@host:port`. The message does not contain its value,
/// which may hold a secret.
#[derive(Debug, thiserror::Error)]
#[error("HTTP_PROXY is not of the form http://user:secret@host:port")]
pub struct BadProxy;

/// Why a call got no response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection was refused.
    #[error("no connection: {0}")]
    Connection(#[from] std::io::Error),
    /// The connection broke.
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
    /// The body of the response broke off or is too large.
    #[error("no whole answer: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// It took too long.
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
}

impl Mesh {
    /// Uses the proxy in `HTTP_PROXY` or `http_proxy`, if there is one.
    pub fn from_env() -> Result<Self, BadProxy> {
        let proxy = std::env::var("HTTP_PROXY").or_else(|_| std::env::var("http_proxy")).ok();
        Ok(Self { proxy: proxy.map(|proxy| Proxy::parse(&proxy)).transpose()? })
    }

    /// Sends a request; its address is `http://name-of-the-function/path`.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, CallError> {
        tokio::time::timeout(TIMEOUT, self.exchange(request)).await.map_err(|_| CallError::Timeout)?
    }

    /// Opens a connection for each request, which is fast enough here and avoids stale connections.
    async fn exchange(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>, CallError> {
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        if let Ok(host) = HeaderValue::from_str(&host) {
            request.headers_mut().insert(HOST, host);
        }
        let stream = match &self.proxy {
            None => TcpStream::connect((host, 80)).await?,
            Some(proxy) => {
                request.headers_mut().insert(PROXY_AUTHORIZATION, proxy.authorization.clone());
                TcpStream::connect(&proxy.address).await?
            }
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        // The request keeps its whole address (RFC 9112, 3.2.2): proxies require that form, and
        // every server understands it.
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(CallError::Body)?.to_bytes();
        connection.abort();
        Ok(Response::from_parts(head, body))
    }

    /// A gRPC client for `inventory-service`: HTTP/2 without TLS. A proxy routes by the authority.
    pub fn inventory(&self) -> Result<Inventory, tonic::transport::Error> {
        const INVENTORY: &str = "http://inventory-service";
        let address = self.proxy.as_ref().map(|proxy| format!("http://{}", proxy.address));
        let channel = Endpoint::from_shared(address.unwrap_or_else(|| INVENTORY.to_owned()))?
            .origin(Uri::from_static(INVENTORY))
            .timeout(TIMEOUT)
            .connect_lazy();
        let authorization = self.proxy.as_ref().and_then(|proxy| proxy.authorization.as_bytes().try_into().ok());
        Ok(InventoryClient::with_interceptor(channel, Credentials { authorization }))
    }
}

impl Proxy {
    fn parse(text: &str) -> Result<Self, BadProxy> {
        let uri: Uri = text.parse().map_err(|_| BadProxy)?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or(BadProxy)?;
        let (credentials, address) = authority.as_str().rsplit_once('@').ok_or(BadProxy)?;
        if authority.port().is_none() || !credentials.contains(':') {
            return Err(BadProxy);
        }
        let basic = format!("Basic {}", BASE64_STANDARD.encode(credentials));
        let mut authorization = HeaderValue::from_str(&basic).map_err(|_| BadProxy)?;
        authorization.set_sensitive(true);
        Ok(Self { address: address.to_owned(), authorization })
    }
}

/// The inventory, through the mesh.
pub type Inventory = InventoryClient<InterceptedService<Channel, Credentials>>;

/// Adds this instance's credentials to each call.
#[derive(Clone)]
pub struct Credentials {
    authorization: Option<MetadataValue<Ascii>>,
}

impl tonic::service::Interceptor for Credentials {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("proxy-authorization", authorization.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read() {
        let proxy = Proxy::parse("http://orders:s3cret@127.0.0.1:15001").unwrap();
        assert_eq!(proxy.address, "127.0.0.1:15001");
        assert_eq!(proxy.authorization, "Basic b3JkZXJzOnMzY3JldA==");
        assert!(!format!("{proxy:?}").contains("b3Jk"), "credentials do not belong in logs");
    }

    #[test]
    fn other_proxies_are_refused() {
        let proxies = [
            "",
            "127.0.0.1:1",
            "http://127.0.0.1:1",
            "http://user@127.0.0.1:1",
            "http://a:b@host",
            "https://a:b@host:1",
        ];
        for proxy in proxies {
            assert!(Proxy::parse(proxy).is_err(), "{proxy}");
        }
    }
}
