//! Matches requests with ready instances.
//!
//! To lease a ready instance with free capacity takes no lock and stays on its thread: one atomic
//! load of the list, one compare-and-swap on the instance's count, and the sums of [`Load`]. Only a
//! request that has to wait takes the lock, queues, and wakes the function's task.

mod buffer;
mod health;
mod slot;

pub(crate) use buffer::Buffer;
pub use slot::Lease;
pub(crate) use slot::Slot;

use crate::error::AcquireError;
use crate::load::{Load, Reading};
use arc_swap::ArcSwap;
use leno_namespaces::Namespace;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// All ready instances of a function, and all requests that wait for one.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    ready: ArcSwap<Vec<Arc<Slot>>>,
    /// Start of the next search, so that equally loaded instances take turns.
    turn: AtomicUsize,
    concurrency: AtomicU32,
    load: Load,
    /// The function's task sleeps until a request arrives.
    resting: AtomicBool,
    waiting: AtomicUsize,
    longest_wait_ms: AtomicU64,
    max_backoff_wait: Duration,
    queue: Mutex<Queue>,
    buffer: Arc<Buffer>,
    /// Counts waiting requests.
    namespace: Arc<Namespace>,
    /// Wakes the function's task: a request waits, or it arrived while the task slept.
    pub demand: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    limit: usize,
    /// Name of the next waiter. Names only rise.
    next: u64,
    /// No instance is started before this time, for this reason.
    pause: Option<(Instant, String)>,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    name: u64,
    avoid: Vec<SocketAddr>,
    reply: oneshot::Sender<Result<Lease, AcquireError>>,
}

/// A place in the queue. Dropping it leaves the queue, so that no instance is given to a request that went away.
struct Place<'a> {
    dispatcher: &'a Arc<Dispatcher>,
    name: u64,
    answer: oneshot::Receiver<Result<Lease, AcquireError>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queue = self.dispatcher.queue();
        if let Ok(index) = queue.waiters.binary_search_by_key(&self.name, |waiter| waiter.name) {
            queue.waiters.remove(index);
            self.dispatcher.dequeued(1);
            self.dispatcher.load.leave();
        }
    }
}

impl Dispatcher {
    pub(crate) fn new(buffer: &Arc<Buffer>, namespace: Arc<Namespace>, max_backoff_wait: Duration) -> Arc<Self> {
        Arc::new(Self {
            ready: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            concurrency: AtomicU32::new(0),
            load: Load::new(),
            resting: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            longest_wait_ms: AtomicU64::new(0),
            max_backoff_wait,
            queue: Mutex::default(),
            buffer: Arc::clone(buffer),
            namespace,
            demand: Notify::new(),
        })
    }

    /// Leases a ready instance with free capacity, without waiting.
    pub(crate) fn try_acquire(self: &Arc<Self>, avoid: &[SocketAddr]) -> Option<Lease> {
        // Requests that already wait come first.
        if self.waiting.load(SeqCst) > 0 {
            return None;
        }
        let slot = self.take(avoid)?;
        self.on_arrival();
        Some(Lease::new(slot, Arc::clone(self)))
    }

