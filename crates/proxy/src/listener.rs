//! Accepts connections, ends TLS, finds out who is at the other end and what is spoken; then the corridor, once for each request.

pub(crate) mod connection;
mod descriptors;
mod forwarded;
mod framing;
mod listen;
mod proxy_protocol;
mod stream;

pub use listen::{Addresses, Handle, Options, ServeError, serve};

use crate::corridor::worker::Worker;
use crate::http::peer::TrafficDirection;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio_rustls::TlsAcceptor;

/// One of the node's listeners, as a worker sees it.
pub(crate) struct Listener {
    /// The worker that accepts here.
    pub worker: Rc<Worker>,
    /// What comes in here.
    pub direction: TrafficDirection,
    /// TLS ends here.
    pub tls: Option<TlsAcceptor>,
    /// Where it listens.
    pub address: SocketAddr,
}
