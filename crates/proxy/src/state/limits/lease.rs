//! A node's share of a limit that the control plane divides between nodes.
//!
//! The nodes together never admit more than the limit. So a share's gain begins used up, because
//! the node that had it before may just have used it. Shares are valid only during a term, which
//! the control plane renews. When the term is over, they are void, even if the term is renewed
//! later: meanwhile the control plane may have given them to other nodes.

use super::{Terms, capacity};
use leno_policy::quota;
use leno_policy::quota::QuotaState;
use leno_policy::spec::QuotaAlgorithm;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The outcomes of requests against a limit on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that the limit admitted.
    pub admitted: u64,
    /// Requests that the limit refused.
    pub refused: u64,
}

/// The term during which this node's shares are valid.
#[derive(Debug)]
pub struct LeaseTerm {
    began: Instant,
    /// Microseconds since `began`; 0: no term has begun.
    until: AtomicU64,
    /// Shares are valid in the epoch in which they were delivered. The end of a term ends the
    /// epoch.
    epoch: AtomicU64,
    /// Whether the last term is over and has ended its epoch.
    over: Mutex<bool>,
}

impl Default for LeaseTerm {
    fn default() -> Self {
        Self { began: Instant::now(), until: AtomicU64::new(0), epoch: AtomicU64::new(0), over: Mutex::new(true) }
    }
}

impl LeaseTerm {
    /// The control plane has renewed the term, which now ends at `until`. Shares that were
    /// delivered before the end of an earlier term stay void.
    pub fn renew(&self, until: Instant, now: Instant) {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        self.end(&mut over, now);
        if until > now {
            self.until.fetch_max(self.micros(until), Ordering::AcqRel);
            *over = false;
        }
    }

    /// The epoch of shares that are delivered now.
    pub(super) fn deliver(&self, now: Instant) -> u64 {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        self.end(&mut over, now);
        self.epoch.load(Ordering::Acquire)
    }

    /// The epoch whose shares are valid; `None`: the term is over.
    pub(super) fn epoch(&self, now: Instant) -> Option<u64> {
        // In this order: a renewal ends the epoch before it moves the end of the term.
        let until = self.until.load(Ordering::Acquire);
        (self.micros(now) < until).then(|| self.epoch.load(Ordering::Acquire))
    }

    fn end(&self, over: &mut bool, now: Instant) {
        if !*over && self.micros(now) >= self.until.load(Ordering::Acquire) {
            self.epoch.fetch_add(1, Ordering::AcqRel);
            *over = true;
        }
    }

    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began) + Duration::from_micros(1);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The state of a [`Lease`] that another process of this node needs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Share {
    parts: u32,
    grown: Option<(u32, u64)>,
    algorithm: Option<QuotaAlgorithm>,
}

/// This node's share of one limit.
#[derive(Debug, Default)]
pub(super) struct Lease {
    parts: u32,
    epoch: u64,
    /// The share that counted as unused before it last grew, and when it grew. Another node may
    /// have used the gain until then.
    grown: Option<(u32, u64)>,
    /// The node may begin its first share as if nothing was used.
    full: bool,
    /// The algorithm of the whole limit when it was last counted.
    algorithm: Option<QuotaAlgorithm>,
    pub tally: Tally,
}

impl Lease {
    /// A limit of which no other node has ever had a share.
    pub(super) fn full() -> Self {
        Self { full: true, ..Self::default() }
    }

    /// The share of another process of this node.
    pub(super) fn of(Share { parts, grown, algorithm }: Share, epoch: u64) -> Self {
        Self { parts, epoch, grown, algorithm, ..Self::default() }
    }

    /// The share that is valid in this epoch.
    pub(super) fn share(&self, epoch: Option<u64>) -> Share {
        let parts = if epoch == Some(self.epoch) { self.parts } else { 0 };
        Share { parts, grown: self.grown, algorithm: self.algorithm }
    }

    /// Sets the share. Returns the algorithm of its counters from now on, and how many more
    /// requests a bucket holds.
    pub(super) fn set(&mut self, parts: u32, epoch: u64, now_ms: u64) -> Option<(QuotaAlgorithm, u32)> {
        // Another node may have used a void share.
        let before = if self.epoch == epoch { self.parts } else { 0 };
        (self.parts, self.epoch) = (parts, epoch);
        if std::mem::take(&mut self.full) {
            return None;
        }
        let known =
            self.grown.filter(|_| !self.has_settled(before, now_ms)).map_or(before, |(known, _)| known.min(before));
        if parts > before {
            self.grown = Some((known, now_ms));
        } else {
            self.grown = self.grown.map(|(_, at_ms)| (known.min(parts), at_ms));
        }
        let algorithm = self.algorithm?;
        let (old, new) = (quota::share(&algorithm, before), quota::share(&algorithm, parts));
        Some((new, capacity(&new).saturating_sub(capacity(&old))))
    }

    /// The terms of the counters now; they admit nothing if the term is over.
    pub(super) fn terms(&mut self, whole: &QuotaAlgorithm, epoch: Option<u64>, now_ms: u64) -> Terms {
        self.algorithm = Some(*whole);
        let parts = if epoch == Some(self.epoch) { self.parts } else { 0 };
        let algorithm = quota::share(whole, parts);
        let none = QuotaState::default();
        let Some((known, at_ms)) = self.grown.filter(|_| parts > 0) else { return Terms { algorithm, fresh: none } };
        match algorithm {
            QuotaAlgorithm::TokenBucket { burst, .. } => {
                let new = burst.saturating_sub(capacity(&quota::share(whole, known)));
                Terms { algorithm, fresh: QuotaState { used: u64::from(new) * 1000, at_ms } }
            }
            QuotaAlgorithm::FixedWindow { period_ms, .. } => {
                let window = now_ms - now_ms % period_ms.max(1);
                let parts = if at_ms >= window { known.min(parts) } else { parts };
                Terms { algorithm: quota::share(whole, parts), fresh: none }
            }
        }
    }

    /// Whether a new counter would have all of `parts` by now, although the share has grown.
    fn has_settled(&self, parts: u32, now_ms: u64) -> bool {
        let (Some((known, at_ms)), Some(whole)) = (self.grown, self.algorithm) else { return false };
        let share = quota::share(&whole, parts);
        match share {
            QuotaAlgorithm::TokenBucket { burst, .. } => {
                let new = burst.saturating_sub(capacity(&quota::share(&whole, known)));
                let state = QuotaState { used: u64::from(new) * 1000, at_ms };
                quota::take(&share, state, now_ms, 0).state.used == 0
            }
            QuotaAlgorithm::FixedWindow { period_ms, .. } => at_ms < now_ms - now_ms % period_ms.max(1),
        }
    }
}

#[cfg(test)]
mod tests;
