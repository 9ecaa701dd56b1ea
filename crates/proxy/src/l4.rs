//! TCP connections without HTTP requests: find the callee, judge, connect to an instance, and copy
//! bytes until both ends are done.

pub mod connection_rules;
mod egress;
mod framed;
pub(crate) mod gateway;
pub(crate) mod hbone;
pub(crate) mod hello;
pub(crate) mod inbound;
pub(crate) mod opening;
pub(crate) mod pod_calls;
pub(crate) mod pods;
mod remote;
mod reset;

use crate::pipeline::worker::Worker;
use crate::state::certificate::PeerCertificate;
use crate::state::credential::Caller;
use crate::state::endpoints::FunctionEndpoints;
use crate::state::function::{FunctionEntry, limit};
use crate::state::health::ConnectionGuard;
use crate::state::instances::{ConnectError, Lease};
use crate::state::kernel::Splice;
use crate::state::node::Node;
use connection_rules::Destination;
use http::HeaderMap;
use leno_http::activity::Activity;
use leno_http::peer::Peer;
use leno_model::egress::wildcard;
use leno_model::{Callee, Port, PortProtocol};
use leno_namespaces::{Namespace, Permit, Resource};
use leno_policy::{connection, input};
use leno_runtime::schedule;
use leno_telemetry::flows::{Connection, ConnectionFailure, HandledRequests};
use remote::RemoteCallee;
use reset::ResetUnlessDone;
pub(crate) use reset::{PodStream, reset};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

/// Limit on the time to connect to a running instance.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the node copies the last bytes of an instance that has ended.
const LAST_BYTES: Duration = Duration::from_secs(5);
/// Size of the copy buffer of each direction, in bytes.
const BUFFER: usize = 16 * 1024;

/// Where an intercepted connection leads.
pub(crate) enum Path {
    /// To the node, which judges each request in it.
    Requests,
    /// To a port of a callee.
    Port(Box<TcpProxy>),
    /// Nowhere. The refusal was reported.
    Nowhere,
}

/// A connection of an instance to a port of a callee.
pub(crate) struct TcpProxy {
    worker: Rc<Worker>,
    caller: Arc<Caller>,
    entry: Arc<FunctionEntry>,
    callee: Callee,
    port: Port,
    address: SocketAddr,
    started: (SystemTime, Instant),
    /// The requests that the instance was handling when it began.
    during: HandledRequests,
    /// The rule that allowed it.
    rule: String,
    /// Bytes from the caller, and to it.
    bytes: [u64; 2],
    spliced: bool,
    /// It was connected to its callee.
    connected: bool,
    /// The callee was on this node, or an external service, when the connection was made.
    is_local: bool,
    /// The instance that takes it, if that is on this node.
    instance: Option<SocketAddr>,
    /// The server name of its TLS hello; empty: unknown.
    name: String,
    /// For an external service: the called name or address, and the connected address.
    external: Option<(String, IpAddr)>,
}

/// Where the callee is.
enum Callees {
    /// On this node, or an external service.
    Local(Arc<FunctionEntry>),
    /// On these nodes.
    Remote(Arc<FunctionEndpoints>),
}

