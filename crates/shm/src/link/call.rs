//! Calls of the node to the instance.

use super::state::{Inner, PendingCall};
use super::{CallError, Context, End, SendError};
use crate::descriptor::{Descriptor, Kind};
use crate::head::{RequestHead, ResponseHead};
use crate::region::Body;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use tokio::sync::oneshot;

/// An answer. Its body, if there is one, is held until the answer is dropped.
#[derive(Debug)]
pub struct Answer {
    /// Its head, a copy.
    pub head: ResponseHead,
    /// Its body.
    pub body: Option<Body>,
}

/// A call to the instance, which waits for the answer. Dropping it cancels the call.
#[must_use = "a call that is dropped is cancelled"]
pub struct Call {
    link: Arc<Inner>,
    number: u32,
    answer: oneshot::Receiver<Result<Answer, CallError>>,
    answered: bool,
}

impl Inner {
    pub(super) fn call(
        self: &Arc<Self>,
        head: &RequestHead,
        body: Option<&Body>,
        context: Option<Context>,
    ) -> Result<Call, SendError> {
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        self.check_head(&bytes)?;
        let (sender, answer) = oneshot::channel();
        let number = self.locked(|state| {
            self.check(state, body)?;
            if state.calls.len() >= self.settings.open_calls {
                return Err(SendError::Busy);
            }
            let number = state.next_call();
            let held = self.write(state, (Kind::Call, number), &bytes, body)?;
            state.calls.insert(number, PendingCall { held, context, answer: Some(sender) });
            Ok(number)
        })?;
        Ok(Call { link: self.clone(), number, answer, answered: false })
    }

    pub(super) fn check_head(&self, bytes: &[u8]) -> Result<(), SendError> {
        let most = self.settings.head;
        if bytes.len() > most as usize { Err(SendError::Head(most)) } else { Ok(()) }
    }
}

impl Call {
    /// The call's number on the link. Calls that the instance makes meanwhile name it as their
    /// parent.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Future for Call {
    type Output = Result<Answer, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.answered = true;
        // Not expected: the sender sends a result before it is dropped.
        Poll::Ready(answer.unwrap_or(Err(CallError::Ended(End::Stopped))))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.link.locked(|state| {
            // Even after cancellation the instance holds the body until it answers.
            if let Some(call) = state.calls.get_mut(&self.number)
                && call.answer.take().is_some()
            {
                state.outbound.push(Descriptor::number(Kind::Cancel, self.number));
            }
        });
    }
}
