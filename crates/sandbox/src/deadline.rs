//! Ends a run that takes too long.
//!
//! A deadline is processor time of the thread. Every thread that runs programs has two POSIX
//! timers, which send the signal [`signal`] to that very thread:
//! - the *tick* runs by the thread's processor time and is set once. The kernel checks it whenever
//!   its own clock ticks, so it costs no system call and programs no hardware, and a sleeping
//!   thread is not woken. Most runs are over before they meet a tick.
//! - the *alarm* runs by the wall clock. It is set to the remaining time of a run that has met a
//!   tick, and at once for a run whose deadline is shorter than a tick.
//!
//! When the time of a run is up, the handler stops it: it sets `immediate_exit` in the shared area
//! of the vCPU that the thread is running, so that `KVM_RUN` returns at once, or does not begin
//! when the signal came just before it; or it increments the epoch that compiled WebAssembly
//! compares with its own limit at every function entry and loop. This needs no cooperation of the
//! guest.
//!
//! The signal is the fourth real-time signal (`SIGRTMIN + 3`, 37 with glibc); the process must not use it otherwise.
#![allow(unsafe_code)]

use crate::cpu_time::Limit;
use kvm_bindings::kvm_run;
use std::cell::{Cell, OnceCell};
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};
use std::time::Duration;
use wasmtime::Engine;

/// How often a run is checked, if the kernel's clock ticks that often. A run may exceed its
/// deadline by up to one tick of the kernel.
const TICK: Duration = Duration::from_millis(2);

/// The signal of the timers.
fn signal() -> i32 {
    libc::SIGRTMIN() + 3
}

thread_local! {
    /// The run of this thread. Needs no initialisation and no destructor, so that the handler may
    /// read it at any time.
    static CURRENT: Current = const { Current::new() };
    static TIMERS: OnceCell<Timers> = const { OnceCell::new() };
}

struct Current {
    /// Whether there is a run. Only then does the handler use the other fields.
    active: Cell<bool>,
    target: Cell<Target>,
    deadline: Cell<Duration>,
    /// The limit of the run; `None`: it has not met a tick.
    limit: Cell<Option<Limit>>,
    alarm: Cell<libc::timer_t>,
    alarm_is_set: Cell<bool>,
    passed: Cell<bool>,
}

/// The means to stop a run.
#[derive(Clone, Copy)]
enum Target {
    /// `immediate_exit` of the vCPU.
    Vcpu(*const AtomicU8),
    /// The engine whose epoch the instance compares.
    Wasm(*const Engine),
}

impl Current {
    const fn new() -> Self {
        Self {
            active: Cell::new(false),
            target: Cell::new(Target::Vcpu(ptr::null())),
            deadline: Cell::new(Duration::ZERO),
            limit: Cell::new(None),
            alarm: Cell::new(ptr::null_mut()),
            alarm_is_set: Cell::new(false),
            passed: Cell::new(false),
        }
    }

    /// Called by the handler while there is a run.
    fn look(&self) {
        let mut limit = self.limit.get().unwrap_or_else(|| Limit::after(self.deadline.get()));
        let left = limit.left();
        self.limit.set(Some(limit));
        if !left.is_zero() && set_timer(self.alarm.get(), left, Duration::ZERO).is_ok() {
            self.alarm_is_set.set(true);
            return;
        }
        self.passed.set(true);
        match self.target.get() {
            // SAFETY: `active` is true only while a `Deadline` of this thread lives, and the vCPU
            // that it was made from outlives that.
            Target::Vcpu(immediate_exit) => unsafe { (*immediate_exit).store(1, Ordering::Relaxed) },
            // SAFETY: as before; the deadline borrows the engine.
            Target::Wasm(engine) => unsafe { (*engine).increment_epoch() },
        }
    }
}

/// While this value lives, the run of this thread has a deadline. A thread has one at a time.
pub(crate) struct Deadline<'a> {
    /// It borrows the data that the handler needs, and belongs to its thread.
    _borrowed: PhantomData<(&'a Engine, *const ())>,
}

impl<'a> Deadline<'a> {
    /// Gives the run that starts now `after` of processor time. `run` is the shared area of the
    /// vCPU that this thread is going to run; it must outlive the result.
    pub(crate) fn for_vcpu(run: *mut kvm_run, after: Duration) -> io::Result<Self> {
        // SAFETY: `run` points to the vCPU's shared area, which is mapped as long as the vCPU lives. The field is one byte,
        // and while a deadline is set it is only accessed here, atomically, and by the kernel.
        let immediate_exit = unsafe { AtomicU8::from_ptr(&raw mut (*run).immediate_exit) };
        immediate_exit.store(0, Ordering::Relaxed);
        Self::set(Target::Vcpu(ptr::from_ref(immediate_exit)), after)
    }

    /// Gives the instance of `engine` that starts now `after` of processor time. Its epoch deadline must be the next epoch.
    pub(crate) fn for_instance(engine: &'a Engine, after: Duration) -> io::Result<Self> {
        Self::set(Target::Wasm(engine), after)
    }

