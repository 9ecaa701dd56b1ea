//! Durations in fine buckets, from which views compute percentiles. The buckets of the exposed
//! histogram are too wide for that.
//!
//! Buckets are log-linear, as in HDR histograms: each octave of microseconds has sixteen of equal
//! width, so the middle of a bucket is within some 3 % of its values.

use serde::{Deserialize, Serialize};

/// Buckets of an octave, as a power of two.
const PRECISION: u32 = 4;
const OF_OCTAVE: usize = 1 << PRECISION;
/// Longer durations are in the last bucket: 71 minutes.
const MAX_MICROS: u64 = (1 << 32) - 1;
/// The number of buckets.
pub(super) const BUCKETS: usize = bucket(MAX_MICROS) + 1;

/// Limit on the buckets of all series of one shard: 8 MiB.
const MAX_USED: usize = 1 << 20;

/// Counts in the buckets from the first to the last that is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// The bucket of the first count.
    first: usize,
    counts: Vec<u64>,
}

/// The bucket of a duration.
#[inline]
pub(super) const fn bucket(micros: u64) -> usize {
    let micros = if micros < MAX_MICROS { micros } else { MAX_MICROS };
    let shift = (micros | OF_OCTAVE as u64).ilog2() - PRECISION;
    ((shift as usize) << PRECISION) + (micros >> shift) as usize
}

/// The shortest duration of a bucket, in microseconds.
pub(super) const fn begin(bucket: usize) -> u64 {
    let octave = bucket >> PRECISION;
    if octave < 2 {
        return bucket as u64;
    }
    ((bucket % OF_OCTAVE + OF_OCTAVE) as u64) << (octave - 1)
}

impl Latencies {
    /// Counts a duration. `used`: the buckets of all counts together. If they are too many, a duration
    /// beyond those in use is not counted.
    #[inline]
    pub(super) fn observe(&mut self, bucket: usize, used: &mut usize) {
        match self.counts.get_mut(bucket.wrapping_sub(self.first)) {
            Some(count) => *count += 1,
            None => self.observe_further(bucket, used),
        }
    }

    #[cold]
    fn observe_further(&mut self, bucket: usize, used: &mut usize) {
        let (begin, end) = (self.first, self.first + self.counts.len());
        let further = if begin == end { 1 } else { begin.saturating_sub(bucket) + (bucket + 1).saturating_sub(end) };
        if *used + further <= MAX_USED {
            *used += further;
            self.add_to(bucket, 1);
        }
    }

    /// Adds to a bucket, and makes room for it.
    fn add_to(&mut self, bucket: usize, count: u64) {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            self.counts.splice(0..0, std::iter::repeat_n(0, self.first - bucket));
            self.first = bucket;
        }
        let index = bucket - self.first;
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += count;
    }

    /// The counts by bucket. Buckets of other releases are left out.
    fn all(&self) -> impl Iterator<Item = (usize, u64)> {
        let places = (self.first..BUCKETS).zip(&self.counts);
        places.filter(|(_, count)| **count > 0).map(|(bucket, count)| (bucket, *count))
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        other.all().for_each(|(bucket, count)| self.add_to(bucket, count));
    }

    /// The counts since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |bucket: usize| before.counts.get(bucket.wrapping_sub(before.first)).copied().unwrap_or_default();
        let mut since = Self::default();
        for (bucket, count) in self.all() {
            since.add_to(bucket, count.saturating_sub(earlier(bucket)));
        }
        since
    }

    /// A quantile in milliseconds, the middle of its bucket; `None`: there are no durations.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let all: u64 = self.all().map(|(_, count)| count).sum();
        let rank = quantile * all as f64;
        let mut below = 0;
        for (bucket, count) in self.all() {
            if (below + count) as f64 >= rank {
                return Some((begin(bucket) + begin(bucket + 1)) as f64 / 2e3);
            }
            below += count;
        }
        None
    }

    /// Counts of these durations, in milliseconds.
    pub fn of_ms(durations: impl IntoIterator<Item = f64>) -> Self {
        let mut latencies = Self::default();
        durations.into_iter().for_each(|ms| latencies.add_to(bucket((ms * 1e3) as u64), 1));
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut before = None;
        for at in 0..=BUCKETS {
            assert_eq!(bucket(begin(at)), at.min(BUCKETS - 1), "{at}");
            assert!(before.is_none_or(|before| before < begin(at)));
            before = Some(begin(at));
        }
        assert_eq!((bucket(u64::MAX), begin(16), begin(31), begin(32)), (BUCKETS - 1, 16, 31, 32));
    }

    #[test]
    fn a_quantile_of_equal_durations_is_that_duration_within_four_percent() {
        for ms in [0.05, 0.3, 1.0, 3.0, 87.0, 250.0, 3000.0, 59_000.0, 3_000_000.0] {
            let latencies = Latencies::of_ms([ms; 10]);
            for quantile in [0.01, 0.5, 0.99] {
                let told = latencies.quantile(quantile).unwrap();
                assert!((told - ms).abs() <= ms * 0.04, "{ms}: {told}");
            }
        }
        assert_eq!(Latencies::default().quantile(0.5), None);
    }

    #[test]
    fn counts_of_another_release_are_ignored_where_they_have_no_bucket() {
        let strange = Latencies { first: BUCKETS - 1, counts: vec![1, 2, 3] };
        let far = Latencies { first: usize::MAX, counts: vec![1] };
        let mut sum = Latencies::default();
        sum.add(&strange);
        sum.add(&far);
        assert_eq!(sum.counts, [1]);
        assert_eq!(far.quantile(0.5), None);
        assert_eq!(sum.since(&far).counts, [1]);
    }

    #[test]
    fn buckets_are_bounded_and_durations_beyond_them_are_left_out() {
        let (mut latencies, mut used) = (Latencies::default(), MAX_USED - 3);
        for at in [100, 102, 99, 98, 103, 101] {
            latencies.observe(at, &mut used);
        }
        assert_eq!((latencies.first, &*latencies.counts, used), (100, &[1, 1, 1][..], MAX_USED));
    }

    proptest! {
        #[test]
        fn counting_one_by_one_adding_and_subtracting_agree(
            some in prop::collection::vec(0.0..100_000.0_f64, 0..40),
            more in prop::collection::vec(0.0..100_000.0_f64, 0..40),
        ) {
            let (mut counted, mut used) = (Latencies::default(), 0);
            for ms in some.iter().chain(&more) {
                counted.observe(bucket((ms * 1e3) as u64), &mut used);
            }
            prop_assert_eq!(used, counted.counts.len());
            let [mut sum, other] = [&some, &more].map(|durations| Latencies::of_ms(durations.iter().copied()));
            sum.add(&other);
            prop_assert_eq!(&sum, &counted);
            let since = counted.since(&other);
            prop_assert_eq!(since.all().collect::<Vec<_>>(), Latencies::of_ms(some).all().collect::<Vec<_>>());
        }
    }
}
