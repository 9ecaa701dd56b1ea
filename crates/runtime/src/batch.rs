//! The batch exporter: passes items of workers to a background thread. Workers never wait for it.
//!
//! Each worker appends to its own buffer. The first append sets the thread's [`Wakeup`] a little
//! ahead, so that more items come together. The thread then takes all of them at once. A busy node
//! thus pays one wake-up for many items, and an idle node pays none. The thread wakes early when
//! there are enough items, because recently written items are still in the processor's caches.

use leno_wakeup::Wakeup;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest wait until items are drained: a back end that hangs must not keep the node from ending.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// How many items come together, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Elements that may wait in one worker's buffer. More are lost.
    pub capacity: usize,
    /// Elements in one worker's buffer that make the thread drain at once.
    pub enough: usize,
    /// How long the thread waits for more elements before it drains them.
    pub pause: Duration,
}

/// The shared end of the queue.
#[derive(Debug)]
pub struct BatchExporter<T> {
    shared: Arc<BatchQueue<T>>,
}

/// One worker's end of the queue.
#[derive(Debug)]
pub struct BatchBuffer<T> {
    shared: Arc<BatchQueue<T>>,
    buffer: Arc<Mutex<Vec<T>>>,
}

#[derive(Debug)]
struct BatchQueue<T> {
    buffers: Mutex<Vec<Arc<Mutex<Vec<T>>>>>,
    bounds: Bounds,
    /// Wakes the thread.
    wakeup: Wakeup,
    /// Something was appended since the thread last looked.
    pending: AtomicBool,
    dropped: AtomicU64,
    state: Mutex<State>,
    /// Notified when the thread has finished a round, or has ended.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Requested flushes.
    flushes_requested: u64,
    /// Flushes that are done.
    flushes_done: u64,
    stop: bool,
    stopped: bool,
}

impl<T: Send + 'static> BatchExporter<T> {
    /// Starts a thread that calls `drain` with each batch. Items that `drain` leaves are dropped.
    pub fn start(name: &str, bounds: Bounds, drain: impl FnMut(&mut Vec<T>) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(BatchQueue {
            buffers: Mutex::default(),
            bounds,
            wakeup: Wakeup::new()?,
            pending: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            state: Mutex::default(),
            done: Condvar::new(),
        });
        let theirs = shared.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || theirs.run(drain))?;
        Ok(Self { shared })
    }

    /// Adds a buffer for one more worker.
    pub fn buffer(&self) -> BatchBuffer<T> {
        let buffer = Arc::default();
        lock(&self.shared.buffers).push(Arc::clone(&buffer));
        BatchBuffer { shared: self.shared.clone(), buffer }
    }

    /// How many appends were lost because a buffer was full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Waits for some seconds at most until everything appended before has been drained. Returns
    /// false if it was not.
    pub fn flush(&self) -> bool {
        let mut state = lock(&self.shared.state);
        state.flushes_requested += 1;
        let flushes_requested = state.flushes_requested;
        self.shared.wakeup.wake();
        self.shared.wait(state, |state| state.flushes_done >= flushes_requested)
    }
}

impl<T> Drop for BatchExporter<T> {
    /// Drains the remaining items, and ends the thread.
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stop = true;
        self.shared.wakeup.wake();
        self.shared.wait(state, |state| state.stopped);
    }
}

impl<T> BatchBuffer<T> {
    /// Calls `append` with the buffer. If the buffer is full, nothing is added and the loss is
    /// counted.
    pub fn append(&self, append: impl FnOnce(&mut Vec<T>)) {
        let mut buffer = lock(&self.buffer);
        let before = buffer.len();
        if before >= self.shared.bounds.capacity {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        append(&mut buffer);
        let enough = (before + 1..=buffer.len()).contains(&self.shared.bounds.enough);
        drop(buffer);
        if !self.shared.pending.load(Ordering::Relaxed) && !self.shared.pending.swap(true, Ordering::AcqRel) {
            self.shared.wakeup.wake_after(self.shared.bounds.pause);
        }
        if enough {
            self.shared.wakeup.wake();
        }
    }
}

/// Reports the end of the thread, also after a panic.
struct Leaving<'a, T>(&'a BatchQueue<T>);

impl<T> Drop for Leaving<'_, T> {
    fn drop(&mut self) {
        lock(&self.0.state).stopped = true;
        self.0.done.notify_all();
    }
}

