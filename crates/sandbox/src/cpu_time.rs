//! Measures the time that a run has used. Deadlines count the processor time of the thread, not
//! wall-clock time: on a busy machine the kernel may take the processor away for longer than a
//! deadline, and a request must not be denied for that.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// How much longer than its deadline a run may take in wall-clock time. A run that did not get its
/// processor time by then ends at the next check.
const WALL_LIMIT: Duration = Duration::from_secs(1);

/// The time at which a run ends. The wall clock is read only for runs whose deadline seems to be
/// over.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// The limit in processor time of the thread.
    until: Duration,
    /// The limit in wall-clock time; `None` before the first check.
    wall_deadline: Option<Duration>,
}

impl Limit {
    /// No limit.
    pub(crate) const NONE: Self = Self { until: Duration::MAX, wall_deadline: Some(Duration::MAX) };

    /// A limit of `deadline` of this thread's processor time from now on.
    pub(crate) fn after(deadline: Duration) -> Self {
        Self { until: of_this_thread().saturating_add(deadline), wall_deadline: None }
    }

    /// The remaining time, also by the wall clock; zero: the run is over. May be called in a signal
    /// handler.
    pub(crate) fn left(&mut self) -> Duration {
        let (used, now) = (of_this_thread(), read(ClockId::Monotonic));
        let wall_deadline = *self.wall_deadline.get_or_insert(now.saturating_add(WALL_LIMIT));
        self.until.saturating_sub(used).min(wall_deadline.saturating_sub(now))
    }
}

/// Processor time of this thread, time in a guest included.
fn of_this_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    Duration::new(tv_sec.try_into().unwrap_or(0), tv_nsec.try_into().unwrap_or(0))
}
