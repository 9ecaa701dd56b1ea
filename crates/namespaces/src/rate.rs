//! A rate in bytes a second, with a burst.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The use is measured over this time.
const WINDOW: Duration = Duration::from_secs(1);
const NANOS: u128 = 1_000_000_000;

/// A token bucket. It is full at the beginning.
#[derive(Debug, Default)]
pub struct Rate(Mutex<Bucket>);

#[derive(Debug, Default)]
struct Bucket {
    per_second: u64,
    burst: u64,
    /// Bytes that may be taken at once; below 0: debt.
    level: i128,
    filled: Option<Instant>,
    window: Option<Instant>,
    in_window: u64,
    recent: u64,
}

impl Rate {
    /// Puts a rate into force.
    pub fn set(&self, per_second: u64, burst: u64) {
        let mut bucket = self.bucket();
        let is_new = bucket.burst == 0;
        (bucket.per_second, bucket.burst) = (per_second, burst);
        bucket.level = if is_new { burst.into() } else { bucket.level.min(burst.into()) };
    }

    /// Takes bytes while the level is above this part of the burst, in eighths. So a piece that is larger than the burst passes too, and the level is
    /// in debt afterwards.
    pub fn take(&self, bytes: u64, above: u8, now: Instant) -> bool {
        let mut bucket = self.bucket();
        bucket.fill(now);
        let least = i128::from(bucket.burst) * i128::from(above) / 8;
        let takes = bucket.level > least;
        if takes {
            bucket.spend(bytes, now);
        }
        takes
    }

    /// Takes bytes, even beyond the rate. Returns how long to wait before the next ones.
    pub fn owe(&self, bytes: u64, now: Instant) -> Duration {
        let mut bucket = self.bucket();
        bucket.fill(now);
        bucket.spend(bytes, now);
        if bucket.level >= 0 {
            return Duration::ZERO;
        }
        let nanos = bucket.level.unsigned_abs().saturating_mul(NANOS) / u128::from(bucket.per_second.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes a second that it lets pass.
    pub fn per_second(&self) -> u64 {
        self.bucket().per_second
    }

    /// Bytes that were taken in the latest second.
    pub fn recent(&self, now: Instant) -> u64 {
        let mut bucket = self.bucket();
        bucket.measure(now);
        bucket.recent
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(*self.filled.get_or_insert(now));
        let gained = u128::from(self.per_second).saturating_mul(since.as_nanos()) / NANOS;
        // A fraction of a byte counts next time.
        if gained > 0 {
            self.level = self.level.saturating_add_unsigned(gained).min(self.burst.into());
            self.filled = Some(now);
        }
    }

    fn spend(&mut self, bytes: u64, now: Instant) {
        self.level = self.level.saturating_sub(bytes.into());
        self.measure(now);
        self.in_window = self.in_window.saturating_add(bytes);
    }

    fn measure(&mut self, now: Instant) {
        let since = now.saturating_duration_since(*self.window.get_or_insert(now));
        if since >= WINDOW {
            let rate = u128::from(self.in_window).saturating_mul(NANOS) / since.as_nanos().max(1);
            (self.recent, self.in_window) = (u64::try_from(rate).unwrap_or(u64::MAX), 0);
            self.window = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_what_the_rate_says() {
        let (rate, begin) = (Rate::default(), Instant::now());
        rate.set(100, 300);
        let at = |second| begin + Duration::from_secs(second);
        let passed = |second| (0..1000).filter(|_| rate.take(10, 0, at(second))).count();
        assert_eq!([passed(0), passed(1), passed(3), passed(1000)], [30, 10, 20, 30]);
        assert_eq!(rate.recent(at(1001)), 300);
        assert_eq!(rate.recent(at(1002)), 0);
    }

    #[test]
    fn many_looks_in_a_moment_do_not_lose_parts_of_a_byte() {
        let (rate, begin) = (Rate::default(), Instant::now());
        rate.set(10, 10);
        assert!(rate.take(10, 0, begin));
        let passed = (0..10_000).filter(|step| rate.take(1, 0, begin + Duration::from_micros(100 * step))).count();
        assert!((9..=10).contains(&passed), "{passed}");
    }

    #[test]
    fn what_matters_more_passes_when_the_rest_does_not() {
        let (rate, now) = (Rate::default(), Instant::now());
        rate.set(100, 800);
        while rate.take(10, 2, now) {}
        assert!(rate.take(10, 0, now) && !rate.take(10, 2, now));
    }

    #[test]
    fn debt_is_waited_for() {
        let (rate, now) = (Rate::default(), Instant::now());
        rate.set(1000, 500);
        assert_eq!(rate.owe(500, now), Duration::ZERO);
        assert_eq!(rate.owe(1000, now), Duration::from_secs(1));
        assert_eq!(rate.owe(0, now + Duration::from_secs(1)), Duration::ZERO);
        assert!(!rate.take(1, 0, now + Duration::from_secs(1)));
    }
}
