//! Where requests meet ready instances.
//!
//! A ready instance with room is lent without a lock and without leaving the thread: one atomic load of the list, one
//! compare-and-swap on the instance's count. Only a request that must wait takes the lock, queues, and wakes the function's task.

use crate::status::InstanceId;
use arc_swap::ArcSwap;
use leno_config::id::FunctionId;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Why a request got no instance. All of them are the function's or the node's trouble, not the client's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Nothing became free or ready in time.
    #[error("no instance within {waited:?}")]
    Timeout {
        /// How long the request waited.
        waited: Duration,
    },
    /// The instance that was started could not be: no such program, no such directory.
    #[error("the instance could not be started: {reason}")]
    Start {
        /// The system's words.
        reason: String,
    },
    /// The instance that was started ended before it was ready.
    #[error("the instance ended before it was ready: {status}")]
    Exited {
        /// Exit status or signal.
        status: String,
    },
    /// The instance that was started did not become ready in time.
    #[error("the instance was not ready within {limit:?}: {reason}")]
    NotReady {
        /// The function's start-up time-out.
        limit: Duration,
        /// What the last probe said.
        reason: String,
    },
    /// Instances failed several times in a row; the next is started after a pause.
    #[error("instances keep failing; the next one is started in {retry_after:?}: {reason}")]
    Backoff {
        /// Until then.
        retry_after: Duration,
        /// Why the last one failed.
        reason: String,
    },
    /// As many requests wait as may.
    #[error("{limit} requests wait for an instance already")]
    QueueFull {
        /// How many may wait.
        limit: usize,
    },
    /// The function was removed, or the node is shutting down.
    #[error("the function is being removed")]
    Removed,
}

/// The right to send one request to one instance; ends when dropped.
#[must_use = "dropping a lease gives the instance back"]
pub struct Lease {
    slot: Arc<Slot>,
    gate: Arc<Gate>,
}

impl Lease {
    /// Where the instance listens.
    pub fn address(&self) -> SocketAddr {
        self.slot.address
    }

    /// The instance.
    pub fn instance(&self) -> InstanceId {
        self.slot.id
    }

    /// The instance's name, as [`InstanceId::name`] makes it.
    pub fn name(&self) -> &Arc<str> {
        &self.slot.name
    }

    /// Requests that the instance has now, this one included. 1, with a concurrency of 1: whatever the instance sends is part
    /// of this request.
    pub fn in_flight(&self) -> u32 {
        self.slot.in_flight.load(SeqCst)
    }

    /// Whether the instance was withdrawn in the meantime: it ended, or is to end.
    pub fn withdrawn(&self) -> bool {
        self.slot.withdrawn.load(SeqCst)
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("instance", &self.slot.id).field("address", &self.slot.address).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slot.give_back();
        // Either this load sees the request that began to wait, or that request, which looks again after it made itself
        // seen, sees the room that was just made.
        if self.gate.waiting.load(SeqCst) > 0 {
            self.gate.hand_over();
        }
    }
}

/// One instance as requests see it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub id: InstanceId,
    name: Arc<str>,
    pub address: SocketAddr,
    in_flight: AtomicU32,
    withdrawn: AtomicBool,
    /// Told when the last request of a withdrawn instance has ended.
    idle: Notify,
}

impl Slot {
    pub fn new(function: &FunctionId, id: InstanceId, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: id.name(function),
            address,
            in_flight: AtomicU32::new(0),
            withdrawn: AtomicBool::new(false),
            idle: Notify::new(),
        })
    }

    fn take(&self, limit: u32) -> bool {
        let room = |count: u32| if limit == 0 || count < limit { count.checked_add(1) } else { None };
        if self.in_flight.try_update(SeqCst, SeqCst, room).is_err() {
            return false;
        }
        // The list that led here may be older than the withdrawal. Whoever withdraws marks first and counts then.
        if self.withdrawn.load(SeqCst) {
            self.give_back();
            return false;
        }
        true
    }

    fn give_back(&self) {
        if self.in_flight.fetch_sub(1, SeqCst) == 1 && self.withdrawn.load(SeqCst) {
            self.idle.notify_one();
        }
    }

    /// Waits until a withdrawn instance has no request any more.
    pub async fn drained(&self) {
        while self.in_flight.load(SeqCst) > 0 {
            self.idle.notified().await;
        }
    }
}

