//! Roots and authorities, as nodes are told of them and as they answer.

use super::State;
use super::delivery::Session;
use crate::error::DefinitionsError;
use crate::rotation::Seen;
use leno_identity::{MembershipMark, TrustBundle};
use leno_wire::v1::to_node;
use leno_wire::{NodeCertificates, Subject, messages, v1};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time of the authority for one certificate, of which it is to spend a part only.
const PER_CERTIFICATE: Duration = Duration::from_millis(10);
/// Nodes have renewed all their certificates after this time.
const LONGEST_SPREAD: Duration = Duration::from_secs(600);
/// A node that failed to prove something, or did not answer, is asked again after so many seconds.
const ASK_AGAIN: u64 = 5;

/// A node was asked whether it would take the candidate's certificates.
pub(super) struct Proof {
    sequence: u64,
    /// The stream on which it was asked.
    session: u64,
    /// In seconds since 1970.
    asked: u64,
    /// `None`: it has not answered.
    outcome: Option<Result<(), String>>,
}

impl State {
    /// Replaces the roots that nodes trust.
    pub(crate) fn set_bundle(&mut self, bundle: &TrustBundle) -> Result<(), DefinitionsError> {
        let before = self.compiled.contents.get(&Subject::Bundle).cloned();
        self.compiled.set_bundle(bundle)?;
        if before.as_ref() != self.compiled.contents.get(&Subject::Bundle) {
            self.announce(&BTreeSet::from([Subject::Bundle]));
        }
        Ok(())
    }

    /// Tells nodes who signs from now on, so that they renew what others have signed.
    pub(crate) fn set_issuer(&mut self, key: &[u8]) {
        if self.issuer == key {
            return;
        }
        self.issuer = key.to_vec();
        let certificates = u32::try_from(self.issued.len() + self.nodes.len()).unwrap_or(u32::MAX);
        let spread = PER_CERTIFICATE.saturating_mul(certificates).min(LONGEST_SPREAD);
        for session in self.nodes.values_mut().filter_map(|node| node.session.as_mut()) {
            session.tell_issuer(key, spread);
        }
    }

    /// Tells nodes which memberships were revoked.
    pub(crate) fn set_revoked(&mut self, memberships: impl IntoIterator<Item = MembershipMark>) {
        self.revoked = messages::revoked(memberships);
        for (name, node) in &mut self.nodes {
            if let Some(session) = &mut node.session {
                tell_revoked(name, session, &self.revoked);
            }
        }
    }

    /// For how long from now certificates of a node, or what they have proved, may count on other nodes.
    pub(crate) fn longest_proof(&self, name: &str, now: u64) -> Duration {
        let of_node = self.issued.iter().filter(|((_, node), _)| **node == *name);
        let known = of_node.map(|(_, not_after)| not_after.saturating_sub(now)).max().unwrap_or_default();
        Duration::from_secs(known).max(self.compiled.svid_lifetime) + self.compiled.stream_lifetime
    }

    /// Takes in what a node says of its certificates.
    pub(crate) fn certified(&mut self, name: &str, number: u64, certified: NodeCertificates) {
        if self.session(name, number).is_some()
            && let Some(node) = self.nodes.get_mut(name)
        {
            node.certificates = Some(certified);
        }
    }

    /// Asks the nodes that have the present roots whether they would take the candidate's certificates.
    pub(crate) fn ask_for_proofs(&mut self, now: u64) {
        let Some(bundle) = self.compiled.contents.get(&Subject::Bundle).map(|content| content.version) else { return };
        for node in self.nodes.values_mut() {
            let Some(session) = &mut node.session else { continue };
            if !session.speaks_of_authorities() || node.in_force.get(&Subject::Bundle) != Some(&bundle) {
                continue;
            }
            let is_done = |proof: &Proof| match proof.outcome {
                Some(Ok(())) => true,
                _ => proof.session == session.number && now < proof.asked.saturating_add(ASK_AGAIN),
            };
            if !node.proof.as_ref().is_some_and(is_done) {
                self.proofs += 1;
                let sequence = self.proofs;
                session.notify(to_node::Message::Prove(v1::Prove { sequence }));
                // What it answered last is told until it answers again.
                let outcome = node.proof.take().and_then(|proof| proof.outcome);
                node.proof = Some(Proof { sequence, session: session.number, asked: now, outcome });
            }
        }
    }

    /// Takes in a node's answer.
    pub(crate) fn proved(&mut self, name: &str, number: u64, (sequence, outcome): (u64, Result<(), String>)) {
        if self.session(name, number).is_some()
            && let Some(proof) = self.nodes.get_mut(name).and_then(|node| node.proof.as_mut())
            && proof.sequence == sequence
        {
            proof.outcome = Some(outcome);
        }
    }

    /// Proofs are for one candidate.
    pub(crate) fn forget_proofs(&mut self) {
        self.nodes.values_mut().for_each(|node| node.proof = None);
    }

    /// How long certificates of functions are valid.
    pub(crate) fn svid_lifetime(&self) -> Duration {
        self.compiled.svid_lifetime
    }

    /// What is known of all nodes, for a rotation. Whoever is away is so since this was called first.
    pub(crate) fn seen(&mut self, now: u64) -> BTreeMap<String, Seen> {
        let bundle = self.compiled.contents.get(&Subject::Bundle).map(|content| content.version);
        let seen = |node: &mut super::Node| {
            let away_since = node.away_since.take().unwrap_or(now);
            node.away_since = node.session.is_none().then_some(away_since);
            Seen {
                connected: node.session.is_some(),
                away_since: node.away_since,
                speaks: node.session.as_ref().is_some_and(|session| session.speaks_of_authorities()),
                trusts: bundle.is_some() && node.in_force.get(&Subject::Bundle).copied() == bundle,
                proof: node.proof.as_ref().and_then(|proof| proof.outcome.clone()),
                issuers: node.certificates.as_ref().map(|shown| shown.issuers.clone()).unwrap_or_default(),
            }
        };
        self.nodes.iter_mut().map(|(name, node)| (name.to_string(), seen(node))).collect()
    }
}

/// Tells a node which memberships were revoked, if any was.
pub(super) fn tell_revoked(node: &str, session: &mut Session, revoked: &v1::Revoked) {
    if !revoked.memberships.is_empty() && !session.notify(to_node::Message::Revoked(revoked.clone())) {
        tracing::warn!(
            node,
            "this node's release does not end what it has open with revoked nodes before their certificates have expired"
        );
    }
}
