//! One exchange: a request and its response.

use crate::pipeline::judge::Permit;
use crate::pipeline::worker::{PinnedSnapshot, Worker};
use crate::state::certificate::PeerCertificate;
use crate::state::credential::{Caller, InFlight};
use crate::state::function::FunctionEntry;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Version, request};
use leno_http::failure::Failure;
use leno_http::head::{HeadError, RequestKind};
use leno_http::interim::{Interim, InterimQueue, MAX_INTERIM_BYTES, cost, is_passed_on};
use leno_http::peer::{Peer, TrafficDirection};
use leno_http::{head, hop};
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
    /// The client asks for a WebSocket.
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

/// The facts about a request from a socket besides its head and body.
pub(crate) struct Arrival<'a> {
    pub worker: Rc<Worker>,
    /// The snapshot that the request is judged by.
    pub snapshot: Rc<PinnedSnapshot>,
    pub origin: Origin,
    /// The sender; at the gateway, the client that trusted proxies name.
    pub peer: Peer,
    /// At the gateway: the client's address as a header value.
    pub client: Option<Cow<'a, HeaderValue>>,
    /// The scheme that the client used: `http` or `https`.
    pub scheme: &'static str,
    /// The listener's port.
    pub port: u16,
    /// Inbound: the client of another node's gateway.
    pub behind_gateway: Option<hop::Client>,
    /// Inbound: the certificate of the caller's sidecar.
    pub certificate: Option<PeerCertificate>,
    /// Where interim responses go; `None`: the client takes none.
    pub interim: Option<Arc<InterimQueue>>,
    /// Bytes of a response's head that the client takes, as HTTP/2 counts them.
    pub client_head: u32,
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
    pub(crate) fn begin(arrival: Arrival<'_>, head: &mut request::Parts) -> (Self, Result<(), HeadError>) {
        let Arrival {
            worker,
            snapshot,
            origin,
            peer,
            client,
            scheme,
            port,
            behind_gateway,
            certificate,
            interim,
            client_head,
        } = arrival;
        let parent = origin.parent();
        // Only sidecars connect to the inbound listener.
        let unnamed = behind_gateway.is_none() && peer.identity.as_ref() == Some(&snapshot.gateway);
        let from_sidecar = matches!(origin, Origin::Inbound(_));
        let told = from_sidecar.then(|| {
            let headers = &head.headers;
            (hop::timeout(headers), hop::is_retry(headers), hop::is_unshared(headers))
        });
        let (mut exchange, admitted) = Self::enter(worker, snapshot, origin, peer, parent, head);
        (exchange.certificate, exchange.interim, exchange.client_head) = (certificate, interim, client_head);
        if let Some(client) = client {
            head::describe_client(&mut head.headers, &client, scheme);
            (exchange.scheme, exchange.port) = (scheme, port);
        }
        if let Some((timeout, is_retry, is_unshared)) = told {
            (exchange.is_retry, exchange.is_unshared) = (is_retry, is_unshared);
            exchange.wait_no_longer_than(timeout);
        }
        if let Some(client) = behind_gateway {
            (exchange.scheme, exchange.port, exchange.via_gateway) = (client.scheme, client.port, true);
        }
        let admitted = if unnamed { admitted.and(Err(HeadError::Client)) } else { admitted };
        (exchange, admitted)
    }

    /// Begins an exchange for a call that an instance makes without a connection: a component in
    /// this node, or one with a link. `parent` is the request that it makes it for.
    pub(crate) fn call(
        worker: Rc<Worker>,
        snapshot: Rc<PinnedSnapshot>,
        origin: Origin,
        peer: Peer,
        parent: Option<Arc<InFlight>>,
        head: &mut request::Parts,
    ) -> (Self, Result<(), HeadError>) {
        let (exchange, admitted) = Self::enter(worker, snapshot, origin, peer, parent, head);
        // Such a call has no connection that could become a tunnel.
        let tunnel = exchange.upgrade || head.method == http::Method::CONNECT;
        (exchange, admitted.and(if tunnel { Err(HeadError::Method) } else { Ok(()) }))
    }

    fn enter(
        worker: Rc<Worker>,
        snapshot: Rc<PinnedSnapshot>,
        origin: Origin,
        peer: Peer,
        parent: Option<Arc<InFlight>>,
        head: &mut request::Parts,
    ) -> (Self, Result<(), HeadError>) {
        let direction = origin.direction();
        let kept = head
            .headers
            .get(head::REQUEST_ID)
            .filter(|id| direction != TrafficDirection::Gateway && head::is_sane_request_id(id))
            .map(head::own)
            .or(parent.as_deref().map(|parent| parent.request_id.clone()));
        let request_id = kept.unwrap_or_else(|| worker.request_id());
        let head_only = head.method == http::Method::HEAD;
        let limits = &snapshot.mesh.limits;
        let admitted = if head.headers.len() > limits.headers as usize {
            Err(HeadError::TooManyHeaders)
        } else if head.version == Version::HTTP_2 && is_large(head, limits.head_bytes) {
            // HTTP/1.1's parser has a limit itself.
            Err(HeadError::LargeHead)
        } else {
            head::admit(head, direction)
        };
        let RequestKind { protocol, upgrade } =
            admitted.unwrap_or(RequestKind { protocol: Protocol::Http1, upgrade: false });
        let name = request_id.to_str().unwrap_or_default();
        let record = Record::new(&worker.recorder, direction, &peer, protocol, head, name);
        record.namespace(origin.entry().and_then(|entry| entry.share()));
        head.headers.insert(head::REQUEST_ID, request_id.clone());
        let port = head::split_authority(head::authority(head)).1.unwrap_or(80);
        let port = if let Origin::Inbound(callee) = &origin { callee.judged_port(port) } else { port };
        let is_retry = parent.as_deref().is_some_and(InFlight::is_retry);
        let mut exchange = Self {
            worker,
            snapshot,
            origin,
            peer,
            protocol,
            upgrade,
            scheme: "http",
            port,
            request_id,
            parent,
            record,
            started: Instant::now(),
            is_nested: false,
            head_only,
            tells_own: false,
            is_retry,
            is_unshared: false,
            via_gateway: false,
            certificate: None,
            client_head: u32::MAX,
            interim: None,
            interim_left: Cell::new(MAX_INTERIM_BYTES),
            grpc_type: None,
            caller_deadline: None,
        };
        exchange.read_grpc_fields(&head.headers);
        (exchange, admitted.map(|_| ()))
    }

    /// A gRPC client says how long it waits, which may be less than the mesh allows, and how its
    /// messages are encoded.
    fn read_grpc_fields(&mut self, headers: &HeaderMap) {
        if self.protocol == Protocol::Grpc {
            self.wait_no_longer_than(hop::grpc_timeout(headers));
            self.grpc_type = headers.get(CONTENT_TYPE).filter(|value| *value != "application/grpc").map(head::own);
        }
    }

    fn wait_no_longer_than(&mut self, timeout: Option<Duration>) {
        let told = timeout.and_then(|timeout| Some((self.started.checked_add(timeout)?, timeout)));
        self.caller_deadline = [self.caller_deadline, told].into_iter().flatten().min();
    }

    /// The callee's side of the same request, for local delivery: without a socket, TLS or a second
    /// parse. `is_retry`: this attempt is a retry, or is made for one.
    pub(crate) fn for_local_delivery(
        &self,
        callee: &Arc<FunctionEntry>,
        caller: &FunctionEntry,
        head: &request::Parts,
        is_retry: bool,
    ) -> Self {
        // As if the caller's sidecar had connected. The instance's own address is one that it
        // chooses.
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.peer.address.port());
        let peer = Peer { identity: Some(caller.identity.clone()), address };
        let name = self.request_id.to_str().unwrap_or_default();
        let record = Record::new(&self.worker.recorder, TrafficDirection::Inbound, &peer, self.protocol, head, name);
        record.namespace(callee.share());
        let mut exchange = Self {
            worker: self.worker.clone(),
            snapshot: self.snapshot.clone(),
            origin: Origin::Inbound(callee.clone()),
            peer,
            protocol: self.protocol,
            upgrade: self.upgrade,
            scheme: self.scheme,
            port: callee.judged_port(self.port),
            request_id: self.request_id.clone(),
            parent: None,
            record,
            started: Instant::now(),
            is_nested: true,
            head_only: self.head_only,
            tells_own: self.tells_own,
            is_retry,
            is_unshared: self.is_unshared,
            via_gateway: false,
            certificate: None,
            client_head: u32::MAX,
            interim: self.interim.clone(),
            interim_left: Cell::new(MAX_INTERIM_BYTES),
            grpc_type: None,
            caller_deadline: None,
        };
        exchange.read_grpc_fields(&head.headers);
        exchange
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
        head::finalize_request(headers, &callee.identity, self.peer.identity.as_deref(), &self.request_id);
    }
}

fn is_large(head: &request::Parts, most: u32) -> bool {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    target + head::size(&head.headers) > most as usize
}

impl Origin {
    /// The parent request: the only one that the calling instance is handling.
    fn parent(&self) -> Option<Arc<InFlight>> {
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
