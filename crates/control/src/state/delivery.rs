//! What is sent to a node, and what it answers.

use super::{Node, State};
use bytes::Bytes;
use leno_config::FunctionId;
use leno_wire::v1::to_node;
use leno_wire::{Content, MAX_REASON, Subject, Version, messages, v1};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Payload bytes after which a delta is sent and another begun.
const DELTA_BYTES: usize = 512 << 10;
/// Deltas that a node may leave unacknowledged before it gets no more. Changes are merged meanwhile, so the node never gets a long history.
const MAX_UNANSWERED: usize = 16;
/// The same for a node that is behind: an update without an answer must not hold back the removals after it.
const MAX_UNANSWERED_BEHIND: usize = 64;

pub(super) struct Session {
    pub number: u64,
    /// Subscriptions that the node may have.
    pub explicit: BTreeSet<Subject>,
    /// All subjects that `explicit` covers, each with the number of its reasons.
    pub wanted: HashMap<Subject, u32>,
    /// What the node was last sent; `None`: that the subject does not exist.
    pub sent: HashMap<Subject, Option<Version>>,
    pub pending: BTreeSet<Subject>,
    nonce: u64,
    unanswered: BTreeMap<u64, Unanswered>,
    /// The version of the protocol that is spoken.
    protocol: u32,
    /// Sent before any delta.
    notices: VecDeque<to_node::Message>,
    pub wake: Arc<Notify>,
}

/// A delta that the node has not answered yet.
struct Unanswered {
    delivered: Vec<(Subject, Option<Version>)>,
    /// When it was sent, by [`super::behind::Attention`].
    since: Duration,
}

/// What to do for a session.
pub(crate) enum Next {
    Send(v1::ToNode),
    /// Send nothing until the session is woken.
    Wait,
    /// Another stream of the same node has replaced this one.
    Ended,
}

enum Difference {
    Same,
    Set(Content),
    Gone,
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
    pub(super) fn speaks_of_authorities(&self) -> bool {
        self.protocol >= leno_wire::AUTHORITIES
    }

    /// Says something that is no configuration. It takes the place of what was not sent yet. Returns whether the node's release knows it.
    pub(super) fn notify(&mut self, message: to_node::Message) -> bool {
        let since = match message {
            to_node::Message::Machines(_) => leno_wire::MACHINES,
            to_node::Message::Revoked(_) => leno_wire::REVOKED,
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

    /// Says who signs.
    pub(super) fn tell_issuer(&mut self, key: &[u8], spread: Duration) {
        if !key.is_empty() {
            let spread_ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX);
            let authority = v1::Authority { key: Bytes::copy_from_slice(key), spread_ms };
            self.notify(to_node::Message::Authority(authority));
        }
    }

    /// Records what a delta sends the node. A subject that neither exists nor is subscribed to is forgotten.
    fn record_sent(&mut self, delivered: &[(Subject, Option<Version>)]) {
        for (subject, version) in delivered {
            if version.is_some() || self.explicit.contains(subject) {
                self.sent.insert(subject.clone(), *version);
            } else {
                self.sent.remove(subject);
            }
        }
    }

    /// When the oldest delta was sent that the node has not answered.
    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        self.unanswered.values().map(|unanswered| unanswered.since).min()
    }

    pub(super) fn wake(&self) {
        if !self.pending.is_empty() {
            self.wake.notify_one();
        }
    }
}

/// Whether a node may subscribe to the subject. Everything else follows from what it hosts.
fn may_subscribe(subject: &Subject, node: &Node) -> bool {
    match subject {
        Subject::Mesh | Subject::Bundle | Subject::Hosted => true,
        Subject::Routes => node.admission.gateway,
        Subject::Scale(_)
        | Subject::Quota(_)
        | Subject::Module(_)
        | Subject::Slice(_)
        | Subject::Route(_)
        | Subject::Endpoints(_) => false,
    }
}

