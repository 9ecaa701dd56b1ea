//! The scheduler of a worker: one thread runs the tasks of many functions, and no function keeps
//! the others waiting.
//!
//! Each task works for a [`Class`]: a function, once the proxy knows which one ([`charge`]). Ready
//! tasks wait in one queue per class, and the class that has had the least time is next. So a
//! function with a thousand busy connections delays another function's request by one turn, not by
//! a thousand. Sockets and timers are polled after each slice of 100 µs.

mod fair;
#[cfg(test)]
mod tests;

pub use fair::Class;

use async_task::{Builder, Runnable, Task};
use fair::Fair;
use pin_project_lite::pin_project;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::task::coop;

/// How long tasks take turns before sockets and timers are polled. Shorter slices would reduce
/// latency, but each poll costs time and would find less.
const SLICE: Duration = Duration::from_micros(100);
/// The slice while a single function is served for [`ALONE`] or longer: that function delays only
/// itself.
const LONG_SLICE: Duration = Duration::from_millis(1);
/// After this time with a single function, slices are long. The next request of another function
/// then waits for one long slice, once.
const ALONE: Duration = Duration::from_secs(1);

/// The class for which a task works. Clones belong to the same task.
#[derive(Clone, Debug)]
pub struct TaskOwner(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    /// Atomic only because wakers may be used on other threads.
    class: AtomicU64,
    /// The task of which this one is a part, such as a stream's connection. It is set to the same
    /// class.
    parent: Option<TaskOwner>,
}

impl TaskOwner {
    fn new(class: Class, parent: Option<Self>) -> Self {
        Self(Arc::new(Owner { class: AtomicU64::new(class.0), parent }))
    }

    fn class(&self) -> Class {
        Class(self.0.class.load(Ordering::Relaxed))
    }

    fn set(&self, class: Class) {
        self.0.class.store(class.0, Ordering::Relaxed);
        if let Some(parent) = &self.0.parent {
            parent.set(class);
        }
    }

    /// From now on, this task works for the class of the running task.
    #[inline]
    pub fn follow(&self) {
        if let Some(class) = with_running(TaskOwner::class) {
            self.set(class);
        }
    }
}

/// From now on, the running task works for `class`.
#[inline]
pub fn charge(class: Class) {
    with_running(|owner| owner.set(class));
}

/// Starts a task on this thread, for the class of the running task. Outside of [`run`] the task is
/// dropped.
pub fn spawn(future: impl Future<Output = ()> + 'static) -> TaskOwner {
    start(future, TaskOwner::new(with_running(TaskOwner::class).unwrap_or(Class::WORKER), None))
}

/// Starts a task on this thread that works for `class`.
pub fn spawn_for(class: Class, future: impl Future<Output = ()> + 'static) {
    start(future, TaskOwner::new(class, None));
}

/// Starts a task that is a part of the running one: when the class of the part changes, the class
/// of the running one changes too.
pub fn spawn_part(future: impl Future<Output = ()> + 'static) {
    let parent = with_running(TaskOwner::clone);
    start(future, TaskOwner::new(parent.as_ref().map_or(Class::WORKER, TaskOwner::class), parent));
}

/// Starts a task of the worker itself. The task ends when the result is dropped.
pub fn spawn_own(future: impl Future<Output = ()> + 'static) -> Option<OwnedTask> {
    executor()?.start(future, TaskOwner::new(Class::WORKER, None))
}

