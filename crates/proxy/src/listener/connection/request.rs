//! Serves one request of a connection.

use super::Connection;
use super::open::OpenConnection;
use crate::pipeline::exchange::{Arrival, Exchange, Origin};
use crate::pipeline::probe::Probe;
use crate::pipeline::worker::PinnedSnapshot;
use crate::pipeline::{reply, upgrade};
use crate::state::in_flight::InFlight;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use leno_http::body::{Body, ends_empty, says_empty};
use leno_http::failure::Failure;
use leno_http::head::HeadError;
use leno_http::http2::Upgrading;
use leno_http::interim::InterimQueue;
use leno_http::peer::{Peer, TrafficDirection};
use leno_http::wire::WireBody;
use leno_http::{forwarded, head, hop};
use leno_model::TrustedProxies;
use leno_policy::spec::Protocol;
use leno_telemetry::record::Record;
use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The request gets no answer: the server ends the connection, or over HTTP/2 refuses the stream.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the program of the pod has gone, and the connection with it")]
pub(in crate::listener) struct SilentEnd;

impl Connection {
    /// Serves one request. `on_upgrade` is the stream after an upgrade. `interim` takes interim
    /// responses, and has the limit of the client on the bytes of a head. The future is boxed
    /// because it is large, and its callers are moved.
    pub(in crate::listener) fn handle(
        self: Rc<Self>,
        request: Request<WireBody>,
        on_upgrade: Option<Upgrading>,
        interim: (Option<Arc<InterimQueue>>, u32),
    ) -> Pin<Box<impl Future<Output = Response<Body>>>> {
        let (head, body) = request.into_parts();
        bounded(self.handle_request(Box::new(head), body, on_upgrade, interim))
    }

