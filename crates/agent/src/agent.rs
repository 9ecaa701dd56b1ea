//! The node's handle of its stream to the control plane.

use crate::agent_state::{AgentState, Role};
use crate::channel;
use crate::draining::ChildUpdate;
use crate::node_state::from_node;
use crate::platform_join::PlatformJoin;
use crate::questions::Questions;
use crate::signing::{SignFailure, sign};
use crate::stream::{self, Connection, ParentProcess, Term};
use crate::update::Update;
use backon::ExponentialBuilder;
use bytes::Bytes;
use leno_identity::{CertificateDer, Membership, SpiffeId, SvidStore, TlsError};
use leno_model::{FunctionId, PodUid};
use leno_wire::v1::from_node::Message;
use leno_wire::{
    Instance, JobReport, LimitDemand, ListenerFault, Load, NodeCertificates, NodeOffer, RevisionCounts, Subject,
    Version, messages,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

/// Maximum number of updates that wait for the node to apply them. The control plane merges further
/// changes.
const QUEUE: usize = 4;
/// Maximum number of questions that wait for the node to answer them. The agent declines further
/// ones.
const QUESTIONS: usize = 16;

/// How to reach and join the control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port` of the control planes' gRPC listeners. They are tried in turn.
    pub control: Vec<String>,
    /// The node's identity.
    pub membership: Membership,
    /// This node's inbound listener, where other nodes reach its functions. The node's certificate
    /// must confirm its address. `None`: other nodes get no endpoints of this node.
    pub inbound: Option<SocketAddr>,
    /// Pauses between attempts to reach the control plane. The number of attempts is not limited.
    pub backoff: ExponentialBuilder,
    /// How the node joins again when the control plane does not know it any more; `None`: not at all.
    pub rejoin: Option<PlatformJoin>,
    /// The oldest version of the protocol that the node can use. Under an older control plane, the node
    /// stays as it is.
    pub oldest: u32,
}

/// Reports the node's state to the control plane, and subscribes to resources. Clones share one
/// stream, which ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Handle>);

/// Updates from the control plane, in the order in which they must be applied.
pub type Updates = mpsc::Receiver<Update>;

#[derive(Debug)]
struct Handle {
    shared: Arc<AgentState>,
    membership: Membership,
    connection: watch::Receiver<Connection>,
    term: watch::Receiver<Option<Term>>,
    /// `None`: a caller has taken them.
    questions: Mutex<Option<Questions>>,
    /// Dropping this ends the stream.
    _alive: mpsc::Sender<()>,
    yielding: watch::Sender<bool>,
    passed_on: mpsc::UnboundedSender<ChildUpdate>,
}

/// Opens a stream to the control plane and keeps it open, on the current tokio runtime. The stream
/// has no subscriptions yet.
pub fn join(options: Options) -> Result<(Agent, Updates), TlsError> {
    join_after(options, None)
}

/// The same for the child of a hot restart: until the parent hands over, the updates come from it.
/// Then the agent opens the stream.
pub fn join_after(options: Options, parent: Option<ParentProcess>) -> Result<(Agent, Updates), TlsError> {
    let Options { control, membership, inbound, backoff, rejoin, oldest } = options;
    let channel = channel::of_member(&control, &membership)?;
    let (outbox, outgoing) = mpsc::unbounded_channel();
    let role = Role { current: parent.is_none(), alone: parent.is_none() };
    let shared = Arc::new(AgentState::new(outbox, role, channel));
    shared.state().set_oldest(oldest);
    let (updates, queue) = mpsc::channel(QUEUE);
    let (state, connection) = watch::channel(Connection::Away { attempts: 0, reason: None });
    let (renewed, term) = watch::channel(None);
    let (alive, ended) = mpsc::channel(1);
    let (yielding, yields) = watch::channel(false);
    let (asked, questions) = mpsc::channel(QUESTIONS);
    let (passed_on, from_child) = mpsc::unbounded_channel();
    let session = stream::Session {
        shared: shared.clone(),
        membership: membership.clone(),
        control,
        rejoin,
        inbound,
        backoff,
        outgoing,
        updates,
        asked,
        state,
        term: renewed,
        ended,
        parent,
        yielding: yields,
        passed_on: from_child,
        early: VecDeque::new(),
    };
    tokio::spawn(session.run());
    let questions = Mutex::new(Some(questions));
    let handle = Handle { shared, membership, connection, term, questions, _alive: alive, yielding, passed_on };
    Ok((Agent(Arc::new(handle)), queue))
}

