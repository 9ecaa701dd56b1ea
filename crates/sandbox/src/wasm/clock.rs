//! The deadline of WebAssembly instances: compiled code compares a counter of the engine with its own limit at every
//! function entry and loop, and a thread of this module counts. It sleeps for good while nothing runs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::Duration;
use wasmtime::Engine;

/// How exact deadlines are. Each tick wakes a thread, on a core that has requests to serve.
const TICK: Duration = Duration::from_millis(2);
/// The same, while there are runs whose deadline is shorter than that.
const SHORT_TICK: Duration = Duration::from_micros(250);
/// So many short ticks after the last such run, ticks are long again.
const MEMORY: u32 = 400;
/// After so many ticks without a run the thread goes to sleep.
const PATIENCE: u32 = 20;

/// Handle to the counting thread, which ends with it.
pub(crate) struct Clock {
    state: Arc<State>,
    thread: Thread,
}

#[derive(Default)]
struct State {
    started: AtomicU64,
    ended: AtomicU64,
    asleep: AtomicBool,
    /// Something was started that has less time than a tick.
    hurry: AtomicBool,
    stopped: AtomicBool,
}

/// While this value lives, the clock counts.
pub(crate) struct Counting<'a>(&'a State);

impl Clock {
    /// Starts counting for `engine`.
    pub(crate) fn start(engine: &Engine) -> io::Result<Self> {
        let state = Arc::new(State::default());
        let (seen, engine) = (Arc::clone(&state), engine.clone());
        let thread = thread::Builder::new().name("leno-wasm-clock".into()).spawn(move || seen.count(&engine))?;
        Ok(Self { state, thread: thread.thread().clone() })
    }

    /// Keeps the clock counting for a run that starts now.
    pub(crate) fn count(&self) -> Counting<'_> {
        self.state.started.fetch_add(1, SeqCst);
        if self.state.asleep.load(SeqCst) {
            self.thread.unpark();
        }
        Counting(&self.state)
    }

    /// Looks more often for a run that has so little time.
    pub(crate) fn hurry_for(&self, deadline: Duration) {
        if deadline < TICK {
            self.hurry();
        }
    }

    /// Looks more often for a while.
    pub(crate) fn hurry(&self) {
        if !self.state.hurry.load(SeqCst) {
            self.state.hurry.store(true, SeqCst);
        }
    }

    /// A deadline in ticks; they may be up too early. One for a short deadline, because the next tick may be a short one.
    pub(crate) fn ticks(deadline: Duration) -> u64 {
        const FAR: u64 = u64::MAX / 4;
        if deadline < TICK {
            return 1;
        }
        // One more, because the current tick has partly passed.
        u64::try_from(deadline.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(FAR).min(FAR) + 1
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.state.stopped.store(true, SeqCst);
        self.thread.unpark();
    }
}

impl State {
    fn count(&self, engine: &Engine) {
        let mut idle = 0;
        let mut last = 0;
        let mut short = 0_u32;
        while !self.stopped.load(SeqCst) {
            short = if self.hurry.swap(false, SeqCst) { MEMORY } else { short.saturating_sub(1) };
            thread::sleep(if short > 0 { SHORT_TICK } else { TICK });
            engine.increment_epoch();
            let started = self.started.load(SeqCst);
            idle = if started == last && self.ended.load(SeqCst) == started { idle + 1 } else { 0 };
            last = started;
            if idle >= PATIENCE {
                self.rest(last);
                idle = 0;
            }
        }
    }

    /// Sleeps until something is started. Whoever starts something counts it and then looks at `asleep`; here it is the other
    /// way round, so that one of the two always sees the other.
    fn rest(&self, last: u64) {
        self.asleep.store(true, SeqCst);
        while self.started.load(SeqCst) == last && !self.stopped.load(SeqCst) {
            thread::park();
        }
        self.asleep.store(false, SeqCst);
    }
}
