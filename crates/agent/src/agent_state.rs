//! State that the agent, its updates and its stream share.

use crate::node_state::NodeState;
use leno_identity::SvidStore;
use leno_model::PodUid;
use leno_wire::{messages, pod_fault, v1};
use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};
use tonic::transport::Channel;

/// Stored pods that are not in the mesh. A pod is asked for soon after it was scheduled.
const MAX_UNENROLLED: usize = 1024;

/// State of one node's connection to the control plane.
pub(crate) struct AgentState {
    state: Mutex<NodeState>,
    outbox: mpsc::UnboundedSender<Outgoing>,
    channel: Mutex<Channel>,
    /// Notified when the node must renew certificates early.
    pub renewals: Notify,
    role: Mutex<Role>,
    /// The addresses of the mesh's machines.
    pub machines: watch::Sender<Vec<IpAddr>>,
    /// Changes when the control plane revokes memberships.
    pub revocations: watch::Sender<()>,
    /// The last pods of the node that are not in the mesh, oldest first.
    pub unenrolled: watch::Sender<VecDeque<PodUid>>,
}

/// The role of this process during a hot restart of its node.
#[derive(Clone, Copy)]
pub(crate) struct Role {
    /// This process owns the stream, and writes the files for the next start.
    pub current: bool,
    /// The parent process has ended, or there was none.
    pub alone: bool,
}

/// A message for the control plane, or only for the stream with the number `stream`.
pub(crate) struct Outgoing {
    pub stream: Option<u64>,
    pub message: v1::FromNode,
}

impl AgentState {
    pub(crate) fn new(outbox: mpsc::UnboundedSender<Outgoing>, role: Role, channel: Channel) -> Self {
        let (state, renewals, machines, revocations, unenrolled) = Default::default();
        let (channel, role) = (Mutex::new(channel), Mutex::new(role));
        Self { state, outbox, channel, renewals, role, machines, revocations, unenrolled }
    }

    /// The lock is held only briefly. Nothing panics while holding it, so poisoning is ignored.
    pub(crate) fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing panics while holding it either.
    pub(crate) fn role(&self) -> MutexGuard<'_, Role> {
        self.role.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections to the control plane.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses other connections from now on.
    pub(crate) fn set_channel(&self, channel: Channel) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    /// Stores the addresses of the mesh's machines.
    pub(crate) fn located(&self, sent: v1::Machines) {
        self.machines.send_replace(messages::machine_addresses(&sent));
        self.state().located(sent);
    }

    /// Stores the revoked memberships and has `svids` refuse them.
    pub(crate) fn revoked(&self, sent: v1::Revoked, svids: &SvidStore) {
        svids.set_revoked(messages::memberships(&sent));
        self.revocations.send_replace(());
        self.state().revoked(sent);
    }

    /// Stores pods that are not in the mesh.
    pub(crate) fn unenrolled(&self, sent: v1::UnenrolledPods) {
        self.unenrolled.send_modify(|pods| {
            pods.extend(pod_fault::unenrolled_pods(sent));
            let surplus = pods.len().saturating_sub(MAX_UNENROLLED);
            pods.drain(..surplus);
        });
    }

    /// Wakes the renewal of certificates.
    pub(crate) fn want_renewal(&self) {
        self.renewals.notify_one();
    }

    /// Queues a message. Once the stream's task has ended, messages are dropped.
    pub(crate) fn send(&self, stream: Option<u64>, message: v1::FromNode) {
        let _ = self.outbox.send(Outgoing { stream, message });
    }
}

impl fmt::Debug for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentState").field("held", &self.state().held().len()).finish_non_exhaustive()
    }
}
