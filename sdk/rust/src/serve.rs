//! Handles many calls at a time on one thread.

use crate::arena::Kick;
use crate::call::Call;
use crate::link::Link;
use crate::state::{NODE, Number, State};
use crate::wait::Interest;
use futures_util::stream::{FuturesUnordered, StreamExt};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The number of ways that are read in one turn.
const EVENTS: usize = 32;
/// The number of the kick among the ways, whose numbers have 32 bits.
const KICK: u64 = 1 << 32;

/// A thread that reads all ways, for the tasks that it runs.
struct Server<'a> {
    link: &'a Link,
    /// The epoll instance that it waits for: all ways, and the kick.
    all: Arc<OwnedFd>,
    waker: Arc<ThreadWaker>,
}

/// Rings when a task of the server can continue.
struct ThreadWaker {
    server: ThreadId,
    rings: AtomicBool,
    kick: Arc<Kick>,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The server checks `rings` before it waits, so its own thread need not set the kick.
        if !self.rings.swap(true, Ordering::SeqCst) && thread::current().id() != self.server {
            self.kick.set();
        }
    }
}

/// Handles calls on this thread until the link has ended. Fails at once if another thread already
/// does so.
pub(crate) fn serve<H: Future<Output = ()>>(
    link: &Arc<Link>,
    most: usize,
    mut handle: impl FnMut(Call) -> H,
) -> io::Result<()> {
    let server = Server::start(link)?;
    let waker = Waker::from(server.waker.clone());
    let mut context = Context::from_waker(&waker);
    let (mut tasks, most) = (FuturesUnordered::new(), most.max(1));
    loop {
        while tasks.len() < most {
            let taken = link.lock().take_call();
            let Some((number, arrived)) = taken else { break };
            tasks.extend(link.accept(number, arrived).map(&mut handle));
        }
        // `FuturesUnordered` wakes itself when it has polled all tasks that could continue, so it
        // is polled again; but not for tasks that always wake themselves.
        for _ in 0..2 {
            server.waker.rings.store(false, Ordering::SeqCst);
            while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut context) {}
            if !server.waker.rings.load(Ordering::SeqCst) {
                break;
            }
        }
        if !server.turn(tasks.len() < most) {
            return Ok(());
        }
    }
}

impl<'a> Server<'a> {
    fn start(link: &'a Link) -> io::Result<Self> {
        let (kick, all) = (Kick::new()?, Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?));
        for (socket, number) in [(&link.socket, NODE.into()), (kick.file(), KICK)] {
            epoll::add(&all, socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        let waker = Arc::new(ThreadWaker { server: thread::current().id(), rings: AtomicBool::new(false), kick });
        let mut state = link.lock();
        if state.server.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another thread serves this chain"));
        }
        let watched = state.channels.iter_mut().try_for_each(|(way, channel)| channel.watch(*way, &all));
        state.server = Some(all.clone());
        drop(state);
        let server = Self { link, all, waker };
        watched.map(|()| server)
    }

    /// Reads pending packets. Waits if there are none, no task can continue, and no call can begin.
    /// Returns whether the link goes on, or a task can continue.
    fn turn(&self, has_capacity: bool) -> bool {
        let link = self.link;
        let mut state = link.lock();
        link.tell_later(&mut state);
        if state.ended {
            drop(state);
            // Tasks that wait for an answer are polled once more, to get the error.
            return self.waker.rings.load(Ordering::SeqCst);
        }
        // Other threads, and tasks that wait for memory, also read packets.
        if has_capacity && state.waiting_calls() > 0 {
            return true;
        }
        let ways = state.ways(&Interest::All);
        let read = state.waiters.claim(&ways);
        state.waiters.note(&Interest::All, &ways, Some(&self.waker.kick));
        let left = state.first_deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Unlocking wakes the threads and tasks that have something to do.
        drop(state);
        let left = match self.waker.rings.load(Ordering::SeqCst) {
            true => Some(Duration::ZERO),
            // A deadline has to have passed when it is checked.
            false => left.map(|left| left + Duration::from_millis(1)),
        };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        // If this fails, so does reading.
        let _ = rustix::io::retry_on_intr(|| epoll::wait(&self.all, spare_capacity(&mut events), left.as_ref()));

        let mut state = link.lock();
        state.waiters.unclaim(&read);
        for event in events {
            match event.data.u64() {
                KICK => self.waker.kick.reset(),
                // Channels have numbers of type `u32`.
                way => {
                    let way = way as u32;
                    if !state.is_read(way) {
                        link.read(&mut state, way);
                    }
                }
            }
        }
        state.end_late_calls();
        state.wake(Some(&Interest::All));
        state.waiters.leave();
        true
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        for channel in state.channels.values_mut() {
            channel.watch_no_more(&self.all);
        }
        state.server = None;
        // No thread reads their answers any more.
        state.wake_tasks();
        state.waiters.leave();
    }
}

impl State {
    fn first_deadline(&self) -> Option<Instant> {
        self.asked.values().filter(|asked| asked.answer.is_none()).filter_map(|asked| asked.deadline).min()
    }
}

impl Link {
    /// Whether the answer to a call is there. If not, the task is woken when it is; `None`: no
    /// thread would wake it.
    pub(crate) fn poll(&self, number: Number, waker: &Waker) -> Option<bool> {
        // A waker is cloned and dropped while the state is not locked: it belongs to a runtime, and
        // dropping it may drop a task that calls this library.
        let mut known = Some(waker.clone());
        let mut state = self.lock();
        if state.is_answered(number) || state.ended {
            return Some(true);
        }
        state.server.is_some().then_some(())?;
        std::mem::swap(&mut state.asked.get_mut(&number)?.waker, &mut known);
        Some(false)
    }
}
