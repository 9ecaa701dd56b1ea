//! The link of this program to its node, and sending on the link and on channels.

use crate::arena::{Arena, OnFull, Part};
use crate::body::{Kind as Body, Payload};
use crate::channel::{Channel, SentMessage, Unsent};
use crate::connect::LinkParts;
use crate::error::Error;
use crate::state::{NODE, Number, PendingCall, StagedMessage, State, StateGuard};
use crate::wait::Interest;
use leno_shm::descriptor::{BYTES, Descriptor, Kind, MOST};
use leno_shm::mapping::Mapping;
use leno_shm::message::{self, Message, Place};
use leno_shm::socket;
use rustix::event::epoll;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// With this number of delayed descriptors, they are sent at once. A release of at least [`LARGE`]
/// bytes is sent at once, too.
const MOST_LATER: usize = 32;
const LARGE: u64 = 64 << 10;
/// The length of the longest packet, in bytes.
pub(crate) const PACKET: usize = BYTES * MOST;

pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) own: Arc<Arena>,
    pub(crate) node: Arc<Mapping>,
    pub(crate) head: u32,
    waits_when_full: AtomicBool,
    /// The sources of calls: the socket, and channels from callers.
    pub(crate) calls: Arc<OwnedFd>,
    pub(crate) state: Mutex<State>,
}

