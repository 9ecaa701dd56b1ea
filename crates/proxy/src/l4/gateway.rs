//! Connections without HTTP at a port that a Gateway document opens: find the route, judge, connect to
//! a back end, and copy bytes until both ends are done.

use super::hello;
use super::remote::RemoteCallee;
use super::{
    CountingReader, Proof, ResetUnlessDone, Stop, check_instance, copy_both, count, egress, take_connection,
    take_instance,
};
use crate::pipeline::worker::Worker;
use crate::state::function::FunctionEntry;
use leno_http::activity::Activity;
use leno_http::hop;
use leno_model::{FunctionId, StreamTls};
use leno_policy::{connection, input};
use leno_runtime::schedule;
use leno_telemetry::flows::{Connection, ConnectionFailure};
use std::io::Cursor;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, join};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// A connection of a client outside the mesh.
pub(crate) struct GatewayStream {
    worker: Rc<Worker>,
    /// The port of the gateway.
    port: u16,
    client: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    started: (SystemTime, Instant),
    /// The server name of its TLS hello; empty: there is none.
    name: String,
    callee: Option<Callee>,
    rule: String,
    /// The instance that takes it, if that is on this node.
    instance: Option<SocketAddr>,
    /// The connected address of an external service, and its called name or address.
    external: Option<(String, IpAddr)>,
    is_connected: bool,
    /// Bytes from the client, and to it.
    bytes: [u64; 2],
}

/// The chosen back end.
#[derive(Clone)]
struct Callee {
    id: FunctionId,
    port: u16,
    /// The port takes TLS, for which policies judge the server name.
    tls: bool,
    /// The name or address of an external service.
    host: String,
}

impl GatewayStream {
    pub(crate) fn new(worker: &Rc<Worker>, port: u16, client: SocketAddr, acceptor: Option<TlsAcceptor>) -> Self {
        let (name, callee, rule, instance, external, is_connected, bytes) = Default::default();
        let started = (SystemTime::now(), Instant::now());
        let worker = worker.clone();
        Self { worker, port, client, acceptor, started, name, callee, rule, instance, external, is_connected, bytes }
    }

    /// Proxies the connection from beginning to end, and reports it.
    pub(crate) async fn run(mut self, stream: TcpStream, activity: &Arc<Activity>) {
        let mut stream = ResetUnlessDone { stream, done: false };
        let _busy = activity.begin();
        let stopped = self.forward(&mut stream.stream).await;
        let outcome = match &stopped {
            Ok(()) => Ok(()),
            Err(Stop::Refused(reason)) => Err(ConnectionFailure::Refused(reason)),
            Err(Stop::Failed(reason)) => Err(ConnectionFailure::Failed(reason)),
        };
        stream.done = outcome.is_ok();
        let snapshot = self.worker.snapshot();
        let target = self.callee.as_ref().map(|callee| &callee.id);
        let telemetry = &self.worker.node.telemetry;
        if let (Some(target), Some(gateway)) = (target, FunctionId::of_identity(&snapshot.gateway)) {
            match self.is_connected {
                true => telemetry.connections.closed(&gateway, target, self.bytes),
                false => telemetry.connections.refused(&gateway, target),
            }
        }
        telemetry.connection_flows.push(Connection {
            instance: &snapshot.gateway,
            during: None,
            target,
            address: self.client,
            protocol: if self.name.is_empty() { "tcp" } else { "tls" },
            rule: &self.rule,
            outcome,
            bytes: self.bytes,
            spliced: false,
            started: self.started,
        });
    }

    async fn forward(&mut self, stream: &mut TcpStream) -> Result<(), Stop> {
        let mut first = Vec::new();
        let snapshot = self.worker.snapshot();
        let streams = &snapshot.gateway_routes.streams;
        if streams.take_tls(self.port) {
            let longest = snapshot.mesh.limits.head_timeout;
            self.name = hello::read(stream, &mut first, longest).await?.unwrap_or_default();
        }
        // A snapshot may have come meanwhile.
        let snapshot = self.worker.snapshot();
        let nowhere = || Stop::Refused("no route of this port serves it".to_owned());
        let found = snapshot.gateway_routes.streams.find(self.port, &self.name).ok_or_else(nowhere)?;
        let route = found.route.clone();
        let backend = found.pick(|max| self.worker.random.up_to(max));
        let closed = || Stop::Refused(format!("the route {route} has no back end for it"));
        let backend = backend.ok_or_else(closed)?;
        let callee = Callee {
            id: backend.target.clone().ok_or_else(closed)?,
            port: backend.port,
            tls: backend.tls,
            host: backend.host.clone(),
        };
        if callee.tls && self.name.is_empty() {
            let longest = snapshot.mesh.limits.head_timeout;
            let name = hello::read(stream, &mut first, longest).await?;
            self.name = name.ok_or_else(|| Stop::Refused("its TLS names nobody (SNI)".to_owned()))?;
        }
        let tls = found.tls;
        self.callee = Some(callee.clone());
        drop(snapshot);
        // Before the client's TLS ends here, and anything of it is read.
        self.judge(&callee)?;
        match tls {
            Some(StreamTls::Terminate) => {
                let without = || Stop::Refused("the gateway has no certificate for its TLS".to_owned());
                let acceptor = self.acceptor.clone().ok_or_else(without)?;
                let longest = self.worker.snapshot().mesh.limits.head_timeout;
                let (read, write) = stream.split();
                let accepted = acceptor.accept(join(Cursor::new(first).chain(read), write));
                let accepted = tokio::time::timeout(longest, accepted).await;
                let late = |_| Stop::Failed(format!("no TLS handshake within {longest:?}"));
                let mut stream = accepted.map_err(late)??;
                self.connect(&callee, &mut stream, &[]).await
            }
            Some(StreamTls::Passthrough) | None => self.connect(&callee, stream, &first).await,
        }
    }

