//! Reads the packets of the instance. All of them are untrusted input.

use super::open::{WatchedSocket, watch};
use super::reply::Reply;
use super::state::{DeferredDrop, Inner, State};
use super::{Answer, CallError, Context, End};
use crate::descriptor::{self, BYTES, Descriptor, Kind, MOST, UNIT};
use crate::head::{RequestHead, ResponseHead};
use crate::message::{self, Message};
use crate::region::Body;
use crate::socket::{self, Packet};
use crate::statistics::Violation;
use bytes::Bytes;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long descriptors that are not urgent are kept, to be sent together with others.
const LATER: Duration = Duration::from_millis(1);

/// A call that the instance makes, or that it has forwarded.
pub struct IncomingCall {
    /// The instance's number for the call; the node's number if the instance has forwarded it.
    pub number: u32,
    /// The call that the instance handles, and for which it makes this one.
    pub parent: Option<Parent>,
    /// The call replaces its parent: its answer is the parent's answer.
    pub forwarded: bool,
    /// Its head, a copy.
    pub head: RequestHead,
    /// Its body.
    pub body: Option<Body>,
    /// Answers the call.
    pub reply: Reply,
}

/// A call that the node has made to the instance.
#[derive(Clone)]
pub struct Parent {
    /// The node's number for the call.
    pub number: u32,
    /// The context that the node attached to the call.
    pub context: Option<Context>,
}

/// Reads a link. Dropping it ends the link.
pub struct Incoming {
    link: Arc<Inner>,
    /// Registered with the runtime that reads first.
    socket: Option<AsyncFd<WatchedSocket>>,
    calls: VecDeque<IncomingCall>,
    later: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

impl Incoming {
    pub(super) fn new(link: Arc<Inner>) -> Self {
        Self { link, socket: None, calls: VecDeque::new(), later: None, waits: false }
    }

    /// The next call of the instance; `None`: the link has ended. Meanwhile it delivers answers to
    /// the calls that wait for them, so it must be called repeatedly, always on one runtime.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<IncomingCall> {
        loop {
            if let Some(call) = self.calls.pop_front() {
                return Some(call);
            }
            // An instance that sends without end does not starve other tasks.
            tokio::task::coop::consume_budget().await;
            let (ended, full, later) = self.link.locked(|state| {
                let (full, later) = (state.outbound.is_full(), state.outbound.has_later());
                state.outbound.set_known(full || later);
                (state.has_ended(), full, later)
            });
            if ended {
                return None;
            }
            if let Err(end) = self.wait(full, later).await {
                self.link.end(end);
            }
        }
    }

    /// Waits for the first of these events, and handles it.
    async fn wait(&mut self, full: bool, later: bool) -> Result<(), End> {
        let failed = |error: io::Error| End::Socket(error.kind());
        if self.socket.is_none() {
            self.socket = Some(watch(self.link.socket.clone()).map_err(failed)?);
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        let timer = self.later.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + LATER)));
        if later && !self.waits {
            timer.as_mut().reset(Instant::now() + LATER);
        }
        self.waits |= later;
        tokio::select! {
            biased;
            ready = socket.readable() => {
                let mut packet = [0; BYTES * MOST];
                let receive = |socket: &AsyncFd<WatchedSocket>| {
                    socket::receive_bytes(&socket.get_ref().0, &mut packet, RecvFlags::DONTWAIT)
                };
                match ready.map_err(failed)?.try_io(receive) {
                    Err(_would_block) => {}
                    Ok(Ok(received)) if received.bytes == 0 => return Err(End::Closed),
                    Ok(Ok(received)) => self.read(&packet, &received),
                    Ok(Err(error)) => return Err(failed(error)),
                }
            }
            ready = socket.writable(), if full => {
                let _ = ready.map_err(failed)?.try_io(|_| {
                    self.link.locked(|_| ());
                    let full = self.link.locked(|state| state.outbound.is_full());
                    if full { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
                });
            }
            () = timer, if self.waits => {
                self.waits = false;
                self.link.locked(|state| state.outbound.push_all_later());
            }
            () = self.link.wake.notified() => {}
        }
        Ok(())
    }

    fn read(&mut self, packet: &[u8], received: &Packet) {
        let packet = &packet[..received.bytes];
        if received.cut || !packet.len().is_multiple_of(BYTES) {
            self.link
                .violation(Violation::Packet, &"a packet is 1 to 64 descriptors of 16 bytes, and comes without files");
            return;
        }
        let (descriptors, _) = packet.as_chunks();
        for bytes in descriptors {
            match self.link.descriptor(bytes) {
                Ok(call) => self.calls.extend(call),
                Err((violation, what)) => self.link.violation(violation, &what),
            }
        }
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("name", &self.link.name()).finish_non_exhaustive()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.link.end(End::Stopped);
    }
}

