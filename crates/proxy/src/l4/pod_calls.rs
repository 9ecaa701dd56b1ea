//! Connections that programs of pods open. Nothing is judged here: the node of the callee judges.

use super::hbone::{self, PodTunnel, Target, TunnelError};
use super::reset::{ResetUnlessDone, reset};
use crate::pipeline::worker::Worker;
use crate::state::destinations::{Call, ChosenEndpoint, OpenToEndpoint, Transport, Way};
use crate::state::pods::{CallerEntry, ServedPod, canonical};
use leno_model::PodMode;
use leno_runtime::schedule::{self, Class};
use socket2::SockRef;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Endpoints of a Service that one connection tries. Nothing was sent to those that refuse it.
const MAX_TRIES: usize = 4;
/// How long an endpoint may take to accept a connection, if the Service has others.
const ACCEPT: Duration = Duration::from_secs(3);

/// Connects a program's connection on to what it has called, and copies bytes until both ends are
/// done.
pub(crate) async fn connect_on(worker: &Worker, pod: &Arc<ServedPod>, stream: TcpStream) {
    schedule::charge(Class::of(&pod.function().to_string()));
    // Until there is a callee, its end is a reset.
    reset(&stream);
    let connected = match stream.local_addr() {
        Ok(called) => connect(worker, pod, canonical(called)).await,
        Err(error) => Err(error),
    };
    let CalleeConnection { upstream, transport, _counted } = match connected {
        Ok(connected) => connected,
        Err(error) => return tracing::debug!(pod = &*pod.name, %error, "a connection of a pod has failed"),
    };
    // If it cannot be set, the connection is gone.
    let _ = SockRef::from(&stream).set_linger(None);
    worker.node.destinations.count(pod.namespace(), transport);
    match upstream {
        Upstream::Direct(upstream, entries) => {
            let _ = upstream.set_nodelay(true);
            let mut stream = ResetUnlessDone { stream, done: false };
            let mut upstream = ResetUnlessDone { stream: upstream, done: false };
            // They end before the socket does: another connection may have its address then.
            let _entries = entries;
            let copied = copy_bidirectional(&mut stream.stream, &mut upstream.stream).await;
            (stream.done, upstream.done) = (copied.is_ok(), copied.is_ok());
        }
        Upstream::Tunnel(tunnel) => {
            if let (Err(reason), _) = tunnel.copy(worker, stream).await {
                tracing::debug!(pod = &*pod.name, reason, "a connection of a pod has ended");
            }
        }
    }
}

/// A connection to a callee.
struct CalleeConnection<'a> {
    upstream: Upstream<'a>,
    transport: Transport,
    _counted: Option<OpenToEndpoint>,
}

enum Upstream<'a> {
    /// With the entries in which pods of this node find the caller.
    Direct(TcpStream, Entries<'a>),
    Tunnel(PodTunnel),
}

/// `None`: the pod calls itself.
type Entries<'a> = Option<(CallerEntry<'a>, Box<dyn Send>)>;

/// Connects to the address that was called, or to an endpoint of the Service that has it.
async fn connect<'a>(worker: &'a Worker, pod: &Arc<ServedPod>, called: SocketAddr) -> io::Result<CalleeConnection<'a>> {
    let mut tried = Vec::new();
    let mut failed = None;
    loop {
        let client = pod.address_like(called.ip()).unwrap_or(called.ip());
        let call = Call { called, client, namespace: pod.namespace(), tried: &tried };
        let below = |count: u64| worker.random.up_to(count.saturating_sub(1));
        let chosen = match worker.node.destinations.find(call, below).await {
            Way::Called => {
                let upstream = dial(worker, pod, called).await?;
                return Ok(CalleeConnection { upstream, transport: Transport::Cluster, _counted: None });
            }
            Way::NoEndpoint(service) => {
                let none = || io::Error::new(ErrorKind::ConnectionRefused, format!("{service} has no endpoint"));
                return Err(failed.unwrap_or_else(none));
            }
            Way::Endpoint(chosen) => chosen,
        };
        let may_pass_over = chosen.has_others && tried.len() + 1 < MAX_TRIES;
        let opened = match may_pass_over {
            true => timeout(ACCEPT, open(worker, pod, &chosen)).await,
            false => Ok(open(worker, pod, &chosen).await),
        };
        let error = match opened.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok((upstream, transport)) => return Ok(CalleeConnection { upstream, transport, _counted: chosen.counted }),
            Err(error) => error,
        };
        let is_final = chosen.service.is_none() || error.kind() == ErrorKind::PermissionDenied;
        if is_final || tried.len() + 1 >= MAX_TRIES {
            return Err(error);
        }
        tracing::debug!(pod = &*pod.name, address = %chosen.address, %error, "an endpoint has refused a connection");
        tried.push(chosen.address);
        failed = Some(error);
    }
}

/// Opens a tunnel to a pod of another node, or else a connection. A permissive pod without an agent
/// gets clear text, and so does one if this node cannot prove the caller's identity yet.
async fn open<'a>(
    worker: &'a Worker,
    pod: &Arc<ServedPod>,
    chosen: &ChosenEndpoint,
) -> io::Result<(Upstream<'a>, Transport)> {
    let mut transport = worker.node.destinations.transport(chosen.pod.as_ref());
    if let (Transport::Hbone, Some(callee)) = (transport, &chosen.pod) {
        let may_be_clear = callee.mode == PodMode::Permissive;
        if !may_be_clear || has_certificate(worker, pod) {
            let service = chosen.service.as_ref().map(|service| service.to_string().into());
            let identities = vec![(&callee.identity).into()];
            match hbone::connect(worker, pod, &Target { address: chosen.address, identities, service }).await {
                Ok(tunnel) => return Ok((Upstream::Tunnel(tunnel), transport)),
                Err(TunnelError::NoAgent(_)) if may_be_clear => {}
                Err(error @ TunnelError::Denied(_)) => return Err(io::Error::new(ErrorKind::PermissionDenied, error)),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        tracing::debug!(pod = &*pod.name, callee = %chosen.address, "a pod is called in clear text: there is no agent");
        transport = Transport::Clear;
    }
    Ok((dial(worker, pod, chosen.address).await?, transport))
}

/// Whether this node can prove the identity of its pod.
fn has_certificate(worker: &Worker, pod: &ServedPod) -> bool {
    let identity = pod.identity(&worker.snapshot().mesh.trust_domain);
    identity
        .and_then(|identity| identity.parse().ok())
        .is_some_and(|identity| worker.node.svids.current(&identity).is_some())
}

/// Connects from the pod's network and address.
async fn dial<'a>(worker: &'a Worker, pod: &Arc<ServedPod>, address: SocketAddr) -> io::Result<Upstream<'a>> {
    if pod.has_address(address.ip()) {
        // A pod that calls itself by its Service: its connections to itself are not captured.
        let client = SocketAddr::new(address.ip(), 0);
        return Ok(Upstream::Direct(pod.network().connect_in(address, client).await?, None));
    }
    let bound = pod.network().bind_out(address).await?;
    // From here on, a pod of this node knows who calls.
    let entries = (worker.node.pod_callers.enter(bound.local, pod), bound.known);
    Ok(Upstream::Direct(bound.dial.await?, Some(entries)))
}
