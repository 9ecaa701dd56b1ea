//! Who the client is where a load balancer speaks the PROXY protocol to the gateway.

mod header;

use super::Listener;
use crate::http::peer::TrafficDirection;
use crate::listener::forwarded::is_trusted_proxy;
use header::{Header, Malformed};
use std::io;
use std::net::SocketAddr;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Why a connection is closed before anything is read from it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// Anybody could say that he is somebody else.
    #[error("its other end is none of the trusted proxies")]
    Untrusted,
    /// It has no header, or a wrong one.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It ended within the header.
    #[error("the PROXY header broke off")]
    BrokenOff,
    /// The header took too long.
    #[error("the PROXY header did not come in time")]
    Late,
    /// It ended before it said anything, or failed.
    #[error("it was closed")]
    Closed,
}

impl Refused {
    /// For metrics; `None`: a connection like any other that was closed unused.
    pub(super) fn label(&self) -> Option<&'static str> {
        match self {
            Self::Untrusted => Some("untrusted"),
            Self::Malformed(Malformed::Missing) => Some("missing"),
            Self::Malformed(Malformed::Wrong(_)) | Self::BrokenOff => Some("malformed"),
            Self::Late => Some("late"),
            Self::Closed => None,
        }
    }
}

impl From<io::Error> for Refused {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// Who is at the other end of a connection, as the header says where the gateway wants one. IPv4-mapped addresses are IPv4 addresses.
pub(super) async fn client(
    listener: &Listener,
    stream: &mut TcpStream,
    peer: SocketAddr,
) -> Result<SocketAddr, Refused> {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let peer = canonical(peer);
    let limit = {
        let mesh = &listener.worker.snapshot().mesh;
        if listener.direction != TrafficDirection::Gateway || !mesh.proxy_protocol {
            return Ok(peer);
        }
        if !is_trusted_proxy(&mesh.trusted_proxies, peer.ip()) {
            return Err(Refused::Untrusted);
        }
        mesh.limits.head_timeout
    };
    let source = tokio::time::timeout(limit, read(stream)).await.map_err(|_| Refused::Late)??;
    Ok(source.map_or(peer, canonical))
}

/// Reads the header, and no byte more. `None`: it names no client, so the proxy is the client.
async fn read(stream: &mut TcpStream) -> Result<Option<SocketAddr>, Refused> {
    let mut header = Vec::new();
    let mut scratch = [0; 256];
    loop {
        let count = stream.peek(&mut scratch).await?;
        if count == 0 {
            return Err(if header.is_empty() { Refused::Closed } else { Refused::BrokenOff });
        }
        let before = header.len();
        header.extend_from_slice(&scratch[..count]);
        let parsed = header::parse(&header)?;
        // What belongs to the header is taken off the socket; what follows it is the client's.
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
