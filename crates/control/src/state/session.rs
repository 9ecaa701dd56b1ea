//! The stream of a connected node.

use bytes::Bytes;
use leno_model::{FunctionId, PodUid};
use leno_wire::v1::to_node;
use leno_wire::{Subject, Version, v1};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Most pods in a notice that they are not in the mesh. A node has some hundred pods.
const MAX_UNENROLLED: usize = 1024;

pub(super) struct Session {
    pub number: u64,
    /// The node's subscriptions, without refused ones.
    pub explicit: BTreeSet<Subject>,
    /// All subjects that `explicit` covers, each with the number of its reasons.
    pub wanted: HashMap<Subject, u32>,
    /// The last version of each subject that was sent to the node; `None`: that it does not exist.
    pub sent: HashMap<Subject, Option<Version>>,
    /// Subjects that may differ from `sent`.
    pub pending: BTreeSet<Subject>,
    pub nonce: u64,
    pub unanswered: BTreeMap<u64, PendingDelta>,
    /// The version of the protocol on this stream.
    protocol: u32,
    /// Messages that precede the next delta.
    notices: VecDeque<to_node::Message>,
    pub wake: Arc<Notify>,
}

/// A delta that the node has not answered yet.
pub(super) struct PendingDelta {
    pub delivered: Vec<(Subject, Option<Version>)>,
    /// When it was sent, by [`super::nodes::Attention`].
    pub since: Duration,
}

impl Session {
    /// `known` are the subjects of which the node has any version.
    pub(super) fn new(
        number: u64,
        protocol: u32,
        sent: HashMap<Subject, Option<Version>>,
        known: BTreeSet<Subject>,
        wake: Arc<Notify>,
    ) -> Self {
        let (explicit, wanted, unanswered, notices) = Default::default();
        Self { number, explicit, wanted, sent, pending: known, nonce: 0, unanswered, protocol, notices, wake }
    }

    /// Whether the node's release knows of authorities.
    pub(super) fn knows_authorities(&self) -> bool {
        self.protocol >= leno_wire::AUTHORITIES
    }

    /// Whether the node's release knows of a subject.
    pub(super) fn knows(&self, subject: &Subject) -> bool {
        let since = match subject {
            Subject::Secrets(_) => leno_wire::SECRETS,
            Subject::Certificates => leno_wire::LISTENERS,
            Subject::Pod(_) | Subject::EnforcedNamespaces | Subject::ServiceEndpoint(..) | Subject::Destination(_) => {
                leno_wire::PODS
            }
            _ => 0,
        };
        self.protocol >= since
    }

    /// Queues a message that is no configuration. It replaces an unsent one of its kind. Returns
    /// whether the node's release knows the message.
    pub(super) fn notify(&mut self, message: to_node::Message) -> bool {
        let since = match message {
            to_node::Message::Machines(_) => leno_wire::MACHINES,
            to_node::Message::Revoked(_) => leno_wire::REVOKED,
            to_node::Message::Unenrolled(_) => leno_wire::PODS,
            _ => leno_wire::AUTHORITIES,
        };
        if self.protocol < since {
            return false;
        }
        self.notices.retain(|other| mem::discriminant(other) != mem::discriminant(&message));
        self.notices.push_back(message);
        self.wake.notify_one();
        true
    }

    /// Notifies the node of a pod that is not in the mesh. Unsent notices are joined.
    pub(super) fn notify_unenrolled(&mut self, pod: &PodUid) {
        let mut uids = match self.notices.iter_mut().find_map(|notice| match notice {
            to_node::Message::Unenrolled(pods) => Some(mem::take(&mut pods.uids)),
            _ => None,
        }) {
            Some(uids) if uids.len() < MAX_UNENROLLED => uids,
            _ => Vec::new(),
        };
        uids.push(pod.to_string());
        self.notify(to_node::Message::Unenrolled(v1::UnenrolledPods { uids }));
    }

    pub(super) fn next_notice(&mut self) -> Option<to_node::Message> {
        self.notices.pop_front()
    }

    /// Notifies the node of the authority that signs.
    pub(super) fn notify_issuer(&mut self, key: &[u8], spread: Duration) {
        if !key.is_empty() {
            let spread_ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX);
            let authority = v1::Authority { key: Bytes::copy_from_slice(key), spread_ms };
            self.notify(to_node::Message::Authority(authority));
        }
    }

    /// Notifies the node of the revoked memberships, if there are any.
    pub(super) fn notify_revoked(&mut self, node: &str, revoked: &v1::Revoked) {
        if !revoked.memberships.is_empty() && !self.notify(to_node::Message::Revoked(revoked.clone())) {
            tracing::warn!(
                node,
                "this node's release does not end what it has open with revoked nodes before their certificates have expired"
            );
        }
    }

    /// Records the content of a delta. Forgets a subject that neither exists nor has a
    /// subscription.
    pub(super) fn record_sent(&mut self, delivered: &[(Subject, Option<Version>)]) {
        for (subject, version) in delivered {
            if version.is_some() || self.explicit.contains(subject) {
                self.sent.insert(subject.clone(), *version);
            } else {
                self.sent.remove(subject);
            }
        }
    }

    /// When the oldest unanswered delta was sent.
    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        self.unanswered.values().map(|unanswered| unanswered.since).min()
    }

    /// Whether no change of a subject is to be sent or to be answered.
    pub(super) fn has_answered(&self, subject: &Subject) -> bool {
        let mut unanswered = self.unanswered.values().flat_map(|delta| &delta.delivered);
        !self.pending.contains(subject) && unanswered.all(|(sent, _)| sent != subject)
    }

    /// Whether this version of a subject was sent, and is not answered; `None`: its removal.
    pub(super) fn delivers(&self, subject: &Subject, version: Option<Version>) -> bool {
        let mut unanswered = self.unanswered.values().flat_map(|delta| &delta.delivered);
        unanswered.any(|(sent, as_version)| sent == subject && *as_version == version)
    }

    pub(super) fn wake(&self) {
        if !self.pending.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Whether the node has the last version of a function's configuration.
    pub(super) fn was_sent(&self, id: &FunctionId, version: Version) -> bool {
        self.sent.get(&Subject::FunctionConfig(id.clone())) == Some(&Some(version))
    }
}
