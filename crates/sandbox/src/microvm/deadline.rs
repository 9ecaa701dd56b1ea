//! Ends a run that takes too long.
//!
//! Every thread that runs guests has one POSIX timer, which sends the signal [`signal`] to that very thread. The handler
//! sets `immediate_exit` in the shared area of the vCPU that the thread is running, so that `KVM_RUN` returns at once, or does not begin
//! when the signal came just before it. The guest gives up nothing of its own accord, and nothing in it is asked.
//!
//! A deadline is processor time of the thread. The timer runs by the clock on the wall, which is the faster one; a handler that comes too
//! early because others had the processor sets it anew, until the thread has waited for too long.
//!
//! The signal is the fourth real-time signal (`SIGRTMIN + 3`, 37 with glibc); the process must not use it otherwise.

use crate::cpu_time::Limit;
use kvm_bindings::kvm_run;
use std::cell::{Cell, OnceCell};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};
use std::time::Duration;

/// The signal of the timers.
fn signal() -> i32 {
    libc::SIGRTMIN() + 3
}

thread_local! {
    /// `immediate_exit` of the vCPU that this thread is running, or null. Needs no initialisation and no destructor, so
    /// that the handler may read it at any time.
    static RUNNING: Cell<*const AtomicU8> = const { Cell::new(ptr::null()) };
    /// When the time of what it is running is up, and its timer; as `RUNNING`.
    static LIMIT: Cell<Option<(Limit, libc::timer_t)>> = const { Cell::new(None) };
    static TIMER: OnceCell<Timer> = const { OnceCell::new() };
}

/// While this value lives, the deadline is set for the vCPU of `run` on this thread.
pub(super) struct Deadline {
    immediate_exit: *const AtomicU8,
    timer: libc::timer_t,
}

impl Deadline {
    /// Sets the deadline `after` from now. `run` is the shared area of the vCPU that this thread is going to run.
    pub(super) fn set(run: *mut kvm_run, after: Duration) -> io::Result<Self> {
        let timer = TIMER.with(|timer| match timer.get() {
            Some(timer) => Ok(timer.0),
            None => Timer::new().map(|new| timer.get_or_init(|| new).0),
        })?;
        // SAFETY: `run` points to the vCPU's shared area, which is mapped as long as the vCPU lives. The field is one byte,
        // and while a deadline is set it is only accessed here, atomically, and by the kernel.
        let immediate_exit = unsafe { AtomicU8::from_ptr(&raw mut (*run).immediate_exit) };
        immediate_exit.store(0, Ordering::Relaxed);
        let immediate_exit = ptr::from_ref(immediate_exit);
        let after = after.max(Duration::from_micros(1));
        LIMIT.set(Some((Limit::after(after), timer)));
        RUNNING.set(immediate_exit);
        compiler_fence(Ordering::SeqCst); // the handler must find both
        let deadline = Self { immediate_exit, timer };
        set_timer(timer, after)?;
        Ok(deadline)
    }

    /// Whether the time is up.
    pub(super) fn passed(&self) -> bool {
        // SAFETY: the vCPU outlives the deadline, which `Shell::enter` drops before it returns.
        unsafe { (*self.immediate_exit).load(Ordering::Relaxed) != 0 }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // A signal that was already on its way is delivered before the call returns, while the area is still there.
        let _ = set_timer(self.timer, Duration::ZERO);
        compiler_fence(Ordering::SeqCst);
        RUNNING.set(ptr::null());
    }
}

/// A timer of the thread that made it.
struct Timer(libc::timer_t);

impl Timer {
    fn new() -> io::Result<Self> {
        install_handler()?;
        // SAFETY: plain data, all zero is valid; the calls only read and write the variables they are given.
        unsafe {
            let mut blocked: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, signal());
            let error = libc::pthread_sigmask(libc::SIG_UNBLOCK, &blocked, ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::mem::zeroed();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(timer))
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `timer_create`, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn set_timer(timer: libc::timer_t, after: Duration) -> io::Result<()> {
    let value = libc::itimerspec {
        it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: libc::timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: after.subsec_nanos().into(),
        },
    };
    // SAFETY: `timer` was made by `timer_create` and lives as long as its thread, which is this one.
    match unsafe { libc::timer_settime(timer, 0, &value, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Installs the handler, once per process.
fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            // SAFETY: plain data, all zero is valid; the handler does only what a signal handler may.
            unsafe {
                let mut before: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal(), ptr::null(), &mut before) != 0 {
                    return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
                }
                if before.sa_sigaction != libc::SIG_DFL {
                    return Err(libc::EBUSY);
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
                match libc::sigaction(signal(), &action, ptr::null_mut()) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
                }
            }
        })
        .map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_signal(_: i32) {
    let immediate_exit = RUNNING.get();
    if !immediate_exit.is_null() {
        if let Some((mut limit, timer)) = LIMIT.get() {
            let left = limit.left();
            LIMIT.set(Some((limit, timer)));
            if !left.is_zero() && set_timer(timer, left).is_ok() {
                return;
            }
        }
        // SAFETY: not null only while a `Deadline` of this thread lives, and the vCPU outlives that.
        unsafe { (*immediate_exit).store(1, Ordering::Relaxed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses processor time, without a limit of its own, until the timer has rung.
    fn wait(deadline: &Deadline) {
        while !deadline.passed() {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn rings_on_the_thread_that_set_it_and_on_no_other() {
        // SAFETY: plain data, all zero is valid.
        let mut other: kvm_run = unsafe { std::mem::zeroed() };
        let quiet = Deadline::set(&mut other, Duration::from_secs(3600)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    // SAFETY: plain data, all zero is valid.
                    let mut run: kvm_run = unsafe { std::mem::zeroed() };
                    for _ in 0..20 {
                        wait(&Deadline::set(&mut run, Duration::from_micros(50)).unwrap());
                    }
                });
            }
        });
        assert!(!quiet.passed());
    }

    #[test]
    fn a_thread_that_gets_no_processor_time_does_not_wait_for_good() {
        // SAFETY: plain data, all zero is valid.
        let mut run: kvm_run = unsafe { std::mem::zeroed() };
        let deadline = Deadline::set(&mut run, Duration::from_millis(200)).unwrap();
        while !deadline.passed() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_new_deadline_knows_nothing_of_the_last() {
        // SAFETY: plain data, all zero is valid.
        let mut run: kvm_run = unsafe { std::mem::zeroed() };
        let first = Deadline::set(&mut run, Duration::ZERO).unwrap();
        wait(&first);
        drop(first);
        assert!(!Deadline::set(&mut run, Duration::from_secs(3600)).unwrap().passed());
    }
}
