//! Pauses between starts of something that keeps failing.

use std::time::Duration;

/// Exponential back-off with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Pause after the first failure; doubles with each further one.
    pub base: Duration,
    /// Longest pause.
    pub max: Duration,
    /// An instance that was ready for this long has recovered: its next failure counts as the first.
    pub reset_after: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(100), max: Duration::from_secs(30), reset_after: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// Pause after this many failures in a row. `random` is uniform in `[0, 1)`: between half of the pause and the whole,
    /// so that functions that failed together do not come back together.
    pub(crate) fn pause(&self, failures: u32, random: f64) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.base.saturating_mul(doubled).min(self.max).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_longest_pause() {
        let backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(1), ..Backoff::default() };
        let pauses: Vec<_> = (1..=6).map(|failures| backoff.pause(failures, 1.0).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.pause(u32::MAX, 1.0), Duration::from_secs(1));
    }

    #[test]
    fn jitter_takes_up_to_half() {
        let backoff = Backoff { base: Duration::from_millis(100), ..Backoff::default() };
        assert_eq!(backoff.pause(1, 0.0), Duration::from_millis(50));
        assert_eq!(backoff.pause(2, 0.5), Duration::from_millis(150));
    }
}
