//! The handle through which a node talks to the control plane.

use super::desired::{Desired, from_node};
use super::questions::Questions;
use super::replaced::PassedOn;
use super::stream;
use super::update::Update;
use crate::channel;
use crate::job::JobReport;
use crate::load::{Capacity, LimitDemand, Load};
use crate::membership::Membership;
use crate::resource::{Instance, Subject, Version};
use crate::rollout::RevisionCounts;
use crate::wire::v1::from_node::Message;
use crate::wire::v1::identity_client::IdentityClient;
use crate::wire::{self, v1};
use backon::ExponentialBuilder;
use bytes::Bytes;
use leno_config::FunctionId;
use leno_identity::{CertificateDer, SpiffeId, SvidStore, TlsError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tonic::Request;
use tonic::transport::Channel;

const SIGN_TIMEOUT: Duration = Duration::from_secs(10);
/// Updates that may wait for the node to apply them. Further changes wait at the control plane and are merged there.
const QUEUE: usize = 4;
/// Questions that may wait for the node to answer them. Further ones are declined.
const QUESTIONS: usize = 16;

/// How to reach and join the control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port` of the control planes' gRPC listeners. They are tried in turn.
    pub control: Vec<String>,
    /// The node's identity.
    pub membership: Membership,
    /// This node's inbound listener, where other nodes reach its functions. Its address must be one that the node's certificate confirms. `None`:
    /// other nodes get no endpoints of this node.
    pub inbound: Option<SocketAddr>,
    /// Pauses between attempts to reach the control plane. The number of attempts is not limited.
    pub backoff: ExponentialBuilder,
}

/// Why a certificate was not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignFailure {
    /// The control plane refused this node or this request.
    #[error("the control plane refused: {0}")]
    Refused(String),
    /// The control plane cannot be reached or does not answer.
    #[error("the control plane is away: {0}")]
    Away(String),
}

/// The state of the stream to the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// There is no stream, or not any more. The node keeps its last configuration.
    Away {
        /// Attempts that failed since the last stream.
        attempts: u32,
        /// Why the last attempt failed; `None`: none has failed yet.
        reason: Option<String>,
    },
    /// The stream is open.
    Connected,
}

/// A term of the node's shares of rate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// When it ends.
    pub until: Instant,
    /// When the control plane's answer arrived. If an earlier term was over by then, all shares that were delivered before are void.
    pub renewed: Instant,
}

/// Tells the control plane what this node wants and has. Clones share one stream, which ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Handle>);

/// Updates from the control plane, in the order in which they must be applied.
pub type Updates = mpsc::Receiver<Update>;

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    membership: Membership,
    channel: Channel,
    connection: watch::Receiver<Connection>,
    term: watch::Receiver<Option<Term>>,
    /// `None`: somebody has taken them.
    questions: Mutex<Option<Questions>>,
    /// Dropping this ends the stream.
    _alive: mpsc::Sender<()>,
    yielding: watch::Sender<bool>,
    passed_on: mpsc::UnboundedSender<PassedOn>,
}

/// An earlier process of this node, from which this one takes over.
#[derive(Debug)]
pub struct Predecessor {
    /// What it has in force, and whatever it puts into force, as [`Agent::copy`] returns it. When this closes, the node's stream is this process's.
    pub updates: mpsc::Receiver<Bytes>,
    /// Told how that goes.
    pub events: mpsc::UnboundedSender<Succession>,
    /// Closes when that process has ended.
    pub gone: oneshot::Receiver<Infallible>,
}

/// What becomes of a predecessor's updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Succession {
    /// This process cannot use what the predecessor has, for this reason.
    Rejected(String),
    /// The predecessor has sent all, and it was put into force. The last event.
    InForce,
}

/// Shared by the agent, its updates and its stream.
pub(crate) struct Shared {
    desired: Mutex<Desired>,
    outbox: mpsc::UnboundedSender<Outgoing>,
    /// Notified when certificates have to be renewed earlier than they say.
    renewals: Notify,
    standing: Mutex<Standing>,
    /// The addresses of the mesh's machines.
    machines: watch::Sender<Vec<IpAddr>>,
    /// Changes when memberships were revoked.
    revocations: watch::Sender<()>,
}

/// How this process stands to other ones of its node.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    /// The node is this process: the stream is its own, and so are the files for the next start.
    pub current: bool,
    /// The process before this one has ended.
    pub alone: bool,
}

/// A message for the control plane. With a `stream` number it is sent on that stream only.
pub(crate) struct Outgoing {
    pub stream: Option<u64>,
    pub message: v1::FromNode,
}

/// Opens a stream to the control plane and keeps it open, on the current tokio runtime. It has no subscriptions yet.
pub fn join(options: Options) -> Result<(Agent, Updates), TlsError> {
    succeed(options, None)
}

