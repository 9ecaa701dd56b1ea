//! Open connections, which a draining node waits for.

use crate::pipeline::worker::{Opener, Worker};
use crate::state::admission::Attribution;
use leno_http::activity::Activity;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Counts a connection as open until it is dropped.
pub(crate) struct OpenConnection {
    worker: Rc<Worker>,
    number: u64,
    opener: Opener,
    activity: Arc<Activity>,
    attribution: Option<Attribution>,
    /// Whether the port at which it arrived was closed.
    closed: Rc<Cell<bool>>,
}

impl OpenConnection {
    pub(crate) fn new(worker: &Rc<Worker>, opener: impl Into<Opener>) -> Self {
        let opener = opener.into();
        let number = worker.connections.register(opener);
        let (activity, closed) = (Activity::new(), Rc::default());
        Self { worker: worker.clone(), number, opener, activity, attribution: None, closed }
    }

    /// Has the connection end after its current exchange when its port is closed.
    pub(crate) fn follow(&mut self, closed: &Rc<Cell<bool>>) {
        self.closed = closed.clone();
    }

    /// Sets the namespace and instance that the connection counts for.
    pub(in crate::listener) fn set_attribution(&mut self, attribution: Attribution) {
        self.attribution = Some(attribution);
    }

    /// The namespace and instance that the connection counts for.
    pub(in crate::listener) fn attribution(&self) -> &Option<Attribution> {
        &self.attribution
    }

    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    pub(super) fn is_draining(&self) -> bool {
        self.closed.get() || self.worker.connections.is_draining(self.opener)
    }

    pub(super) fn wake_to_drain(&self, cx: &Context<'_>) {
        self.worker.connections.set_waker(self.number, cx.waker());
    }

    /// Runs `future`; `None`: draining began first.
    pub(in crate::listener) async fn unless_draining<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            self.wake_to_drain(cx);
            if self.is_draining() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.worker.connections.unregister(self.number);
    }
}
