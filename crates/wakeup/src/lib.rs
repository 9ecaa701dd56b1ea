//! Wakes a thread later, without waking it now.
//!
//! Who has something for a background thread that may wait a moment would, with a condition variable, wake the thread only for it to begin
//! to wait: two switches between threads on a core that has a request to serve. An [`Alarm`] is a timer of the kernel instead, that the
//! one sets, in a microsecond, and the other sleeps on.
#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The least that does not mean "never".
const AT_ONCE: Duration = Duration::from_nanos(1);

/// A timer that one thread sleeps on, and that any thread sets.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    /// Somebody asked for the thread at once, and it has not come yet.
    urgent: AtomicBool,
}

impl Alarm {
    /// One that nobody has set. Fails where the process has no file descriptor left (`timerfd_create(2)`).
    pub fn new() -> io::Result<Self> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer, urgent: AtomicBool::new(false) })
    }

    /// Wakes the thread after this time, instead of when it was to be woken before; but whoever asked for it at once gets it at once.
    pub fn wake_after(&self, time: Duration) {
        self.set(time.max(AT_ONCE));
        // Whoever asks for it at once says so and then sets the timer; here it is the other way round, so that one of the two sees the other.
        if self.urgent.load(SeqCst) {
            self.set(AT_ONCE);
        }
    }

    /// Wakes the thread at once; if it is at work, then when it sleeps the next time, unless it has seen by then all that was there
    /// before this call.
    pub fn wake(&self) {
        self.urgent.store(true, SeqCst);
        self.set(AT_ONCE);
    }

    /// Sleeps until the time that was set is there. For one thread. What others did before they called [`Alarm::wake`], and before
    /// the call of [`Alarm::wake_after`] whose time is up, is visible afterwards.
    pub fn sleep(&self) {
        let mut expirations = [0; 8];
        while rustix::io::read(&self.timer, &mut expirations) == Err(Errno::INTR) {}
        self.urgent.swap(false, SeqCst);
    }

    fn set(&self, time: Duration) {
        let it_value =
            Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // It refuses times that are none, and descriptors that are no timers.
        let set = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok(), "{set:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc;
    use std::thread;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_time_that_is_up_before_anybody_sleeps_is_not_lost() {
        let alarm = Alarm::new().unwrap();
        for time in [Duration::ZERO, Duration::from_micros(300)] {
            alarm.wake_after(time);
            alarm.sleep();
        }
        alarm.wake();
        alarm.sleep();
    }

    #[test]
    fn the_time_set_last_counts_unless_somebody_is_in_a_hurry() {
        let alarm = Alarm::new().unwrap();
        alarm.wake_after(LONG);
        alarm.wake_after(Duration::ZERO);
        alarm.sleep();
        alarm.wake();
        alarm.wake_after(LONG);
        alarm.sleep();
    }

    #[test]
    fn whoever_is_in_a_hurry_is_served_whatever_others_set() {
        let alarm = Arc::new(Alarm::new().unwrap());
        let (asked, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (sender, served) = mpsc::channel();
        let sleeper = {
            let (alarm, asked, seen) = (alarm.clone(), asked.clone(), seen.clone());
            thread::spawn(move || {
                while seen.load(SeqCst) < 2000 {
                    alarm.sleep();
                    let now = asked.load(SeqCst);
                    if now > seen.swap(now, SeqCst) {
                        sender.send(now).unwrap();
                    }
                }
            })
        };
        let stop = Arc::new(AtomicBool::new(false));
        let patient = {
            let (alarm, stop) = (alarm.clone(), stop.clone());
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    alarm.wake_after(LONG);
                }
            })
        };
        for round in 1..=2000 {
            asked.store(round, SeqCst);
            alarm.wake();
            // It never comes if the hurry was lost.
            while served.recv().unwrap() < round {}
        }
        stop.store(true, SeqCst);
        patient.join().unwrap();
        sleeper.join().unwrap();
    }
}
