//! **The corridor**: one request, from its head to the head of its response.

use crate::corridor::judge::Ruling;
use crate::corridor::worker::{Pinned, Worker};
use crate::http::head;
use crate::http::head::{Admitted, Malformed};
use crate::http::peer::{Peer, TrafficDirection};
use crate::state::credential::{Caller, InFlight};
use crate::state::function::FunctionEntry;
use crate::telemetry::record::Record;
use http::{HeaderMap, HeaderValue, request};
use leno_policy::spec::Protocol;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// All that is known of one exchange besides its head and body.
pub(crate) struct Exchange {
    /// The thread that carries it.
    pub worker: Rc<Worker>,
    /// The configuration that it sees from beginning to end.
    pub snapshot: Rc<Pinned>,
    /// Where it came in.
    pub origin: Origin,
    /// Who opened the connection.
    pub peer: Peer,
    /// As policies see it.
    pub protocol: Protocol,
    /// The client wants a WebSocket.
    pub upgrade: bool,
    /// As the client saw it.
    pub scheme: &'static str,
    /// Of the gateway's listener; elsewhere, the port that the caller asked for.
    pub port: u16,
    /// Its name from one end of the mesh to the other.
    pub request_id: HeaderValue,
    /// The one request that the calling instance has in hand: this one belongs to it.
    pub parent: Option<Arc<InFlight>>,
    /// Told once, at the end.
    pub record: Record,
    /// When the head was there.
    pub started: Instant,
    /// From another exchange on this thread, which pays for this one too.
    pub handed_over: bool,
    /// The answer to HEAD has no body.
    pub head_only: bool,
}

/// A request that came from a socket, besides its head and body.
pub(crate) struct Arrival<'a> {
    /// The thread that carries it.
    pub worker: Rc<Worker>,
    /// What it is judged by.
    pub snapshot: Rc<Pinned>,
    /// Where it came in.
    pub origin: Origin,
    /// Who sent it; at the gateway, the client that trusted proxies name.
    pub peer: Peer,
    /// At the gateway: the client's address as a field value.
    pub client: Option<Cow<'a, HeaderValue>>,
    /// As the client saw it.
    pub scheme: &'static str,
    /// Of the listener.
    pub port: u16,
}

/// Where an exchange came in, and on which function's side.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// From outside.
    Gateway,
    /// From an instance of this function, by its credential; `None`: from one that is run in the node.
    Outbound(Arc<FunctionEntry>, Option<Arc<Caller>>),
    /// To this function, from a caller's sidecar.
    Inbound(Arc<FunctionEntry>),
}

impl Exchange {
    /// Begins an exchange with a head that came from a socket, and makes the head fit for the corridor, if that can be done.
    pub(crate) fn begin(arrival: Arrival<'_>, head: &mut request::Parts) -> (Self, Result<(), Malformed>) {
        let Arrival { worker, snapshot, origin, peer, client, scheme, port } = arrival;
        let parent = origin.parent();
        let (mut exchange, admitted) = Self::enter(worker, snapshot, origin, peer, parent, head);
        if let Some(client) = client {
            head::describe_client(&mut head.headers, &client, scheme);
            (exchange.scheme, exchange.port) = (scheme, port);
        }
        (exchange, admitted)
    }

    /// Begins an exchange with a head that an instance in this node made while it handles `parent`.
    pub(crate) fn call(
        worker: Rc<Worker>,
        snapshot: Rc<Pinned>,
        origin: Origin,
        peer: Peer,
        parent: Arc<InFlight>,
        head: &mut request::Parts,
    ) -> (Self, Result<(), Malformed>) {
        let (exchange, admitted) = Self::enter(worker, snapshot, origin, peer, Some(parent), head);
        // There is no connection that could become a tunnel.
        let tunnel = exchange.upgrade || head.method == http::Method::CONNECT;
        (exchange, admitted.and(if tunnel { Err(Malformed::Method) } else { Ok(()) }))
    }

    fn enter(
        worker: Rc<Worker>,
        snapshot: Rc<Pinned>,
        origin: Origin,
        peer: Peer,
        parent: Option<Arc<InFlight>>,
        head: &mut request::Parts,
    ) -> (Self, Result<(), Malformed>) {
        let direction = origin.direction();
        let kept = head
            .headers
            .get(head::REQUEST_ID)
            .filter(|id| direction != TrafficDirection::Gateway && head::is_sane_request_id(id))
            .map(head::own)
            .or(parent.as_deref().map(|parent| parent.request_id.clone()));
        let request_id = kept.unwrap_or_else(|| worker.request_id());
        let head_only = head.method == http::Method::HEAD;
        let admitted = match head.headers.len() > snapshot.mesh.limits.headers as usize {
            true => Err(Malformed::TooManyHeaders),
            false => head::admit(head, direction),
        };
        let Admitted { protocol, upgrade } = admitted.unwrap_or(Admitted { protocol: Protocol::Http1, upgrade: false });
        let name = request_id.to_str().unwrap_or_default();
        let record = Record::new(&worker.recorder, direction, &peer, protocol, head, name);
        head.headers.insert(head::REQUEST_ID, request_id.clone());
        let port = head::split_authority(head::authority(head)).1.unwrap_or(80);
        let exchange = Self {
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
            handed_over: false,
            head_only,
        };
        (exchange, admitted.map(|_| ()))
    }

    /// The same request on the callee's side, handed over on the same node: no socket, no TLS, no second parse.
    pub(crate) fn hand_over(&self, callee: &Arc<FunctionEntry>, caller: &FunctionEntry, head: &request::Parts) -> Self {
        let peer = Peer { identity: Some(caller.identity.clone()), address: self.peer.address };
        let name = self.request_id.to_str().unwrap_or_default();
        let record = Record::new(&self.worker.recorder, TrafficDirection::Inbound, &peer, self.protocol, head, name);
        Self {
            worker: self.worker.clone(),
            snapshot: self.snapshot.clone(),
            origin: Origin::Inbound(callee.clone()),
            peer,
            protocol: self.protocol,
            upgrade: self.upgrade,
            scheme: self.scheme,
            port: self.port,
            request_id: self.request_id.clone(),
            parent: None,
            record,
            started: Instant::now(),
            handed_over: true,
            head_only: self.head_only,
        }
    }

    /// When the exchange must be over, and how long that is from its beginning.
    pub(crate) fn deadline(&self, ruling: &Ruling) -> Option<(Instant, Duration)> {
        // Where the function sets no limit, the compiler has put in the mesh's.
        let limit = Duration::from_millis(ruling.terms().timeout_ms);
        (!limit.is_zero()).then(|| (self.started + limit, limit))
    }

    /// Says to the callee which request this is and who sends it.
    pub(crate) fn deliver(&self, headers: &mut HeaderMap, callee: &FunctionEntry) {
        head::deliver(headers, &callee.identity, self.peer.identity.as_deref(), &self.request_id);
    }
}

impl Origin {
    /// The one request that the calling instance has in hand.
    fn parent(&self) -> Option<Arc<InFlight>> {
        match self {
            Self::Outbound(_, Some(caller)) => caller.only_in_flight(),
            Self::Gateway | Self::Outbound(_, None) | Self::Inbound(_) => None,
        }
    }

    /// Without the function.
    pub(crate) fn direction(&self) -> TrafficDirection {
        match self {
            Self::Gateway => TrafficDirection::Gateway,
            Self::Outbound(..) => TrafficDirection::Outbound,
            Self::Inbound(_) => TrafficDirection::Inbound,
        }
    }
}
