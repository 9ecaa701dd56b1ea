//! TCP connections to a function on another node: a CONNECT stream (RFC 9113, 8.5) to the callee's
//! sidecar, over mutual TLS. That sidecar judges, and connects to an instance.

use super::framed::FramedStream;
use super::{Stop, TcpProxy};
use crate::pipeline::pool::{CalleeKey, CheckedOutHttp2, ConnectError, ConnectionKey, StreamSlot};
use crate::state::certificate::PeerCertificate;
use crate::state::endpoints::{Among, Choice, FunctionEndpoints, UnderWay};
use crate::state::function::FunctionEntry;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use leno_http::body::Body;
use leno_http::hop;
use leno_http::http2::{Bidirectional, TunnelHandle, Upgrading};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Longest time to connect to a node, including TLS.
const CONNECT: Duration = Duration::from_secs(2);
/// Limit on the nodes tried for one connection.
const MOST_NODES: usize = 4;

/// A stream to the callee's sidecar.
pub(super) struct Stream {
    pub io: FramedStream<Box<dyn Bidirectional>>,
    // Kept as long as the stream is open.
    slot: StreamSlot,
    _under_way: UnderWay,
}

impl Stream {
    /// The certificate of the callee's sidecar.
    pub(super) fn certificate(&self) -> Option<PeerCertificate> {
        self.slot.certificate()
    }
}

impl TcpProxy {
    /// Opens a stream to a node that hosts the callee. If the connection fails, it tries another
    /// node.
    pub(super) async fn connect_remote(
        &self,
        caller: &FunctionEntry,
        known: &FunctionEndpoints,
    ) -> Result<Stream, Stop> {
        let (worker, mut failed) = (&self.worker, Vec::new());
        let target = worker.node.policy_state.health.get(&self.callee.id);
        let mut last = "no other node hosts it".to_owned();
        while failed.len() < MOST_NODES {
            let choice = Choice { target: &target, not: &failed, now: Instant::now() };
            let among = |among| worker.node.endpoints.choose(known, choice, among, |max| worker.random.up_to(max));
            let chosen = among(Among::Ready).or_else(|| among(Among::Homes)).or_else(|| among(Among::Avoided));
            let Some(candidate) = chosen else { break };
            let address = candidate.endpoint.address;
            let identities = (caller.identity.clone(), (&self.callee.identity).into());
            let key = ConnectionKey { address, callee: CalleeKey::Sidecar(identities) };
            let limits = (CONNECT, &worker.snapshot().mesh.limits.upstream);
            let uncounted = |_| Some(None);
            match worker.pool.http2(&key, None, &worker.node.svids, (caller.share(), uncounted), limits).await {
                Ok(connection) => return self.open_stream(connection, candidate.begin(), address).await,
                Err(ConnectError::Bound(reason)) => return Err(Stop::Refused(reason)),
                Err(error) => {
                    worker.node.endpoints.unreachable(address, Instant::now());
                    worker.recorder.metrics().unreachable(&candidate.endpoint.node);
                    last = format!("no connection to {address}: {error}");
                    failed.push(address);
                }
            }
        }
        Err(Stop::Failed(last))
    }

    async fn open_stream(
        &self,
        CheckedOutHttp2 { mut sender, stream, .. }: CheckedOutHttp2,
        under_way: UnderWay,
        address: SocketAddr,
    ) -> Result<Stream, Stop> {
        let failed = |error: &dyn std::fmt::Display| Stop::Failed(format!("{address} does not take it: {error}"));
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::CONNECT;
        // For an external service, the node there must know which of its names or addresses was
        // called.
        let authority = format!("{}:{}", self.host()?, self.port.number);
        *request.uri_mut() = authority.parse::<Uri>().map_err(|error| failed(&error))?;
        if !self.name.is_empty() {
            let name = HeaderValue::try_from(&self.name).map_err(|error| failed(&error))?;
            request.headers_mut().insert(hop::SERVER_NAME, name);
        }
        let Ok(sent) = sender.send(request, |_| Ok::<_, Infallible>(())).await;
        let mut response = sent.map_err(|error| failed(&error.error))?;
        match response.status() {
            StatusCode::OK => {
                let tunnel = response.extensions_mut().remove::<TunnelHandle>().ok_or_else(|| failed(&"no stream"))?;
                let tunnel = Upgrading::Ready(tunnel).done().await.map_err(|error| failed(&error))?;
                Ok(Stream { io: FramedStream::new(tunnel), slot: stream, _under_way: under_way })
            }
            StatusCode::FORBIDDEN => Err(Stop::Refused(format!("the callee's node refuses it ({address})"))),
            status => Err(failed(&status)),
        }
    }
}