    /// Serves one HTTP/1.1 request.
    pub(super) fn handle_http1(
        self: Rc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, SilentEnd>> {
        let on_upgrade = request.extensions_mut().remove::<OnUpgrade>().map(Upgrading::Hyper);
        // HTTP/1.0 has no interim responses (RFC 9110, 15.2).
        let interim = (request.version() != Version::HTTP_10).then(|| self.activity.interim().clone());
        let response = self.clone().handle(request.map(WireBody::from), on_upgrade, (interim, u32::MAX));
        async move {
            let response = response.await;
            let waiting = self.activity.interim();
            if waiting.is_waiting() {
                // They go out before the response. The stream wakes this task.
                poll_fn(|_| if waiting.is_waiting() { Poll::Pending } else { Poll::Ready(()) }).await;
            }
            if let Some(end) = response.extensions().get::<SilentEnd>() {
                return Err(end.clone());
            }
            Ok(response)
        }
    }

    async fn handle_request(
        self: Rc<Self>,
        // Boxed, because otherwise it would take space twice in each future on its way.
        mut head: Box<request::Parts>,
        body: WireBody,
        on_upgrade: Option<Upgrading>,
        (interim, client_head): (Option<Arc<InterimQueue>>, u32),
    ) -> Response<Body> {
        let busy = self.activity.begin();
        if self.carries_tunnels {
            return Box::pin(self.open_pod_tunnel(on_upgrade, &head, busy)).await;
        }
        let is_kept = self.is_kept.replace(true);
        let http2 = head.version == Version::HTTP_2;
        let is_tunnel = !http2 && head.method == Method::CONNECT;
        let is_ending = || self.pod.as_ref().is_some_and(|pod| pod.notice.is_given(false));
        let is_last = || is_tunnel || !http2 && (self.is_leaving() || is_ending());
        let found = match self.authenticate(&head.headers).await {
            Ok(caller) => self.origin(caller),
            Err(failure) => Err(failure),
        };
        let (snapshot, origin) = match found {
            Ok(found) => found,
            Err(failure) => return self.adapt_response(self.reject(&head, &failure), http2, is_last()),
        };
        if head.method == Method::CONNECT
            && head.extensions.get::<h2::ext::Protocol>().is_none()
            && head::check_connect(&head).is_ok()
            && self.opens_tunnel(&origin, &head)
        {
            self.tunnel(on_upgrade, origin, busy);
            return Response::new(Body::empty());
        }
        if let Some(pod) = &self.pod
            && let Some(probe) = Probe::of(pod, &head, &body)
        {
            let mut response = Box::pin(probe.answer(&self.worker, *head, body)).await;
            response.body_mut().occupy(busy);
            return response;
        }
        if let Origin::Inbound(entry) = &origin
            && self.pod.is_none()
            && head.method == Method::CONNECT
            && head.extensions.get::<h2::ext::Protocol>().is_none()
        {
            return self.relay(on_upgrade, entry, &head, busy).await;
        }
        let mut response = match Exchange::begin(
            Arrival { interim, client_head, ..self.arrival(snapshot, origin, &head.headers) },
            &mut head,
        ) {
            (exchange, Ok(())) if let Some(location) = exchange.https_location(&head) => {
                exchange.fail(Failure::HttpsOnly(location))
            }
            (exchange, Ok(())) => {
                let body = if http2 && says_empty(&body) { Box::pin(self.empty(body)).await } else { Ok(body) };
                match body {
                    Ok(body) => {
                        let body = Body::request(body, exchange.record.meter(), &self.activity);
                        exchange.run(head, body, None).await
                    }
                    Err(malformed) => exchange.fail(malformed.into()),
                }
            }
            (exchange, Err(malformed)) => exchange.fail(malformed.into()),
        };
        if upgrade::begins_tunnel(response.extensions()) {
            let is_last = is_tunnel && response.status() == StatusCode::SWITCHING_PROTOCOLS;
            let open = OpenConnection::new(&self.worker, self.direction);
            upgrade::join(on_upgrade, &mut response, (busy.into_tunnel(), open, self.attribution.clone()));
            return self.adapt_response(response, http2, is_last);
        }
        if is_kept
            && let Some(pod) = &self.pod
            && matches!(response.extensions().get(), Some(Failure::Connect { .. }))
        {
            // Its program has gone since the last request. Clients send a request again of which
            // nothing was answered, as on any connection that its server closes.
            pod.notice.give(http2);
            response.extensions_mut().insert(SilentEnd);
        }
        response.body_mut().occupy(busy);
        self.adapt_response(response, http2, is_last())
    }

    /// Collects the facts about a request besides its head. At the gateway, trusted proxies may
    /// name another client and scheme.
    fn arrival(&self, snapshot: Rc<PinnedSnapshot>, origin: Origin, headers: &HeaderMap) -> Arrival<'_> {
        let (mut peer, mut client, mut scheme, mut port, mut via_gateway) =
            (self.peer.clone(), None, "http", None, false);
        let (mut timeout, mut is_retry, mut is_unshared, mut hop_terms) = (None, false, false, Ok(None));
        match &origin {
            Origin::Gateway => {
                let reported = match &snapshot.mesh.trusted_proxies {
                    TrustedProxies::None => None,
                    TrustedProxies::Addresses(trusted) => forwarded::by_address(trusted, peer.address.ip(), headers),
                    TrustedProxies::Hops(hops) => Some(forwarded::by_hops(*hops, headers)),
                };
                scheme = reported.and_then(|reported| reported.scheme).unwrap_or(self.scheme);
                port = Some(self.port);
                let address =
                    reported.and_then(|reported| reported.address).filter(|address| *address != peer.address.ip());
                client = Some(match address {
                    Some(address) => Cow::Owned(head::address_value(address)),
                    None => Cow::Borrowed(self.client()),
                });
                if let Some(address) = address {
                    // The client's port is unknown.
                    peer.address = SocketAddr::new(address, 0);
                }
            }
            Origin::Outbound(caller, _) => peer.identity = Some(caller.identity.clone()),
            // Fields of the mesh that come from no sidecar mean nothing.
            Origin::Inbound(_) if self.pod.is_some() => port = Some(self.port),
            Origin::Inbound(_) => {
                (timeout, is_retry, is_unshared) =
                    (hop::timeout(headers), hop::is_retry(headers), hop::is_unshared(headers));
                hop_terms = hop::RouteTerms::from_headers(headers).map(|terms| terms.map(Box::new));
                if let Ok(Some(terms)) = &hop_terms
                    && terms.is_limited_by_caller
                {
                    self.activity.allow(timeout.unwrap_or(Duration::MAX));
                }
                // A request from another node's gateway is judged as if it had arrived here: the
                // caller is the gateway's client.
                if peer.identity.as_deref() == Some(&*snapshot.gateway)
                    && let Some(behind) = hop::Client::from_headers(headers)
                {
                    peer = Peer { identity: None, address: behind.address };
                    (scheme, port, via_gateway) = (behind.scheme, Some(behind.port), true);
                }
            }
        }
        let parent = origin.parent();
        Arrival {
            client,
            scheme,
            port,
            via_gateway,
            hop_terms,
            certificate: self.certificate,
            pod: self.pod.clone(),
            timeout,
            is_retry: is_retry || parent.as_deref().is_some_and(InFlight::is_retry),
            is_unshared,
            ..Arrival::new(self.worker.clone(), snapshot, origin, peer, parent)
        }
    }

