//! The control plane's gRPC server.

use crate::control::{Control, WeakControl};
use crate::resource::Subject;
use crate::state::{Greeting, Next};
use crate::wire::v1::discovery_server::{Discovery, DiscoveryServer};
use crate::wire::v1::from_node::Message;
use crate::wire::v1::identity_server::{Identity, IdentityServer};
use crate::wire::v1::status_server::{Status as StatusService, StatusServer};
use crate::wire::{self, MAX_MESSAGE, RELEASE, v1};
use leno_identity::SpiffeId;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Deltas that may wait for a node to read them. Further changes are merged.
const QUEUE: usize = 4;
/// Interval between decisions on active rollouts.
const ROLLOUT_TICK: Duration = Duration::from_millis(250);
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Why the control plane cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener is not on a loopback address: join tokens would cross a network unencrypted.
    #[error("the control plane cannot listen on {0}: it has no TLS yet, so it must be a loopback address")]
    NotLoopback(SocketAddr),
    /// The listener's address cannot be read.
    #[error("the control plane's listener: {0}")]
    Listener(#[from] std::io::Error),
    /// The gRPC server failed.
    #[error("the control plane's server: {0}")]
    Server(#[from] tonic::transport::Error),
}

impl Control {
    /// Serves nodes until `shutdown` resolves. The listener must be on a loopback address, because join tokens are not protected by TLS yet.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            return Err(ServeError::NotLoopback(address));
        }
        let (grace, awaiting) = (self.options().node_grace, self.downgrade());
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            if let Some(control) = awaiting.upgrade() {
                control.state().stop_awaiting();
            }
        });
        // The streams of nodes never end by themselves, so a graceful shutdown has to end them.
        let (closing, closed) = tokio::sync::watch::channel(false);
        let rolling_out = roll_out(self.downgrade(), self.rollouts());
        let service = Service { control: self.clone(), closed };
        let discovery = DiscoveryServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE);
        let shutdown = async {
            shutdown.await;
            closing.send_replace(true);
        };
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .add_service(discovery)
            .add_service(IdentityServer::new(service.clone()))
            .add_service(StatusServer::new(service))
            // Messages are small and awaited. Waiting to fill a packet would cost a delayed acknowledgement, 40 ms.
            .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), shutdown);
        tokio::select! {
            served = serving => Ok(served?),
            never = rolling_out => match never {},
        }
    }
}

/// Decides on rollouts, and sleeps while there are none.
async fn roll_out(control: WeakControl, begun: Arc<Notify>) -> Infallible {
    loop {
        let rolls_out = control.upgrade().is_some_and(|control| control.state().rolls_out());
        if !rolls_out {
            begun.notified().await;
            continue;
        }
        tokio::time::sleep(ROLLOUT_TICK).await;
        let Some(control) = control.upgrade() else { continue };
        let deciding = tokio::task::spawn_blocking(move || control.roll_out());
        let outcome = deciding.await.map_err(|error| error.to_string());
        if let Err(reason) = outcome.and_then(|outcome| outcome.map_err(|error| error.to_string())) {
            tracing::error!(reason, "a decision on a rollout is not in force; it is tried again");
        }
    }
}

#[derive(Clone)]
struct Service {
    control: Control,
    closed: tokio::sync::watch::Receiver<bool>,
}

impl Service {
    /// The node that sent a request, as its join token proves. A node never states its own name.
    fn node<T>(&self, request: &Request<T>) -> Result<Arc<str>, Status> {
        let refused =
            || Status::unauthenticated("a join token is needed: the one that this node was given when it was admitted");
        self.control.admitted().node(request.metadata()).ok_or_else(refused)
    }
}

#[tonic::async_trait]
impl Discovery for Service {
    type DeltasStream = ReceiverStream<Result<v1::ToNode, Status>>;

    async fn deltas(&self, request: Request<Streaming<v1::FromNode>>) -> Result<Response<Self::DeltasStream>, Status> {
        let node = self.node(&request)?;
        let (to_node, queue) = mpsc::channel(QUEUE);
        let conversation =
            Conversation { control: self.control.clone(), node, from_node: request.into_inner(), to_node };
        tokio::spawn(conversation.run(self.closed.clone()));
        Ok(Response::new(ReceiverStream::new(queue)))
    }
}

/// One node's stream.
struct Conversation {
    control: Control,
    node: Arc<str>,
    from_node: Streaming<v1::FromNode>,
    to_node: mpsc::Sender<Result<v1::ToNode, Status>>,
}

impl Conversation {
    async fn run(mut self, mut closed: tokio::sync::watch::Receiver<bool>) {
        let hello = tokio::select! {
            hello = tokio::time::timeout(HELLO_TIMEOUT, self.hello()) => hello,
            _ = closed.wait_for(|closed| *closed) => Ok(Err(stopping())),
        };
        let greeting = match hello.unwrap_or_else(|_| Err(Status::deadline_exceeded("no hello arrived"))) {
            Ok(greeting) => greeting,
            Err(status) => return self.end(status).await,
        };
        let wake = Arc::new(Notify::new());
        let jobs = greeting.jobs.clone();
        let Some(session) = self.control.state().connect(&self.node, greeting, wake.clone()) else {
            return self.end(Status::permission_denied("this node is not admitted")).await;
        };
        tracing::info!(node = &*self.node, "a node connected");
        for (id, report) in jobs {
            self.control.job(&self.node, session, &id, report).await;
        }
        let sent = push(&self.control, &self.node, session, &wake, &self.to_node);
        let ended = tokio::select! {
            status = receive(&self.control, &self.node, session, &mut self.from_node) => status,
            status = sent => status,
            _ = closed.wait_for(|closed| *closed) => Some(stopping()),
        };
        self.control.state().disconnect(&self.node, session);
        tracing::info!(node = &*self.node, reason = ended.as_ref().map(Status::message), "a node's stream ended");
        if let Some(status) = ended {
            // The node may have stopped reading. It need not learn the reason.
            let _ = self.to_node.try_send(Err(status));
        }
        let Self { control, node, from_node, to_node } = self;
        drop((from_node, to_node));
        let grace = control.options().node_grace;
        // During the grace period only a weak handle is held, so that a control plane that ends can close its store.
        let weak = control.downgrade();
        drop(control);
        tokio::time::sleep(grace).await;
        if let Some(control) = weak.upgrade() {
            control.state().forget(&node, session);
        }
    }

