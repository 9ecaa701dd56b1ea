//! Programs and extensions that run into their deadline, again and again: on a leash.
//!
//! A run is not interrupted before its deadline: until then its worker stands still, and fairness between functions ([`crate::runtime::schedule`])
//! begins only afterwards. What loops each time would thus make every other function's requests wait for its deadline. So each function
//! has a purse per worker. What its missed deadlines cost is taken from it, and it fills again at one [`SHARE`] of the time. While it is empty,
//! the function's program and extensions run with a deadline as short as others' turns ([`LEASH`]). Ordinary requests do not feel that; those
//! that would have missed the deadline fail sooner.

use crate::runtime::schedule::Class;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Processor time of a run of somebody whose purse is empty: several times what the examples need, and no more than others' turns take.
const LEASH: Duration = Duration::from_micros(250);
/// What a purse holds: a few deadlines missed by accident cost nobody a request.
const PURSE: Duration = Duration::from_millis(20);
/// One part in so many of a worker's time may be lost to one function's missed deadlines: so seldom do others' requests meet them.
const SHARE: u32 = 200;
/// A run that is cut off sooner is a turn like any other.
const LONG: Duration = Duration::from_micros(500);
/// Purses that are kept before those are looked for that are full.
const MANY: usize = 64;

/// One worker's view of who runs away.
#[derive(Debug, Default)]
pub(super) struct Runaways(RefCell<HashMap<Class, Purse>>);

#[derive(Clone, Copy, Debug)]
struct Purse {
    /// Missing from it at that time.
    spent: Duration,
    since: Instant,
}

impl Purse {
    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.since) / SHARE)
    }
}

impl Runaways {
    /// The deadline of a run of this function.
    pub(super) fn deadline(&self, class: Class, own: Duration, now: Instant) -> Duration {
        if self.leashes(class, now) { own.min(LEASH) } else { own }
    }

    /// Whether this function's purse is empty.
    fn leashes(&self, class: Class, now: Instant) -> bool {
        let purses = self.0.borrow();
        // Of an ordinary node, all are full.
        !purses.is_empty() && purses.get(&class).is_some_and(|purse| purse.spent(now) >= PURSE)
    }

    /// One of this function's runs has missed its deadline, after so much time.
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
