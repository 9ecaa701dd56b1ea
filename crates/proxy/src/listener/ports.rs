//! Ports that Gateway documents open while the node runs, in addition to the sockets of the Mesh
//! document.

use super::certificates::PortCertificates;
use super::listen::{BoundListener, listen};
use crate::state::node::Node;
use crate::state::routes::gateway::PortProtocol;
use crate::state::snapshot::NodeSnapshot;
use leno_http::peer::TrafficDirection;
use leno_identity::TlsError;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Opens and closes ports of Gateway documents. Cheap to clone.
#[derive(Clone)]
pub struct GatewayPorts(Arc<Inner>);

struct Inner {
    node: Arc<Node>,
    workers: Vec<mpsc::UnboundedSender<PortChange>>,
    /// The sockets of the Mesh document's gateway.
    fixed: Vec<SocketAddr>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<SocketAddr, OpenPort>,
    /// Sockets of the parent of a hot restart that no listener has yet.
    inherited: Vec<TcpListener>,
    /// The node accepts no connections any more.
    ended: bool,
}

struct OpenPort {
    socket: TcpListener,
    protocol: PortProtocol,
}

/// A change that each worker carries out.
pub(super) enum PortChange {
    Open(BoundListener),
    /// Its connections end after their current exchange.
    Close(SocketAddr),
}

/// Why a port is not open.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The system does not open it.
    #[error(transparent)]
    Bind(#[from] io::Error),
    /// The TLS library refuses the configuration.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The parent process of a hot restart still serves.
    #[error("the process before this one still serves")]
    NotYet,
}

impl GatewayPorts {
    pub(super) fn new(
        node: &Arc<Node>,
        workers: Vec<mpsc::UnboundedSender<PortChange>>,
        fixed: Vec<SocketAddr>,
        inherited: Vec<TcpListener>,
    ) -> Self {
        let state = Mutex::new(State { inherited, ..State::default() });
        Self(Arc::new(Inner { node: node.clone(), workers, fixed, state }))
    }

    /// Opens the ports of the snapshot's listeners, and closes all others. Without `may_bind`, only
    /// sockets of the parent process are used. Returns the ports that are not open, each with the
    /// reason.
    pub fn set(&self, snapshot: &NodeSnapshot, may_bind: bool) -> Vec<(u16, PortError)> {
        let mut state = self.state();
        if state.ended {
            return Vec::new();
        }
        let permitted = snapshot.gateway_routes.ports().filter(|(port, _)| snapshot.mesh.may_open(*port));
        let ip = snapshot.mesh.gateway_ip();
        let wanted: BTreeMap<SocketAddr, PortProtocol> = permitted
            .filter_map(|(port, protocol)| Some((SocketAddr::new(ip?, port), protocol)))
            .filter(|(address, _)| !self.0.fixed.iter().any(|fixed| fixed.port() == address.port()))
            .collect();
        let closed: Vec<SocketAddr> =
            state.open.keys().filter(|address| !wanted.contains_key(address)).copied().collect();
        for address in closed {
            state.open.remove(&address);
            self.close(address);
            tracing::info!(%address, "a port of Gateway documents is closed");
        }
        let mut faults = Vec::new();
        for (address, protocol) in wanted {
            if let Err(error) = self.open(&mut state, address, protocol, may_bind) {
                faults.push((address.port(), error));
            }
        }
        let all = self.0.fixed.iter().chain(state.open.keys()).copied();
        self.0.node.machines.set_gateway(all);
        faults
    }

    fn open(
        &self,
        state: &mut State,
        address: SocketAddr,
        protocol: PortProtocol,
        may_bind: bool,
    ) -> Result<(), PortError> {
        if state.open.get(&address).is_some_and(|open| open.protocol == protocol) {
            return Ok(());
        }
        let tls = match protocol {
            PortProtocol::Http => None,
            PortProtocol::Https | PortProtocol::Stream => {
                let node = self.0.node.clone();
                let certificates = PortCertificates { node, port: address.port(), opened: true };
                let mut config = leno_identity::gateway_server_config(Arc::new(certificates))?;
                if protocol == PortProtocol::Stream {
                    // The client and the back end agree on the protocol.
                    Arc::make_mut(&mut config).alpn_protocols.clear();
                }
                Some(config)
            }
        };
        let socket = match state.open.remove(&address) {
            Some(OpenPort { socket, .. }) => {
                self.close(address);
                socket
            }
            None => {
                let is_there = |socket: &TcpListener| socket.local_addr().is_ok_and(|bound| bound == address);
                match state.inherited.iter().position(is_there) {
                    Some(index) => state.inherited.swap_remove(index),
                    None if may_bind => listen(address)?,
                    None => return Err(PortError::NotYet),
                }
            }
        };
        let bound = || {
            let direction = TrafficDirection::Gateway;
            Ok(BoundListener {
                socket: socket.try_clone()?,
                address,
                direction,
                tls: tls.clone(),
                opened: Some(protocol),
            })
        };
        // All are made before any is sent: without enough descriptors, no worker listens, rather than some.
        let all: Vec<BoundListener> = self.0.workers.iter().map(|_| bound()).collect::<io::Result<_>>()?;
        for (worker, bound) in self.0.workers.iter().zip(all) {
            // A worker that has ended accepts nothing.
            let _ = worker.send(PortChange::Open(bound));
        }
        state.open.insert(address, OpenPort { socket, protocol });
        tracing::info!(%address, ?protocol, "a port of Gateway documents is open");
        Ok(())
    }

    /// Has the workers close a port.
    fn close(&self, address: SocketAddr) {
        for worker in &self.0.workers {
            let _ = worker.send(PortChange::Close(address));
        }
    }

    /// The sockets, for the child of a hot restart.
    pub(super) fn sockets(&self) -> io::Result<Vec<TcpListener>> {
        self.state().open.values().map(|open| open.socket.try_clone()).collect()
    }

    /// Closes the parent's sockets that no listener has.
    pub(super) fn drop_inherited(&self) {
        self.state().inherited.clear();
    }

    /// Closes all sockets of this process. No port is opened any more.
    pub(super) fn end(&self) {
        *self.state() = State { ended: true, ..State::default() };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
