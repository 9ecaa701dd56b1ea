//! The nodes, their sessions, and the subjects that each session wants.

use super::destinations::Destinations;
use super::event_log::EventLog;
use super::node::Node;
use super::notices::Notices;
use super::session::Session;
use crate::definitions::CompiledDefinitions;
use crate::status::NodeEvent;
use leno_model::{FunctionId, PodUid};
use leno_wire::Subject;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub(super) type Names = BTreeSet<Arc<str>>;

/// A node is behind when it has not acknowledged a message with configuration for this long.
pub(crate) const BEHIND: Duration = Duration::from_secs(5);
/// The most time that one tick counts. While the control plane was busy, it has not read
/// acknowledgements.
const MAX_TICK: Duration = Duration::from_secs(1);

/// All admitted nodes.
#[derive(Default)]
pub(super) struct Nodes {
    pub all: BTreeMap<Arc<str>, Node>,
    /// Number of the last session.
    pub sessions: u64,
    /// Connected nodes by the subjects that they want.
    interest: HashMap<Subject, Names>,
    /// Nodes whose last session has, or had, a subscription to [`Subject::Routes`].
    pub gateways: Names,
    pub attention: Attention,
    pub notices: Notices,
    pub events: EventLog<NodeEvent>,
    /// When [`super::State::note_absences`] looked, in milliseconds since 1970.
    pub looked_ms: u64,
}

/// The time during which the control plane was free to read acknowledgements.
#[derive(Default)]
pub(super) struct Attention {
    looked: Duration,
    pub now: Duration,
}

impl Nodes {
    /// The shared name of a node; `None`: no such node was admitted.
    pub(super) fn name(&self, name: &str) -> Option<Arc<str>> {
        self.all.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// The session with this number, unless another one has replaced it.
    pub(super) fn session(&mut self, name: &str, number: u64) -> Option<&mut Session> {
        self.all.get_mut(name)?.session.as_mut().filter(|session| session.number == number)
    }

    pub(super) fn is_scheduled(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(Node::is_scheduled)
    }

    pub(super) fn shares_limits(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(Node::shares_limits)
    }

    /// Whether the node gets its pods.
    pub(super) fn gets_pods(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|node| {
            let is_subscribed = |session: &Session| session.explicit.contains(&Subject::Hosted);
            node.has_pods() && node.session.as_ref().is_some_and(is_subscribed)
        })
    }

    pub(super) fn has_in_force(&self, name: &str, id: &FunctionId) -> bool {
        self.all.get(name).is_some_and(|node| node.has_in_force(id))
    }

    /// Whether a node may report on a function: it hosts the function, or has reported instances of
    /// it before. Other reports are refused.
    pub(super) fn may_report(&mut self, name: &str, id: &FunctionId) -> bool {
        let Some(node) = self.all.get_mut(name) else { return false };
        let may = node.hosted.contains(id) || node.instances.contains_key(id);
        if !may {
            node.refuse(name, id);
        }
        may
    }

    pub(super) fn set_gateway(&mut self, name: &Arc<str>, routes: bool) {
        if routes {
            self.gateways.insert(name.clone())
        } else {
            self.gateways.remove(name)
        };
    }

    /// Ends the session of a node, if it has one. The cost depends on the subjects that the node
    /// wants.
    pub(super) fn end_session(&mut self, name: &str) {
        let Some(session) = self.all.get_mut(name).and_then(|node| node.session.take()) else { return };
        for subject in session.wanted.keys() {
            lose_interest(&mut self.interest, subject, name);
        }
        session.wake.notify_one();
    }

    /// Marks a changed subject in the sessions that want it.
    pub(super) fn announce(&mut self, subject: &Subject) {
        for name in self.interest.get(subject).into_iter().flatten() {
            let Some(session) = self.all.get_mut(name).and_then(|node| node.session.as_mut()) else { continue };
            session.pending.insert(subject.clone());
            session.wake();
        }
    }

    /// The connected nodes that want a subject.
    pub(super) fn interested(&self, subject: &Subject) -> impl Iterator<Item = &Arc<str>> {
        self.interest.get(subject).into_iter().flatten()
    }

    /// Marks all that sessions want or have of Services.
    pub(super) fn compare_destinations(&mut self) {
        for session in self.all.values_mut().filter_map(|node| node.session.as_mut()) {
            let subjects = session.wanted.keys().chain(session.sent.keys());
            let compared: Vec<_> = subjects.filter(|subject| is_of_services(subject)).cloned().collect();
            session.pending.extend(compared);
            session.wake();
        }
    }

