//! The state of outgoing and incoming calls.

use crate::arena::Part;
use crate::body::Memory;
use crate::channel::{Channel, SentMessage, Unsent};
use crate::error::Error;
use crate::wait::{Waiters, Wake};
use bytes::Bytes;
use http::StatusCode;
use leno_shm::descriptor::{self, Descriptor, Kind};
use leno_shm::head::ResponseHead;
use leno_shm::mapping::Mapping;
use leno_shm::message::Place;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;
use std::time::Instant;

/// The number of the way to the node; all others are channels.
pub(crate) const NODE: u32 = 0;

/// A call, by the way (the node's socket or a channel) that it uses and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    pub(crate) way: u32,
    pub(crate) number: u32,
}

#[derive(Default)]
pub(crate) struct State {
    /// Incoming calls that no thread has taken.
    pub(crate) calls: VecDeque<(Number, InboundMessage)>,
    /// Calls that are being handled, but whose callers do not wait any more.
    pub(crate) cancelled: HashSet<Number>,
    /// Outgoing calls, until their answers are taken.
    pub(crate) asked: HashMap<Number, PendingCall>,
    /// Outgoing calls whose answers are the answers to incoming calls, which were forwarded.
    pub(crate) forwarded: HashMap<Number, Number>,
    last_asked: u32,
    pub(crate) arenas: HashMap<u32, Arc<Mapping>>,
    pub(crate) channels: HashMap<u32, Channel>,
    /// Messages that were sent on channels that have ended, by the number of the other end's arena:
    /// the receiver may read them until the node announces that its arena is gone.
    pub(crate) left: HashMap<u32, Vec<SentMessage>>,
    /// Messages that the node may still read, by slot.
    pub(crate) sent: HashMap<u32, SentMessage>,
    /// Descriptors that are sent to the node together with the next one, or before this program
    /// waits.
    pub(crate) later: Vec<Descriptor>,
    pub(crate) waiters: Waiters,
    /// The epoll instance of all ways, if a thread serves.
    pub(crate) server: Option<Arc<OwnedFd>>,
    pub(crate) ended: bool,
}

#[derive(Default)]
pub(crate) struct PendingCall {
    /// Set once the call is over. The inner `None` means that there is no answer.
    pub(crate) answer: Option<Option<InboundMessage>>,
    /// The time at which this program gives the call up, and answers it with status 504.
    pub(crate) deadline: Option<Instant>,
    /// The task that waits for the answer.
    pub(crate) waker: Option<Waker>,
}

impl PendingCall {
    /// Ends the call. Returns the task that waits for it.
    pub(crate) fn settle(&mut self, answer: Option<InboundMessage>) -> Option<Waker> {
        self.answer = Some(answer);
        self.waker.take()
    }
}

/// A received message.
pub(crate) struct InboundMessage {
    pub(crate) head: Head,
    pub(crate) body: Option<(Memory, Place)>,
    /// The sender gets a release when the message is not read any more.
    pub(crate) held: bool,
}

pub(crate) enum Head {
    /// The head is in the node's arena.
    There { slot: u32, length: u32 },
    /// The head was copied.
    Here(Bytes),
}

/// A message that has been written to the arena, but not sent yet.
pub(crate) struct StagedMessage {
    pub(crate) message: Part,
    pub(crate) body: Option<Arc<Part>>,
    pub(crate) length: u32,
}

/// The locked state. Dropping it unlocks the state first and then wakes threads and tasks, so that
/// they need not wait for the lock.
pub(crate) struct StateGuard<'a>(pub(crate) Option<MutexGuard<'a, State>>);

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let woken = self.waiters.take_woken();
        drop(self.0.take());
        woken.into_iter().for_each(Wake::wake);
    }
}

impl State {
    pub(crate) fn take_call(&mut self) -> Option<(Number, InboundMessage)> {
        self.calls.pop_front()
    }

