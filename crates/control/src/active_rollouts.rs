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

#[derive(Debug, Default)]
struct ActiveRollout {
    /// The candidates, each with the stable revision that it replaces.
    candidates: Vec<(u32, Candidate)>,
    /// Candidates do not advance.
    paused: bool,
    /// Requests in the present step on all nodes, by revision.
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

    /// Updates the rollouts of one function. The counts of a new step begin at zero.
    pub(crate) fn follow(&mut self, id: &FunctionId, history: &History) {
        let candidates: Vec<(u32, Candidate)> = history.candidates().collect();
        if candidates.is_empty() {
            self.0.remove(id);
            return;
        }
        let active = self.0.entry(id.clone()).or_default();
        for (stable, candidate) in &candidates {
            if !active.candidates.contains(&(*stable, *candidate)) {
                active.seen.remove(stable);
                active.seen.remove(&candidate.number);
            }
        }
        (active.candidates, active.paused) = (candidates, history.paused);
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
        let judge = |(id, active): (&FunctionId, &ActiveRollout), (stable, candidate): &(u32, Candidate)| {
            let elapsed = Duration::from_millis(now_ms.saturating_sub(candidate.since_ms));
            let seen = |revision| active.seen.get(revision).copied().unwrap_or_default();
            let (new, before) = (seen(&candidate.number), seen(stable));
            let verdict = rollout::judge(rollout_of(id)?, elapsed, &new, &before);
            let waits = verdict == Verdict::Wait || verdict == Verdict::Advance && active.paused;
            (!waits).then(|| (id.clone(), *candidate, verdict))
        };
        let all = self.0.iter().flat_map(|(id, active)| active.candidates.iter().map(move |of| ((id, active), of)));
        all.filter_map(|(function, of)| judge(function, of)).collect()
    }
}