/// A violation by an instance, with a description.
type Refusal = (Violation, String);

fn refuse<E: Display>(violation: Violation) -> impl Fn(E) -> Refusal {
    move |error| (violation, error.to_string())
}

impl Inner {
    fn descriptor(self: &Arc<Self>, bytes: &[u8; BYTES]) -> Result<Option<IncomingCall>, Refusal> {
        let descriptor = Descriptor::decode(bytes).map_err(refuse(Violation::Descriptor))?;
        let number = descriptor.number;
        match descriptor.kind {
            Kind::Call => self.called(&descriptor),
            Kind::Answer => self.answered(&descriptor).map(|()| None),
            Kind::Forward => self.forwarded(&descriptor),
            Kind::Release if self.locked(|state| state.release(number)) => Ok(None),
            Kind::Release => Err((Violation::Stale, format!("it holds no answer to call {number}"))),
            Kind::Cancel => self.cancelled(number).map(|()| None),
            Kind::Free | Kind::Forget | Kind::Withdraw => {
                Err((Violation::Descriptor, format!("{:?} is for the node to say", descriptor.kind)))
            }
        }
    }

    /// Copies a message: its fixed part, and the head.
    fn message(&self, descriptor: &Descriptor) -> Result<(Message, Bytes), Refusal> {
        let wrong = |what: &str| (Violation::Message, what.to_owned());
        let length = descriptor.length as usize;
        let head = length.checked_sub(message::BYTES).ok_or_else(|| wrong("a message has 64 bytes and a head"))?;
        if head > self.settings.head as usize {
            return Err((Violation::Head, format!("a head of {head} bytes; it may have {}", self.settings.head)));
        }
        let mut copy = vec![0; length];
        let offset = u64::from(descriptor.slot) * UNIT;
        self.instance.mapping().read(offset, &mut copy).map_err(refuse(Violation::Slot))?;
        let Some((fixed, _)) = copy.split_first_chunk() else { return Err(wrong("a message has 64 bytes and a head")) };
        let message = Message::decode(fixed).map_err(refuse(Violation::Message))?;
        if message.head as usize != head {
            return Err(wrong("the message and its descriptor say different lengths of the head"));
        }
        self.domain().statistics().head_copied();
        Ok((message, Bytes::from(copy).split_off(message::BYTES)))
    }

    fn request(&self, descriptor: &Descriptor) -> Result<(Message, RequestHead), Refusal> {
        let (message, head) = self.message(descriptor)?;
        let head = RequestHead::decode(head).map_err(refuse(Violation::Head))?;
        head.check(message.body.length).map_err(refuse(Violation::Head))?;
        Ok((message, head))
    }

    /// The body of a message. Gives the slot back at once, unless it stays lent with the body.
    fn body(self: &Arc<Self>, state: &mut State, slot: u32, message: &Message) -> Result<Option<Body>, Refusal> {
        let body = state.body(self, slot, message.body);
        let body = body.map_err(|violation| (violation, format!("the body cannot be {:?}", message.body)))?;
        state.done_with(slot);
        Ok(body)
    }

