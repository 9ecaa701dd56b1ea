//! Probes of the kubelet. They pass as if the node were not there: nothing judges or counts them,
//! because a policy that refused one would have the kubelet end the pod.

use crate::pipeline::pool::{CheckedOutHttp1, CheckedOutHttp2, ConnectError, ConnectionKey, SendError};
use crate::pipeline::upstream::CONNECT;
use crate::pipeline::worker::Worker;
use crate::state::instances::Lease;
use crate::state::pods::PodConnection;
use http::{Method, Request, Response, StatusCode, Version, request};
use http_body::Body as _;
use leno_http::body::Body;
use leno_http::head;
use leno_http::wire::WireBody;
use leno_model::UpstreamLimits;
use std::convert::Infallible;
use std::rc::Rc;

/// A request that the kubelet has sent, as far as the node can tell: from an address of the node, to
/// a port and path that the pod names for its probes.
pub(crate) struct Probe {
    connection: Rc<PodConnection>,
    is_http2: bool,
}

/// Why a probe got no answer.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Http1(#[from] hyper::Error),
    #[error("{}", .0.error)]
    Http2(SendError),
    #[error("{0}")]
    Head(#[from] head::HeadError),
}

impl Probe {
    /// `None`: the request is no probe.
    pub(crate) fn of(connection: &Rc<PodConnection>, head: &request::Parts, body: &WireBody) -> Option<Self> {
        let path = head.uri.path_and_query()?.as_str();
        let is_http2 = head.version == Version::HTTP_2;
        let is_probe = match is_http2 {
            true => head.method == Method::POST && connection.is_grpc_probe(path),
            false => head.method == Method::GET && body.is_end_stream() && connection.is_http_probe(path),
        };
        is_probe.then(|| Self { connection: connection.clone(), is_http2 })
    }

    /// Sends the probe to the pod's program. If there is no answer, the response is a 502, and the
    /// probe has failed.
    pub(crate) async fn answer(&self, worker: &Worker, head: request::Parts, body: WireBody) -> Response<Body> {
        let request = Request::from_parts(head, Body::from(body));
        let limits = &worker.snapshot().mesh.limits.upstream;
        let lease = self.connection.lease();
        let answered = match self.is_http2 {
            true => self.over_http2(worker, &lease, request, limits).await,
            false => self.over_http1(worker, &lease, request, limits).await,
        };
        answered.map_or_else(
            |error| {
                tracing::debug!(pod = &*self.connection.pod.name, %error, "a probe has failed");
                let mut failed = Response::new(Body::empty());
                *failed.status_mut() = StatusCode::BAD_GATEWAY;
                failed
            },
            |response| response.map(Body::from),
        )
    }

    async fn over_http1(
        &self,
        worker: &Worker,
        lease: &Lease,
        request: Request<Body>,
        limits: &UpstreamLimits,
    ) -> Result<Response<WireBody>, ProbeError> {
        let key = ConnectionKey::pod(&self.connection);
        let connected = worker.pool.connect_http1(&key, &*lease.guard, (None, None), (CONNECT, limits));
        let CheckedOutHttp1 { mut connection, .. } = connected.await?;
        Ok(connection.sender.send_request(request).await?.map(WireBody::from))
    }

    async fn over_http2(
        &self,
        worker: &Worker,
        lease: &Lease,
        request: Request<Body>,
        limits: &UpstreamLimits,
    ) -> Result<Response<WireBody>, ProbeError> {
        let (mut head, body) = request.into_parts();
        head::into_http2(&mut head, &http::uri::Scheme::HTTP)?;
        let (key, uncounted) = (ConnectionKey::pod(&self.connection), |_| Some(None));
        let connected =
            worker.pool.http2(&key, Some(&*lease.guard), &worker.node.svids, (None, uncounted), (CONNECT, limits));
        let CheckedOutHttp2 { mut sender, .. } = connected.await?;
        let Ok(sent) = sender.send(Request::from_parts(head, body), |_| Ok::<_, Infallible>(())).await;
        sent.map_err(ProbeError::Http2)
    }
}
