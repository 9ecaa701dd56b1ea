//! The state of a link at the node.

use super::outbound::Outbound;
use super::{Answer, CallError, Context, End, SendError, Settings};
use crate::descriptor::{self, Descriptor, Kind};
use crate::domain::Domain;
use crate::handshake::{self, Announcement, Offer};
use crate::message::{self, Message, Place};
use crate::pool::{Allocation, Pool};
use crate::region::{Arena, Body, Producer, Reader, Writer};
use crate::slab::Full;
use crate::statistics::{Violation, Violations};
use rustix::net::Shutdown;
use std::collections::{HashMap, HashSet};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{Notify, oneshot};

pub(super) struct Inner {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) settings: Settings,
    pub(super) instance: Arc<Arena>,
    /// Wakes the reading task: there are deferred descriptors, or the link has ended.
    pub(super) wake: Notify,
    /// The instance supports channels.
    pub(super) takes_channels: bool,
    name: String,
    domain: Domain,
    node: Arc<Arena>,
    pool: Arc<Pool>,
    violations: Violations,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
pub(super) struct State {
    /// Calls to the instance that it has not answered.
    pub(super) calls: HashMap<u32, PendingCall>,
    /// Answers to the instance's calls that it has not released.
    pub(super) answers: HashMap<u32, OutboundMessage>,
    /// Calls of the instance that have no answer yet. The sender reports that a call was cancelled.
    pub(super) incoming: HashMap<u32, oneshot::Sender<()>>,
    /// The number of the instance's latest call.
    pub(super) last_incoming: u32,
    /// Slots of the instance's arena whose bodies are in use.
    pub(super) lent: HashSet<u32>,
    pub(super) outbound: Outbound,
    ended: Option<End>,
    last_call: u32,
    held_bytes: u64,
    /// The numbers of the arenas that were announced to the instance, by the node's own ids of
    /// those arenas.
    announced: HashMap<u64, u32>,
    last_arena: u32,
    last_channel: u32,
    /// Values to drop once the lock is released: dropping the last clone of a body locks the state
    /// of the link of its producer.
    discarded: Vec<DeferredDrop>,
}

/// A message that the node wrote and the instance holds.
pub(super) struct OutboundMessage {
    /// Given back on drop.
    _message: Allocation,
    /// The body, and the number of its arena.
    body: Option<(u32, Body)>,
}

/// A call to the instance.
pub(super) struct PendingCall {
    pub(super) held: OutboundMessage,
    pub(super) context: Option<Context>,
    /// `None`: it was cancelled.
    pub(super) answer: Option<oneshot::Sender<Result<Answer, CallError>>>,
}

pub(super) enum DeferredDrop {
    Call { _call: PendingCall },
    Message { _message: OutboundMessage },
    Answer { _answer: Result<Answer, CallError> },
    Body { _body: Option<Body> },
}

