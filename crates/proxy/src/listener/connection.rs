//! One client connection: terminates TLS, identifies the peer, detects the protocol. Then runs the pipeline once per request.

use super::Listener;
use crate::l4::inbound::Inbound;
use crate::l4::{self, Path};
use crate::listener::http2::Http2;
use crate::listener::stream::{ClientStream, Detected};
use crate::listener::{http2, proxy_protocol, refusal};
use crate::pipeline::exchange::{Arrival, Exchange, Origin};
use crate::pipeline::open::LAST_BYTES;
use crate::pipeline::worker::{Pinned, Worker};
use crate::pipeline::{reply, upgrade};
use crate::state::admission::{Attribution, Refused};
use crate::state::certificate::PeerCertificate;
use crate::state::credential::Caller;
use crate::state::function::{EVENT, FunctionEntry};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use leno_config::FunctionId;
use leno_config::slice::TrustedProxies;
use leno_http::activity::{Activity, Busy, TimeoutCheck, Timeouts};
use leno_http::body::{Body, ends_empty, says_empty};
use leno_http::failure::{Failure, Unproven};
use leno_http::head::Malformed;
use leno_http::http2::Upgrading;
use leno_http::inflow::Inflow;
use leno_http::interim::InterimQueue;
use leno_http::peer::{Peer, TrafficDirection};
use leno_http::wire::WireBody;
use leno_http::{forwarded, head, hop};
use leno_policy::spec::Protocol;
use leno_runtime::keepalive;
use leno_runtime::schedule;
use leno_telemetry::flows::Refusal;
use leno_telemetry::record::Record;
use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Sleep, timeout_at};
use zeroize::Zeroizing;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// How long an idle connection may take to end after GOAWAY.
const GRACEFUL_CLOSE: Duration = Duration::from_secs(2);

/// A client connection whose peer is known.
pub(crate) struct Connection {
    pub worker: Rc<Worker>,
    pub direction: TrafficDirection,
    pub peer: Peer,
    /// The peer's address as a header value, made on first use.
    client: OnceCell<HeaderValue>,
    /// `https` if the gateway has terminated TLS, else `http`.
    pub scheme: &'static str,
    /// The listener's port.
    pub port: u16,
    /// Outbound: the local address of the connection.
    accepted_at: Option<SocketAddr>,
    /// Inbound: the function that the TLS client asked for (SNI), and whose SVID it was shown.
    pub(super) function: Option<FunctionId>,
    /// Outbound: the instance that authenticated last, and the header value that it did so with.
    caller: RefCell<Option<(Proof, Arc<Caller>)>>,
    /// All requests come from the caller that is known from the beginning: it opened the CONNECT tunnel in which the connection runs, or its room is
    /// where the connection comes from.
    one_caller: bool,
    /// Inbound: the certificate of the caller's sidecar.
    certificate: Option<PeerCertificate>,
    activity: Arc<Activity>,
    attribution: Option<Attribution>,
}

/// The header value that an instance authenticated with. Wiped when the connection has ended. A copy, because the original is a slice of a
/// read buffer.
type Proof = Rc<Zeroizing<Vec<u8>>>;

