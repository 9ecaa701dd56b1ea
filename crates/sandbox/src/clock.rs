//! The deadline of extensions and the turns of components: compiled code compares a counter of the
//! engine with its own limit at every function entry and loop, and a thread of this module counts.
//! The thread sleeps without a timeout while nothing runs. A run does not wake it directly but sets
//! its [`Wakeup`]: most runs are over before the first tick.

use leno_wakeup::Wakeup;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use wasmtime::Engine;

/// The precision of deadlines. Each tick wakes a thread, on a core that has requests to serve.
const TICK: Duration = Duration::from_millis(2);
/// The tick while there are runs whose deadline is shorter than [`TICK`].
const SHORT_TICK: Duration = Duration::from_micros(250);
/// After this number of short ticks since the last such run, ticks are long again.
const MEMORY: u32 = 400;

/// Handle to the counting thread, which ends with it.
pub(crate) struct Clock(Arc<State>);

struct State {
    wakeup: Wakeup,
    /// The number of runs that have not ended.
    running: AtomicU64,
    /// The thread sleeps until a run sets the wakeup.
    asleep: AtomicBool,
    /// How many of the next ticks are to be short.
    short: AtomicU32,
    stopped: AtomicBool,
}

/// While this value lives, the clock counts.
pub(crate) struct Counting<'a>(&'a State);

impl Clock {
    /// Starts counting for `engine`.
    pub(crate) fn start(engine: &Engine) -> io::Result<Self> {
        let state = Arc::new(State {
            wakeup: Wakeup::new()?,
            running: AtomicU64::new(0),
            asleep: AtomicBool::new(true),
            short: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
        });
        let (seen, engine) = (Arc::clone(&state), engine.clone());
        thread::Builder::new().name("leno-wasm-clock".into()).spawn(move || seen.count(&engine))?;
        Ok(Self(state))
    }

    /// Keeps the clock counting during a run that starts now.
    pub(crate) fn count(&self) -> Counting<'_> {
        self.0.running.fetch_add(1, SeqCst);
        if self.0.asleep.load(SeqCst) && self.0.asleep.swap(false, SeqCst) {
            self.0.wakeup.wake_after(self.0.tick());
        }
        Counting(&self.0)
    }

    /// Makes ticks short for a run with this deadline, if it is short.
    pub(crate) fn hurry_for(&self, deadline: Duration) {
        if deadline < TICK {
            self.hurry();
        }
    }

    /// Makes ticks short for a while.
    pub(crate) fn hurry(&self) {
        if self.0.short.load(SeqCst) != MEMORY {
            self.0.short.store(MEMORY, SeqCst);
        }
    }

    /// A deadline in ticks, which may pass too early. It is one tick for a short deadline, because
    /// the next tick may be a short one.
    pub(crate) fn ticks(deadline: Duration) -> u64 {
        const FAR: u64 = u64::MAX / 4;
        if deadline < TICK {
            return 1;
        }
        // One tick more, because the current one has partly passed.
        u64::try_from(deadline.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(FAR).min(FAR) + 1
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.stopped.store(true, SeqCst);
        self.0.wakeup.wake();
    }
}

impl State {
    fn count(&self, engine: &Engine) {
        self.wakeup.sleep();
        while !self.stopped.load(SeqCst) {
            engine.increment_epoch();
            let tick = self.tick();
            let _ = self.short.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
            if self.may_rest() {
                self.wakeup.sleep();
            } else {
                thread::sleep(tick);
            }
        }
    }

    fn tick(&self) -> Duration {
        if self.short.load(SeqCst) > 0 { SHORT_TICK } else { TICK }
    }

    /// Whether nothing runs, so that the thread may sleep. A run increments `running` and then
    /// reads `asleep`; this function sets `asleep` and then reads `running`. So at least one of the
    /// two sees the other, and a run that starts now sets the wakeup.
    fn may_rest(&self) -> bool {
        self.asleep.store(true, SeqCst);
        self.running.load(SeqCst) == 0 || !self.asleep.swap(false, SeqCst)
    }
}
