//! What this program knows of its link, and who reads it.

use crate::arena::{Arena, OnFull, Part};
use crate::body::{Kind as Body, Memory, Payload};
use crate::channel::{Channel, Sent, Unsent};
use crate::connect::Connected;
use crate::error::Error;
use crate::wait::{Interest, Waiters, Wake};
use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderName, StatusCode};
use leno_chain::descriptor::{self, BYTES, Descriptor, Kind, MOST, UNIT};
use leno_chain::handshake::{Announcement, End, MOST_TEXT, Offer};
use leno_chain::head::{RequestHead, ResponseHead};
use leno_chain::mapping::Mapping;
use leno_chain::message::{self, Message, Place};
use leno_chain::socket::{self, Received};
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// With so many descriptors that may be sent later, later is now. So it is with one for so many bytes.
const MOST_LATER: usize = 32;
const LARGE: u64 = 64 << 10;
/// Bytes of the longest packet.
const PACKET: usize = BYTES * MOST;
const _: () = assert!(MOST_TEXT + 64 < PACKET, "an offer is a packet");

/// The way that leads to the node, where others are channels.
pub(crate) const NODE: u32 = 0;
/// Tells who calls.
const CALLER: HeaderName = HeaderName::from_static("x-forwarded-client-cert");

pub(crate) struct Link {
    socket: OwnedFd,
    own: Arc<Arena>,
    node: Arc<Mapping>,
    head: u32,
    waits_when_full: AtomicBool,
    /// What calls come from: the socket, and channels from callers.
    pub(crate) calls: Arc<OwnedFd>,
    state: Mutex<State>,
}

/// A call, by the way on which it came or went and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    pub(crate) way: u32,
    pub(crate) number: u32,
}

#[derive(Default)]
pub(crate) struct State {
    /// Calls that nobody has taken.
    calls: VecDeque<(Number, Arrived)>,
    /// Calls that somebody handles, and whose caller does not wait any more.
    cancelled: HashSet<Number>,
    /// Calls that this program makes, until their answer is taken.
    asked: HashMap<Number, Asked>,
    /// Calls that are answered with what another call is answered with.
    forwarded: HashMap<Number, Number>,
    last_asked: u32,
    arenas: HashMap<u32, Arc<Mapping>>,
    pub(crate) channels: HashMap<u32, Channel>,
    /// What was sent on channels that have ended, by the number of the other end's arena: who has it may read on until the node forgets him.
    left: HashMap<u32, Vec<Sent>>,
    /// What the node may be reading, by slot.
    sent: HashMap<u32, Sent>,
    /// What the node is told with whatever it is told next, or before this program waits.
    later: Vec<Descriptor>,
    pub(crate) waiters: Waiters,
    pub(crate) ended: bool,
}

#[derive(Default)]
struct Asked {
    /// There once the call is over. An answer may be none.
    answer: Option<Option<Arrived>>,
    /// When nobody is to wait any more.
    deadline: Option<Instant>,
}

/// A message that has come.
pub(crate) struct Arrived {
    head: Head,
    pub(crate) body: Option<(Memory, Place)>,
    /// Whoever sent it is told when it is not read any more.
    pub(crate) held: bool,
}

enum Head {
    /// In the node's arena.
    There { slot: u32, length: u32 },
    /// A copy.
    Here(Bytes),
}

/// What is in its arena, and not sent yet.
pub(crate) struct Written {
    message: Part,
    body: Option<Arc<Part>>,
    length: u32,
}

impl Link {
    pub(crate) fn new(Connected { socket, own, node, head }: Connected) -> io::Result<Arc<Self>> {
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

    /// Memory of this program's arena.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Part, Error> {
        if let Ok(part) = self.own.allocate(bytes) {
            return Ok(part);
        }
        self.catch_up();
        match self.own.allocate(bytes) {
            // More than there is will never be free.
            Err(_) if self.waits_when_full.load(Ordering::Relaxed) && bytes <= self.own.pool().mapping().length() => {
                self.wait(&Interest::Memory, |_| self.own.allocate(bytes).ok())
            }
            allocated => Ok(allocated?),
        }
    }