    /// Leases a ready instance with free capacity, or waits for one, first come, first served.
    /// Waits until the deadline at most, and never longer than the configured longest wait.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        avoid: &[SocketAddr],
        deadline: Option<Instant>,
    ) -> Result<Lease, AcquireError> {
        if let Some(lease) = self.try_acquire(avoid) {
            return Ok(lease);
        }
        let now = Instant::now();
        let longest = now + Duration::from_millis(self.longest_wait_ms.load(SeqCst));
        let until = deadline.map_or(longest, |deadline| deadline.min(longest));
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Err(AcquireError::Timeout { waited: Duration::ZERO });
        }
        let mut place = self.enqueue(avoid, now, until)?;
        // An instance may have become free between the first search and now; see
        // `Dispatcher::on_release`.
        self.hand_over();
        self.demand.notify_one();
        match tokio::time::timeout_at(until, &mut place.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AcquireError::Removed),
            Err(_) => Err(AcquireError::Timeout { waited: until - now }),
        }
    }

    fn enqueue<'a>(
        self: &'a Arc<Self>,
        avoid: &[SocketAddr],
        now: Instant,
        until: Instant,
    ) -> Result<Place<'a>, AcquireError> {
        self.buffer.enter(self)?;
        let mut queue = self.queue();
        if let Err(error) = self.may_wait(&queue, now, until) {
            self.buffer.leave(self, 1);
            return Err(error);
        }
        let (reply, answer) = oneshot::channel();
        let name = queue.next;
        queue.next += 1;
        queue.waiters.push_back(Waiter { name, avoid: avoid.to_vec(), reply });
        if self.waiting.fetch_add(1, SeqCst) == 0 {
            self.buffer.note(self);
        }
        self.on_arrival();
        Ok(Place { dispatcher: self, name, answer })
    }

    fn may_wait(&self, queue: &Queue, now: Instant, until: Instant) -> Result<(), AcquireError> {
        if queue.closed {
            return Err(AcquireError::Removed);
        }
        if let Some((resume, reason)) = queue.pause.as_ref().filter(|_| self.ready.load().is_empty()) {
            let retry_after = resume.saturating_duration_since(now);
            // A request that times out before the next start need not wait for it.
            if retry_after > self.max_backoff_wait || *resume >= until {
                return Err(AcquireError::Backoff { retry_after, reason: reason.clone() });
            }
        }
        if queue.waiters.len() >= queue.limit {
            return Err(AcquireError::QueueFull { limit: queue.limit });
        }
        Ok(())
    }

    /// Takes the least loaded instance that has free capacity. An instance in `avoid` is taken only
    /// if every ready one is in `avoid`, busy or not.
    fn take(&self, avoid: &[SocketAddr]) -> Option<Arc<Slot>> {
        let limit = self.concurrency.load(SeqCst);
        // A round that fails means that another request got the instance, or that the list has changed.
        loop {
            let ready = self.ready.load();
            let avoid = if ready.iter().all(|slot| avoid.contains(&slot.address)) { &[] } else { avoid };
            let first = if ready.len() > 1 { self.turn.fetch_add(1, SeqCst) % ready.len() } else { 0 };
            let (before, after) = ready.split_at(first);
            let best = after
                .iter()
                .chain(before)
                .filter(|slot| !avoid.contains(&slot.address) && slot.is_open())
                .map(|slot| (slot.in_flight(), slot))
                .filter(|(count, _)| limit == 0 || *count < limit)
                .min_by_key(|(count, _)| *count);
            match best {
                Some((_, slot)) if slot.take(limit) => return Some(Arc::clone(slot)),
                Some(_) => {}
                // A new instance is published before the one that it replaces starts to drain, but
                // maybe after this list was read.
                None if Arc::ptr_eq(&ready, &self.ready.load()) => return None,
                None => {}
            }
        }
    }

    /// Counts a request that has arrived, whether it got an instance or waits. Wakes the function's task if it sleeps.
    fn on_arrival(&self) {
        self.load.arrive();
        if self.resting.load(SeqCst) && self.resting.swap(false, SeqCst) {
            self.demand.notify_one();
        }
    }

    /// Counts a request that has given its instance back, and leases the instance to waiting
    /// requests.
    pub(crate) fn on_release(self: &Arc<Self>) {
        self.load.leave();
        // No wake-up is lost. Either this load sees the request that began to wait, or that request
        // sees the free instance, because it searches again after it has queued.
        if self.waiting.load(SeqCst) > 0 {
            self.hand_over();
        }
    }

    /// Leases instances with free capacity to waiting requests, first come, first served.
    pub(crate) fn hand_over(self: &Arc<Self>) {
        // Leases whose receiver was just dropped. They are dropped after the queue is unlocked, because dropping a lease calls this function again.
        let mut refused = Vec::new();
        let mut queue = self.queue();
        let mut index = 0;
        while let Some(waiter) = queue.waiters.get(index) {
            let Some(slot) = self.take(&waiter.avoid) else {
                // The requests behind it wait for the same instances, unless this one avoids some.
                if waiter.avoid.is_empty() {
                    break;
                }
                index += 1;
                continue;
            };
            let lease = Lease::new(slot, Arc::clone(self));
            let Some(waiter) = queue.waiters.remove(index) else { break };
            self.dequeued(1);
            refused.extend(waiter.reply.send(Ok(lease)).err());
        }
        drop(queue);
    }

    /// Counts `count` requests that wait no more. The caller holds the queue's lock.
    fn dequeued(self: &Arc<Self>, count: usize) {
        self.buffer.leave(self, count);
        if count > 0 && self.waiting.fetch_sub(count, SeqCst) == count {
            self.buffer.note(self);
        }
    }

    /// Refuses the last request in the queue, to free its place for another function. Returns false
    /// if none waits.
    pub(crate) fn evict(self: &Arc<Self>, reason: AcquireError) -> bool {
        let mut queue = self.queue();
        let Some(waiter) = queue.waiters.pop_back() else { return false };
        self.dequeued(1);
        self.load.leave();
        let _ = waiter.reply.send(Err(reason));
        true
    }

    pub(crate) fn publish(self: &Arc<Self>, slot: Arc<Slot>) {
        let queue = self.queue();
        self.ready.rcu(|ready| ready.iter().cloned().chain([Arc::clone(&slot)]).collect::<Vec<_>>());
        drop(queue);
        self.hand_over();
    }

    /// Drains an instance: from now on no request gets it.
    pub(crate) fn start_drain(&self, slot: &Slot) {
        slot.start_drain();
        let _queue = self.queue();
        self.ready.rcu(|ready| ready.iter().filter(|other| other.id != slot.id).cloned().collect::<Vec<_>>());
    }

    /// Replaces all instances. Only for instances that the supervisor does not start.
    pub(crate) fn publish_all(self: &Arc<Self>, slots: Vec<Arc<Slot>>) {
        let queue = self.queue();
        self.ready
            .load()
            .iter()
            .filter(|old| slots.iter().all(|new| new.id != old.id))
            .for_each(|gone| gone.start_drain());
        self.ready.store(Arc::new(slots));
        drop(queue);
        self.hand_over();
    }

    pub(crate) fn configure(self: &Arc<Self>, concurrency: u32, queue: u32, longest_wait: Duration) {
        self.concurrency.store(concurrency, SeqCst);
        self.queue().limit = usize::try_from(queue).unwrap_or(usize::MAX);
        self.longest_wait_ms.store(u64::try_from(longest_wait.as_millis()).unwrap_or(u64::MAX), SeqCst);
        self.hand_over();
    }

    /// Sets the time until which no instance is started, and the reason; `None`: instances may be
    /// started.
    pub(crate) fn set_pause(&self, pause: Option<(Instant, String)>) {
        self.queue().pause = pause;
    }

    /// Refuses all waiting requests with `error`.
    pub(crate) fn refuse_waiting(self: &Arc<Self>, error: &AcquireError) {
        let mut queue = self.queue();
        let waiters = std::mem::take(&mut queue.waiters);
        self.dequeued(waiters.len());
        drop(queue);
        for waiter in waiters {
            self.load.leave();
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    /// Refuses all waiting requests, and all that would wait later.
    pub(crate) fn close(self: &Arc<Self>) {
        self.queue().closed = true;
        self.refuse_waiting(&AcquireError::Removed);
    }

    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    pub(crate) fn ready(&self) -> arc_swap::Guard<Arc<Vec<Arc<Slot>>>> {
        self.ready.load()
    }

    pub(crate) fn load(&self) -> Reading {
        self.load.read()
    }

    /// Records that the function's task sleeps until `demand` wakes it. Returns false if it must not
    /// sleep, because there are requests, or some came since `reading`.
    pub(crate) fn rest(&self, reading: &Reading) -> bool {
        self.resting.store(true, SeqCst);
        let now = self.load.read();
        let quiet = now.requests == reading.requests && now.present == 0;
        quiet || !self.resting.swap(false, SeqCst)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
