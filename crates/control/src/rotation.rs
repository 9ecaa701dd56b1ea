//! Rotation of the authority of a running mesh, as a pure function of the nodes' reports. See
//! docs/decisions/0023-rotation.md.
//!
//! First every node trusts both roots and proves it; then the other authority signs, and nodes
//! renew their certificates; at last the first root leaves the bundle. At no time does a node
//! present a certificate that another node, for which the rotation waits, does not trust.

use leno_identity::AuthorityKeyId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a drill waits for nodes that are connected.
const LONGEST_DRILL: u64 = 60;
/// Margin for clocks that differ: a certificate that has expired on a node may be valid here.
const MARGIN: Duration = Duration::from_secs(300);

/// The stored state of the authority, so that a restart changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuthorityRecord {
    /// Key identifier of the authority that signs, or did before the rotation that is under way.
    pub key: Vec<u8>,
    /// Whether its key is in a file, so that another authority in its place is a mistake.
    pub kept: bool,
    pub rotation: Option<Rotation>,
    pub last: Option<RotationOutcome>,
}

/// A rotation that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rotation {
    pub phase: Phase,
    /// Whether the candidate is withdrawn as soon as it is proved.
    pub drill: bool,
    /// Whether it goes back to the first authority.
    pub aborted: bool,
    /// The roots before the rotation, in DER; the last authority's first.
    pub roots: Vec<Vec<u8>>,
    /// Key identifier of the authority that signed before the rotation.
    pub original: Vec<u8>,
    /// Root of the authority that is to sign after the rotation, in DER.
    pub candidate_root: Vec<u8>,
    /// Its key identifier.
    pub candidate: Vec<u8>,
    /// When the phase began, in seconds since 1970.
    pub since: u64,
    /// Nodes for which the rotation does not wait.
    pub without: BTreeSet<String>,
    /// The nodes that would fail, as a drill has found, with the reasons.
    pub failed: BTreeMap<String, String>,
}

/// The phase of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Nodes get both roots, and prove that they accept certificates of the candidate.
    Trust,
    /// The other authority signs, and nodes renew their certificates.
    Renew,
    /// Nodes lose the other root.
    Withdraw,
}

/// How the last rotation or drill ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotationOutcome {
    /// Number of the rotation, counted from 1.
    pub number: u64,
    /// Whether it was a drill.
    pub drill: bool,
    /// Whether it was aborted.
    pub aborted: bool,
    /// When, in seconds since 1970.
    pub at: u64,
    /// For a drill: nodes that would fail, and why.
    pub failed: BTreeMap<String, String>,
}

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeProgress {
    pub connected: bool,
    /// Since when it is known to be away, in seconds since 1970. No certificate was signed for it
    /// since.
    pub away_since: Option<u64>,
    /// Whether its release knows authorities.
    pub speaks: bool,
    /// Whether the present bundle is in force on it.
    pub trusts: bool,
    /// The outcome of its proof; `None`: it has sent none.
    pub proof: Option<Result<(), String>>,
    /// The authorities that signed its certificates; empty: it has not reported them.
    pub issuers: BTreeSet<AuthorityKeyId>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait for these nodes, for these reasons.
    Wait(BTreeMap<String, String>),
    /// The phase is over.
    Next(Rotation),
    /// The rotation is over. It has no number yet.
    End(RotationOutcome),
}

impl Rotation {
    /// Key identifier of the authority that signs for nodes and functions.
    pub(crate) fn signs(&self) -> &[u8] {
        match self.phase {
            Phase::Trust => &self.original,
            Phase::Renew | Phase::Withdraw => self.aim(),
        }
    }

    /// Key identifier of the authority that signed the control plane's own certificate. As long as
    /// some nodes may only know the first root, it is the first.
    pub(crate) fn signs_own(&self) -> &[u8] {
        match self.phase {
            Phase::Trust | Phase::Renew => &self.original,
            Phase::Withdraw => self.aim(),
        }
    }

    /// Key identifier of the authority that signs in the end.
    pub(crate) fn aim(&self) -> &[u8] {
        if self.aborted { &self.original } else { &self.candidate }
    }