    /// Whether all connected nodes have answered the last change of a subject. Nodes that are
    /// behind do not count.
    pub(super) fn have_answered(&self, subject: &Subject) -> bool {
        let answered = |node: &Node| node.behind || node.has_answered(subject);
        let mut wanting = self.interest.get(subject).into_iter().flatten();
        // A node that wants it no more may not know that yet. All nodes are examined last.
        wanting.all(|name| self.all.get(name).is_none_or(answered)) && self.all.values().all(answered)
    }

    /// The subjects that a node with these subscriptions wants because of a function.
    pub(super) fn subjects_of(
        &self,
        name: &str,
        hosts: bool,
        (id, compiled): (&FunctionId, &CompiledDefinitions),
        explicit: &BTreeSet<Subject>,
    ) -> Vec<Subject> {
        let Some(function) = compiled.functions.get(id) else { return Vec::new() };
        let mut subjects = function.brings(id, hosts, explicit);
        if subjects.contains(&Subject::FunctionConfig(id.clone())) {
            subjects.extend(function.delivered());
        }
        if hosts && explicit.contains(&Subject::Hosted) {
            if self.is_scheduled(name) && !function.scaled.is_empty() {
                subjects.push(Subject::Scale(id.clone()));
            }
            if self.shares_limits(name) && !function.limits.is_empty() {
                subjects.push(Subject::Quota(id.clone()));
            }
        }
        subjects
    }

    /// Recomputes the subjects that a session's subscriptions cover, and marks the differences. `pods`
    /// are those of the node. The cost depends on these, and on the functions that the node hosts and
    /// routes to, and the endpoints that it calls.
    pub(super) fn refresh<'a>(
        &mut self,
        name: &str,
        (compiled, destinations): (&CompiledDefinitions, &Destinations),
        exposed: &BTreeSet<FunctionId>,
        pods: impl Iterator<Item = &'a PodUid>,
    ) {
        let gets_pods = self.gets_pods(name);
        let Some((name, node)) = self.all.get_key_value(name) else { return };
        let (name, Some(session)) = (name.clone(), &node.session) else { return };
        let mut explicit = session.explicit.clone();
        explicit.retain(|subject| node.may_subscribe(subject));
        let mut wanted: HashMap<Subject, u32> = explicit.iter().map(|subject| (subject.clone(), 1)).collect();
        let routes = explicit.contains(&Subject::Routes);
        wanted.extend(routes.then_some((Subject::Certificates, 1)));
        wanted.extend(gets_pods.then_some((Subject::EnforcedNamespaces, 1)));
        wanted.extend(pods.filter(|_| gets_pods).map(|uid| (Subject::Pod(uid.clone()), 1)));
        for subject in &explicit {
            let Subject::Destination(address) = subject else { continue };
            for endpoint in destinations.endpoints(*address) {
                *wanted.entry(endpoint).or_default() += 1;
            }
        }
        let exposed = exposed.iter().filter(|id| routes && !node.hosted.contains(*id));
        for id in node.hosted.iter().chain(exposed) {
            for subject in self.subjects_of(&name, node.hosted.contains(id), (id, compiled), &explicit) {
                *wanted.entry(subject).or_default() += 1;
            }
        }
        let gone: Vec<_> = session.wanted.keys().filter(|subject| !wanted.contains_key(*subject)).cloned().collect();
        let new: Vec<_> = wanted.keys().filter(|subject| !session.wanted.contains_key(*subject)).cloned().collect();
        self.set_gateway(&name, routes);
        gone.iter().for_each(|subject| lose_interest(&mut self.interest, subject, &name));
        new.iter().for_each(|subject| gain_interest(&mut self.interest, subject, &name));
        let Some(session) = self.all.get_mut(&name).and_then(|node| node.session.as_mut()) else { return };
        session.pending.extend(gone.into_iter().chain(new));
        (session.explicit, session.wanted) = (explicit, wanted);
        session.wake();
    }

    /// Replaces the subjects that nodes want because of one function.
    pub(super) fn rewant(&mut self, before: BTreeMap<Arc<str>, Vec<Subject>>, after: BTreeMap<Arc<str>, Vec<Subject>>) {
        let changes = after.into_iter().map(|(name, subjects)| (name, subjects, true));
        let changes = changes.chain(before.into_iter().map(|(name, subjects)| (name, subjects, false)));
        for (name, subjects, more) in changes {
            let Some(session) = self.all.get_mut(&name).and_then(|node| node.session.as_mut()) else { continue };
            for subject in subjects {
                let reasons = session.wanted.entry(subject.clone()).or_default();
                *reasons = if more { *reasons + 1 } else { reasons.saturating_sub(1) };
                match (*reasons, more) {
                    (0, _) => {
                        session.wanted.remove(&subject);
                        lose_interest(&mut self.interest, &subject, &name);
                        session.pending.insert(subject);
                    }
                    (1, true) => {
                        gain_interest(&mut self.interest, &subject, &name);
                        session.pending.insert(subject);
                    }
                    _ => {}
                }
            }
            session.wake();
        }
    }

    /// Stores the addresses at which other machines reach a node.
    pub(super) fn locate(&mut self, name: &str, addresses: &[IpAddr]) {
        let Some(node) = self.all.get_mut(name) else { return };
        if self.notices.machines.locate(&mut node.addresses, addresses) {
            self.notify_machines();
        }
    }

    /// Stores the source address of a node's stream, and the address at which it has reached the
    /// control plane.
    pub(super) fn located(&mut self, name: &str, from: Option<IpAddr>, at: Option<IpAddr>) {
        let Some(node) = self.all.get_mut(name) else { return };
        if self.notices.machines.located(&mut node.from, from, at) {
            self.notify_machines();
        } else if let Some(session) = &mut node.session {
            self.notices.machines.notify(session);
        }
    }

    fn notify_machines(&mut self) {
        for session in self.all.values_mut().filter_map(|node| node.session.as_mut()) {
            self.notices.machines.notify(session);
        }
    }

    /// Computes which nodes are behind, and returns those for which that has changed.
    pub(super) fn watch_acknowledgements(&mut self, now: Duration) -> Vec<Arc<str>> {
        let passed = now.saturating_sub(self.attention.looked);
        self.attention.looked = now;
        self.attention.now += passed.min(MAX_TICK);
        let behind = |name: &Arc<str>| self.unacknowledged(name).is_some_and(|time| time >= BEHIND);
        let changed = self.all.iter().filter(|(name, node)| behind(name) != node.behind);
        let changed: Vec<_> = changed.map(|(name, _)| name.clone()).collect();
        for name in &changed {
            let Some(node) = self.all.get_mut(name) else { continue };
            node.behind = !node.behind;
            match (node.behind, &node.session) {
                (true, session) => {
                    // A node that is behind may have more unanswered deltas.
                    session.iter().for_each(|session| session.wake.notify_one());
                    tracing::warn!(
                        node = &**name,
                        "a node does not acknowledge its configuration; it gets nothing new"
                    );
                }
                (false, Some(_)) => tracing::info!(node = &**name, "a node acknowledges its configuration again"),
                (false, None) => {}
            }
        }
        changed
    }

    /// For how long a connected node has left a message with configuration unacknowledged.
    pub(super) fn unacknowledged(&self, name: &str) -> Option<Duration> {
        let session = self.all.get(name)?.session.as_ref()?;
        Some(self.attention.now.saturating_sub(session.unanswered_since()?))
    }
}

