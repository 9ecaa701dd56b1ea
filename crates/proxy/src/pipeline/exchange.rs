//! One exchange: a request and its response.

use crate::pipeline::judge::Permit;
use crate::pipeline::worker::{PinnedSnapshot, Worker};
use crate::state::certificate::PeerCertificate;
use crate::state::credential::Caller;
use crate::state::function::FunctionEntry;
use crate::state::in_flight::InFlight;
use crate::state::pods::PodConnection;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Version, request};
use leno_http::failure::Failure;
use leno_http::head::{HeadError, RequestKind};
use leno_http::interim::{Interim, InterimQueue, MAX_INTERIM_BYTES, cost, is_passed_on};
use leno_http::peer::{Peer, TrafficDirection};
use leno_http::{head, hop};
use leno_model::BackendTarget;
use leno_namespaces::Namespace;
use leno_policy::spec::Protocol;
use leno_telemetry::record::Record;
use std::borrow::Cow;
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// One exchange, without its head and body.
pub(crate) struct Exchange {
    pub worker: Rc<Worker>,
    /// The configuration that the exchange sees from beginning to end.
    pub snapshot: Rc<PinnedSnapshot>,
    pub origin: Origin,
    /// The sender: the peer of the connection or, at the gateway, the client that trusted proxies
    /// name.
    pub peer: Peer,
    /// The protocol, as policies see it.
    pub protocol: Protocol,
    /// The client asks for a WebSocket; a client of a pod, also for another protocol or a tunnel.
    pub upgrade: bool,
    /// The scheme that the client used: `http` or `https`.
    pub scheme: &'static str,
    /// The listener's port at the gateway; else the called port.
    pub port: u16,
    /// The `x-request-id`: the same from one end of the mesh to the other.
    pub request_id: HeaderValue,
    /// The parent request: the only one that the calling instance is handling. `None`: it handles
    /// none, or several.
    pub parent: Option<Arc<InFlight>>,
    /// Reported once, when the exchange ends.
    pub record: Record,
    /// When the exchange began: its head was complete.
    pub started: Instant,
    /// The exchange is a local delivery, or a call to an authorizer, of another exchange on this
    /// thread. The worker's time stays charged to the other one's function.
    pub is_nested: bool,
    /// The method is CONNECT: a successful response begins a tunnel.
    pub connects: bool,
    /// The method is HEAD, so the response has no body.
    pub head_only: bool,
    /// The proxy marks responses that it makes itself ([`crate::pipeline::reply::OwnResponse`]).
    pub tells_own: bool,
    /// The request is a retry, or is made for one.
    pub is_retry: bool,
    /// The request is a call to an authorizer. Over HTTP/1.1 it gets a new connection for itself,
    /// so a late second answer cannot be taken for the answer to the next call.
    pub is_unshared: bool,
    /// Another node's gateway let the request in: the peer, scheme and port are the client's.
    pub via_gateway: bool,
    /// The decisions of the route that the caller's sidecar followed; `None`: none.
    pub hop_terms: Option<Box<hop::RouteTerms>>,
    /// The connection to a pod, if the request came on one. It goes to that very pod.
    pub pod: Option<Rc<PodConnection>>,
    /// The certificate that identifies the caller; `None`: the caller is identified by other means.
    pub certificate: Option<PeerCertificate>,
    /// Bytes of a response's head that the client takes, as HTTP/2 counts them
    /// (SETTINGS_MAX_HEADER_LIST_SIZE).
    pub client_head: u32,
    /// Where interim responses go; `None`: to a client that takes none.
    interim: Option<Arc<InterimQueue>>,
    /// Bytes of interim responses that may still be passed on.
    interim_left: Cell<usize>,
    /// The content type of a gRPC call, where it says more than `application/grpc`.
    pub grpc_type: Option<HeaderValue>,
    /// When the caller stops waiting, and how long that was from the beginning; `None`: the request
    /// names no time.
    caller_deadline: Option<(Instant, Duration)>,
}

