//! The node's allowances: the parts of a store's counters that it holds.
//!
//! A node never uses more than it holds, and holds nothing after its term. It reports its use with
//! its next question. So the store knows at any moment how much can have been used at most.

use super::counters::{MOST_COUNTERS, MOST_KEY_BYTES};
use super::store::{Answer, Arrival, Question};
use super::{CounterState, capacity};
use hashbrown::HashTable;
use leno_policy::quota::QuotaState;
use leno_policy::quota::TakeResult;
use leno_policy::spec::QuotaAlgorithm;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// An allowance that has not been used for so long goes back to the store.
const IDLE: Duration = Duration::from_millis(500);
/// If two questions are closer together than this, the node asks for more at once.
const BUSY: Duration = Duration::from_secs(1);
/// Requests that the node asks for ahead, at most.
const MOST_AHEAD: u32 = 1 << 16;
/// Bounds of the pause after a refusal by the store. The upper bound is short because other nodes
/// give allowances back at unforeseen times.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// The allowances of one limit that are in one shard.
#[derive(Debug)]
pub(super) struct Allowances {
    pub limit: Box<str>,
    table: HashTable<Allowance>,
    key_bytes: usize,
}

/// The node's part of one counter.
#[derive(Debug)]
pub(super) struct Allowance {
    key: Box<str>,
    algorithm: QuotaAlgorithm,
    held: u32,
    until: Instant,
    /// From then on, the node asks for another term.
    renew_at: Instant,
    /// The store has nothing left until then.
    refused_until: Option<Instant>,
    used_at: Instant,
    asked_at: Option<Instant>,
    /// How much the node asks for ahead.
    ahead: u32,
    /// Requests used since the question in flight was sent; `None`: no question is in flight.
    asking: Option<u32>,
    /// The store counts a part as held by this node.
    reserved: bool,
    waiting: Vec<(u32, oneshot::Sender<()>)>,
    answer: Answer,
    answered_ms: u64,
}

/// The result of an attempt to take.
#[derive(Debug)]
pub(super) enum Attempt {
    Taken,
    /// The store has nothing left, as far as the node knows.
    Exhausted,
    /// The node holds too little.
    Lacking,
}