impl Inner {
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        name: String,
        settings: Settings,
        instance: Arc<Arena>,
        node: Arc<Arena>,
        pool: Arc<Pool>,
        takes_channels: bool,
    ) -> Arc<Self> {
        let state = State { last_arena: message::NODE, ..State::default() };
        Arc::new(Self {
            socket,
            settings,
            domain: instance.domain().clone(),
            instance,
            wake: Notify::new(),
            takes_channels,
            name,
            node,
            pool,
            violations: Violations::default(),
            state: Mutex::new(state),
            ended: Notify::new(),
        })
    }

    /// Changes the state, sends the queued packets, and then drops the discarded values.
    ///
    /// `change` must not drop a body that might be the last clone: see [`State::discard`].
    pub(super) fn locked<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        if let Err(end) = state.outbound.send(&self.socket, self.settings.queue) {
            self.end_locked(&mut state, end);
        }
        let (wake, discarded) = (state.outbound.takes_wake(), mem::take(&mut state.discarded));
        drop(state);
        if wake {
            self.wake.notify_one();
        }
        drop(discarded);
        result
    }

    pub(super) fn end(&self, end: End) {
        self.locked(|state| self.end_locked(state, end));
    }

    fn end_locked(&self, state: &mut State, end: End) {
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(end);
        let calls: Vec<_> = state.calls.drain().map(|(_, call)| call).collect();
        for mut call in calls {
            state.resolve(call.answer.take(), Err(end.into()));
            state.discard(DeferredDrop::Call { _call: call });
        }
        let answers: Vec<_> = state.answers.drain().map(|(_, held)| DeferredDrop::Message { _message: held }).collect();
        state.discarded.extend(answers);
        for (_, cancelled) in state.incoming.drain() {
            let _ = cancelled.send(());
        }
        state.announced.clear();
        state.lent.clear();
        state.outbound = Outbound::default();
        // The socket may be closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        tracing::debug!(instance = self.name, "the chain's link has ended: {end}");
        self.wake.notify_one();
        self.ended.notify_waiters();
    }

    pub(super) async fn ended(&self) -> End {
        loop {
            let notified = self.ended.notified();
            if let Some(end) = self.locked(|state| state.ended) {
                return end;
            }
            notified.await;
        }
    }

    pub(super) fn writer(&self, most: u64) -> Result<Writer, Full> {
        Writer::new(&self.node, most)
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn violations(&self) -> &Violations {
        &self.violations
    }

    pub(super) fn open_calls(&self) -> usize {
        self.locked(|state| state.calls.len())
    }

    /// Counts a violation, and ends the link if there were too many.
    pub(super) fn violation(&self, violation: Violation, what: &dyn std::fmt::Display) {
        self.violations.add(violation);
        self.domain.statistics().violations().add(violation);
        let total = self.violations.total();
        // The log gets one line for each power of two: the first violations are of interest, and a
        // flood is not.
        if total.is_power_of_two() {
            let (instance, rule) = (&self.name, violation.name());
            tracing::warn!(instance, rule, total, "a chain's instance broke the rules of its link: {what}");
        }
        if total > self.settings.violations {
            self.end(End::Violations);
        }
    }

    /// Writes a message for the instance, and sends it.
    pub(super) fn write(
        self: &Arc<Self>,
        state: &mut State,
        (kind, number): (Kind, u32),
        head: &[u8],
        body: Option<&Body>,
    ) -> Result<OutboundMessage, SendError> {
        let length = message::BYTES + head.len();
        let bytes = body.map_or(0, Body::len);
        if state.held_bytes.saturating_add(bytes) > self.settings.held_bytes {
            return Err(SendError::HoldsTooMuch);
        }
        let mut allocation = self.pool.allocate(length as u64)?;
        let body = match body {
            Some(body) => Some((self.show(state, body.arena())?, body.clone())),
            None => None,
        };
        let place = |(arena, body): &(u32, Body)| Place { arena: *arena, offset: body.offset(), length: body.len() };
        let place = body.as_ref().map(place).unwrap_or_default();
        // The settings limit the length of a head to a `u32`.
        let message = Message { head: head.len() as u32, parent: 0, body: place };
        let (fixed, rest) = allocation.bytes_mut().split_at_mut(message::BYTES);
        fixed.copy_from_slice(&message.encode());
        rest[..head.len()].copy_from_slice(head);
        let statistics = self.domain.statistics();
        statistics.head_copied();
        if bytes > 0 && place.arena != message::NODE {
            statistics.shared(bytes);
        }
        state.held_bytes += bytes;
        state.outbound.push(Descriptor::message(kind, number, allocation.slot(), length as u32));
        Ok(OutboundMessage { _message: allocation, body })
    }

    /// The number of an arena on this link. Announces the arena before its first use.
    fn show(self: &Arc<Self>, state: &mut State, arena: &Arc<Arena>) -> Result<u32, SendError> {
        if Arc::ptr_eq(arena, &self.instance) {
            return Ok(message::INSTANCE);
        }
        if Arc::ptr_eq(arena, &self.node) {
            return Ok(message::NODE);
        }
        if let Some(number) = state.announced.get(&arena.id()) {
            return Ok(*number);
        }
        let file = arena.file().try_clone_to_owned().map_err(|error| End::Socket(error.kind()))?;
        // Numbers repeat only after 2^32 arenas, more than a node makes while one of them is still
        // there.
        state.last_arena = descriptor::next(state.last_arena).max(message::NODE + 1);
        let announcement = Announcement { number: state.last_arena, size: arena.mapping().length() };
        state.outbound.push_packet(announcement.encode(), file);
        state.announced.insert(arena.id(), state.last_arena);
        let reader: Weak<Self> = Arc::downgrade(self);
        arena.shown_to(reader, state.last_arena);
        Ok(state.last_arena)
    }

    /// Gives the instance one end of a channel to another instance, and announces that instance's
    /// arena. Returns the channel's number on this link.
    pub(super) fn offer(
        self: &Arc<Self>,
        peer: &Arc<Self>,
        end: handshake::End,
        (timeout_ms, text): (u32, String),
        socket: OwnedFd,
    ) -> Result<u32, SendError> {
        self.locked(|state| {
            if let Some(end) = state.ended {
                return Err(end.into());
            }
            if peer.domain != self.domain {
                return Err(SendError::OtherDomain);
            }
            let arena = self.show(state, &peer.instance)?;
            state.last_channel = descriptor::next(state.last_channel);
            let offer = Offer { number: state.last_channel, end, arena, timeout_ms, text };
            state.outbound.push_packet(offer.encode(), socket);
            Ok(state.last_channel)
        })
    }

    /// Tells the instance that no call may begin on a channel any more.
    pub(super) fn withdraw(&self, channel: u32) {
        self.locked(|state| {
            if state.ended.is_none() {
                state.outbound.push(Descriptor::number(Kind::Withdraw, channel));
            }
        });
    }

    /// Checks whether a message can be sent.
    pub(super) fn check(&self, state: &State, body: Option<&Body>) -> Result<(), SendError> {
        match state.ended {
            Some(end) => Err(end.into()),
            None if body.is_some_and(|body| body.domain() != &self.domain) => Err(SendError::OtherDomain),
            None => Ok(()),
        }
    }
}

