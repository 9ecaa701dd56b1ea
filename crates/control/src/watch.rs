//! The rollouts that are under way, and what nodes report of them.

use crate::history::{Candidate, Histories, History};
use crate::rollout::{self, RevisionCounts, Verdict};
use leno_config::FunctionId;
use leno_config::revision::Rollout;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Rollouts by function. What was observed lives in memory only: after a restart, a step is judged by what comes then.
#[derive(Debug, Default)]
pub(crate) struct Watches(BTreeMap<FunctionId, Watch>);

#[derive(Debug)]
struct Watch {
    /// Of whom.
    candidate: Candidate,
    stable: u32,
    /// In this step, on all nodes.
    seen: BTreeMap<u32, RevisionCounts>,
    /// What nodes reported last, since they began.
    last: BTreeMap<(Arc<str>, u32), RevisionCounts>,
}

impl Watches {
    /// Whether any is under way.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// After a change of everything.
    pub(crate) fn follow_all(&mut self, histories: &Histories) {
        self.0.retain(|id, _| histories.0.contains_key(id));
        histories.0.iter().for_each(|(id, history)| self.follow(id, history));
    }

    /// After a change of one. A step that is new begins without any request.
    pub(crate) fn follow(&mut self, id: &FunctionId, history: &History) {
        let Some(candidate) = history.candidate else {
            self.0.remove(id);
            return;
        };
        let stable = history.stable;
        let new = || Watch { candidate, stable, seen: BTreeMap::new(), last: BTreeMap::new() };
        let watch = self.0.entry(id.clone()).or_insert_with(new);
        if (watch.candidate, watch.stable) != (candidate, stable) {
            (watch.candidate, watch.stable) = (candidate, stable);
            watch.seen.clear();
        }
    }

    /// A node's counts since it began. Its first ones are where the difference starts: it sends them before it leads the first request to
    /// a revision.
    pub(crate) fn report(&mut self, node: &Arc<str>, id: &FunctionId, counts: &[(u32, RevisionCounts)]) {
        let Some(watch) = self.0.get_mut(id) else { return };
        for (revision, now) in counts {
            let Some(before) = watch.last.insert((node.clone(), *revision), *now) else { continue };
            let seen = watch.seen.entry(*revision).or_default();
            // Where there are fewer than before, the node was started again.
            let again = now.requests < before.requests || now.failed < before.failed || now.slow < before.slow;
            let before = if again { RevisionCounts::default() } else { before };
            seen.requests = seen.requests.saturating_add(now.requests - before.requests);
            seen.failed = seen.failed.saturating_add(now.failed - before.failed);
            seen.slow = seen.slow.saturating_add(now.slow - before.slow);
        }
    }

    /// Those for which there is something to decide.
    pub(crate) fn decisions<'a>(
        &self,
        now_ms: u64,
        rollout_of: impl Fn(&FunctionId) -> Option<&'a Rollout>,
    ) -> Vec<(FunctionId, Candidate, Verdict)> {
        let judge = |(id, watch): (&FunctionId, &Watch)| {
            let elapsed = Duration::from_millis(now_ms.saturating_sub(watch.candidate.since_ms));
            let seen = |revision| watch.seen.get(revision).copied().unwrap_or_default();
            let (new, before) = (seen(&watch.candidate.number), seen(&watch.stable));
            let verdict = rollout::judge(rollout_of(id)?, elapsed, &new, &before);
            (verdict != Verdict::Wait).then(|| (id.clone(), watch.candidate, verdict))
        };
        self.0.iter().filter_map(judge).collect()
    }
}