pub(crate) async fn serve(listener: Rc<Listener>, mut stream: TcpStream, address: SocketAddr, open: OpenConnection) {
    let worker = listener.worker.clone();
    // Without TCP_NODELAY, small responses wait for acknowledgements. If it cannot be set, the connection is already gone.
    let _ = stream.set_nodelay(true);
    let (limit, silence) = {
        let limits = &worker.snapshot().mesh.limits;
        (limits.head_timeout, limits.upstream.tcp_keep_alive())
    };
    if listener.caller.is_none() {
        // A client that vanishes must be noticed on a connection that may be silent for long, too. If that cannot be set, it is already gone.
        let _ = keepalive::enable(&stream, address, silence);
    }
    let address = match open.unless_draining(proxy_protocol::client(&listener, &mut stream, address)).await {
        Some(Ok(address)) => address,
        Some(Err(refused)) => {
            if let Some(label) = refused.label() {
                worker.recorder.metrics().proxy_protocol_refusal(label);
            }
            tracing::debug!(%address, direction = ?listener.direction, %refused, "connection closed");
            return;
        }
        None => return,
    };
    let accepted_at = (listener.direction == TrafficDirection::Outbound).then(|| stream.local_addr().ok()).flatten();
    if let (Some(caller), Some(called)) = (&listener.caller, accepted_at) {
        match l4::find(&worker, caller, called) {
            Path::Requests => {}
            Path::Port(proxy) => {
                // Whether something is under way in it, nobody can know. So it ends when the node does.
                let _ = open.unless_draining(proxy.run(stream, open.activity())).await;
                return;
            }
            Path::Nowhere => return l4::reset(&stream),
        }
    }
    let connection = Connection {
        worker,
        direction: listener.direction,
        peer: Peer { identity: None, address },
        client: OnceCell::new(),
        scheme: if listener.tls.is_some() && listener.direction == TrafficDirection::Gateway {
            "https"
        } else {
            "http"
        },
        port: listener.address.port(),
        accepted_at,
        function: None,
        caller: RefCell::new(listener.caller.clone().map(|caller| (Proof::default(), caller))),
        one_caller: listener.caller.is_some(),
        certificate: None,
        activity: open.activity.clone(),
        attribution: open.attribution.clone(),
    };
    let until = Instant::now() + limit;
    let result = match &listener.tls {
        None => connection.serve_http(stream, None, &open).await,
        Some(_) if matches!(timeout_at(until.into(), begins_with_tls(&stream)).await, Ok(Ok(false))) => {
            let stream = ClientStream::new(stream, open.activity.clone());
            Box::pin(connection.refuse_head(stream, Malformed::NoTls.into(), &[])).await;
            Ok(())
        }
        Some(acceptor) => match timeout_at(until.into(), acceptor.accept(Inflow::in_turns(stream))).await {
            Ok(Ok(stream)) => {
                let session = stream.get_ref().1;
                let agreed =
                    session.alpn_protocol().map(|name| if name == b"h2" { Detected::Http2 } else { Detected::Http1 });
                let connection = connection.identified(session);
                match connection.count_for_caller() {
                    Ok(()) => connection.serve_http(stream, agreed, &open).await,
                    Err(refused) => Err(io::Error::other(refused.reason())),
                }
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        },
    };
    if let Err(error) = result {
        tracing::debug!(%address, direction = ?listener.direction, %error, "connection ended");
    }
}

impl Connection {
    /// Adds what the TLS session says about the peer.
    fn identified(mut self, session: &tokio_rustls::rustls::ServerConnection) -> Self {
        if self.direction == TrafficDirection::Inbound {
            let identity = leno_identity::peer_identity(session);
            self.certificate = Some(PeerCertificate::of(session));
            // Nodes and control planes call no function, whatever a rule says of identities of the mesh.
            let is_caller = identity.as_ref().is_some_and(|id| !id.is_reserved() || id.is_gateway());
            self.peer.identity = identity.map(|id| id.to_string().into());
            let function = session.server_name().filter(|_| is_caller);
            let function = function.and_then(leno_identity::function_of_server_name);
            self.function = function.and_then(|(namespace, name)| FunctionId::new(namespace, name).ok());
        }
        self
    }

    /// Counts a connection of another node's sidecar for the namespace of its function.
    fn count_for_caller(&self) -> Result<(), Refused> {
        let identity = self.peer.identity.as_deref().filter(|_| self.direction == TrafficDirection::Inbound);
        let function = identity.and_then(FunctionId::of_identity);
        // The gateway calls for clients, which belong to no namespace.
        let is_gateway = identity.is_some_and(|identity| *identity == *self.worker.snapshot().gateway);
        match (function.filter(|_| !is_gateway), &self.attribution) {
            (Some(function), Some(attribution)) => {
                let namespace = self.worker.node.telemetry.namespaces.of(&function.namespace);
                attribution.set(&function.to_string(), &namespace)
            }
            _ => Ok(()),
        }
    }

    /// Serves the HTTP version that ALPN agreed on, or else the version that the first bytes show.
    async fn serve_http<T>(self, stream: T, agreed: Option<Detected>, open: &OpenConnection) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stream, detected) = match agreed {
            Some(detected) => (ClientStream::new(stream, self.activity.clone()), detected),
            None => {
                let limit = self.worker.snapshot().mesh.limits.idle_timeout;
                let sniff = tokio::time::timeout(limit, ClientStream::sniff(stream, self.activity.clone()));
                let Some(sniffed) = open.unless_draining(sniff).await else { return Ok(()) };
                sniffed??
            }
        };
        match detected {
            Detected::Http1 => {
                let connection = Rc::new(self);
                let served = serve_http1(connection.clone(), stream, open).await;
                if served.as_ref().is_err_and(is_no_http) {
                    connection.refuse("what came is no HTTP");
                }
                served
            }
            Detected::Http2 => serve_http2(Rc::new(self), stream, open).await,
            Detected::Nothing => {
                self.refuse("nothing came");
                Ok(())
            }
            Detected::Tls => {
                self.refuse("what came is TLS; inside the mesh, use http://");
                Box::pin(self.refuse_head(stream, Malformed::Tls.into(), &[])).await;
                // A room could fill the log with it. Any other client has a part of the rate of those that belong to no namespace.
                if !self.one_caller && self.worker.may_log_of_none() {
                    let address = self.peer.address;
                    tracing::warn!(%address, direction = ?self.direction, "TLS where plain HTTP is expected; inside the mesh, use http://");
                }
                Ok(())
            }
        }
    }

    /// Tells of an intercepted connection that carried no request. Others are closed without a word.
    fn refuse(&self, reason: &'static str) {
        let caller = self.caller.borrow();
        if let (true, Some((_, caller)), Some(address)) = (self.one_caller, &*caller, self.accepted_at) {
            self.worker.node.telemetry.connection_flows.push(Refusal {
                kind: "connection",
                instance: (&*caller.instance).into(),
                what: "connect".into(),
                host: address.to_string().into(),
                reason,
            });
        }
    }

    /// Outbound: the instance that authenticated last.
    pub(super) fn known_caller(&self) -> Option<Arc<Caller>> {
        self.caller.borrow().as_ref().map(|(_, caller)| caller.clone())
    }

    /// The peer's address as a header value.
    fn client(&self) -> &HeaderValue {
        self.client.get_or_init(|| head::address_value(self.peer.address.ip()))
    }

    /// Collects what is known about a request besides its head. At the gateway, trusted proxies may name another client and scheme.
    fn arrival(&self, snapshot: Rc<Pinned>, origin: Origin, headers: &HeaderMap) -> Arrival<'_> {
        let (mut peer, mut scheme, mut client, mut behind_gateway) = (self.peer.clone(), self.scheme, None, None);
        match &origin {
            Origin::Gateway => {
                let reported = match &snapshot.mesh.trusted_proxies {
                    TrustedProxies::None => None,
                    TrustedProxies::Addresses(trusted) => forwarded::by_address(trusted, peer.address.ip(), headers),
                    TrustedProxies::Hops(hops) => Some(forwarded::by_hops(*hops, headers)),
                };
                scheme = reported.and_then(|reported| reported.scheme).unwrap_or(scheme);
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
            // What another node's gateway let in is judged as if it had come in here: the gateway is not who calls.
            Origin::Inbound(_) if peer.identity.as_deref() == Some(&*snapshot.gateway) => {
                behind_gateway = hop::Client::from_headers(headers);
                if let Some(client) = behind_gateway {
                    peer = Peer { identity: None, address: client.address };
                }
            }
            Origin::Inbound(_) => {}
        }
        let (worker, port) = (self.worker.clone(), self.port);
        let certificate = self.certificate;
        Arrival {
            worker,
            snapshot,
            origin,
            peer,
            client,
            scheme,
            port,
            behind_gateway,
            certificate,
            interim: None,
            client_head: u32::MAX,
        }
    }

    /// Finds the snapshot that a request is judged by, and where the request came in. Outbound requests have been authenticated.
    fn origin(&self, caller: Option<Arc<Caller>>) -> Result<(Rc<Pinned>, Origin), Failure> {
        match self.direction {
            TrafficDirection::Gateway => Ok((self.worker.snapshot(), Origin::Gateway)),
            TrafficDirection::Inbound => {
                let found = self.function.as_ref().and_then(|function| self.worker.snapshot_with(function));
                let (snapshot, entry) = found.ok_or(Failure::Misdirected)?;
                Ok((snapshot, Origin::Inbound(entry)))
            }
            TrafficDirection::Outbound => {
                let caller = caller.filter(|caller| !caller.is_revoked()).ok_or(Failure::Credential)?;
                let (snapshot, entry) = self.of_caller(&caller)?;
                Ok((snapshot, Origin::Outbound(entry, Some(caller))))
            }
        }
    }

    fn of_caller(&self, caller: &Caller) -> Result<(Rc<Pinned>, Arc<FunctionEntry>), Failure> {
        let found = self.worker.snapshot_with(&caller.function);
        // The credential is a good one.
        found.ok_or_else(|| Failure::Ended { reason: format!("{} was removed", caller.function) })
    }

    /// The instance that sends a request: the one that the request's credential names, unless the connection knows it from the beginning.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<Caller>>, Failure> {
        if self.direction != TrafficDirection::Outbound {
            return Ok(None);
        }
        let (caller, known) = self.caller(headers).ok_or(Failure::Credential)?;
        if !known {
            // Boxed because it is rare: once for each connection.
            Box::pin(self.prove(&caller)).await?;
            // From now on, the caller is known on this connection.
            let proof = headers.get(header::PROXY_AUTHORIZATION).map(|field| field.as_bytes().to_vec());
            *self.caller.borrow_mut() = proof.map(|proof| (Rc::new(Zeroizing::new(proof)), caller.clone()));
        }
        Ok(Some(caller))
    }

    /// Checks that the instance whose credential arrived on the connection is the one that opened it.
    async fn prove(&self, caller: &Arc<Caller>) -> Result<(), Failure> {
        self.of_caller(caller)?;
        let address = self.peer.address;
        let proven = match self.accepted_at {
            Some(accepted_at) => caller.verify_opener(address, accepted_at).await,
            None => Err(Unproven("the connection is gone".to_owned())),
        };
        let (_, entry) = self.of_caller(caller)?;
        if let (Ok(()), Some(share), Some(attribution)) = (&proven, entry.share(), &self.attribution) {
            attribution.set(&caller.instance, share).map_err(|refused| Failure::Bound(refused.reason().to_owned()))?;
        }
        proven.map_err(|unproven| {
            if entry.may_log(EVENT) {
                tracing::warn!(instance = %caller.instance, %address, %unproven, "a credential is refused");
            }
            self.worker.recorder.metrics().unproven(&entry.name, "caller");
            Failure::StolenCredential(unproven)
        })
    }

    /// The instance that a request's credential names. The flag says whether this connection already knows the instance.
    fn caller(&self, headers: &HeaderMap) -> Option<(Arc<Caller>, bool)> {
        let known = self.caller.borrow();
        let (caller, known) = match (headers.get(header::PROXY_AUTHORIZATION), &*known) {
            (None, Some((_, caller))) if self.one_caller => (caller.clone(), true),
            (None, _) => return None,
            (Some(field), Some((proof, caller))) if is_same(field, proof) => (caller.clone(), true),
            (Some(_), _) if self.one_caller => return None,
            (Some(field), _) => (self.worker.node.credentials.caller(field)?, false),
        };
        (!caller.is_revoked()).then_some((caller, known))
    }

    /// Serves one request. `on_upgrade` is what a tunnel becomes, `interim` takes interim responses, and goes with the bytes of a head that the client
    /// takes. The future is boxed because it is large, and those who await it are moved.
    pub(super) fn handle(
        self: Rc<Self>,
        request: Request<WireBody>,
        on_upgrade: Option<Upgrading>,
        interim: (Option<Arc<InterimQueue>>, u32),
    ) -> Pin<Box<impl Future<Output = Response<Body>>>> {
        let (head, body) = request.into_parts();
        Box::pin(self.handle_request(Box::new(head), body, on_upgrade, interim))
    }

    /// Serves one HTTP/1.1 request.
    fn handle_http1(
        self: Rc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> {
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
            Ok(response)
        }
    }

    async fn handle_request(
        self: Rc<Self>,
        // Boxed because it goes from one to the next, and each future on the way has room for it twice.
        mut head: Box<request::Parts>,
        body: WireBody,
        on_upgrade: Option<Upgrading>,
        (interim, client_head): (Option<Arc<InterimQueue>>, u32),
    ) -> Response<Body> {
        let busy = self.activity.begin();
        let http2 = head.version == Version::HTTP_2;
        let is_tunnel = !http2 && head.method == Method::CONNECT;
        let is_last = || is_tunnel || !http2 && self.is_leaving();
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
        if let Origin::Inbound(entry) = &origin
            && head.method == Method::CONNECT
            && head.extensions.get::<h2::ext::Protocol>().is_none()
        {
            if self.peer.identity.as_deref() == Some(&*snapshot.gateway) {
                // A gateway lets requests in, and nothing else.
                return self.adapt_response(self.reject(&head, &Failure::Misdirected), http2, is_last());
            }
            return self.relay(on_upgrade, entry, &head, busy).await;
        }
        let mut response = match Exchange::begin(
            Arrival { interim, client_head, ..self.arrival(snapshot, origin, &head.headers) },
            &mut head,
        ) {
            (exchange, Ok(())) => {
                let body = if http2 && says_empty(&body) { Box::pin(self.empty(body)).await } else { Ok(body) };
                match body {
                    Ok(body) => {
                        let body = Body::request(body, exchange.record.meter(), &self.activity);
                        exchange.run(head, body).await
                    }
                    Err(malformed) => exchange.fail(malformed.into()),
                }
            }
            (exchange, Err(malformed)) => exchange.fail(malformed.into()),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let open = OpenConnection::new(&self.worker, self.direction);
            upgrade::join(on_upgrade, &mut response, (busy.into_tunnel(), open, self.attribution.clone()));
            return self.adapt_response(response, http2, is_tunnel);
        }
        response.body_mut().occupy(busy);
        self.adapt_response(response, http2, is_last())
    }

    /// Waits for the end of a body that says it is empty.
    async fn empty(&self, mut body: WireBody) -> Result<WireBody, Malformed> {
        let limit = self.worker.snapshot().mesh.limits.head_timeout;
        let is_empty = tokio::time::timeout(limit, ends_empty(&mut body)).await.unwrap_or(false);
        if is_empty { Ok(body) } else { Err(Malformed::NotEmpty) }
    }

    /// Whether the client is to connect anew: another process has the listener where it came in. Instances of this process stay with it.
    fn is_leaving(&self) -> bool {
        self.direction != TrafficDirection::Outbound && self.worker.connections.are_handed_over()
    }

    /// Answers a request without a valid origin: its function is unknown, or its credential is refused. Records it like any other request.
    fn reject(&self, head: &request::Parts, failure: &Failure) -> Response<Body> {
        let request_id = self.worker.request_id();
        let protocol = if head.version == Version::HTTP_2 { Protocol::Http2 } else { Protocol::Http1 };
        let name = request_id.to_str().unwrap_or_default();
        let record = Record::new(&self.worker.recorder, self.direction, &self.peer, protocol, head, name);
        record.failure(failure);
        let response = reply::rejected(failure, request_id, &head.headers);
        record.status(response.status().as_u16());
        response
    }

    /// Adapts a response to the client's connection. `is_last`: the connection closes after it. Either the client is to connect anew, or it asked
    /// for a tunnel over HTTP/1.1 and gets none. It may already have sent bytes into the tunnel, and they must not be taken for requests.
    fn adapt_response(&self, mut response: Response<Body>, http2: bool, is_last: bool) -> Response<Body> {
        if is_last {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.direction == TrafficDirection::Inbound
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

    /// Whether a CONNECT opens a tunnel. Tunnels lead to callees only. The judge refuses any other CONNECT, and the record says why.
    fn opens_tunnel(&self, origin: &Origin, head: &request::Parts) -> bool {
        let Origin::Outbound(caller, _) = origin else { return false };
        let Some(authority) = head.uri.authority() else { return false };
        caller.callee(authority.as_str()).is_some()
    }

    /// Opens a connection without requests from a function on another node.
    async fn relay(
        &self,
        on_upgrade: Option<Upgrading>,
        entry: &FunctionEntry,
        head: &request::Parts,
        busy: Busy,
    ) -> Response<Body> {
        let accepted = match Inbound::new(&self.worker, (&self.peer, self.certificate), entry, head) {
            Ok(inbound) => Box::pin(inbound.accept()).await,
            Err(status) => Err(status),
        };
        let mut response = Response::new(Body::empty());
        match (accepted, on_upgrade) {
            (Ok(accepted), Some(on_upgrade)) => {
                let (open, tunnel) = (OpenConnection::new(&self.worker, self.direction), busy.into_tunnel());
                schedule::spawn(async move {
                    let _tunnel = tunnel;
                    // Whether something is under way in it, nobody can know. So it ends when the node does.
                    let _ = open.unless_draining(accepted.run(on_upgrade)).await;
                });
            }
            (Ok(_), None) => *response.status_mut() = StatusCode::BAD_REQUEST,
            (Err(status), _) => *response.status_mut() = status,
        }
        response
    }

    /// Serves the HTTP inside a CONNECT tunnel. Each of its requests is judged separately.
    fn tunnel(&self, on_upgrade: Option<Upgrading>, origin: Origin, busy: Busy) {
        let (Some(on_upgrade), Origin::Outbound(_, Some(caller))) = (on_upgrade, origin) else { return };
        let proof = self.caller.borrow().as_ref().map(|(proof, _)| proof.clone()).unwrap_or_default();
        let open = OpenConnection::new(&self.worker, TrafficDirection::Outbound);
        let inner = Self {
            worker: self.worker.clone(),
            direction: TrafficDirection::Outbound,
            peer: self.peer.clone(),
            client: OnceCell::new(),
            scheme: self.scheme,
            port: self.port,
            accepted_at: self.accepted_at,
            function: None,
            caller: RefCell::new(Some((proof, caller))),
            one_caller: true,
            certificate: None,
            activity: open.activity.clone(),
            attribution: self.attribution.clone(),
        };
        let tunnel = busy.into_tunnel();
        schedule::spawn(async move {
            let _tunnel = tunnel;
            match on_upgrade.done().await {
                Ok(stream) => {
                    if let Err(error) = inner.serve_http(stream, None, &open).await {
                        tracing::debug!(%error, "tunnel ended");
                    }
                }
                Err(error) => tracing::debug!(%error, "a tunnel was gone before it could be used"),
            }
        });
    }
}

/// Whether a TLS handshake comes. Nothing at all is left to TLS.
async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 0 || first[0] == HANDSHAKE)
}

