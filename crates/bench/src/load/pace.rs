//! When the next request is due.

use super::Pace;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

/// Tells streams when to send.
pub(super) enum Pacer {
    /// At once.
    Closed,
    /// Those that are due and not taken, the oldest first. There are as many permits as elements.
    Open { due: RefCell<VecDeque<Instant>>, ready: Semaphore },
}

impl Pacer {
    /// Needs a `LocalSet`.
    pub(super) fn start(pace: Pace) -> io::Result<Rc<Self>> {
        let Pace::Open(rate) = pace else { return Ok(Rc::new(Self::Closed)) };
        let pacer = Rc::new(Self::Open { due: RefCell::default(), ready: Semaphore::new(0) });
        let period = Duration::from_secs_f64(1.0 / rate);
        // The runtime's own timers know milliseconds only.
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        let every = Timespec { tv_sec: period.as_secs() as i64, tv_nsec: period.subsec_nanos().into() };
        let begin = Instant::now();
        let times = Itimerspec { it_interval: every, it_value: every };
        rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        #[expect(
            deprecated,
            reason = "an OwnedFd stays the same descriptor as long as it lives; the successor is unsafe"
        )]
        let timer = AsyncFd::new(timer)?;
        tokio::task::spawn_local(tick(timer, begin, period, pacer.clone()));
        Ok(pacer)
    }

    /// Waits for a turn; returns when it was due.
    pub(super) async fn next(&self) -> Instant {
        let Self::Open { due, ready } = self else { return Instant::now() };
        if let Ok(permit) = ready.acquire().await {
            permit.forget();
        }
        due.borrow_mut().pop_front().unwrap_or_else(Instant::now)
    }

    /// Requests that are due and that no stream has sent yet.
    pub(super) fn waiting(&self) -> usize {
        match self {
            Self::Closed => 0,
            Self::Open { due, .. } => due.borrow().len(),
        }
    }
}

/// A turn for each expiration of the timer, however late it is noticed.
async fn tick(timer: AsyncFd<OwnedFd>, begin: Instant, period: Duration, pacer: Rc<Pacer>) {
    let Pacer::Open { due, ready } = &*pacer else { return };
    let mut count = 0;
    while let Ok(mut guard) = timer.readable().await {
        let mut bytes = [0; 8];
        let read = guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut bytes)?));
        let Ok(Ok(_)) = read else { continue };
        let expired = u64::from_ne_bytes(bytes);
        for _ in 0..expired {
            count += 1;
            due.borrow_mut().push_back(begin + period.mul_f64(f64::from(count)));
        }
        ready.add_permits(expired as usize);
    }
}
