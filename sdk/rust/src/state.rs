//! What this program knows of its link, and who reads it.

use crate::arena::{Arena, OnFull, Part};
use crate::body::{Kind as Body, Memory, Payload};
use crate::connect::Connected;
use crate::error::Error;
use leno_chain::descriptor::{self, BYTES, Descriptor, Kind, MOST, UNIT};
use leno_chain::handshake::Announcement;
use leno_chain::mapping::Mapping;
use leno_chain::message::{self, Message, Place};
use leno_chain::socket::{self, Received};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// With so many descriptors that may be sent later, later is now. So it is with one for so many bytes.
const MOST_LATER: usize = 32;
const LARGE: u64 = 64 << 10;

pub(crate) struct Link {
    socket: OwnedFd,
    own: Arc<Arena>,
    node: Arc<Mapping>,
    head: u32,
    waits_when_full: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Calls that nobody has taken.
    calls: VecDeque<(u32, Arrived)>,
    /// Calls that somebody handles, and whose caller does not wait any more.
    cancelled: HashSet<u32>,
    /// Calls that this program makes, until their answer is taken. An answer may be none.
    asked: HashMap<u32, Option<Option<Arrived>>>,
    last_asked: u32,
    arenas: HashMap<u32, Arc<Mapping>>,
    /// What somebody may be reading, by slot.
    sent: HashMap<u32, Sent>,
    /// What the node is told with whatever it is told next, or before this program waits.
    later: Vec<Descriptor>,
    /// Somebody reads the socket.
    leading: bool,
    waiters: Vec<Waiter>,
    ended: bool,
}

/// A message that has come.
pub(crate) struct Arrived {
    slot: u32,
    head: u32,
    pub(crate) body: Option<(Memory, Place)>,
}

struct Sent {
    _message: Part,
    _body: Option<Arc<Part>>,
}

struct Waiter {
    thread: Thread,
    interest: Interest,
    woken: bool,
}

/// What somebody waits for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Interest {
    Call,
    Answers(Vec<u32>),
    Memory,
}

/// What is in its arena, and not sent yet.
pub(crate) struct Written {
    message: Part,
    body: Option<Arc<Part>>,
    length: u32,
}

impl Link {
    pub(crate) fn new(Connected { socket, own, node, head }: Connected) -> io::Result<Arc<Self>> {
        let (own, node) = (Arena::new(own)?, Arc::new(node));
        let (waits_when_full, state) = (AtomicBool::new(false), Mutex::default());
        Ok(Arc::new(Self { socket, own, node, head, waits_when_full, state }))
    }

    pub(crate) fn set_on_full(&self, on_full: OnFull) {
        self.waits_when_full.store(on_full == OnFull::Wait, Ordering::Relaxed);
    }

