//! Waiting, and how one waiting thread reads for all others.
//!
//! Calls arrive on one way: the node's socket, together with the channels from callers. Answers
//! arrive on the node's socket, too, and on the channel to a callee. One of the threads that wait
//! for packets of a way reads it. It wakes the others when it has read the packets that they wait
//! for, or when its own wait is over.

use crate::arena::Kick;
use crate::error::Error;
use crate::link::Link;
use crate::state::{NODE, Number, State};
use leno_shm::descriptor::{BYTES, MOST};
use leno_shm::handshake::End;
use leno_shm::socket::{self, Packet};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The number of channels that are read at once.
const EVENTS: usize = 16;

/// The kind of event that a thread waits for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Interest {
    Call,
    Answers(Vec<Number>),
    Memory,
    /// All events, to wake tasks.
    All,
}

/// The waiting threads.
#[derive(Default)]
pub(crate) struct Waiters {
    waiters: Vec<Waiter>,
    /// Ways that a thread reads.
    read: Vec<u32>,
    /// Threads and tasks to be woken when the state is unlocked.
    woken: Vec<Wake>,
}

/// Wakes a thread or task.
pub(crate) enum Wake {
    Thread(Thread),
    Kick(Arc<Kick>),
    Task(Waker),
}

impl Wake {
    pub(crate) fn wake(self) {
        match self {
            Self::Thread(thread) => thread.unpark(),
            Self::Kick(kick) => kick.set(),
            Self::Task(waker) => waker.wake(),
        }
    }
}

struct Waiter {
    thread: Thread,
    interest: Interest,
    ways: Vec<u32>,
    woken: bool,
    /// The thread waits for this kick, and is not parked.
    kick: Option<Arc<Kick>>,
}

/// The result of reading while the state was not locked.
enum Got {
    /// These ways can be read.
    Ready(Vec<u32>),
    /// A packet of the node.
    Packet(io::Result<Packet>),
    /// Bytes of a channel; `None`: it has ended.
    Bytes(Option<usize>),
    /// A call may have exceeded its deadline.
    Late,
}

