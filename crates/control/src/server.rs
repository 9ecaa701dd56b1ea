//! The control plane's gRPC server.

use crate::admission::Member;
use crate::control::{Control, JoinProof, NODE_LIFETIME};
use crate::join_verifier::JoinError;
use crate::listener;
use crate::listener::Peer;
use crate::node_share::Greets;
use crate::state::delivery::Next;
use crate::state::membership::{Departure, Hello, Wait};
use crate::ticks::{renew, roll_out, rotate, scale, watch_expiry};
use leno_identity::{Authority, SpiffeId, TlsError, control_server_config};
use leno_model::Locality;
use leno_wire::v1::discovery_server::{Discovery, DiscoveryServer};
use leno_wire::v1::from_node::Message;
use leno_wire::v1::identity_server::{Identity, IdentityServer};
use leno_wire::v1::membership_server::{Membership, MembershipServer};
use leno_wire::v1::status_server::{Status as StatusService, StatusServer};
use leno_wire::v1::to_node;
use leno_wire::{JoinToken, MAX_MESSAGE, RELEASE, Subject, listener_fault, messages, pod_fault, v1};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Maximum number of deltas that wait for a node to read them. Further changes are merged.
const QUEUE: usize = 4;
/// Maximum size of a request of one message in bytes: to join, to have a certificate signed, to
/// query.
const MAX_UNARY: usize = 16 << 10;
/// Lifetime of a certificate by which a node proves that it accepts the candidate authority.
const PROOF_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum length of the name of a release.
const MAX_RELEASE: usize = 64;
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between HTTP/2 PINGs to a node, and the time for their answers. So the control plane
/// notices a dead machine within 2.5 s.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Maximum number of concurrent requests of one connection. Further ones wait at the client.
const STREAMS: u32 = 32;
/// How long connections have to end when the control plane stops serving.
const CLOSING: Duration = Duration::from_secs(2);
/// Multiple of the grace period in which nodes may come back to a restarted control plane, or to
/// one that many nodes have left at once.
const RESTART_GRACES: u32 = 20;

/// Why the control plane cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The TLS library refused.
    #[error("the control plane's listener: {0}")]
    Tls(#[from] TlsError),
    /// The gRPC server failed.
    #[error("the control plane's server: {0}")]
    Server(#[from] tonic::transport::Error),
}

impl Control {
    /// Serves nodes, over TLS, until `shutdown` resolves.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (svids, identity) = self.own();
        let connections = listener::accept(listener, control_server_config(svids, identity)?);
        let (grace, awaiting) = (self.options().node_grace, self.downgrade());
        tokio::spawn(async move {
            tokio::time::sleep(grace.saturating_mul(RESTART_GRACES)).await;
            if let Some(control) = awaiting.upgrade() {
                tokio::task::spawn_blocking(move || control.stop_awaiting());
            }
        });
        // The streams of nodes never end by themselves, so a graceful shutdown has to end them.
        let (closing, closed) = tokio::sync::watch::channel(false);
        let rolling_out = roll_out(self.downgrade(), self.rollouts());
        let renewing = renew(self.downgrade());
        let scaling = scale(self.downgrade());
        let (rotating, watching) = (rotate(self.downgrade()), watch_expiry(self.downgrade()));
        let service = Service { control: self.clone(), closed: closed.clone() };
        // The server reads requests of one message before it knows their sender, and machines that
        // have yet to join may connect. So these requests are small.
        let identity = IdentityServer::new(service.clone()).max_decoding_message_size(MAX_UNARY);
        let status = StatusServer::new(service.clone()).max_decoding_message_size(MAX_UNARY);
        let discovery = DiscoveryServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE);
        let shutdown = async {
            shutdown.await;
            closing.send_replace(true);
        };
        let serving = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(discovery)
            .add_service(identity)
            .add_service(status)
            .add_service(MembershipServer::new(service).max_decoding_message_size(MAX_UNARY))
            .serve_with_incoming_shutdown(connections, shutdown);
        tokio::select! {
            served = serving => Ok(served?),
            never = rolling_out => match never {},
            never = renewing => match never {},
            never = scaling => match never {},
            never = rotating => match never {},
            never = watching => match never {},
            () = overdue(closed) => {
                tracing::warn!("some connections to the control plane do not end; what they ask for is refused");
                Ok(())
            }
        }
    }
}

/// Resolves when the time for connections to end is over. A client could hold one open with a
/// request that it never completes.
async fn overdue(mut closed: tokio::sync::watch::Receiver<bool>) {
    // The sender lives as long as the server.
    if closed.wait_for(|closed| *closed).await.is_ok() {
        tokio::time::sleep(CLOSING).await;
    }
}