fn is_no_http(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref::<hyper::Error>()).is_some_and(hyper::Error::is_parse)
}

fn is_same(field: &HeaderValue, proof: &Proof) -> bool {
    verify_slices_are_equal(field.as_bytes(), proof).is_ok()
}

async fn serve_http1<T>(connection: Rc<Connection>, stream: ClientStream<T>, open: &OpenConnection) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = connection.worker.snapshot().mesh.limits;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // `Activity` times request heads. hyper's own timer would also count the time between requests.
        .header_read_timeout(None)
        .max_header_size(limits.head_bytes as usize)
        .max_buf_size((limits.head_bytes as usize).max(MIN_BUFFER))
        .half_close(false);
    // No `pipeline_flush`: with it, hyper buffers responses without bound for clients that do not read.
    if limits.headers != HYPER_HEADERS {
        builder.max_headers(limits.headers as usize);
    }
    let handler = connection.clone();
    let service = service_fn(move |request| handler.clone().handle_http1(request));
    let mut serving = builder.serve_connection(TokioIo::new(stream.strict()), service).with_upgrades();
    let served = Drive::new(Pin::new(&mut serving), &connection, open, true).await;
    let Err(error) = &served else { return served };
    let is_slow = error.kind() == io::ErrorKind::TimedOut && connection.activity.has_part_of_head();
    if (is_slow || is_no_http(error))
        && let Some(http1::Parts { io, read_buf, .. }) = serving.into_parts()
    {
        let stream = io.into_inner();
        let failure = match is_slow {
            true => Failure::SlowHead(limits.head_timeout),
            false => refusal::cause(&stream, &read_buf, limits.headers as usize).into(),
        };
        // Boxed because it is rare, and each connection's future would have to hold room for it.
        Box::pin(connection.refuse_head(stream, failure, &read_buf)).await;
    }
    served
}

