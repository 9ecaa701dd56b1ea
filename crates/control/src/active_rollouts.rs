//! Active rollouts, and the request counts that nodes report for them.

use crate::history::{Candidate, Histories, History};
use crate::rollout::{self, Verdict};
use leno_model::FunctionId;
use leno_model::revision::Rollout;
use leno_wire::RevisionCounts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Active rollouts by function. Counts live in memory only: after a restart, a step is judged by
/// the requests after it.
#[derive(Debug, Default)]
pub(crate) struct ActiveRollouts(BTreeMap<FunctionId, ActiveRollout>);

#[derive(Debug)]
struct ActiveRollout {
    candidate: Candidate,
    stable: u32,
    /// Requests in this step on all nodes, by revision.
    seen: BTreeMap<u32, RevisionCounts>,
    /// The last cumulative counts of each node and revision.
    last: BTreeMap<(Arc<str>, u32), RevisionCounts>,
}

impl ActiveRollouts {
    /// Whether a rollout is under way.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Updates the rollouts after a publication.
    pub(crate) fn follow_all(&mut self, histories: &Histories) {
        self.0.retain(|id, _| histories.0.contains_key(id));
        histories.0.iter().for_each(|(id, history)| self.follow(id, history));
    }

    /// Updates the rollout of one function. The counts of a new step begin at zero.
    pub(crate) fn follow(&mut self, id: &FunctionId, history: &History) {
        let Some(candidate) = history.candidate else {
            self.0.remove(id);
            return;
        };
        let stable = history.stable;
        let new = || ActiveRollout { candidate, stable, seen: BTreeMap::new(), last: BTreeMap::new() };
        let active = self.0.entry(id.clone()).or_insert_with(new);
        if (active.candidate, active.stable) != (candidate, stable) {
            (active.candidate, active.stable) = (candidate, stable);
            active.seen.clear();
        }
    }

    /// Ends the rollout of a function that is gone.
    pub(crate) fn forget(&mut self, id: &FunctionId) {
        self.0.remove(id);
    }

    /// Adds a node's cumulative counts. A node's first counts are only the baseline: it sends them
    /// before it routes the first request to a revision.
    pub(crate) fn report(&mut self, node: &Arc<str>, id: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        let Some(active) = self.0.get_mut(id) else { return };
        for (revision, now) in counts {
            let Some(before) = active.last.insert((node.clone(), *revision), *now) else { continue };
            let seen = active.seen.entry(*revision).or_default();
            // A restart of the node resets its counts.
            let again = now.requests < before.requests || now.failed < before.failed || now.slow < before.slow;
            let before = if again { RevisionCounts::default() } else { before };
            seen.requests = seen.requests.saturating_add(now.requests - before.requests);
            seen.failed = seen.failed.saturating_add(now.failed - before.failed);
            seen.slow = seen.slow.saturating_add(now.slow - before.slow);
        }
    }

    /// Rollouts that have a decision due.
    pub(crate) fn decisions<'a>(
        &self,
        now_ms: u64,
        rollout_of: impl Fn(&FunctionId) -> Option<&'a Rollout>,
    ) -> Vec<(FunctionId, Candidate, Verdict)> {
        let judge = |(id, active): (&FunctionId, &ActiveRollout)| {
            let elapsed = Duration::from_millis(now_ms.saturating_sub(active.candidate.since_ms));
            let seen = |revision| active.seen.get(revision).copied().unwrap_or_default();
            let (new, before) = (seen(&active.candidate.number), seen(&active.stable));
            let verdict = rollout::judge(rollout_of(id)?, elapsed, &new, &before);
            (verdict != Verdict::Wait).then(|| (id.clone(), active.candidate, verdict))
        };
        self.0.iter().filter_map(judge).collect()
    }
}