#[derive(Clone)]
struct Service {
    control: Control,
    closed: tokio::sync::watch::Receiver<bool>,
}

impl Service {
    /// Refuses when the control plane has stopped serving: it may have lost its lease, and another
    /// one decides.
    fn serves(&self) -> Result<(), Status> {
        if *self.closed.borrow() { Err(stopping()) } else { Ok(()) }
    }

    /// The node that sent a request, as its certificate proves. A node never states its own name.
    fn node<T>(&self, request: &Request<T>) -> Result<(Arc<str>, Peer), Status> {
        self.serves()?;
        let peer = peer(request)?;
        let none = || Status::unauthenticated("a node's certificate is needed: join with a token of `leno token join`");
        let identity = peer.identity.as_ref().ok_or_else(none)?;
        let is_none = || Status::permission_denied(format!("`{identity}` is no node of this mesh, or was revoked"));
        let name = identity.node_name().ok_or_else(is_none)?;
        let members = self.control.members();
        let (name, member) = members.get(name).ok_or_else(is_none)?;
        // Another machine may now have the name of a revoked or replaced node.
        if peer.membership != Some(member.mark()) {
            return Err(is_none());
        }
        Ok((name.clone(), peer.clone()))
    }
}

fn peer<T>(request: &Request<T>) -> Result<&Peer, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the connection is not known"))
}

#[tonic::async_trait]
impl Discovery for Service {
    type DeltasStream = ReceiverStream<Result<v1::ToNode, Status>>;

    async fn deltas(&self, request: Request<Streaming<v1::FromNode>>) -> Result<Response<Self::DeltasStream>, Status> {
        let (node, peer) = self.node(&request)?;
        let greets = self.control.shares().greet(&node).map_err(|wait| too_often("a node begins streams", wait))?;
        let (to_node, queue) = mpsc::channel(QUEUE);
        let conversation =
            Conversation { control: self.control.clone(), node, peer, from_node: request.into_inner(), to_node };
        tokio::spawn(conversation.run(self.closed.clone(), greets));
        Ok(Response::new(ReceiverStream::new(queue)))
    }
}

/// One node's stream.
struct Conversation {
    control: Control,
    node: Arc<str>,
    peer: Peer,
    from_node: Streaming<v1::FromNode>,
    to_node: mpsc::Sender<Result<v1::ToNode, Status>>,
}

impl Conversation {
    async fn run(mut self, mut closed: tokio::sync::watch::Receiver<bool>, greets: Greets) {
        let hello = tokio::select! {
            hello = tokio::time::timeout(HELLO_TIMEOUT, self.hello()) => hello,
            _ = closed.wait_for(|closed| *closed) => Ok(Err(stopping())),
        };
        let (greeting, welcome) = match hello.unwrap_or_else(|_| Err(Status::deadline_exceeded("no hello arrived"))) {
            Ok(hello) => hello,
            Err(status) => return self.end(status).await,
        };
        // The node may have been revoked before its hello arrived, and another machine may have its
        // name.
        let is_member = |(_, member): (_, &Member)| self.peer.membership == Some(member.mark());
        if !self.control.members().get(&self.node).is_some_and(is_member) {
            return self.end(Status::permission_denied("this node was revoked")).await;
        }
        self.control.shares().turn(&self.node).await;
        self.control.when_free().await;
        let wake = Arc::new(Notify::new());
        let jobs = greeting.jobs.clone();
        let session = self.control.state_for(&self.node).connect(&self.node, greeting, wake.clone());
        drop(greets);
        let Some(session) = session else {
            return self.end(Status::permission_denied("this node is not admitted")).await;
        };
        tracing::info!(node = &*self.node, "a node connected");
        let protocol = welcome.protocol;
        // The queue is empty, so it has space. A node that is gone already ends the stream below.
        let _ = self.to_node.try_send(Ok(v1::ToNode { message: Some(to_node::Message::Welcome(welcome)) }));
        for (id, report) in jobs {
            self.control.job(&self.node, session, &id, report).await;
        }
        let questions = self.control.asking().connect(&self.node, session, protocol);
        let sent = push(&self.control, &self.node, session, &wake, &self.to_node);
        let ended = tokio::select! {
            status = receive(&self.control, &self.node, session, &mut self.from_node, &self.to_node) => status,
            status = sent => status,
            () = ask(questions, &self.to_node) => None,
            _ = closed.wait_for(|closed| *closed) => Some(stopping()),
        };
        self.control.when_free().await;
        self.control.asking().disconnect(&self.node, session);
        self.control.state().disconnect(&self.node, session);
        tracing::info!(node = &*self.node, reason = ended.as_ref().map(Status::message), "a node's stream ended");
        if let Some(status) = ended {
            // The node may have stopped reading. It need not learn the reason.
            let _ = self.to_node.try_send(Err(status));
        }
        let Self { control, node, from_node, to_node, .. } = self;
        drop((from_node, to_node));
        let grace = control.options().node_grace;
        // During the grace period only a weak handle is held, so that a control plane that ends can
        // close its store.
        let weak = control.downgrade();
        drop(control);
        for (time, wait) in [(grace, Wait::Again), (grace.saturating_mul(RESTART_GRACES), Wait::Last)] {
            tokio::time::sleep(time).await;
            let Some(control) = weak.upgrade() else { return };
            control.when_free().await;
            if control.state().forget(&node, session, wait) == Departure::Settled {
                return;
            }
        }
    }

