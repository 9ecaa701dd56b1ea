use super::counters::{MOST_COUNTERS, MOST_KEY_BYTES, SHARED};
use super::*;
use leno_policy::spec::{Counts, QuotaAlgorithm};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

const NOW: u64 = 1_700_000_000_000;

fn bucket(name: &str, requests: u32, burst: u32) -> RateLimit {
    let algorithm = QuotaAlgorithm::TokenBucket { requests, period_ms: 60_000, burst };
    RateLimit {
        name: name.into(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: Vec::new(),
        algorithm,
    }
}

fn window(name: &str, requests: u32) -> RateLimit {
    let algorithm = QuotaAlgorithm::FixedWindow { requests, period_ms: 60_000 };
    RateLimit {
        name: name.into(),
        counts: Counts::Requests,
        only: None,
        from: vec![],
        except: vec![],
        audit: false,
        key: Vec::new(),
        algorithm,
    }
}

fn one<'a>(limit: &'a RateLimit, key: &'a str) -> Demand<'a> {
    Demand { limit, key, cost: 1 }
}

#[test]
fn counters_are_separate_by_limit_and_key() {
    let (quotas, limit, other) = (FunctionLimits::default(), window("a", 1), window("b", 1));
    let taken = quotas.take(&[one(&limit, "x")], NOW).unwrap();
    assert_eq!((taken.len(), taken[0].taken.limit, taken[0].taken.remaining), (1, 1, 0));
    assert!(quotas.take(&[one(&limit, "x")], NOW).is_err());
    assert!(quotas.take(&[one(&limit, "y")], NOW).is_ok());
    assert!(quotas.take(&[one(&other, "x")], NOW).is_ok());
    assert_eq!(quotas.len(), 3);
    assert_eq!(quotas.read("a", "x").state.used, 1);
    assert_eq!(quotas.read("a", "z"), CounterState::default());
}

#[test]
fn refuses_all_or_takes_all() {
    let quotas = FunctionLimits::default();
    let (wide, narrow) = (bucket("wide", 10, 10), window("narrow", 1));
    let both = [one(&wide, ""), one(&narrow, "")];
    assert!(quotas.take(&both, NOW).is_ok());
    let before = quotas.read("wide", "");
    let refused = quotas.take(&both, NOW).unwrap_err();
    assert_eq!(refused.index, 1);
    let taken = refused.taken;
    assert!(taken.limit == 1 && (1..=60_000).contains(&taken.retry_after_ms), "{taken:?}");
    assert_eq!(quotas.read("wide", ""), before, "given back");
    let fresh = [one(&wide, "new"), one(&narrow, "")];
    assert!(quotas.take(&fresh, NOW).is_err());
    assert_eq!(quotas.len(), 2, "and no trace of a counter that was made for it");
}

#[test]
fn the_same_counter_twice_counts_twice() {
    let (quotas, limit) = (FunctionLimits::default(), window("a", 3));
    assert!(quotas.take(&[one(&limit, ""), one(&limit, "")], NOW).is_ok());
    assert!(quotas.take(&[one(&limit, ""), one(&limit, "")], NOW).is_err());
    assert_eq!(quotas.read("a", "").state.used, 2);
}

#[test]
fn threads_cannot_both_take_the_last_one() {
    const THREADS: usize = 8;
    let quotas = FunctionLimits::default();
    let (limit, other) = (window("a", 100), bucket("b", 1, 1_000));
    let barrier = Barrier::new(THREADS);
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (quotas, limit, other, barrier) = (&quotas, &limit, &other, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    // Half of the threads name the counters in the opposite order.
                    let mut demands = [one(limit, ""), one(other, "")];
                    if thread % 2 == 0 {
                        demands.reverse();
                    }
                    (0..100).filter(|_| quotas.take(&demands, NOW).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 100);
    assert_eq!(quotas.read("b", "").state.used, 100_000, "whoever was refused by one gave the other back");
}

/// Takes once from each of many keys, more than a limit has counters. Returns how many requests
/// were admitted.
fn flood(quotas: &FunctionLimits, limit: &RateLimit, keys: usize) -> usize {
    (0..keys).filter(|number| quotas.take(&[one(limit, &format!("flood {number}"))], NOW).is_ok()).count()
}

#[test]
fn idle_counters_make_space_and_active_ones_stay() {
    let (quotas, limit) = (FunctionLimits::default(), window("a", 1));
    let admitted = flood(&quotas, &limit, 200_000);
    assert_eq!(quotas.len(), SHARDS * MOST_COUNTERS, "each new key has one until all shards are full");
    assert_eq!(admitted, SHARDS * (MOST_COUNTERS + SHARED), "and then each shared one admits what the limit says");
    let refused = quotas.take(&[one(&limit, "flood 0")], NOW).unwrap_err();
    assert!(!refused.shared && refused.taken.retry_after_ms > 0, "never washed away: {refused:?}");
    let later = NOW + 60_000;
    assert!(quotas.take(&[one(&limit, "one more")], later).is_ok(), "their windows are over");
    assert!(quotas.len() <= (SHARDS - 1) * MOST_COUNTERS + 1);
    assert!(!quotas.read("a", "one more").shared);
}

#[test]
fn a_limit_without_capacity_leaves_the_others_alone() {
    let (quotas, full, other) = (FunctionLimits::default(), bucket("full", 1, 1), bucket("other", 1, 1));
    flood(&quotas, &full, 200_000);
    let admitted = (0..1_000).filter(|number| quotas.take(&[one(&other, &number.to_string())], NOW).is_ok()).count();
    assert_eq!(admitted, 1_000);
    assert_eq!(quotas.by_limit()["other"], 1_000);
    assert_eq!(quotas.by_limit()["full"], SHARDS * MOST_COUNTERS);
}

#[test]
fn keys_without_space_share_what_the_limit_says_and_are_told_when_to_return() {
    let (quotas, limit) = (FunctionLimits::default(), bucket("a", 6, 3));
    // Twice, so that the counters are not full again before this test ends.
    flood(&quotas, &limit, 200_000);
    flood(&quotas, &limit, 200_000);
    // The shared counter of "late" is used up. It regains one request every ten seconds.
    let refused = quotas.take(&[one(&limit, "late")], NOW).unwrap_err();
    assert!(refused.shared && (9_000..=10_000).contains(&refused.taken.retry_after_ms), "{refused:?}");
    assert!(quotas.read("a", "late").shared);
    let back = NOW + refused.taken.retry_after_ms;
    let granted = quotas.take(&[one(&limit, "late")], back).unwrap();
    assert!(granted[0].shared, "{granted:?}");
    assert!(quotas.take(&[one(&limit, "late")], back).is_err(), "no more than was refilled");
}

#[test]
fn no_key_gets_more_by_moving_from_a_shared_counter_to_its_own() {
    let (quotas, limit) = (FunctionLimits::default(), bucket("a", 6, 2));
    let keys: Vec<String> = (0..SHARDS * MOST_COUNTERS * 2).map(|number| number.to_string()).collect();
    keys.iter().for_each(|key| drop(quotas.take(&[one(&limit, key)], NOW)));
    // The shared counter of "late" has nothing left.
    assert!(quotas.take(&[one(&limit, "late")], NOW).is_err());
    // The counters of the other keys admitted one request each, and are full again after ten
    // seconds. Shared ones have regained one of two.
    let later = NOW + 10_000;
    let granted = quotas.take(&[one(&limit, "late")], later).unwrap();
    assert!(!granted[0].shared, "there is space again");
    assert!(quotas.take(&[one(&limit, "late")], later).is_err(), "its burst was used up when it shared");
}

#[test]
fn what_a_shared_counter_gave_is_given_back() {
    let (quotas, wide, narrow) = (FunctionLimits::default(), bucket("wide", 1, 1_000), window("narrow", 0));
    flood(&quotas, &wide, 200_000);
    let before = quotas.read("wide", "late");
    assert!(before.shared);
    let refused = quotas.take(&[one(&wide, "late"), one(&narrow, "")], NOW).unwrap_err();
    assert_eq!(refused.index, 1);
    assert_eq!(quotas.read("wide", "late"), before);
}

#[test]
fn long_keys_take_no_more_memory() {
    let (quotas, limit) = (FunctionLimits::default(), window("a", 1));
    let long = "x".repeat(4096);
    for number in 0..SHARDS * MOST_KEY_BYTES / 4096 * 4 {
        let _ = quotas.take(&[one(&limit, &format!("{number}{long}"))], NOW);
    }
    assert!(quotas.len() <= SHARDS * MOST_KEY_BYTES / 4096, "{}", quotas.len());
    assert!(quotas.read("a", &long).shared);
}

#[test]
fn limits_that_are_gone_leave_nothing_behind() {
    let quotas = FunctionLimits::default();
    for generation in 0..100u64 {
        let limit = window(&format!("limit {generation}"), 1);
        for key in 0..100 {
            quotas.take(&[one(&limit, &key.to_string())], NOW + generation * 60_000).unwrap();
        }
    }
    assert!(quotas.by_limit().len() <= 1 + SHARDS, "{:?}", quotas.by_limit());
}

#[test]
fn a_clock_that_steps_back_breaks_nothing() {
    let (quotas, limit, other) = (FunctionLimits::default(), window("a", 5), bucket("b", 5, 5));
    for now in [NOW, NOW - 100_000, 0, NOW, u64::MAX] {
        assert!(quotas.take(&[one(&limit, ""), one(&other, "")], now).is_ok(), "{now}");
    }
}

#[test]
fn two_processes_together_admit_what_a_limit_says() {
    /// The other process, as if it answered at once.
    struct Other(Arc<FunctionLimits>, AtomicBool);
    impl RemoteLimits for Other {
        fn take(
            &self,
            function: &str,
            demands: &[Demand<'_>],
            now_ms: u64,
        ) -> Option<Result<Vec<Grant>, LimitRefusal>> {
            assert_eq!(function, "shop/orders");
            self.1.load(Ordering::Relaxed).then(|| self.0.take(demands, now_ms))
        }
    }
    let limit = window("few", 10);
    let (old, new) = (FunctionLimits::default(), Arc::new(FunctionLimits::default()));
    let take = |quotas: &FunctionLimits, key: &str| quotas.take(&[Demand { limit: &limit, key, cost: 1 }], NOW).is_ok();
    assert!((0..4).all(|_| take(&old, "a")) && (0..10).all(|_| take(&old, "full")));
    let other = Arc::new(Other(new.clone(), AtomicBool::new(true)));
    let remote: Arc<dyn RemoteLimits> = other.clone();
    new.adopt(old.transfer(&"shop/orders".into(), &remote, NOW), NOW);
    assert!(!take(&new, "full") && !take(&old, "full"));
    let admitted = (0..20).filter(|turn| take(if turn % 2 == 0 { &old } else { &new }, "a")).count();
    assert_eq!(admitted, 6, "ten less four");
    let admitted = (0..20).filter(|turn| take(if turn % 2 == 0 { &old } else { &new }, "b")).count();
    assert_eq!(admitted, 10, "a key that the old one had no counter for");
    // The other process does not answer, so nothing is admitted.
    other.1.store(false, Ordering::Relaxed);
    assert!(!take(&old, "c"));
    old.resume();
    assert!(take(&old, "c") && !take(&old, "full"));
    let admitted = (0..10).filter(|_| take(&old, "b")).count();
    assert_eq!(admitted, 5, "what it was let through by the other one counts");
}

#[test]
fn a_share_that_is_handed_over_counts_on() {
    struct Nobody;
    impl RemoteLimits for Nobody {
        fn take(&self, _: &str, _: &[Demand<'_>], _: u64) -> Option<Result<Vec<Grant>, LimitRefusal>> {
            None
        }
    }
    let limit = window("few", 10);
    let term = || {
        let (term, now) = (LeaseTerm::default(), Instant::now());
        term.renew(now + std::time::Duration::from_secs(60), now);
        Arc::new(term)
    };
    let (old, new) = (FunctionLimits::new(term()), FunctionLimits::new(term()));
    let shares: BTreeMap<Box<str>, u32> = [("few".into(), leno_policy::quota::PARTS / 2)].into();
    old.lease(&shares, &["few".into()].into(), NOW);
    // Another node may have used the transferred share.
    new.lease(&shares, &BTreeSet::new(), NOW);
    let take = |quotas: &FunctionLimits| quotas.take(&[Demand { limit: &limit, key: "a", cost: 1 }], NOW).is_ok();
    assert!(take(&old) && take(&old));
    let remote: Arc<dyn RemoteLimits> = Arc::new(Nobody);
    new.adopt(old.transfer(&"shop/orders".into(), &remote, NOW), NOW);
    // The control plane delivers the share again on the new stream.
    new.lease(&shares, &BTreeSet::new(), NOW);
    assert_eq!((0..10).filter(|_| take(&new)).count(), 3, "half of ten, less two");
}