impl Link {
    /// Waits until `take` returns a value.
    pub(crate) fn wait<T>(
        &self,
        interest: &Interest,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        // The kick is set by a thread that frees memory.
        let mut kick = match interest {
            Interest::Memory => Some(Kick::new().map_err(|_| Error::Failed)?),
            Interest::Call | Interest::Answers(_) | Interest::All => None,
        };
        let _waiting = kick.as_ref().map(|kick| self.arena().wait(kick.clone()));
        let mut state = self.lock();
        let result = loop {
            // This is done before any thread, including this one, checks whether its event has
            // occurred.
            if self.read_withdrawn(&mut state) {
                state.wake(None);
            }
            if let Some(taken) = take(&mut state) {
                break Ok(taken);
            }
            if state.ended {
                break Err(Error::Ended);
            }
            self.tell_later(&mut state);
            let ways = state.ways(interest);
            let read = state.waiters.claim(&ways);
            let mut bytes = [0; BYTES * MOST];
            let got = match (&*read, ways.len(), &kick) {
                ([], 1, None) => {
                    state.waiters.note(interest, &ways, None);
                    drop(state);
                    thread::park();
                    state = self.lock();
                    continue;
                }
                ([NODE], 1, None) => {
                    let channels = state.has_callers();
                    drop(state);
                    // An offer of the first channel would arrive here, too.
                    if channels { self.wait_for_calls() } else { Got::Packet(self.wait_for_packet(&mut bytes)) }
                }
                ([way], 1, None) if !state.is_urgent(*way, interest) => {
                    // The channel may have ended just now.
                    let socket = state.channels.get(way).map(|channel| channel.socket.clone());
                    drop(state);
                    match socket.map(|socket| rustix::net::recv(&socket, &mut bytes, RecvFlags::empty())) {
                        Some(Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)) => Got::Late,
                        received => Got::Bytes(received.and_then(Result::ok).map(|(bytes, _)| bytes)),
                    }
                }
                _ => {
                    if kick.is_none() {
                        let Ok(new) = Kick::new() else {
                            state.waiters.unclaim(&read);
                            break Err(Error::Failed);
                        };
                        kick = Some(new);
                    }
                    let deadline = match interest {
                        Interest::Answers(numbers) => state.deadline(numbers),
                        Interest::Call | Interest::Memory | Interest::All => None,
                    };
                    state.waiters.note(interest, &ways, kick.as_ref());
                    let socket = |way: &u32| Some((*way, state.channels.get(way)?.socket.clone()));
                    let channels: Vec<_> = read.iter().filter_map(socket).collect();
                    drop(state);
                    self.wait_for_several(kick.as_deref(), read.contains(&NODE), &channels, deadline)
                }
            };
            state = self.lock();
            state.waiters.unclaim(&read);
            match (got, &*read) {
                (Got::Bytes(count), [way, ..]) => {
                    self.hear_channel(&mut state, *way, count.and_then(|count| bytes.get(..count)));
                }
                (Got::Ready(ready), _) => {
                    for way in ready {
                        self.read(&mut state, way);
                    }
                }
                (Got::Packet(received), _) => self.take(&mut state, &bytes, received),
                (Got::Late | Got::Bytes(_), _) => {}
            }
            state.end_late_calls();
            state.wake(Some(interest));
        };
        state.waiters.leave();
        result
    }

    fn wait_for_packet(&self, packet: &mut [u8]) -> io::Result<Packet> {
        socket::receive(self.socket(), packet, RecvFlags::empty())
    }

    fn wait_for_calls(&self) -> Got {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        // If this fails, so does reading.
        let _ = rustix::io::retry_on_intr(|| epoll::wait(&self.calls, spare_capacity(&mut events), None));
        if events.is_empty() {
            return Got::Ready(vec![NODE]);
        }
        // Channels have numbers of type `u32`.
        Got::Ready(events.iter().map(|event| event.data.u64() as u32).collect())
    }

    fn wait_for_several(
        &self,
        kick: Option<&Kick>,
        calls: bool,
        channels: &[(u32, Arc<OwnedFd>)],
        deadline: Option<Instant>,
    ) -> Got {
        let watch = |socket| PollFd::new(socket, PollFlags::IN);
        let kicked = kick.map(|kick| watch(kick.file()));
        let mut all: Vec<PollFd<'_>> = kicked.into_iter().collect();
        let first = all.len();
        all.extend(calls.then(|| watch(&self.calls)));
        all.extend(channels.iter().map(|(_, socket)| watch(socket)));
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        // If this fails, so does the next call.
        let _ = rustix::io::retry_on_intr(|| poll(&mut all, left.as_ref()));
        if let Some(kick) = kick {
            kick.reset();
        }
        let (mut ready, mut place) = (Vec::new(), first);
        if calls {
            if !all[place].revents().is_empty() {
                // Pending packets are read one by one.
                if let Got::Ready(ways) = self.wait_for_calls() {
                    ready.extend(ways);
                }
            }
            place += 1;
        }
        let of_channels = channels.iter().zip(&all[place..]);
        ready.extend(of_channels.filter(|(_, polled)| !polled.revents().is_empty()).map(|((way, _), _)| *way));
        Got::Ready(ready)
    }
}

impl State {
    /// The ways on which an event of this kind may arrive.
    pub(crate) fn ways(&self, interest: &Interest) -> Vec<u32> {
        let mut ways: Vec<u32> = match interest {
            Interest::Call => vec![NODE],
            Interest::Answers(numbers) => numbers.iter().map(|number| number.way).collect(),
            // An answer also gives back the memory of its call.
            Interest::Memory => self.asked_ways().chain([NODE]).collect(),
            Interest::All => {
                let to_callees = self.channels.iter().filter(|(_, channel)| channel.end == End::Caller);
                to_callees.map(|(way, _)| *way).chain([NODE]).collect()
            }
        };
        ways.sort_unstable();
        ways.dedup();
        ways
    }