/// The same. With a predecessor, the updates are that one's until it hands over, and only then is the stream opened.
pub fn succeed(options: Options, predecessor: Option<Predecessor>) -> Result<(Agent, Updates), TlsError> {
    let Options { control, membership, inbound, backoff } = options;
    let channel = channel::of_member(&control, &membership)?;
    let (outbox, outgoing) = mpsc::unbounded_channel();
    let standing = Standing { current: predecessor.is_none(), alone: predecessor.is_none() };
    let (renewals, standing) = (Notify::new(), Mutex::new(standing));
    let (machines, revocations) = Default::default();
    let shared = Arc::new(Shared { desired: Mutex::default(), outbox, renewals, standing, machines, revocations });
    let (updates, queue) = mpsc::channel(QUEUE);
    let (state, connection) = watch::channel(Connection::Away { attempts: 0, reason: None });
    let (renewed, term) = watch::channel(None);
    let (alive, ended) = mpsc::channel(1);
    let (yielding, yields) = watch::channel(false);
    let (asked, questions) = mpsc::channel(QUESTIONS);
    let (passed_on, of_replacement) = mpsc::unbounded_channel();
    let session = stream::Session {
        shared: shared.clone(),
        membership: membership.clone(),
        channel: channel.clone(),
        inbound,
        backoff,
        outgoing,
        updates,
        asked,
        state,
        term: renewed,
        ended,
        predecessor,
        yielding: yields,
        passed_on: of_replacement,
        early: VecDeque::new(),
    };
    tokio::spawn(session.run());
    let questions = Mutex::new(Some(questions));
    let handle =
        Handle { shared, membership, channel, connection, term, questions, _alive: alive, yielding, passed_on };
    Ok((Agent(Arc::new(handle)), queue))
}

impl Agent {
    /// Subscribes to `subjects`. [`Subject::Hosted`] covers the slices of the functions that this node hosts and the endpoints of their callees.
    /// [`Subject::Routes`] covers the slices and endpoints of the functions that the gateway exposes.
    pub fn subscribe(&self, subjects: impl IntoIterator<Item = Subject>) {
        let subjects: Vec<_> = subjects.into_iter().collect();
        let message = self.0.shared.desired().subscribe(&subjects, &[]);
        self.0.shared.send(None, message);
    }

    /// Ends subscriptions. An update removes each subject that no other subscription covers.
    pub fn unsubscribe(&self, subjects: impl IntoIterator<Item = Subject>) {
        let subjects: Vec<_> = subjects.into_iter().collect();
        let message = self.0.shared.desired().subscribe(&[], &subjects);
        self.0.shared.send(None, message);
    }

    /// Reports all instances of `function` on this node. Only changes are sent. While the control plane is away, the latest report is kept for it.
    pub fn report(&self, function: &FunctionId, instances: Vec<Instance>) {
        let message = self.0.shared.desired().report(function, instances);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// Reports the request counts of a function's revisions on this node, cumulative since the node began to route requests to them. The first report
    /// must precede the first request. Nothing is kept while the control plane is away, because the next counts include these.
    pub fn report_request_counts(&self, function: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        if *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.send(None, from_node(Message::Traffic(wire::traffic(function, counts))));
        }
    }

    /// Says what this node offers to instances, and which images it keeps. Without it, the scheduler places nothing here. Only changes are sent.
    pub fn offer(&self, capacity: Capacity, images: BTreeSet<String>) {
        let message = self.0.shared.desired().offer(capacity, images);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// Reports the load of functions for which anything has changed. Nothing is kept while the control plane is away, because totals only grow.
    pub fn report_loads(&self, loads: &[Load]) {
        if !loads.is_empty() && *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.send(None, from_node(Message::Loads(wire::loads(loads))));
        }
    }

