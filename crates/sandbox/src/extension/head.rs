//! The inputs of a run: a request's head, a response's head, and the runtime's knowledge about
//! them. All of it is data.

use super::headers::Headers;
use super::shared::SharedData;
use std::net::SocketAddr;
use std::sync::Arc;

/// On which side of a function a request was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It is going to the function.
    Inbound,
    /// The function sent it.
    Outbound,
}

/// A request, as its module sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Such as `GET`.
    pub method: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The host, with the port if given.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Such as `HTTP/1.1` or `HTTP/2`.
    pub protocol: &'static str,
    /// The header fields, without pseudo-header fields.
    pub fields: Headers,
    /// No body follows.
    pub bodiless: bool,
    /// The ID of the request, the same on all its hops.
    pub id: String,
    /// The address of the peer that opened the connection.
    pub source: SocketAddr,
    /// The requested port.
    pub port: u16,
    /// The SPIFFE ID that the runtime established for the caller.
    pub identity: Option<Arc<str>>,
    /// `namespace/name` of the function that receives the request.
    pub target: Arc<str>,
}

/// A response, as its module sees it.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// The header fields, without pseudo-header fields.
    pub fields: Headers,
    /// No body follows.
    pub bodiless: bool,
}

/// The other inputs of a run.
#[derive(Clone, Debug)]
pub struct RunInputs {
    /// The time, which stands still: milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The seed of the module's random numbers.
    pub random: u64,
    /// The function's shared data.
    pub shared: Arc<SharedData>,
}

impl Request {
    /// The request as one list, pseudo-header fields first.
    pub(super) fn list(&self) -> Headers {
        let pseudo = [
            (":authority", self.authority.as_bytes()),
            (":path", self.path.as_bytes()),
            (":method", self.method.as_bytes()),
            (":scheme", self.scheme.as_bytes()),
        ];
        let pseudo = pseudo.into_iter().map(|(name, value)| (name.as_bytes(), value));
        pseudo.chain(self.fields.iter()).collect()
    }

    /// A property by its path (the attributes of Envoy's documentation), in the ABI's encoding:
    /// text as it is, numbers and times (nanoseconds) as 64 bits, a boolean as one byte.
    pub(super) fn property(&self, path: &[&[u8]], now_ms: u64) -> Option<Vec<u8>> {
        let text = |text: &str| Some(text.as_bytes().to_vec());
        let number = |number: u64| Some(number.to_le_bytes().to_vec());
        let header = |name: &str| Some(self.fields.joined(name.as_bytes()).unwrap_or_default());
        let (url_path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        match path {
            [b"request", b"method"] => text(&self.method),
            [b"request", b"path"] => text(&self.path),
            [b"request", b"url_path"] => text(url_path),
            [b"request", b"query"] => text(query),
            [b"request", b"host"] => text(&self.authority),
            [b"request", b"scheme"] => text(self.scheme),
            [b"request", b"protocol"] => text(self.protocol),
            [b"request", b"id"] => text(&self.id),
            [b"request", b"time"] => number(now_ms.saturating_mul(1_000_000)),
            [b"request", b"referer"] => header("referer"),
            [b"request", b"useragent"] => header("user-agent"),
            [b"request", b"headers"] => Some(self.list().encode()),
            [b"request", b"headers", name] => self.list().joined(name),
            [b"request", b"size"] => {
                let length = self.fields.joined(b"content-length")?;
                number(std::str::from_utf8(&length).ok()?.parse().ok()?)
            }
            [b"source", b"address"] => text(&self.source.to_string()),
            [b"source", b"port"] => number(self.source.port().into()),
            [b"destination", b"port"] => number(self.port.into()),
            [b"connection", b"mtls"] => Some(vec![u8::from(self.identity.is_some())]),
            [b"connection", b"uri_san_peer_certificate"] => text(self.identity.as_deref()?),
            [b"cluster_name"] => text(&self.target),
            _ => None,
        }
    }
}

impl Response {
    /// The response as one list, its status first.
    pub(super) fn list(&self) -> Headers {
        let status = self.status.to_string();
        std::iter::once((&b":status"[..], status.as_bytes())).chain(self.fields.iter()).collect()
    }

    /// As [`Request::property`].
    pub(super) fn property(&self, path: &[&[u8]]) -> Option<Vec<u8>> {
        match path {
            [b"response", b"code"] => Some(u64::from(self.status).to_le_bytes().to_vec()),
            [b"response", b"headers"] => Some(self.list().encode()),
            [b"response", b"headers", name] => self.list().joined(name),
            _ => None,
        }
    }
}