    /// Writes a message that goes this way into the arena. One that answers a call may have a body that is a part of the call's.
    fn write(
        &self,
        (way, answers): (u32, Option<Number>),
        head: &[u8],
        parent: u32,
        payload: &Payload<'_>,
    ) -> Result<Written, Error> {
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
            // Nobody counts who reads what came on a channel, so it is not passed on.
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
        Ok(Written { message: part, body, length: message::BYTES as u32 + length })
    }

    /// Calls a function, on a channel to one of that name if there is one. Returns the call's number.
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

    /// Begins a call on a channel; `None`: it is not to be used.
    fn begin(&self, way: u32, written: Written) -> Option<Number> {
        let mut state = self.lock();
        let channel = state.channels.get_mut(&way)?;
        match channel.call(written.message.slot(), written.length) {
            Ok(number) => {
                channel.sent.insert(number, Sent { _message: written.message, body: written.body });
                let deadline = channel.timeout.map(|timeout| Instant::now() + timeout);
                let number = Number { way, number };
                state.asked.insert(number, Asked { answer: None, deadline });
                Some(number)
            }
            // The node sees to it, and says why if it refuses the call.
            Err(Unsent::Refused) => None,
            Err(Unsent::Ended) => {
                state.end_channel(way);
                None
            }
        }
    }

