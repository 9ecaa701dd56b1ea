//! Limits the time that programs and extensions take from others when they keep missing their
//! deadlines.
//!
//! A run is not interrupted before its deadline. Until then its worker stands still, and fair
//! scheduling ([`leno_runtime::schedule`]) goes on only afterwards. So a program that always loops
//! would make every other function's requests wait for its deadline. Each function therefore has a
//! budget per worker. A missed deadline takes the time of the run from the budget. As time passes,
//! one part in [`SHARE`] of it refills the budget. While the budget is exhausted, the function's
//! program and extensions run with the [`SHORT_DEADLINE`], which is about as long as others' turns.
//! Ordinary requests do not notice. Those that would have missed the deadline fail sooner.
//!
//! Any client can forge a token that takes long to read. So runs for a token whose signature is not
//! verified yet have another budget. Requests with known tokens, or without one, keep their
//! deadline while clients send forged tokens to the function.

use leno_runtime::schedule::Class;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Deadline, in processor time, of a run whose function has exhausted its budget. It is several
/// times the run time of the examples, and no longer than others' turns.
const SHORT_DEADLINE: Duration = Duration::from_micros(250);
/// Size of a budget. A few deadlines missed by accident have no consequences.
const BUDGET: Duration = Duration::from_millis(20);
/// One function's missed deadlines may cost one part in `SHARE` of a worker's time, so that other
/// requests seldom meet them.
const SHARE: u32 = 200;
/// A run that is cut off sooner costs nothing: it is a turn like any other.
const MIN_CHARGED: Duration = Duration::from_micros(500);
/// How often the sandbox checks a run with a longer deadline (`leno_sandbox`). A run may exceed its
/// deadline by this much.
const TICK: Duration = Duration::from_millis(2);
/// When there are this many budgets, the full ones are removed.
const PRUNE_AT: usize = 64;

/// One worker's budgets. An account without an entry has a full one.
#[derive(Debug, Default)]
pub(super) struct DeadlineBudgets(RefCell<HashMap<Account, Budget>>);

/// Identifies the budget that a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Account {
    /// The function.
    pub class: Class,
    /// The request has a token whose signature is not verified.
    pub is_unverified: bool,
}

impl From<Class> for Account {
    fn from(class: Class) -> Self {
        Self { class, is_unverified: false }
    }
}

#[derive(Clone, Copy, Debug)]
struct Budget {
    /// The used part of the budget at `since`.
    spent: Duration,
    since: Instant,
}

impl Budget {
    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.since) / SHARE)
    }
}

impl DeadlineBudgets {
    /// The deadline for a run. `own` is its usual deadline.
    pub(super) fn deadline(&self, account: impl Into<Account>, own: Duration, now: Instant) -> Duration {
        if self.is_exhausted(account.into(), now) { own.min(SHORT_DEADLINE) } else { own }
    }

    /// Whether this budget is exhausted.
    fn is_exhausted(&self, account: Account, now: Instant) -> bool {
        let budgets = self.0.borrow();
        // Usually no deadline is missed, and there are no entries.
        !budgets.is_empty() && budgets.get(&account).is_some_and(|budget| budget.spent(now) >= BUDGET)
    }

    /// Takes a run that has missed its deadline from its budget. `time` is the wall-clock time of
    /// the run. If that is more than a run can use, the kernel gave the processor to others
    /// meanwhile, and the function is not to blame.
    pub(super) fn charge(&self, account: impl Into<Account>, deadline: Duration, time: Duration, now: Instant) {
        let most = if deadline < TICK { deadline } else { deadline + TICK };
        let time = time.min(most);
        if time < MIN_CHARGED {
            return;
        }
        let mut budgets = self.0.borrow_mut();
        if budgets.len() >= PRUNE_AT {
            budgets.retain(|_, budget| !budget.spent(now).is_zero());
        }
        let budget = budgets.entry(account.into()).or_insert(Budget { spent: Duration::ZERO, since: now });
        *budget = Budget { spent: budget.spent(now) + time, since: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Duration = Duration::from_millis(10);

    #[test]
    fn an_exhausted_budget_refills() {
        let (budgets, begin) = (DeadlineBudgets::default(), Instant::now());
        let class = Class::of("shop/runaway");
        let at = |ms| begin + Duration::from_millis(ms);
        let charge = |now| budgets.charge(class, OWN, Duration::from_millis(5), now);
        for _ in 0..3 {
            charge(begin);
        }
        assert!(!budgets.is_exhausted(class.into(), begin), "a few by accident");
        charge(begin);
        assert!(budgets.is_exhausted(class.into(), begin));
        assert!(!budgets.is_exhausted(Class::of("shop/other").into(), begin));
        assert!(!budgets.is_exhausted(class.into(), at(1)), "one is tried again");
        charge(at(1));
        assert!(budgets.is_exhausted(class.into(), at(999)), "but one in a second at most");
        assert!(!budgets.is_exhausted(class.into(), at(1001)));
    }

    #[test]
    fn a_run_that_waited_for_the_processor_costs_what_it_can_have_used() {
        let (budgets, begin) = (DeadlineBudgets::default(), Instant::now());
        let class = Class::of("shop/unlucky");
        let (own, waited) = (Duration::from_millis(2), Duration::from_millis(57));
        for _ in 0..4 {
            budgets.charge(class, own, waited, begin);
            assert!(!budgets.is_exhausted(class.into(), begin));
        }
        budgets.charge(class, own, waited, begin);
        assert!(budgets.is_exhausted(class.into(), begin));
        let soon = begin + Duration::from_secs(1);
        assert!(!budgets.is_exhausted(class.into(), soon));
        budgets.charge(class, SHORT_DEADLINE, waited, soon);
        assert!(!budgets.is_exhausted(class.into(), soon), "a turn like any other");
    }

    #[test]
    fn short_runs_and_long_memories_cost_nothing() {
        let (budgets, begin) = (DeadlineBudgets::default(), Instant::now());
        for number in 0..10_000 {
            let class = Class::of(&format!("shop/{number}"));
            for _ in 0..10 {
                budgets.charge(class, OWN, Duration::from_micros(50), begin);
            }
            assert!(!budgets.is_exhausted(class.into(), begin));
            budgets.charge(class, OWN, Duration::from_millis(1), begin + Duration::from_secs(number));
        }
        assert!(budgets.0.borrow().len() <= PRUNE_AT);
    }

    #[test]
    fn forged_tokens_do_not_shorten_the_deadline_of_others() {
        let (budgets, now) = (DeadlineBudgets::default(), Instant::now());
        let class = Class::of("shop/orders");
        let forged = Account { class, is_unverified: true };
        for _ in 0..1000 {
            budgets.charge(forged, OWN, OWN, now);
        }
        assert_eq!(budgets.deadline(forged, OWN, now), SHORT_DEADLINE);
        assert_eq!(budgets.deadline(class, OWN, now), OWN);
    }
}
