//! How long to wait before the next attempt.

use aws_lc_rs::rand;
use std::time::Duration;

/// Waits that double up to a limit. Each is shortened by up to half at random, so that many nodes do not come back at the
/// same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub base: Duration,
    /// The longest.
    pub max: Duration,
}

impl Default for Backoff {
    /// 100 ms to 5 s.
    fn default() -> Self {
        Self { base: Duration::from_millis(100), max: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// After `failures` failures in a row, counted from 1.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let mut random = [0; 4];
        // Without randomness the waits are whole, which is no worse than late.
        let _ = rand::fill(&mut random);
        self.shortened(failures, u32::from_le_bytes(random))
    }

    fn shortened(&self, failures: u32, random: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let whole = self.base.saturating_mul(1 << doublings).min(self.max);
        whole - whole.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit() {
        let backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(1) };
        let whole: Vec<_> = (0..7).map(|failures| backoff.shortened(failures, 0).as_millis()).collect();
        assert_eq!(whole, [100, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.shortened(u32::MAX, 0), Duration::from_secs(1));
        assert_eq!(backoff.shortened(1, u32::MAX), Duration::from_millis(50));
        let random: Vec<_> = (0..64).map(|_| backoff.wait(7)).collect();
        assert!(random.iter().all(|wait| (Duration::from_millis(500)..=Duration::from_secs(1)).contains(wait)));
        assert!(random.iter().any(|wait| *wait != random[0]));
    }
}
