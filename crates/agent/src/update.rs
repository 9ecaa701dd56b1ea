//! Updates from the control plane, and the node's answers.

use crate::agent_state::AgentState;
use crate::node_state::from_node;
use leno_model::FunctionId;
use leno_wire::v1::from_node::Message;
use leno_wire::{Bounds, Content, Lease, Resource, Subject, v1};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Number of the stream for updates from the parent process. The control plane gets no answer to
/// them.
pub(crate) const PARENT_STREAM: u64 = 0;

/// Changes to put into force together, as far as possible, in this order.
#[must_use = "an update that is dropped counts as rejected"]
#[derive(Debug)]
pub struct Update {
    /// Each resource comes after those that it refers to. Removals come last.
    pub changes: Vec<Change>,
    answer: Answer,
}

/// A change of one resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The resource is new, or differs from the previous version.
    Set(Resource),
    /// The resource was removed, is no longer subscribed to, or never existed.
    Removed(Subject),
    /// The callers of a removed function lose their permission.
    Withdrawn(FunctionId),
}

#[derive(Debug)]
struct Answer {
    shared: Arc<AgentState>,
    /// The stream that delivered the update. The nonce means nothing on another stream.
    stream: u64,
    nonce: u64,
    delivered: Vec<(Subject, Option<Content>)>,
    /// Removed functions whose callers lose their permission.
    withdrawn: Vec<FunctionId>,
    /// Begins with the resources that could not be decoded.
    rejected: BTreeMap<Subject, String>,
    /// Bounds in the update.
    bounds: BTreeMap<FunctionId, Vec<Bounds>>,
    /// Shares of rate limits in the update.
    leases: BTreeMap<FunctionId, Lease>,
    /// Receives the rejections of an update from another process of this node.
    reports: Option<mpsc::UnboundedSender<String>>,
    given: bool,
}

impl Change {
    /// The name of the resource.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Set(resource) => resource.subject(),
            Self::Removed(subject) => subject.clone(),
            Self::Withdrawn(function) => Subject::FunctionConfig(function.clone()),
        }
    }
}

impl Update {
    pub(crate) fn new(
        shared: Arc<AgentState>,
        stream: u64,
        nonce: u64,
        changes: Vec<Change>,
        delivered: Vec<(Subject, Option<Content>)>,
        rejected: BTreeMap<Subject, String>,
    ) -> Self {
        let bounds = changes.iter().filter_map(|change| match change {
            Change::Set(Resource::Scale(id, bounds)) => Some((id.clone(), bounds.clone())),
            _ => None,
        });
        let bounds = bounds.collect();
        let leases = changes.iter().filter_map(|change| match change {
            Change::Set(Resource::Quota(id, lease)) => Some((id.clone(), lease.clone())),
            _ => None,
        });
        let leases = leases.collect();
        let withdrawn = changes.iter().filter_map(|change| match change {
            Change::Withdrawn(id) => Some(id.clone()),
            _ => None,
        });
        let withdrawn = withdrawn.collect();
        let (reports, given) = (None, false);
        let answer = Answer { shared, stream, nonce, delivered, withdrawn, rejected, bounds, leases, reports, given };
        Self { changes, answer }
    }

    /// Sends rejections to `reports`, which is dropped with the answer, and not to the control
    /// plane.
    pub(crate) fn report_to(&mut self, reports: mpsc::UnboundedSender<String>) {
        self.answer.reports = Some(reports);
    }

    /// Acknowledges the update: all of it is in force.
    pub fn accept(self) {
        self.reject([]);
    }

    /// Acknowledges the update except for `rejected`, each with a reason. For these the node keeps
    /// its last version.
    pub fn reject(mut self, rejected: impl IntoIterator<Item = (Subject, String)>) {
        self.answer.rejected.extend(rejected);
        self.answer.give();
    }

    /// Rejects all of the update for one reason.
    pub fn reject_all(self, reason: &str) {
        let subjects: Vec<_> = self.changes.iter().map(|change| (change.subject(), reason.to_owned())).collect();
        self.reject(subjects);
    }
}

impl Answer {
    fn give(&mut self) {
        self.given = true;
        let mut state = self.shared.state();
        let mut accepted = std::mem::take(&mut self.delivered);
        accepted.retain(|(subject, _)| !self.rejected.contains_key(subject));
        for (subject, _) in &accepted {
            if let Subject::Scale(id) = subject {
                state.bounded(id, self.bounds.remove(id));
            }
            if let Subject::Quota(id) = subject {
                state.leased(id, self.leases.remove(id));
            }
        }
        state.in_force(accepted, &self.withdrawn);
        drop(state);
        if let Some(reports) = self.reports.take() {
            for (subject, reason) in &self.rejected {
                // Without a receiver, the hot restart has failed.
                let _ = reports.send(format!("{subject}: {reason}"));
            }
            return;
        }
        let rejected = self.rejected.iter();
        let rejected =
            rejected.map(|(subject, reason)| v1::Rejection { subject: Some(subject.into()), reason: reason.clone() });
        let ack = v1::Ack { nonce: self.nonce, rejected: rejected.collect() };
        self.shared.send(Some(self.stream), from_node(Message::Ack(ack)));
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.given {
            let dropped =
                |(subject, _): &(Subject, Option<Content>)| (subject.clone(), "the node did not apply it".to_owned());
            self.rejected.extend(self.delivered.iter().map(dropped).collect::<Vec<_>>());
            self.give();
        }
    }
}
