//! Updates that arrive at a node, and the node's answers.

use super::agent::Shared;
use super::desired::from_node;
use crate::load::{Bounds, Lease};
use crate::resource::{Content, Resource, Subject};
use crate::wire::v1;
use crate::wire::v1::from_node::Message;
use leno_config::FunctionId;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

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
    /// A removed function's callers are not permitted any more.
    Withdrawn(FunctionId),
}

#[derive(Debug)]
struct Answer {
    shared: Arc<Shared>,
    /// The stream that delivered the update. The nonce means nothing on another stream.
    stream: u64,
    nonce: u64,
    delivered: Vec<(Subject, Option<Content>)>,
    /// Removed functions whose callers are not permitted any more.
    withdrawn: Vec<FunctionId>,
    /// Begins with the resources that could not be decoded.
    rejected: BTreeMap<Subject, String>,
    /// Bounds that were delivered.
    bounds: BTreeMap<FunctionId, Vec<Bounds>>,
    /// Shares of rate limits that were delivered.
    leases: BTreeMap<FunctionId, Lease>,
    /// Told what is rejected of an update that another process of this node passes on.
    passed_on: Option<mpsc::UnboundedSender<String>>,
    given: bool,
}

impl Change {
    /// The name of the resource.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Set(resource) => resource.subject(),
            Self::Removed(subject) => subject.clone(),
            Self::Withdrawn(function) => Subject::Slice(function.clone()),
        }
    }
}

impl Update {
    pub(crate) fn new(
        shared: Arc<Shared>,
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
        let (passed_on, given) = (None, false);
        let answer = Answer { shared, stream, nonce, delivered, withdrawn, rejected, bounds, leases, passed_on, given };
        Self { changes, answer }
    }

    /// Tells `whom` what is rejected. It is dropped with the answer.
    pub(crate) fn tell(&mut self, whom: mpsc::UnboundedSender<String>) {
        self.answer.passed_on = Some(whom);
    }

    /// Acknowledges the update: all of it is in force.
    pub fn accept(self) {
        self.reject([]);
    }

    /// Acknowledges the update except for `rejected`. For these the node keeps what it had, and the control plane is told why.
    pub fn reject(mut self, rejected: impl IntoIterator<Item = (Subject, String)>) {
        self.answer.rejected.extend(rejected);
        self.answer.give();
    }

    /// Accepts the update, or rejects all of it for one reason.
    pub fn answer(self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.accept(),
            Err(reason) => {
                let subjects: Vec<_> = self.changes.iter().map(|change| (change.subject(), reason.clone())).collect();
                self.reject(subjects);
            }
        }
    }
}

impl Answer {
    fn give(&mut self) {
        self.given = true;
        let mut desired = self.shared.desired();
        let mut accepted = std::mem::take(&mut self.delivered);
        accepted.retain(|(subject, _)| !self.rejected.contains_key(subject));
        for (subject, _) in &accepted {
            if let Subject::Scale(id) = subject {
                desired.bounded(id, self.bounds.remove(id));
            }
            if let Subject::Quota(id) = subject {
                desired.leased(id, self.leases.remove(id));
            }
        }
        desired.in_force(accepted, &self.withdrawn);
        drop(desired);
        if let Some(told) = self.passed_on.take() {
            for (subject, reason) in &self.rejected {
                // Nobody listens any more if the hand-over has failed.
                let _ = told.send(format!("{subject}: {reason}"));
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