impl Producer for Inner {
    fn free(&self, slot: u32) {
        self.locked(|state| {
            if state.lent.remove(&slot) {
                state.outbound.push_later(Descriptor::free(slot));
            }
        });
    }
}

impl Reader for Inner {
    fn forget(&self, number: u32) {
        self.locked(|state| {
            let before = state.announced.len();
            state.announced.retain(|_, announced| *announced != number);
            if state.announced.len() < before {
                state.outbound.push_later(Descriptor::number(Kind::Forget, number));
            }
        });
    }
}

impl State {
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Defers dropping a value until the lock is released.
    pub(super) fn discard(&mut self, discarded: DeferredDrop) {
        self.discarded.push(discarded);
    }

    /// Removes a call that is no longer open.
    pub(super) fn close(&mut self, number: u32) -> Option<PendingCall> {
        let call = self.calls.remove(&number)?;
        self.held_bytes -= call.held.bytes();
        Some(call)
    }

    /// Removes an answer that the instance no longer reads.
    pub(super) fn release(&mut self, number: u32) -> bool {
        let Some(held) = self.answers.remove(&number) else { return false };
        self.held_bytes -= held.bytes();
        self.discard(DeferredDrop::Message { _message: held });
        true
    }

    /// Sends an answer to the waiting call.
    pub(super) fn resolve(
        &mut self,
        waiting: Option<oneshot::Sender<Result<Answer, CallError>>>,
        answer: Result<Answer, CallError>,
    ) {
        let unwanted = match waiting {
            Some(waiting) => waiting.send(answer).err(),
            None => Some(answer),
        };
        if let Some(answer) = unwanted {
            self.discard(DeferredDrop::Answer { _answer: answer });
        }
    }

    /// A number for a call to the instance.
    pub(super) fn next_call(&mut self) -> u32 {
        loop {
            self.last_call = descriptor::next(self.last_call);
            if !self.calls.contains_key(&self.last_call) {
                return self.last_call;
            }
        }
    }

    /// The body of the instance's message in this slot.
    pub(super) fn body(
        &mut self,
        link: &Arc<Inner>,
        slot: u32,
        Place { arena, offset, length }: Place,
    ) -> Result<Option<Body>, Violation> {
        if self.lent.contains(&slot) {
            return Err(Violation::Held);
        }
        if length == 0 {
            return Ok(None);
        }
        let calls = self.calls.values().map(|call| &call.held);
        let held = calls.chain(self.answers.values()).find_map(|held| held.part(arena, offset, length));
        if held.is_some() {
            return Ok(held);
        }
        match arena {
            message::INSTANCE => {
                link.instance.mapping().check(offset, length).map_err(|_| Violation::Bounds)?;
                self.lent.insert(slot);
                let producer: Weak<Inner> = Arc::downgrade(link);
                Ok(Some(Body::of_instance(link.instance.clone(), producer, slot, offset..offset + length)))
            }
            message::NODE => Err(Violation::NotHeld),
            number if self.announced.values().any(|announced| *announced == number) => Err(Violation::NotHeld),
            _ => Err(Violation::Arena),
        }
    }

    /// Gives a slot back at once, unless its body is in use.
    pub(super) fn done_with(&mut self, slot: u32) {
        if !self.lent.contains(&slot) {
            self.outbound.push_later(Descriptor::free(slot));
        }
    }
}

impl OutboundMessage {
    fn bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |(_, body)| body.len())
    }

    /// The part of the held body at this place, if all of it lies within that body.
    fn part(&self, arena: u32, offset: u64, length: u64) -> Option<Body> {
        let (number, body) = self.body.as_ref()?;
        let start = offset.checked_sub(body.offset()).filter(|_| *number == arena)?;
        body.part(start..start.checked_add(length)?)
    }
}