impl Agent {
    /// Subscribes to `subjects`. [`Subject::Hosted`] covers the configuration of the functions that
    /// this node hosts and the endpoints of their callees. [`Subject::Routes`] covers the
    /// configuration and endpoints of the functions that the gateway exposes.
    pub fn subscribe(&self, subjects: impl IntoIterator<Item = Subject>) {
        let subjects: Vec<_> = subjects.into_iter().collect();
        let message = self.0.shared.state().subscribe(&subjects, &[]);
        self.0.shared.send(None, message);
    }

    /// Ends subscriptions. An update removes each subject that no other subscription covers.
    pub fn unsubscribe(&self, subjects: impl IntoIterator<Item = Subject>) {
        let subjects: Vec<_> = subjects.into_iter().collect();
        let message = self.0.shared.state().subscribe(&[], &subjects);
        self.0.shared.send(None, message);
    }

    /// Reports all instances of `function` on this node. The agent sends only changes, and repeats
    /// the latest report on a new stream.
    pub fn report(&self, function: &FunctionId, instances: Vec<Instance>) {
        let message = self.0.shared.state().report(function, instances);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// Reports the request counts of a function's revisions on this node, cumulative since the node
    /// began to route requests to them. The first report must precede the first request. While the
    /// control plane is away, the agent drops reports, because the next counts include these.
    pub fn report_request_counts(&self, function: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        if *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.send(None, from_node(Message::Traffic(messages::traffic(function, counts))));
        }
    }

    /// Reports the node's capacity for instances and the images in its cache. Without this report,
    /// the scheduler places nothing here. The agent sends only changes.
    pub fn offer(&self, offer: NodeOffer) {
        let message = self.0.shared.state().offer(offer);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// Reports the load of functions for which anything has changed. While the control plane is
    /// away, the agent drops reports, because totals only grow.
    pub fn report_loads(&self, loads: &[Load]) {
        if !loads.is_empty() && *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.send(None, from_node(Message::Loads(messages::loads(loads))));
        }
    }

    /// Reports the demand for rate limits for which anything has changed. While the control plane
    /// is away, the agent drops reports, because totals only grow.
    pub fn report_demands(&self, demands: &[LimitDemand]) {
        if !demands.is_empty() && *self.0.connection.borrow() == Connection::Connected {
            self.0.shared.send(None, from_node(Message::Demands(messages::demands(demands))));
        }
    }

    /// Reports the listeners of Gateway documents that the node cannot serve. The agent sends only
    /// changes, and repeats the latest report on a new stream. Returns whether it is a change.
    pub fn report_listeners(&self, faults: &[ListenerFault]) -> bool {
        let (is_new, message) = self.0.shared.state().report_listeners(faults);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
        is_new
    }

    /// Reports why the node does not capture a pod; `None`: it does, or has no such pod any more. The
    /// agent sends only changes, and repeats the latest reports on a new stream.
    pub fn report_pod(&self, uid: &PodUid, fault: Option<String>) {
        let message = self.0.shared.state().report_pod(uid, fault);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// The term during which the node may use its shares of rate limits; `None`: none has begun.
    pub fn term(&self) -> watch::Receiver<Option<Term>> {
        self.0.term.clone()
    }

    /// Reports the progress of a job; call it at each change. The agent repeats the latest report
    /// on a new stream.
    pub fn report_job(&self, job: &FunctionId, report: JobReport) {
        let message = self.0.shared.state().report_job(job, report);
        self.0.shared.send(None, message);
    }

    /// Drops the report of a job that is no longer this node's.
    pub fn forget_job(&self, job: &FunctionId) {
        self.0.shared.state().forget_job(job);
    }

    /// Has the control plane sign a certificate for an identity that this node hosts. `csr` is DER;
    /// the returned chain is DER, leaf first.
    pub async fn sign(&self, identity: &SpiffeId, csr: Vec<u8>) -> Result<Vec<CertificateDer<'static>>, SignFailure> {
        sign(self.0.shared.channel(), identity, csr, false).await
    }