/// The facts about a request besides its head and body.
pub(crate) struct Arrival<'a> {
    pub worker: Rc<Worker>,
    /// The snapshot that the request is judged by.
    pub snapshot: Rc<PinnedSnapshot>,
    pub origin: Origin,
    /// The sender; at the gateway, the client that trusted proxies name.
    pub peer: Peer,
    /// See [`Exchange::parent`].
    pub parent: Option<Arc<InFlight>>,
    /// At the gateway: the client's address as a header value.
    pub client: Option<Cow<'a, HeaderValue>>,
    /// The scheme that the client used: `http` or `https`.
    pub scheme: &'static str,
    /// `None`: the port that the head names.
    pub port: Option<u16>,
    /// See [`Exchange::via_gateway`].
    pub via_gateway: bool,
    /// See [`Exchange::hop_terms`]; an error: the caller's sidecar names some that cannot be read.
    pub hop_terms: Result<Option<Box<hop::RouteTerms>>, HeadError>,
    /// See [`Exchange::pod`].
    pub pod: Option<Rc<PodConnection>>,
    /// Inbound: the certificate of the caller's sidecar.
    pub certificate: Option<PeerCertificate>,
    /// Where interim responses go; `None`: the client takes none.
    pub interim: Option<Arc<InterimQueue>>,
    /// Bytes of a response's head that the client takes, as HTTP/2 counts them.
    pub client_head: u32,
    /// How long the caller waits; `None`: it does not say.
    pub timeout: Option<Duration>,
    /// See [`Exchange::is_nested`].
    pub is_nested: bool,
    /// See [`Exchange::is_retry`].
    pub is_retry: bool,
    /// See [`Exchange::is_unshared`].
    pub is_unshared: bool,
    /// See [`Exchange::tells_own`].
    pub tells_own: bool,
}

impl Arrival<'_> {
    /// A request that comes over no socket. `parent` is the request that it is made for.
    pub(crate) fn new(
        worker: Rc<Worker>,
        snapshot: Rc<PinnedSnapshot>,
        origin: Origin,
        peer: Peer,
        parent: Option<Arc<InFlight>>,
    ) -> Self {
        Self {
            worker,
            snapshot,
            origin,
            peer,
            is_retry: parent.as_deref().is_some_and(InFlight::is_retry),
            parent,
            client: None,
            scheme: "http",
            port: None,
            via_gateway: false,
            hop_terms: Ok(None),
            pod: None,
            certificate: None,
            interim: None,
            client_head: u32::MAX,
            timeout: None,
            is_nested: false,
            is_unshared: false,
            tells_own: false,
        }
    }
}

/// The origin of an exchange, with the function on whose side it is.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// From outside the mesh.
    Gateway,
    /// From an instance of this function, which its credential names. `None`: from a component
    /// instance in this node, which needs no credential.
    Outbound(Arc<FunctionEntry>, Option<Arc<Caller>>),
    /// To this function, from a caller's sidecar.
    Inbound(Arc<FunctionEntry>),
}

impl Exchange {
    /// Begins an exchange for a head from a socket, and prepares the head for the pipeline. The
    /// exchange exists even if the head is malformed, so that it can be answered and recorded.
    pub(crate) fn begin(mut arrival: Arrival<'_>, head: &mut request::Parts) -> (Self, Result<(), HeadError>) {
        // Only sidecars connect to the inbound listener.
        let is_unnamed = !arrival.via_gateway && arrival.peer.identity.as_ref() == Some(&arrival.snapshot.gateway);
        let client = arrival.client.take();
        let unread = arrival.hop_terms.as_ref().map_or_else(|error| Err(*error), |_| Ok(()));
        let (exchange, admitted) = Self::admit(arrival, head);
        if let Some(client) = client {
            head::describe_client(&mut head.headers, &client, exchange.scheme);
        }
        let admitted = admitted.and(unread);
        (exchange, if is_unnamed { admitted.and(Err(HeadError::Client)) } else { admitted })
    }

