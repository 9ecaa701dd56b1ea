//! Packets from the node, and descriptors on channels.

use crate::arena::Part;
use crate::body::Memory;
use crate::channel::Channel;
use crate::link::{Link, PACKET};
use crate::state::{Head, InboundMessage, NODE, Number, StagedMessage, State};
use bytes::Bytes;
use http::HeaderName;
use http::header::HeaderValue;
use leno_shm::descriptor::{Descriptor, Kind, UNIT};
use leno_shm::handshake::{Announcement, End, MOST_TEXT, Offer};
use leno_shm::head::RequestHead;
use leno_shm::mapping::Mapping;
use leno_shm::message::{self, Message, Place};
use leno_shm::socket::{self, Packet};
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const _: () = assert!(MOST_TEXT + 64 < PACKET, "an offer is a packet");
/// The header field that names the caller.
const CALLER: HeaderName = HeaderName::from_static("x-forwarded-client-cert");

impl Link {
    /// Reads all pending packets without blocking. A way with a waiting reader is left to that
    /// reader.
    pub(crate) fn catch_up(&self) {
        let mut state = self.lock();
        let mut ways: Vec<u32> = state.channels.keys().copied().collect();
        ways.push(NODE);
        for way in ways {
            while !state.ended && !state.is_read(way) && self.read(&mut state, way) {}
        }
        state.wake(None);
    }

    /// Reads the pending packets of withdrawn channels, which may have no reader: such a channel
    /// ends when no more packets are due. Returns whether there was a packet.
    pub(crate) fn read_withdrawn(&self, state: &mut State) -> bool {
        let mut any = false;
        for way in state.withdrawn() {
            while !state.is_read(way) && self.read(state, way) {
                any = true;
            }
        }
        any
    }

    /// Reads a packet of a way, without blocking. Returns whether there was one.
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

    /// Records a packet of the node, or that the link has ended.
    pub(crate) fn take(&self, state: &mut State, packet: &[u8], received: io::Result<Packet>) {
        let received = received.ok().filter(|received| received.bytes > 0 && !received.cut);
        if received.and_then(|received| self.hear(state, packet, received)).is_none() {
            state.end();
        }
    }

    /// Handles a packet of the node; `None`: it is invalid.
    fn hear(&self, state: &mut State, packet: &[u8], received: Packet) -> Option<()> {
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
        let mut channel = Channel::new(offer, socket, peer, &self.calls).ok()?;
        if let Some(server) = &state.server {
            channel.watch(offer.number, server).ok()?;
        }
        state.channels.insert(offer.number, channel);
        Some(())
    }

    /// Handles a message from the other end of a channel; `None`: the channel has ended.
    pub(crate) fn hear_channel(&self, state: &mut State, way: u32, bytes: Option<&[u8]>) {
        let descriptors = bytes.filter(|bytes| !bytes.is_empty()).map(<[u8]>::as_chunks);
        // The kernel passes only whole descriptors.
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
            // The call may be answered already.
            (End::Callee, Kind::Cancel) if !channel.has(descriptor.number) => {}
            (End::Callee, Kind::Cancel) => self.cancelled(state, number),
            _ => return None,
        }
        Some(())
    }

    /// A call of this program has ended.
    fn answered(&self, state: &mut State, number: Number, arrived: Option<InboundMessage>) {
        match state.asked.get_mut(&number) {
            Some(asked) if asked.answer.is_none() => state.waiters.wake_task(asked.settle(arrived)),
            _ => {
                if let Some(arrived) = arrived {
                    self.release_locked(state, number, arrived.body_bytes());
                }
            }
        }
    }

    /// Answers a call that came on a channel and was forwarded.
    fn send_back(&self, state: &mut State, origin: Number, number: Number, arrived: Option<InboundMessage>) {
        let copy = |arrived: &InboundMessage| {
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
            Some(StagedMessage { message, body: part.map(Arc::new), length: (message::BYTES + head.len()) as u32 })
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

    /// The caller of an incoming call has stopped waiting for its answer.
    fn cancelled(&self, state: &mut State, number: Number) {
        match state.calls.iter().position(|(waiting, _)| *waiting == number) {
            Some(place) => {
                state.calls.remove(place);
                self.fail_locked(state, number);
            }
            None => drop(state.cancelled.insert(number)),
        }
    }

    /// The message of a node's descriptor; `Some(None)`: it has none.
    fn arrived(&self, state: &State, descriptor: &Descriptor) -> Option<Option<InboundMessage>> {
        if descriptor.length == 0 {
            return Some(None);
        }
        let (message, slot) = (read(&self.node, descriptor)?, descriptor.slot);
        let head = Head::There { slot, length: message.head };
        let body = message.body;
        if body.length == 0 {
            return Some(Some(InboundMessage { head, body: None, held: true }));
        }
        let memory = match body.arena {
            message::INSTANCE => Memory::Own(self.own.pool().clone()),
            message::NODE => Memory::Other(self.node.clone()),
            number => Memory::Other(state.arenas.get(&number)?.clone()),
        };
        memory.mapping().check(body.offset, body.length).ok()?;
        Some(Some(InboundMessage { head, body: Some((memory, body)), held: true }))
    }

    /// A copy of a message's head.
    pub(crate) fn head(&self, arrived: &InboundMessage) -> Bytes {
        match &arrived.head {
            Head::Here(head) => head.clone(),
            Head::There { slot, length } => {
                let mut head = vec![0; *length as usize];
                // The place was checked when the message was received.
                let _ = self.node.read(u64::from(*slot) * UNIT + message::BYTES as u64, &mut head);
                head.into()
            }
        }
    }

    /// The head of a call; `None`: it is invalid, or it came on a channel although only a sidecar
    /// may let it pass.
    pub(crate) fn request_head(&self, number: Number, arrived: &InboundMessage) -> Option<RequestHead> {
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
    /// The message of a descriptor from the other end; `None`: it has none, or is invalid. `sent`
    /// is the body of the call that it answers.
    fn message(&self, way: u32, descriptor: &Descriptor, sent: Option<Arc<Part>>) -> Option<InboundMessage> {
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
            // The body is a part of the call's body, which this program has sent.
            (_, message::NODE) => {
                let sent = sent?;
                let start = body.offset.checked_sub(sent.offset())?;
                let is_within = start.checked_add(body.length).is_some_and(|end| end <= sent.bytes().len() as u64);
                is_within.then_some((Memory::Kept(sent), body))
            }
            _ => return None,
        };
        Some(InboundMessage { head, body, held: true })
    }
}
