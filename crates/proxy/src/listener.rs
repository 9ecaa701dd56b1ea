//! Accepts connections, terminates TLS, identifies the peer and detects the protocol. Then runs the
//! pipeline once per request.

mod certificates;
pub(crate) mod connection;
mod descriptors;
mod http2;
mod intercept;
mod listen;
pub(crate) mod names;
mod pods;
mod ports;
mod proxy_protocol;
mod refusal;
mod refused_streams;
mod stream;
mod tunnels;

pub use intercept::Interceptor;
pub use listen::{Addresses, Handle, Options, ServeError, serve, take_over};
pub use pods::PodListeners;
pub use ports::{GatewayPorts, PortError};

use crate::pipeline::worker::Worker;
use crate::state::admission::AdmissionError;
use crate::state::credential::Caller;
use crate::state::pods::ServedPod;
use crate::state::routes::gateway::PortProtocol;
use leno_http::peer::TrafficDirection;
use leno_namespaces::Namespace;
use leno_telemetry::flows::Refusal;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// One of the node's listeners, as one worker sees it.
pub(crate) struct Listener {
    pub worker: Rc<Worker>,
    pub direction: TrafficDirection,
    /// The instance that calls here; `None`: each connection or request identifies its caller.
    pub caller: Option<Arc<Caller>>,
    /// The pod whose connections arrive here; `None`: it is none of a pod.
    pub pod: Option<Arc<ServedPod>>,
    /// The namespace that connections count for; `None`: it is not known in advance.
    pub share: Option<Arc<Namespace>>,
    /// Terminates TLS; `None`: the listener takes plain text.
    pub tls: Option<TlsAcceptor>,
    pub address: SocketAddr,
    /// The protocol of the port, if a Gateway document has opened it: only its routes are served.
    pub opened: Option<PortProtocol>,
    /// The port was closed. Its connections end after their current exchange.
    pub closed: Rc<Cell<bool>>,
}

impl Listener {
    /// Reports a connection of the jail that was closed because of a bound.
    fn refuse(&self, refused: AdmissionError) {
        let Some(caller) = &self.caller else { return };
        self.worker.node.telemetry.connection_flows.push(Refusal {
            kind: "connection",
            instance: (&*caller.instance).into(),
            during: Some(caller.handled()),
            rule: Box::default(),
            what: "connect".into(),
            host: self.address.to_string().into(),
            reason: refused.reason(),
        });
    }
}