    /// The roots that nodes get.
    pub(crate) fn bundle(&self) -> Vec<Vec<u8>> {
        let candidate = std::iter::once(&self.candidate_root);
        match self.phase {
            Phase::Trust | Phase::Renew => self.roots.iter().chain(candidate).cloned().collect(),
            Phase::Withdraw if self.aborted => self.roots.clone(),
            Phase::Withdraw => vec![self.candidate_root.clone()],
        }
    }

    /// Goes back to the first authority. `None`: it is too late, or has happened already.
    pub(crate) fn abort(&self, now: u64) -> Option<Self> {
        let phase = match self.phase {
            // The candidate has signed no certificate that nodes use.
            Phase::Trust => Phase::Withdraw,
            Phase::Renew => Phase::Renew,
            Phase::Withdraw => return None,
        };
        (!self.aborted).then(|| Self { phase, aborted: true, since: now, ..self.clone() })
    }

    /// The next step. `lifetime` is the longest that a certificate is valid.
    pub(crate) fn step(&self, nodes: &BTreeMap<String, NodeProgress>, lifetime: Duration, now: u64) -> Step {
        let is_over = |from: u64| now >= from.saturating_add((lifetime + MARGIN).as_secs());
        let waited_for = nodes.iter().filter(|(name, _)| !self.without.contains(*name));
        let lacks = |(name, node): (&String, &NodeProgress)| {
            // It cannot come back without joining anew, and then gets all new roots and
            // certificates.
            let is_gone = !node.connected && node.away_since.is_some_and(is_over);
            if is_gone { None } else { Some((name.clone(), self.lacks(node, is_over(self.since))?)) }
        };
        let lacking: BTreeMap<String, String> = waited_for.filter_map(lacks).collect();
        let next = |phase| Self { phase, since: now, ..self.clone() };
        match self.phase {
            Phase::Trust if self.drill => {
                let is_connected = |name: &String| nodes.get(name).is_some_and(|node| node.connected);
                if lacking.keys().any(is_connected) && now < self.since.saturating_add(LONGEST_DRILL) {
                    return Step::Wait(lacking);
                }
                Step::Next(Self { aborted: true, failed: lacking, ..next(Phase::Withdraw) })
            }
            _ if !lacking.is_empty() => Step::Wait(lacking),
            Phase::Trust => Step::Next(next(Phase::Renew)),
            Phase::Renew => Step::Next(next(Phase::Withdraw)),
            Phase::Withdraw => {
                let (drill, aborted) = (self.drill, self.aborted && !self.drill);
                Step::End(RotationOutcome { number: 0, drill, aborted, at: now, failed: self.failed.clone() })
            }
        }
    }

    /// Why a node is not ready for the next phase. `over`: certificates from before this phase have
    /// expired.
    fn lacks(&self, node: &NodeProgress, over: bool) -> Option<String> {
        let lacks = match self.phase {
            Phase::Renew if self.has_renewed(node) => return None,
            Phase::Renew if over && !(node.connected && node.speaks) => return None,
            Phase::Trust | Phase::Renew if !node.connected => "it is away",
            Phase::Trust | Phase::Renew if !node.trusts => "it has not taken both roots yet",
            Phase::Trust => match &node.proof {
                // It has both roots, and its release cannot report more.
                _ if !node.speaks => return None,
                Some(Ok(())) => return None,
                Some(Err(reason)) => return Some(format!("it would refuse the candidate's certificates: {reason}")),
                None => "it has not proved yet that it takes the candidate's certificates",
            },
            Phase::Renew if !node.speaks => {
                "its release renews at half of its certificates' lifetimes, and does not say so"
            }
            Phase::Renew => "it has certificates of the other authority",
            Phase::Withdraw if node.connected && !node.trusts => "it still has the other root",
            Phase::Withdraw => return None,
        };
        Some(lacks.to_owned())
    }

    fn has_renewed(&self, node: &NodeProgress) -> bool {
        let is_of_aim = |issuer: &AuthorityKeyId| issuer.as_bytes() == self.aim();
        self.phase == Phase::Renew && !node.issuers.is_empty() && node.issuers.iter().all(is_of_aim)
    }
}

#[cfg(test)]
mod tests;
