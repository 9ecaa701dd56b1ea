//! The callee's side of a TCP connection from another node: judge, connect to an instance or an
//! external service, and copy bytes.

use super::framed::FramedStream;
use super::{
    CountingReader, Proof, ResetUnlessDone, Stop, check_instance, copy_both, count, egress, judge_inbound,
    take_connection, take_instance,
};
use crate::pipeline::worker::Worker;
use crate::state::certificate::PeerCertificate;
use crate::state::egress::EgressTarget;
use crate::state::function::FunctionEntry;
use crate::state::health::ConnectionGuard;
use crate::state::instances::Lease;
use http::{StatusCode, request};
use leno_http::hop;
use leno_http::http2::Upgrading;
use leno_http::peer::Peer;
use leno_model::FunctionId;
use leno_model::{Port, PortProtocol};
use leno_namespaces::Permit;
use leno_policy::host::of_authority;
use leno_runtime::schedule;
use leno_telemetry::flows::{Connection, ConnectionFailure};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::net::TcpStream;

/// A connection from a function on another node to a port of a function on this one.
pub(crate) struct Inbound {
    worker: Rc<Worker>,
    /// The caller, or the client of a gateway.
    peer: Peer,
    /// A gateway lets the client in.
    is_gateway: bool,
    caller: FunctionId,
    callee: FunctionId,
    port: Port,
    /// The name or address that was called.
    host: String,
    /// The server name of its TLS hello, as the caller's sidecar has read it; empty: it is not TLS.
    name: String,
    /// The proof of identity of the caller's sidecar.
    proof: Proof,
    started: (SystemTime, Instant),
    rule: String,
    /// The connected address of an external service.
    external: Option<IpAddr>,
    /// The instance that takes it.
    instance: Option<SocketAddr>,
}

/// A new connection to the instance or the external service.
pub(crate) struct InboundTunnel {
    inbound: Inbound,
    upstream: TcpStream,
    /// The guards that are held as long as the connection is open.
    _held: ConnectionGuards,
}

/// Guards that live as long as a connection is open.
type ConnectionGuards = (Option<Lease>, ConnectionGuard, Option<Permit>);