/// hyper's read size in bytes. hyper does not accept a smaller buffer.
const MIN_BUFFER: usize = 16 * 1024;
/// hyper's default limit on header fields. With it, the parser needs no allocation for headers.
const HYPER_HEADERS: u32 = 100;

async fn serve_http2<T>(connection: Rc<Connection>, stream: ClientStream<T>, open: &OpenConnection) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = connection.worker.snapshot().mesh.limits;
    let serving = pin!(Http2::new(connection.clone(), stream, &limits));
    let served = Drive::new(serving, &connection, open, false).await;
    let error = served.as_ref().err().and_then(|error| error.get_ref()?.downcast_ref());
    if let Some(failure) = error.and_then(|error| http2::broken(error, connection.activity.held() > 0)) {
        let request_id = connection.worker.request_id();
        drop(connection.record_unread(Protocol::Http2, &failure, request_id.to_str().unwrap_or_default()));
    }
    served
}

/// What HTTP/1.1 and HTTP/2 connections have in common.
pub(super) trait Serving: Future<Output = Result<(), Self::Broken>> {
    /// Why a connection has ended.
    type Broken: std::error::Error + Send + Sync + 'static;

    /// Shuts down gracefully: takes no further request, and ends when the in-flight ones are answered.
    fn shut_down(self: Pin<&mut Self>);
}

