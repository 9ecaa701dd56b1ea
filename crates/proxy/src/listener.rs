//! Accepts connections, terminates TLS, identifies the peer and detects the protocol. Then runs the corridor once per request.

pub(crate) mod connection;
mod descriptors;
mod forwarded;
mod framing;
mod intercept;
mod listen;
mod names;
mod proxy_protocol;
mod stream;

pub use intercept::Interceptor;
pub use listen::{Addresses, Handle, Options, ServeError, serve, take_over};

use crate::corridor::worker::Worker;
use crate::http::peer::TrafficDirection;
use crate::state::credential::Caller;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// One of the node's listeners, as one worker sees it.
pub(crate) struct Listener {
    pub worker: Rc<Worker>,
    pub direction: TrafficDirection,
    /// Who calls here; `None`: that is to be found out.
    pub caller: Option<Arc<Caller>>,
    /// Terminates TLS; `None`: the listener takes plain text.
    pub tls: Option<TlsAcceptor>,
    pub address: SocketAddr,
}