    /// Begins an exchange for a call that an instance makes without a connection: a component in
    /// this node, or one with a link.
    pub(crate) fn call(arrival: Arrival<'_>, head: &mut request::Parts) -> (Self, Result<(), HeadError>) {
        let (exchange, admitted) = Self::admit(arrival, head);
        // Such a call has no connection that could become a tunnel.
        let tunnel = exchange.upgrade || head.method == Method::CONNECT;
        (exchange, admitted.and(if tunnel { Err(HeadError::Method) } else { Ok(()) }))
    }

    fn admit(arrival: Arrival<'_>, head: &mut request::Parts) -> (Self, Result<(), HeadError>) {
        let direction = match &arrival.pod {
            None => arrival.origin.direction(),
            // It comes from a program itself, without a sidecar.
            Some(_) => TrafficDirection::Outbound,
        };
        let kept = head
            .headers
            .get(head::REQUEST_ID)
            .filter(|id| direction != TrafficDirection::Gateway && head::is_sane_request_id(id))
            .map(head::own)
            .or(arrival.parent.as_deref().map(|parent| parent.request_id.clone()));
        let request_id = kept.unwrap_or_else(|| arrival.worker.request_id());
        let limits = &arrival.snapshot.mesh.limits;
        let admitted = if head.headers.len() > limits.headers as usize {
            Err(HeadError::TooManyHeaders)
        } else if head.version == Version::HTTP_2 && is_large(head, limits.head_bytes) {
            // HTTP/1.1's parser has a limit itself.
            Err(HeadError::LargeHead)
        } else {
            Self::admit_head(&arrival, head, direction)
        };
        let kind = admitted.unwrap_or(RequestKind { protocol: Protocol::Http1, upgrade: false });
        let exchange = Self::new(arrival, kind, request_id, head);
        head.headers.insert(head::REQUEST_ID, exchange.request_id.clone());
        (exchange, admitted.map(|_| ()))
    }

    /// A permissive pod also gets requests for tunnels and for other protocols.
    fn admit_head(
        arrival: &Arrival<'_>,
        head: &mut request::Parts,
        direction: TrafficDirection,
    ) -> Result<RequestKind, HeadError> {
        let Some(connection) = &arrival.pod else { return head::admit(head, direction) };
        let other = head::other_upgrade(head).filter(|_| !connection.pod.is_enforced());
        let kind = head::admit(head, direction)?;
        if head.method == Method::CONNECT {
            // Over HTTP/2, the stream becomes the tunnel, and no protocol is switched.
            let upgrade = head.version != Version::HTTP_2;
            let refused = connection.pod.is_enforced();
            return if refused { Err(HeadError::Method) } else { Ok(RequestKind { upgrade, ..kind }) };
        }
        let Some(other) = other else { return Ok(kind) };
        head::set_upgrade(&mut head.headers, other);
        Ok(RequestKind { upgrade: true, ..kind })
    }