    fn called(self: &Arc<Self>, descriptor: &Descriptor) -> Result<Option<IncomingCall>, Refusal> {
        let (number, slot) = (descriptor.number, descriptor.slot);
        let (message, head) = self.request(descriptor)?;
        self.locked(|state| {
            if !descriptor::follows(number, state.last_incoming)
                || state.incoming.contains_key(&number)
                || state.answers.contains_key(&number)
            {
                return Err((Violation::Number, format!("call {number} does not come after {}", state.last_incoming)));
            }
            let body = self.body(state, slot, &message)?;
            state.last_incoming = number;
            if state.incoming.len() >= self.settings.open_calls {
                state.discard(DeferredDrop::Body { _body: body });
                state.outbound.push(Descriptor::number(Kind::Answer, number));
                return Ok(None);
            }
            let parent = state.calls.get(&message.parent);
            let parent = parent.map(|call| Parent { number: message.parent, context: call.context.clone() });
            let (sender, cancelled) = oneshot::channel();
            state.incoming.insert(number, sender);
            let reply = Reply::to_instance(self.clone(), number, cancelled);
            Ok(Some(IncomingCall { number, parent, forwarded: false, head, body, reply }))
        })
    }

    fn answered(self: &Arc<Self>, descriptor: &Descriptor) -> Result<(), Refusal> {
        let number = descriptor.number;
        let read = if descriptor.length == 0 { Ok(None) } else { self.response(descriptor).map(Some) };
        self.locked(|state| {
            if !state.calls.contains_key(&number) {
                return Err(stale(number));
            }
            // Before the call is closed, because the answer may refer to the body of that call.
            let answer = match read {
                Ok(None) => Ok(Err(CallError::Failed)),
                Ok(Some((message, head))) => {
                    self.body(state, descriptor.slot, &message).map(|body| Ok(Answer { head, body }))
                }
                Err(refusal) => Err(refusal),
            };
            let (answer, result) = match answer {
                Ok(answer) => (answer, Ok(())),
                Err(refusal) => (Err(CallError::Invalid), Err(refusal)),
            };
            if let Some(mut call) = state.close(number) {
                state.resolve(call.answer.take(), answer);
                state.discard(DeferredDrop::Call { _call: call });
            }
            result
        })
    }

    fn response(&self, descriptor: &Descriptor) -> Result<(Message, ResponseHead), Refusal> {
        let (message, head) = self.message(descriptor)?;
        let head = ResponseHead::decode(head).map_err(refuse(Violation::Head))?;
        head.check(message.body.length).map_err(refuse(Violation::Head))?;
        Ok((message, head))
    }

    fn forwarded(self: &Arc<Self>, descriptor: &Descriptor) -> Result<Option<IncomingCall>, Refusal> {
        let number = descriptor.number;
        let request = self.request(descriptor);
        self.locked(|state| {
            if !state.calls.contains_key(&number) {
                return Err(stale(number));
            }
            let request = request.and_then(|(message, head)| Ok((self.body(state, descriptor.slot, &message)?, head)));
            let Some(mut call) = state.close(number) else { return Ok(None) };
            let (waiting, context) = (call.answer.take(), call.context.clone());
            state.discard(DeferredDrop::Call { _call: call });
            let (body, head) = match request {
                Ok(request) => request,
                Err(refusal) => {
                    state.resolve(waiting, Err(CallError::Invalid));
                    return Err(refusal);
                }
            };
            let Some(waiting) = waiting else {
                state.discard(DeferredDrop::Body { _body: body });
                return Ok(None);
            };
            let (parent, reply) = (Some(Parent { number, context }), Reply::to_node(self.clone(), waiting));
            Ok(Some(IncomingCall { number, parent, forwarded: true, head, body, reply }))
        })
    }

    fn cancelled(&self, number: u32) -> Result<(), Refusal> {
        self.locked(|state| match state.incoming.remove(&number) {
            Some(cancelled) => {
                let _ = cancelled.send(());
                Ok(())
            }
            // The answer may already be on its way.
            None if !descriptor::follows(number, state.last_incoming) => Ok(()),
            None => Err((Violation::Stale, format!("there was no call {number} to cancel"))),
        })
    }
}

fn stale(number: u32) -> Refusal {
    (Violation::Stale, format!("the node has no call {number} open"))
}