    /// Whether the earliest deadline of the awaited calls is so near that the channel's own timeout
    /// would be too late.
    fn is_urgent(&self, way: u32, interest: &Interest) -> bool {
        let Interest::Answers(numbers) = interest else { return false };
        let timeout = self.channels.get(&way).and_then(|channel| channel.timeout);
        let left = self.deadline(numbers).map(|deadline| deadline.saturating_duration_since(Instant::now()));
        timeout.zip(left).is_some_and(|(timeout, left)| left < timeout / 2)
    }

    /// Whether calls also arrive on channels.
    fn has_callers(&self) -> bool {
        self.channels.values().any(|channel| channel.end == End::Callee)
    }

    /// Whether a thread reads this way.
    pub(crate) fn is_read(&self, way: u32) -> bool {
        let way = match self.channels.get(&way).map(|channel| channel.end) {
            Some(End::Caller) => way,
            _ => NODE,
        };
        self.waiters.read.contains(&way)
    }

    /// Wakes the threads whose events have occurred, except for the reader.
    pub(crate) fn wake(&mut self, reader: Option<&Interest>) {
        let takes_one = |interest: &Interest| matches!(interest, Interest::Call | Interest::All);
        let mut calls = self.waiting_calls().saturating_sub(usize::from(reader.is_some_and(takes_one)));
        let mut waiters = std::mem::take(&mut self.waiters.waiters);
        for waiter in waiters.iter_mut().filter(|waiter| !waiter.woken) {
            let has = match &waiter.interest {
                Interest::Call | Interest::All => calls > 0,
                Interest::Answers(numbers) => numbers.iter().any(|number| self.is_answered(*number)),
                // These threads are woken when memory is freed.
                Interest::Memory => false,
            };
            if has {
                calls -= usize::from(takes_one(&waiter.interest));
                self.waiters.woken.push(waiter.wake());
            }
        }
        self.waiters.waiters = waiters;
    }
}

impl Waiters {
    /// Takes those of the ways that no thread reads.
    pub(crate) fn claim(&mut self, ways: &[u32]) -> Vec<u32> {
        let free: Vec<u32> = ways.iter().copied().filter(|way| !self.read.contains(way)).collect();
        self.read.extend(&free);
        free
    }

    pub(crate) fn unclaim(&mut self, ways: &[u32]) {
        self.read.retain(|way| !ways.contains(way));
    }

    /// Records that this thread is about to wait.
    pub(crate) fn note(&mut self, interest: &Interest, ways: &[u32], kick: Option<&Arc<Kick>>) {
        let (thread, interest, kick) = (thread::current(), interest.clone(), kick.cloned());
        let waiter = Waiter { thread, interest, ways: ways.to_vec(), woken: false, kick };
        let known = self.waiters.iter_mut().find(|known| known.thread.id() == waiter.thread.id());
        match known {
            Some(known) => *known = waiter,
            None => self.waiters.push(waiter),
        }
    }

    /// Ends the wait of this thread. If other threads wait for the ways that it has read, one of
    /// them is woken to read on.
    pub(crate) fn leave(&mut self) {
        let me = thread::current().id();
        self.waiters.retain(|waiter| waiter.thread.id() != me);
        let mut read = self.read.clone();
        let woken = self.waiters.iter().filter(|waiter| waiter.woken);
        read.extend(woken.flat_map(|waiter| waiter.ways.iter().copied()));
        for waiter in self.waiters.iter_mut().filter(|waiter| !waiter.woken) {
            if waiter.ways.iter().any(|way| !read.contains(way)) {
                read.extend(&waiter.ways);
                self.woken.push(waiter.wake());
            }
        }
    }

    /// Wakes a task, once the state is not locked.
    pub(crate) fn wake_task(&mut self, task: Option<Waker>) {
        self.woken.extend(task.map(Wake::Task));
    }

    pub(crate) fn wake_all(&mut self) {
        self.woken.extend(self.waiters.iter_mut().map(Waiter::wake));
    }

    pub(crate) fn take_woken(&mut self) -> Vec<Wake> {
        std::mem::take(&mut self.woken)
    }
}

impl Waiter {
    fn wake(&mut self) -> Wake {
        self.woken = true;
        match &self.kick {
            Some(kick) => Wake::Kick(kick.clone()),
            None => Wake::Thread(self.thread.clone()),
        }
    }
}