impl State {
    /// Changes a node's subscriptions. Those that it may not have are refused; the others count.
    pub(crate) fn subscribe(&mut self, name: &str, number: u64, add: Vec<Subject>, remove: &[Subject]) {
        if self.session(name, number).is_none() {
            return;
        }
        let Some(node) = self.nodes.get_mut(name) else { return };
        let (own, foreign): (Vec<_>, Vec<_>) = add.into_iter().partition(|subject| may_subscribe(subject, node));
        foreign.iter().for_each(|subject| node.refuse(name, subject));
        let Some(session) = &mut node.session else { return };
        for subject in remove {
            session.explicit.remove(subject);
            if session.sent.get(subject) == Some(&None) {
                session.sent.remove(subject);
            }
        }
        session.pending.extend(own.iter().cloned());
        session.explicit.extend(own);
        self.refresh(name);
    }

    /// Ends the session of a node, if it has one. It costs what the node wants, not what there is.
    pub(super) fn end_session(&mut self, name: &str) {
        let Some(session) = self.nodes.get_mut(name).and_then(|node| node.session.take()) else { return };
        for subject in session.wanted.keys() {
            self.index.lose_interest(subject, name);
        }
        session.wake.notify_one();
    }

    /// Marks changed subjects in the sessions that want them.
    pub(super) fn announce(&mut self, changed: &BTreeSet<Subject>) {
        for subject in changed {
            for name in self.index.interested(subject) {
                let Some(session) = self.nodes.get_mut(name).and_then(|node| node.session.as_mut()) else { continue };
                session.pending.insert(subject.clone());
                session.wake();
            }
        }
    }

