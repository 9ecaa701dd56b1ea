//! What arrives at a node, and the node's answer.

use super::agent::Shared;
use super::desired::from_node;
use crate::resource::{Resource, Subject, Version};
use crate::wire::v1;
use crate::wire::v1::from_node::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Some changes, to be put into force together as far as possible, in this order.
#[must_use = "an update that is dropped counts as rejected"]
#[derive(Debug)]
pub struct Update {
    /// Everything that refers to something else comes after it; removals come last.
    pub changes: Vec<Change>,
    answer: Answer,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It is new, or differs from what was there.
    Set(Resource),
    /// It is gone, not subscribed to any more, or was never there.
    Removed(Subject),
}

#[derive(Debug)]
struct Answer {
    shared: Arc<Shared>,
    /// Which of the node's streams it came from; another one knows nothing of its nonce.
    stream: u64,
    nonce: u64,
    delivered: Vec<(Subject, Option<Version>)>,
    /// What could not even be read.
    rejected: BTreeMap<Subject, String>,
    given: bool,
}

impl Change {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Set(resource) => resource.subject(),
            Self::Removed(subject) => subject.clone(),
        }
    }
}

impl Update {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stream: u64,
        nonce: u64,
        changes: Vec<Change>,
        delivered: Vec<(Subject, Option<Version>)>,
        rejected: BTreeMap<Subject, String>,
    ) -> Self {
        Self { changes, answer: Answer { shared, stream, nonce, delivered, rejected, given: false } }
    }

    /// All of it is in force.
    pub fn accept(self) {
        self.reject([]);
    }

    /// All of it is in force, except for these; for them the node goes on with what it had, and the control plane is told why.
    pub fn reject(mut self, rejected: impl IntoIterator<Item = (Subject, String)>) {
        self.answer.rejected.extend(rejected);
        self.answer.give();
    }

    /// [`Update::accept`], or all of it rejected for one reason.
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
        for (subject, version) in self.delivered.drain(..) {
            if !self.rejected.contains_key(&subject) {
                desired.in_force(subject, version);
            }
        }
        drop(desired);
        let rejected = self.rejected.iter();
        let rejected =
            rejected.map(|(subject, reason)| v1::Rejection { subject: Some(subject.into()), reason: reason.clone() });
        let ack = v1::Ack { nonce: self.nonce, rejected: rejected.collect() };
        self.shared.say(Some(self.stream), from_node(Message::Ack(ack)));
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.given {
            let dropped =
                |(subject, _): &(Subject, Option<Version>)| (subject.clone(), "the node did not apply it".to_owned());
            self.rejected.extend(self.delivered.iter().map(dropped).collect::<Vec<_>>());
            self.give();
        }
    }
}
