//! Incoming calls, which this program answers.

use crate::body::{Memory, Payload, ReceivedBody};
use crate::error::Error;
use crate::link::Link;
use crate::state::{InboundMessage, NODE, Number};
use http::{HeaderMap, Method};
use leno_shm::head::{RequestHead, ResponseHead};
use leno_shm::message::Place;
use std::sync::Arc;

/// A call. If it is dropped without an answer, the call fails at its caller.
#[must_use = "a call that is dropped fails"]
pub struct Call {
    link: Arc<Link>,
    number: Number,
    head: RequestHead,
    body: Option<(Memory, Place)>,
    open: bool,
}

impl Link {
    /// Accepts a call; `None`: it is invalid, and over.
    pub(crate) fn accept(self: &Arc<Self>, number: Number, arrived: InboundMessage) -> Option<Call> {
        let call = Call::new(self, number, arrived);
        match call {
            Some(_) => {}
            // The node violates the protocol.
            None if number.way == NODE => self.end(),
            None => self.fail(number),
        }
        call
    }
}

impl Call {
    /// `None`: its head is invalid.
    pub(crate) fn new(link: &Arc<Link>, number: Number, arrived: InboundMessage) -> Option<Self> {
        let head = link.request_head(number, &arrived)?;
        Some(Self { link: link.clone(), number, head, body: arrived.body, open: true })
    }

    /// Its head.
    #[must_use]
    pub fn head(&self) -> &RequestHead {
        &self.head
    }

    /// Its method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// The name of the called function.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.head.authority.as_str()
    }

    /// Its path and query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.head.path.as_str()
    }

    /// Its other fields.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Its body, at its original address.
    #[must_use]
    pub fn body(&self) -> ReceivedBody<'_> {
        show(self.body.as_ref())
    }

    /// Whether its caller has stopped waiting for the answer. It has to be answered even so, or
    /// dropped.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.link.is_cancelled(self.number)
    }

    /// Answers.
    ///
    /// # Errors
    /// If the answer was not sent; then the call has failed.
    pub fn answer<'a>(self, head: impl Into<ResponseHead>, body: impl Into<Payload<'a>>) -> Result<(), Error> {
        self.close_with_answer(&head.into(), &body.into())
    }

    /// Answers with a body that is made from the call's, such as a part of it.
    ///
    /// # Errors
    /// As above.
    pub fn answer_with<F>(self, head: impl Into<ResponseHead>, body: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(ReceivedBody<'a>) -> Payload<'a>,
    {
        // The payload refers to memory of the call, which is held until the answer is sent.
        let held = self.body.clone();
        self.close_with_answer(&head.into(), &body(show(held.as_ref())))
    }

    /// Delegates the call: another function answers it. `head` is the request to that function.
    ///
    /// # Errors
    /// If the request was not sent; then the call has failed.
    pub fn forward<'a>(self, head: &RequestHead, body: impl Into<Payload<'a>>) -> Result<(), Error> {
        self.close_with_call(head, &body.into())
    }

    /// Delegates the call, with a body that is made from the call's, such as all of it.
    ///
    /// # Errors
    /// As above.
    pub fn forward_with<F>(self, head: &RequestHead, body: F) -> Result<(), Error>
    where
        F: for<'a> FnOnce(ReceivedBody<'a>) -> Payload<'a>,
    {
        let held = self.body.clone();
        self.close_with_call(head, &body(show(held.as_ref())))
    }

    fn close_with_answer(mut self, head: &ResponseHead, payload: &Payload<'_>) -> Result<(), Error> {
        head.check(payload.place().length)?;
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        let answered = self.link.answer(self.number, &bytes, payload);
        self.open = answered.is_err();
        answered
    }

    fn close_with_call(mut self, head: &RequestHead, payload: &Payload<'_>) -> Result<(), Error> {
        head.check(payload.place().length)?;
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        let forwarded = self.link.forward(self.number, &bytes, payload);
        self.open = forwarded.is_err();
        forwarded
    }

    pub(crate) fn number(&self) -> Number {
        self.number
    }
}

/// The received part of a message's body, if any.
pub(crate) fn show(body: Option<&(Memory, Place)>) -> ReceivedBody<'_> {
    body.map(|(memory, place)| memory.show(*place)).unwrap_or_default()
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.open {
            self.link.fail(self.number);
        }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("head", &self.head).field("body", &self.body().len()).finish_non_exhaustive()
    }
}
