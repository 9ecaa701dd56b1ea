//! **The corridor**: one request, from its head to the head of its response.

use crate::body::{Body, Tail};
use crate::client;
use crate::connection::Connection;
use crate::credential::{Caller, InHand};
use crate::failure::Failure;
use crate::head::{self, Admitted, Malformed};
use crate::judge::{Ask, Judgement, Permitted, Refusal, Ruling};
use crate::peer::{Entrance, Peer};
use crate::record::{Record, Stage};
use crate::reply;
use crate::route::{self, Route};
use crate::schedule;
use crate::snapshot::FunctionEntry;
use crate::upstream::{self, Held, Reply};
use crate::worker::{Pinned, Worker};
use http::{HeaderMap, HeaderValue, Response, StatusCode, request};
use leno_policy::spec::Protocol;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// All that is known of one exchange besides its head and body.
pub struct Exchange {
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
    pub parent: Option<Arc<InHand>>,
    /// Told once, at the end.
    pub record: Record,
    /// When the head was there.
    pub started: Instant,
    /// From another exchange on this thread, which pays for this one too.
    pub handed_over: bool,
    /// The answer to HEAD has no body.
    pub head_only: bool,
}

/// Where an exchange came in, and on which function's side.
#[derive(Clone, Debug)]
pub enum Origin {
    /// From outside.
    Gateway,
    /// From an instance of this function, by its credential; `None`: from one that is run in the node.
    Outbound(Arc<FunctionEntry>, Option<Arc<Caller>>),
    /// To this function, from a caller's sidecar.
    Inbound(Arc<FunctionEntry>),
}

impl Exchange {
    /// The corridor: route, judge, forward, judge the response, finish. The snapshot was pinned when the exchange began.
    pub async fn run(self, head: request::Parts, body: Body) -> Response<Body> {
        let route = match route::find(&self, &head) {
            Ok(route) => route,
            Err(failure) => return self.fail(failure),
        };
        if let Some(target) = route.target_name() {
            self.record.routed(&target);
        }
        if !self.handed_over {
            schedule::charge(route.judge.class);
        }
        self.record.stage(Stage::Routed);
        let permitted = match self.worker.judge.request(self.ask(&route, &body), head, &self.record) {
            Judgement::Permitted(permitted) => permitted,
            Judgement::Denied(refusal) => return self.refuse(refusal),
        };
        let permitted = if permitted.has_extensions() {
            match Box::pin(self.extend(self.ask(&route, &body), permitted)).await {
                Judgement::Permitted(permitted) => permitted,
                Judgement::Denied(refusal) => return self.refuse(refusal),
            }
        } else {
            permitted
        };
        let (ruling, reply) = upstream::forward(&self, &route.way, permitted, body).await;
        let (mut head, reply_body, held) = match reply {
            Ok(Reply { response, held }) => {
                if let Some(failure) = response.extensions().get() {
                    self.record.failure(failure);
                }
                let (head, body) = response.into_parts();
                (head, body, held)
            }
            Err(failure) => {
                self.record.failure(&failure);
                let (head, body) = reply::failed(&failure, &self).into_parts();
                (head, body, Default::default())
            }
        };
        if let Err(refusal) = self.worker.judge.response(&ruling, &mut head, &self.record) {
            return self.refuse(refusal);
        }
        self.finish(Response::from_parts(head, reply_body), held, ruling)
    }
}

impl Exchange {
    /// Begins an exchange with a head that came from a socket, and makes the head fit for the corridor, if that can be done.
    pub fn begin(
        connection: &Connection,
        snapshot: Rc<Pinned>,
        origin: Origin,
        head: &mut request::Parts,
    ) -> (Self, Result<(), Malformed>) {
        let worker = connection.worker.clone();
        let (mut peer, parent) = (connection.peer_of(&origin), origin.parent());
        let said = match origin {
            Origin::Gateway => client::behind(&snapshot.mesh.trusted_proxies, peer.address.ip(), &head.headers),
            Origin::Outbound(..) | Origin::Inbound(_) => None,
        };
        let client = said.and_then(|said| said.address).filter(|address| *address != peer.address.ip());
        if let Some(address) = client {
            // Of the client's port nobody tells.
            peer.address = SocketAddr::new(address, 0);
        }
        let (mut exchange, admitted) = Self::enter(worker, snapshot, origin, peer, parent, head);
        if let Origin::Gateway = exchange.origin {
            let scheme = said.and_then(|said| said.scheme).unwrap_or(connection.scheme);
            match client {
                Some(address) => head::describe_client(&mut head.headers, &head::address_value(address), scheme),
                None => head::describe_client(&mut head.headers, connection.client(), scheme),
            }
            (exchange.scheme, exchange.port) = (scheme, connection.port);
        }
        (exchange, admitted)
    }

