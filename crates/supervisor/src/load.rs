//! A function's load, summed exactly and without a lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// The upper bits of `moment` count requests, the lower ones microseconds. The microseconds wrap after 203 days. That matters only if a request is
/// present and nothing changes or reads the load for half of that time.
const TIME_BITS: u32 = 44;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// The present requests (waiting or being handled) and the area under their number over time: the request-seconds that the autoscaler averages. Each
/// request adds to it when it begins and when it ends, with a few atomic operations. Nothing is sampled, so nothing is missed, and a function without
/// requests costs nothing.
#[derive(Debug)]
pub(crate) struct Load {
    begin: Instant,
    /// The number of present requests, and since when it is so.
    moment: AtomicU64,
    /// Request-microseconds up to that moment.
    area: AtomicU64,
    requests: AtomicU64,
}

/// The result of [`Load::read`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Requests that are waiting or being handled.
    pub present: u64,
    /// All requests so far, present ones included.
    pub requests: u64,
    /// Time that all requests have spent waiting or being handled, in total.
    pub area: Duration,
}

impl Load {
    pub(crate) fn new() -> Self {
        let (moment, area, requests) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { begin: Instant::now(), moment, area, requests }
    }

    pub(crate) fn arrive(&self) {
        self.change(1);
        // Sequentially consistent with `Dispatcher::rest`: either the resting task sees this request, or this request sees that the task rests.
        self.requests.fetch_add(1, SeqCst);
    }

    pub(crate) fn leave(&self) {
        self.change(-1);
    }

    pub(crate) fn read(&self) -> Reading {
        let present = self.change(0);
        let requests = self.requests.load(SeqCst);
        Reading { present, requests, area: Duration::from_micros(self.area.load(Relaxed)) }
    }

    fn change(&self, by: i64) -> u64 {
        self.change_at(self.begin.elapsed().as_micros() as u64 & TIME, by)
    }

    /// Returns the number of requests before the change.
    fn change_at(&self, now: u64, by: i64) -> u64 {
        let before = self.moment.update(Relaxed, Relaxed, |moment| {
            let at = (moment & TIME) + passed(moment, now);
            (moment >> TIME_BITS).wrapping_add_signed(by) << TIME_BITS | at & TIME
        });
        let present = before >> TIME_BITS;
        // A reading at this very moment may lack this part. The next one has it.
        self.area.fetch_add(present * passed(before, now), Relaxed);
        present
    }
}

/// Microseconds since a moment. It is 0 if another thread read its clock later and was faster.
fn passed(moment: u64, now: u64) -> u64 {
    let passed = now.wrapping_sub(moment & TIME) & TIME;
    if passed > TIME / 2 { 0 } else { passed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(load: &Load) -> u64 {
        load.area.load(Relaxed)
    }

    #[test]
    fn the_area_is_exact_however_rarely_it_is_read() {
        let load = Load::new();
        for (at, by) in [(10, 1), (20, 1), (50, -1), (60, -1), (1_000_000, 1), (1_000_007, -1)] {
            load.change_at(at, by);
        }
        assert_eq!(area(&load), 10 + 2 * 30 + 10 + 7);
    }

    #[test]
    fn clocks_that_are_late_or_wrap_do_no_harm() {
        let load = Load::new();
        load.change_at(100, 1);
        load.change_at(90, 1);
        assert_eq!(load.change_at(110, 0), 2);
        assert_eq!(area(&load), 20, "10 us of two requests; the late one began when its predecessor did");
        load.change_at(TIME / 2, -2);
        let before = area(&load);
        load.change_at(TIME - 4, 1);
        load.change_at(5, -1);
        assert_eq!(area(&load) - before, 10);
    }

    #[test]
    fn threads_lose_nothing() {
        let load = Load::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        load.arrive();
                        load.leave();
                    }
                });
            }
        });
        let read = load.read();
        assert_eq!((read.present, read.requests), (0, 40_000));
    }
}