    /// Reports the certificates that the node presents, after saving the one for its next start.
    /// The agent sends only changes.
    pub(crate) fn certified(&self, store: &SvidStore) {
        // The lock is held until the end, so that this process does not write once another one may.
        let role = self.0.shared.role();
        if !role.current {
            return;
        }
        if let Err(error) = self.0.membership.save_renewed() {
            tracing::error!(%error, "the node's identity was not saved; it is tried again");
            return;
        }
        // The parent process may still use certificates of an authority that must not be withdrawn
        // yet, and does not renew them.
        if !role.alone {
            return;
        }
        let own = store.current(self.0.membership.identity());
        let overdue = store.now().map_or(0, |now| store.renew_due(now).len());
        let certified = NodeCertificates {
            issuers: store.issuers(),
            not_after: own.map_or(0, |svid| svid.not_after().as_secs()),
            overdue: u32::try_from(overdue).unwrap_or(u32::MAX),
        };
        let message = self.0.shared.state().certified(certified);
        if let Some(message) = message {
            self.0.shared.send(None, message);
        }
    }

    /// Resolves when the node may have to renew certificates early.
    pub(crate) async fn renewal_wanted(&self) {
        self.0.shared.renewals.notified().await;
    }

    /// The addresses of the mesh's machines, from the control plane's last message. The receiver
    /// sees each change.
    pub fn machines(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.0.shared.machines.subscribe()
    }

    /// The last pods of the node that the control plane does not have in the mesh. The receiver sees
    /// each change.
    pub fn unenrolled(&self) -> watch::Receiver<VecDeque<PodUid>> {
        self.0.shared.unenrolled.subscribe()
    }

    /// Changes when the control plane revokes memberships. By then the certificate store refuses
    /// them; the proxy has to close open connections with them.
    pub fn revocations(&self) -> watch::Receiver<()> {
        self.0.shared.revocations.subscribe()
    }

    /// The state of the stream. The receiver sees each change.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.clone()
    }

    /// All resources in force on this node except the settings of the mesh, and then each change,
    /// for the child of a hot restart ([`ParentProcess::updates`]). The receiver closes if the
    /// child does not read.
    pub fn copy(&self) -> (Vec<Bytes>, mpsc::Receiver<Bytes>) {
        self.0.shared.state().copy()
    }

    /// Sets whether the child process opens the node's stream. The control plane then ends this
    /// one, and the agent does not reopen it. Until then it stays open, so that the node always has
    /// one.
    pub fn yield_stream(&self, yielding: bool) {
        self.0.yielding.send_replace(yielding);
        self.0.shared.role().current = !yielding;
        if !yielding {
            self.0.shared.want_renewal();
        }
    }

    /// Applies an update of the child process, so that a withdrawn permission ends here too.
    /// `None`: the child has ended, so nothing is permitted any more.
    pub fn follow_child(&self, update: Option<Bytes>) {
        // Without its task, this process has ended.
        let _ = self.0.passed_on.send(update.map_or(ChildUpdate::End, ChildUpdate::Update));
    }

    /// The questions of the control plane; only the first call gets them. Until then a few wait,
    /// and the agent declines further ones.
    pub fn questions(&self) -> Option<Questions> {
        self.0.questions.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The versions of the resources that are in force on this node.
    pub fn held(&self) -> BTreeMap<Subject, Version> {
        self.0.shared.state().held().clone()
    }
}
