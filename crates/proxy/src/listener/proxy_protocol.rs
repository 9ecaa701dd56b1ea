//! Finds the client's address where a load balancer speaks the PROXY protocol to the gateway.

use super::Listener;
use leno_http::forwarded::is_trusted;
use leno_http::peer::TrafficDirection;
use leno_http::proxy_header::{self, Header, ProxyHeaderError};
use leno_model::TrustedProxies;
use std::io;
use std::net::SocketAddr;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Why a connection is closed before any byte of the client is read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrustedProxyError {
    /// The peer is not a trusted proxy. Otherwise any peer could claim any client address.
    #[error("its other end is none of the trusted proxies")]
    Untrusted,
    /// The PROXY header is missing or malformed.
    #[error(transparent)]
    Malformed(#[from] ProxyHeaderError),
    /// The connection ended within the header.
    #[error("the PROXY header broke off")]
    BrokenOff,
    /// The header did not arrive within the head timeout.
    #[error("the PROXY header did not come in time")]
    Late,
    /// The connection ended before its first byte, or failed.
    #[error("it was closed")]
    Closed,
}

impl TrustedProxyError {
    /// Label for metrics. `None`: the connection was closed unused, which is not counted.
    pub(super) fn label(&self) -> Option<&'static str> {
        match self {
            Self::Untrusted => Some("untrusted"),
            Self::Malformed(ProxyHeaderError::Missing) => Some("missing"),
            Self::Malformed(ProxyHeaderError::Wrong(_)) | Self::BrokenOff => Some("malformed"),
            Self::Late => Some("late"),
            Self::Closed => None,
        }
    }
}

impl From<io::Error> for TrustedProxyError {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// The client's address: the one in the PROXY header if the gateway expects a header, else the
/// peer's. IPv4-mapped addresses become IPv4 addresses.
pub(super) async fn client(
    listener: &Listener,
    stream: &mut TcpStream,
    peer: SocketAddr,
) -> Result<SocketAddr, TrustedProxyError> {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let peer = canonical(peer);
    let limit = {
        let mesh = &listener.worker.snapshot().mesh;
        if listener.direction != TrafficDirection::Gateway || !mesh.proxy_protocol {
            return Ok(peer);
        }
        match &mesh.trusted_proxies {
            TrustedProxies::Addresses(trusted) if is_trusted(trusted, peer.ip()) => {}
            _ => return Err(TrustedProxyError::Untrusted),
        }
        mesh.limits.head_timeout
    };
    let source = tokio::time::timeout(limit, read(stream)).await.map_err(|_| TrustedProxyError::Late)??;
    Ok(source.map_or(peer, canonical))
}

/// Reads the header, and no byte beyond it. `None`: the header names no client, so the proxy is the
/// client.
async fn read(stream: &mut TcpStream) -> Result<Option<SocketAddr>, TrustedProxyError> {
    let mut header = Vec::new();
    let mut scratch = [0; 256];
    loop {
        let count = stream.peek(&mut scratch).await?;
        if count == 0 {
            return Err(if header.is_empty() { TrustedProxyError::Closed } else { TrustedProxyError::BrokenOff });
        }
        let before = header.len();
        header.extend_from_slice(&scratch[..count]);
        let parsed = proxy_header::parse(&header)?;
        // Take only the header off the socket. The bytes after it are the client's.
        let taken = match parsed {
            Header::Incomplete => count,
            Header::Complete { length, .. } => length.saturating_sub(before),
        };
        stream.read_exact(&mut scratch[..taken]).await?;
        if let Header::Complete { source, .. } = parsed {
            return Ok(source);
        }
    }
}