    /// Connects to the back end, and copies bytes. `first`: bytes of the client that were read already.
    async fn connect(
        &mut self,
        callee: &Callee,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        first: &[u8],
    ) -> Result<(), Stop> {
        let entry = self.judge(callee)?;
        schedule::charge(entry.class);
        let share = self.worker.node.telemetry.namespaces.of(&callee.id.namespace);
        let _counted = (count(&self.worker, &entry)?, take_connection(Some(&share))?);
        if entry.remote {
            let known = self.worker.node.endpoints.of(&callee.id);
            let known = known.ok_or_else(|| Stop::Refused("no node runs it".to_owned()))?;
            let host = if callee.host.is_empty() { callee.id.name.clone() } else { callee.host.clone() };
            let remote = RemoteCallee {
                worker: &self.worker,
                callee: &callee.id,
                identities: (self.worker.snapshot().gateway.clone(), entry.identity.clone()),
                share: Some(&share),
                authority: format!("{host}:{}", callee.port),
                name: if callee.tls { &self.name } else { "" },
                client: Some(hop::Client { scheme: "http", port: self.port, address: self.client }),
            };
            let mut upstream = remote.connect(&known).await?;
            self.opened(callee);
            upstream.io.write_all(first).await?;
            let proof = Proof::since_now(upstream.certificate());
            return self.copy(callee, stream, (&mut upstream.io, proof), first.len() as u64).await;
        }
        let (_lease, upstream) = match &entry.external {
            Some(external) => {
                let has_name = !self.name.is_empty() && external.egress.has_host(&self.name);
                let host = if has_name { self.name.clone() } else { callee.host.clone() };
                let (stream, address) = egress::connect(&self.worker, external, &host, callee.port).await?;
                self.external = Some((host, address));
                (None, stream)
            }
            None => {
                let (lease, upstream) = take_instance(&self.worker, &entry, callee.port, false).await?;
                self.instance = Some(lease.address);
                (Some(lease), upstream)
            }
        };
        let mut upstream = ResetUnlessDone { stream: upstream, done: false };
        self.opened(callee);
        upstream.stream.write_all(first).await?;
        let proof = Proof::since_now(None);
        let copied = self.copy(callee, stream, (&mut upstream.stream, proof), first.len() as u64).await;
        upstream.done = copied.is_ok();
        copied
    }

    fn opened(&mut self, callee: &Callee) {
        self.is_connected = true;
        if let Some(gateway) = FunctionId::of_identity(&self.worker.snapshot().gateway) {
            self.worker.node.telemetry.connections.opened(&gateway, &callee.id);
        }
    }

    /// Judges the connection by the current snapshot: a route has to lead there, and the policies of
    /// the back end have to allow it. If other nodes host it, they judge.
    fn judge(&mut self, callee: &Callee) -> Result<Arc<FunctionEntry>, Stop> {
        check_instance(&self.worker, self.instance)?;
        let snapshot = self.worker.snapshot();
        let refused = |reason: &str| Stop::Refused(reason.to_owned());
        let found = snapshot.gateway_routes.streams.find(self.port, &self.name);
        if !found.is_some_and(|found| found.leads_to(&callee.id, callee.port)) {
            return Err(refused("no route leads there any more"));
        }
        let entry = snapshot.exposed(&callee.id).cloned().ok_or_else(|| refused("no node runs it"))?;
        if entry.remote {
            return Ok(entry);
        }
        if snapshot.mesh.mtls_same_node && entry.external.is_none() {
            let reason = "all calls of this mesh go through mutual TLS, and connections without requests cannot";
            return Err(refused(reason));
        }
        if let (Some(external), Some((host, address))) = (&entry.external, &self.external)
            && !external.admits(&self.worker.node.machines, host, *address)
        {
            return Err(Stop::Refused(format!("{} does not admit {host} at {address} any more", entry.name)));
        }
        let peer = input::Peer { identity: None, address: Some(self.client.ip()) };
        let name = if callee.tls { &*self.name } else { "" };
        match connection::judge(&entry.inbound.spec, peer, callee.port, name) {
            Ok(rule) => {
                self.rule = rule.to_owned();
                Ok(entry)
            }
            Err(denial) => {
                self.rule = denial.rule;
                Err(Stop::Refused(denial.clause))
            }
        }
    }

    /// Copies bytes until both ends are done, or the connection is no longer allowed.
    async fn copy(
        &mut self,
        callee: &Callee,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        (upstream, proof): (&mut (impl AsyncRead + AsyncWrite + Unpin), Proof),
        first: u64,
    ) -> Result<(), Stop> {
        let node = self.worker.node.clone();
        let (mut from, mut to) = (CountingReader { stream, read: first }, CountingReader { stream: upstream, read: 0 });
        let result = copy_both(&node, proof, &mut from, &mut to, || self.judge(callee).map(drop)).await;
        self.bytes = [from.read, to.read];
        result
    }
}
