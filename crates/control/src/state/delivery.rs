//! Deltas for a node, and its acknowledgements.

use super::State;
use super::effect::Effect;
use super::node::{Node, ready};
use super::nodes::is_of_services;
use super::session::PendingDelta;
use crate::definitions::EgressPolicy;
use crate::status::DeliveryState;
use leno_model::FunctionId;
use leno_wire::{Content, Endpoint, MAX_REASON, Subject, Version, messages, v1};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

/// Payload bytes after which a delta ends and another one begins.
const DELTA_BYTES: usize = 512 << 10;
/// Maximum number of unacknowledged deltas of a node. Changes are merged meanwhile, so the node
/// never gets a long history.
const MAX_UNANSWERED: usize = 16;
/// The same for a node that is behind: an update without an answer must not hold back the removals
/// after it.
const MAX_UNANSWERED_BEHIND: usize = 64;

/// The next step of a session.
pub(crate) enum Next {
    Send(v1::ToNode),
    /// Send nothing until the session is woken.
    Wait,
    /// Another stream of the same node has replaced this one.
    Ended,
}

/// Calls of [`State::note_certificates`] after which a node counts as having a certificate for which
/// it has not asked: about five seconds.
const LONGEST_SIGNING: u8 = 10;

/// Maximum number of addresses to which a node may subscribe.
const MAX_DESTINATIONS: usize = 8192;

enum Difference {
    Same,
    Set(Content),
    Gone,
}

/// Resources that a delta sets and removes.
#[derive(Default)]
struct Changes {
    resources: Vec<v1::Resource>,
    removed: Vec<Subject>,
    delivered: Vec<(Subject, Option<Version>)>,
}

impl State {
    /// Changes a node's subscriptions. Refuses those that it may not have; the others count.
    pub(crate) fn subscribe(&mut self, name: &str, number: u64, add: Vec<Subject>, remove: &[Subject]) {
        if self.nodes.session(name, number).is_none() {
            return;
        }
        let Some(node) = self.nodes.all.get_mut(name) else { return };
        let has_many = |node: &Node| {
            let explicit = node.session.iter().flat_map(|session| &session.explicit);
            explicit.filter(|subject| matches!(subject, Subject::Destination(_))).count()
        };
        let is_destination = |subject: &Subject| matches!(subject, Subject::Destination(_));
        let mut free = MAX_DESTINATIONS.saturating_sub(has_many(node));
        let (own, foreign): (Vec<_>, Vec<_>) = add.into_iter().partition(|subject| {
            let fits = !is_destination(subject) || free.checked_sub(1).map(|less| free = less).is_some();
            fits && node.may_subscribe(subject)
        });
        foreign.iter().for_each(|subject| node.refuse(name, subject));
        let Some(session) = &mut node.session else { return };
        let are_destinations = own.iter().chain(remove).all(is_destination);
        let removed: Vec<_> = remove.iter().filter(|subject| session.explicit.contains(subject)).cloned().collect();
        for subject in remove {
            session.explicit.remove(subject);
            if session.sent.get(subject) == Some(&None) {
                session.sent.remove(subject);
            }
        }
        session.pending.extend(own.iter().cloned());
        let mut added = own;
        added.retain(|subject| session.explicit.insert(subject.clone()));
        if are_destinations {
            self.want_destinations(name, &added, &removed);
        } else {
            self.refresh(name);
        }
    }

    /// Whether a node is connected and has answered every change. Deltas of an earlier stream never
    /// get an answer, and do not count.
    pub(crate) fn is_up_to_date(&self, name: &str) -> bool {
        let session = self.nodes.all.get(name).and_then(|node| node.session.as_ref());
        session.is_some_and(|session| session.pending.is_empty() && session.unanswered.is_empty())
    }

    /// The deliveries to each node.
    pub(crate) fn deliveries(&self) -> Vec<(Arc<str>, DeliveryState)> {
        let of = |(name, node): (&Arc<str>, &Node)| {
            let state = match node.rejected.values().next() {
                _ if node.session.is_none() => DeliveryState::Disconnected,
                Some((_, reason)) => DeliveryState::Rejected(reason.clone()),
                None if self.is_up_to_date(name) => DeliveryState::Confirmed,
                None => DeliveryState::UnderWay,
            };
            (name.clone(), state)
        };
        self.nodes.all.iter().map(of).collect()
    }