    /// Begins an exchange with a head that an instance in this node made while it handles `parent`.
    pub fn call(
        worker: Rc<Worker>,
        snapshot: Rc<Pinned>,
        origin: Origin,
        peer: Peer,
        parent: Arc<InHand>,
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
        parent: Option<Arc<InHand>>,
        head: &mut request::Parts,
    ) -> (Self, Result<(), Malformed>) {
        let entrance = origin.entrance();
        let kept = head
            .headers
            .get(head::REQUEST_ID)
            .filter(|id| entrance != Entrance::Gateway && head::is_sane_request_id(id))
            .map(head::own)
            .or(parent.as_deref().map(|parent| parent.request_id.clone()));
        let request_id = kept.unwrap_or_else(|| worker.request_id());
        let head_only = head.method == http::Method::HEAD;
        let admitted = match head.headers.len() > snapshot.mesh.limits.headers as usize {
            true => Err(Malformed::TooManyHeaders),
            false => head::admit(head, entrance),
        };
        let Admitted { protocol, upgrade } = admitted.unwrap_or(Admitted { protocol: Protocol::Http1, upgrade: false });
        let name = request_id.to_str().unwrap_or_default();
        let record = Record::new(&worker.recorder, entrance, &peer, protocol, head, name);
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
    pub fn hand_over(&self, callee: &Arc<FunctionEntry>, caller: &FunctionEntry, head: &request::Parts) -> Self {
        let peer = Peer { identity: Some(caller.identity.clone()), address: self.peer.address };
        let name = self.request_id.to_str().unwrap_or_default();
        let record = Record::new(&self.worker.recorder, Entrance::Inbound, &peer, self.protocol, head, name);
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
    pub fn deadline(&self, ruling: &Ruling) -> Option<(Instant, Duration)> {
        // Where the function sets no limit, the compiler has put in the mesh's.
        let limit = Duration::from_millis(ruling.terms().timeout_ms);
        (!limit.is_zero()).then(|| (self.started + limit, limit))
    }

    /// Says to the callee which request this is and who sends it.
    pub fn deliver(&self, headers: &mut HeaderMap, callee: &FunctionEntry) {
        head::deliver(headers, &callee.identity, self.peer.identity.as_deref(), &self.request_id);
    }

    fn ask<'a>(&'a self, route: &'a Route, body: &Body) -> Ask<'a> {
        let target = route.target();
        Ask {
            entry: &route.judge,
            entrance: self.origin.entrance(),
            peer: &self.peer,
            target,
            protocol: self.protocol,
            scheme: self.scheme,
            port: self.port,
            parent: self.parent.as_deref(),
            endpoints: target.map_or(0, |target| self.worker.node.instances.count(target)),
            bodiless: body.is_over(),
        }
    }

    /// What the function's extensions say, once there are instances for those that are to see the response too.
    async fn extend(&self, ask: Ask<'_>, permitted: Permitted) -> Judgement {
        let most = self.snapshot.mesh.limits.extension_instances;
        let share = match permitted.kept_extensions() {
            0 => Ok(None),
            count => self.worker.node.extension_instances.take(&ask.entry.slice.id, count, most).await.map(Some),
        };
        self.worker.judge.extend(ask, permitted, share, &self.record)
    }

    /// Answers a refusal. Which rule refused stands in the record, not in the answer.
    fn refuse(self, refusal: Refusal) -> Response<Body> {
        self.answer(reply::denied(refusal, &self))
    }

    /// Answers that there is no response.
    pub fn fail(self, failure: Failure) -> Response<Body> {
        self.record.failure(&failure);
        self.answer(reply::failed(&failure, &self))
    }

    fn answer(&self, response: Response<Body>) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        self.record.status(head.status.as_u16());
        self.note_grpc_status(&head.headers);
        head::answer(&mut head, &self.request_id, false);
        Response::from_parts(head, body).map(|body| body.keep(Tail::new(self.record.clone())))
    }

    /// A call that ends with its head says so there.
    fn note_grpc_status(&self, headers: &HeaderMap) {
        if self.protocol == Protocol::Grpc
            && let Some(status) = crate::body::grpc_status(headers)
        {
            self.record.grpc_status(status);
        }
    }

    /// Cleans the head, and lets the body keep whatever has to last as long as it.
    fn finish(self, response: Response<Body>, held: Held, ruling: Ruling) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        let upgraded = head.status == StatusCode::SWITCHING_PROTOCOLS;
        self.record.status(head.status.as_u16());
        self.note_grpc_status(&head.headers);
        head::answer(&mut head, &self.request_id, upgraded);
        if upgraded {
            self.record.upgraded();
        } else if body.is_over() {
            return Response::from_parts(head, body);
        }
        let deadline = if upgraded { None } else { self.deadline(&ruling) };
        let mut tail = Tail::new(self.record);
        (tail.held, tail.ruling, tail.deadline) = (held, Some(ruling), deadline);
        Response::from_parts(head, body.keep(tail))
    }
}

impl Origin {
    /// The one request that the calling instance has in hand.
    fn parent(&self) -> Option<Arc<InHand>> {
        match self {
            Self::Outbound(_, Some(caller)) => caller.only_in_hand(),
            Self::Gateway | Self::Outbound(_, None) | Self::Inbound(_) => None,
        }
    }

    /// Without the function.
    pub fn entrance(&self) -> Entrance {
        match self {
            Self::Gateway => Entrance::Gateway,
            Self::Outbound(..) => Entrance::Outbound,
            Self::Inbound(_) => Entrance::Inbound,
        }
    }
}