/// Yields once, so that every ready task gets a turn.
pub async fn give_way() {
    let mut given = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sets a callback for this thread. It is called whenever no task is ready, before sockets and
/// timers are polled.
pub fn when_idle(act: impl Fn() + 'static) {
    if let Some(executor) = executor() {
        executor.idle.replace(Some(Box::new(act)));
    }
}

/// A task that ends when this is dropped.
pub type OwnedTask = Task<(), TaskOwner>;

fn start(future: impl Future<Output = ()> + 'static, owner: TaskOwner) -> TaskOwner {
    match executor().and_then(|executor| executor.start(future, owner.clone())) {
        Some(task) => task.detach(),
        None => tracing::debug!("a task came when its worker had ended"),
    }
    owner
}

/// Runs `main`, one of the worker's own tasks, and all tasks that it starts. They run on this
/// thread, which must be inside a tokio runtime. When `main` has ended, all other tasks are
/// dropped.
pub async fn run(main: impl Future<Output = ()> + 'static) {
    let executor = Closing(Rc::new(Executor::default()));
    let Some(main) = executor.0.start(main, TaskOwner::new(Class::WORKER, None)) else { return };
    poll_fn(|cx| {
        executor.0.slice(cx);
        if main.is_finished() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

thread_local! {
    /// The executor whose slice is running.
    static EXECUTOR: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

fn executor() -> Option<Rc<Executor>> {
    EXECUTOR.with_borrow(Clone::clone)
}

fn with_running<T>(act: impl FnOnce(&TaskOwner) -> T) -> Option<T> {
    EXECUTOR.with_borrow(|executor| executor.as_ref()?.running.borrow().as_ref().map(act))
}

/// The tasks of one thread.
#[derive(Default)]
struct Executor {
    ready: Arc<Ready>,
    /// The class of the task that is being polled.
    running: RefCell<Option<TaskOwner>>,
    /// All tasks that have not ended, so that they can be dropped.
    alive: Rc<Alive>,
    closed: Cell<bool>,
    /// The callback for when no task is ready.
    idle: RefCell<Option<Box<dyn Fn()>>>,
    /// The function that was served last, and when it followed another function.
    last_served: Cell<(Class, Option<Instant>)>,
}

type Alive = RefCell<Slab<Option<Waker>>>;

impl Executor {
    /// `None`: the executor is closed, and the task was dropped.
    fn start(&self, future: impl Future<Output = ()> + 'static, owner: TaskOwner) -> Option<OwnedTask> {
        if self.closed.get() {
            return None;
        }
        let index = self.alive.borrow_mut().insert(None);
        let future = Living { future, _entry: AliveEntry { alive: self.alive.clone(), index } };
        let ready = self.ready.clone();
        let (runnable, task) =
            Builder::new().metadata(owner).spawn_local(|_| future, move |runnable| ready.push(runnable));
        if let Some(entry) = self.alive.borrow_mut().get_mut(index) {
            *entry = Some(runnable.waker());
        }
        runnable.schedule();
        Some(task)
    }

    /// Lets tasks take turns until none is ready, or until sockets and timers must be polled. In
    /// the latter case it asks to be called again.
    ///
    /// tokio polls its drivers after each poll of a future on which it blocks. It also gives that
    /// future a budget of operations that complete at once (see [`coop`]), which the tasks of a
    /// slice share.
    fn slice(self: &Rc<Self>, cx: &Context<'_>) {
        let outer = EXECUTOR.replace(Some(self.clone()));
        let begin = Instant::now();
        let mut last = begin;
        let mut used = None;
        loop {
            let Some(runnable) = self.ready.next(used.take(), cx) else {
                self.idle.borrow().iter().for_each(|act| act());
                break;
            };
            self.running.replace(Some(runnable.metadata().clone()));
            if catch_unwind(AssertUnwindSafe(|| runnable.run())).is_err() {
                tracing::error!("a task panicked; what it served is cut off");
            }
            let now = Instant::now();
            let owner = self.running.take();
            used = owner.map(|owner| (owner.class(), nanoseconds(now - last)));
            last = now;
            if let Some((class, _)) = used {
                self.note(class, now);
            }
            if self.is_over(now - begin, now) || !coop::has_budget_remaining() {
                self.ready.charge(used.take());
                cx.waker().wake_by_ref();
                break;
            }
        }
        EXECUTOR.set(outer);
    }

    fn note(&self, class: Class, now: Instant) {
        let (last, _) = self.last_served.get();
        if class != last && class.is_function() {
            self.last_served.set((class, last.is_function().then_some(now)));
        }
    }

    /// Whether a slice that has lasted so long ends. One in which a single task is ready goes on
    /// for longer: on a node that slept, caches are cold, and the few turns of a lone request would
    /// take several slices.
    fn is_over(&self, lasted: Duration, now: Instant) -> bool {
        let (_, changed) = self.last_served.get();
        let is_shared = changed.is_some_and(|changed| now - changed < ALONE);
        lasted >= LONG_SLICE || (lasted >= SLICE && is_shared && self.ready.len() > 1)
    }

    /// Drops all tasks.
    fn close(&self) {
        self.closed.set(true);
        // A task that another thread is just waking is not in the queue yet, but will be in a
        // moment.
        while !self.alive.borrow().is_empty() {
            let wakers: Vec<Waker> = self.alive.borrow().iter().filter_map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
            while let Some(runnable) = self.ready.pop() {
                drop(runnable);
            }
            std::thread::yield_now();
        }
    }
}

/// Drops all tasks when [`run`] ends.
struct Closing(Rc<Executor>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

pin_project! {
    /// A task that has not ended.
    struct Living<F> {
        #[pin]
        future: F,
        _entry: AliveEntry,
    }
}

impl<F: Future> Future for Living<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

struct AliveEntry {
    alive: Rc<Alive>,
    index: usize,
}

impl Drop for AliveEntry {
    fn drop(&mut self) {
        let waker = self.alive.borrow_mut().try_remove(self.index);
        // Dropped only now, because the list is no longer borrowed.
        drop(waker);
    }
}

/// Tasks to poll. Other threads may wake tasks too, but almost always it is this thread, and then
/// the lock is free.
#[derive(Default)]
struct Ready(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    tasks: Fair<Runnable<TaskOwner>>,
    /// Waker of the executor, while it has nothing to do.
    sleeper: Option<Waker>,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, runnable: Runnable<TaskOwner>) {
        let mut waiting = self.lock();
        waiting.tasks.push(runnable.metadata().class(), runnable);
        let sleeper = waiting.sleeper.take();
        drop(waiting);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    fn pop(&self) -> Option<Runnable<TaskOwner>> {
        self.lock().tasks.pop()
    }

    /// How many tasks are ready.
    fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    /// Charges the time of the last task and returns the next task. If there is none, `cx` is woken
    /// when there is one.
    fn next(&self, used: Option<(Class, u64)>, cx: &Context<'_>) -> Option<Runnable<TaskOwner>> {
        let mut waiting = self.lock();
        if let Some((class, nanoseconds)) = used {
            waiting.tasks.charge(class, nanoseconds);
        }
        let next = waiting.tasks.pop();
        if next.is_none() {
            waiting.sleeper = Some(cx.waker().clone());
        }
        next
    }

    fn charge(&self, used: Option<(Class, u64)>) {
        if let Some((class, nanoseconds)) = used {
            self.lock().tasks.charge(class, nanoseconds);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