    async fn hello(&mut self) -> Result<Greeting, Status> {
        let first = self.from_node.message().await?.and_then(|first| first.message);
        let Some(Message::Hello(hello)) = first else {
            return Err(Status::failed_precondition("a stream begins with a hello"));
        };
        greeting(&hello)
    }

    async fn end(self, status: Status) {
        tracing::warn!(node = &*self.node, reason = status.message(), "a node's stream was refused");
        // A node that is gone need not learn the reason.
        let _ = self.to_node.send(Err(status)).await;
    }
}

fn stopping() -> Status {
    Status::unavailable("the control plane is stopping")
}

pub(crate) fn greeting(hello: &v1::Hello) -> Result<Greeting, Status> {
    if hello.release != RELEASE {
        let text = format!(
            "the node is of release {} and the control plane of {RELEASE}; they must be the same",
            hello.release
        );
        return Err(Status::failed_precondition(text));
    }
    let held = |held: &v1::Held| Ok((wire::subject(held.subject.as_ref())?, wire::version(&held.version)?));
    let inbound = Some(&hello.inbound).filter(|inbound| !inbound.is_empty());
    let inbound = inbound.map(|inbound| inbound.parse()).transpose();
    Ok(Greeting {
        subscribe: wire::subjects(&hello.subscribe)?,
        held: hello.held.iter().map(held).collect::<Result<_, Status>>()?,
        inbound: inbound.map_err(|_| Status::invalid_argument("the inbound listener is not address:port"))?,
        instances: hello.reports.iter().map(wire::reported).collect::<Result<_, _>>()?,
        jobs: hello.jobs.iter().cloned().map(wire::reported_job).collect::<Result<_, _>>()?,
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
        // The place in the queue comes first: the content of a delta is decided when it can be sent, not before.
        let place = to_node.reserve().await.ok()?;
        let next = control.state().next_delta(node, session);
        match next {
            Next::Send(message) => place.send(Ok(message)),
            Next::Wait => {
                drop(place);
                wake.notified().await;
            }
            Next::Ended => return Some(Status::aborted("another stream of this node took this one's place")),
        }
    }
}

/// Handles a node's messages until the stream ends or a message makes no sense.
async fn receive(
    control: &Control,
    node: &str,
    session: u64,
    from_node: &mut Streaming<v1::FromNode>,
) -> Option<Status> {
    loop {
        match from_node.message().await {
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

async fn take(control: &Control, node: &str, session: u64, message: v1::FromNode) -> Result<(), Status> {
    match message.message {
        Some(Message::Subscribe(subscribe)) => {
            let (add, remove) = (wire::subjects(&subscribe.subscribe)?, wire::subjects(&subscribe.unsubscribe)?);
            control.state().subscribe(node, session, add, &remove);
        }
        Some(Message::Ack(ack)) => {
            let rejected: Vec<(Subject, String)> = ack
                .rejected
                .into_iter()
                .map(|rejected| Ok((wire::subject(rejected.subject.as_ref())?, rejected.reason)))
                .collect::<Result<_, Status>>()?;
            control.state().acknowledge(node, session, ack.nonce, rejected);
        }
        Some(Message::Report(report)) => {
            let (function, instances) = wire::reported(&report)?;
            control.state().report(node, session, function, instances);
        }
        Some(Message::Traffic(traffic)) => {
            let (function, counts) = wire::counted(&traffic)?;
            control.state().count(node, session, &function, &counts);
        }
        Some(Message::Job(job)) => {
            let (id, report) = wire::reported_job(job)?;
            control.job(node, session, &id, report).await;
        }
        Some(Message::Hello(_)) => return Err(Status::failed_precondition("a second hello")),
        None => return Err(Status::invalid_argument("an unknown message")),
    }
    Ok(())
}

#[tonic::async_trait]
impl Identity for Service {
    async fn sign(&self, request: Request<v1::SignRequest>) -> Result<Response<v1::SignResponse>, Status> {
        let node = self.node(&request)?;
        let v1::SignRequest { identity, csr } = request.into_inner();
        let identity: SpiffeId = identity.parse().map_err(|error| Status::invalid_argument(format!("{error}")))?;
        let lifetime = self.control.state().may_sign(&node, &identity);
        let Some(lifetime) = lifetime else {
            tracing::warn!(node = &*node, %identity, "a node asked for an identity that it does not host");
            return Err(Status::permission_denied(format!("this node hosts no function with the identity {identity}")));
        };
        let signed = self.control.authority().sign(&csr, &identity, lifetime);
        let chain = signed.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if let Some(not_after) = chain.first().and_then(leno_identity::not_after) {
            self.control.state().signed(&node, identity, not_after.as_secs());
        }
        Ok(Response::new(v1::SignResponse { chain: chain.iter().map(|der| der.to_vec().into()).collect() }))
    }
}

#[tonic::async_trait]
impl StatusService for Service {
    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        self.node(&request)?;
        Ok(Response::new((&self.control.status()).into()))
    }
}
