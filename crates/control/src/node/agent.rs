//! The handle through which a node speaks with the control plane.

use super::desired::{Desired, from_node};
use super::stream;
use super::update::Update;
use crate::admission::JoinToken;
use crate::job::JobReport;
use crate::resource::{Instance, Subject, Version};
use crate::rollout::RevisionCounts;
use crate::wire::v1::from_node::Message;
use crate::wire::v1::identity_client::IdentityClient;
use crate::wire::{self, v1};
use backon::ExponentialBuilder;
use leno_config::FunctionId;
use leno_identity::{CertificateDer, SpiffeId};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(10);
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);
/// Updates that may wait for the node to apply them; the rest waits at the control plane, and merges there.
const QUEUE: usize = 4;

/// How to join.
#[derive(Clone, Debug)]
pub struct Options {
    /// The control plane's gRPC address.
    pub control: SocketAddr,
    /// Given when the node was admitted.
    pub token: JoinToken,
    /// This node's inbound listener, where other nodes reach the functions that it hosts.
    pub inbound: Option<SocketAddr>,
    /// Pauses between attempts to reach the control plane; without a limit on their number.
    pub backoff: ExponentialBuilder,
}

/// Why a node cannot even try to join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It is not a URI's authority.
    #[error("{0} cannot be connected to")]
    Address(SocketAddr),
    /// The token is not one.
    #[error("the join token cannot be sent")]
    Token,
}

/// Why a certificate was not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignFailure {
    /// Not with this node, or not with this request.
    #[error("the control plane refused: {0}")]
    Refused(String),
    /// It cannot be reached, or does not answer.
    #[error("the control plane is away: {0}")]
    Away(String),
}

/// The state of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Not yet, or not any more; the node goes on with what it has.
    Away {
        /// Attempts that failed since there was a stream.
        attempts: u32,
        /// Why the last one failed, if any.
        reason: Option<String>,
    },
    /// There is a stream.
    Connected,
}

/// Says what this node wants and has. Clones are the same one; when the last is dropped, the stream ends.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Handle>);

/// The updates, in the order in which they are to be applied.
pub type Updates = mpsc::Receiver<Update>;

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    channel: Channel,
    authorization: MetadataValue<Ascii>,
    connection: watch::Receiver<Connection>,
    /// Its end ends the stream.
    _alive: mpsc::Sender<()>,
}

/// What the agent, its updates and its stream have in common.
pub(crate) struct Shared {
    desired: Mutex<Desired>,
    outbox: mpsc::UnboundedSender<Said>,
}

/// A message for the control plane. One that belongs to a stream is void on another.
pub(crate) struct Said {
    pub stream: Option<u64>,
    pub message: v1::FromNode,
}

/// Starts to keep a stream to the control plane, on the tokio runtime that this is called on. Nothing is subscribed to yet.
pub fn join(options: Options) -> Result<(Agent, Updates), JoinError> {
    let Options { control, token, inbound, backoff } = options;
    let endpoint = Endpoint::from_shared(format!("http://{control}")).map_err(|_| JoinError::Address(control))?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_lazy();
    let authorization = token.header().ok_or(JoinError::Token)?;
    let (outbox, said) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared { desired: Mutex::default(), outbox });
    let (updates, queue) = mpsc::channel(QUEUE);
    let (state, connection) = watch::channel(Connection::Away { attempts: 0, reason: None });
    let (alive, ended) = mpsc::channel(1);
    let session = stream::Session {
        shared: shared.clone(),
        channel: channel.clone(),
        authorization: authorization.clone(),
        inbound,
        backoff,
        said,
        updates,
        state,
        ended,
    };
    tokio::spawn(session.run());
    Ok((Agent(Arc::new(Handle { shared, channel, authorization, connection, _alive: alive })), queue))
}

impl Agent {
    /// Wants these, from now on. [`Subject::Hosted`] covers the slices of the functions that this node hosts and the endpoints
    /// of their callees, [`Subject::Routes`] the slices and endpoints of the functions that the gateway exposes.
    pub fn subscribe(&self, subjects: impl IntoIterator<Item = Subject>) {
        let subjects: Vec<_> = subjects.into_iter().collect();
        let message = self.0.shared.desired().subscribe(&subjects, &[]);
        self.0.shared.say(None, message);
    }

    /// Does not want these any more. Each that nothing else covers is removed by an update.
    pub fn unsubscribe(&self, subjects: impl IntoIterator<Item = Subject>) {
        let subjects: Vec<_> = subjects.into_iter().collect();
        let message = self.0.shared.desired().subscribe(&[], &subjects);
        self.0.shared.say(None, message);
    }

    /// All instances of `function` on this node. It is told when something about them has changed; while the control plane is away the
    /// latest report is kept for it.
    pub fn report(&self, function: &FunctionId, instances: Vec<Instance>) {
        let message = self.0.shared.desired().report(function, instances);
        if let Some(message) = message {
            self.0.shared.say(None, message);
        }
    }

    /// What became of the requests of a function's revisions on this node, counted since it began to lead requests to them. First of all
    /// before it does. While the control plane is away nothing is kept: the next counts contain these.
    pub fn traffic(&self, function: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        if *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.say(None, from_node(Message::Traffic(wire::traffic(function, counts))));
        }
    }

    /// How far a job is, each time that something about it changes; repeated when the control plane was away.
    pub fn report_job(&self, job: &FunctionId, report: JobReport) {
        let message = self.0.shared.desired().report_job(job, report);
        self.0.shared.say(None, message);
    }

    /// The job is not this node's any more: there is nothing to be said of it.
    pub fn forget_job(&self, job: &FunctionId) {
        self.0.shared.desired().forget_job(job);
    }

    /// Has a certificate signed for an identity that this node hosts. `csr` and the chain, leaf first, are DER.
    pub async fn sign(&self, identity: &SpiffeId, csr: Vec<u8>) -> Result<Vec<CertificateDer<'static>>, SignFailure> {
        let mut request = Request::new(v1::SignRequest { identity: identity.to_string(), csr: csr.into() });
        request.metadata_mut().insert("authorization", self.0.authorization.clone());
        request.set_timeout(SIGN_TIMEOUT);
        let answer =
            IdentityClient::new(self.0.channel.clone()).sign(request).await.map_err(|status| failure(&status))?;
        Ok(answer.into_inner().chain.into_iter().map(|der| CertificateDer::from(der.to_vec())).collect())
    }

    /// The state of the stream, now and as it changes.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.clone()
    }

    /// What is in force on this node.
    pub fn held(&self) -> BTreeMap<Subject, Version> {
        self.0.shared.desired().held().clone()
    }
}

fn failure(status: &tonic::Status) -> SignFailure {
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled | tonic::Code::Unknown => {
            SignFailure::Away(status.message().to_owned())
        }
        _ => SignFailure::Refused(status.message().to_owned()),
    }
}

impl Shared {
    /// Held for moments only; nothing panics in between.
    pub(crate) fn desired(&self) -> MutexGuard<'_, Desired> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After the stream's task has ended there is nobody to say anything to.
    pub(crate) fn say(&self, stream: Option<u64>, message: v1::FromNode) {
        let _ = self.outbox.send(Said { stream, message });
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("held", &self.desired().held().len()).finish_non_exhaustive()
    }
}
