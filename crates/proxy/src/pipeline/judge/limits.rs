//! Takes from the counters that a decision names.

use super::Evaluation;
use super::decision;
use crate::state::decisions::ValidDenial;
use crate::state::limits::{Demand, Grant, LimitRefusal};
use leno_http::edits::{self, BadOutput, Edit};
use leno_policy::outcome::{Denial, HeaderEdit, Take, Verdict};
use leno_policy::quota::{self, TakeResult};
use leno_telemetry::exchange::RateLimitCheck;

/// A refusal by an exhausted limit, and the header fields for the client.
pub(super) type LimitDenial = (ValidDenial, Vec<Edit>);

impl<'a> Evaluation<'a> {
    /// Takes from all counters, or from none. Returns the header fields for the client, or the
    /// refusal if one counter is exhausted. Waits only if a store keeps the counters and this node
    /// holds too small a part of one.
    pub(super) async fn take(
        &mut self,
        takes: &[Take],
        now_ms: u64,
    ) -> Result<Result<Vec<Edit>, LimitDenial>, BadOutput> {
        if takes.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let mut demands = self.demands(takes);
        let mut audited = None;
        let taken = loop {
            match self.state.limits.take_or_wait(&demands, now_ms).await {
                // An audited limit refuses no request.
                Err(refused) if demands.get(refused.index).is_some_and(|demand| demand.limit.audit) => {
                    let limit = demands.remove(refused.index).limit;
                    let denial = denial(&limit.name, &refused);
                    audited.get_or_insert(denial);
                }
                taken => break taken,
            }
        };
        match taken {
            Ok(granted) => {
                if let Some(denial) = audited {
                    self.runs.audit.get_or_insert_with(|| Verdict::Deny(denial).into());
                }
                let tightest = quota::tightest(granted.iter().map(|grant| grant.taken));
                self.record.note(|observed| {
                    let checks = demands.iter().zip(granted).map(|(demand, Grant { taken, shared })| RateLimitCheck {
                        limit: demand.limit.name.as_str().into(),
                        remaining: Some(taken.remaining),
                        shared,
                    });
                    observed.rate_limit_checks = checks.collect();
                });
                Ok(Ok(tightest.map_or_else(|| Ok(Vec::new()), |taken| fields(&taken))?))
            }
            Err(refused) => {
                let (demand, refused) = self.longest(&demands, refused, now_ms);
                let name = demand.map_or("", |demand| demand.limit.name.as_str());
                let check = RateLimitCheck { limit: name.into(), remaining: None, shared: refused.shared };
                self.record.note(|observed| observed.rate_limit_checks.push(check));
                Ok(Err((decision::refused(denial(name, &refused))?, fields(&refused.taken)?)))
            }
        }
    }

    /// The refusal by the limit that is exhausted for the longest time; `None`: none of them is.
    /// Takes nothing.
    pub(super) fn exhausted(&self, takes: &[Take], now_ms: u64) -> Result<Option<LimitDenial>, BadOutput> {
        let demands = self.demands(takes);
        let Some((demand, refused)) = self.exhausted_of(&demands, now_ms) else { return Ok(None) };
        Ok(Some((decision::refused(denial(&demand.limit.name, &refused))?, fields(&refused.taken)?)))
    }

    fn demands<'t>(&self, takes: &'t [Take]) -> Vec<Demand<'t>>
    where
        'a: 't,
    {
        let limits = &self.program.spec.rate_limits;
        let demand = |take: &'t Take| {
            Some(Demand { limit: limits.get(usize::from(take.limit))?, key: &take.key, cost: take.cost })
        };
        takes.iter().filter_map(demand).collect()
    }

    /// The counters refuse at the first that is exhausted. The client has to wait for the one that
    /// takes longest.
    fn longest<'d, 't>(
        &self,
        demands: &'d [Demand<'t>],
        refused: LimitRefusal,
        now_ms: u64,
    ) -> (Option<&'d Demand<'t>>, LimitRefusal) {
        let longer = |other: &(&Demand<'_>, LimitRefusal)| other.1.taken.retry_after_ms > refused.taken.retry_after_ms;
        match self.exhausted_of(demands, now_ms).filter(longer).filter(|_| refused.uncounted.is_none()) {
            Some((demand, longest)) => (Some(demand), longest),
            None => (demands.get(refused.index), refused),
        }
    }

    fn exhausted_of<'d, 't>(&self, demands: &'d [Demand<'t>], now_ms: u64) -> Option<(&'d Demand<'t>, LimitRefusal)> {
        let read = |(index, demand): (usize, &'d Demand<'t>)| {
            let held = self.state.limits.read(&demand.limit.name, demand.key);
            let taken = quota::take(&demand.limit.algorithm, held.state, now_ms, demand.cost);
            let refused = LimitRefusal { index, taken, shared: held.shared, uncounted: None };
            (!taken.allowed && !demand.limit.audit).then_some((demand, refused))
        };
        // Of several, the first.
        demands.iter().enumerate().rev().filter_map(read).max_by_key(|(_, refused)| refused.taken.retry_after_ms)
    }
}

fn fields(taken: &TakeResult) -> Result<Vec<Edit>, BadOutput> {
    let fields: Vec<HeaderEdit> = quota::limit_headers(taken).into();
    edits::check(fields)
}

/// The refusal of a counter.
fn denial(limit: &str, refused: &LimitRefusal) -> Denial {
    let mut denial = quota::exhausted(limit, &refused.taken);
    if let Some(reason) = refused.uncounted {
        denial.clause = reason.to_owned();
    }
    denial
}
