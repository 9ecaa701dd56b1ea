//! Tunnels to a pod (HBONE): a CONNECT names the port, and its stream is a connection to the pod.

use super::Connection;
use super::open::OpenConnection;
use crate::l4::pods::{PodClient, PodTcp, TunnelRefusal};
use crate::listener::pods::serve_inbound;
use crate::listener::tunnels;
use crate::state::pods::{PodConnection, canonical};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, request};
use leno_http::activity::Busy;
use leno_http::body::Body;
use leno_http::head::REQUEST_ID;
use leno_http::http2::Upgrading;
use leno_namespaces::{Permit, Resource};
use leno_runtime::schedule;
use std::net::SocketAddr;
use std::rc::Rc;

/// RFC 9209.
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// An answer other than 200, and its error type (RFC 9209, 2.3).
type Refused = (StatusCode, &'static str);

const MALFORMED: Refused = (StatusCode::BAD_REQUEST, "http_request_error");
/// Istio's proxies answer with 401 where a policy denies.
const DENIED: Refused = (StatusCode::UNAUTHORIZED, "http_request_denied");
const FULL: Refused = (StatusCode::SERVICE_UNAVAILABLE, "connection_limit_reached");
const UNREACHABLE: Refused = (StatusCode::SERVICE_UNAVAILABLE, "connection_refused");

impl Connection {
    /// Opens a tunnel, and serves its connection. Header fields prove nothing and are not read.
    pub(super) async fn open_pod_tunnel(
        &self,
        on_upgrade: Option<Upgrading>,
        head: &request::Parts,
        busy: Busy,
    ) -> Response<Body> {
        let opened = match (&self.pod, on_upgrade) {
            (Some(pod), Some(on_upgrade)) => self.begin_pod_tunnel(pod, head).await.map(|begun| (begun, on_upgrade)),
            _ => Err(self.refuse_tunnel("it is no CONNECT", MALFORMED)),
        };
        match opened {
            Ok(((connection, client, permit), on_upgrade)) => {
                let (worker, attribution) = (self.worker.clone(), self.attribution.clone());
                let (mut open, tunnel) = (OpenConnection::new(&worker, self.direction), busy.into_tunnel());
                if let Some(attribution) = attribution {
                    open.set_attribution(attribution);
                }
                schedule::spawn(async move {
                    let _held = (tunnel, permit, connection.pod.open_with(connection.notice.clone()));
                    match on_upgrade.tunnel().await {
                        Ok(stream) => serve_inbound(&worker, &connection, &client, stream.strict(), &open).await,
                        Err(error) => tracing::debug!(%error, "a tunnel was gone before it could be used"),
                    }
                });
                Response::new(Body::empty())
            }
            Err((status, error)) => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = status;
                let headers = response.headers_mut();
                headers.insert(REQUEST_ID, self.worker.request_id());
                if let Ok(error) = HeaderValue::try_from(format!("leno; error={error}")) {
                    headers.insert(PROXY_STATUS, error);
                }
                response
            }
        }
    }

    async fn begin_pod_tunnel(
        &self,
        pod: &PodConnection,
        head: &request::Parts,
    ) -> Result<(Rc<PodConnection>, PodClient, Option<Permit>), Refused> {
        if head.method != Method::CONNECT || head.extensions.get::<h2::ext::Protocol>().is_some() {
            return Err(self.refuse_tunnel("it is no CONNECT for TCP", MALFORMED));
        }
        let authority = head.uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let Some(called) = called(pod, authority) else {
            let reason = format!("it names `{authority}`, and not an address of this pod and a port");
            return Err(self.refuse_tunnel(&reason, MALFORMED));
        };
        if self.peer.identity.is_none() {
            return Err(self.refuse_tunnel("its certificate is not that of a workload", DENIED));
        }
        let client = PodClient { peer: self.peer.clone(), caller: None, certificate: self.certificate };
        let share = self.worker.node.telemetry.namespaces.of(&pod.pod.function().namespace);
        // Each stream takes another descriptor of the node.
        let Some(permit) = share.take(Resource::Connections) else {
            return Err(self.refuse_tunnel(&share.refusal(Resource::Connections), FULL));
        };
        let connection = Rc::new(pod.tunnel(called, self.activity.begun()));
        match PodTcp::new(&self.worker, &connection, &client).begin().await {
            Ok(()) => Ok((connection, client, Some(permit))),
            Err(TunnelRefusal::Denied) => Err(DENIED),
            Err(TunnelRefusal::Unreachable) => Err(UNREACHABLE),
        }
    }

    /// Reports a CONNECT that opens no tunnel.
    fn refuse_tunnel(&self, reason: &str, refused: Refused) -> Refused {
        if let Some(pod) = &self.pod {
            tunnels::report(&self.worker, pod, self.peer.identity.as_deref().unwrap_or_default(), reason);
        }
        refused
    }
}

/// The address of the pod and the port that a CONNECT names. `None`: it names something else.
fn called(pod: &PodConnection, authority: &str) -> Option<SocketAddr> {
    let address = authority.parse::<SocketAddr>().ok()?;
    let called = canonical(address);
    let is_own = called.ip() == pod.called.ip() || pod.pod.has_address(called.ip());
    (is_own && called.port() != 0 && !pod.pod.takes_tunnels_at(called.port())).then_some(called)
}