impl<T> BatchQueue<T> {
    /// Waits until `is_so` holds, the thread has ended, or [`FLUSH_TIMEOUT`] has passed. Returns
    /// whether `is_so` holds.
    fn wait(&self, state: MutexGuard<'_, State>, is_so: impl Fn(&State) -> bool) -> bool {
        let not_yet = |state: &mut State| !is_so(state) && !state.stopped;
        let waited = self.done.wait_timeout_while(state, FLUSH_TIMEOUT, not_yet);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&state)
    }

    fn run(&self, mut drain: impl FnMut(&mut Vec<T>)) {
        let _leaving = Leaving(self);
        let mut items = Vec::new();
        loop {
            self.wakeup.sleep();
            // Reset first, so that an append from now on sets the wakeup again.
            self.pending.swap(false, Ordering::AcqRel);
            let State { flushes_requested, stop, .. } = *lock(&self.state);
            let buffers = lock(&self.buffers).clone();
            for buffer in buffers {
                // The lock is held for a swap only. The worker gets a buffer that has already
                // grown.
                std::mem::swap(&mut items, &mut *lock(&buffer));
                if !items.is_empty() {
                    drain(&mut items);
                    items.clear();
                }
            }
            lock(&self.state).flushes_done = flushes_requested;
            self.done.notify_all();
            if stop {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::take;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(3600);

    fn bounds(capacity: usize, pause: Duration) -> Bounds {
        Bounds { capacity, enough: usize::MAX, pause }
    }

    #[test]
    fn with_enough_it_goes_at_once() {
        let (sender, drained) = mpsc::channel();
        let bounds = Bounds { enough: 3, ..bounds(100, LONG) };
        let exporter = BatchExporter::start("test", bounds, move |items| sender.send(take(items)).unwrap()).unwrap();
        let slot = exporter.buffer();
        for round in 0..3 {
            slot.append(|buffer| buffer.push(round));
            slot.append(|buffer| buffer.extend([round; 4]));
            assert_eq!(drained.recv().unwrap(), [round; 5]);
        }
    }

    #[test]
    fn flush_carries_everything_of_every_worker_and_does_not_wait_for_more() {
        let (sender, drained) = mpsc::channel();
        let exporter =
            BatchExporter::start("test", bounds(100, LONG), move |items| sender.send(take(items)).unwrap()).unwrap();
        let (one, two) = (exporter.buffer(), exporter.buffer());
        one.append(|buffer| buffer.push(1));
        two.append(|buffer| buffer.push(2));
        one.append(|buffer| buffer.push(3));
        assert!(exporter.flush());
        let mut all: Vec<u32> = drained.try_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    }

    #[test]
    fn without_flush_it_goes_after_the_pause() {
        let (sender, drained) = mpsc::channel();
        let drain = move |items: &mut Vec<u32>| sender.send(take(items)).unwrap();
        let exporter = BatchExporter::start("test", bounds(100, Duration::ZERO), drain).unwrap();
        let slot = exporter.buffer();
        for number in 0..100 {
            slot.append(|buffer| buffer.push(number));
            assert_eq!(drained.recv().unwrap(), [number]);
        }
    }

    #[test]
    fn a_thread_that_is_gone_keeps_nobody_waiting() {
        let exporter =
            BatchExporter::start("test", bounds(100, Duration::ZERO), |_: &mut Vec<u32>| panic!("as ordered")).unwrap();
        let slot = exporter.buffer();
        slot.append(|buffer| buffer.push(1));
        assert!(!exporter.flush());
        slot.append(|buffer| buffer.push(2));
        assert!(!exporter.flush());
    }

    #[test]
    fn what_is_left_goes_on_drop() {
        let (sender, drained) = mpsc::channel();
        let exporter =
            BatchExporter::start("test", bounds(100, LONG), move |items| sender.send(take(items)).unwrap()).unwrap();
        exporter.buffer().append(|buffer| buffer.push(1));
        drop(exporter);
        assert_eq!(drained.iter().flatten().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_full_buffer_loses_and_counts_and_never_waits() {
        let (release, gate) = mpsc::channel::<()>();
        let (sender, drained) = mpsc::channel();
        let drain = move |items: &mut Vec<u32>| {
            sender.send(take(items)).unwrap();
            let _ = gate.recv();
        };
        let exporter = BatchExporter::start("test", bounds(3, Duration::ZERO), drain).unwrap();
        let slot = exporter.buffer();
        slot.append(|buffer| buffer.push(0));
        assert_eq!(drained.recv().unwrap(), [0], "the thread is busy from now on");
        for number in 1..=5 {
            slot.append(|buffer| buffer.push(number));
        }
        assert_eq!(exporter.dropped(), 2);
        drop(release);
        drop(exporter);
        assert_eq!(drained.iter().flatten().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
