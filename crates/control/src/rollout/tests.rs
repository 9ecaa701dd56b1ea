use super::*;
use leno_model::revision::Latency;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn rollout() -> Rollout {
    Rollout {
        steps: vec![5, 25, 50],
        interval: 60 * SECOND,
        max_error_rate: 0.05,
        latency: Some(Latency { limit: SECOND / 2, slow_share: 0.01 }),
        min_requests: 20,
    }
}

fn counts(requests: u64, failed: u64, slow: u64) -> RevisionCounts {
    RevisionCounts { requests, failed, slow }
}

#[test]
fn a_step_needs_its_time_and_its_requests() {
    let good = counts(1000, 0, 0);
    for (elapsed, new, verdict) in [
        (59, counts(1000, 50, 10), Verdict::Wait),
        (60, counts(1000, 50, 10), Verdict::Advance),
        (6000, counts(19, 0, 0), Verdict::Wait),
        (60, counts(20, 0, 0), Verdict::Advance),
    ] {
        assert_eq!(judge(&rollout(), elapsed * SECOND, &new, &good), verdict, "{elapsed} {new:?}");
    }
    let by_time = Rollout { min_requests: 0, ..rollout() };
    assert_eq!(judge(&by_time, 60 * SECOND, &counts(0, 0, 0), &counts(0, 0, 0)), Verdict::Advance);
}

#[test]
fn what_is_worse_is_rolled_back_at_once_and_what_is_as_bad_is_not() {
    let verdict = |new, before| judge(&rollout(), SECOND, &new, &before);
    let back = |verdict| matches!(verdict, Verdict::RollBack(_));
    assert!(back(verdict(counts(20, 2, 0), counts(400, 0, 0))));
    assert!(!back(verdict(counts(20, 1, 0), counts(400, 0, 0))), "one of twenty is not more than 5 %");
    assert!(!back(verdict(counts(19, 19, 0), counts(400, 0, 0))), "too few to tell");
    assert!(!back(verdict(counts(20, 12, 0), counts(400, 230, 0))), "a dependency is broken for both");
    assert!(back(verdict(counts(20, 20, 0), counts(400, 230, 0))), "but not like that");
    assert!(back(verdict(counts(20, 12, 0), counts(19, 19, 0))), "too few to be an excuse");
    assert!(back(verdict(counts(100, 0, 2), counts(400, 0, 4))));
    assert!(!back(verdict(counts(100, 0, 1), counts(400, 0, 0))), "the 99th percentile is within the limit");
    assert!(!back(verdict(counts(100, 0, 2), counts(400, 0, 8))), "no slower than the old one");
    let patient = Rollout { latency: None, ..rollout() };
    assert_eq!(judge(&patient, SECOND, &counts(100, 0, 100), &counts(100, 0, 0)), Verdict::Wait);
    let Verdict::RollBack(reason) = verdict(counts(30, 3, 0), counts(400, 4, 0)) else { panic!("it goes on") };
    assert_eq!(reason.to_string(), "10.0 % of 30 requests failed, and 1.0 % with the revision before it");
}

/// Simulates a service whose rollout is judged every second, with failures at these rates, from a
/// fixed seed. Returns the number of steps to the end, or the second of the rollback.
fn simulate(new_rate: f64, old_rate: f64, per_second: u64, seed: u64) -> Result<usize, u64> {
    let rollout = rollout();
    let mut random = seed;
    let mut draw = || {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let (mut step, mut began) = (0, 0);
    let (mut new, mut old) = (RevisionCounts::default(), RevisionCounts::default());
    for second in 1..=3600 {
        for _ in 0..per_second {
            let to_new = draw() * 100.0 < f64::from(rollout.steps[step]);
            let (counts, rate) = if to_new { (&mut new, new_rate) } else { (&mut old, old_rate) };
            counts.requests += 1;
            counts.failed += u64::from(draw() < rate);
        }
        match judge(&rollout, SECOND * (second - began), &new, &old) {
            Verdict::Wait => {}
            Verdict::RollBack(_) => return Err(second.into()),
            Verdict::Advance => {
                (step, began, new, old) = (step + 1, second, counts(0, 0, 0), counts(0, 0, 0));
                if step == rollout.steps.len() {
                    return Ok(step);
                }
            }
        }
    }
    Ok(step)
}

#[test]
fn simulated_services_end_as_they_should() {
    for seed in 1..=10 {
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed) | 1;
        assert_eq!(simulate(0.0, 0.0, 50, seed), Ok(3), "a good one gets through");
        let bad = simulate(0.5, 0.0, 50, seed).expect_err("a bad one does not");
        assert!(bad <= 30, "it was rolled back after {bad} s");
        let broken = simulate(1.0, 0.01, 50, seed).expect_err("a broken one does not");
        assert!(broken <= 20, "it was rolled back after {broken} s");
        assert_eq!(simulate(1.0, 1.0, 50, seed), Ok(3), "nothing is better for going back");
        assert_eq!(simulate(0.0, 1.0, 50, seed), Ok(3), "what repairs something gets through");
        assert_eq!(simulate(0.0, 0.0, 0, seed), Ok(0), "nobody asked");
    }
}

proptest! {
    /// More failures or slow requests of the new revision never make the verdict better, and of the
    /// old one never worse.
    #[test]
    fn verdicts_are_monotonic(
        elapsed in 0..120u32,
        requests in 0..200u64, failed in 0..200u64, slow in 0..200u64,
        old_requests in 0..200u64, old_failed in 0..200u64, old_slow in 0..200u64,
    ) {
        let new = counts(requests, failed.min(requests), slow.min(requests));
        let old = counts(old_requests, old_failed.min(old_requests), old_slow.min(old_requests));
        let rolled_back = |new: &RevisionCounts, old: &RevisionCounts| {
            matches!(judge(&rollout(), SECOND * elapsed, new, old), Verdict::RollBack(_))
        };
        if rolled_back(&new, &old) {
            prop_assert!(new.requests >= 20 && new.failed + new.slow > 0);
            let worse = counts(requests, (new.failed + 1).min(requests), (new.slow + 1).min(requests));
            prop_assert!(rolled_back(&worse, &old));
        } else {
            let worse_before = counts(old_requests, (old.failed + 1).min(old_requests), (old.slow + 1).min(old_requests));
            prop_assert!(!rolled_back(&new, &worse_before));
        }
    }
}