/// Why a connection ends before its ends are done.
enum Stop {
    Refused(String),
    Failed(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Finds where a connection of an instance to `address` leads.
pub(crate) fn find(worker: &Rc<Worker>, caller: &Arc<Caller>, address: SocketAddr) -> Path {
    let IpAddr::V4(ip) = address.ip() else { return Path::Requests };
    let found = worker.snapshot_with(&caller.function);
    let Some((_, entry)) = found else { return Path::Requests };
    let to = match connection_rules::destination(&worker.node, &entry, ip, address.port()) {
        Destination::Requests => return Path::Requests,
        Destination::Port(callee, port) => Some((callee.clone(), port)),
        Destination::Nowhere => None,
    };
    let started = (SystemTime::now(), Instant::now());
    let Some((callee, port)) = to else {
        worker.node.telemetry.destinations.connection(
            &caller.function,
            None,
            &address.ip().to_string(),
            address.port(),
        );
        worker.node.telemetry.connection_flows.push(Connection {
            instance: &caller.instance,
            during: Some(caller.handled()),
            target: None,
            address,
            protocol: "tcp",
            rule: &caller.function.callees_rule(),
            outcome: Err(ConnectionFailure::Refused("no function that it may call has this address")),
            bytes: [0; 2],
            spliced: false,
            started,
        });
        return Path::Nowhere;
    };
    Path::Port(Box::new(TcpProxy {
        worker: worker.clone(),
        caller: caller.clone(),
        entry,
        callee,
        port,
        address,
        started,
        during: caller.handled(),
        rule: String::new(),
        bytes: [0; 2],
        spliced: false,
        connected: false,
        is_local: false,
        instance: None,
        name: String::new(),
        external: None,
    }))
}

impl TcpProxy {
    /// Proxies the connection from beginning to end, and reports it.
    pub(crate) async fn run(mut self, stream: TcpStream, activity: &Arc<Activity>) {
        let mut stream = ResetUnlessDone { stream, done: false };
        // From here on, the worker's time counts for the caller's function.
        schedule::charge(self.entry.class);
        let _busy = activity.begin();
        let stopped = {
            let (caller, entry) = (self.caller.clone(), self.entry.clone());
            let mut ended = pin!(self.forward(&entry, &mut stream.stream));
            tokio::select! {
                ended = &mut ended => ended,
                // Its sockets are closed, but its last bytes may still be in flight.
                () = caller.revoked() => match tokio::time::timeout(LAST_BYTES, ended).await {
                    Ok(ended) => ended,
                    Err(_) => Err(Stop::Failed("the caller's instance has ended".to_owned())),
                },
            }
        };
        let outcome = match &stopped {
            Ok(()) => Ok(()),
            Err(Stop::Refused(reason)) => Err(ConnectionFailure::Refused(reason)),
            Err(Stop::Failed(reason)) => Err(ConnectionFailure::Failed(reason)),
        };
        stream.done = outcome.is_ok();
        let counts = &self.worker.node.telemetry.connections;
        match self.connected {
            true => counts.closed(&self.caller.function, &self.callee.id, self.bytes),
            false => counts.refused(&self.caller.function, &self.callee.id),
        }
        self.worker.node.telemetry.connection_flows.push(Connection {
            instance: &self.caller.instance,
            during: outcome.is_err().then_some(self.during),
            target: Some(&self.callee.id),
            address: self.address,
            protocol: match self.port.protocol {
                PortProtocol::Tcp => "tcp",
                PortProtocol::Tls => "tls",
            },
            rule: &self.rule,
            outcome,
            bytes: self.bytes,
            spliced: self.spliced,
            started: self.started,
        });
    }

    async fn forward(&mut self, entry: &FunctionEntry, stream: &mut TcpStream) -> Result<(), Stop> {
        let callee = self.judge(entry)?;
        let mut first = Vec::new();
        if self.port.protocol == PortProtocol::Tls {
            self.name = self.hello(stream, &mut first).await?;
            self.judge(entry)?;
        }
        let callee = match callee {
            Callees::Local(callee) => callee,
            Callees::Remote(known) => return self.forward_remote(entry, &known, stream, &first).await,
        };
        let counted = (count(&self.worker, &callee)?, take_connection(entry.share())?);
        let (lease, upstream) = match &callee.external {
            Some(external) => {
                let host = self.host()?;
                let (stream, address) = egress::connect(&self.worker, external, &host, self.port.number).await?;
                self.external = Some((host, address));
                (None, stream)
            }
            None => {
                let taken = take_instance(&self.worker, &callee, self.port.number, self.port.splice).await;
                let (lease, upstream) = taken?;
                self.instance = Some(lease.address);
                (Some(lease), upstream)
            }
        };
        let mut upstream = ResetUnlessDone { stream: upstream, done: false };
        self.worker.node.telemetry.connections.opened(&self.caller.function, &self.callee.id);
        (self.connected, self.is_local) = (true, true);
        // A snapshot may have come meanwhile.
        self.judge(entry)?;
        let spliced = match self.worker.node.kernel() {
            Some(kernel) if self.port.splice => kernel.splice(stream, &upstream.stream),
            _ => None,
        };
        self.spliced = spliced.is_some();
        upstream.stream.write_all(&first).await?;
        let carried =
            self.copy(entry, stream, (&mut upstream.stream, Proof::since_now(None)), first.len() as u64).await;
        upstream.done = carried.is_ok();
        let [sent, received] = spliced.map_or([0; 2], |spliced: Box<dyn Splice>| spliced.bytes());
        self.bytes = [self.bytes[0] + sent, self.bytes[1] + received];
        drop((lease, counted));
        carried
    }

    /// Proxies the connection to another node, which judges as well.
    async fn forward_remote(
        &mut self,
        entry: &FunctionEntry,
        known: &FunctionEndpoints,
        stream: &mut TcpStream,
        first: &[u8],
    ) -> Result<(), Stop> {
        let _counted = take_connection(entry.share())?;
        let callee = RemoteCallee {
            worker: &self.worker,
            callee: &self.callee.id,
            identities: (entry.identity.clone(), (&self.callee.identity).into()),
            share: entry.share(),
            authority: format!("{}:{}", self.host()?, self.port.number),
            name: &self.name,
            client: None,
        };
        let mut upstream = callee.connect(known).await?;
        self.worker.node.telemetry.connections.opened(&self.caller.function, &self.callee.id);
        self.connected = true;
        upstream.io.write_all(first).await?;
        let proof = Proof::since_now(upstream.certificate());
        self.copy(entry, stream, (&mut upstream.io, proof), first.len() as u64).await
    }

    /// Judges the connection by the current snapshot. Returns where the callee is.
    fn judge(&mut self, entry: &FunctionEntry) -> Result<Callees, Stop> {
        check_instance(&self.worker, self.instance)?;
        let found = self.worker.snapshot_with(&self.caller.function);
        let (snapshot, current) = found.ok_or_else(|| Stop::Refused("the caller's function is gone".to_owned()))?;
        if !current.config.callees.iter().any(|callee| callee.id == self.callee.id && callee.ports.contains(&self.port))
        {
            return Err(Stop::Refused(format!("{} may not call {} any more", entry.name, self.callee.id)));
        }
        // Connections that a removed function has accepted may end.
        let snapshot = if self.is_local {
            let found = self.worker.snapshot_with(&self.callee.id);
            found.ok_or_else(|| Stop::Refused(format!("{} was removed", self.callee.id)))?.0
        } else {
            snapshot
        };
        if snapshot.functions.get(&self.callee.id).is_none() {
            // The caller's list of callees was checked above. The callee's node judges its rules.
            let known = self.worker.node.endpoints.of(&self.callee.id);
            return known.map(Callees::Remote).ok_or_else(|| Stop::Refused("no node runs it".to_owned()));
        }
        match snapshot.judge_connection(&current, &self.callee.id, self.port.number, &self.name) {
            Ok((rule, callee)) => {
                self.rule = rule;
                if let (Some(external), Some((host, address))) = (&callee.external, &self.external)
                    && !external.admits(&self.worker.node.machines, host, *address)
                {
                    return Err(Stop::Refused(format!("{} does not admit {host} at {address} any more", callee.name)));
                }
                Ok(Callees::Local(callee))
            }
            Err(refused) => {
                self.rule = refused.rule;
                Err(Stop::Refused(refused.reason))
            }
        }
    }

    /// Reads the hello of a TLS client. It must name the callee (SNI), because another name may
    /// lead to another server behind it.
    async fn hello(&self, stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<String, Stop> {
        let longest = self.worker.snapshot().mesh.limits.head_timeout;
        match hello::read(stream, read, longest).await? {
            Some(name) if self.is_called(&name) => Ok(name),
            Some(name) => Err(Stop::Refused(format!("its TLS names {name}, which is not {}", self.callee.id))),
            None => Err(Stop::Refused("its TLS names nobody (SNI)".to_owned())),
        }
    }

    /// Whether this is one of the callee's names.
    fn is_called(&self, name: &str) -> bool {
        let wildcard = wildcard(name);
        self.callee.hosts.iter().any(|host| host == name || Some(host) == wildcard.as_ref())
    }

    /// The called host: the address or, if it is one of the mesh's own, the server name of the TLS
    /// hello, or the callee's only name.
    fn host(&self) -> Result<String, Stop> {
        if self.worker.node.addresses.function(self.called()).is_none() {
            return Ok(self.address.ip().to_string());
        }
        let name = Some(&self.name).filter(|name| !name.is_empty()).or(self.callee.hosts.first());
        name.cloned().ok_or_else(|| Stop::Refused("it has no name, and was not called by its address".to_owned()))
    }

    fn called(&self) -> Ipv4Addr {
        match self.address.ip() {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        }
    }

    /// Copies bytes until both ends are done, or the connection is no longer allowed.
    async fn copy(
        &mut self,
        entry: &FunctionEntry,
        stream: &mut TcpStream,
        (upstream, proof): (&mut (impl AsyncRead + AsyncWrite + Unpin), Proof),
        first: u64,
    ) -> Result<(), Stop> {
        let node = self.worker.node.clone();
        let (mut from, mut to) = (CountingReader { stream, read: first }, CountingReader { stream: upstream, read: 0 });
        let result = copy_both(&node, proof, &mut from, &mut to, || self.judge(entry).map(drop)).await;
        self.bytes = [from.read, to.read];
        result
    }
}

/// Judges a connection to `port` of a function on this node. Returns the rule that allows it.
fn judge_inbound(entry: &FunctionEntry, peer: &Peer, port: u16, name: &str) -> Result<String, Stop> {
    let judged = connection::judge(&entry.inbound.spec, peer_input(peer), port, name);
    judged.map(str::to_owned).map_err(|denial| match denial.rule.is_empty() {
        true => Stop::Refused(denial.clause),
        false => Stop::Refused(format!("{}: {}", denial.rule, denial.clause)),
    })
}

/// The peer, as rules see it.
fn peer_input(peer: &Peer) -> input::Peer<'_> {
    input::Peer { identity: peer.identity.as_deref(), address: Some(peer.address.ip()) }
}

/// Counts a connection as one of the callee's, if the circuit breaker allows one more.
fn count(worker: &Worker, callee: &FunctionEntry) -> Result<ConnectionGuard, Stop> {
    let breaker = callee.inbound.spec.targets.first().and_then(|target| target.breaker.as_ref());
    let target = worker.node.policy_state.health.get(&callee.config.id);
    let counted = target.acquire_connection(breaker.map(|breaker| breaker.max_connections));
    counted.ok_or_else(|| Stop::Refused("its circuit breaker allows no more connections".to_owned()))
}

/// Counts a connection for a namespace: its caller's or, from the gateway, its callee's.
fn take_connection(share: Option<&Arc<Namespace>>) -> Result<Option<Permit>, Stop> {
    let Some(share) = share else { return Ok(None) };
    let permit = share.take(Resource::Connections);
    permit.map(Some).ok_or_else(|| Stop::Refused(share.refusal(Resource::Connections)))
}

/// The proof of the sidecar at the other end of a connection.
#[derive(Clone, Copy)]
struct Proof {
    /// `None`: the sidecar is identified by other means.
    certificate: Option<PeerCertificate>,
    /// When the connection began.
    since: Instant,
}

impl Proof {
    fn since_now(certificate: Option<PeerCertificate>) -> Self {
        Self { certificate, since: Instant::now() }
    }

    fn check(self, node: &Node) -> Result<(), Stop> {
        match self.certificate {
            Some(certificate) if certificate.is_revoked(&node.svids) => {
                Err(Stop::Refused("the other node was revoked".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// When it expires.
    fn end(self, node: &Node) -> Option<Instant> {
        let lifetime = node.snapshot.load().mesh.stream_lifetime();
        self.certificate?.expires.map(|expires| expires.max(self.since + lifetime))
    }
}

/// Whether the instance that takes a connection may go on with it.
fn check_instance(worker: &Worker, instance: Option<SocketAddr>) -> Result<(), Stop> {
    if instance.is_some_and(|address| worker.node.terminating.is_overdue(address)) {
        return Err(Stop::Failed("the instance ends, and the drain timeout is over".to_owned()));
    }
    Ok(())
}

/// Connects to a port of an instance. Starts one if there is none.
async fn take_instance(
    worker: &Worker,
    callee: &FunctionEntry,
    port: u16,
    splice: bool,
) -> Result<(Lease, TcpStream), Stop> {
    let failed = |error: &dyn std::fmt::Display| Stop::Failed(format!("no instance takes it: {error}"));
    let (node, function) = (&worker.node, &callee.config.id);
    let number = callee.revisions.pick(&HeaderMap::new(), &worker.request_id()).label.number;
    let lease = match node.instances.try_acquire(function, number, &[]) {
        Some(lease) => lease,
        None => {
            let longest = limit(worker.snapshot().mesh.limits.request_timeout);
            let deadline = Instant::now().checked_add(longest).map(Into::into);
            node.instances.acquire(function, number, &[], deadline).await.map_err(|error| failed(&error))?
        }
    };
    let kernel = node.kernel().filter(|_| splice);
    let connected = tokio::time::timeout(CONNECT, lease.guard.connect_to(port, kernel)).await;
    let connected = connected.map_err(|_| failed(&format_args!("no connection within {CONNECT:?}")))?;
    let upstream = connected.map_err(|error: ConnectError| failed(&error))?;
    // It waits for no response.
    lease.guard.heard();
    // Small messages must not wait for acknowledgements. If it cannot be set, the connection is
    // already gone.
    let _ = upstream.set_nodelay(true);
    Ok((lease, upstream))
}

/// Copies bytes until both ends are done, or until `judge` refuses. `judge` runs at each new
/// snapshot, and when an instance has exceeded the drain timeout. `proof`: of the sidecar at the
/// other end.
async fn copy_both(
    node: &Node,
    proof: Proof,
    from: &mut (impl AsyncRead + AsyncWrite + Unpin),
    to: &mut (impl AsyncRead + AsyncWrite + Unpin),
    mut judge: impl FnMut() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut copied = pin!(copy_bidirectional_with_sizes(from, to, BUFFER, BUFFER));
    loop {
        let changed = node.changed();
        // A snapshot may have come meanwhile.
        judge()?;
        proof.check(node)?;
        tokio::select! {
            result = &mut copied => {
                // A revocation also breaks the connection to the node, and that may be seen first.
                if result.is_err() {
                    proof.check(node)?;
                }
                return result.map(drop).map_err(Stop::from);
            }
            () = changed => {}
            () = at(proof.end(node)) => {
                return Err(Stop::Refused("the certificate of the other node's sidecar has expired".to_owned()));
            }
        }
    }
}

/// Waits until then; `None`: for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Counts the bytes that are read.
struct CountingReader<'a, T> {
    stream: &'a mut T,
    read: u64,
}

impl<T: AsyncRead + Unpin> AsyncRead for CountingReader<'_, T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut *self.stream).poll_read(cx, into);
        self.read += (into.filled().len() - before) as u64;
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountingReader<'_, T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}