    async fn hello(&mut self) -> Result<(Hello, v1::Welcome), Status> {
        let first = self.from_node.message().await?.and_then(|first| first.message);
        let Some(Message::Hello(hello)) = first else {
            return Err(Status::failed_precondition("a stream begins with a hello"));
        };
        let protocol = leno_wire::shared_protocol(&hello)?;
        let (from, at) = (Some(self.peer.from.ip()), self.peer.at);
        let greeting = Hello { protocol, from, at, ..greeting(&hello)? };
        match greeting.inbound {
            Some(inbound) if !self.peer.confirms(inbound.ip()) => Err(Status::permission_denied(format!(
                "the inbound listener {inbound} is not at an address that this node's certificate confirms: {}",
                self.peer.confirmed()
            ))),
            _ => Ok((greeting, v1::Welcome { protocol, release: RELEASE.to_owned() })),
        }
    }

    async fn end(self, status: Status) {
        tracing::warn!(node = &*self.node, reason = status.message(), "a node's stream was refused");
        // A node that is gone need not learn the reason.
        let _ = self.to_node.send(Err(status)).await;
    }
}

/// A node or address that exceeds its share may try again later.
fn too_often(what: &str, wait: Duration) -> Status {
    Status::unavailable(format!("{what} too often; try again in {} s", wait.as_secs() + 1))
}

fn stopping() -> Status {
    Status::unavailable("the control plane is stopping")
}

pub(crate) fn greeting(hello: &v1::Hello) -> Result<Hello, Status> {
    let held = |held: &v1::Held| Ok((messages::subject(held.subject.as_ref())?, messages::version(&held.version)?));
    let inbound = Some(&hello.inbound).filter(|inbound| !inbound.is_empty());
    let inbound = inbound.map(|inbound| inbound.parse()).transpose();
    Ok(Hello {
        subscribe: messages::subjects(&hello.subscribe)?,
        held: hello.held.iter().map(held).collect::<Result<_, Status>>()?,
        inbound: inbound.map_err(|_| Status::invalid_argument("the inbound listener is not address:port"))?,
        instances: hello.reports.iter().map(messages::reported).collect::<Result<_, _>>()?,
        jobs: hello.jobs.iter().cloned().map(messages::reported_job).collect::<Result<_, _>>()?,
        capacity: hello.capacity.clone().map(messages::offered),
        from: None,
        at: None,
        leases: hello.leases.iter().map(messages::leased).collect::<Result<_, _>>()?,
        protocol: hello.protocols.map_or(0, |protocols| protocols.newest),
        release: hello.release.chars().take(MAX_RELEASE).collect(),
        bounds: hello.bounds.iter().map(messages::bounded).collect::<Result<_, _>>()?,
    })
}

/// Sends deltas to the node until the session ends.
async fn push(
    control: &Control,
    node: &str,
    session: u64,
    wake: &Notify,
    to_node: &mpsc::Sender<Result<v1::ToNode, Status>>,
) -> Option<Status> {
    loop {
        // Reserves space in the queue first, so that a delta has the content of the moment when it
        // is sent.
        let place = to_node.reserve().await.ok()?;
        control.when_free().await;
        let next = control.state().next_delta(node, session);
        match next {
            Next::Send(message) => place.send(Ok(message)),
            Next::Wait => {
                drop(place);
                wake.notified().await;
            }
            Next::Ended => {
                return Some(Status::aborted(
                    "another stream of this node took this one's place, or the node was revoked",
                ));
            }
        }
    }
}

