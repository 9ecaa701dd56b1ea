//! Functions that refuse nearly all of their requests, with the rule that refuses most.

use super::{Alert, Severity};
use leno_telemetry::metrics::{Edge, Metrics, RuleHits};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two samples, and their number: the window is three minutes.
const PERIOD: Duration = Duration::from_secs(15);
const SAMPLES: usize = 13;
/// A function with fewer requests in the window has no alert.
const LEAST_REQUESTS: u64 = 20;
/// The alert begins with so many refusals in a hundred requests.
const LEAST_PERCENT: u64 = 95;
/// Rules of one function that a sample has: those with the most refusals.
const MOST_RULES: usize = 16;

/// Samples of the requests and refusals of each function, oldest first.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<VecDeque<Sample>>);

struct Sample {
    at: Instant,
    functions: BTreeMap<String, Counts>,
}

/// Counts since the node started.
#[derive(Clone, Debug, Default)]
struct Counts {
    requests: u64,
    denied: u64,
    /// By policy and rule.
    rules: BTreeMap<(String, String), u64>,
}

impl Refusals {
    /// Takes a sample if it is due.
    pub(crate) fn sample(&self, metrics: &Metrics, now: Instant) {
        let is_due = self.samples().back().is_none_or(|last| now.duration_since(last.at) >= PERIOD);
        if is_due {
            self.take(Sample::of(metrics.edges(), metrics.rule_hits(), now));
        }
    }