    /// The peer's address as a header value.
    fn client(&self) -> &HeaderValue {
        self.client.get_or_init(|| head::address_value(self.peer.address.ip()))
    }

    /// Waits for the end of a body that is announced as empty.
    async fn empty(&self, mut body: WireBody) -> Result<WireBody, HeadError> {
        let limit = self.worker.snapshot().mesh.limits.head_timeout;
        let is_empty = tokio::time::timeout(limit, ends_empty(&mut body)).await.unwrap_or(false);
        if is_empty { Ok(body) } else { Err(HeadError::NotEmpty) }
    }

    /// Whether the client must connect anew, because the listener belongs to another process after
    /// a hot restart. Instances of this process stay with it.
    pub(super) fn is_leaving(&self) -> bool {
        self.direction != TrafficDirection::Outbound && self.worker.connections.are_handed_over()
    }

    /// Answers a request without a valid origin: its function is unknown, or its credential is
    /// refused. Records it like any other request.
    fn reject(&self, head: &request::Parts, failure: &Failure) -> Response<Body> {
        let request_id = self.worker.request_id();
        let protocol = if head.version == Version::HTTP_2 { Protocol::Http2 } else { Protocol::Http1 };
        let name = request_id.to_str().unwrap_or_default();
        let record = Record::new(&self.worker.recorder, self.direction, &self.peer, protocol, head, name);
        record.failure(failure);
        let mut response = reply::rejected(failure, request_id, &head.headers);
        record.status(response.status().as_u16());
        if self.direction == TrafficDirection::Inbound && self.pod.is_none() {
            // The caller's sidecar sends the request to another node.
            response.extensions_mut().insert(failure.clone());
        }
        response
    }

    /// Adapts a response to the client's connection. `is_last`: the connection closes after it.
    /// Either the client must connect anew, or it requested a tunnel over HTTP/1.1 and gets none.
    /// It may already have sent bytes into the tunnel, which must not be parsed as requests.
    fn adapt_response(&self, mut response: Response<Body>, http2: bool, is_last: bool) -> Response<Body> {
        if is_last {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.direction == TrafficDirection::Inbound
            && self.pod.is_none()
            && let Some(label) = response.extensions().get::<Failure>().and_then(Failure::label)
        {
            response.headers_mut().insert(head::HOP_FAILURE, HeaderValue::from_static(label));
        }
        if http2 && response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (mut head, body) = response.into_parts();
            head::into_extended_connected(&mut head);
            response = Response::from_parts(head, body);
        }
        response
    }
}

/// Boxes the future of a request, which must stay small because each open request has one.
fn bounded<F>(future: F) -> Pin<Box<F>> {
    const { assert!(size_of::<F>() < 8 * 1024, "the future of a request takes 8 KiB or more") };
    Box::pin(future)
}
