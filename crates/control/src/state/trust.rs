//! Roots, authorities and revocations, and the nodes' reports on their certificates.

use super::State;
use super::effect::Effect;
use super::node::{Node, Proof};
use crate::definitions::EgressPolicy;
use crate::error::DefinitionsError;
use crate::rotation::NodeProgress;
use leno_identity::{MembershipMark, SpiffeId, TrustBundle};
use leno_model::FunctionId;
use leno_wire::v1::to_node;
use leno_wire::{ListenerFault, NodeCertificates, Subject, messages, v1};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time of the authority for one certificate, a part of which it spends.
const PER_CERTIFICATE: Duration = Duration::from_millis(10);
/// Maximum time in which nodes renew all their certificates.
const MAX_SPREAD: Duration = Duration::from_secs(600);
/// Seconds after which a node without a successful proof gets another request.
const RETRY: u64 = 5;

/// Calls of [`State::note_certificates`] until a signed certificate has probably reached its node.
const ON_ITS_WAY: u8 = 2;

impl State {
    /// Replaces the roots that nodes trust.
    pub(crate) fn set_bundle(&mut self, bundle: &TrustBundle) -> Result<(), DefinitionsError> {
        let before = self.catalog.compiled.contents.get(&Subject::Bundle).cloned();
        self.catalog.compiled.set_bundle(bundle)?;
        if before.as_ref() != self.catalog.compiled.contents.get(&Subject::Bundle) {
            self.nodes.announce(&Subject::Bundle);
        }
        Ok(())
    }

    /// Notifies nodes of the authority that signs, so that they renew certificates of other ones.
    pub(crate) fn set_issuer(&mut self, key: &[u8]) {
        if self.nodes.notices.issuer == key {
            return;
        }
        self.nodes.notices.issuer = key.to_vec();
        let certificates = u32::try_from(self.issued.len() + self.nodes.all.len()).unwrap_or(u32::MAX);
        let spread = PER_CERTIFICATE.saturating_mul(certificates).min(MAX_SPREAD);
        for session in self.nodes.all.values_mut().filter_map(|node| node.session.as_mut()) {
            session.notify_issuer(key, spread);
        }
    }

    /// Notifies nodes of the revoked memberships.
    pub(crate) fn set_revoked(&mut self, memberships: impl IntoIterator<Item = MembershipMark>) {
        self.nodes.notices.revoked = messages::revoked(memberships);
        for (name, node) in &mut self.nodes.all {
            if let Some(session) = &mut node.session {
                session.notify_revoked(name, &self.nodes.notices.revoked);
            }
        }
    }

    /// For how long from now certificates of a node, or connections that they opened, may count on
    /// other nodes.
    pub(crate) fn longest_proof(&self, name: &str, now: u64) -> Duration {
        let of_node = self.issued.iter().filter(|((_, node), _)| **node == *name);
        let known = of_node.map(|(_, not_after)| not_after.saturating_sub(now)).max().unwrap_or_default();
        Duration::from_secs(known).max(self.catalog.compiled.svid_lifetime) + self.catalog.compiled.stream_lifetime
    }

    /// Stores a node's report on its certificates.
    pub(crate) fn certified(&mut self, name: &str, number: u64, certified: NodeCertificates) {
        if self.nodes.session(name, number).is_some()
            && let Some(node) = self.nodes.all.get_mut(name)
        {
            node.certificates = Some(certified);
        }
    }

    /// Stores the listeners that a gateway cannot serve.
    pub(crate) fn cannot_serve(&mut self, name: &str, number: u64, faults: Vec<ListenerFault>) {
        if self.nodes.session(name, number).is_none() {
            return;
        }
        let Some(node) = self.nodes.all.get_mut(name) else { return };
        match node.admission.gateway {
            true => node.listener_faults = faults,
            false => node.refuse(name, &"a report on listeners of a node that is no gateway"),
        }
    }

    /// The listeners that connected gateways cannot serve, each with the node.
    pub(crate) fn listener_faults(&self) -> Vec<(String, ListenerFault)> {
        let connected = self.nodes.all.iter().filter(|(_, node)| node.session.is_some());
        let of = |(name, node): (&Arc<str>, &Node)| -> Vec<_> {
            node.listener_faults.iter().map(|fault| (name.to_string(), fault.clone())).collect()
        };
        connected.flat_map(of).collect()
    }

