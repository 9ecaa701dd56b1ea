//! Tunnels to pods of other nodes (HBONE): a CONNECT stream (RFC 9113, 8.5) over mutual TLS. The
//! connections come from the calling pod's network and address, so that network policies see pods.

use super::reset::Reset;
use super::{CountingReader, Proof, ResetUnlessDone, Stop, copy_both};
use crate::pipeline::pool::{CalleeKey, CheckedOutHttp2, ConnectError, ConnectionKey, StreamSlot, TunnelKey};
use crate::pipeline::worker::Worker;
use crate::state::instances::{Connect, InstanceProof};
use crate::state::pods::{PodNetwork, ServedPod, TUNNELS};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use leno_http::body::Body;
use leno_http::http2::{Tunnel, TunnelHandle, Upgrading};
use leno_http::wire::WireBody;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Longest time to connect to a pod, including TLS.
const CONNECT: Duration = Duration::from_secs(5);
/// Connections that are tried for one tunnel. A callee may end one while a CONNECT is under way. Its
/// program has then got nothing.
const ATTEMPTS: u32 = 3;

/// A pod of another node, and a port of it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The address of the pod, and the port of its program.
    pub address: SocketAddr,
    /// The SPIFFE IDs, one of which the callee has to prove.
    pub identities: Vec<Arc<str>>,
    /// The name of the called Service, for telemetry of the callee; `None`: none was called.
    pub service: Option<Arc<str>>,
}

/// Why there is no tunnel. Nothing has reached the callee's program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    /// Nothing listens at the port for tunnels: the callee's agent is away.
    #[error("{0} refuses connections: its agent is away")]
    NoAgent(SocketAddr),
    /// The callee's policies deny it.
    #[error("the callee's policies deny it ({0})")]
    Denied(SocketAddr),
    /// A bound of this node.
    #[error("{0}")]
    Bound(String),
    /// The connection, its TLS, or the callee's program has failed.
    #[error("{0}")]
    Failed(String),
}

/// A connection to a port of a pod of another node.
#[derive(Debug)]
pub(crate) struct PodTunnel {
    io: Tunnel,
    /// Kept as long as the stream is open.
    slot: StreamSlot,
}

/// Opens a tunnel for a program of `pod`.
pub(crate) async fn connect(worker: &Worker, pod: &Arc<ServedPod>, target: &Target) -> Result<PodTunnel, TunnelError> {
    let mesh = worker.snapshot().mesh.clone();
    let unknown = || TunnelError::Failed("the control plane has not named the calling pod's account".to_owned());
    let identity = pod.identity(&mesh.trust_domain).ok_or_else(unknown)?;
    let share = worker.node.telemetry.namespaces.of(&pod.function().namespace);
    let address = SocketAddr::new(target.address.ip(), TUNNELS);
    let ends = TunnelKey { pod: pod.clone(), identity, expected: target.identities.clone() };
    let key = ConnectionKey { address, callee: CalleeKey::Tunnels(ends) };
    let (proof, limits) = (OfPod(pod.network().clone()), (CONNECT, &mesh.limits.upstream));
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let counts = (Some(&share), |_| Some(None));
        let connected = worker.pool.http2(&key, Some(&proof), &worker.node.svids, counts, limits).await;
        let CheckedOutHttp2 { mut sender, stream, .. } = connected.map_err(|error| match error {
            ConnectError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                TunnelError::NoAgent(address)
            }
            ConnectError::Bound(reason) => TunnelError::Bound(reason),
            error => TunnelError::Failed(format!("no connection to {address}: {error}")),
        })?;
        let request = request(pod, target).map_err(|error| TunnelError::Failed(error.to_string()))?;
        let Ok(sent) = sender.send(request, |_| Ok::<_, Infallible>(())).await;
        match sent {
            Ok(response) => return accepted(response, stream, target.address).await,
            Err(error) => last = format!("{address} has ended the connection: {}", error.error),
        }
    }
    Err(TunnelError::Failed(last))
}

fn request(pod: &ServedPod, target: &Target) -> Result<Request<Body>, http::Error> {
    let function = pod.function();
    let name = pod.name.rsplit('/').next().unwrap_or_default();
    let namespace = &function.namespace;
    let baggage = format!("k8s.namespace.name={namespace},k8s.pod.name={name},service.name={}", function.name);
    let mut request = Request::builder().method(Method::CONNECT).uri(target.address.to_string().parse::<Uri>()?);
    if let Some(service) = &target.service {
        request = request.header(header::FORWARDED, format!("host={service}"));
    }
    request.header("baggage", HeaderValue::try_from(baggage)?).body(Body::empty())
}

async fn accepted(
    mut response: Response<WireBody>,
    slot: StreamSlot,
    address: SocketAddr,
) -> Result<PodTunnel, TunnelError> {
    match response.status() {
        StatusCode::OK => {
            let failed = |error: &dyn std::fmt::Display| TunnelError::Failed(format!("{address}: {error}"));
            let tunnel = response.extensions_mut().remove::<TunnelHandle>().ok_or_else(|| failed(&"no stream"))?;
            let io = Upgrading::Ready(tunnel).tunnel().await.map_err(|error| failed(&error))?.strict();
            Ok(PodTunnel { io, slot })
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(TunnelError::Denied(address)),
        StatusCode::SERVICE_UNAVAILABLE => Err(TunnelError::Failed(format!("no program takes it at {address}"))),
        status => Err(TunnelError::Failed(format!("{address} answers a CONNECT with {status}"))),
    }
}

impl PodTunnel {
    /// Copies bytes between the program's connection and the tunnel until both ends are done, or the
    /// callee's certificate is not valid any more. The program's connection is reset if the tunnel
    /// breaks off, and the other way round. Returns the bytes from the program, and to it.
    pub(crate) async fn copy(self, worker: &Worker, stream: TcpStream) -> (Result<(), String>, [u64; 2]) {
        let (node, proof) = (worker.node.clone(), Proof::since_now(self.slot.certificate()));
        let mut stream = ResetUnlessDone { stream, done: false };
        let mut tunnel = ResetUnlessDone { stream: self, done: false };
        let mut from = CountingReader { stream: &mut stream.stream, read: 0 };
        let mut to = CountingReader { stream: &mut tunnel.stream, read: 0 };
        let copied = copy_both(&node, proof, &mut from, &mut to, || Ok(())).await;
        let bytes = [from.read, to.read];
        (stream.done, tunnel.done) = (copied.is_ok(), copied.is_ok());
        let copied = copied.map_err(|stop| match stop {
            Stop::Refused(reason) | Stop::Failed(reason) => reason,
        });
        (copied, bytes)
    }
}

impl Reset for PodTunnel {
    fn reset(&mut self) {
        self.io.reset();
    }
}

impl AsyncRead for PodTunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl AsyncWrite for PodTunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Connects from a pod's network. The peer identifies the caller by its certificate.
struct OfPod(Arc<dyn PodNetwork>);

impl InstanceProof for OfPod {
    fn connect(&self, address: SocketAddr) -> Connect<'_> {
        Box::pin(async move {
            let bound = self.0.bind_out(address).await?;
            Ok(bound.dial.await?)
        })
    }
}

#[cfg(test)]
mod tests;
