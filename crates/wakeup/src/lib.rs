//! Wakes a background thread later, without waking it now.
//!
//! A condition variable would wake the background thread at once, only for it to wait again until
//! its work may begin: two context switches on a core that has a request to serve. A [`Wakeup`] is
//! a timer of the kernel (timerfd) instead. A worker sets it in a microsecond, and the background
//! thread sleeps on it.
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
pub struct Wakeup {
    timer: OwnedFd,
    /// A thread has called [`Wakeup::wake`], and the sleeping thread has not woken yet.
    urgent: AtomicBool,
}

impl Wakeup {
    /// A wakeup that is not set. Fails if the process has no file descriptor left
    /// (`timerfd_create(2)`).
    pub fn new() -> io::Result<Self> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer, urgent: AtomicBool::new(false) })
    }

    /// Wakes the thread after this time, in place of the time that was set before. A wake-up at
    /// once that is still pending takes precedence.
    pub fn wake_after(&self, time: Duration) {
        self.set(time.max(AT_ONCE));
        // [`Wakeup::wake`] sets the flag and then the timer; here the order is the reverse, so that
        // one of two concurrent calls sees the other.
        if self.urgent.load(SeqCst) {
            self.set(AT_ONCE);
        }
    }

    /// Wakes the thread at once. If the thread is not sleeping, its next sleep ends at once, unless
    /// it has by then seen everything that was written before this call.
    pub fn wake(&self) {
        self.urgent.store(true, SeqCst);
        self.set(AT_ONCE);
    }

    /// Sleeps until the time that was set. Only one thread may call it. Writes that other threads
    /// made before they called [`Wakeup::wake`], and before the call of [`Wakeup::wake_after`] whose
    /// time is up, are visible afterwards.
    pub fn sleep(&self) {
        let mut expirations = [0; 8];
        while rustix::io::read(&self.timer, &mut expirations) == Err(Errno::INTR) {}
        self.urgent.swap(false, SeqCst);
    }

    fn set(&self, time: Duration) {
        let it_value =
            Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // The kernel refuses only invalid times, and descriptors that are no timers.
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
        let wakeup = Wakeup::new().unwrap();
        for time in [Duration::ZERO, Duration::from_micros(300)] {
            wakeup.wake_after(time);
            wakeup.sleep();
        }
        wakeup.wake();
        wakeup.sleep();
    }

    #[test]
    fn the_time_set_last_counts_unless_somebody_is_in_a_hurry() {
        let wakeup = Wakeup::new().unwrap();
        wakeup.wake_after(LONG);
        wakeup.wake_after(Duration::ZERO);
        wakeup.sleep();
        wakeup.wake();
        wakeup.wake_after(LONG);
        wakeup.sleep();
    }

    #[test]
    fn whoever_is_in_a_hurry_is_served_whatever_others_set() {
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let (asked, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (sender, served) = mpsc::channel();
        let sleeper = {
            let (wakeup, asked, seen) = (wakeup.clone(), asked.clone(), seen.clone());
            thread::spawn(move || {
                while seen.load(SeqCst) < 2000 {
                    wakeup.sleep();
                    let now = asked.load(SeqCst);
                    if now > seen.swap(now, SeqCst) {
                        sender.send(now).unwrap();
                    }
                }
            })
        };
        let stop = Arc::new(AtomicBool::new(false));
        let patient = {
            let (wakeup, stop) = (wakeup.clone(), stop.clone());
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    wakeup.wake_after(LONG);
                }
            })
        };
        for round in 1..=2000 {
            asked.store(round, SeqCst);
            wakeup.wake();
            // The thread never wakes if the wake-up was lost.
            while served.recv().unwrap() < round {}
        }
        stop.store(true, SeqCst);
        patient.join().unwrap();
        sleeper.join().unwrap();
    }
}