    /// Requests a proof from the nodes that have the present roots: that they accept certificates
    /// of the candidate authority.
    pub(crate) fn ask_for_proofs(&mut self, now: u64) {
        let Some(bundle) = self.catalog.compiled.contents.get(&Subject::Bundle).map(|content| content.version) else {
            return;
        };
        for node in self.nodes.all.values_mut() {
            let Some(session) = &mut node.session else { continue };
            if !session.knows_authorities() || node.in_force.get(&Subject::Bundle) != Some(&bundle) {
                continue;
            }
            let is_done = |proof: &Proof| match proof.outcome {
                Some(Ok(())) => true,
                _ => proof.session == session.number && now < proof.asked.saturating_add(RETRY),
            };
            if !node.proof.as_ref().is_some_and(is_done) {
                self.nodes.notices.proofs += 1;
                let sequence = self.nodes.notices.proofs;
                session.notify(to_node::Message::Prove(v1::Prove { sequence }));
                // The last outcome counts until the node answers again.
                let outcome = node.proof.take().and_then(|proof| proof.outcome);
                node.proof = Some(Proof { sequence, session: session.number, asked: now, outcome });
            }
        }
    }

    /// Stores a node's answer.
    pub(crate) fn proved(&mut self, name: &str, number: u64, (sequence, outcome): (u64, Result<(), String>)) {
        if self.nodes.session(name, number).is_some()
            && let Some(proof) = self.nodes.all.get_mut(name).and_then(|node| node.proof.as_mut())
            && proof.sequence == sequence
        {
            proof.outcome = Some(outcome);
        }
    }

    /// Drops all proofs: each is for one candidate.
    pub(crate) fn forget_proofs(&mut self) {
        self.nodes.all.values_mut().for_each(|node| node.proof = None);
    }

    /// How long certificates of functions are valid.
    pub(crate) fn svid_lifetime(&self) -> Duration {
        self.catalog.compiled.svid_lifetime
    }

    /// The state of all nodes, for a rotation. A node counts as away since the first tick, or
    /// call, that finds it away.
    pub(crate) fn seen(&mut self, now: u64) -> BTreeMap<String, NodeProgress> {
        let bundle = self.catalog.compiled.contents.get(&Subject::Bundle).map(|content| content.version);
        let seen = |node: &mut Node| {
            let absence = node.absence_at(now * 1000);
            let away_since = absence.and_then(|absence| absence.since_ms).map(|since_ms| since_ms / 1000);
            NodeProgress {
                connected: node.session.is_some(),
                away_since,
                speaks: node.session.as_ref().is_some_and(|session| session.knows_authorities()),
                trusts: bundle.is_some() && node.in_force.get(&Subject::Bundle).copied() == bundle,
                proof: node.proof.as_ref().and_then(|proof| proof.outcome.clone()),
                issuers: node.certificates.as_ref().map(|shown| shown.issuers.clone()).unwrap_or_default(),
            }
        };
        self.nodes.all.iter_mut().map(|(name, node)| (name.to_string(), seen(node))).collect()
    }

    /// How long a certificate for `identity` on the node is valid; `None`: the node hosts no
    /// function, and has no pod, with that identity.
    pub(crate) fn may_sign(&self, name: &str, identity: &SpiffeId) -> Option<Duration> {
        let (node, compiled) = (self.nodes.all.get(name)?, &self.catalog.compiled);
        let mut functions = compiled.by_identity.get(identity).into_iter().flatten();
        // Other nodes do not call a node that connects to an external service for its own functions
        // only.
        let is_called =
            |id: &FunctionId| compiled.functions.get(id).and_then(|it| it.egress) != Some(EgressPolicy::Callers);
        let hosted = functions.any(|id| node.hosted.contains(id) && is_called(id));
        let gateway = node.admission.gateway && compiled.gateway.as_ref() == Some(identity);
        let account = !identity.is_reserved() && self.hosting.pods.has_account(name, identity);
        (hosted || gateway || account).then_some(compiled.svid_lifetime)
    }

    /// Records a signed certificate.
    pub(crate) fn signed(&mut self, name: &str, identity: SpiffeId, not_after: u64) {
        if let Some(node) = self.nodes.all.get_mut(name) {
            let functions = self.catalog.compiled.by_identity.get(&identity).into_iter().flatten();
            let first = functions.filter(|id| !node.certified.contains(*id));
            node.certifying.extend(first.map(|id| (id.clone(), ON_ITS_WAY)));
        }
        self.issued.insert((identity, name.into()), not_after);
    }

    /// Notes that certificates have reached their nodes, a moment after they were signed, and
    /// continues the moves that have waited for that. Call it about twice a second.
    pub(crate) fn note_certificates(&mut self) {
        let mut certified = Vec::new();
        for node in self.nodes.all.values_mut() {
            node.certifying.values_mut().for_each(|left| *left -= 1);
            let come = node.certifying.extract_if(.., |_, left| *left == 0).map(|(id, _)| id);
            for id in come {
                node.certified.insert(id.clone());
                certified.push(id);
            }
        }
        certified.retain(|id| self.hosting.scheduler.is_moving(id));
        let effects = Effect::moved(certified);
        self.carry_out(effects);
    }
}