/// Sends questions to the node, until another stream replaces this one.
async fn ask(mut questions: mpsc::Receiver<v1::ToNode>, to_node: &mpsc::Sender<Result<v1::ToNode, Status>>) {
    while let Some(question) = questions.recv().await {
        if to_node.send(Ok(question)).await.is_err() {
            return;
        }
    }
    // `push` returns the reason of the end.
    std::future::pending().await
}

/// Handles a node's messages until the stream ends or a message is invalid.
async fn receive(
    control: &Control,
    node: &Arc<str>,
    session: u64,
    from_node: &mut Streaming<v1::FromNode>,
    to_node: &mpsc::Sender<Result<v1::ToNode, Status>>,
) -> Option<Status> {
    loop {
        let message = from_node.message().await;
        control.shares().turn(node).await;
        control.when_free().await;
        match message {
            Ok(Some(v1::FromNode { message: Some(Message::Renew(renew)) })) => {
                if control.renew_leases(node, session) {
                    // A node that does not read its stream gets no new term.
                    let renewed = v1::Renewed { sequence: renew.sequence };
                    let _ = to_node.try_send(Ok(v1::ToNode { message: Some(v1::to_node::Message::Renewed(renewed)) }));
                }
            }
            Ok(Some(message)) => {
                if let Err(status) = take(control, node, session, message).await {
                    return Some(status);
                }
            }
            Ok(None) => return None,
            Err(status) => return Some(status),
        }
    }
}

async fn take(control: &Control, node: &Arc<str>, session: u64, message: v1::FromNode) -> Result<(), Status> {
    match message.message {
        Some(Message::Subscribe(subscribe)) => {
            let (add, remove) =
                (messages::subjects(&subscribe.subscribe)?, messages::subjects(&subscribe.unsubscribe)?);
            control.state_for(node).subscribe(node, session, add, &remove);
        }
        Some(Message::Ack(ack)) => {
            let rejected: Vec<(Subject, String)> = ack
                .rejected
                .into_iter()
                .map(|rejected| Ok((messages::subject(rejected.subject.as_ref())?, rejected.reason)))
                .collect::<Result<_, Status>>()?;
            control.state_for(node).acknowledge(node, session, ack.nonce, rejected);
        }
        Some(Message::Report(report)) => {
            let (function, instances) = messages::reported(&report)?;
            control.state_for(node).report(node, session, function, instances);
        }
        Some(Message::Traffic(traffic)) => {
            let (function, counts) = messages::counted(&traffic)?;
            control.state_for(node).count(node, session, &function, &counts);
        }
        Some(Message::Loads(loads)) => control.load(node, session, messages::loaded(&loads)?),
        Some(Message::Demands(demands)) => control.state_for(node).demand(node, session, messages::demanded(demands)?),
        Some(Message::Capacity(capacity)) => control.state_for(node).offers(node, session, messages::offered(capacity)),
        Some(Message::Job(job)) => {
            let (id, report) = messages::reported_job(job)?;
            control.job(node, session, &id, report).await;
        }
        Some(Message::Certificates(certificates)) => {
            control.state_for(node).certified(node, session, messages::certified(&certificates));
        }
        Some(Message::Listeners(listeners)) => {
            control.state_for(node).cannot_serve(node, session, listener_fault::from_wire(listeners));
        }
        Some(Message::Pods(pods)) => {
            control.state_for(node).cannot_capture(node, session, pod_fault::from_wire(pods));
        }
        Some(Message::Proof(proof)) => control.state_for(node).proved(node, session, messages::proof(proof)),
        Some(Message::Answer(answer)) => {
            if !control.asking().answer(node, session, answer) {
                control.state_for(node).unasked(node);
            }
        }
        // The task that reads the stream answers it.
        Some(Message::Renew(_)) => {}
        Some(Message::Hello(_)) => return Err(Status::failed_precondition("a second hello")),
        None => return Err(Status::invalid_argument("an unknown message")),
    }
    Ok(())
}