    /// Applies a node's answer to a delta.
    pub(crate) fn acknowledge(&mut self, name: &str, number: u64, nonce: u64, rejected: Vec<(Subject, String)>) {
        let Some(session) = self.nodes.session(name, number) else { return };
        let Some(PendingDelta { delivered, .. }) = session.unanswered.remove(&nonce) else { return };
        session.wake.notify_one();
        let rejected: BTreeMap<_, _> = rejected.into_iter().collect();
        let answer = |(subject, version)| {
            let accepted = !rejected.contains_key(&subject);
            (subject, version, accepted)
        };
        let answers: Vec<(Subject, Option<Version>, bool)> = delivered.into_iter().map(answer).collect();
        let refused = self.refused_by(name, &answers);
        self.record_answers(name, nonce, &answers, rejected);
        self.announce_endpoints(&refused);
        let delivery = (number, nonce);
        for (subject, version, _) in &answers {
            if let (Subject::Scale(id), None) = (subject, version) {
                let effect = self.scaling.gone(id, name, &self.hosting);
                self.carry_out(effect);
            }
        }
        for (subject, version, _) in &answers {
            if let (Subject::Quota(id), None) = (subject, version) {
                let parts = (&self.catalog.compiled, &self.hosting, &self.nodes);
                let effect = self.leasing.gone(id, name, parts, self.now);
                self.carry_out(effect);
            }
        }
        for (subject, version, accepted) in &answers {
            if let (Subject::Quota(id), Some(_)) = (subject, version) {
                let effect = self.leasing.answered(id, name, delivery, *accepted);
                self.carry_out([effect]);
            }
        }
        let mut concerned = BTreeSet::new();
        for (subject, version, accepted) in &answers {
            match (subject, version) {
                (Subject::Scale(id), Some(_)) => {
                    self.scaling.answered(id, name, delivery, *accepted);
                    concerned.insert(id.clone());
                }
                (Subject::FunctionConfig(id), Some(_)) if *accepted && self.has_applied(id, name) => {
                    concerned.insert(id.clone());
                }
                (Subject::Endpoints(id), _) if self.hosting.scheduler.is_moving(id) => {
                    concerned.insert(id.clone());
                }
                _ => {}
            }
        }
        // A new node of a function answers for its bounds and its configuration at once.
        let follow = |id: FunctionId| [Effect::Rebalance(id.clone()), Effect::LeaveIdleNodes(id)];
        self.carry_out(concerned.into_iter().flat_map(follow));
    }

    /// Functions in these answers that had left the node, and may have come back.
    fn refused_by(&self, name: &str, answers: &[(Subject, Option<Version>, bool)]) -> Vec<FunctionId> {
        let Some(node) = self.nodes.all.get(name) else { return Vec::new() };
        let scaled = answers.iter().filter_map(|(subject, ..)| match subject {
            Subject::Scale(id) if node.refuses(id) => Some(id.clone()),
            _ => None,
        });
        scaled.collect()
    }

    /// Records which versions a node has applied, and which it has rejected.
    fn record_answers(
        &mut self,
        name: &str,
        nonce: u64,
        answers: &[(Subject, Option<Version>, bool)],
        mut reasons: BTreeMap<Subject, String>,
    ) {
        let Some(node) = self.nodes.all.get_mut(name) else { return };
        node.counters.acks += 1;
        node.withdrawn.retain(|_, sent| *sent != Some(nonce));
        for (subject, version, _) in answers {
            match (*version, reasons.remove(subject)) {
                (Some(version), Some(mut reason)) => {
                    reason.truncate(reason.floor_char_boundary(MAX_REASON));
                    node.counters.rejections += 1;
                    tracing::warn!(node = name, %subject, %version, reason, "a node rejected configuration");
                    node.rejected.insert(subject.clone(), (version, reason));
                }
                (Some(version), None) => {
                    if let Subject::FunctionConfig(id) = subject
                        && !node.certified.contains(id)
                    {
                        // A node that has kept the certificate does not ask for another one.
                        node.certifying.entry(id.clone()).or_insert(LONGEST_SIGNING);
                    }
                    node.rejected.remove(subject);
                    node.in_force.insert(subject.clone(), version);
                }
                (None, _) => {
                    if let Subject::FunctionConfig(id) = subject {
                        node.certified.remove(id);
                        node.certifying.remove(id);
                    }
                    node.rejected.remove(subject);
                    node.in_force.remove(subject);
                }
            }
        }
    }

