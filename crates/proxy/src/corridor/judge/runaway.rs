//! Limits what programs and extensions cost others when they keep missing their deadlines.
//!
//! A run is not interrupted before its deadline. Until then its worker stands still, and fair scheduling ([`crate::runtime::schedule`])
//! goes on only afterwards. So a program that always loops would make every other function's requests wait for its deadline. Each function
//! therefore has a budget per worker, its *purse*. A missed deadline takes the time of the run from the purse. As time passes, one part in
//! [`SHARE`] of it fills the purse again. While the purse is empty, the function's program and extensions run with a short deadline, the
//! [`LEASH`], which is about as long as others' turns. Ordinary requests do not notice. Those that would have missed the deadline fail
//! sooner.

use crate::runtime::schedule::Class;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Deadline, in processor time, of a run whose function has an empty purse. Several times what the examples need, and no longer than
/// others' turns.
const LEASH: Duration = Duration::from_micros(250);
/// Size of a purse. A few deadlines missed by accident have no consequences.
const PURSE: Duration = Duration::from_millis(20);
/// One function's missed deadlines may cost one part in `SHARE` of a worker's time, so that other requests seldom meet them.
const SHARE: u32 = 200;
/// A run that is cut off sooner costs nothing: it is a turn like any other.
const LONG: Duration = Duration::from_micros(500);
/// When there are this many purses, the full ones are removed.
const MANY: usize = 64;

/// One worker's purses. A function without an entry has a full one.
#[derive(Debug, Default)]
pub(super) struct Runaways(RefCell<HashMap<Class, Purse>>);

#[derive(Clone, Copy, Debug)]
struct Purse {
    /// What was missing from the purse at `since`.
    spent: Duration,
    since: Instant,
}

impl Purse {
    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.since) / SHARE)
    }
}

impl Runaways {
    /// The deadline for a run of this function. `own` is its usual deadline.
    pub(super) fn deadline(&self, class: Class, own: Duration, now: Instant) -> Duration {
        if self.leashes(class, now) { own.min(LEASH) } else { own }
    }

    /// Whether this function's purse is empty.
    fn leashes(&self, class: Class, now: Instant) -> bool {
        let purses = self.0.borrow();
        // Usually no deadline is missed, and there are no entries.
        !purses.is_empty() && purses.get(&class).is_some_and(|purse| purse.spent(now) >= PURSE)
    }

    /// Takes `time` from the function's purse: a run of that length has missed its deadline.
    pub(super) fn lost(&self, class: Class, time: Duration, now: Instant) {
        if time < LONG {
            return;
        }
        let mut purses = self.0.borrow_mut();
        if purses.len() >= MANY {
            purses.retain(|_, purse| !purse.spent(now).is_zero());
        }
        let purse = purses.entry(class).or_insert(Purse { spent: Duration::ZERO, since: now });
        *purse = Purse { spent: purse.spent(now) + time, since: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_purse_fills_again() {
        let (runaways, begin) = (Runaways::default(), Instant::now());
        let class = Class::of("shop/runaway");
        let at = |ms| begin + Duration::from_millis(ms);
        for _ in 0..3 {
            runaways.lost(class, Duration::from_millis(5), begin);
        }
        assert!(!runaways.leashes(class, begin), "a few by accident");
        runaways.lost(class, Duration::from_millis(5), begin);
        assert!(runaways.leashes(class, begin));
        assert!(!runaways.leashes(Class::of("shop/other"), begin));
        assert!(!runaways.leashes(class, at(1)), "one is tried again");
        runaways.lost(class, Duration::from_millis(5), at(1));
        assert!(runaways.leashes(class, at(999)), "but one in a second at most");
        assert!(!runaways.leashes(class, at(1001)));
    }

    #[test]
    fn short_runs_and_long_memories_cost_nothing() {
        let (runaways, begin) = (Runaways::default(), Instant::now());
        for number in 0..10_000 {
            let class = Class::of(&format!("shop/{number}"));
            for _ in 0..10 {
                runaways.lost(class, Duration::from_micros(50), begin);
            }
            assert!(!runaways.leashes(class, begin));
            runaways.lost(class, Duration::from_millis(1), begin + Duration::from_secs(number));
        }
        assert!(runaways.0.borrow().len() <= MANY);
    }
}
