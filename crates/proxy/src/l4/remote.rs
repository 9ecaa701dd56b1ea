//! TCP connections to a function on another node: a CONNECT stream (RFC 9113, 8.5) to the callee's
//! sidecar, over mutual TLS. That sidecar judges, and connects to an instance.

use super::Stop;
use super::framed::FramedStream;
use crate::pipeline::pool::{CalleeKey, CheckedOutHttp2, ConnectError, ConnectionKey, StreamSlot};
use crate::pipeline::worker::Worker;
use crate::state::certificate::PeerCertificate;
use crate::state::endpoints::{Among, Choice, FunctionEndpoints, UnderWay};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use leno_http::body::Body;
use leno_http::hop;
use leno_http::http2::{Bidirectional, TunnelHandle, Upgrading};
use leno_model::FunctionId;
use leno_namespaces::Namespace;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
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

/// A function on another node, and who calls it.
pub(super) struct RemoteCallee<'a> {
    pub worker: &'a Worker,
    pub callee: &'a FunctionId,
    /// The identities of the caller and of the callee.
    pub identities: (Arc<str>, Arc<str>),
    /// The caller's namespace.
    pub share: Option<&'a Arc<Namespace>>,
    /// The called host and port. For an external service, the node there must know which of its names
    /// or addresses was called.
    pub authority: String,
    /// The server name of its TLS hello; empty: it is not TLS.
    pub name: &'a str,
    /// The client, if the caller is a gateway.
    pub client: Option<hop::Client>,
}

impl RemoteCallee<'_> {
    /// Opens a stream to a node that hosts the callee. If the connection fails, it tries another
    /// node.
    pub(super) async fn connect(&self, known: &FunctionEndpoints) -> Result<Stream, Stop> {
        let (worker, mut failed) = (self.worker, Vec::new());
        let target = worker.node.policy_state.health.get(self.callee);
        let mut last = "no other node hosts it".to_owned();
        while failed.len() < MOST_NODES {
            let choice = Choice { target: &target, not: &failed, now: Instant::now() };
            let among = |among| worker.node.endpoints.choose(known, choice, among, |max| worker.random.up_to(max));
            let chosen = among(Among::Ready).or_else(|| among(Among::Homes)).or_else(|| among(Among::Avoided));
            let Some(candidate) = chosen else { break };
            let address = candidate.endpoint.address;
            let key = ConnectionKey { address, callee: CalleeKey::Sidecar(self.identities.clone()) };
            let limits = (CONNECT, &worker.snapshot().mesh.limits.upstream);
            let uncounted = |_| Some(None);
            match worker.pool.http2(&key, None, &worker.node.svids, (self.share, uncounted), limits).await {
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
        *request.uri_mut() = self.authority.parse::<Uri>().map_err(|error| failed(&error))?;
        if !self.name.is_empty() {
            let name = HeaderValue::try_from(self.name).map_err(|error| failed(&error))?;
            request.headers_mut().insert(hop::SERVER_NAME, name);
        }
        if let Some(client) = self.client.and_then(|client| client.value()) {
            request.headers_mut().insert(hop::CLIENT, client);
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