impl Allowances {
    pub(super) fn new(limit: &str) -> Self {
        Self { limit: limit.into(), table: HashTable::new(), key_bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn find(&self, hash: u64, key: &str) -> Option<&Allowance> {
        self.table.find(hash, |allowance| *allowance.key == *key)
    }

    pub(super) fn find_mut(&mut self, hash: u64, key: &str) -> Option<&mut Allowance> {
        self.table.find_mut(hash, |allowance| *allowance.key == *key)
    }

    /// The allowance of this key, a new one if there is none. `None`: there are too many.
    pub(super) fn get(
        &mut self,
        hash: u64,
        key: &str,
        algorithm: &QuotaAlgorithm,
        now: Instant,
        hasher: &RandomState,
    ) -> Option<&mut Allowance> {
        if self.find(hash, key).is_none() {
            if self.table.len() >= MOST_COUNTERS || self.key_bytes + key.len() > MOST_KEY_BYTES {
                return None;
            }
            self.key_bytes += key.len();
            let limit = &*self.limit;
            let new = Allowance::new(key, *algorithm, now);
            self.table.insert_unique(hash, new, |other| hasher.hash_one((limit, &*other.key)));
        }
        self.find_mut(hash, key)
    }

    /// Drops idle allowances, and calls `ask` with the keys of those that must be given back or
    /// renewed.
    pub(super) fn sweep(&mut self, now: Instant, mut ask: impl FnMut(&str) -> bool) {
        let key_bytes = &mut self.key_bytes;
        self.table.retain(|allowance| {
            allowance.expire(now);
            if allowance.is_due(now) && ask(&allowance.key) {
                allowance.asking = Some(0);
            }
            let keep = !allowance.is_over(now);
            if !keep {
                *key_bytes -= allowance.key.len();
            }
            keep
        });
    }
}

impl Allowance {
    fn new(key: &str, algorithm: QuotaAlgorithm, now: Instant) -> Self {
        Self {
            key: key.into(),
            algorithm,
            held: 0,
            until: now,
            renew_at: now,
            refused_until: None,
            used_at: now,
            asked_at: None,
            ahead: 0,
            asking: None,
            reserved: false,
            waiting: Vec::new(),
            answer: Answer::default(),
            answered_ms: 0,
        }
    }

    pub(super) fn take(&mut self, algorithm: &QuotaAlgorithm, cost: u32, now: Instant) -> Attempt {
        self.algorithm = *algorithm;
        self.used_at = now;
        self.expire(now);
        if self.held >= cost {
            self.held -= cost;
            if let Some(used) = &mut self.asking {
                *used = used.saturating_add(cost);
            }
            return Attempt::Taken;
        }
        match self.refused_until {
            Some(until) if now < until => Attempt::Exhausted,
            _ => Attempt::Lacking,
        }
    }

    /// Undoes [`Allowance::take`], under the same lock.
    pub(super) fn put_back(&mut self, cost: u32) {
        self.held += cost;
        if let Some(used) = &mut self.asking {
            *used -= cost;
        }
    }

    /// Whether to ask for more now, so that no request has to wait for it.
    pub(super) fn runs_low(&self, now: Instant) -> bool {
        self.asking.is_none()
            && self.ahead > 0
            && self.held <= self.ahead / 2
            && self.refused_until.is_none_or(|until| now >= until)
    }

    /// Marks a question about the counter as in flight. Returns whether there was none.
    pub(super) fn begin_to_ask(&mut self) -> bool {
        let begins = self.asking.is_none();
        self.asking.get_or_insert(0);
        begins
    }

    /// Undoes [`Allowance::begin_to_ask`], because the receiver of questions is gone.
    pub(super) fn cannot_ask(&mut self) {
        self.asking = None;
    }

    /// The returned receiver wakes when an answer has arrived, or when none is to be expected.
    pub(super) fn wait(&mut self, cost: u32) -> oneshot::Receiver<()> {
        let (waiter, woken) = oneshot::channel();
        self.waiting.retain(|(_, waiter)| !waiter.is_closed());
        self.waiting.push((cost, waiter));
        woken
    }

    /// The question to send now. The node gives up the returned part at once, whether or not the
    /// question arrives.
    pub(super) fn question(&mut self, now: Instant) -> Question {
        self.expire(now);
        self.waiting.retain(|(_, waiter)| !waiter.is_closed());
        let waiting = self.waiting.iter().fold(0_u32, |sum, (cost, _)| sum.saturating_add(*cost));
        let unused = self.held;
        let idle = self.waiting.is_empty() && now.saturating_duration_since(self.used_at) >= IDLE;
        let recently = self.asked_at.is_some_and(|asked| now.saturating_duration_since(asked) < BUSY);
        self.ahead = match (idle, recently) {
            (true, _) => 0,
            (false, true) => (self.ahead.max(1) * 2).min(MOST_AHEAD),
            (false, false) => self.ahead / 2,
        };
        self.held = if idle { 0 } else { unused };
        self.asked_at = (!idle).then_some(now).or(self.asked_at);
        self.asking = Some(0);
        let (need, extra) = (waiting.saturating_sub(self.held), self.ahead.saturating_sub(self.held));
        Question { algorithm: self.algorithm, unused, keep: self.held, need, extra }
    }

    /// Applies an answer.
    pub(super) fn answered(&mut self, answer: Answer, Arrival { sent, now, now_ms }: Arrival) {
        let used = self.asking.take().unwrap_or_default();
        self.held = answer.held.saturating_sub(used);
        self.until = sent + answer.counts;
        self.renew_at = sent + answer.counts / 2;
        self.reserved = answer.held > 0;
        let needed = self.waiting.iter().fold(0_u32, |sum, (cost, _)| sum.saturating_add(*cost));
        let exhausted = answer.left == 0 && (self.held == 0 || self.held < needed);
        self.refused_until = exhausted.then(|| now + answer.again.clamp(LEAST_PAUSE, MOST_PAUSE));
        (self.answer, self.answered_ms) = (answer, now_ms);
        self.waiting.clear();
    }

    /// Ends a question without an answer. The held part stays valid until its term is over.
    pub(super) fn failed(&mut self) {
        self.asking = None;
        self.reserved &= self.held > 0;
        self.waiting.clear();
    }

    /// The result for a request, with the rest of the counter.
    pub(super) fn taken(&self, allowed: bool, now: Instant) -> TakeResult {
        let again = self.refused_until.map_or(MOST_PAUSE, |until| until.saturating_duration_since(now));
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        TakeResult {
            state: QuotaState::default(),
            allowed,
            remaining: if allowed { self.held.saturating_add(self.answer.left) } else { 0 },
            limit: capacity(&self.algorithm),
            retry_after_ms: if allowed { 0 } else { millis(again.max(self.answer.again)).max(1) },
            reset_ms: millis(self.answer.reset),
        }
    }

    pub(super) fn shared(&self) -> bool {
        self.answer.shared
    }

    /// An estimate for the program. It leaves at least one request, because the allowance makes the
    /// final decision, and the program does not know of parts that other nodes give back.
    pub(super) fn read(&self) -> CounterState {
        let all = capacity(&self.algorithm);
        let left = self.held.saturating_add(self.answer.left).clamp(1, all.max(1));
        let used = u64::from(all.saturating_sub(left));
        let state = match self.algorithm {
            QuotaAlgorithm::TokenBucket { .. } => QuotaState { used: used * 1000, at_ms: self.answered_ms },
            QuotaAlgorithm::FixedWindow { period_ms, .. } => {
                QuotaState { used, at_ms: self.answered_ms - self.answered_ms % period_ms.max(1) }
            }
        };
        CounterState { state, shared: self.answer.shared }
    }

    fn expire(&mut self, now: Instant) {
        if now >= self.until {
            // At the end of the term, the store counts the held part as used.
            (self.held, self.reserved) = (0, false);
        }
    }

    /// Whether the allowance has a part to give back, or to renew.
    fn is_due(&self, now: Instant) -> bool {
        if self.asking.is_some() || !self.reserved {
            return false;
        }
        let idle = now.saturating_duration_since(self.used_at) >= IDLE;
        idle || (self.held > 0 && now >= self.renew_at)
    }

    /// Whether a new allowance would be the same.
    fn is_over(&self, now: Instant) -> bool {
        self.asking.is_none()
            && !self.reserved
            && self.held == 0
            && self.waiting.is_empty()
            && now.saturating_duration_since(self.used_at) >= IDLE
            && self.refused_until.is_none_or(|until| now >= until)
    }
}

#[cfg(test)]
mod tests;