#[tonic::async_trait]
impl Identity for Service {
    async fn sign(&self, request: Request<v1::SignRequest>) -> Result<Response<v1::SignResponse>, Status> {
        let (node, peer) = self.node(&request)?;
        let v1::SignRequest { identity, csr, candidate } = request.into_inner();
        let identity: SpiffeId = identity.parse().map_err(|error| Status::invalid_argument(format!("{error}")))?;
        let trouble = Status::internal;
        if candidate {
            let candidate = self.control.trust().candidate();
            let candidate = candidate.ok_or_else(|| Status::failed_precondition("there is nothing to be proved"))?;
            if identity.node_name() != Some(&node) {
                return Err(Status::permission_denied("a node proves its own identity"));
            }
            return self.sign_node((&node, &peer), &identity, &csr, (&candidate, PROOF_LIFETIME));
        }
        let authority = self.control.authority().map_err(|error| trouble(error.to_string()))?;
        if identity.node_name() == Some(&node) {
            return self.sign_node((&node, &peer), &identity, &csr, (&authority, NODE_LIFETIME));
        }
        self.control.when_free().await;
        let lifetime = self.control.state().may_sign(&node, &identity);
        let Some(lifetime) = lifetime else {
            tracing::warn!(node = &*node, %identity, "a node asked for an identity that it does not host");
            return Err(Status::permission_denied(format!("this node hosts no function with the identity {identity}")));
        };
        // `node` has checked that the mark is the member's.
        let membership = peer.membership.ok_or_else(|| Status::permission_denied("this node was revoked"))?;
        let signed = authority.sign_node(&csr, &identity, &[], membership, lifetime);
        let chain = signed.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if let Some(not_after) = chain.first().and_then(leno_identity::not_after) {
            self.control.state().signed(&node, identity, not_after.as_secs());
        }
        Ok(Response::new(v1::SignResponse { chain: messages::chain(&chain) }))
    }
}

impl Service {
    /// Renews a node's own certificate.
    fn sign_node(
        &self,
        (node, peer): (&str, &Peer),
        identity: &SpiffeId,
        csr: &[u8],
        (authority, lifetime): (&Authority, Duration),
    ) -> Result<Response<v1::SignResponse>, Status> {
        let member = self.control.members().get(node).map(|(_, member)| member.clone());
        let member = member.filter(|member| peer.membership == Some(member.mark()));
        let member = member.ok_or_else(|| Status::permission_denied("this node was revoked"))?;
        let signed = authority.sign_node(csr, identity, &member.addresses, member.mark(), lifetime);
        let chain = signed.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(v1::SignResponse { chain: messages::chain(&chain) }))
    }
}

#[tonic::async_trait]
impl Membership for Service {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        self.serves()?;
        let from = peer(&request)?.from.ip();
        let v1::JoinRequest { secret, name, csr, address } = request.into_inner();
        let address = Some(address).filter(|address| !address.is_empty()).map(|address| address.parse()).transpose();
        let address =
            address.map_err(|_| Status::invalid_argument("the address is not an IP address"))?.unwrap_or(from);
        self.control.shares().join(from).map_err(|wait| too_often("machines join from there", wait))?;
        let refused = |error: JoinError| {
            tracing::warn!(node = name, %from, %error, "a machine was not let in");
            match error {
                JoinError::Refused(error) => Status::permission_denied(error),
                JoinError::Request(error) => Status::invalid_argument(error),
                JoinError::Away(error) => Status::unavailable(error),
            }
        };
        let proof = match JoinToken::is_secret(&secret) {
            true => JoinProof::Token { secret, from, address },
            false => JoinProof::Verified(self.control.verify(&secret).await.map_err(refused)?),
        };
        let (control, asked) = (self.control.clone(), name.clone());
        let joining = move || control.join(&proof, (&asked, &csr));
        let joined = tokio::task::spawn_blocking(joining).await;
        let joined = joined.map_err(|error| Status::internal(error.to_string()))?;
        let chain = joined.map_err(refused)?;
        tracing::info!(node = name, %from, %address, "a node joined");
        let roots = self.control.bundle().roots().map(|root| root.to_vec().into()).collect();
        Ok(Response::new(v1::JoinResponse { chain: messages::chain(&chain), roots }))
    }

    async fn settings(&self, request: Request<v1::SettingsRequest>) -> Result<Response<v1::SettingsResponse>, Status> {
        let (node, _) = self.node(&request)?;
        let locality = self.control.members().get(&node).map(|(_, member)| member.admission.locality.clone());
        let Locality { region, zone } = locality.unwrap_or_default();
        let mesh = self.control.state().mesh();
        let mesh = mesh.ok_or_else(|| Status::unavailable("the control plane has no Mesh document yet"))?;
        let (region, zone) = (region.unwrap_or_default(), zone.unwrap_or_default());
        Ok(Response::new(v1::SettingsResponse { mesh, region, zone }))
    }
}

#[tonic::async_trait]
impl StatusService for Service {
    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let (node, _) = self.node(&request)?;
        Ok(Response::new((&self.control.status_for(&node)).into()))
    }
}