impl Inbound {
    /// Reads the destination from a CONNECT of the caller's sidecar. An error: the request reaches
    /// nothing of this function.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        (peer, certificate): (&Peer, Option<PeerCertificate>),
        entry: &FunctionEntry,
        head: &request::Parts,
    ) -> Result<Self, StatusCode> {
        let caller = peer.identity.as_deref().and_then(FunctionId::of_identity).ok_or(StatusCode::FORBIDDEN)?;
        let is_gateway = peer.identity.as_deref() == Some(&*worker.snapshot().gateway);
        let client = hop::Client::from_headers(&head.headers).filter(|_| is_gateway);
        // A gateway lets clients in where its routes lead, and nothing else.
        let peer = match (is_gateway, client) {
            (false, _) => peer.clone(),
            (true, Some(client)) if entry.config.is_routed => Peer { identity: None, address: client.address },
            (true, _) => return Err(StatusCode::FORBIDDEN),
        };
        let port = head.uri.port_u16().ok_or(StatusCode::BAD_REQUEST)?;
        let name = hop::server_name(&head.headers).unwrap_or_default();
        let host = head.uri.host().and_then(of_authority).ok_or(StatusCode::BAD_REQUEST)?.into_owned();
        let port = entry.config.run.other_ports().into_iter().find(|served| served.number == port);
        let port = port.ok_or(StatusCode::FORBIDDEN)?;
        if (port.protocol == PortProtocol::Tls) == name.is_empty() {
            return Err(StatusCode::BAD_REQUEST);
        }
        Ok(Self {
            worker: worker.clone(),
            peer,
            is_gateway,
            caller,
            callee: entry.config.id.clone(),
            port,
            host,
            name,
            proof: Proof::since_now(certificate),
            started: (SystemTime::now(), Instant::now()),
            rule: String::new(),
            external: None,
            instance: None,
        })
    }

    /// Judges, and connects to an instance, which is started if there is none. The error is the
    /// answer; the record says why.
    pub(crate) async fn accept(mut self) -> Result<InboundTunnel, StatusCode> {
        match self.connect().await {
            Ok((upstream, held)) => Ok(InboundTunnel { inbound: self, upstream, _held: held }),
            Err(stop) => {
                self.worker.node.telemetry.connections.refused(&self.caller, &self.callee);
                self.record(&Err(stop), [0; 2]);
                Err(if self.rule.is_empty() { StatusCode::FORBIDDEN } else { StatusCode::SERVICE_UNAVAILABLE })
            }
        }
    }

    async fn connect(&mut self) -> Result<(TcpStream, ConnectionGuards), Stop> {
        let entry = self.judge()?;
        schedule::charge(entry.class);
        let counted = count(&self.worker, &entry)?;
        let namespace = if self.is_gateway { &self.callee.namespace } else { &self.caller.namespace };
        let permit = take_connection(Some(&self.worker.node.telemetry.namespaces.of(namespace)))?;
        let Some(external) = &entry.external else {
            let (lease, upstream) = take_instance(&self.worker, &entry, self.port.number, false).await?;
            self.instance = Some(lease.address);
            return Ok((upstream, (Some(lease), counted, permit)));
        };
        let (upstream, address) = egress::connect(&self.worker, external, &self.host, self.port.number).await?;
        self.external = Some(address);
        Ok((upstream, (None, counted, permit)))
    }

    /// Judges by the current snapshot. Returns the callee.
    fn judge(&mut self) -> Result<Arc<FunctionEntry>, Stop> {
        check_instance(&self.worker, self.instance)?;
        self.rule.clear();
        let found = self.worker.snapshot_with(&self.callee);
        let (_, entry) = found.ok_or_else(|| Stop::Refused("the function is gone".to_owned()))?;
        let serves = |served: &Port| (served.number, served.protocol) == (self.port.number, self.port.protocol);
        if self.is_gateway && !entry.config.is_routed {
            return Err(Stop::Refused("no route of a gateway leads to it any more".to_owned()));
        }
        if !entry.config.run.other_ports().iter().any(serves) {
            return Err(Stop::Refused("it does not serve this port any more".to_owned()));
        }
        if let Some(external) = &entry.external {
            self.check_external(external)?;
        }
        self.rule = judge_inbound(&entry, &self.peer, self.port.number, &self.name)?;
        Ok(entry)
    }

    /// Checks that its names and addresses are those of the external service. Another server name
    /// in TLS may lead to another server behind it.
    fn check_external(&self, external: &EgressTarget) -> Result<(), Stop> {
        if !self.name.is_empty() && !external.egress.has_host(&self.name) {
            return Err(Stop::Refused(format!("its TLS names {}, which is not {}", self.name, self.callee)));
        }
        match self.external {
            Some(address) if !external.admits(&self.worker.node.machines, &self.host, address) => {
                Err(Stop::Refused(format!("{} does not admit {} at {address}", self.callee, self.host)))
            }
            _ => Ok(()),
        }
    }

    fn record(&self, ended: &Result<(), Stop>, bytes: [u64; 2]) {
        self.worker.node.telemetry.connection_flows.push(Connection {
            instance: self.peer.identity.as_deref().unwrap_or_default(),
            during: None,
            target: Some(&self.callee),
            address: self.external.map_or(self.peer.address, |address| SocketAddr::new(address, self.port.number)),
            protocol: match self.port.protocol {
                PortProtocol::Tcp => "tcp",
                PortProtocol::Tls => "tls",
            },
            rule: &self.rule,
            outcome: match ended {
                Ok(()) => Ok(()),
                Err(Stop::Refused(reason)) => Err(ConnectionFailure::Refused(reason)),
                Err(Stop::Failed(reason)) => Err(ConnectionFailure::Failed(reason)),
            },
            bytes,
            spliced: false,
            started: self.started,
        });
    }
}

impl InboundTunnel {
    /// Copies bytes until both ends are done, or the connection is no longer allowed. Then reports
    /// it.
    pub(crate) async fn run(self, on_upgrade: Upgrading) {
        let Self { mut inbound, upstream, _held } = self;
        let mut upstream = ResetUnlessDone { stream: upstream, done: false };
        let counts = inbound.worker.node.clone();
        counts.telemetry.connections.opened(&inbound.caller, &inbound.callee);
        let (ended, bytes) = match on_upgrade.done().await {
            Ok(stream) => {
                let mut stream = FramedStream::new(stream);
                let mut from = CountingReader { stream: &mut stream, read: 0 };
                let mut to = CountingReader { stream: &mut upstream.stream, read: 0 };
                let ended = copy_both(&counts, inbound.proof, &mut from, &mut to, || inbound.judge().map(drop)).await;
                let bytes = [from.read, to.read];
                (ended, bytes)
            }
            Err(error) => (Err(Stop::Failed(error.to_string())), [0; 2]),
        };
        upstream.done = ended.is_ok();
        counts.telemetry.connections.closed(&inbound.caller, &inbound.callee, bytes);
        inbound.record(&ended, bytes);
    }
}