    /// A node has applied the configuration of a function. Returns whether the function's instances
    /// may be divided anew.
    fn has_applied(&mut self, id: &FunctionId, name: &str) -> bool {
        let (scheduled, carried) = (self.nodes.is_scheduled(name), self.catalog.compiled.is_on_egress_nodes(id));
        if self.hosting.is_host(id, name) {
            self.hosting.abandoned.remove(id);
        }
        if scheduled || carried {
            self.carry_out([Effect::endpoints(id)]);
        }
        scheduled && !carried
    }

    /// The next delta for a session, limited in size. Removals are sent only after all other
    /// changes.
    pub(crate) fn next_delta(&mut self, name: &str, number: u64) -> Next {
        let mut known = Vec::new();
        let next = self.compose(name, number, &mut known);
        let effects = self.hosting.leave(&known);
        self.carry_out(effects);
        next
    }

    /// Composes the next delta. Adds the functions whose endpoints have changed, but not for this
    /// node, to `known`.
    fn compose(&mut self, name: &str, number: u64, known: &mut Vec<FunctionId>) -> Next {
        let Some(name) = self.nodes.name(name) else { return Next::Ended };
        let behind = self.nodes.all.get(&name).is_some_and(|node| node.behind);
        let Some(session) = self.nodes.session(&name, number) else { return Next::Ended };
        if let Some(notice) = session.next_notice() {
            return Next::Send(v1::ToNode { message: Some(notice) });
        }
        if session.unanswered.len() >= if behind { MAX_UNANSWERED_BEHIND } else { MAX_UNANSWERED } {
            return Next::Wait;
        }
        let mut pending = mem::take(&mut session.pending);
        let Changes { resources, removed, delivered } = self.changes(&name, &mut pending, known);
        let mut withdrawn: BTreeSet<FunctionId> = BTreeSet::new();
        for subject in &removed {
            if let Subject::FunctionConfig(id) = subject
                && self.is_withdrawn(&name, id)
            {
                withdrawn.insert(id.clone());
            }
        }
        let since = self.nodes.attention.now;
        let Some(node) = self.nodes.all.get_mut(&name) else { return Next::Ended };
        let Some(session) = &mut node.session else { return Next::Ended };
        session.pending.extend(pending);
        let unsent = node.withdrawn.iter_mut().filter(|(_, sent)| sent.is_none());
        withdrawn.extend(unsent.map(|(id, sent)| {
            *sent = Some(session.nonce + 1);
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
                (Subject::Scale(id), Some(_)) => self.scaling.sent(id, &name, delivery),
                (Subject::Quota(id), Some(_)) => self.leasing.sent(id, &name, delivery),
                _ => (),
            }
        }
        session.unanswered.insert(session.nonce, PendingDelta { delivered, since });
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

    /// Takes subjects from `pending` until their resources fill a delta.
    fn changes(&self, name: &str, pending: &mut BTreeSet<Subject>, known: &mut Vec<FunctionId>) -> Changes {
        let (mut changes, mut size) = (Changes::default(), 0);
        while size < DELTA_BYTES
            && let Some(subject) = pending.pop_first()
        {
            match self.difference(name, &subject) {
                Difference::Same => {
                    if let Subject::Endpoints(function) = subject {
                        known.push(function);
                    }
                }
                Difference::Set(content) => {
                    size += content.payload.len();
                    changes.resources.push(messages::resource(&subject, &content));
                    changes.delivered.push((subject, Some(content.version)));
                }
                Difference::Gone => changes.removed.push(subject),
            }
        }
        if !pending.is_empty() {
            pending.extend(changes.removed.drain(..));
        }
        changes.delivered.extend(changes.removed.iter().map(|subject| (subject.clone(), None)));
        changes
    }

    /// Whether a node that stops hosting a function has to close the function's open exchanges. If
    /// not, it drains the function.
    fn is_withdrawn(&mut self, name: &Arc<str>, id: &FunctionId) -> bool {
        let Some(last) = self.catalog.drain(id, name) else { return true };
        let Some(node) = self.nodes.all.get(name) else { return true };
        // Without the last change, the node may still permit calls that this change forbids.
        let was_sent = node.session.as_ref().is_some_and(|session| session.was_sent(id, last));
        !was_sent || node.rejected.contains_key(&Subject::FunctionConfig(id.clone()))
    }

    fn difference(&self, name: &str, subject: &Subject) -> Difference {
        let Some(session) = self.nodes.all.get(name).and_then(|node| node.session.as_ref()) else {
            return Difference::Same;
        };
        if !session.knows(subject) || is_of_services(subject) && !self.destinations.are_known {
            return Difference::Same;
        }
        let content = if session.wanted.contains_key(subject) { self.content(name, subject) } else { None };
        match (content, session.sent.get(subject)) {
            (Some(content), Some(Some(sent))) if content.version == *sent => Difference::Same,
            // The node may know better than this control plane where the function is.
            (Some(_), Some(Some(_))) if self.awaits_hosts(name, subject) => Difference::Same,
            (Some(content), _) => Difference::Set(content),
            (None, Some(Some(_))) => Difference::Gone,
            (None, None) if session.explicit.contains(subject) => Difference::Gone,
            (None, _) => Difference::Same,
        }
    }

    /// Whether these are the endpoints of a function with nodes that have not come back yet. The
    /// other nodes would have to take all requests; without any, the requests would fail.
    fn awaits_hosts(&self, name: &str, subject: &Subject) -> bool {
        let Subject::Endpoints(function) = subject else { return false };
        let hosting = &self.hosting;
        let is_awaited = |host: &Arc<str>| hosting.awaited.contains(host);
        let is_replaced = || hosting.abandoned.contains(function) && !hosting.scheduler.nodes_of(function).is_empty();
        hosting.awaiting && hosting.hosts(function).any(is_awaited)
            || (hosting.awaiting || is_replaced()) && self.endpoints(name, function).is_empty()
    }

    fn content(&self, name: &str, subject: &Subject) -> Option<Content> {
        match subject {
            Subject::Hosted => Content::new(&self.nodes.all.get(name)?.admission.placement).ok(),
            Subject::Endpoints(function) if self.catalog.compiled.functions.contains_key(function) => {
                Content::new(&self.endpoints(name, function)).ok()
            }
            Subject::Endpoints(_) => None,
            Subject::Scale(function) => Content::new(&self.scaling.bounds(function, name)?).ok(),
            Subject::Quota(function) => Content::new(&self.leasing.shares(function, name)?).ok(),
            Subject::EnforcedNamespaces => self.hosting.pods.enforced.clone(),
            Subject::Pod(uid) => self.hosting.pods.content(uid, name).cloned(),
            Subject::Destination(address) => self.destinations.content(*address, self.pod_at(*address)),
            Subject::ServiceEndpoint(service, address) => {
                self.destinations.endpoint(service, *address, self.pod_at(*address))
            }
            subject => self.catalog.compiled.contents.get(subject).cloned(),
        }
    }

    /// The endpoints of a function for node `name`, without the node itself, which knows its own
    /// instances better.
    pub(super) fn endpoints(&self, name: &str, id: &FunctionId) -> Vec<Endpoint> {
        let Self { catalog, nodes, hosting, scaling, .. } = self;
        // A job cannot be called, and the caller's own node connects to an external service itself.
        let function = catalog.compiled.functions.get(id);
        let callable = function.is_some_and(|it| it.job.is_none() && it.egress != Some(EgressPolicy::Callers));
        let carried = catalog.compiled.is_on_egress_nodes(id);
        let others = hosting.hosts(id).filter(|other| callable && ***other != *name);
        let endpoint = |other: &Arc<str>| {
            let node = nodes.all.get(other).filter(|node| node.present)?;
            let has_left = node.is_scheduled() && scaling.has_left(id, other);
            if has_left || !hosting.takes_requests(other, id, &catalog.compiled, nodes) {
                return None;
            }
            let most = if node.is_scheduled() { scaling.most_on(id, other) } else { None };
            let ready = ready(node.instances.get(id)).min(most.unwrap_or(u32::MAX));
            // An egress node is ready without an instance.
            let ready = if carried { 1 } else { ready };
            let locality = node.admission.locality.clone();
            Some(Endpoint { node: other.to_string(), address: node.inbound?, ready, locality })
        };
        others.filter_map(endpoint).collect()
    }
}