impl Link {
    pub(crate) fn new(LinkParts { socket, own, node, head }: LinkParts) -> io::Result<Arc<Self>> {
        let (own, node) = (Arena::new(own), Arc::new(node));
        let (waits_when_full, state) = (AtomicBool::new(false), Mutex::default());
        let calls = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&calls, &socket, epoll::EventData::new_u64(NODE.into()), epoll::EventFlags::IN)?;
        Ok(Arc::new(Self { socket, own, node, head, waits_when_full, calls, state }))
    }

    pub(crate) fn set_on_full(&self, on_full: OnFull) {
        self.waits_when_full.store(on_full == OnFull::Wait, Ordering::Relaxed);
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.own
    }

    /// Allocates memory of this program's arena.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Part, Error> {
        if let Ok(part) = self.own.allocate(bytes) {
            return Ok(part);
        }
        self.catch_up();
        match self.own.allocate(bytes) {
            // More memory than the arena has will never be free.
            Err(_) if self.waits_when_full.load(Ordering::Relaxed) && bytes <= self.own.pool().mapping().length() => {
                self.wait(&Interest::Memory, |_| self.own.allocate(bytes).ok())
            }
            allocated => Ok(allocated?),
        }
    }

    /// Writes a message for this way into the arena. The body of an answer may be a part of the
    /// call's body.
    pub(crate) fn write(
        &self,
        (way, answers): (u32, Option<Number>),
        head: &[u8],
        parent: u32,
        payload: &Payload<'_>,
    ) -> Result<StagedMessage, Error> {
        let length = u32::try_from(head.len()).ok().filter(|length| *length <= self.head);
        let length = length.ok_or(Error::TooLong(head.len(), self.head))?;
        let (place, body) = match &payload.0 {
            Body::Shared(shared) if !Arc::ptr_eq(shared.memory().arena(), &self.own) => {
                return Err(Error::OtherLink);
            }
            Body::Shared(shared) => (payload.place(), Some(shared.memory().clone())),
            Body::Received(received) if received.is_empty() => (Place::default(), None),
            Body::Received(received) if received.is_the_nodes() && way == NODE => (payload.place(), None),
            Body::Received(received) if answers == Some(received.from()) => {
                (Place { arena: message::NODE, ..payload.place() }, None)
            }
            // The readers of a body that came on a channel are not counted, so it is copied.
            Body::Received(received) => {
                let mut part = self.allocate(received.len() as u64)?;
                part.bytes_mut()[..received.len()].copy_from_slice(received);
                let place = Place { arena: message::INSTANCE, offset: part.offset(), length: received.len() as u64 };
                (place, Some(Arc::new(part)))
            }
            Body::Empty => (Place::default(), None),
        };
        let mut part = self.allocate((message::BYTES + head.len()) as u64)?;
        let (fixed, rest) = part.bytes_mut().split_at_mut(message::BYTES);
        fixed.copy_from_slice(&Message { head: length, parent, body: place }.encode());
        rest[..head.len()].copy_from_slice(head);
        Ok(StagedMessage { message: part, body, length: message::BYTES as u32 + length })
    }

    /// Calls a function, over a channel to a function of that name if there is one. Returns the
    /// call's number.
    pub(crate) fn call(
        &self,
        parent: Option<Number>,
        name: Option<&str>,
        head: &[u8],
        payload: &Payload<'_>,
    ) -> Result<Number, Error> {
        let is_the_nodes =
            matches!(&payload.0, Body::Received(received) if received.is_the_nodes() && !received.is_empty());
        let channel = name.filter(|_| !is_the_nodes).and_then(|name| self.lock().channel_to(name));
        if let Some(way) = channel {
            let written = self.write((way, None), head, 0, payload)?;
            if let Some(number) = self.begin(way, written) {
                return Ok(number);
            }
        }
        let parent = parent.filter(|parent| parent.way == NODE).map_or(0, |parent| parent.number);
        let written = self.write((NODE, None), head, parent, payload)?;
        self.ask(&mut self.lock(), written)
    }

    /// Begins a call on a channel; `None`: the channel must not be used for it.
    pub(crate) fn begin(&self, way: u32, written: StagedMessage) -> Option<Number> {
        let mut state = self.lock();
        let channel = state.channels.get_mut(&way)?;
        match channel.call(written.message.slot(), written.length) {
            Ok(number) => {
                channel.sent.insert(number, SentMessage { _message: written.message, body: written.body });
                let deadline = channel.timeout.map(|timeout| Instant::now() + timeout);
                let number = Number { way, number };
                state.asked.insert(number, PendingCall { deadline, ..PendingCall::default() });
                Some(number)
            }
            // The call is sent to the node instead, which reports the reason if it refuses the
            // call.
            Err(Unsent::Refused) => None,
            Err(Unsent::Ended) => {
                state.end_channel(way);
                None
            }
        }
    }

    /// Sends a call to the node. Returns its number.
    fn ask(&self, state: &mut State, written: StagedMessage) -> Result<Number, Error> {
        let number = state.next_number();
        self.send(state, Kind::Call, number, written)?;
        let number = Number { way: NODE, number };
        state.asked.insert(number, PendingCall::default());
        Ok(number)
    }

    /// Answers a call.
    pub(crate) fn answer(&self, to: Number, head: &[u8], payload: &Payload<'_>) -> Result<(), Error> {
        let written = self.write((to.way, Some(to)), head, 0, payload)?;
        let mut state = self.lock();
        state.cancelled.remove(&to);
        if to.way == NODE {
            return self.send(&mut state, Kind::Answer, to.number, written);
        }
        state.answer_on_channel(to, written)
    }

    /// Delegates a call to another function.
    pub(crate) fn forward(&self, from: Number, head: &[u8], payload: &Payload<'_>) -> Result<(), Error> {
        let is_the_nodes = from.way == NODE;
        let written = self.write((NODE, None), head, if is_the_nodes { from.number } else { 0 }, payload)?;
        let mut state = self.lock();
        state.cancelled.remove(&from);
        if is_the_nodes {
            return self.send(&mut state, Kind::Forward, from.number, written);
        }
        // The answer arrives here, and is sent back from here.
        let number = self.ask(&mut state, written)?;
        state.forwarded.insert(number, from);
        Ok(())
    }

    pub(crate) fn send(&self, state: &mut State, kind: Kind, number: u32, written: StagedMessage) -> Result<(), Error> {
        let slot = written.message.slot();
        state.sent.insert(slot, SentMessage { _message: written.message, body: written.body });
        self.tell(state, Descriptor::message(kind, number, slot, written.length))
    }

    /// Ends a call without an answer.
    pub(crate) fn fail(&self, number: Number) {
        let mut state = self.lock();
        state.cancelled.remove(&number);
        self.fail_locked(&mut state, number);
    }

    pub(crate) fn fail_locked(&self, state: &mut State, number: Number) {
        let descriptor = Descriptor::number(Kind::Answer, number.number);
        state.closed(number);
        // If the link has ended, so has the call.
        if number.way == NODE {
            let _ = self.tell(state, descriptor);
        } else {
            state.tell_on_channel(number.way, descriptor);
        }
    }

    pub(crate) fn is_cancelled(&self, number: Number) -> bool {
        self.catch_up();
        let state = self.lock();
        state.ended || state.cancelled.contains(&number)
    }

    /// Cancels a call: this program does not wait for its answer any more.
    pub(crate) fn cancel(&self, number: Number) {
        // Dropped while the state is not locked, because dropping its waker may run other code.
        let mut asked;
        let mut state = self.lock();
        asked = state.asked.remove(&number);
        match asked.as_mut().map(|asked| asked.answer.take()) {
            Some(None) => {
                let descriptor = Descriptor::number(Kind::Cancel, number.number);
                if number.way == NODE {
                    let _ = self.tell(&mut state, descriptor);
                } else {
                    state.tell_on_channel(number.way, descriptor);
                }
            }
            Some(Some(Some(arrived))) if arrived.held => {
                self.release_locked(&mut state, number, arrived.body_bytes());
            }
            Some(Some(_)) | None => {}
        }
    }

    /// Releases an answer that is not read any more.
    pub(crate) fn release(&self, number: Number, bytes: u64) {
        self.release_locked(&mut self.lock(), number, bytes);
    }

    pub(crate) fn release_locked(&self, state: &mut State, number: Number, bytes: u64) {
        if number.way == NODE {
            state.later.push(Descriptor::number(Kind::Release, number.number));
            if state.later.len() >= MOST_LATER || bytes >= LARGE {
                self.tell_node_later(state);
            }
        } else if let Some(channel) = state.channels.get_mut(&number.way) {
            channel.release(number.number);
            // A call's message has space for a few releases.
            let most = if bytes >= LARGE { 0 } else { 4 };
            if let Err(Unsent::Ended) = channel.tell_later(most) {
                state.end_channel(number.way);
            }
        }
    }

    /// Sends the delayed descriptors, before a thread waits.
    pub(crate) fn tell_later(&self, state: &mut State) {
        self.tell_node_later(state);
        let told = |(way, channel): (&u32, &mut Channel)| match channel.tell_later(0) {
            Err(Unsent::Ended) => Some(*way),
            _ => None,
        };
        let ended: Vec<_> = state.channels.iter_mut().filter_map(told).collect();
        for way in ended {
            state.end_channel(way);
        }
        for way in state.withdrawn() {
            state.end_if_done(way);
        }
    }

    fn tell_node_later(&self, state: &mut State) {
        if let Some(last) = state.later.pop() {
            // If the link has ended, the node needs no descriptors.
            let _ = self.tell(state, last);
        }
    }

    /// Sends a descriptor to the node, after the delayed ones. The node always reads, so this
    /// blocks for a moment at most.
    pub(crate) fn tell(&self, state: &mut State, descriptor: Descriptor) -> Result<(), Error> {
        state.later.push(descriptor);
        let later = std::mem::take(&mut state.later);
        for descriptors in later.chunks(MOST) {
            let mut packet = [0; PACKET];
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

    /// The node's socket.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn end(&self) {
        self.lock().end();
        // The socket may be closed already. This wakes a thread that reads it.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    pub(crate) fn lock(&self) -> StateGuard<'_> {
        StateGuard(Some(self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
