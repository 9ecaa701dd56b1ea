//! Delays between attempts.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);

/// Delays that double up to 30 s. Each is random within its upper half, so that clients that lost
/// the API server together do not return together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// The next delay is the first again.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// The delay before the next attempt.
    pub(crate) fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = LONGEST.min(delay * 2);
        delay.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_start_anew() {
        let mut backoff = Backoff::new();
        let delays: Vec<Duration> = (0..20).map(|_| backoff.delay()).collect();
        assert!(delays[0] >= FIRST / 2 && delays[0] <= FIRST);
        assert!(delays.iter().all(|delay| *delay <= LONGEST));
        assert!(delays[10..].iter().all(|delay| *delay >= LONGEST / 2));
        backoff.reset();
        assert!(backoff.delay() <= FIRST);
    }
}
