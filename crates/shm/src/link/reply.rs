//! Answers to the instance's calls.

use super::state::Inner;
use super::{Answer, CallError, SendError};
use crate::descriptor::{Descriptor, Kind};
use crate::head::ResponseHead;
use crate::region::{Body, Writer};
use crate::slab::Full;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Answers one call of the instance. If it is dropped without an answer, the call fails at the
/// caller.
#[must_use = "a call without an answer fails"]
pub struct Reply(Option<To>);

enum To {
    /// The instance called.
    Instance { link: Arc<Inner>, number: u32, cancelled: oneshot::Receiver<()> },
    /// The node called, and the instance has forwarded the call.
    Node { link: Arc<Inner>, waiting: oneshot::Sender<Result<Answer, CallError>> },
}

impl Reply {
    pub(super) fn to_instance(link: Arc<Inner>, number: u32, cancelled: oneshot::Receiver<()>) -> Self {
        Self(Some(To::Instance { link, number, cancelled }))
    }

    pub(super) fn to_node(link: Arc<Inner>, waiting: oneshot::Sender<Result<Answer, CallError>>) -> Self {
        Self(Some(To::Node { link, waiting }))
    }

    /// Answers the call. Does nothing if the call was cancelled, or has been answered.
    ///
    /// # Errors
    /// If nothing was sent. The caller may then send another answer, for example with a copy of the
    /// body.
    pub fn answer(&mut self, head: &ResponseHead, body: Option<&Body>) -> Result<(), SendError> {
        if let Some(To::Instance { link, number, .. }) = &self.0 {
            link.answer(*number, head, body)?;
        }
        if let Some(To::Node { waiting, .. }) = self.0.take() {
            let _ = waiting.send(Ok(Answer { head: head.clone(), body: body.cloned() }));
        }
        Ok(())
    }

    /// Space for a body of at most so many bytes, in the node's arena for the instance that
    /// receives the answer. For a call that the instance has forwarded, the space is in this
    /// instance's arena: if the caller belongs to another chain, the body is copied once more.
    ///
    /// # Errors
    /// If there is none of that length, or there was an answer.
    pub fn writer(&self, most: u64) -> Result<Writer, Full> {
        match &self.0 {
            Some(To::Instance { link, .. } | To::Node { link, .. }) => link.writer(most),
            None => Err(Full(most)),
        }
    }

    /// Waits until the answer has no receiver any more: the call was cancelled, or the caller's
    /// link has ended.
    pub async fn cancelled(&mut self) {
        match &mut self.0 {
            Some(To::Instance { cancelled, .. }) => {
                let _ = cancelled.await;
            }
            Some(To::Node { waiting, .. }) => waiting.closed().await,
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        match self.0.take() {
            Some(To::Instance { link, number, .. }) => link.locked(|state| {
                if state.incoming.remove(&number).is_some() {
                    state.outbound.push(Descriptor::number(Kind::Answer, number));
                }
            }),
            Some(To::Node { waiting, .. }) => drop(waiting.send(Err(CallError::Failed))),
            None => {}
        }
    }
}

impl Inner {
    fn answer(self: &Arc<Self>, number: u32, head: &ResponseHead, body: Option<&Body>) -> Result<(), SendError> {
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        self.check_head(&bytes)?;
        self.locked(|state| {
            if !state.incoming.contains_key(&number) {
                return Ok(());
            }
            self.check(state, body)?;
            let held = self.write(state, (Kind::Answer, number), &bytes, body)?;
            state.incoming.remove(&number);
            state.answers.insert(number, held);
            Ok(())
        })
    }
}
