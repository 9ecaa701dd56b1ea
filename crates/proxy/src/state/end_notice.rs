//! Asks a client's connection to end, because the program behind it has closed its own.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Tells the connection of a pod's client that it has to end after its current exchanges. Without
/// Leno, the client would see that the program closes it.
#[derive(Debug, Default)]
pub struct EndNotice {
    http1: AtomicBool,
    http2: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl EndNotice {
    /// The program has closed a connection of this protocol, or has announced that it will. A client
    /// that speaks another protocol stays: its next request gets a new connection to the program.
    pub(crate) fn give(&self, is_http2: bool) {
        let flag = if is_http2 { &self.http2 } else { &self.http1 };
        if !flag.swap(true, Ordering::AcqRel) {
            self.waker().iter().for_each(Waker::wake_by_ref);
        }
    }

    /// The pod ends, and so does the connection, whatever its protocol is.
    pub(crate) fn give_to_all(&self) {
        self.give(false);
        self.give(true);
    }

    /// Whether a connection of this protocol has to end.
    pub(crate) fn is_given(&self, is_http2: bool) -> bool {
        if is_http2 { self.http2.load(Ordering::Acquire) } else { self.http1.load(Ordering::Acquire) }
    }

    /// Sets the task that is woken. There is one: that of the client's connection.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.waker().replace(waker.clone());
    }

    /// Waits until connections of all protocols have to end.
    pub(crate) async fn given_to_all(&self) {
        poll_fn(|cx| {
            self.set_waker(cx.waker());
            match self.is_given(false) && self.is_given(true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
