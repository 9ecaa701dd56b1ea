//! What a run has used. Deadlines count the processor time of the thread, not the clock on the wall: on a busy machine the
//! kernel may take the processor away for longer than a deadline, and a request must not be denied for that.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Processor time of this thread, time in a guest included. May be called in a signal handler.
pub(crate) fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