    pub(crate) fn waiting_calls(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn is_answered(&self, number: Number) -> bool {
        self.asked.get(&number).is_some_and(|asked| asked.answer.is_some())
    }

    /// The answer to one of these calls, with the call's index in the list.
    pub(crate) fn take_answer(&mut self, numbers: &[Number]) -> Option<(usize, Option<InboundMessage>)> {
        let place = numbers.iter().position(|number| self.is_answered(*number))?;
        Some((place, self.asked.remove(&numbers[place])?.answer?))
    }

    /// The ways on which calls are open.
    pub(crate) fn asked_ways(&self) -> impl Iterator<Item = u32> {
        self.asked.iter().filter(|(_, asked)| asked.answer.is_none()).map(|(number, _)| number.way)
    }

    /// The earliest deadline of these calls.
    pub(crate) fn deadline(&self, numbers: &[Number]) -> Option<Instant> {
        numbers.iter().filter_map(|number| self.asked.get(number)?.deadline).min()
    }

    /// Ends the calls that have exceeded their deadlines, as a sidecar would.
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
                let answer = InboundMessage { head: Head::Here(head.into()), body: None, held: false };
                self.waiters.wake_task(asked.settle(Some(answer)));
                late.push(*number);
            }
        }
        for number in late {
            self.tell_on_channel(number.way, Descriptor::number(Kind::Cancel, number.number));
        }
    }

    /// The channel to a function of this name with the fewest open calls.
    pub(crate) fn channel_to(&self, name: &str) -> Option<u32> {
        let leading = self.channels.iter().filter(|(_, channel)| channel.leads_to(name));
        leading.min_by_key(|(_, channel)| channel.load()).map(|(way, _)| *way)
    }

    /// Ends an incoming call that was answered.
    pub(crate) fn closed(&mut self, number: Number) {
        self.cancelled.remove(&number);
        if let Some(channel) = self.channels.get_mut(&number.way) {
            channel.free_place(number.number);
        }
    }

    /// Channels to callees on which no call may begin any more.
    pub(crate) fn withdrawn(&self) -> Vec<u32> {
        self.channels.iter().filter(|(_, channel)| channel.withdrawn).map(|(way, _)| *way).collect()
    }

    pub(crate) fn end_if_done(&mut self, way: u32) {
        if self.channels.get(&way).is_some_and(Channel::is_done) {
            self.end_channel(way);
        }
    }

    pub(crate) fn answer_on_channel(&mut self, to: Number, written: StagedMessage) -> Result<(), Error> {
        self.closed(to);
        let channel = self.channels.get_mut(&to.way).ok_or(Error::Failed)?;
        let descriptor = Descriptor::message(Kind::Answer, to.number, written.message.slot(), written.length);
        match channel.tell(descriptor) {
            Ok(()) => {
                channel.sent.insert(to.number, SentMessage { _message: written.message, body: written.body });
                Ok(())
            }
            Err(Unsent::Refused) => Err(Error::Failed),
            Err(Unsent::Ended) => {
                self.end_channel(to.way);
                Err(Error::Failed)
            }
        }
    }

    pub(crate) fn tell_on_channel(&mut self, way: u32, descriptor: Descriptor) {
        let told = self.channels.get_mut(&way).map(|channel| channel.tell(descriptor));
        if let Some(Err(Unsent::Ended)) = told {
            self.end_channel(way);
        }
    }

    /// The other end is gone, or the node has withdrawn the channel.
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
                self.waiters.wake_task(asked.settle(None));
            }
        }
    }

    /// Wakes the tasks that wait for answers.
    pub(crate) fn wake_tasks(&mut self) {
        for asked in self.asked.values_mut() {
            self.waiters.wake_task(asked.waker.take());
        }
    }

    pub(crate) fn next_number(&mut self) -> u32 {
        loop {
            self.last_asked = descriptor::next(self.last_asked);
            if !self.asked.contains_key(&Number { way: NODE, number: self.last_asked }) {
                return self.last_asked;
            }
        }
    }

    pub(crate) fn end(&mut self) {
        self.ended = true;
        for way in self.channels.keys().copied().collect::<Vec<_>>() {
            self.end_channel(way);
        }
        self.waiters.wake_all();
        self.wake_tasks();
    }
}

impl InboundMessage {
    pub(crate) fn body_bytes(&self) -> u64 {
        self.body.as_ref().map_or(0, |(_, place)| place.length)
    }
}
