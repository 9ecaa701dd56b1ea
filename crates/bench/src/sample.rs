//! Quantiles of the durations of many runs.

use std::time::{Duration, Instant};

/// Sorted durations.
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    /// Times each of `count` calls, after a tenth as many that are not counted.
    pub(crate) fn of<E>(count: usize, mut call: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        for _ in 0..count / 10 {
            call()?;
        }
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            call()?;
            times.push(start.elapsed());
        }
        Ok(Self::new(times))
    }

    /// A sample of durations, of which there must be one.
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        assert!(!times.is_empty(), "a sample of nothing says nothing");
        times.sort_unstable();
        Self(times)
    }

    /// The duration that `share` of the calls did not exceed, in microseconds.
    pub(crate) fn micros(&self, share: f64) -> f64 {
        let index = ((self.0.len() as f64 * share).ceil() as usize).clamp(1, self.0.len()) - 1;
        self.0[index].as_nanos() as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_sorted_sample() {
        let sample = Sample::new((1..=100).rev().map(Duration::from_micros).collect());
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| sample.micros(share)), [1.0, 50.0, 99.0, 100.0]);
    }
}
