use super::*;
use crate::state::limits::{Demand, FunctionLimits};
use leno_policy::quota::PARTS;
use leno_policy::spec::{Counts, RateLimit};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NOW: u64 = 1_700_000_000_000;

fn limit(algorithm: QuotaAlgorithm) -> RateLimit {
    RateLimit {
        name: "l".into(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: Vec::new(),
        algorithm,
    }
}

fn bucket(requests: u32, burst: u32) -> RateLimit {
    limit(QuotaAlgorithm::TokenBucket { requests, period_ms: 60_000, burst })
}

fn window(requests: u32) -> RateLimit {
    limit(QuotaAlgorithm::FixedWindow { requests, period_ms: 60_000 })
}

fn shares(parts: u32) -> BTreeMap<Box<str>, u32> {
    BTreeMap::from([("l".into(), parts)])
}

fn all() -> BTreeSet<Box<str>> {
    BTreeSet::from(["l".into()])
}

/// Counters whose term is not over for an hour.
fn leased() -> FunctionLimits {
    let term: Arc<LeaseTerm> = Arc::default();
    let now = Instant::now();
    term.renew(now + Duration::from_secs(3600), now);
    let quotas = FunctionLimits::new(term);
    quotas.require_leases();
    quotas
}

fn admitted(quotas: &FunctionLimits, limit: &RateLimit, key: &str, tries: u32, now_ms: u64) -> u32 {
    (0..tries).map(|_| u32::from(quotas.take(&[Demand { limit, key, cost: 1 }], now_ms).is_ok())).sum()
}

#[test]
fn without_a_share_nothing_is_admitted_and_the_refusal_tells_why() {
    let (quotas, limit) = (leased(), bucket(60, 60));
    let refused = quotas.take(&[Demand { limit: &limit, key: "", cost: 1 }], NOW).unwrap_err();
    let denial = quota::exhausted("l", &refused.taken);
    assert_eq!((denial.status, denial.clause.as_str()), (429, "this node has no share of the limit"));
    assert_eq!(quotas.tallies()["l"], Tally { admitted: 0, refused: 1 });
}

#[test]
fn a_full_share_admits_its_part_of_the_burst_and_of_the_rate() {
    let (quotas, limit) = (leased(), bucket(60, 8));
    quotas.lease(&shares(PARTS / 4), &all(), NOW);
    assert_eq!(admitted(&quotas, &limit, "", 10, NOW), 2);
    assert_eq!(admitted(&quotas, &limit, "", 10, NOW + 3999), 0, "a quarter of one in a second is one in four");
    assert_eq!(admitted(&quotas, &limit, "", 10, NOW + 4000), 1);
    assert_eq!(quotas.tallies()["l"], Tally { admitted: 3, refused: 27 });
}

#[test]
fn what_a_share_gains_begins_used_for_old_counters_and_new_ones() {
    let (quotas, limit) = (leased(), bucket(60, 8));
    quotas.lease(&shares(PARTS / 4), &all(), NOW);
    assert_eq!(admitted(&quotas, &limit, "old", 1, NOW), 1);
    quotas.lease(&shares(PARTS), &BTreeSet::new(), NOW);
    assert_eq!(admitted(&quotas, &limit, "old", 10, NOW), 1, "what it had left");
    assert_eq!(admitted(&quotas, &limit, "new", 10, NOW), 2, "what a new counter had before");
    assert_eq!(admitted(&quotas, &limit, "other", 10, NOW + 6000), 8, "it has filled since");
}

#[test]
fn a_window_counts_by_the_smaller_share_until_it_is_over() {
    let (quotas, limit) = (leased(), window(8));
    let begin = NOW - NOW % 60_000;
    quotas.lease(&shares(PARTS / 4), &all(), begin);
    quotas.lease(&shares(PARTS), &BTreeSet::new(), begin + 1);
    assert_eq!(admitted(&quotas, &limit, "", 10, begin + 59_999), 2);
    assert_eq!(admitted(&quotas, &limit, "", 10, begin + 60_000), 8);
    quotas.lease(&shares(PARTS / 2), &BTreeSet::new(), begin + 120_000);
    assert_eq!(admitted(&quotas, &limit, "", 10, begin + 120_001), 4, "a loss counts at once");
}

#[test]
fn shares_whose_term_is_over_stay_void_until_they_are_delivered_again() {
    let term: Arc<LeaseTerm> = Arc::default();
    let (quotas, limit) = (FunctionLimits::new(term.clone()), bucket(60, 8));
    quotas.lease(&shares(PARTS), &all(), NOW);
    assert_eq!(admitted(&quotas, &limit, "", 1, NOW), 0, "no term has begun");
    let now = Instant::now();
    let hour = Duration::from_secs(3600);
    term.renew(now + hour, now);
    assert_eq!(admitted(&quotas, &limit, "", 1, NOW), 1);
    term.renew(now + 3 * hour, now + 2 * hour);
    assert_eq!(admitted(&quotas, &limit, "", 1, NOW), 0, "the term was over for an hour");
    quotas.lease(&shares(PARTS), &all(), NOW);
    assert_eq!(admitted(&quotas, &limit, "", 1, NOW), 0, "others may have used it");
    assert_eq!(admitted(&quotas, &limit, "", 10, NOW + 2000), 2);
}

/// Nodes with separate counters, and shares that move as the control plane moves them: first down,
/// then up.
struct Mesh {
    nodes: Vec<FunctionLimits>,
    parts: Vec<u32>,
}

impl Mesh {
    fn new(parts: &[u32], now_ms: u64) -> Self {
        let nodes: Vec<_> = parts.iter().map(|_| leased()).collect();
        nodes.iter().zip(parts).for_each(|(node, parts)| node.lease(&shares(*parts), &all(), now_ms));
        Self { nodes, parts: parts.to_vec() }
    }

    fn divide(&mut self, parts: &[u32], now_ms: u64) {
        assert!(parts.iter().sum::<u32>() <= PARTS);
        for grow in [false, true] {
            for ((node, had), parts) in self.nodes.iter().zip(&mut self.parts).zip(parts) {
                if (parts > had) == grow && parts != had {
                    node.lease(&shares(*parts), &BTreeSet::new(), now_ms);
                    *had = *parts;
                }
            }
        }
    }
}

fn by_weight(weights: &[u32]) -> Vec<u32> {
    let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>().max(1);
    weights.iter().map(|weight| u32::try_from(u64::from(PARTS) * u64::from(*weight) / all).unwrap()).collect()
}

fn steps() -> impl Strategy<Value = Vec<(u64, usize, u32, Option<Vec<u32>>)>> {
    let divided = prop::option::weighted(0.2, prop::collection::vec(0..10_u32, 4));
    prop::collection::vec((0..2000_u64, 0..4_usize, 0..12_u32, divided), 1..80)
}

proptest! {
    #[test]
    fn buckets_together_admit_no_more_than_one_bucket_in_any_time(steps in steps(), requests in 1..200_u32, burst in 1..50_u32) {
        let limit = bucket(requests, burst);
        let (mut now, mut mesh) = (NOW, Mesh::new(&by_weight(&[1; 4]), NOW));
        let mut log: Vec<(u64, u32)> = Vec::new();
        for (pause, node, tries, divided) in steps {
            now += pause;
            if let Some(weights) = divided {
                mesh.divide(&by_weight(&weights), now);
            }
            log.push((now, admitted(&mesh.nodes[node], &limit, "", tries, now)));
        }
        for (at, (from, _)) in log.iter().enumerate() {
            let mut sum = 0_u64;
            for (to, admitted) in &log[at..] {
                sum += u64::from(*admitted);
                let most = u64::from(burst) * 60_000 + u64::from(requests) * (to - from);
                prop_assert!(sum * 60_000 <= most, "{sum} in {} ms", to - from);
            }
        }
    }

    #[test]
    fn windows_together_admit_no_more_than_one_window(steps in steps(), requests in 1..200_u32) {
        let limit = window(requests);
        let (mut now, mut mesh) = (NOW, Mesh::new(&by_weight(&[1; 4]), NOW));
        let mut windows: BTreeMap<u64, u32> = BTreeMap::new();
        for (pause, node, tries, divided) in steps {
            now += pause * 10;
            if let Some(weights) = divided {
                mesh.divide(&by_weight(&weights), now);
            }
            *windows.entry(now / 60_000).or_default() += admitted(&mesh.nodes[node], &limit, "", tries, now);
        }
        prop_assert!(windows.values().all(|admitted| *admitted <= requests), "{windows:?}");
    }
}

/// Prints how much of a limit four nodes use under a load that moves between them, with shares that
/// follow the demand.
#[test]
fn skewed_load_never_gets_more_than_the_limit() {
    const SECONDS: u64 = 120;
    let limit = bucket(6000, 100);
    let mut mesh = Mesh::new(&by_weight(&[1; 4]), NOW);
    let mut total = 0_u64;
    let mut seen = [0_u64; 4];
    for tick in 0..SECONDS * 20 {
        let now = NOW + tick * 50;
        let hot = usize::from(tick >= SECONDS * 10);
        for (at, node) in mesh.nodes.iter().enumerate() {
            let tries = if at == hot { 10 } else { u32::from(tick % 20 == 0) };
            total += u64::from(admitted(node, &limit, "", tries, now));
        }
        if tick % 20 == 19 {
            let demand = |(node, seen): (&FunctionLimits, &mut u64)| {
                let Tally { admitted, refused } = node.tallies()["l"];
                let new = admitted + refused - *seen;
                *seen = admitted + refused;
                u32::try_from(new).unwrap().max(1)
            };
            let weights: Vec<u32> = mesh.nodes.iter().zip(&mut seen).map(demand).collect();
            mesh.divide(&by_weight(&weights), now);
        }
    }
    let most = 100 + 100 * SECONDS;
    println!("quota_used={:.4}", total as f64 / most as f64);
    assert!(total <= most, "{total} of {most}");
}
