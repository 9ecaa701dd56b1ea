//! Exact averages over a recent window.

use std::collections::VecDeque;
use std::time::Duration;

/// Shortest time of a meaningful average: over less time, a single request that has just begun
/// would look like a hundred.
const SHORTEST: Duration = Duration::from_secs(1);

/// Samples of a total that only grows and whose slope is the load. The total includes all load, so
/// rare samples miss none. Times are measured from any fixed moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Averages {
    samples: VecDeque<(Duration, f64)>,
}

impl Averages {
    /// Adds a sample. Drops samples that no window up to `longest` needs.
    pub(crate) fn record(&mut self, at: Duration, total: f64, longest: Duration) {
        self.samples.push_back((at, total));
        let begin = at.saturating_sub(longest);
        // One sample at or before the window's beginning is needed, to know the total there.
        while self.samples.get(1).is_some_and(|(next, _)| *next <= begin) {
            self.samples.pop_front();
        }
    }

    /// The average over `window` before the last sample, or since the first sample if that is later.
    pub(crate) fn over(&self, window: Duration) -> f64 {
        let (Some(&(first, _)), Some(&(last, total))) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        let begin = last.saturating_sub(window).max(first);
        let time = (last - begin).max(SHORTEST.min(window));
        (total - self.total_at(begin)) / time.as_secs_f64()
    }

    /// The total at `time`. The load between two samples is taken to be constant.
    fn total_at(&self, time: Duration) -> f64 {
        let after = self.samples.partition_point(|(at, _)| *at < time);
        let Some(&(late, high)) = self.samples.get(after) else { return 0.0 };
        match after.checked_sub(1).and_then(|before| self.samples.get(before)) {
            Some(&(early, low)) => low + (high - low) * (time - early).as_secs_f64() / (late - early).as_secs_f64(),
            None => high,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.samples.clear();
    }
}

/// The largest number of a recent window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Largest {
    /// In descending order. A number that a later one reaches is never the largest again.
    falling: VecDeque<(Duration, u32)>,
}

impl Largest {
    /// Adds a number. Returns the largest one added less than `window` ago.
    pub(crate) fn record(&mut self, at: Duration, number: u32, window: Duration) -> u32 {
        while self.falling.back().is_some_and(|(_, earlier)| *earlier <= number) {
            self.falling.pop_back();
        }
        self.falling.push_back((at, number));
        while self.falling.len() > 1 && self.falling.front().is_some_and(|(then, _)| *then + window <= at) {
            self.falling.pop_front();
        }
        self.falling.front().map_or(number, |(_, largest)| *largest)
    }

    pub(crate) fn clear(&mut self) {
        self.falling.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn averages_are_slopes_of_the_total() {
        let mut averages = Averages::default();
        for (at, total) in [(0, 0.0), (10, 20.0), (20, 20.0), (40, 120.0)] {
            averages.record(seconds(at), total, seconds(60));
        }
        assert_eq!(averages.over(seconds(20)), 5.0);
        assert_eq!(averages.over(seconds(10)), 5.0, "even between samples");
        assert_eq!(averages.over(seconds(60)), 3.0, "since the first sample");
        averages.record(seconds(60), 120.0, seconds(20));
        assert_eq!(averages.over(seconds(20)), 0.0);
        assert_eq!(averages.samples.len(), 2, "what is older is forgotten");
    }

    #[test]
    fn a_moment_is_no_average() {
        let mut averages = Averages::default();
        assert_eq!(averages.over(seconds(6)), 0.0);
        averages.record(seconds(5), 7.0, seconds(60));
        assert_eq!(averages.over(seconds(6)), 0.0);
        averages.record(seconds(5) + Duration::from_millis(100), 7.5, seconds(60));
        assert_eq!(averages.over(seconds(6)), 0.5, "as if it had lasted a second");
        assert!((averages.over(Duration::from_millis(100)) - 5.0).abs() < 1e-9, "unless the window is shorter");
    }

    #[test]
    fn the_largest_number_lasts_for_the_window() {
        let mut largest = Largest::default();
        let given = [(0, 5), (1, 3), (2, 4), (9, 1), (10, 1), (11, 1), (12, 1), (13, 6)];
        let told = given.map(|(at, number)| largest.record(seconds(at), number, seconds(10)));
        assert_eq!(told, [5, 5, 5, 5, 4, 4, 1, 6]);
        assert_eq!(largest.record(seconds(14), 0, Duration::ZERO), 0, "without a window, the last one");
    }
}
