//! What a run has used. Deadlines count the processor time of the thread, not the clock on the wall: on a busy machine the
//! kernel may take the processor away for longer than a deadline, and a request must not be denied for that.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// On the wall, a run may take this much longer than its deadline: whatever keeps it from its processor time, it is over when it is looked at
/// the next time after that.
const WALL_LIMIT: Duration = Duration::from_secs(1);

/// Until when a run may go on. Reading the clock of the wall is left to those runs whose deadline seems to be over.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// Processor time of the thread.
    until: Duration,
    /// On the wall; `None`: nobody has looked yet.
    wall_deadline: Option<Duration>,
}

impl Limit {
    /// None.
    pub(crate) const NONE: Self = Self { until: Duration::MAX, wall_deadline: Some(Duration::MAX) };

    /// So much processor time of this thread from now on.
    pub(crate) fn after(deadline: Duration) -> Self {
        Self { until: of_this_thread().saturating_add(deadline), wall_deadline: None }
    }

    /// What is left, as far as the clock on the wall knows; zero: the run is over. May be called in a signal handler.
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