    /// Memory of this program's arena.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Part, Error> {
        if let Ok(part) = self.own.allocate(bytes) {
            return Ok(part);
        }
        self.catch_up();
        match self.own.allocate(bytes) {
            // More than there is will never be free.
            Err(_) if self.waits_when_full.load(Ordering::Relaxed) && bytes <= self.own.pool().mapping().length() => {
                let _waiting = self.own.wait();
                self.wait(Interest::Memory, |_| self.own.allocate(bytes).ok())
            }
            allocated => Ok(allocated?),
        }
    }

    /// Writes a message into the arena.
    pub(crate) fn write(&self, head: &[u8], parent: u32, payload: &Payload<'_>) -> Result<Written, Error> {
        let length = u32::try_from(head.len()).ok().filter(|length| *length <= self.head);
        let length = length.ok_or(Error::TooLong(head.len(), self.head))?;
        let body = match &payload.0 {
            Body::Shared(shared) if !Arc::ptr_eq(shared.memory().arena(), &self.own) => {
                return Err(Error::OtherLink);
            }
            Body::Shared(shared) => Some(shared.memory().clone()),
            Body::Empty | Body::Received(_) => None,
        };
        let mut part = self.allocate((message::BYTES + head.len()) as u64)?;
        let (fixed, rest) = part.bytes_mut().split_at_mut(message::BYTES);
        fixed.copy_from_slice(&Message { head: length, parent, body: payload.place() }.encode());
        rest[..head.len()].copy_from_slice(head);
        Ok(Written { message: part, body, length: message::BYTES as u32 + length })
    }

    /// Sends a call. Returns its number.
    pub(crate) fn ask(&self, written: Written) -> Result<u32, Error> {
        let mut state = self.lock();
        let number = state.next_number();
        self.send(&mut state, Kind::Call, number, written)?;
        state.asked.insert(number, None);
        Ok(number)
    }

    /// Answers a call, or forwards it.
    pub(crate) fn close(&self, kind: Kind, number: u32, written: Written) -> Result<(), Error> {
        let mut state = self.lock();
        state.cancelled.remove(&number);
        self.send(&mut state, kind, number, written)
    }

    fn send(&self, state: &mut State, kind: Kind, number: u32, written: Written) -> Result<(), Error> {
        let slot = written.message.slot();
        state.sent.insert(slot, Sent { _message: written.message, _body: written.body });
        self.tell(state, Descriptor::message(kind, number, slot, written.length))
    }

    /// Answers a call with nothing.
    pub(crate) fn fail(&self, number: u32) {
        let mut state = self.lock();
        state.cancelled.remove(&number);
        // If the link has ended, so has the call.
        let _ = self.tell(&mut state, Descriptor::number(Kind::Answer, number));
    }

    pub(crate) fn is_cancelled(&self, number: u32) -> bool {
        self.catch_up();
        let state = self.lock();
        state.ended || state.cancelled.contains(&number)
    }

    /// Nobody waits for the answer of that call.
    pub(crate) fn cancel(&self, number: u32) {
        let mut state = self.lock();
        match state.asked.remove(&number) {
            Some(None) => drop(self.tell(&mut state, Descriptor::number(Kind::Cancel, number))),
            Some(Some(Some(arrived))) => self.release_locked(&mut state, number, arrived.body_bytes()),
            Some(Some(None)) | None => {}
        }
    }

    /// An answer is not read any more.
    pub(crate) fn release(&self, number: u32, bytes: u64) {
        self.release_locked(&mut self.lock(), number, bytes);
    }

    fn release_locked(&self, state: &mut State, number: u32, bytes: u64) {
        state.later.push(Descriptor::number(Kind::Release, number));
        if state.later.len() >= MOST_LATER || bytes >= LARGE {
            self.tell_later(state);
        }
    }

    fn tell_later(&self, state: &mut State) {
        if let Some(last) = state.later.pop() {
            // If the link has ended, nobody has to be told.
            let _ = self.tell(state, last);
        }
    }

    /// Sends a descriptor, after those that were left for later. The node always reads, so this waits for a moment at most.
    fn tell(&self, state: &mut State, descriptor: Descriptor) -> Result<(), Error> {
        state.later.push(descriptor);
        let later = std::mem::take(&mut state.later);
        for descriptors in later.chunks(MOST) {
            let mut packet = [0; BYTES * MOST];
            for (descriptor, bytes) in descriptors.iter().zip(packet.chunks_exact_mut(BYTES)) {
                bytes.copy_from_slice(&descriptor.encode());
            }
            if state.ended
                || socket::send(&self.socket, &packet[..descriptors.len() * BYTES], &[], SendFlags::empty()).is_err()
            {
                state.end();
                return Err(Error::Ended);
            }
        }
        Ok(())
    }

    /// Waits until something is there. Whoever waits first reads the socket for all, and hands that over when it has what it waits for.
    pub(crate) fn wait<T>(
        &self,
        interest: Interest,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let mut state = self.lock();
        let result = loop {
            if let Some(taken) = take(&mut state) {
                break Ok(taken);
            }
            if state.ended {
                break Err(Error::Ended);
            }
            self.tell_later(&mut state);
            if state.leading {
                let waiter = state.waiter(&interest);
                waiter.woken = false;
                drop(state);
                thread::park();
                state = self.lock();
            } else {
                state.leading = true;
                drop(state);
                let mut packet = [0; BYTES * MOST];
                let received = self.receive(&interest, &mut packet);
                state = self.lock();
                state.leading = false;
                if let Some(received) = received {
                    self.take(&mut state, &packet, received, Some(&interest));
                }
            }
        };
        let me = thread::current().id();
        state.waiters.retain(|waiter| waiter.thread.id() != me);
        state.hand_over();
        result
    }

    /// Waits for a packet; `None`: something was freed, for which the reader waits.
    fn receive(&self, interest: &Interest, packet: &mut [u8]) -> Option<io::Result<Received>> {
        if *interest == Interest::Memory {
            let (socket, freed) =
                (PollFd::new(&self.socket, PollFlags::IN), PollFd::new(self.own.freed(), PollFlags::IN));
            let mut both = [socket, freed];
            // If this fails, so does the next one.
            let _ = rustix::io::retry_on_intr(|| poll(&mut both, None));
            if !both[1].revents().is_empty() {
                self.own.heard();
                return None;
            }
        }
        Some(socket::receive(&self.socket, packet, RecvFlags::empty()))
    }

    /// Reads what has come, without waiting. If somebody waits, he has read it.
    fn catch_up(&self) {
        let mut state = self.lock();
        while !state.leading && !state.ended {
            let mut packet = [0; BYTES * MOST];
            match socket::receive(&self.socket, &mut packet, RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => self.take(&mut state, &packet, received, None),
            }
        }
    }

    /// Notes what was received, or that the link has ended. `reader` is what the one who received it waits for himself.
    fn take(&self, state: &mut State, packet: &[u8], received: io::Result<Received>, reader: Option<&Interest>) {
        let received = received.ok().filter(|received| received.bytes > 0 && !received.cut);
        if received.and_then(|received| self.read(state, packet, received)).is_none() {
            state.end();
        }
        state.wake(reader);
    }

    /// What the node says; `None`: it makes no sense.
    fn read(&self, state: &mut State, packet: &[u8], received: Received) -> Option<()> {
        let packet = &packet[..received.bytes];
        if Announcement::is(packet) {
            let announcement = Announcement::decode(packet).ok()?;
            let mapping = Mapping::readable(received.files.first()?, announcement.size).ok()?;
            state.arenas.insert(announcement.number, Arc::new(mapping));
            return Some(());
        }
        let (descriptors, []) = packet.as_chunks() else { return None };
        for bytes in descriptors {
            let descriptor = Descriptor::decode(bytes).ok()?;
            let number = descriptor.number;
            match descriptor.kind {
                Kind::Call => {
                    let arrived = self.arrived(state, &descriptor)??;
                    state.calls.push_back((number, arrived));
                }
                Kind::Answer => {
                    let arrived = self.arrived(state, &descriptor)?;
                    match (state.asked.get_mut(&number), arrived) {
                        (Some(waiting), arrived) => *waiting = Some(arrived),
                        (None, Some(arrived)) => self.release_locked(state, number, arrived.body_bytes()),
                        (None, None) => {}
                    }
                }
                Kind::Cancel => match state.calls.iter().position(|(waiting, _)| *waiting == number) {
                    Some(place) => {
                        state.calls.remove(place);
                        state.later.push(Descriptor::number(Kind::Answer, number));
                    }
                    None => drop(state.cancelled.insert(number)),
                },
                Kind::Free => drop(state.sent.remove(&descriptor.slot)),
                Kind::Forget => drop(state.arenas.remove(&number)),
                Kind::Release | Kind::Forward => return None,
            }
        }
        Some(())
    }

    /// The message of a descriptor; `Some(None)`: it has none.
    fn arrived(&self, state: &State, descriptor: &Descriptor) -> Option<Option<Arrived>> {
        if descriptor.length == 0 {
            return Some(None);
        }
        let mut fixed = [0; message::BYTES];
        let (slot, offset) = (descriptor.slot, u64::from(descriptor.slot) * UNIT);
        self.node.read(offset, &mut fixed).ok()?;
        let message = Message::decode(&fixed).ok()?;
        self.node.check(offset, u64::from(descriptor.length)).ok()?;
        if descriptor.length.checked_sub(message::BYTES as u32) != Some(message.head) {
            return None;
        }
        let body = message.body;
        if body.length == 0 {
            return Some(Some(Arrived { slot, head: message.head, body: None }));
        }
        let memory = match body.arena {
            message::INSTANCE => Memory::Own(self.own.pool().clone()),
            message::NODE => Memory::Other(self.node.clone()),
            number => Memory::Other(state.arenas.get(&number)?.clone()),
        };
        memory.mapping().check(body.offset, body.length).ok()?;
        Some(Some(Arrived { slot, head: message.head, body: Some((memory, body)) }))
    }

    /// A copy of a message's head.
    pub(crate) fn head(&self, arrived: &Arrived) -> Vec<u8> {
        let mut head = vec![0; arrived.head as usize];
        // It was checked when it came.
        let _ = self.node.read(u64::from(arrived.slot) * UNIT + message::BYTES as u64, &mut head);
        head
    }

    pub(crate) fn end(&self) {
        self.lock().end();
        // It may be closed already. Whoever reads it wakes up.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(crate) fn take_call(&mut self) -> Option<(u32, Arrived)> {
        self.calls.pop_front()
    }

    /// The answer to one of these calls: which one, and what it is.
    pub(crate) fn take_answer(&mut self, numbers: &[u32]) -> Option<(usize, Option<Arrived>)> {
        let place = numbers.iter().position(|number| matches!(self.asked.get(number), Some(Some(_))))?;
        Some((place, self.asked.remove(&numbers[place])??))
    }

    fn next_number(&mut self) -> u32 {
        loop {
            self.last_asked = descriptor::next(self.last_asked);
            if !self.asked.contains_key(&self.last_asked) {
                return self.last_asked;
            }
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.waiters.iter().for_each(|waiter| waiter.thread.unpark());
    }

    /// This thread as one that waits.
    fn waiter(&mut self, interest: &Interest) -> &mut Waiter {
        let me = thread::current();
        let place = self.waiters.iter().position(|waiter| waiter.thread.id() == me.id()).unwrap_or_else(|| {
            self.waiters.push(Waiter { thread: me, interest: interest.clone(), woken: false });
            self.waiters.len() - 1
        });
        &mut self.waiters[place]
    }

    /// Wakes those who have what they wait for, but for the one who reads.
    fn wake(&mut self, reader: Option<&Interest>) {
        let mut calls = self.calls.len().saturating_sub(usize::from(reader == Some(&Interest::Call)));
        for waiter in &mut self.waiters {
            let has = match &waiter.interest {
                Interest::Call => calls > 0,
                Interest::Answers(numbers) => {
                    numbers.iter().any(|number| matches!(self.asked.get(number), Some(Some(_))))
                }
                // They are woken when something is freed.
                Interest::Memory => false,
            };
            if has && waiter.interest == Interest::Call {
                calls -= 1;
            }
            if has && !waiter.woken {
                waiter.woken = true;
                waiter.thread.unpark();
            }
        }
    }

    /// Has somebody else read the socket, if anybody waits.
    fn hand_over(&mut self) {
        if self.leading || self.waiters.iter().any(|waiter| waiter.woken) {
            return;
        }
        if let Some(waiter) = self.waiters.first_mut() {
            waiter.woken = true;
            waiter.thread.unpark();
        }
    }
}

impl Arrived {
    fn body_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |(_, place)| place.length)
    }
}