    /// Reports what was asked of rate limits for which anything has changed. Nothing is kept while the control plane is away, because totals only grow.
    pub fn report_demands(&self, demands: &[LimitDemand]) {
        if !demands.is_empty() && *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.send(None, from_node(Message::Demands(wire::demands(demands))));
        }
    }

    /// The term during which the node may use its shares of rate limits; `None`: none has begun.
    pub fn term(&self) -> watch::Receiver<Option<Term>> {
        self.0.term.clone()
    }

    /// Reports the progress of a job; call it at each change. The latest report is repeated when the control plane comes back.
    pub fn report_job(&self, job: &FunctionId, report: JobReport) {
        let message = self.0.shared.desired().report_job(job, report);
        self.0.shared.send(None, message);
    }

    /// Drops the report of a job that is no longer this node's.
    pub fn forget_job(&self, job: &FunctionId) {
        self.0.shared.desired().forget_job(job);
    }

    /// Has the control plane sign a certificate for an identity that this node hosts. `csr` is DER; the returned chain is DER, leaf first.
    pub async fn sign(&self, identity: &SpiffeId, csr: Vec<u8>) -> Result<Vec<CertificateDer<'static>>, SignFailure> {
        sign(self.0.channel.clone(), identity, csr, false).await
    }

    /// Says which certificates the node shows, once what is needed for its next start was kept. Only changes are sent.
    pub(crate) fn certified(&self, store: &SvidStore) {
        // Held meanwhile: nothing is written any more when another process of the node may write.
        let standing = self.0.shared.standing();
        if !standing.current {
            return;
        }
        if let Err(error) = self.0.membership.keep() {
            tracing::error!(%error, "the node's identity was not kept; it is tried again");
            return;
        }
        // The process before may have certificates of an authority that nobody must withdraw yet, and is not told to renew them.
        if !standing.alone {
            return;
        }
        let own = store.current(self.0.membership.identity());
        let overdue = store.now().map_or(0, |now| store.renew_due(now).len());
        let certified = (
            store.issuers(),
            own.map_or(0, |svid| svid.not_after().as_secs()),
            u32::try_from(overdue).unwrap_or(u32::MAX),
        );
        let message = self.0.shared.desired().certified(certified);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// Resolves when certificates may have to be renewed earlier than they say.
    pub(crate) async fn renewal_wanted(&self) {
        self.0.shared.renewals.notified().await;
    }

    /// The addresses of the mesh's machines, as the control plane said last. The receiver sees each change.
    pub fn machines(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.0.shared.machines.subscribe()
    }

    /// Changes when the control plane revokes memberships. The certificate store refuses them by then; the proxy has to end open connections with them.
    pub fn revocations(&self) -> watch::Receiver<()> {
        self.0.shared.revocations.subscribe()
    }

    /// The state of the stream. The receiver sees each change.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.clone()
    }

    /// All that is in force on this node but the settings of the mesh, and then whatever is put into force, for a process that takes over
    /// ([`Predecessor::updates`]). The receiver closes if it is not read.
    pub fn copy(&self) -> (Vec<Bytes>, mpsc::Receiver<Bytes>) {
        self.0.shared.desired().copy()
    }

    /// Whether another process of this node opens its stream. The control plane then ends this one, and it is not opened again. Until then it stays, so
    /// that there is no moment without one.
    pub fn yield_stream(&self, yielding: bool) {
        self.0.yielding.send_replace(yielding);
        self.0.shared.standing().current = !yielding;
        if !yielding {
            self.0.shared.want_renewal();
        }
    }

    /// Takes in the configuration of the process to which this one has yielded, so that a withdrawn permission ends here too. `None`: that process has
    /// ended, so nothing is permitted any more.
    pub fn follow_replacement(&self, update: Option<Bytes>) {
        // Without its task, this process has ended.
        let _ = self.0.passed_on.send(update.map_or(PassedOn::End, PassedOn::Update));
    }

    /// The questions of the control plane, for whoever asks for them first. Until then a few wait, and further ones are declined.
    pub fn questions(&self) -> Option<Questions> {
        self.0.questions.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The versions of the resources that are in force on this node.
    pub fn held(&self) -> BTreeMap<Subject, Version> {
        self.0.shared.desired().held().clone()
    }
}

/// `candidate`: by the authority that may sign soon.
pub(crate) async fn sign(
    channel: Channel,
    identity: &SpiffeId,
    csr: Vec<u8>,
    candidate: bool,
) -> Result<Vec<CertificateDer<'static>>, SignFailure> {
    let mut request = Request::new(v1::SignRequest { identity: identity.to_string(), csr: csr.into(), candidate });
    request.set_timeout(SIGN_TIMEOUT);
    let answer = IdentityClient::new(channel).sign(request).await.map_err(|status| failure(&status))?;
    Ok(answer.into_inner().chain.into_iter().map(|der| CertificateDer::from(der.to_vec())).collect())
}

fn failure(status: &tonic::Status) -> SignFailure {
    if channel::is_away(status) {
        SignFailure::Away(channel::reason(status))
    } else {
        SignFailure::Refused(status.message().to_owned())
    }
}

impl Shared {
    /// The lock is held only briefly. Nothing panics while holding it, so poisoning is ignored.
    pub(crate) fn desired(&self) -> MutexGuard<'_, Desired> {
        self.desired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing panics while holding it either.
    pub(crate) fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the addresses of the mesh's machines.
    pub(crate) fn located(&self, sent: v1::Machines) {
        self.machines.send_replace(wire::machine_addresses(&sent));
        self.desired().located(sent);
    }

    /// Takes in the revoked memberships, which `svids` is to refuse.
    pub(crate) fn revoked(&self, sent: v1::Revoked, svids: &SvidStore) {
        svids.set_revoked(wire::memberships(&sent));
        self.revocations.send_replace(());
        self.desired().revoked(sent);
    }

    pub(crate) fn want_renewal(&self) {
        self.renewals.notify_one();
    }

    /// Once the stream's task has ended, messages are dropped.
    pub(crate) fn send(&self, stream: Option<u64>, message: v1::FromNode) {
        let _ = self.outbox.send(Outgoing { stream, message });
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("held", &self.desired().held().len()).finish_non_exhaustive()
    }
}