    /// Marks the endpoints of functions in every session that wants them.
    pub(super) fn endpoints_changed<'a>(&mut self, functions: impl IntoIterator<Item = &'a FunctionId>) {
        self.announce(&functions.into_iter().cloned().map(Subject::Endpoints).collect());
    }

    /// Recomputes what a session's subscriptions cover, and marks the differences. It costs what the node hosts and routes to.
    pub(super) fn refresh(&mut self, name: &str) {
        let Some((name, node)) = self.nodes.get_key_value(name) else { return };
        let (name, Some(session)) = (name.clone(), &node.session) else { return };
        let mut explicit = session.explicit.clone();
        explicit.retain(|subject| may_subscribe(subject, node));
        let mut wanted: HashMap<Subject, u32> = explicit.iter().map(|subject| (subject.clone(), 1)).collect();
        let routes = explicit.contains(&Subject::Routes);
        let exposed = self.index.exposed().filter(|id| routes && !node.hosted.contains(*id));
        for id in node.hosted.iter().chain(exposed) {
            for subject in self.brought_to(&name, node.hosted.contains(id), id, &explicit) {
                *wanted.entry(subject).or_default() += 1;
            }
        }
        let gone: Vec<_> = session.wanted.keys().filter(|subject| !wanted.contains_key(*subject)).cloned().collect();
        let new: Vec<_> = wanted.keys().filter(|subject| !session.wanted.contains_key(*subject)).cloned().collect();
        self.index.set_gateway(&name, routes);
        gone.iter().for_each(|subject| self.index.lose_interest(subject, &name));
        new.iter().for_each(|subject| self.index.gain_interest(subject, &name));
        let Some(session) = self.nodes.get_mut(&name).and_then(|node| node.session.as_mut()) else { return };
        session.pending.extend(gone.into_iter().chain(new));
        (session.explicit, session.wanted) = (explicit, wanted);
        session.wake();
    }

    /// Changes what nodes want by what a function brought them before and brings them now.
    pub(super) fn rewant(&mut self, before: BTreeMap<Arc<str>, Vec<Subject>>, after: BTreeMap<Arc<str>, Vec<Subject>>) {
        let changes = after.into_iter().map(|(name, subjects)| (name, subjects, true));
        let changes = changes.chain(before.into_iter().map(|(name, subjects)| (name, subjects, false)));
        for (name, subjects, more) in changes {
            let Some(session) = self.nodes.get_mut(&name).and_then(|node| node.session.as_mut()) else { continue };
            for subject in subjects {
                let reasons = session.wanted.entry(subject.clone()).or_default();
                *reasons = if more { *reasons + 1 } else { reasons.saturating_sub(1) };
                match (*reasons, more) {
                    (0, _) => {
                        session.wanted.remove(&subject);
                        self.index.lose_interest(&subject, &name);
                        session.pending.insert(subject);
                    }
                    (1, true) => {
                        self.index.gain_interest(&subject, &name);
                        session.pending.insert(subject);
                    }
                    _ => {}
                }
            }
            session.wake();
        }
    }

    /// Whether a node is connected and has answered all that there is for it. What was sent on an earlier stream is never answered, and does not count.
    pub(crate) fn is_up_to_date(&self, name: &str) -> bool {
        let session = self.nodes.get(name).and_then(|node| node.session.as_ref());
        session.is_some_and(|session| session.pending.is_empty() && session.unanswered.is_empty())
    }

    /// Takes in a node's answer to a delta.
    pub(crate) fn acknowledge(&mut self, name: &str, number: u64, nonce: u64, rejected: Vec<(Subject, String)>) {
        let Some(session) = self.session(name, number) else { return };
        let Some(Unanswered { delivered, .. }) = session.unanswered.remove(&nonce) else { return };
        session.wake.notify_one();
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.counters.acks += 1;
        node.withdrawn.retain(|_, said| *said != Some(nonce));
        let mut reasons: BTreeMap<_, _> = rejected.into_iter().collect();
        let (mut answered, mut gone) = (Vec::new(), Vec::new());
        let (mut leases, mut leases_gone) = (Vec::new(), Vec::new());
        for (subject, version) in delivered {
            if let (Subject::Scale(id) | Subject::Slice(id), Some(_)) = (&subject, version) {
                answered.push((matches!(subject, Subject::Scale(_)), id.clone(), !reasons.contains_key(&subject)));
            }
            match (&subject, version) {
                (Subject::Quota(id), Some(_)) => leases.push((id.clone(), !reasons.contains_key(&subject))),
                (Subject::Quota(id), None) => leases_gone.push(id.clone()),
                _ => (),
            }
            match (version, reasons.remove(&subject)) {
                (Some(version), Some(mut reason)) => {
                    reason.truncate(reason.floor_char_boundary(MAX_REASON));
                    node.counters.rejections += 1;
                    tracing::warn!(node = name, %subject, %version, reason, "a node rejected configuration");
                    node.rejected.insert(subject, (version, reason));
                }
                (Some(version), None) => {
                    node.rejected.remove(&subject);
                    node.in_force.insert(subject, version);
                }
                (None, _) => {
                    if let Subject::Scale(id) = &subject {
                        gone.push(id.clone());
                    }
                    node.rejected.remove(&subject);
                    node.in_force.remove(&subject);
                }
            }
        }
        for id in gone {
            self.bounds_gone(&id, name);
        }
        for id in leases_gone {
            self.lease_gone(&id, name);
        }
        for (id, accepted) in leases {
            self.lease_answered(&id, name, (number, nonce), accepted);
        }
        let mut concerned = BTreeSet::new();
        for (of_bounds, id, accepted) in answered {
            if of_bounds {
                self.bounds_answered(&id, name, (number, nonce), accepted);
                concerned.insert(id);
            } else if accepted && self.slice_in_force(&id, name) {
                concerned.insert(id);
            }
        }
        // A new home answers for the bounds and the slice of a function at once.
        for id in concerned {
            self.rebalance(&id);
            self.leave_idle_nodes(&id);
        }
    }

    /// The next delta for a session, limited in size. Removals are sent only after all other changes.
    pub(crate) fn next_delta(&mut self, name: &str, number: u64) -> Next {
        let Some(session) = self.session(name, number) else { return Next::Ended };
        if let Some(notice) = session.notices.pop_front() {
            return Next::Send(v1::ToNode { message: Some(notice) });
        }
        let unanswered = session.unanswered.len();
        let behind = self.nodes.get(name).is_some_and(|node| node.behind);
        if unanswered >= if behind { MAX_UNANSWERED_BEHIND } else { MAX_UNANSWERED } {
            return Next::Wait;
        }
        let Some(session) = self.session(name, number) else { return Next::Ended };
        let mut pending = mem::take(&mut session.pending);
        let (mut resources, mut removed, mut delivered, mut size) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while size < DELTA_BYTES
            && let Some(subject) = pending.pop_first()
        {
            match self.difference(name, &subject) {
                Difference::Same => (),
                Difference::Set(content) => {
                    size += content.payload.len();
                    resources.push(messages::resource(&subject, &content));
                    delivered.push((subject, Some(content.version)));
                }
                Difference::Gone => removed.push(subject),
            }
        }
        if !pending.is_empty() {
            pending.extend(removed.drain(..));
        }
        delivered.extend(removed.iter().map(|subject| (subject.clone(), None)));
        let Some((name, _)) = self.nodes.get_key_value(name) else { return Next::Ended };
        let name = name.clone();
        let since = self.attention.now;
        let mut withdrawn: BTreeSet<FunctionId> = BTreeSet::new();
        for subject in &removed {
            if let Subject::Slice(id) = subject
                && self.is_withdrawn(&name, id)
            {
                withdrawn.insert(id.clone());
            }
        }
        let Some(node) = self.nodes.get_mut(&name) else { return Next::Ended };
        let Some(session) = &mut node.session else { return Next::Ended };
        session.pending.extend(pending);
        let unsaid = node.withdrawn.iter_mut().filter(|(_, said)| said.is_none());
        withdrawn.extend(unsaid.map(|(id, said)| {
            *said = Some(session.nonce + 1);
            id.clone()
        }));
        if delivered.is_empty() && withdrawn.is_empty() {
            return Next::Wait;
        }
        session.record_sent(&delivered);
        session.nonce += 1;
        let delivery = (number, session.nonce);
        for (subject, version) in &delivered {
            match (subject, version) {
                (Subject::Scale(id), Some(_)) => {
                    self.scaled.entry(id.clone()).and_modify(|scaled| scaled.grants.sent(&name, delivery));
                }
                (Subject::Quota(id), Some(_)) => {
                    self.leased.entry(id.clone()).and_modify(|leases| leases.sent(&name, delivery));
                }
                _ => (),
            }
        }
        session.unanswered.insert(session.nonce, Unanswered { delivered, since });
        let removed: Vec<_> = removed.iter().map(v1::Subject::from).collect();
        node.counters.resources += resources.len() as u64;
        node.counters.removals += removed.len() as u64;
        let withdrawn = withdrawn.iter().map(ToString::to_string).collect();
        let delta = v1::Delta { nonce: session.nonce, resources, removed, withdrawn };
        let message = v1::ToNode { message: Some(v1::to_node::Message::Delta(delta)) };
        node.counters.messages += 1;
        node.counters.bytes += message.encoded_len() as u64;
        Next::Send(message)
    }

    fn difference(&self, name: &str, subject: &Subject) -> Difference {
        let Some(session) = self.nodes.get(name).and_then(|node| node.session.as_ref()) else {
            return Difference::Same;
        };
        let content = if session.wanted.contains_key(subject) { self.content(name, subject) } else { None };
        match (content, session.sent.get(subject)) {
            (Some(content), Some(Some(sent))) if content.version == *sent => Difference::Same,
            // The node that asks may know better than this control plane where the function is.
            (Some(_), Some(Some(_))) if self.awaits_hosts(name, subject) => Difference::Same,
            (Some(content), _) => Difference::Set(content),
            (None, Some(Some(_))) => Difference::Gone,
            (None, None) if session.explicit.contains(subject) => Difference::Gone,
            (None, _) => Difference::Same,
        }
    }

    /// Whether these are the endpoints of a function of whose nodes some have not come back yet, or all. The others would have to take their requests,
    /// and where there is none yet, the requests would fail.
    fn awaits_hosts(&self, name: &str, subject: &Subject) -> bool {
        let Subject::Endpoints(function) = subject else { return false };
        let is_awaited = |host: &Arc<str>| self.awaited.contains(host);
        let is_replaced = || self.abandoned.contains(function) && !self.scheduler.nodes_of(function).is_empty();
        self.awaiting && self.index.hosting(function).any(is_awaited)
            || (self.awaiting || is_replaced()) && self.endpoints(name, function).is_empty()
    }

    fn content(&self, name: &str, subject: &Subject) -> Option<Content> {
        match subject {
            Subject::Hosted => Content::new(&self.nodes.get(name)?.admission.placement).ok(),
            Subject::Endpoints(function) if self.compiled.functions.contains_key(function) => {
                Content::new(&self.endpoints(name, function)).ok()
            }
            Subject::Endpoints(_) => None,
            Subject::Scale(function) => Content::new(&self.scaled.get(function)?.grants.of(name)?).ok(),
            Subject::Quota(function) => Content::new(&self.leased.get(function)?.of(name)?).ok(),
            subject => self.compiled.contents.get(subject).cloned(),
        }
    }
}