impl<T, S> Serving for http1::UpgradeableConnection<T, S>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Broken = hyper::Error;

    fn shut_down(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Drives a connection, and ends it when its peer is too slow or the node is draining. There is one timer per connection, which sleeps as
/// long as nothing can be due. So an exchange needs no timer here.
struct Drive<'a, S> {
    serving: Pin<&'a mut S>,
    connection: &'a Connection,
    open: &'a OpenConnection,
    /// Bytes that arrive between exchanges are the beginning of a request head (HTTP/1.1).
    head: bool,
    timer: Option<Pin<Box<Sleep>>>,
    /// The connection was told to end, and is cut off at this time.
    cut_off_at: Option<Instant>,
    /// It was told to end because its peer's node was revoked.
    revoked: bool,
    registered: bool,
}

impl<S: Serving> Future for Drive<'_, S> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.registered {
            self.registered = true;
            self.open.wake_to_drain(cx);
        }
        let connection = self.connection;
        if self.open.is_draining() && self.cut_off_at.is_none() {
            if self.head && !connection.activity.is_busy() {
                return Poll::Ready(Ok(()));
            }
            self.drain();
        }
        // An HTTP/1.1 connection that is idle stays: its client may just be sending a request. The response to that says that it was the last.
        if !self.head && connection.is_leaving() && self.cut_off_at.is_none() {
            self.drain();
        }
        if !self.revoked && connection.is_revoked() {
            self.revoked = true;
            // What was open has a moment to say how it ends.
            self.shut_down(LAST_BYTES);
        }
        if let Poll::Ready(result) = self.serving.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(io::Error::other));
        }
        if self.head && connection.activity.is_cut_off() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        loop {
            let now = match &mut self.timer {
                None => Instant::now(),
                Some(timer) => {
                    ready!(timer.as_mut().poll(cx));
                    Instant::now()
                }
            };
            let until = match (connection.check_timeouts(self.head, now), self.cut_off_at) {
                (_, Some(end)) if end <= now => return Poll::Ready(Ok(())),
                (_, Some(end)) => end,
                (TimeoutCheck::Until(until), None) => until,
                (TimeoutCheck::Stuck, None) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                (TimeoutCheck::Idle, None) => self.shut_down(GRACEFUL_CLOSE),
                (TimeoutCheck::Expired, None) => self.renew(),
            };
            match &mut self.timer {
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(until.into()))),
                Some(timer) => timer.as_mut().reset(until.into()),
            }
            if self.cut_off_at.is_some()
                && let Poll::Ready(result) = self.serving.as_mut().poll(cx)
            {
                return Poll::Ready(result.map_err(io::Error::other));
            }
        }
    }
}