    fn set(target: Target, after: Duration) -> io::Result<Self> {
        let alarm = TIMERS.with(|timers| match timers.get() {
            Some(timers) => Ok(timers.alarm.0),
            None => Timers::start().map(|new| timers.get_or_init(|| new).alarm.0),
        })?;
        CURRENT.with(|current| {
            debug_assert!(!current.active.get(), "a thread runs one program at a time");
            let is_short = after < TICK;
            current.target.set(target);
            current.deadline.set(after);
            current.limit.set(is_short.then(|| Limit::after(after)));
            current.alarm.set(alarm);
            current.alarm_is_set.set(is_short);
            current.passed.set(false);
            compiler_fence(Ordering::SeqCst); // the handler must find all of it
            current.active.set(true);
            compiler_fence(Ordering::SeqCst);
            let deadline = Self { _borrowed: PhantomData };
            if is_short {
                set_timer(alarm, after.max(Duration::from_micros(1)), Duration::ZERO)?;
            }
            Ok(deadline)
        })
    }

    /// Whether the time is up.
    pub(crate) fn passed(&self) -> bool {
        is_over()
    }
}

/// Whether the time of this thread's run is up. A run without a [`Deadline`] has no limit.
pub(crate) fn is_over() -> bool {
    CURRENT.with(|current| current.passed.get())
}

impl Drop for Deadline<'_> {
    fn drop(&mut self) {
        CURRENT.with(|current| {
            current.active.set(false);
            current.passed.set(false);
            // From here on, a signal that is still pending accesses nothing.
            compiler_fence(Ordering::SeqCst);
            if current.alarm_is_set.get() {
                let _ = set_timer(current.alarm.get(), Duration::ZERO, Duration::ZERO);
            }
        });
    }
}

/// The timers of a thread.
struct Timers {
    _tick: Timer,
    alarm: Timer,
}

impl Timers {
    fn start() -> io::Result<Self> {
        install_handler()?;
        let (tick, alarm) = (Timer::new(libc::CLOCK_THREAD_CPUTIME_ID)?, Timer::new(libc::CLOCK_MONOTONIC)?);
        set_timer(tick.0, TICK, TICK)?;
        Ok(Self { _tick: tick, alarm })
    }
}

/// A timer of the thread that made it.
struct Timer(libc::timer_t);

impl Timer {
    fn new(clock: libc::clockid_t) -> io::Result<Self> {
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
            if libc::timer_create(clock, &mut event, &mut timer) != 0 {
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

/// Sets a timer. Zero `after`: it never expires. Zero `interval`: it expires once.
fn set_timer(timer: libc::timer_t, after: Duration, interval: Duration) -> io::Result<()> {
    let time = |time: Duration| libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let value = libc::itimerspec { it_interval: time(interval), it_value: time(after) };
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
            // SAFETY: plain data, all zero is valid; the handler makes only async-signal-safe
            // calls.
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
    CURRENT.with(|current| {
        if current.active.get() {
            compiler_fence(Ordering::SeqCst);
            current.look();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::spin_loop;
    use std::thread;
    use wasmtime::{Config, Instance, Module, Store, Trap};

    fn vcpu() -> kvm_run {
        // SAFETY: plain data, all zero is valid.
        unsafe { std::mem::zeroed() }
    }

    /// Uses processor time until the deadline has passed.
    fn wait(deadline: &Deadline<'_>) {
        while !deadline.passed() {
            spin_loop();
        }
    }

    #[test]
    fn rings_on_the_thread_that_set_it_and_on_no_other() {
        let mut other = vcpu();
        let quiet = Deadline::for_vcpu(&mut other, Duration::from_secs(3600)).unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut run = vcpu();
                    for after in [50, 50, 2_000, 50, 5_000].map(Duration::from_micros) {
                        wait(&Deadline::for_vcpu(&mut run, after).unwrap());
                        assert_eq!(run.immediate_exit, 1);
                    }
                });
            }
        });
        assert!(!quiet.passed());
        drop(quiet);
        assert_eq!(other.immediate_exit, 0);
    }

    #[test]
    fn an_instance_that_never_ends_is_interrupted() {
        let engine = Engine::new(Config::new().epoch_interruption(true)).unwrap();
        let endless = wat::parse_str(r#"(module (func (export "run") (loop br 0)))"#).unwrap();
        let module = Module::new(&engine, endless).unwrap();
        for after in [50, 3_000].map(Duration::from_micros) {
            let mut store = Store::new(&engine, ());
            store.epoch_deadline_trap();
            store.set_epoch_deadline(1);
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
            let deadline = Deadline::for_instance(&engine, after).unwrap();
            let error = run.call(&mut store, ()).unwrap_err();
            assert_eq!(error.downcast_ref::<Trap>(), Some(&Trap::Interrupt));
            assert!(deadline.passed());
        }
    }

    #[test]
    fn a_thread_that_gets_no_processor_time_does_not_wait_for_good() {
        let mut run = vcpu();
        let deadline = Deadline::for_vcpu(&mut run, Duration::from_millis(1)).unwrap();
        // With a short deadline the alarm is set from the beginning, and its handler checks the
        // wall clock.
        while !deadline.passed() {
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_new_deadline_knows_nothing_of_the_last() {
        let mut run = vcpu();
        let first = Deadline::for_vcpu(&mut run, Duration::ZERO).unwrap();
        wait(&first);
        drop(first);
        assert!(!is_over(), "nothing is running");
        assert!(!Deadline::for_vcpu(&mut run, Duration::from_secs(3600)).unwrap().passed());
    }
}