/// All ready instances of a function, and all requests that wait for one.
pub(crate) struct Gate {
    ready: ArcSwap<Vec<Arc<Slot>>>,
    /// Where the next search begins, so that equally loaded instances take turns.
    turn: AtomicUsize,
    concurrency: AtomicU32,
    waiting: AtomicUsize,
    longest_wait_ms: AtomicU64,
    queue_limit: usize,
    patience: Duration,
    queue: Mutex<Queue>,
    /// Wakes the function's task: somebody waits.
    pub demand: Notify,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    /// No instance is started before that time, for that reason.
    pause: Option<(Instant, String)>,
    closed: bool,
}

struct Waiter {
    avoid: Vec<SocketAddr>,
    reply: oneshot::Sender<Result<Lease, AcquireError>>,
}

impl Gate {
    pub fn new(queue_limit: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            ready: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            concurrency: AtomicU32::new(0),
            waiting: AtomicUsize::new(0),
            longest_wait_ms: AtomicU64::new(0),
            queue_limit,
            patience,
            queue: Mutex::default(),
            demand: Notify::new(),
        })
    }

    /// A ready instance with room, at once or not at all.
    pub fn try_acquire(self: &Arc<Self>, avoid: &[SocketAddr]) -> Option<Lease> {
        // Nobody overtakes those who wait already.
        if self.waiting.load(SeqCst) > 0 { None } else { self.take(avoid) }
    }

    /// A ready instance with room, or the next one, in the order in which requests came.
    pub async fn acquire(self: &Arc<Self>, avoid: &[SocketAddr]) -> Result<Lease, AcquireError> {
        if let Some(lease) = self.try_acquire(avoid) {
            return Ok(lease);
        }
        let answer = self.enqueue(avoid)?;
        // Room may have been made between the first look and now; see `Lease::drop`.
        self.hand_over();
        self.demand.notify_one();
        let limit = Duration::from_millis(self.longest_wait_ms.load(SeqCst));
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AcquireError::Removed),
            Err(_) => {
                self.forget_gone(&mut self.queue());
                Err(AcquireError::Timeout { waited: limit })
            }
        }
    }

    fn enqueue(&self, avoid: &[SocketAddr]) -> Result<oneshot::Receiver<Result<Lease, AcquireError>>, AcquireError> {
        let mut queue = self.queue();
        if queue.closed {
            return Err(AcquireError::Removed);
        }
        let ready = self.ready.load();
        if let Some((until, reason)) = queue.pause.as_ref().filter(|_| ready.is_empty()) {
            let retry_after = until.saturating_duration_since(Instant::now());
            if retry_after > self.patience {
                return Err(AcquireError::Backoff { retry_after, reason: reason.clone() });
            }
        }
        if queue.waiters.len() >= self.queue_limit {
            self.forget_gone(&mut queue);
        }
        if queue.waiters.len() >= self.queue_limit {
            return Err(AcquireError::QueueFull { limit: self.queue_limit });
        }
        let (reply, answer) = oneshot::channel();
        queue.waiters.push_back(Waiter { avoid: avoid.to_vec(), reply });
        self.waiting.fetch_add(1, SeqCst);
        Ok(answer)
    }

    /// The least loaded instance that has room; one to be avoided only if there are no others, free or not.
    fn take(self: &Arc<Self>, avoid: &[SocketAddr]) -> Option<Lease> {
        let limit = self.concurrency.load(SeqCst);
        // Each round that fails means that somebody else succeeded, or that the list has changed.
        loop {
            let ready = self.ready.load();
            let avoid = if ready.iter().all(|slot| avoid.contains(&slot.address)) { &[] } else { avoid };
            let first = if ready.len() > 1 { self.turn.fetch_add(1, SeqCst) % ready.len() } else { 0 };
            let (before, after) = ready.split_at(first);
            let best = after
                .iter()
                .chain(before)
                .filter(|slot| !avoid.contains(&slot.address) && !slot.withdrawn.load(SeqCst))
                .map(|slot| (slot.in_flight.load(SeqCst), slot))
                .filter(|(count, _)| limit == 0 || *count < limit)
                .min_by_key(|(count, _)| *count);
            match best {
                Some((_, slot)) if slot.take(limit) => {
                    return Some(Lease { slot: Arc::clone(slot), gate: Arc::clone(self) });
                }
                Some(_) => {}
                // A successor is published before its predecessor is withdrawn, but maybe after this list was read.
                None if Arc::ptr_eq(&ready, &self.ready.load()) => return None,
                None => {}
            }
        }
    }

    /// Gives instances with room to those who wait, first come, first served.
    fn hand_over(self: &Arc<Self>) {
        // Leases whose receiver went away in that very moment. They are dropped last, because that hands over again.
        let mut refused = Vec::new();
        let mut queue = self.queue();
        self.forget_gone(&mut queue);
        let mut index = 0;
        while let Some(waiter) = queue.waiters.get(index) {
            let Some(lease) = self.take(&waiter.avoid) else {
                // Those behind it wait for the same, unless this one is choosy.
                if waiter.avoid.is_empty() {
                    break;
                }
                index += 1;
                continue;
            };
            let Some(waiter) = queue.waiters.remove(index) else { break };
            self.waiting.fetch_sub(1, SeqCst);
            refused.extend(waiter.reply.send(Ok(lease)).err());
        }
        drop(queue);
    }

    fn forget_gone(&self, queue: &mut Queue) {
        let before = queue.waiters.len();
        queue.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiting.fetch_sub(before - queue.waiters.len(), SeqCst);
    }

    pub fn publish(self: &Arc<Self>, slot: Arc<Slot>) {
        let queue = self.queue();
        self.ready.rcu(|ready| ready.iter().cloned().chain([Arc::clone(&slot)]).collect::<Vec<_>>());
        drop(queue);
        self.hand_over();
    }

    /// From now on nobody gets this instance.
    pub fn withdraw(&self, slot: &Slot) {
        slot.withdrawn.store(true, SeqCst);
        let _queue = self.queue();
        self.ready.rcu(|ready| ready.iter().filter(|other| other.id != slot.id).cloned().collect::<Vec<_>>());
    }

    /// Replaces all instances: for those that somebody else runs.
    pub fn publish_all(self: &Arc<Self>, slots: Vec<Arc<Slot>>) {
        let queue = self.queue();
        for gone in self.ready.load().iter().filter(|old| slots.iter().all(|new| new.id != old.id)) {
            gone.withdrawn.store(true, SeqCst);
        }
        self.ready.store(Arc::new(slots));
        drop(queue);
        self.hand_over();
    }

    pub fn configure(self: &Arc<Self>, concurrency: u32, longest_wait: Duration) {
        self.concurrency.store(concurrency, SeqCst);
        self.longest_wait_ms.store(u64::try_from(longest_wait.as_millis()).unwrap_or(u64::MAX), SeqCst);
        self.hand_over();
    }

    /// No instance is started before that time, for that reason; `None`: one may be.
    pub fn set_pause(&self, pause: Option<(Instant, String)>) {
        self.queue().pause = pause;
    }

    /// Tells all who wait that they wait in vain.
    pub fn refuse_waiting(&self, error: &AcquireError) {
        let waiters = std::mem::take(&mut self.queue().waiters);
        self.waiting.fetch_sub(waiters.len(), SeqCst);
        for waiter in waiters {
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    /// Nobody can begin to wait any more.
    pub fn close(&self) {
        self.queue().closed = true;
        self.refuse_waiting(&AcquireError::Removed);
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    pub fn ready(&self) -> arc_swap::Guard<Arc<Vec<Arc<Slot>>>> {
        self.ready.load()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
