//! Decides whether a rollout advances, waits or is rolled back: a pure function of request counts
//! and time.

use leno_model::revision::Rollout;
use leno_wire::RevisionCounts;
use std::fmt;
use std::time::Duration;

/// What happens to the current step of a rollout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Stay in this step.
    Wait,
    /// Go to the next step, or finish after the last one.
    Advance,
    /// Return to the previous revision.
    RollBack(Reason),
}

/// Why a revision is rolled back. `share` is of the new revision's requests in the step, `before`
/// of the previous revision's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reason {
    Failures { share: f64, before: f64, requests: u64 },
    Slowness { share: f64, before: f64, requests: u64, limit: Duration },
}

/// Judges a step after `elapsed`, by the requests that the new and the previous revision got in it.
/// The previous revision's share counts only if it had enough requests. Otherwise it counts as 0,
/// so that an idle previous revision excuses no failures.
pub(crate) fn judge(rollout: &Rollout, elapsed: Duration, new: &RevisionCounts, before: &RevisionCounts) -> Verdict {
    if new.requests < rollout.min_requests {
        return Verdict::Wait;
    }
    let excuse = |count: u64| if before.requests < rollout.min_requests { 0.0 } else { share(count, before.requests) };
    let (failed, failed_before) = (share(new.failed, new.requests), excuse(before.failed));
    // A dependency that is broken for both revisions is no reason to prefer either.
    if failed - failed_before > rollout.max_error_rate {
        return Verdict::RollBack(Reason::Failures { share: failed, before: failed_before, requests: new.requests });
    }
    if let Some(latency) = rollout.latency {
        let (slow, slow_before) = (share(new.slow, new.requests), excuse(before.slow));
        if slow > latency.slow_share && slow > slow_before {
            return Verdict::RollBack(Reason::Slowness {
                share: slow,
                before: slow_before,
                requests: new.requests,
                limit: latency.limit,
            });
        }
    }
    if elapsed >= rollout.interval { Verdict::Advance } else { Verdict::Wait }
}

fn share(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { count as f64 / of as f64 }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Failures { share, before, requests } => write!(
                f,
                "{:.1} % of {requests} requests failed, and {:.1} % with the revision before it",
                share * 100.0,
                before * 100.0
            ),
            Self::Slowness { share, before, requests, limit } => write!(
                f,
                "{:.1} % of {requests} requests took longer than {limit:?}, and {:.1} % with the revision before it",
                share * 100.0,
                before * 100.0
            ),
        }
    }
}

#[cfg(test)]
mod tests;