impl<'a, S: Serving> Drive<'a, S> {
    fn new(serving: Pin<&'a mut S>, connection: &'a Connection, open: &'a OpenConnection, head: bool) -> Self {
        Self { serving, connection, open, head, timer: None, cut_off_at: None, revoked: false, registered: false }
    }

    /// Ends the connection with its last exchange. What the drain timeout ends has a moment more to say so.
    fn drain(&mut self) -> Instant {
        let limit = self.connection.worker.snapshot().mesh.limits.drain_timeout;
        self.shut_down(limit.saturating_add(LAST_BYTES))
    }

    /// Has the peer open another connection, which its new certificate proves. What is open here goes on, as long as each exchange may by itself.
    fn renew(&mut self) -> Instant {
        let mesh = &self.connection.worker.snapshot().mesh;
        self.shut_down(mesh.stream_lifetime().saturating_add(mesh.limits.drain_timeout).saturating_add(LAST_BYTES))
    }

    fn shut_down(&mut self, within: Duration) -> Instant {
        self.serving.as_mut().shut_down();
        let end = Instant::now() + within;
        self.cut_off_at = Some(end);
        // `poll` arms a new timer for `end`.
        self.timer = None;
        end
    }
}

impl Connection {
    /// Whether the node of the caller's sidecar was revoked.
    fn is_revoked(&self) -> bool {
        self.certificate.is_some_and(|certificate| certificate.is_revoked(&self.worker.node.svids))
    }

