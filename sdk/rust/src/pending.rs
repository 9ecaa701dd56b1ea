//! Outgoing calls, and their answers.

use crate::body::{Memory, ReceivedBody};
use crate::call::show;
use crate::error::Error;
use crate::link::Link;
use crate::state::{InboundMessage, NODE, Number};
use crate::wait::Interest;
use http::{HeaderMap, StatusCode};
use leno_shm::head::ResponseHead;
use leno_shm::message::Place;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A call that waits for its answer. If it is dropped, the call is cancelled, which its callee can
/// see.
#[must_use = "a call that is dropped is cancelled"]
#[derive(Debug)]
pub struct Pending {
    link: Handle,
    number: Number,
}

/// The answer to a call. Its body is there until it is dropped.
#[derive(Debug)]
pub struct Answer {
    link: Handle,
    number: Number,
    head: ResponseHead,
    body: Option<(Memory, Place)>,
    held: bool,
}

/// A link that is left out of debug output.
struct Handle(Arc<Link>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("..")
    }
}

impl Pending {
    pub(crate) fn new(link: Arc<Link>, number: Number) -> Self {
        Self { link: Handle(link), number }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// If there is none, or the link has ended.
    pub fn wait(self) -> Result<Answer, Error> {
        let wanted = [self.number];
        let interest = Interest::Answers(wanted.to_vec());
        let (_, arrived) = self.link.0.wait(&interest, |state| state.take_answer(&wanted))?;
        Answer::new(self.link.0.clone(), self.number, arrived)
    }

    fn take(&self) -> Result<Answer, Error> {
        let (link, number) = (&self.link.0, self.number);
        let taken = link.lock().take_answer(&[number]);
        let (_, arrived) = taken.ok_or(Error::Ended)?;
        Answer::new(link.clone(), number, arrived)
    }

    /// Waits for the first answer to any of these calls, which are of one link. Takes that call out
    /// of the list, and returns its former index; the calls after it move up. `None`: the list is
    /// empty.
    pub fn wait_any(pending: &mut Vec<Self>) -> Option<(usize, Result<Answer, Error>)> {
        let link = pending.first()?.link.0.clone();
        let wanted: Vec<Number> = pending.iter().map(|pending| pending.number).collect();
        let taken = link.wait(&Interest::Answers(wanted.clone()), |state| state.take_answer(&wanted));
        Some(match taken {
            Ok((place, arrived)) => {
                let taken = pending.remove(place);
                (place, Answer::new(link, taken.number, arrived))
            }
            Err(error) => {
                drop(pending.remove(0));
                (0, Err(error))
            }
        })
    }

    /// Waits for the answers to all of these calls, in their order.
    pub fn wait_all(pending: impl IntoIterator<Item = Self>) -> Vec<Result<Answer, Error>> {
        pending.into_iter().map(Self::wait).collect()
    }
}

/// Waits for the answer, while a thread is in [`Chain::serve`](crate::Chain::serve), which reads
/// the answer. Without such a thread this is an error, because the answer would never be read.
impl Future for Pending {
    type Output = Result<Answer, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.link.0.poll(self.number, context.waker()) {
            Some(true) => Poll::Ready(self.take()),
            Some(false) => Poll::Pending,
            None => Poll::Ready(Err(Error::NotServed)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Has no effect if the answer was taken.
        self.link.0.cancel(self.number);
    }
}

impl Answer {
    fn new(link: Arc<Link>, number: Number, arrived: Option<InboundMessage>) -> Result<Self, Error> {
        let arrived = arrived.ok_or(Error::Failed)?;
        let head = ResponseHead::decode(link.head(&arrived)).ok();
        // Answers from the node have been checked by it.
        match head.filter(|head| number.way == NODE || head.check(arrived.body_bytes()).is_ok()) {
            Some(head) => Ok(Self { link: Handle(link), number, head, body: arrived.body, held: arrived.held }),
            None => {
                link.release(number, 0);
                Err(Error::Failed)
            }
        }
    }

    /// Its head.
    #[must_use]
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.head.status
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
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.held {
            self.link.0.release(self.number, self.body().len() as u64);
        }
    }
}
