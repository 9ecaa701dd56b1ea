//! Revoked memberships, as long as a node may accept one of their certificates, or a connection
//! that it opened.

use leno_identity::MembershipMark;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Maximum number of revoked memberships in the list that the control plane sends to nodes.
const MAX: usize = 10_000;
/// Margin for certificates that were being signed at the moment of the revocation, and for clocks
/// that differ.
const MARGIN: Duration = Duration::from_secs(300);

/// The revoked memberships.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Revocations(pub BTreeMap<MembershipMark, Revocation>);

/// A revoked membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Revocation {
    /// Name of the node, for operators.
    pub node: String,
    /// When the entry can be dropped.
    pub until: SystemTime,
}

impl Revocations {
    /// Adds a membership that is invalid on all nodes after `longest_proof`, and drops those for
    /// which that is so by `now`.
    pub(crate) fn add(&mut self, mark: MembershipMark, node: &str, now: SystemTime, longest_proof: Duration) {
        self.0.retain(|_, revocation| now < revocation.until);
        while self.0.len() >= MAX {
            let first = self.0.iter().min_by_key(|(_, revocation)| revocation.until).map(|(mark, _)| *mark);
            let Some(dropped) = first.and_then(|first| self.0.remove(&first)) else { break };
            tracing::error!(
                node = dropped.node,
                "more than {MAX} revoked nodes have certificates that did not expire: nodes that start now take those of this one until they expire; to be safe, replace the authority (`leno ca rotate`)"
            );
        }
        self.0.insert(mark, Revocation { node: node.to_owned(), until: now + longest_proof + MARGIN });
    }

    /// The memberships.
    pub(crate) fn marks(&self) -> impl Iterator<Item = MembershipMark> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn mark(number: u64) -> MembershipMark {
        MembershipMark(number.to_be_bytes())
    }

    #[test]
    fn revocations_are_forgotten_when_nothing_counts_any_more_and_are_bounded() {
        let (mut revocations, name, begin) = (Revocations::default(), "one", SystemTime::UNIX_EPOCH);
        revocations.add(mark(1), name, begin, HOUR);
        revocations.add(mark(2), name, begin + HOUR, HOUR);
        assert_eq!(revocations.marks().collect::<Vec<_>>(), [mark(1), mark(2)], "clocks differ");
        revocations.add(mark(3), name, begin + HOUR + MARGIN, HOUR);
        assert_eq!(revocations.marks().collect::<Vec<_>>(), [mark(2), mark(3)]);

        for number in 4..=MAX as u64 + 3 {
            revocations.add(mark(number), name, begin + HOUR + MARGIN, HOUR);
        }
        assert_eq!(revocations.0.len(), MAX);
        assert!(!revocations.0.contains_key(&mark(2)), "it would have been forgotten first");
        assert!(revocations.0.contains_key(&mark(MAX as u64 + 3)));
    }
}