    fn take(&self, sample: Sample) {
        let mut samples = self.samples();
        samples.push_back(sample);
        while samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    /// An alert for each function that refused nearly all of its requests in the window.
    pub(crate) fn alerts(&self) -> Vec<Alert> {
        let samples = self.samples();
        let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return Vec::new() };
        let nothing = Counts::default();
        let alert = |(function, counts): (&String, &Counts)| {
            let before = first.functions.get(function).unwrap_or(&nothing);
            alert(function, &counts.since(before))
        };
        last.functions.iter().filter_map(alert).collect()
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sample {
    fn of(edges: Vec<Edge>, hits: Vec<RuleHits>, at: Instant) -> Self {
        let mut functions: BTreeMap<String, Counts> = BTreeMap::new();
        for edge in edges.into_iter().filter(|edge| edge.direction != "outbound" && !edge.target.is_empty()) {
            let counts = functions.entry(edge.target).or_default();
            counts.requests += edge.requests;
            counts.denied += edge.denied;
        }
        for hit in hits.into_iter().filter(|hit| hit.direction == "inbound" && hit.verdict == "deny") {
            if let Some(counts) = functions.get_mut(&hit.function) {
                *counts.rules.entry((hit.policy, hit.rule)).or_default() += hit.requests;
            }
        }
        for counts in functions.values_mut().filter(|counts| counts.rules.len() > MOST_RULES) {
            let mut most: Vec<u64> = counts.rules.values().copied().collect();
            most.sort_unstable_by(|one, other| other.cmp(one));
            let least = most[MOST_RULES - 1];
            counts.rules.retain(|_, count| *count >= least);
        }
        Self { at, functions }
    }
}

impl Counts {
    fn since(&self, before: &Self) -> Self {
        let rules = self.rules.iter().map(|(rule, count)| {
            (rule.clone(), count.saturating_sub(before.rules.get(rule).copied().unwrap_or_default()))
        });
        Self {
            requests: self.requests.saturating_sub(before.requests),
            denied: self.denied.saturating_sub(before.denied),
            rules: rules.collect(),
        }
    }
}

fn alert(function: &str, counts: &Counts) -> Option<Alert> {
    let Counts { requests, denied, rules } = counts;
    if *requests < LEAST_REQUESTS || denied * 100 < requests * LEAST_PERCENT {
        return None;
    }
    let most = rules.iter().filter(|(_, count)| **count > 0).max_by_key(|(_, count)| **count);
    let (by, fix) = match most {
        Some(((policy, rule), count)) if rule.is_empty() => {
            (format!(", {count} by {policy}: no rule permits them"), fix(policy))
        }
        Some(((policy, rule), count)) => (format!(", {count} at `{rule}` ({policy})"), fix(policy)),
        None => (String::new(), fix("")),
    };
    let text = format!("it refused {denied} of {requests} requests in the last minutes{by}");
    let fix = format!("{fix}; `leno explain function {function}` shows its rules, `leno observe` the requests");
    Some(Alert::of(function, Severity::Warning, "refusing", text, &fix))
}

/// The remedy of refusals by a policy.
fn fix(policy: &str) -> &'static str {
    match policy {
        "authorization" => "permit these callers with a rule of the Policy, or end their requests",
        "authentication" => "have the callers send a valid token, or correct the issuer in the Policy",
        "rateLimits" => "raise the limit, or have the callers send less",
        "externalAuthorization" => "look at the log of the authorizer",
        "mutualTls" | "sidecar" => "have the callers call through their node, or permit their connections",
        "extensions" => "look at the extension that refuses them",
        _ => "look at the policies of the function",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample with these requests and refusals of `demo/shop`, by rule.
    fn sample(requests: u64, rules: &[(&str, u64)]) -> Sample {
        let denied = rules.iter().map(|(_, count)| count).sum();
        let target = "demo/shop".to_owned();
        let edge =
            Edge { direction: "inbound".to_owned(), target: target.clone(), requests, denied, ..Edge::default() };
        let outbound = Edge { direction: "outbound".to_owned(), requests: 1000, ..edge.clone() };
        let hit = |(rule, requests): &(&str, u64)| RuleHits {
            function: target.clone(),
            direction: "inbound".to_owned(),
            policy: "authorization".to_owned(),
            rule: (*rule).to_owned(),
            verdict: "deny".to_owned(),
            requests: *requests,
            ..RuleHits::default()
        };
        Sample::of(vec![edge, outbound], rules.iter().map(hit).collect(), Instant::now())
    }

    fn texts(samples: Vec<Sample>) -> Vec<String> {
        let refusals = Refusals::default();
        samples.into_iter().for_each(|sample| refusals.take(sample));
        refusals.alerts().into_iter().map(|alert| alert.text).collect()
    }

    #[test]
    fn a_function_that_refuses_nearly_all_is_told_with_the_rule_that_refuses_most() {
        let samples = vec![sample(1000, &[("own/old", 500)]), sample(1100, &[("own/old", 510), ("own/new", 87)])];
        assert_eq!(
            texts(samples),
            ["it refused 97 of 100 requests in the last minutes, 87 at `own/new` (authorization)"]
        );
        let without_rule = texts(vec![sample(0, &[]), sample(20, &[("", 20)])]);
        assert!(without_rule[0].ends_with("20 by authorization: no rule permits them"), "{without_rule:?}");
    }

    #[test]
    fn few_requests_a_tenth_that_passes_and_old_refusals_are_no_alert() {
        assert_eq!(texts(vec![sample(0, &[]), sample(19, &[("own/new", 19)])]), [""; 0]);
        assert_eq!(texts(vec![sample(0, &[]), sample(100, &[("own/new", 90)])]), [""; 0]);
        assert_eq!(texts(vec![sample(900, &[("own/new", 900)]), sample(950, &[("own/new", 900)])]), [""; 0]);
        // The window moves on.
        let mut samples = vec![sample(0, &[])];
        samples.extend((0..SAMPLES).map(|_| sample(100, &[("own/new", 100)])));
        assert_eq!(texts(samples), [""; 0]);
    }

    #[test]
    fn a_sample_has_the_rules_with_the_most_refusals() {
        let names: Vec<String> = (0..100).map(|number| format!("own/{number}")).collect();
        let rules: Vec<(&str, u64)> = names.iter().map(|name| &**name).zip(1..).collect();
        let sample = sample(10_000, &rules);
        let kept = &sample.functions["demo/shop"].rules;
        assert_eq!((kept.len(), kept.values().min()), (MOST_RULES, Some(&85)));
    }
}