    /// Sends a call to the node. Returns its number.
    fn ask(&self, state: &mut State, written: Written) -> Result<Number, Error> {
        let number = state.next_number();
        self.send(state, Kind::Call, number, written)?;
        let number = Number { way: NODE, number };
        state.asked.insert(number, Asked::default());
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

    /// Has another function answer a call.
    pub(crate) fn forward(&self, from: Number, head: &[u8], payload: &Payload<'_>) -> Result<(), Error> {
        let is_the_nodes = from.way == NODE;
        let written = self.write((NODE, None), head, if is_the_nodes { from.number } else { 0 }, payload)?;
        let mut state = self.lock();
        state.cancelled.remove(&from);
        if is_the_nodes {
            return self.send(&mut state, Kind::Forward, from.number, written);
        }
        // The answer comes here, and is sent back from here.
        let number = self.ask(&mut state, written)?;
        state.forwarded.insert(number, from);
        Ok(())
    }

    fn send(&self, state: &mut State, kind: Kind, number: u32, written: Written) -> Result<(), Error> {
        let slot = written.message.slot();
        state.sent.insert(slot, Sent { _message: written.message, body: written.body });
        self.tell(state, Descriptor::message(kind, number, slot, written.length))
    }

    /// Answers a call with nothing.
    pub(crate) fn fail(&self, number: Number) {
        let mut state = self.lock();
        state.cancelled.remove(&number);
        self.fail_locked(&mut state, number);
    }

    fn fail_locked(&self, state: &mut State, number: Number) {
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

    /// Nobody waits for the answer of that call.
    pub(crate) fn cancel(&self, number: Number) {
        let mut state = self.lock();
        match state.asked.remove(&number).map(|asked| asked.answer) {
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

    /// An answer is not read any more.
    pub(crate) fn release(&self, number: Number, bytes: u64) {
        self.release_locked(&mut self.lock(), number, bytes);
    }

    fn release_locked(&self, state: &mut State, number: Number, bytes: u64) {
        if number.way == NODE {
            state.later.push(Descriptor::number(Kind::Release, number.number));
            if state.later.len() >= MOST_LATER || bytes >= LARGE {
                self.tell_node_later(state);
            }
        } else if let Some(channel) = state.channels.get_mut(&number.way) {
            channel.release(number.number);
            // A call has room for a few.
            let most = if bytes >= LARGE { 0 } else { 4 };
            if let Err(Unsent::Ended) = channel.tell_later(most) {
                state.end_channel(number.way);
            }
        }
    }

    /// Sends what was left for later, before somebody waits.
    pub(crate) fn tell_later(&self, state: &mut State) {
        self.tell_node_later(state);
        let told = |(way, channel): (&u32, &mut Channel)| match channel.tell_later(0) {
            Err(Unsent::Ended) => Some(*way),
            _ => None,
        };
        let ended: Vec<_> = state.channels.iter_mut().filter_map(told).collect();
        ended.into_iter().for_each(|way| state.end_channel(way));
        // Nobody may be waiting for what comes on these.
        let withdrawn = state.channels.iter().filter(|(_, channel)| channel.withdrawn && channel.end == End::Caller);
        for way in withdrawn.map(|(way, _)| *way).collect::<Vec<_>>() {
            while !state.is_read(way) && self.read(state, way) {}
            state.end_if_done(way);
        }
    }

    fn tell_node_later(&self, state: &mut State) {
        if let Some(last) = state.later.pop() {
            // If the link has ended, nobody has to be told.
            let _ = self.tell(state, last);
        }
    }

    /// Sends a descriptor to the node, after those that were left for later. The node always reads, so this waits for a moment at most.
    fn tell(&self, state: &mut State, descriptor: Descriptor) -> Result<(), Error> {
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

    /// Reads what has come, without waiting. What somebody waits for he has read.
    fn catch_up(&self) {
        let mut state = self.lock();
        let mut ways: Vec<u32> = state.channels.keys().copied().collect();
        ways.push(NODE);
        for way in ways {
            while !state.ended && !state.is_read(way) && self.read(&mut state, way) {}
        }
        state.wake(None);
    }

    /// Reads a packet of a way, without waiting. Returns whether there was one.
    pub(crate) fn read(&self, state: &mut State, way: u32) -> bool {
        let mut packet = [0; PACKET];
        if way == NODE {
            let received = socket::receive(&self.socket, &mut packet, RecvFlags::DONTWAIT);
            if matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return false;
            }
            self.take(state, &packet, received);
            return true;
        }
        let Some(channel) = state.channels.get(&way) else { return false };
        match rustix::net::recv(&channel.socket, &mut packet, RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            received => {
                self.hear_channel(state, way, received.ok().and_then(|(bytes, _)| packet.get(..bytes)));
                true
            }
        }
    }

    /// Notes what the node has sent, or that the link has ended.
    pub(crate) fn take(&self, state: &mut State, packet: &[u8], received: io::Result<Received>) {
        let received = received.ok().filter(|received| received.bytes > 0 && !received.cut);
        if received.and_then(|received| self.hear(state, packet, received)).is_none() {
            state.end();
        }
    }

    /// The node's socket.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What the node says; `None`: it makes no sense.
    fn hear(&self, state: &mut State, packet: &[u8], received: Received) -> Option<()> {
        let packet = &packet[..received.bytes];
        if Announcement::is(packet) {
            let announcement = Announcement::decode(packet).ok()?;
            let mapping = Mapping::readable(received.files.first()?, announcement.size).ok()?;
            state.arenas.insert(announcement.number, Arc::new(mapping));
            return Some(());
        }
        if Offer::is(packet) {
            return self.take_offer(state, &Offer::decode(packet).ok()?, received.files.into_iter().next()?);
        }
        let (descriptors, []) = packet.as_chunks() else { return None };
        for bytes in descriptors {
            let descriptor = Descriptor::decode(bytes).ok()?;
            let number = Number { way: NODE, number: descriptor.number };
            match descriptor.kind {
                Kind::Call => {
                    let arrived = self.arrived(state, &descriptor)??;
                    state.calls.push_back((number, arrived));
                }
                Kind::Answer => {
                    let arrived = self.arrived(state, &descriptor)?;
                    match state.forwarded.remove(&number) {
                        Some(origin) => self.send_back(state, origin, number, arrived),
                        None => self.answered(state, number, arrived),
                    }
                }
                Kind::Cancel => self.cancelled(state, number),
                Kind::Free => drop(state.sent.remove(&descriptor.slot)),
                Kind::Forget => {
                    state.arenas.remove(&descriptor.number);
                    state.left.remove(&descriptor.number);
                }
                Kind::Withdraw => {
                    if let Some(channel) = state.channels.get_mut(&descriptor.number) {
                        channel.withdrawn = true;
                        state.end_if_done(descriptor.number);
                    }
                }
                Kind::Release | Kind::Forward => return None,
            }
        }
        Some(())
    }

    fn take_offer(&self, state: &mut State, offer: &Offer, socket: OwnedFd) -> Option<()> {
        let peer = state.arenas.get(&offer.arena)?.clone();
        let channel = Channel::new(offer, socket, peer, &self.calls).ok()?;
        state.channels.insert(offer.number, channel);
        Some(())
    }

    /// What the other end of a channel says; `None`: it has ended.
    pub(crate) fn hear_channel(&self, state: &mut State, way: u32, bytes: Option<&[u8]>) {
        let descriptors = bytes.filter(|bytes| !bytes.is_empty()).map(<[u8]>::as_chunks);
        // The kernel lets whole descriptors through only.
        let Some((descriptors, [])) = descriptors else { return state.end_channel(way) };
        for bytes in descriptors {
            let heard = Descriptor::decode(bytes).ok().and_then(|heard| self.hear_descriptor(state, way, &heard));
            if heard.is_none() {
                return state.end_channel(way);
            }
        }
    }

    fn hear_descriptor(&self, state: &mut State, way: u32, descriptor: &Descriptor) -> Option<()> {
        let number = Number { way, number: descriptor.number };
        let channel = state.channels.get_mut(&way)?;
        match (channel.end, descriptor.kind) {
            (End::Caller, Kind::Answer) => {
                let sent = channel.answered(descriptor);
                let arrived = channel.message(way, descriptor, sent.and_then(|sent| sent.body));
                if arrived.is_none() && descriptor.length > 0 {
                    self.release_locked(state, number, 0);
                }
                self.answered(state, number, arrived);
                state.end_if_done(way);
            }
            (End::Callee, Kind::Call) => {
                channel.take_place(descriptor.number);
                match channel.message(way, descriptor, None) {
                    Some(arrived) => state.calls.push_back((number, arrived)),
                    None => self.fail_locked(state, number),
                }
            }
            (End::Callee, Kind::Release) => drop(channel.sent.remove(&descriptor.number)),
            // It may be answered already.
            (End::Callee, Kind::Cancel) if !channel.has(descriptor.number) => {}
            (End::Callee, Kind::Cancel) => self.cancelled(state, number),
            _ => return None,
        }
        Some(())
    }

    /// A call of this program is over.
    fn answered(&self, state: &mut State, number: Number, arrived: Option<Arrived>) {
        match state.asked.get_mut(&number) {
            Some(asked) if asked.answer.is_none() => asked.answer = Some(arrived),
            _ => {
                if let Some(arrived) = arrived {
                    self.release_locked(state, number, arrived.body_bytes());
                }
            }
        }
    }

    /// Answers a call that came on a channel and was forwarded.
    fn send_back(&self, state: &mut State, origin: Number, number: Number, arrived: Option<Arrived>) {
        let copy = |arrived: &Arrived| {
            let body = arrived.body.as_ref().map(|(memory, place)| memory.show(*place)).unwrap_or_default();
            let mut part = if body.is_empty() { None } else { Some(self.own.allocate(body.len() as u64).ok()?) };
            if let Some(part) = &mut part {
                part.bytes_mut()[..body.len()].copy_from_slice(&body);
            }
            let place =
                |part: &Part| Place { arena: message::INSTANCE, offset: part.offset(), length: body.len() as u64 };
            let (place, head) = (part.as_ref().map(place).unwrap_or_default(), self.head(arrived));
            let mut message = self.own.allocate((message::BYTES + head.len()) as u64).ok()?;
            let (fixed, rest) = message.bytes_mut().split_at_mut(message::BYTES);
            fixed.copy_from_slice(&Message { head: head.len() as u32, parent: 0, body: place }.encode());
            rest[..head.len()].copy_from_slice(&head);
            Some(Written { message, body: part.map(Arc::new), length: (message::BYTES + head.len()) as u32 })
        };
        match arrived.as_ref().and_then(copy) {
            // If the channel has ended, so has the call.
            Some(written) => drop(state.answer_on_channel(origin, written)),
            None => self.fail_locked(state, origin),
        }
        if let Some(arrived) = arrived {
            self.release_locked(state, number, arrived.body_bytes());
        }
        state.asked.remove(&number);
    }

    /// Nobody waits for the answer of a call that came.
    fn cancelled(&self, state: &mut State, number: Number) {
        match state.calls.iter().position(|(waiting, _)| *waiting == number) {
            Some(place) => {
                state.calls.remove(place);
                self.fail_locked(state, number);
            }
            None => drop(state.cancelled.insert(number)),
        }
    }

    /// The message of a descriptor of the node; `Some(None)`: it has none.
    fn arrived(&self, state: &State, descriptor: &Descriptor) -> Option<Option<Arrived>> {
        if descriptor.length == 0 {
            return Some(None);
        }
        let (message, slot) = (read(&self.node, descriptor)?, descriptor.slot);
        let head = Head::There { slot, length: message.head };
        let body = message.body;
        if body.length == 0 {
            return Some(Some(Arrived { head, body: None, held: true }));
        }
        let memory = match body.arena {
            message::INSTANCE => Memory::Own(self.own.pool().clone()),
            message::NODE => Memory::Other(self.node.clone()),
            number => Memory::Other(state.arenas.get(&number)?.clone()),
        };
        memory.mapping().check(body.offset, body.length).ok()?;
        Some(Some(Arrived { head, body: Some((memory, body)), held: true }))
    }

    /// A copy of a message's head.
    pub(crate) fn head(&self, arrived: &Arrived) -> Bytes {
        match &arrived.head {
            Head::Here(head) => head.clone(),
            Head::There { slot, length } => {
                let mut head = vec![0; *length as usize];
                // It was checked when it came.
                let _ = self.node.read(u64::from(*slot) * UNIT + message::BYTES as u64, &mut head);
                head.into()
            }
        }
    }

    /// The head of a call; `None`: it is none, or comes on a channel and is one that only a sidecar may let through.
    pub(crate) fn request_head(&self, number: Number, arrived: &Arrived) -> Option<RequestHead> {
        let mut head = RequestHead::decode(self.head(arrived)).ok()?;
        if number.way != NODE {
            head.check(arrived.body_bytes()).ok().filter(|()| head.is_plain())?;
            let state = self.lock();
            let channel = state.channels.get(&number.way)?;
            let is_named =
                head.authority.port_u16().is_none_or(|port| port == 80) && channel.is_named(head.authority.host());
            head.headers.insert(CALLER, is_named.then(|| HeaderValue::from_str(channel.caller()))?.ok()?);
        }
        Some(head)
    }

    pub(crate) fn end(&self) {
        self.lock().end();
        // It may be closed already. Whoever reads it wakes up.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked(Some(self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The state, while nobody else changes it. Whoever is to be woken is woken after that, so that he need not wait for it.
pub(crate) struct Locked<'a>(Option<MutexGuard<'a, State>>);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let woken = self.waiters.take_woken();
        drop(self.0.take());
        woken.into_iter().for_each(Wake::wake);
    }
}

/// Reads the fixed part of a message.
fn read(from: &Mapping, descriptor: &Descriptor) -> Option<Message> {
    let (mut fixed, offset) = ([0; message::BYTES], u64::from(descriptor.slot) * UNIT);
    from.read(offset, &mut fixed).ok()?;
    let message = Message::decode(&fixed).ok()?;
    from.check(offset, u64::from(descriptor.length)).ok()?;
    (descriptor.length.checked_sub(message::BYTES as u32) == Some(message.head)).then_some(message)
}

impl Channel {
    /// The message of a descriptor from the other end; `None`: it has none, or makes no sense. `sent` is the body of the call that it answers.
    fn message(&self, way: u32, descriptor: &Descriptor, sent: Option<Arc<Part>>) -> Option<Arrived> {
        if descriptor.length == 0 {
            return None;
        }
        let message = read(&self.peer, descriptor)?;
        let mut head = vec![0; message.head as usize];
        self.peer.read(u64::from(descriptor.slot) * UNIT + message::BYTES as u64, &mut head).ok()?;
        let (head, body) = (Head::Here(head.into()), message.body);
        let body = match (body.length, body.arena) {
            (0, _) => None,
            (_, message::INSTANCE) => {
                self.peer.check(body.offset, body.length).ok()?;
                Some((Memory::Direct(Number { way, number: descriptor.number }, self.peer.clone()), body))
            }
            // A part of what it was sent.
            (_, message::NODE) => {
                let sent = sent?;
                let start = body.offset.checked_sub(sent.offset())?;
                let is_within = start.checked_add(body.length).is_some_and(|end| end <= sent.bytes().len() as u64);
                is_within.then_some((Memory::Kept(sent), body))
            }
            _ => return None,
        };
        Some(Arrived { head, body, held: true })
    }
}

impl State {
    pub(crate) fn take_call(&mut self) -> Option<(Number, Arrived)> {
        self.calls.pop_front()
    }

    pub(crate) fn waiting_calls(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_answered(&self, number: Number) -> bool {
        self.asked.get(&number).is_some_and(|asked| asked.answer.is_some())
    }

    /// The answer to one of these calls: which one, and what it is.
    pub(crate) fn take_answer(&mut self, numbers: &[Number]) -> Option<(usize, Option<Arrived>)> {
        let place = numbers.iter().position(|number| self.is_answered(*number))?;
        Some((place, self.asked.remove(&numbers[place])?.answer?))
    }

    /// Ways on which calls are open.
    pub(crate) fn asked_ways(&self) -> impl Iterator<Item = u32> {
        self.asked.iter().filter(|(_, asked)| asked.answer.is_none()).map(|(number, _)| number.way)
    }

    /// When the first of these calls has taken too long.
    pub(crate) fn deadline(&self, numbers: &[Number]) -> Option<Instant> {
        numbers.iter().filter_map(|number| self.asked.get(number)?.deadline).min()
    }

    /// Ends the calls that have taken too long, as a sidecar would.
    pub(crate) fn end_late_calls(&mut self) {
        if self.asked.values().all(|asked| asked.deadline.is_none() || asked.answer.is_some()) {
            return;
        }
        let now = Instant::now();
        let mut late = Vec::new();
        for (number, asked) in &mut self.asked {
            if asked.answer.is_none() && asked.deadline.is_some_and(|deadline| deadline <= now) {
                let mut head = Vec::new();
                ResponseHead::new(StatusCode::GATEWAY_TIMEOUT).encode(&mut head);
                asked.answer = Some(Some(Arrived { head: Head::Here(head.into()), body: None, held: false }));
                late.push(*number);
            }
        }
        for number in late {
            self.tell_on_channel(number.way, Descriptor::number(Kind::Cancel, number.number));
        }
    }

    /// The channel to a function by this name that has the least to do.
    fn channel_to(&self, name: &str) -> Option<u32> {
        let leading = self.channels.iter().filter(|(_, channel)| channel.leads_to(name));
        leading.min_by_key(|(_, channel)| channel.load()).map(|(way, _)| *way)
    }

    /// A call that came is answered.
    fn closed(&mut self, number: Number) {
        self.cancelled.remove(&number);
        if let Some(channel) = self.channels.get_mut(&number.way) {
            channel.free_place(number.number);
        }
    }

    fn end_if_done(&mut self, way: u32) {
        if self.channels.get(&way).is_some_and(Channel::is_done) {
            self.end_channel(way);
        }
    }

    fn answer_on_channel(&mut self, to: Number, written: Written) -> Result<(), Error> {
        self.closed(to);
        let channel = self.channels.get_mut(&to.way).ok_or(Error::Failed)?;
        let descriptor = Descriptor::message(Kind::Answer, to.number, written.message.slot(), written.length);
        match channel.tell(descriptor) {
            Ok(()) => {
                channel.sent.insert(to.number, Sent { _message: written.message, body: written.body });
                Ok(())
            }
            Err(Unsent::Refused) => Err(Error::Failed),
            Err(Unsent::Ended) => {
                self.end_channel(to.way);
                Err(Error::Failed)
            }
        }
    }

    fn tell_on_channel(&mut self, way: u32, descriptor: Descriptor) {
        let told = self.channels.get_mut(&way).map(|channel| channel.tell(descriptor));
        if let Some(Err(Unsent::Ended)) = told {
            self.end_channel(way);
        }
    }

    /// The other end is gone, or the node has taken the channel away.
    pub(crate) fn end_channel(&mut self, way: u32) {
        let Some(channel) = self.channels.remove(&way) else { return };
        channel.end();
        if !channel.sent.is_empty() {
            self.left.entry(channel.arena).or_default().extend(channel.sent.into_values());
        }
        self.cancelled.retain(|number| number.way != way);
        self.calls.retain(|(number, _)| number.way != way);
        for (number, asked) in &mut self.asked {
            if number.way == way && asked.answer.is_none() {
                asked.answer = Some(None);
            }
        }
    }

    fn next_number(&mut self) -> u32 {
        loop {
            self.last_asked = descriptor::next(self.last_asked);
            if !self.asked.contains_key(&Number { way: NODE, number: self.last_asked }) {
                return self.last_asked;
            }
        }
    }

    fn end(&mut self) {
        self.ended = true;
        for way in self.channels.keys().copied().collect::<Vec<_>>() {
            self.end_channel(way);
        }
        self.waiters.wake_all();
    }
}

impl Arrived {
    pub(crate) fn body_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |(_, place)| place.length)
    }
}