    /// The callee's side of the same request, for local delivery: without a socket, TLS or a second
    /// parse. `is_retry`: this attempt is a retry, or is made for one. `hop_terms`: see
    /// [`Exchange::hop_terms`].
    pub(crate) fn for_local_delivery(
        &self,
        callee: &Arc<FunctionEntry>,
        caller: &FunctionEntry,
        head: &request::Parts,
        is_retry: bool,
        hop_terms: Option<hop::RouteTerms>,
    ) -> Self {
        // As if the caller's sidecar had connected. The instance's own address is one that it
        // chooses.
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.peer.address.port());
        let peer = Peer { identity: Some(caller.identity.clone()), address };
        let (worker, snapshot, origin) = (self.worker.clone(), self.snapshot.clone(), Origin::Inbound(callee.clone()));
        let arrival = Arrival {
            scheme: self.scheme,
            port: Some(callee.judged_port(self.port)),
            interim: self.interim.clone(),
            is_nested: true,
            is_retry,
            is_unshared: self.is_unshared,
            tells_own: self.tells_own,
            hop_terms: Ok(hop_terms.map(Box::new)),
            ..Arrival::new(worker, snapshot, origin, peer, None)
        };
        let kind = RequestKind { protocol: self.protocol, upgrade: self.upgrade };
        Self::new(arrival, kind, self.request_id.clone(), head)
    }

    /// The exchange of a copy of this request for another back end.
    pub(crate) fn for_copy(&self, terms: hop::RouteTerms, port: u16, head: &request::Parts) -> Self {
        let (worker, snapshot, origin) = (self.worker.clone(), self.snapshot.clone(), self.origin.clone());
        let arrival = Arrival {
            scheme: self.scheme,
            port: Some(port),
            certificate: self.certificate,
            hop_terms: Ok(Some(Box::new(terms))),
            ..Arrival::new(worker, snapshot, origin, self.peer.clone(), self.parent.clone())
        };
        let kind = RequestKind { protocol: self.protocol, upgrade: false };
        Self::new(arrival, kind, self.request_id.clone(), head)
    }

    /// The exchange of a question about this request, and its head as the authorizer gets it.
    pub(crate) fn for_question(&self, protocol: Protocol, target: &BackendTarget, head: &mut request::Parts) -> Self {
        let (worker, snapshot, origin) = (self.worker.clone(), self.snapshot.clone(), self.origin.clone());
        let port = match target {
            BackendTarget::External(_, port) => *port,
            BackendTarget::Function(_) | BackendTarget::Revision(..) | BackendTarget::Invalid(_) => self.port,
        };
        let arrival = Arrival {
            scheme: self.scheme,
            port: Some(port),
            certificate: self.certificate,
            is_nested: true,
            is_unshared: true,
            tells_own: true,
            ..Arrival::new(worker, snapshot, origin, self.peer.clone(), self.parent.clone())
        };
        let kind = RequestKind { protocol, upgrade: false };
        let exchange = Self::new(arrival, kind, self.request_id.clone(), head);
        head.headers.insert(head::REQUEST_ID, exchange.request_id.clone());
        exchange
    }

    /// Whether the request is a copy: nothing waits for it, and no instance starts for it.
    pub(crate) fn is_copy(&self) -> bool {
        self.hop_terms.as_ref().is_some_and(|terms| terms.is_copy)
    }

    fn new(arrival: Arrival<'_>, kind: RequestKind, request_id: HeaderValue, head: &request::Parts) -> Self {
        let Arrival { worker, snapshot, origin, peer, parent, scheme, port, certificate, interim, .. } = arrival;
        let name = request_id.to_str().unwrap_or_default();
        let record = Record::new(&worker.recorder, origin.direction(), &peer, kind.protocol, head, name);
        record.scheme(scheme);
        record.namespace(origin.entry().and_then(|entry| entry.share()));
        let port = port.unwrap_or_else(|| {
            let named = head::split_authority(head::authority(head)).1.unwrap_or(80);
            if let Origin::Inbound(callee) = &origin { callee.judged_port(named) } else { named }
        });
        let started = Instant::now();
        let deadline = |timeout: Duration| Some((started.checked_add(timeout)?, timeout));
        // A gRPC client says how long it waits, which may be less than the mesh allows, and how its
        // messages are encoded.
        let is_grpc = kind.protocol == Protocol::Grpc;
        let grpc_timeout = if is_grpc { hop::grpc_timeout(&head.headers) } else { None };
        let grpc_type = head.headers.get(CONTENT_TYPE).filter(|value| is_grpc && *value != "application/grpc");
        Self {
            worker,
            snapshot,
            origin,
            peer,
            protocol: kind.protocol,
            upgrade: kind.upgrade,
            scheme,
            port,
            request_id,
            parent,
            record,
            started,
            is_nested: arrival.is_nested,
            head_only: head.method == Method::HEAD,
            connects: head.method == Method::CONNECT,
            tells_own: arrival.tells_own,
            is_retry: arrival.is_retry,
            is_unshared: arrival.is_unshared,
            via_gateway: arrival.via_gateway,
            hop_terms: arrival.hop_terms.unwrap_or_default(),
            pod: arrival.pod,
            certificate,
            client_head: arrival.client_head,
            interim,
            interim_left: Cell::new(MAX_INTERIM_BYTES),
            grpc_type: grpc_type.map(head::own),
            caller_deadline: [arrival.timeout, grpc_timeout].into_iter().flatten().filter_map(deadline).min(),
        }
    }

    /// Passes on an interim response, which is neither judged nor edited. An error: they are too
    /// many.
    pub(crate) fn pass_on(&self, mut interim: Interim) -> Result<(), Failure> {
        let Some(queue) = self.interim.as_ref().filter(|_| is_passed_on(interim.status())) else { return Ok(()) };
        let left = self.interim_left.get().checked_sub(cost(&interim));
        self.interim_left.set(left.ok_or(Failure::Protocol("its interim responses are more than are passed on"))?);
        head::sanitize_interim(interim.headers_mut());
        queue.push(interim);
        Ok(())
    }

    /// Where the gateway redirects a plain request, if it serves HTTPS only.
    pub(crate) fn https_location(&self, head: &request::Parts) -> Option<HeaderValue> {
        let port = self.snapshot.mesh.https_redirect?;
        let is_opened = || self.snapshot.gateway_routes.opens(self.port);
        if self.scheme == "https" || !matches!(self.origin, Origin::Gateway) || is_opened() {
            return None;
        }
        let (host, _) = head::split_authority(head::authority(head));
        let port = if port == 443 { String::new() } else { format!(":{port}") };
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        HeaderValue::try_from(format!("https://{host}{port}{target}")).ok()
    }

    /// The namespace of the function that calls, if it is one of this node.
    pub(crate) fn caller_share(&self) -> Option<&Arc<Namespace>> {
        match &self.origin {
            Origin::Outbound(caller, _) => caller.share(),
            Origin::Gateway | Origin::Inbound(_) => None,
        }
    }

    /// The deadline of the exchange, and how long that is from its beginning. `None`: it has no
    /// limit.
    pub(crate) fn deadline(&self, permit: &Permit) -> Option<(Instant, Duration)> {
        // If the function sets no limit, the compiler has put in the mesh's.
        let limit = Duration::from_millis(permit.terms().timeout_ms);
        let own = (!limit.is_zero()).then(|| (self.started + limit, limit));
        [own, self.caller_deadline].into_iter().flatten().min()
    }

    /// Adds headers that tell the callee the request's id and the caller's identity.
    pub(crate) fn finalize_request(&self, headers: &mut HeaderMap, callee: &FunctionEntry) {
        let callee = self.callee_identity(callee);
        head::finalize_request(headers, callee, self.peer.identity.as_deref(), &self.request_id);
    }

    /// The SPIFFE ID of the callee. That of a pod may differ from its function's.
    pub(crate) fn callee_identity<'a>(&'a self, callee: &'a FunctionEntry) -> &'a str {
        self.pod.as_ref().and_then(|pod| pod.identity.as_deref()).unwrap_or(&callee.identity)
    }
}

fn is_large(head: &request::Parts, most: u32) -> bool {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    target + head::size(&head.headers) > most as usize
}

impl Origin {
    /// The parent request: the only one that the calling instance is handling.
    pub(crate) fn parent(&self) -> Option<Arc<InFlight>> {
        match self {
            Self::Outbound(_, Some(caller)) => caller.only_in_flight(),
            Self::Gateway | Self::Outbound(_, None) | Self::Inbound(_) => None,
        }
    }

    /// The function on whose side it came in.
    pub(crate) fn entry(&self) -> Option<&Arc<FunctionEntry>> {
        match self {
            Self::Gateway => None,
            Self::Outbound(entry, _) | Self::Inbound(entry) => Some(entry),
        }
    }

    pub(crate) fn direction(&self) -> TrafficDirection {
        match self {
            Self::Gateway => TrafficDirection::Gateway,
            Self::Outbound(..) => TrafficDirection::Outbound,
            Self::Inbound(_) => TrafficDirection::Inbound,
        }
    }
}