    fn check_timeouts(&self, head: bool, now: Instant) -> TimeoutCheck {
        let snapshot = self.worker.snapshot();
        let limits = &snapshot.mesh.limits;
        let head = head.then_some(limits.head_timeout);
        let timeouts = Timeouts { head, idle: limits.idle_timeout, exchange: snapshot.longest_exchange };
        let expires = self.certificate.and_then(|certificate| certificate.expires);
        match (self.activity.check_timeouts(&timeouts, now), expires) {
            (TimeoutCheck::Until(_) | TimeoutCheck::Idle, Some(end)) if end <= now => TimeoutCheck::Expired,
            (TimeoutCheck::Until(until), Some(end)) => TimeoutCheck::Until(until.min(end)),
            (verdict, _) => verdict,
        }
    }
}

/// Counts a connection as open until it is dropped.
pub(crate) struct OpenConnection {
    worker: Rc<Worker>,
    number: u64,
    /// An instance of this node opened it.
    of_instance: bool,
    activity: Arc<Activity>,
    attribution: Option<Attribution>,
}

impl OpenConnection {
    pub(crate) fn new(worker: &Rc<Worker>, direction: TrafficDirection) -> Self {
        let of_instance = direction == TrafficDirection::Outbound;
        let number = worker.connections.register(of_instance);
        Self { worker: worker.clone(), number, of_instance, activity: Activity::new(), attribution: None }
    }

    /// Says how the connection is counted.
    pub(super) fn set_attribution(&mut self, attribution: Attribution) {
        self.attribution = Some(attribution);
    }

    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    fn is_draining(&self) -> bool {
        self.worker.connections.is_draining(self.of_instance)
    }

    fn wake_to_drain(&self, cx: &Context<'_>) {
        self.worker.connections.set_waker(self.number, cx.waker());
    }

    /// Runs `future`; `None`: draining began first.
    async fn unless_draining<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.wake_to_drain(cx);
            if self.is_draining() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.worker.connections.unregister(self.number);
    }
}