/// Whether the subject depends on Services.
pub(super) fn is_of_services(subject: &Subject) -> bool {
    matches!(subject, Subject::Destination(_) | Subject::ServiceEndpoint(..))
}

fn gain_interest(interest: &mut HashMap<Subject, Names>, subject: &Subject, name: &Arc<str>) {
    interest.entry(subject.clone()).or_default().insert(name.clone());
}

fn lose_interest(interest: &mut HashMap<Subject, Names>, subject: &Subject, name: &str) {
    if let Some(names) = interest.get_mut(subject) {
        names.remove(name);
        if names.is_empty() {
            interest.remove(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Admission;
    use leno_wire::Placement;
    use std::mem;

    #[test]
    fn a_change_is_announced_only_to_sessions_that_want_the_subject() {
        let mut nodes = Nodes::default();
        for name in ["one", "two"] {
            let (placement, locality) = (Placement::Everything, Default::default());
            let mut node = Node::new(Admission { placement, gateway: false, locality, egress: false });
            let (sent, known, wake) = Default::default();
            node.session = Some(Session::new(1, 1, sent, known, wake));
            nodes.all.insert(name.into(), node);
        }
        let wanted = BTreeMap::from([("one".into(), vec![Subject::Bundle])]);
        nodes.rewant(BTreeMap::new(), wanted.clone());
        let pending = |nodes: &mut Nodes| {
            ["one", "two"].map(|name| mem::take(&mut nodes.session(name, 1).unwrap().pending).len())
        };
        assert_eq!(pending(&mut nodes), [1, 0], "a new subject is sent");
        nodes.announce(&Subject::Mesh);
        assert_eq!(pending(&mut nodes), [0, 0]);
        nodes.announce(&Subject::Bundle);
        assert_eq!(pending(&mut nodes), [1, 0]);
        nodes.rewant(wanted, BTreeMap::new());
        assert_eq!(pending(&mut nodes), [1, 0], "a subject that is wanted no more is removed");
        nodes.announce(&Subject::Bundle);
        assert_eq!(pending(&mut nodes), [0, 0]);
    }
}
